"""The measured runs of Lattuada et al., by their splits, beside the figures that are asked for. They skip where the data is not."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from paths import LATTUADA

from tracekit.predict.describe import description_of
from tracekit.predict.evaluate import evaluate
from tracekit.predict.table import Runs, read_runs

pytestmark = [
    pytest.mark.skipif(not LATTUADA.exists(), reason="needs the shared data"),
    pytest.mark.slow,
]

COLUMNS = {
    "gpus": "gpus",
    "batch": "batch",
    "iterations": "iterations",
    "loader_threads": "cpu_threads",
    "peak_gflops": "gflops",
    "machine": "disk_mb_s",
}
DEPTH = {
    "gpus": "gpus",
    "batch": "batch",
    "iterations": "iterations",
    "loader_threads": "cpu_threads",
    "layers": "depth",
}


def runs_of(name: str) -> Runs:
    # In the depth files every run stands twice, with two numbers of iterations.
    depth = name.startswith("depth")
    said = {
        "target": {"column": "time_s", "unit": "s"},
        "columns": DEPTH if depth else COLUMNS,
        "rows": {"group": ["batch", "cpu_threads", "depth"] if depth else []},
        "devices": {"5591": {"name": "Tesla K80", "dies": 2}, "7365": {"name": "Tesla M60", "dies": 2}},
    }
    return read_runs(LATTUADA / f"{name}.csv", description_of(said, Path("columns.toml")))


@pytest.mark.parametrize(
    ("name", "split", "most"),
    [
        ("alexnet_tf_core", "kfold:3", 5.0),
        ("resnet50_pt", "gpus>2", 8.0),
        ("resnet50_pt", "batch>p75", 9.0),
        ("resnet50_pt", "peak_gflops>10000", 22.0),
        ("depth_2gpu", "layers>4", 1.0),
    ],
)
@pytest.mark.sampled(2)
def test_the_asked_error_is_kept(name: str, split: str, most: float) -> None:
    found = evaluate(runs_of(name), split, models=["auto"])
    row = found.models.row(by_predicate=pl.col("model") == "auto", named=True)
    best = found.models.filter(pl.col("model") != "auto")["mean_ape"].min()
    assert row["mean_ape"] <= most
    assert row["mean_ape"] < best
    if split.startswith("kfold"):
        assert 85 <= row["coverage"] <= 96
