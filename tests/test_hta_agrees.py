"""Three-way agreement: HolisticTraceAnalysis, the brute-force oracle, and tracekit, on synthetic traces.

The first part pins HTA's definitions on plain traces, where all three must agree. The second part holds one test
for each place where HTA's answer is another one, so that a user who compares the two knows why.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from synthetic import Activity, Planted, generate, oracle, write

import tracekit
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.idle import idle
from tracekit.analyses.kernels import kernels
from tracekit.analyses.launches import launches
from tracekit.analyses.overlap import overlap
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.steps import steps

pytestmark = pytest.mark.slow

RUNNER = Path(__file__).parent / "synthetic" / "hta_runner.py"

# HTA's times are floats in µs, and its idle table is rounded to 0.01 µs.
EXACT, ROUNDED = 2.0, 6.0

PLAIN: dict[str, Any] = {
    "sync_rows": False,
    "triton": False,
    "gpu_annotations": False,
    "orphans": 0,
    "lost_launches": 0,
}
AGREE: dict[str, Planted] = {
    "no_steps": generate(11, steps=0, **PLAIN),
    "one_step": generate(12, steps=1, **PLAIN),
    "three_steps": generate(13, steps=3, **PLAIN),
    "six_steps": generate(14, steps=6, layers=8, **PLAIN),
    "device_bound": generate(15, steps=4, kernel_ns=(50_000, 300_000), incidents=(), **PLAIN),
    "host_bound": generate(16, steps=2, kernel_ns=(1_000, 8_000), dispatch_ns=(5_000, 40_000), **PLAIN),
    "inference": generate(17, steps=3, backward=False, optimizer=False, communication=False, **PLAIN),
    "old_names": generate(18, steps=3, tick_ns=1000, **PLAIN),
}
DIFFER: dict[str, Planted] = {
    "gpu_annotations": generate(20, **{**PLAIN, "gpu_annotations": True}),
    "orphans": generate(21, **{**PLAIN, "orphans": 4, "lost_launches": 2}),
    "orphans_without_steps": generate(22, steps=0, **{**PLAIN, "orphans": 4}),
    "triton": generate(23, **{**PLAIN, "triton": True}),
    "sync_rows": generate(24, steps=1, **{**PLAIN, "sync_rows": True}),
    "custom_communication": generate(25, steps=1, custom_communication=True, **PLAIN),
    "two_devices": generate(26, steps=1, devices=2, layers=6, **PLAIN),
}
STYLE = {"old_names": "year2021"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    return {
        name: write(planted, folder / f"{name}.json.gz", STYLE.get(name, "kineto"))
        for name, planted in {**AGREE, **DIFFER}.items()
    }


@pytest.fixture(scope="module")
def hta(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    pytest.importorskip("hta", reason="HolisticTraceAnalysis is not installed")
    folder = tmp_path_factory.mktemp("hta")
    out = folder / "out.json"
    command = [sys.executable, "-W", "ignore", str(RUNNER), str(out), *map(str, files.values())]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    return {name: found[str(path)] for name, path in files.items()}


def as_hta_sees(planted: Planted, cut: int | None = None) -> list[Activity]:
    """From two steps on HTA keeps what was launched before the last one began; with fewer it keeps everything."""
    if len(planted.steps) < 2:
        return planted.activities
    cut = planted.steps[-1].start_ns if cut is None else cut
    return [a for a in planted.activities if a.launch_start_ns is not None and a.launch_start_ns < cut]


def temporal(activities: Sequence[Activity]) -> dict[str, float]:
    found = oracle.breakdown(activities, oracle.trace_window(activities))
    return {
        "idle_time": found.idle,
        "compute_time": found.compute,
        "non_compute_time": found.non_compute,
        "kernel_time": found.window,
    }


def launched_by(planted: Planted, activities: Sequence[Activity], calls: Sequence[str]) -> list[Activity]:
    return [a for a in activities if a.launch is not None and planted.spans[a.launch].name in calls]


# -- HTA and the oracle agree ------------------------------------------------------------------------


@pytest.mark.parametrize("name", AGREE)
def test_temporal_breakdown(hta: dict[str, dict[str, Any]], name: str) -> None:
    assert hta[name]["temporal"] == pytest.approx(temporal(as_hta_sees(AGREE[name])), abs=EXACT)


@pytest.mark.parametrize("name", AGREE)
def test_overlap(hta: dict[str, dict[str, Any]], name: str) -> None:
    seen = as_hta_sees(AGREE[name])
    ratio = oracle.breakdown(seen, oracle.trace_window(seen)).overlap_ratio
    percent = hta[name]["overlap_percent"]
    if ratio is None:
        assert math.isnan(percent), "HTA divides by zero where nothing was communicated"
    else:
        assert percent == pytest.approx(100 * ratio, abs=0.006)


@pytest.mark.parametrize("name", AGREE)
def test_idle_split_per_stream(hta: dict[str, dict[str, Any]], name: str) -> None:
    found: dict[int, dict[str, float]] = {}
    for stream, category, length in hta[name]["idle"]:
        found.setdefault(stream, {"host_wait": 0, "kernel_wait": 0, "other": 0})[category] += length
    expected = {stream: split for (_, stream), split in oracle.stream_idle(as_hta_sees(AGREE[name])).items()}
    assert found.keys() == expected.keys()
    for stream, split in expected.items():
        assert found[stream] == pytest.approx(split, abs=ROUNDED)


@pytest.mark.parametrize("name", AGREE)
def test_kernel_table(hta: dict[str, dict[str, Any]], name: str) -> None:
    classes = {"COMPUTATION": "compute", "COMMUNICATION": "communication", "MEMORY": "memory"}
    seen = as_hta_sees(AGREE[name])
    expected = oracle.kernel_table(seen, ("kernel", "memcpy", "memset"))
    found = hta[name]["kernels"]
    assert found.keys() == expected.keys()
    cls = {a.name: a.cls for a in seen}
    for kernel, row in found.items():
        assert classes[row.pop("kernel_type")] == cls[kernel]
        assert row == pytest.approx({key: expected[kernel][key] for key in row}, rel=1e-9, abs=EXACT)


@pytest.mark.parametrize("name", AGREE)
def test_launch_statistics(hta: dict[str, dict[str, Any]], name: str) -> None:
    """HTA's launch delay is the queue delay: from the end of the call. Graph and driver launches are not in it."""
    planted = AGREE[name]
    calls = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
    seen = launched_by(planted, as_hta_sees(planted), calls)
    delays = oracle.launch_delays(seen)
    expected = {
        a.correlation: ((a.launch_end_ns or 0) - (a.launch_start_ns or 0), a.dur_ns, delays[a.index][1])
        for a in seen
    }
    found = {correlation: tuple(values) for correlation, *values in hta[name]["launches"]}
    assert found.keys() == expected.keys()
    for correlation, values in expected.items():
        assert found[correlation] == pytest.approx(values, abs=EXACT)


@pytest.mark.parametrize("name", AGREE)
def test_queue_length(hta: dict[str, dict[str, Any]], name: str) -> None:
    planted = AGREE[name]
    calls = (
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cuLaunchKernel",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
    )
    seen = launched_by(planted, as_hta_sees(planted), calls)
    found: dict[int, dict[int, int]] = {}
    for stream, time, length in hta[name]["queues"]:
        found.setdefault(stream, {})[round(time)] = length  # of several changes at one time the last counts
    for device, stream in {(a.device, a.stream) for a in seen}:
        expected = oracle.queue_depth(seen, device, stream)
        rows = sorted(found[stream].items())
        assert [length for _, length in rows] == [length for _, length in expected]
        # HTA counts time from the first event of the file.
        gaps = [time - rows[0][0] for time, _ in rows]
        assert gaps == pytest.approx([time - expected[0][0] for time, _ in expected], abs=EXACT)


# -- tracekit agrees with both -----------------------------------------------------------------------


def scope_like_hta(trace: tracekit.Trace, planted: Planted) -> Scope:
    """All but the last step, as HTA has it; warm-up work before the first step is not in it."""
    if len(planted.steps) < 2:
        return select(trace, window="trace")
    chosen = "|".join(str(step.number) for step in planted.steps[:-1])
    return select(trace, step=rf"^ProfilerStep#({chosen})$")


def in_scope(planted: Planted) -> list[Activity]:
    if len(planted.steps) < 2:
        return planted.activities
    return [a for a in planted.activities if a.step is not None and a.step != planted.steps[-1].number]


@pytest.mark.parametrize("name", AGREE)
def test_tracekit_gives_the_same(files: dict[str, Path], name: str) -> None:
    planted = AGREE[name]
    trace = tracekit.read(files[name])
    scope = scope_like_hta(trace, planted)
    seen = in_scope(planted)
    window = oracle.trace_window(seen)
    if len(planted.steps) > 1:
        window = oracle.window_of_steps(planted.activities, planted.steps[:-1])
    expected = oracle.breakdown(planted.activities, window)

    (row,) = breakdown(scope).devices.to_dicts()
    parts = (
        "window",
        "compute",
        "communication",
        "memory",
        "exposed_communication",
        "exposed_memory",
        "idle",
        "busy",
    )
    assert {key: row[f"{key}_ns"] for key in (*parts, "overlap")} == {
        key: getattr(expected, key) for key in (*parts, "overlap")
    }
    (shared,) = overlap(scope).devices.to_dicts()
    assert shared["overlap"] == (
        None if expected.overlap_ratio is None else pytest.approx(expected.overlap_ratio)
    )

    streams = {
        (r["device_id"], r["stream_id"]): {
            key: r[f"{key}_ns"] for key in ("host_wait", "kernel_wait", "other")
        }
        for r in idle(scope).streams.to_dicts()
    }
    assert streams == oracle.stream_idle(seen)

    table = kernels(scope).by_name
    names = oracle.kernel_table(seen, ("kernel", "memcpy", "memset"))
    assert table.height == len(names)
    for r in table.to_dicts():
        want = names[r["name"]]
        assert (r["count"], r["total_ns"], r["min_ns"], r["max_ns"]) == (
            want["count"],
            want["total"],
            want["min"],
            want["max"],
        )
        got = [r["mean_ns"], r["median_ns"], r["p95_ns"], r["std_ns"] or 0.0]
        assert got == pytest.approx([want["mean"], want["median"], want["p95"], want["std"]])

    found = launches(scope)
    summary = oracle.launch_summary(seen)
    assert (found.activities, found.short) == (summary["linked"], summary["short_kernels"])
    assert found.launch_bound_share == pytest.approx(summary["launch_bound_share"])
    for device, stream in streams:
        queue = found.queue.filter((pl.col("device_id") == device) & (pl.col("stream_id") == stream))
        depths = [(t, d) for t, d in oracle.queue_depth(seen, device, stream)]
        changes = [now for now, before in zip(depths, [(0, 0), *depths], strict=False) if now[1] != before[1]]
        assert queue["length"].to_list() == [depth for _, depth in changes]

    by_number = dict(
        zip(*(steps(trace).table[column].to_list() for column in ("step", "time_ns")), strict=True)
    )
    assert by_number == oracle.step_times(planted.steps)


# -- where HTA's answer is another one ---------------------------------------------------------------


def test_hta_leaves_out_the_last_step(hta: dict[str, dict[str, Any]]) -> None:
    planted = AGREE["three_steps"]
    all_steps = oracle.steps_window(planted.activities)
    without_last = oracle.steps_window(planted.activities, [step.number for step in planted.steps[:-1]])
    found = hta["three_steps"]["temporal"]["kernel_time"]
    assert found < all_steps[1] - all_steps[0]
    # Warm-up work before the first step is in HTA's window, though it belongs to no step.
    assert found > without_last[1] - without_last[0]


def test_hta_cuts_the_last_step_late_when_the_device_mirrors_it(hta: dict[str, dict[str, Any]]) -> None:
    """The cut is the latest start of any row named ProfilerStep, and gpu_user_annotation rows are among them."""
    planted = DIFFER["gpu_annotations"]
    rows = [event for event in planted.events if event["name"].startswith("ProfilerStep#")]
    cut = max(event["ts"] for event in rows)
    assert cut > planted.steps[-1].start_ns
    found = hta["gpu_annotations"]["temporal"]
    assert found == pytest.approx(temporal(as_hta_sees(planted, cut)), abs=EXACT)
    assert found["kernel_time"] > temporal(as_hta_sees(planted))["kernel_time"]


def test_hta_drops_kernels_without_a_launch_record(hta: dict[str, dict[str, Any]]) -> None:
    planted = DIFFER["orphans"]
    lost = [a for a in planted.activities if a.launch is None and a.start_ns < planted.steps[-1].start_ns]
    assert len(lost) >= 4
    assert hta["orphans"]["temporal"] == pytest.approx(temporal(as_hta_sees(planted)), abs=EXACT)
    count = sum(row["total"] for row in hta["orphans"]["kernels"].values())
    assert count == pytest.approx(sum(a.dur_ns for a in as_hta_sees(planted)), abs=EXACT)


def test_hta_takes_the_first_event_of_the_file_for_a_missing_launch(hta: dict[str, dict[str, Any]]) -> None:
    """Without steps the kernels stay, but their unknown launch becomes row 0, here an operator that came later."""
    planted = DIFFER["orphans_without_steps"]
    first_event = planted.spans[0].start_ns
    mistaken = [
        a if a.launch is not None else Activity(**{**a.__dict__, "launch_start_ns": first_event})
        for a in planted.activities
    ]
    found = {
        category: length for stream, category, length in hta["orphans_without_steps"]["idle"] if stream == 7
    }
    assert found == pytest.approx(oracle.stream_idle(mistaken)[0, 7], abs=ROUNDED)
    assert found != pytest.approx(oracle.stream_idle(planted.activities)[0, 7], abs=ROUNDED)


def test_hta_counts_triton_operators_as_kernels(hta: dict[str, dict[str, Any]]) -> None:
    planted = DIFFER["triton"]
    name = "triton_poi_fused_add_gelu_0"
    device = sum(a.dur_ns for a in as_hta_sees(planted) if a.name == name)
    last = planted.steps[-1].start_ns
    host = sum(s.dur_ns for s in planted.spans if s.name == name and s.start_ns < last)
    assert host > 0
    assert hta["triton"]["kernels"][name]["total"] == pytest.approx(device + host, abs=EXACT)


def test_hta_counts_waits_for_events_as_computation(hta: dict[str, dict[str, Any]]) -> None:
    planted = DIFFER["sync_rows"]
    waits = [event for event in planted.events if event["name"] == "Stream Wait Event"]
    row = hta["sync_rows"]["kernels"]["Stream Wait Event"]
    assert row["kernel_type"] == "COMPUTATION"
    assert row["total"] == pytest.approx(sum(event["dur"] for event in waits), abs=EXACT)
    assert hta["sync_rows"]["temporal"]["compute_time"] > temporal(planted.activities)["compute_time"]


def test_hta_knows_collectives_by_the_name_nccl_only(hta: dict[str, dict[str, Any]]) -> None:
    planted = DIFFER["custom_communication"]
    truth = oracle.breakdown(planted.activities, planted.window)
    assert truth.communication > 0
    found = hta["custom_communication"]["temporal"]["compute_time"]
    assert found == pytest.approx(truth.compute + truth.exposed_communication, abs=EXACT)


def test_hta_puts_all_devices_together(hta: dict[str, dict[str, Any]]) -> None:
    planted = DIFFER["two_devices"]
    assert hta["two_devices"]["temporal"] == pytest.approx(temporal(planted.activities), abs=EXACT)
    each = [oracle.breakdown(planted.activities, planted.window, device) for device in (0, 1)]
    assert hta["two_devices"]["temporal"]["idle_time"] < min(b.idle for b in each)


@pytest.mark.parametrize("name", DIFFER)
def test_tracekit_keeps_the_truth_there(files: dict[str, Path], name: str) -> None:
    planted = DIFFER[name]
    trace = tracekit.read(files[name])
    scope = select(trace, window="trace")
    parts = (
        "window",
        "compute",
        "communication",
        "memory",
        "exposed_communication",
        "exposed_memory",
        "idle",
    )
    for row in breakdown(scope).devices.to_dicts():
        expected = oracle.breakdown(planted.activities, planted.window, row["device_id"])
        assert {part: row[f"{part}_ns"] for part in parts} == {
            part: getattr(expected, part) for part in parts
        }
    table = kernels(scope).by_name
    assert table["count"].sum() == len(planted.activities)
    assert table["total_ns"].sum() == sum(a.dur_ns for a in planted.activities)
