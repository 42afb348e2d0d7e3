"""Where the device is busy for most of the time, and the host still determines how long a step takes, the critical path shows it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest
from graph.programs import KERNELS, Command, simulate, write
from paths import ROOT

import tracekit
from tracekit.analyses.scope import select
from tracekit.analyses.what_if import predicted
from tracekit.report.build import build_report
from tracekit.trace import Trace
from tracekit.verdict.model import Verdict

BUSY, HOST = 760_000, 997_000
"""A kernel, and the code before the next launch, in ns: with the call of 3 µs the device works 76 % of the time."""


def program(folder: Path, kernel_ns: int, code_ns: int) -> Trace:
    """Steps in which each kernel is launched after so much code of the host."""
    step = [Command("step"), *[Command("work", code_ns), Command("launch", kernel_ns, name=KERNELS[0])] * 8]
    return tracekit.read(write(simulate(step * 3), folder / "t.json"))


def shares(verdict: Verdict) -> dict[str, float]:
    assert sum(cost.ns for cost in verdict.path) == pytest.approx(verdict.path_ns, rel=0.01)
    return {cost.label: cost.share or 0.0 for cost in verdict.path}


def test_a_late_host_bounds_a_busy_device_where_no_profiler_slows_it(tmp_path: Path) -> None:
    trace = program(tmp_path, BUSY, HOST)
    other = dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, format="nsys"))
    verdict = build_report(other).verdict
    assert verdict.bound == "host-bound"
    assert "Even so, the host bounds it: host code is" in verdict.headline
    assert shares(verdict)["host code"] > 0.95
    assert verdict.path_ns == select(trace).duration


def test_a_loader_that_a_busy_device_hides_bounds_the_run(tmp_path: Path) -> None:
    """Recording does not slow the processes that load data: a host 1.7 times as fast waits for them as long."""
    events: list[dict[str, object]] = []
    for number in range(6):
        at, call = 1_000 * number, number + 1
        for cat, name, start, length, args in (
            ("user_annotation", f"ProfilerStep#{number}", at, 1_000, {}),
            ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 800, {}),
            ("cpu_op", "aten::mm", at + 850, 100, {}),
            ("cuda_runtime", "cudaLaunchKernel", at + 900, 10, {"correlation": call}),
            ("kernel", "gemm", at + 920, 760, {"correlation": call, "device": 0, "stream": 7}),
        ):
            event = {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "args": args}
            events.append(event | {"pid": 0 if cat == "kernel" else 1, "tid": 7 if cat == "kernel" else 1})
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    verdict = build_report(tracekit.read(tmp_path / "t.json")).verdict
    assert verdict.bound == "input-bound"
    assert "Even so, the data loader bounds it: data loading and host code are" in verdict.headline
    # The device works from 0.92 ms of the first step to 1.68 ms after the start of the last.
    assert shares(verdict)["data loading"] == pytest.approx(6 * 800 / 6_680, abs=0.001)


def test_a_host_that_is_never_ahead_is_advised_of(tmp_path: Path) -> None:
    """Kernels of several streams overlapped, and the advice was about their products, which nobody waited for."""
    step = [Command("step")]
    for number in range(12):
        step += [
            Command("work", 60_000),
            Command("launch", 150_000, (7, 20, 21)[number % 3], name=KERNELS[0]),
        ]
    trace = tracekit.read(write(simulate(step * 3), tmp_path / "t.json"))
    trace = dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, format="nsys"))
    verdict = build_report(trace).verdict
    assert verdict.bound == "host-bound"
    assert verdict.advice[0].title == "Keep the device busy"
    assert verdict.advice[0].ns_at_stake is None
    assert not any("matrix multiplication" in one.title for one in verdict.advice)


def test_a_host_that_the_profiler_slows_may_be_fast_enough_without_it(tmp_path: Path) -> None:
    verdict = build_report(program(tmp_path, BUSY, HOST)).verdict
    assert verdict.bound == "compute-bound"
    (note,) = [note for note in verdict.notes if note.startswith("As recorded, ")]
    assert "if it is 1.7 times as fast" in note


def test_a_host_that_is_ahead_is_not_on_the_path(tmp_path: Path) -> None:
    verdict = build_report(program(tmp_path, BUSY, HOST // 20)).verdict
    assert verdict.bound == "compute-bound"
    assert shares(verdict)["computing"] > 0.9
    assert not any("critical path" in text for text in (verdict.headline, *verdict.notes))


@pytest.mark.slow
def test_a_capture_whose_steps_were_measured_has_the_path_without_the_recording() -> None:
    """ResNet-50 in bf16 was called device-bound, since its device is busy three quarters of the time; faster kernels would save 12 %."""
    trace = tracekit.read(ROOT / "sample_traces" / "resnet50_gpu_bf16" / "trace.json.gz")
    verdict = build_report(trace).verdict
    assert verdict.bound == "host-bound"
    assert verdict.path_basis == "without recording"
    assert verdict.path_ns == predicted(select(trace), [])
    assert shares(verdict)["host code"] > 0.8


def test_there_is_no_path_without_launches_or_without_a_device(tmp_path: Path) -> None:
    trace = program(tmp_path, BUSY, HOST)
    alone = trace.device.with_columns(pl.lit(None, pl.Int64).alias("launch_id"))
    assert build_report(dataclasses.replace(trace, device=alone)).verdict.path == ()
    processor = tracekit.read(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")
    assert build_report(processor).verdict.path == ()
