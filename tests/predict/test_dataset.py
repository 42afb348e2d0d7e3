"""Captures as a table of runs: what manifests and traces say, nulls for what they do not, and a table that models read as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from statistics import median

import polars as pl
import pytest
from paths import SAMPLES

import tracekit
from tracekit.cli.main import main
from tracekit.errors import InconclusiveError, UnreadableTraceError
from tracekit.predict import fit, recognised, runs_from
from tracekit.predict.dataset import COLUMNS, dataset

FOLDERS = {path.parent.name: path.parent for path in SAMPLES}
CNN = FOLDERS["cnn_cpu"]


def _manifest(folder: Path) -> dict[str, object]:
    said: dict[str, object] = json.loads((folder / "manifest.json").read_bytes())
    return said


def test_a_row_says_what_the_manifest_says() -> None:
    row = dataset([CNN], tracekit.read).table.row(0, named=True)
    said = json.loads((CNN / "manifest.json").read_bytes())
    times = next(run["step_times_ns"] for run in said["runs"] if run["level"] == "M")
    assert (row["id"], row["network"], row["batch"], row["gpus"]) == ("cnn_cpu", "cnn", 4, 1)
    assert (row["parameters"], row["layers"], row["flops"]) == (
        said["parameters"],
        said["layers"],
        said["flops_per_step"],
    )
    assert (row["step_time_ns"], row["measured_steps"], row["recorded"]) == (median(times), len(times), False)


def test_the_trace_tells_the_work() -> None:
    row = dataset([CNN], tracekit.read).table.row(0, named=True)
    assert row["gradient_bytes"] == 4 * row["parameters"]
    assert json.loads(row["layer_types"])["Conv2d"] == 15
    # The counter of torch counts products and convolutions; tracekit counts the rest as well.
    assert row["flops"] <= row["forward_flops"] + row["backward_flops"] < 1.1 * row["flops"]
    assert 1.8 < row["backward_flops"] / row["forward_flops"] < 2.1
    # The backward pass needs at least the inputs of the convolutions.
    assert row["activation_bytes"] > 4 * 4 * 32 * 32 * 16


def test_what_was_not_captured_is_null() -> None:
    row = dataset([CNN], tracekit.read).table.row(0, named=True)
    for name in ("device_busy_ns", "exposed_communication_ns", "link_gb_s", "peak_bf16_gflops"):
        assert row[name] is None


def test_without_a_trace_the_settings_and_times_are_left(tmp_path: Path) -> None:
    said = _manifest(CNN)
    runs = said["runs"]
    assert isinstance(runs, list)
    said["runs"] = [run for run in runs if run["level"] == "M"]
    (tmp_path / "manifest.json").write_text(json.dumps(said))
    row = dataset([tmp_path], tracekit.read).table.row(0, named=True)
    assert row["step_time_ns"] > 0
    assert row["batch"] == 4
    assert all(row[name] is None for name in ("bytes", "depth", "forward_ns", "activation_bytes"))


def test_a_damaged_run_is_left_out_and_named(tmp_path: Path) -> None:
    shutil.copytree(CNN, tmp_path / "broken")
    (tmp_path / "broken" / "trace.json.gz").write_bytes(b"no trace")
    made = dataset([CNN, tmp_path / "broken"], tracekit.read)
    assert made.table["id"].to_list() == ["cnn_cpu"]
    assert len(made.left_out) == 1
    assert "broken" in made.left_out[0]
    with pytest.raises(InconclusiveError, match="no run has a row"):
        dataset([tmp_path / "broken"], tracekit.read)
    with pytest.raises(UnreadableTraceError):
        dataset([tmp_path / "broken" / "none"], tracekit.read)
    shutil.copytree(CNN, tmp_path / "whole")
    made = dataset([tmp_path], tracekit.read)
    assert (made.table["id"].to_list(), len(made.left_out)) == (["whole"], 1)


@pytest.mark.slow
def test_ranks_add_up() -> None:
    table = dataset([FOLDERS["bert_cpu"], FOLDERS["bert_cpu_ddp"]], tracekit.read).table
    one, two = table.rows(named=True)
    assert (one["gpus"], two["gpus"]) == (1, 2)
    for name in ("batch", "flops", "forward_flops"):
        assert two[name] == 2 * one[name], name
    assert one["gradient_bytes"] == two["gradient_bytes"]


@pytest.mark.slow
def test_the_columns_need_no_description() -> None:
    folders = [FOLDERS[name] for name in ("bert_cpu", "cnn_cpu", "dlrm_cpu")]
    table = dataset(folders, tracekit.read).table
    assert table.schema == pl.Schema(COLUMNS)
    found = recognised(table.columns, Path("runs.parquet"))
    assert (found.target, found.unit, found.id) == ("step_time_ns", "ns", "id")
    assert {"gpus", "batch", "flops", "bytes", "parameters", "layers", "network"} <= set(found.columns)
    assert "iterations" not in found.columns
    assert all(role == column for role, column in found.columns.items())
    runs = runs_from(table.cast(pl.String), found, Path("runs.parquet"))
    assert runs.height == len(folders)


@pytest.mark.slow
def test_a_sweep_becomes_a_model(tmp_path: Path) -> None:
    batches = [2, 4, 8]
    for batch in batches:  # in this process, so that torch is imported once
        words = f"capture cnn --tiny --batch {batch} --threads 1 --levels M,MLG --steps 2 -o".split()
        with pytest.raises(SystemExit) as left:
            main([*words, str(tmp_path / str(batch))])
        assert not left.value.code
    table = dataset([tmp_path / str(batch) for batch in batches], tracekit.read).table
    assert table["batch"].to_list() == batches
    assert table["flops"].is_sorted()
    runs = runs_from(
        table.cast(pl.String), recognised(table.columns, Path("runs.parquet")), Path("runs.parquet")
    )
    answers = fit(runs).predict(runs)
    assert (answers["predicted"] > 0).all()
