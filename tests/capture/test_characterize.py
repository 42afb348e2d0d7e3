"""What a sweep says about a model, against figures computed by hand."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from manifests import manifest
from synthetic import generate, write

import tracekit
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.kernels import kernels
from tracekit.cli.main import main
from tracekit.errors import UnreadableTraceError
from tracekit.manifest import Run, Settings
from tracekit.report.build import build_report
from tracekit.report.characterize import FIGURES, SETTINGS, characterize, optimal_batch
from tracekit.sweep_index import index_of


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


def row(batch: int | None, time: float | None, *, status: str = "done", **others: Any) -> dict[str, Any]:
    """A run whose steps take `time` ns on average, of as many samples as the batch has."""
    samples = others.pop("samples_per_step", batch)
    return {
        "key": f"{others}{batch}",
        "series": "s",
        "workload": "m",
        "device": "cuda",
        "device_name": "a GPU" if status == "done" else None,
        "precision": "fp32",
        "batch": batch,
        "accumulate": 1,
        "ranks": 1,
        "status": status,
        "step_trimmed_mean_ns": time,
        "samples_per_step": samples,
        "throughput_per_s": samples / time * 1e9 if samples and time else None,
        "parameters": 11 if status == "done" else None,
        "folder": f"run-{batch}",
        **others,
    }


def made(folder: Path, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """What an index of these rows gives."""
    buffer = BytesIO()
    index_of(list(rows)).write_parquet(buffer)
    (folder / "index.parquet").write_bytes(buffer.getvalue())
    return characterize(folder).to_dicts()


def recorded(folder: Path, trace: str | None) -> None:
    """A folder of a run with this trace, as far as a manifest tells."""
    folder.mkdir(exist_ok=True)
    runs = [Run(level="MLG", trace=trace, step_times_ns=[1])] if trace else []
    written = manifest(parameters=11, device="cuda", device_name="a GPU", settings=Settings(), runs=runs)
    (folder / "manifest.json").write_bytes(written.to_json())


# -- the optimal batch -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({1: 100.0, 2: 150.0, 4: 290.0, 8: 580.0}, (2, False)),  # 2 → 4 gains 3.4 %
        ({1: 105.0, 2: 200.0}, (1, False)),  # a gain of exactly 5 % is none
        ({1: 105.0, 2: 199.999}, (2, True)),
        ({1: 2_100_000.0, 2: 4_000_000.0}, (1, False)),
        (
            {1: 100.0, 2: 250.0, 4: 300.0, 8: 310.0},
            (1, False),
        ),  # the smallest, even if larger ones gain again
        ({1: 100.0, 4: 400.0, 8: 801.0}, (4, False)),  # of 1 the double was not run
        ({1: 100.0, 3: 300.0, 5: 500.0}, (5, True)),  # no double was run
        ({16: 100.0}, (16, True)),
        ({}, (None, True)),
    ],
)
def test_optimal_batch(times: dict[int, float], expected: tuple[int | None, bool]) -> None:
    assert optimal_batch({batch: (batch, time) for batch, time in times.items()}) == expected
    backwards = {batch: (batch, times[batch]) for batch in reversed(times)}
    assert optimal_batch(backwards) == expected


# -- hand-made indices -------------------------------------------------------------------------------


def test_figures_of_a_series(tmp_path: Path) -> None:
    (figures,) = made(
        tmp_path,
        row(4, 1.6e6),
        row(1, 1e6),
        row(2, 1.2e6),
        row(8, 3.1e6),
        row(16, None, status="out of memory"),
        row(32, None, status="skipped"),
    )
    assert list(figures) == [*SETTINGS, *FIGURES]
    assert (figures["workload"], figures["device_name"], figures["precision"]) == ("m", "a GPU", "fp32")
    assert figures["online_latency_ns"] == 1e6
    assert figures["maximum_throughput_per_s"] == pytest.approx(8 / 3.1e-3)
    assert (figures["optimal_batch"], figures["open"]) == (4, False)
    assert figures["out_of_memory_batch"] == 16
    assert (figures["runs"], figures["parameters"]) == (4, 11)
    assert figures["roofline_bound"] is None
    assert figures["note"].startswith("no figures of the trace: run-4: not a readable manifest")


def test_open_end_and_what_was_not_run(tmp_path: Path) -> None:
    (figures,) = made(tmp_path, row(2, 1e6), row(4, 1.1e6))
    assert (figures["optimal_batch"], figures["open"], figures["online_latency_ns"]) == (4, True, None)
    (figures,) = made(tmp_path, row(2, 1e6))
    assert (figures["optimal_batch"], figures["open"]) == (2, True)


def test_series_without_a_success_is_null_and_not_dropped(tmp_path: Path) -> None:
    (figures,) = made(tmp_path, row(1, None, status="out of memory"), row(2, None, status="skipped"))
    assert (figures["workload"], figures["runs"], figures["out_of_memory_batch"]) == ("m", 0, 1)
    assert {figures[name] for name in FIGURES if name not in ("runs", "out_of_memory_batch", "note")} == {
        None
    }
    (figures,) = made(tmp_path, row(1, None))
    assert (figures["runs"], figures["optimal_batch"]) == (1, None)
    assert figures["note"] == "no run has both a step time (level M) and a number of samples"
    assert made(tmp_path) == []


def test_one_row_per_series_and_device(tmp_path: Path) -> None:
    rows = made(
        tmp_path,
        row(1, 1e6),
        row(1, 2e6, series="t", precision="bf16"),
        row(2, 5e6, device_name="another GPU"),
        row(4, None, status="out of memory"),
    )
    assert [
        (r["precision"], r["device_name"], r["optimal_batch"], r["out_of_memory_batch"]) for r in rows
    ] == [
        ("fp32", "a GPU", 1, 4),
        ("fp32", "another GPU", 2, 4),
        ("bf16", "a GPU", 1, None),
    ]


def test_batch_left_to_the_workload_is_that_of_its_samples(tmp_path: Path) -> None:
    own = {"samples_per_step": 48, "accumulate": 2, "ranks": 3}
    several = {"accumulate": 2, "ranks": 3}
    (figures,) = made(
        tmp_path, row(None, 6e6, **own), row(16, 12e6, samples_per_step=96, **several), row(4, 4e6, **several)
    )
    assert (figures["optimal_batch"], figures["open"], figures["runs"]) == (8, False, 3)
    # Of two runs of one batch, that counts which asked for it.
    (figures,) = made(tmp_path, row(None, 6e6, **own), row(8, 12e6, samples_per_step=48, **several))
    assert (figures["runs"], figures["maximum_throughput_per_s"]) == (1, pytest.approx(4000))


@pytest.mark.slow
def test_figures_of_the_trace_at_the_optimal_batch(tmp_path: Path) -> None:
    recorded(tmp_path / "run-2", "rank-0.json.gz")
    path = write(generate(seed=3, steps=3), tmp_path / "run-2" / "rank-0.json.gz")
    (figures,) = made(tmp_path, row(1, 1e6), row(2, 1e6), row(4, 2e6))
    assert (figures["optimal_batch"], figures["open"], figures["note"]) == (2, False, None)
    trace = tracekit.read(path)
    categories = kernels(trace).by_category
    convolutions = categories.filter(pl.col("category") == "convolution")
    assert figures["convolution_share"] == convolutions["total_ns"].sum() / categories["total_ns"].sum()
    devices = breakdown(trace).devices
    assert devices.height == 1
    assert figures["gpu_share"] == devices["utilisation"][0]
    assert 0 < figures["gpu_share"] < 1
    assert figures["bound"] == build_report(trace).verdict.bound


@pytest.mark.parametrize(
    ("trace", "note"),
    [
        (None, "no trace at the optimal batch; sweep with the level MLG"),
        ("gone.json.gz", "no figures of the trace"),
    ],
)
def test_missing_trace_is_said_and_the_rest_stays(trace: str | None, note: str, tmp_path: Path) -> None:
    recorded(tmp_path / "run-1", trace)
    (figures,) = made(tmp_path, row(1, 1e6))
    assert figures["note"].startswith(note)
    assert (figures["gpu_share"], figures["convolution_share"], figures["bound"]) == (None, None, None)
    assert figures["online_latency_ns"] == 1e6


def test_folder_without_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnreadableTraceError, match="there is no such file"):
        characterize(tmp_path)
    assert run("characterize", tmp_path) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("maximum_throughput_per_s", ["b", "c", "a", "d"]),
        ("online_latency_ns", ["a", "c", "b", "d"]),
        ("workload", ["a", "b", "c", "d"]),
    ],
)
def test_order(sort: str, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(
        tmp_path,
        row(1, None, status="failed", workload="d", series="d"),
        row(1, 3e6, workload="a", series="a"),
        row(1, 1e6, workload="b", series="b"),
        row(1, 2e6, workload="c", series="c"),
    )
    assert run("characterize", tmp_path, "--sort", sort, "-f", "csv") == 0
    assert pl.read_csv(capsys.readouterr().out.encode())["workload"].to_list() == expected
