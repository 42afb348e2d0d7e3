"""Throughput, phases and levels against figures that were planted."""

from __future__ import annotations

import json
from pathlib import Path

import manifests
import pytest
from paths import SAMPLES
from synthetic import dump, generate

import tracekit
from tracekit.analyses.scope import select
from tracekit.analyses.workload import NO_PHASE, workload
from tracekit.errors import UnreadableTraceError
from tracekit.facts.capture_names import PHASE_PREFIX
from tracekit.facts.device_peaks import fp32_tflops_of_clock, peak_tflops
from tracekit.manifest import CaptureOptions, Manifest, Run, Settings
from tracekit.report.build import build_report
from tracekit.trace import Trace

MS = 1_000_000


def manifest(trace: str, **changed: object) -> Manifest:
    fields: dict[str, object] = {
        "options": CaptureOptions(steps=3),
        "settings": Settings(precision="bf16", device="cuda"),
        "parameters": 10,
        "layers": 2,
        "samples_per_step": 32,
        "flops_per_step": 156 * 10**9,
        "device": "cuda",
        "device_name": "NVIDIA A100-SXM4-80GB",
        "platform": "Linux",
        "layer_ranges": "structured",
        "runs": [
            Run(level="M", step_times_ns=[1 * MS, 1 * MS, 4 * MS], peak_memory_bytes=7),
            Run(level="MLG", trace=trace, step_times_ns=[2 * MS, 3 * MS, 2 * MS], peak_memory_bytes=9),
        ],
    }
    return manifests.manifest(**{**fields, **changed})


def captured(folder: Path, **changed: object) -> Trace:
    """A generated trace of three steps with phases put into it, and a manifest beside it."""
    planted = json.loads(dump(generate(seed=2, steps=3)))
    events = planted["traceEvents"]
    steps = [e for e in events if str(e.get("name")).startswith("ProfilerStep#") and e["ph"] == "X"]
    for step in steps:
        if step.get("cat") not in ("user_annotation",):
            continue
        start, length = float(step["ts"]), float(step["dur"])
        for name, begin, part in (("forward", 0.0, 0.25), ("backward", 0.25, 0.5)):
            place = {"pid": step["pid"], "tid": step["tid"], "ph": "X", "cat": "user_annotation"}
            times = {"ts": round(start + begin * length, 3), "dur": round(part * length, 3)}
            events.append({**place, **times, "name": PHASE_PREFIX + name, "args": {}})
    path = folder / "trace.json"
    path.write_text(json.dumps(planted))
    (folder / "manifest.json").write_bytes(manifest("trace.json", **changed).to_json())
    return tracekit.read(path)


def test_figures_of_the_manifest(tmp_path: Path) -> None:
    found = workload(captured(tmp_path))
    assert found.step_ns == 1 * MS
    assert found.throughput_per_s == pytest.approx(32_000)
    assert found.achieved_tflops == pytest.approx(156)
    assert found.flops_utilisation == pytest.approx(0.5), "half of an A100's 312"
    assert found.peak_memory_bytes == 9
    assert found.levels is not None
    assert found.levels.select("level", "count", "median_ns", "overhead").rows() == [
        ("M", 3, 1 * MS, 1.0),
        ("MLG", 3, 2 * MS, 2.0),
    ]
    assert "32,000 samples a second" in found.answer


def test_the_slowest_rank_makes_the_step(tmp_path: Path) -> None:
    runs = [
        Run(level="M", rank=0, step_times_ns=[1 * MS, 5 * MS]),
        Run(level="M", rank=1, step_times_ns=[3 * MS, 1 * MS]),
        Run(level="MLG", trace="trace.json", step_times_ns=[9 * MS, 9 * MS]),
    ]
    found = workload(captured(tmp_path, runs=runs))
    assert found.step_ns == 4 * MS
    assert found.levels is not None
    assert found.levels["ranks"].to_list() == [2, 1]


def test_what_was_not_measured_is_null(tmp_path: Path) -> None:
    unknown = captured(tmp_path, device_name="a board of nobody's", samples_per_step=None)
    found = workload(unknown)
    assert found.flops_utilisation is None
    assert found.achieved_tflops is not None
    assert found.throughput_per_s is None
    only = captured(
        tmp_path, flops_per_step=None, runs=[Run(level="MLG", trace="trace.json", step_times_ns=[MS])]
    )
    found = workload(only)
    assert found.achieved_tflops is found.flops_utilisation is found.peak_memory_bytes is None
    assert found.step_ns == MS
    assert "with the profiler" in found.answer
    assert found.levels is not None
    assert found.levels["overhead"].to_list() == [None]


def test_a_recording_that_ended_early_is_said(tmp_path: Path) -> None:
    early = "1 of 3 steps was recorded before the end"
    found = workload(captured(tmp_path, stopped=early))
    assert f"The recording ended early: {early}." in found.answer


def test_phases_are_the_planted_parts_of_the_steps(tmp_path: Path) -> None:
    trace = captured(tmp_path)
    found = workload(trace).phases
    assert found is not None
    scope = select(trace)
    whole = int((scope.steps["end"] - scope.steps["start"]).sum())
    assert found["total_ns"].sum() == whole
    shares = dict(found.select("phase", "share").rows())
    assert shares["forward"] == pytest.approx(0.25, abs=1e-4)
    assert shares["backward"] == pytest.approx(0.5, abs=1e-4)
    assert shares[NO_PHASE] == pytest.approx(0.25, abs=1e-3)
    assert dict(found.select("phase", "count").rows())["forward"] == 3


def test_phases_that_overlap_or_lie_between_steps_take_no_more_than_the_steps(tmp_path: Path) -> None:
    """Steps that lay apart once left "(no phase)" less than no time."""
    spans = [("ProfilerStep#1", 0, 10), ("ProfilerStep#2", 100, 110)]
    spans += [(f"{PHASE_PREFIX}forward", *times) for times in ((2, 8), (4, 9), (20, 90))]
    spans += [(f"{PHASE_PREFIX}backward", 6, 105)]
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": begin,
            "dur": end - begin,
        }
        for tid, (name, begin, end) in enumerate(spans)
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = tracekit.read(tmp_path / "trace.json")
    found = workload(trace).phases
    assert found is not None
    told = {phase: (count, ns) for phase, count, ns in found.select("phase", "count", "total_ns").rows()}
    assert told == {"backward": (1, 9_000), "forward": (3, 7_000), NO_PHASE: (2, 7_000)}


def test_launched_work_against_a_loop_over_the_activities(tmp_path: Path) -> None:
    trace = captured(tmp_path)
    found = workload(trace).phases
    assert found is not None
    ranges = [
        (str(row["name"]).removeprefix(PHASE_PREFIX), row["start"], row["start"] + row["duration"])
        for row in trace.host.iter_rows(named=True)
        if str(row["name"]).startswith(PHASE_PREFIX)
    ]
    starts = trace.host["start"].to_list()
    expected: dict[str, int] = {}
    for row in select(trace).activities.iter_rows(named=True):
        if row["step"] is None:
            continue
        at = row["start"] if row["launch_id"] is None else starts[row["launch_id"]]
        phase = next((name for name, low, high in ranges if low <= at < high), NO_PHASE)
        expected[phase] = expected.get(phase, 0) + row["duration"]
    told = {phase: ns for phase, ns in found.select("phase", "device_ns").rows() if ns}
    assert told == expected
    assert len(expected) > 1


@pytest.mark.slow
def test_without_a_manifest_the_report_has_no_such_section(tmp_path: Path) -> None:
    captured(tmp_path)
    (tmp_path / "manifest.json").unlink()
    trace = tracekit.read(tmp_path / "trace.json")
    assert workload(trace).not_captured is not None
    assert build_report(trace).section("workload") is None
    asked = build_report(trace, only=["workload"])
    assert asked.sections[0].table("phases") is not None, "phases need no manifest"


def test_a_manifest_of_another_trace_says_nothing(tmp_path: Path) -> None:
    captured(tmp_path)
    (tmp_path / "trace.json").rename(tmp_path / "other.json")
    assert tracekit.read(tmp_path / "other.json").manifest is None
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    assert tracekit.read(tmp_path / "other.json").manifest is None


def test_a_capture_is_read_by_its_folder(tmp_path: Path) -> None:
    captured(tmp_path)
    assert tracekit.read(tmp_path).manifest is not None
    two = [Run(level="MLG", rank=r, trace=f"trace-rank{r}.json", step_times_ns=[MS]) for r in range(2)]
    (tmp_path / "manifest.json").write_bytes(manifest("", runs=two).to_json())
    with pytest.raises(UnreadableTraceError, match="2 ranks"):
        tracekit.read(tmp_path)
    (tmp_path / "manifest.json").write_bytes(manifest("", runs=[]).to_json())
    with pytest.raises(UnreadableTraceError, match="--levels MLG"):
        tracekit.read(tmp_path)


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_phases_of_the_samples_sum_to_their_steps(path: Path) -> None:
    trace = tracekit.read(path)
    scope = select(trace)
    found = workload(trace)
    assert found.phases is not None
    assert found.phases["total_ns"].sum() == int((scope.steps["end"] - scope.steps["start"]).sum())
    assert (found.phases["total_ns"] >= 0).all()
    assert found.phases["device_ns"].sum() == scope.activities["duration"].sum()
    assert found.throughput_per_s is not None


def test_peaks_of_devices() -> None:
    assert peak_tflops("NVIDIA H200", "bf16") == 989.5
    assert peak_tflops("NVIDIA H100 PCIe", "bf16") == 756.0
    assert peak_tflops("Tesla T4", "tf32") is None
    assert peak_tflops("NVIDIA L4", "fp16") == 121.0
    assert peak_tflops("NVIDIA L40S", "fp16") == 362.05
    assert peak_tflops("NVIDIA A10G", "fp16") == 70.0, "another board than the A10"
    assert peak_tflops("Some CPU", "fp32") is None
    # What size and clock give agrees with the data sheets, to the clock that these round.
    boards = {
        "Tesla T4": ((7, 5), 40, 1_590_000_000),
        "NVIDIA A100-SXM4-40GB": ((8, 0), 108, 1_410_000_000),
        "NVIDIA H100 80GB HBM3": ((9, 0), 132, 1_980_000_000),
        "NVIDIA L4": ((8, 9), 58, 2_040_000_000),
    }
    for name, size in boards.items():
        assert fp32_tflops_of_clock(*size) == pytest.approx(peak_tflops(name, "fp32"), rel=0.01)
    assert fp32_tflops_of_clock((99, 0), 1, 1) is None
