"""Hardware counters: asked for on a GPU alone, and a capture without them says why."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tracekit
from tracekit.capture import counters
from tracekit.capture.run import CaptureResult, run
from tracekit.cli.main import main
from tracekit.manifest import CaptureOptions, Settings, read_manifest, traces_in
from tracekit.report.build import build_report

CPU = torch.device("cpu")
RANGE = {
    "ph": "X",
    "cat": "cuda_profiler_range",
    "name": "a kernel",
    "pid": 0,
    "tid": 7,
    "ts": 10.0,
    "dur": 5.0,
    "args": dict.fromkeys(counters.METRICS, 3.0),
}


def profiled(*events: dict) -> Callable[..., None]:
    """A profiler that runs the step and writes these events."""

    def profile(step: Callable[[], object], _device: torch.device, target: Path) -> None:
        step()
        target.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))

    return profile


def refused(*_: object) -> None:
    raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES\nat /somewhere/else.cpp")


def captured(folder: Path, *levels: str) -> CaptureResult:
    small = Settings(batch=1, size=8)
    return run("cnn", folder, settings=small, options=CaptureOptions(steps=1), levels=levels)  # type: ignore[arg-type]


def test_on_a_cpu_nothing_is_asked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(counters, "profile_step", refused)
    manifest = captured(tmp_path, "metrics").manifest
    assert (manifest.counters_missing, manifest.runs) == (None, [])
    assert manifest.flops_per_step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "why"),
    [
        (refused, "RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES at else.cpp"),
        (profiled({**RANGE, "cat": "kernel"}), "the profiler wrote none; this user may not"),
    ],
)
def test_a_refusal_is_noted_and_the_capture_goes_on(
    tmp_path: Path, monkeypatch, profile: Callable[..., None], why: str, capsys
) -> None:
    monkeypatch.setattr(counters, "profile_step", profile)
    monkeypatch.setattr(counters, "has_counters", lambda _device: True)
    words = ["capture", "cnn", "-o", str(tmp_path), "--steps", "1", "--batch", "1", "--size", "8"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--levels", "metrics,M"])
    assert not left.value.code
    manifest = read_manifest(tmp_path / "manifest.json")
    assert (manifest.counters_missing or "").startswith(why)
    assert manifest.flops_per_step
    assert [one.level for one in manifest.runs] == ["M"]
    assert manifest.stopped is None
    assert f"warning: no hardware counters: {why}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.slow
def test_counters_are_a_trace_of_their_own_beside_the_others(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(counters, "profile_step", profiled(RANGE))
    monkeypatch.setattr(counters, "has_counters", lambda _device: True)
    result = captured(tmp_path, "M", "ML", "metrics")
    assert result.manifest.counters_missing is None
    assert [one.trace for one in result.manifest.runs] == [None, "trace-ML.json.gz", "trace-metrics.json.gz"]
    assert traces_in(tmp_path) == [tmp_path / "trace-ML.json.gz"], (
        "a report is of the times, not the counters"
    )
    trace = tracekit.read(tmp_path / "trace-metrics.json.gz")
    assert trace.counters is not None
    assert set(trace.counters["series"].cast(str)) == set(counters.METRICS)
    report = build_report(trace)
    assert report.verdict.bound == "counters"
    captured(tmp_path, "M")
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"], "an older one goes"


def test_where_kernels_cannot_be_measured_alone_nothing_is_asked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(counters, "profile_step", refused)
    told = counters.measure(lambda: None, CPU, tmp_path / "x", ranks=2)
    assert told is not None
    assert "another rank" in told
    monkeypatch.setenv("TRACEKIT_UNDER_NSYS", "note")
    assert counters.measure(lambda: None, CPU, tmp_path / "x", ranks=1) == "nsys is using the counters"


@pytest.mark.parametrize(
    ("built_for", "has"), [("11.8", True), ("12.6", True), ("12.8", False), ("13.0", False)]
)
def test_a_torch_without_counters_is_not_asked(
    tmp_path: Path, monkeypatch, built_for: str, has: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(counters, "profile_step", profiled(RANGE) if has else refused)
    told = counters.measure(lambda: None, CPU, tmp_path / "x", ranks=1)
    why = f"torch's profiler has none in builds for CUDA above 12.6, and this one is for {built_for}"
    assert told == (None if has else why)


def test_torch_knows_what_the_profiler_is_told() -> None:
    config = torch._C._profiler._ExperimentalConfig(
        profiler_metrics=list(counters.METRICS), profiler_measure_per_kernel=True
    )
    assert config is not None
    assert not counters.has_counters(CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_counters_or_says_why_not(tmp_path: Path) -> None:
    settings = Settings(device="cuda", batch=1, size=8)
    result = run("cnn", tmp_path, settings=settings, options=CaptureOptions(steps=1), levels=("metrics",))
    assert result.manifest.flops_per_step
    if result.manifest.counters_missing is None:
        found = tracekit.read(tmp_path / "trace-metrics.json.gz").counters
        assert found is not None
        assert "dram__bytes_read.sum" in set(found["series"].cast(str))
