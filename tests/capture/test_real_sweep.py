"""A real sweep over three batches: its index, what it says about the model, and its tables."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from pretended_runs import OPTIONS, pretend

import tracekit
from tracekit.analyses.kernels import kernels
from tracekit.analyses.xsp.analysis import xsp
from tracekit.capture.plan import Plan
from tracekit.capture.sweep.grid import folder_of
from tracekit.cli.main import main
from tracekit.manifest import Settings, read_manifest
from tracekit.report.characterize import FIGURES, SETTINGS, characterize
from tracekit.sweep_index import SCHEMA, read_index

LEVELS = ("M", "MLG", "metrics")
FEW = ["--size", "8", "--steps", "2", "--levels", ",".join(LEVELS)]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep over three batches, as the command line makes it."""
    folder = tmp_path_factory.mktemp("sweep")
    assert run("sweep", "cnn", "--batch", "4,1,2", *FEW, "-o", folder) == 0
    return folder


@pytest.mark.slow
def test_index_says_what_the_manifests_say(real: Path) -> None:
    index = read_index(real)
    assert dict(index.schema) == SCHEMA
    assert index["batch"].to_list() == [1, 2, 4]
    assert set(index["status"]) == {"done"}
    for row in index.iter_rows(named=True):
        manifest = read_manifest(real / row["folder"] / "manifest.json")
        times = manifest.step_times_ns("M")
        assert len(times) == 2
        assert row["step_min_ns"] == min(times)
        assert row["step_median_ns"] == row["step_trimmed_mean_ns"] == sum(times) / 2
        assert row["throughput_per_s"] == pytest.approx(row["batch"] * 2e9 / sum(times), rel=1e-12)
        assert row["profiling_overhead"] == manifest.overhead("MLG")
        assert (row["samples_per_step"], row["parameters"]) == (row["batch"], manifest.parameters)
        assert (row["size"], row["levels"], row["steps"], row["error"]) == (8, ",".join(LEVELS), 2, None)
        assert row["seconds"] > sum(times) / 1e9
        assert row["folder"] == folder_of(
            Plan(
                workload="cnn",
                settings=Settings(batch=row["batch"], size=8),
                options=OPTIONS,
                levels=LEVELS,
            )
        )
    assert sorted(path.name for path in real.iterdir()) == sorted([*index["folder"], "index.parquet"])


@pytest.mark.slow
def test_resuming_runs_nothing_again(
    real: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_index(real)
    started = pretend(monkeypatch, {})
    assert run("sweep", "cnn", "--batch", "1,2,4", *FEW, "-o", real, "-f", "csv", "--retry") == 0
    out, err = capsys.readouterr()
    assert (started, err) == ([], "")
    assert pl.read_csv(out.encode())["key"].to_list() == before["key"].to_list()
    assert read_index(real).equals(before)


@pytest.mark.slow
def test_what_it_says_about_the_model(real: Path) -> None:
    (figures,) = characterize(real).to_dicts()
    index = read_index(real)
    times: dict[int, list[int]] = {}
    for item in index.iter_rows(named=True):
        times[item["batch"]] = read_manifest(real / item["folder"] / "manifest.json").step_times_ns("M")
    rates = {batch: 2 * batch / sum(both) for batch, both in times.items()}
    assert figures["online_latency_ns"] == sum(times[1]) / 2
    assert figures["maximum_throughput_per_s"] == pytest.approx(1e9 * max(rates.values()))
    stopped = [batch for batch in (1, 2) if rates[2 * batch] <= 1.05 * rates[batch]]
    assert (figures["optimal_batch"], figures["open"]) == ((stopped[0], False) if stopped else (4, True))
    best = index.filter(pl.col("batch") == figures["optimal_batch"])["folder"][0]
    categories = kernels(tracekit.read(real / best / "trace.json.gz")).by_category
    shares = dict(categories.select("category", "share").rows())
    assert figures["convolution_share"] == shares["convolution"] > 0.1
    assert (figures["gpu_share"], figures["bound"], figures["note"]) == (None, "cpu", None)


@pytest.mark.slow
def test_command_sorts_and_writes_every_format(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("characterize", real) == 0
    out = capsys.readouterr().out
    assert "latency at 1" in out
    assert "GPU" not in out.splitlines()[3], "what was not captured has no column"
    assert run("characterize", real, "-f", "json") == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert list(model) == [*SETTINGS, *FIGURES]
    for name in ("t.md", "t.csv", "t.parquet", "t.json"):
        assert run("characterize", real, "-o", tmp_path / name) == 0
    assert pl.read_parquet(tmp_path / "t.parquet").equals(characterize(real))
    assert run("characterize", real, "--sort", "speed") == 2
    assert "there is no column 'speed'; did you mean seed?" in capsys.readouterr().err
    assert run("characterize", real, "-f", "html") == 2


@pytest.mark.slow
def test_tables_across_the_stack(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = xsp([real], analyses=["A1", "A10", "A15"])
    assert tables["A1"].frame["batch"].to_list() == [1, 2, 4] == tables["A15"].frame["batch"].to_list()
    assert tables["A10"].frame.height
    assert run("xsp", real, "--analysis", "A15", "--batch", 2) == 0
    assert "batch" in capsys.readouterr().out
