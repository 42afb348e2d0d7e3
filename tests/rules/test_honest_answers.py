"""Sentences that claimed more than the trace shows, or read as if they contradicted the verdict."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from paths import PUBLIC
from planted import EVERYTHING, MS, US, Planted, finding

import tracekit
from tracekit.analyses.arithmetic import arithmetic
from tracekit.analyses.launches import launches
from tracekit.analyses.layers import layers
from tracekit.analyses.memory import memory
from tracekit.analyses.roofline import roofline
from tracekit.analyses.scope import Window, select
from tracekit.report.build import build_report
from tracekit.trace import Trace


def public(name: str) -> Path:
    found = [path for path in PUBLIC if path.name.startswith(name)]
    if not found:
        pytest.skip(f"{name} is not here")
    return found[0]


def queued_behind_a_pause(pause: int) -> Trace:
    """Nine activities are queued behind the first, which the host launches after a pause."""
    made = Planted()
    for number in range(10):
        start = pause + number * MS
        made.activity("k", start, MS, launch=(start if not number else pause) - 10 * US + number)
    made.activity("k", 0, MS, launch=-10 * US)
    return made.trace()


def test_queued_launches_are_early_enough_and_the_long_wait_before_one_is_told() -> None:
    answer = launches(queued_behind_a_pause(9 * MS)).answer
    assert answer.startswith("Most launches are early enough: 81.8 % of the activities were queued")
    assert "Before the others, the device was idle for 42.1 % of the time. 11 calls" in answer


def test_a_short_wait_is_not_told() -> None:
    assert "Before the others" not in launches(queued_behind_a_pause(2 * MS)).answer


def test_kernels_of_the_backward_pass_show_that_not_all_work_is_forward() -> None:
    """A trace without operators was forward to 100 %, though its largest kernel computes gradients."""
    made = Planted()
    made.activity("conv_fprop", 0, MS, launch=0)
    assert "By phase: forward 100.0 %" in layers(made.trace()).answer
    made.activity("batch_norm_backward_kernel<float>", 2 * MS, MS, launch=2 * MS)
    assert "By phase: other 100.0 %" in layers(made.trace()).answer


def test_stacks_without_modules_are_not_asked_for_again() -> None:
    made = Planted()
    made.activity("k", 0, MS, launch=0)
    again, first = (
        str(layers(made.trace(captured=EVERYTHING - without)).not_captured)
        for without in (set[str](), {"stacks"})
    )
    assert "the recorded stacks name no modules" in again
    assert "with_stack=True" not in again
    assert "with_stack=True" in first


def test_work_in_no_layer_is_not_among_the_largest_layers() -> None:
    made = Planted()
    made.span("annotation", "encoder", 0, 2 * MS)
    made.activity("k", 0, MS, launch=10 * US)
    made.activity("k", 3 * MS, 9 * MS, launch=3 * MS)
    assert layers(made.trace()).answer == (
        "10.0 % of 10.0 ms of device time is in layers or named phases. The largest: encoder 10.0 %."
    )


def test_unknown_bytes_and_another_count_of_devices_are_said_plainly() -> None:
    made = Planted()
    made.copy("HtoD (Host -> Device)", 0, 40 * US, 0, launch=0, device=2)
    made.device[0]["bytes"] = None
    made.memory.append({"device_id": 0, "start": 0, "bytes": 2048, "allocated": 2048})
    assert memory(made.trace()).answer == (
        "Copies and fills took 40.0 µs; their bytes were not recorded; the allocator's device 0 peaked at 2.05 kB."
    )


def test_between_few_of_many_operators_may_be_others() -> None:
    made = Planted()
    for number in range(4):
        start = number * 100 * MS
        made.span("op", "aten::mm", start, start + 50 * MS)
    whole = made.trace(devices=())
    assert finding(whole, "idle", "code_outside_operators") is not None
    for number, row in enumerate(made.host):
        row["external_id"] = 5000 * (number + 1)
    thin = Planted(host=made.host)
    thin.log.count("missing_operators", 19_996, "4 of at least 20,000 operators are in the file")
    assert finding(thin.trace(devices=()), "idle", "code_outside_operators") is None


def test_what_no_span_shows_is_not_called_python() -> None:
    made = Planted()
    made.span("op", "aten::mm", 0, 10 * US)
    made.activity("k", 0, MS, launch=0)
    made.activity("k", 20 * MS, MS, launch=20 * MS - 10 * US)
    found = finding(made.trace(captured=EVERYTHING - {"stacks"}), "idle", "long_gaps")
    assert found is not None
    assert "for most of that, no host call is recorded." in found.evidence
    found = finding(made.trace(), "idle", "long_gaps")
    assert found is not None
    assert "the main cause is Python." in found.evidence


@pytest.mark.slow
@pytest.mark.parametrize("window", ["steps", "trace"])
def test_flops_of_hardly_any_computation_are_no_rate(window: Window) -> None:
    """Communication had made 30 % of the time known, and a training step of a ResNet 12.8 MFLOP."""
    found = arithmetic(select(tracekit.read(public("hta_nccl")), window=window))
    assert found.sentence == "FLOPs were not captured; record_shapes=True records them."
    found = arithmetic(select(tracekit.read(public("vllm_decode")), window=window))
    assert found.sentence == (
        "The run did at least 37.1 GFLOP in the window by shapes (analytic), known for 3.1 % of the device time and 2.7 % of the "
        "computation."
    )


@pytest.mark.slow
def test_counters_without_tensor_cores_give_a_lower_limit() -> None:
    """The layers of AlexNet that run on tensor cores were missing from a sum that said nothing of it."""
    path = public("a100_cupti_counters")
    ranges = [
        event
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if event.get("cat") == "cuda_profiler_range"
    ]
    flops = sum(
        value * (2 if "fma" in counter else 1)
        for event in ranges
        if "xmma" not in event["name"]
        for counter, value in event["args"].items()
        if "_op_" in counter
    )
    trace = tracekit.read(path)
    found = arithmetic(trace)
    assert found.flops == flops
    assert found.sentence == (
        "The run did at least 80.1 GFLOP in the window by hardware counters (counter), without 6 of 77 kernels, which use tensor "
        "cores."
    )
    assert "FLOPs of 6 of 77 kernels, which use tensor cores: sums" in roofline(trace).answer
    answers = {section.name: section.answer for section in build_report(trace).sections}
    (lacking,) = [
        section.not_captured for section in build_report(trace).sections if section.name == "breakdown"
    ]
    assert lacking == (
        "no device activity (profile without profiler_metrics in experimental_config); the self time of operators takes its place"
    )
    for name in ("breakdown", "idle", "layers", "kernels"):
        assert answers[name].startswith("Times include the replay of kernels. ")


def test_waits_for_copies_to_the_device_need_no_later_reading() -> None:
    made = Planted()
    made.step(0, 0, 20 * MS)
    for number in range(10):
        start = number * MS
        made.span("op", "aten::to", start, start + 200 * US)
        made.activity(
            "Memcpy HtoD (Host -> Device)",
            start + 90 * US,
            100 * US,
            launch=start,
            call="hipMemcpyWithStream",
            call_ns=200 * US,
            kind="memcpy",
            bytes=1000,
        )
        made.activity("k", start + 300 * US, 100 * US, launch=start + 250 * US)
    found = finding(made.trace(), "launches", "blocking_synchronisation")
    assert found is not None
    assert found.advice == "Copy with non_blocking=True from pinned memory."


def test_the_code_that_launches_short_kernels_cannot_run_less_often() -> None:
    """The forward pass of a model was advised to run in another thread."""
    advice = build_report(tracekit.read(public("h100_bert_small"))).verdict.advice
    assert advice[0].finding == "host_bound_launches"
    assert not any("Python code" in one.title for one in advice)


@pytest.mark.parametrize(
    ("every", "label"),
    [(5, "idle with queued work, cause unknown"), (1000, "gaps between queued kernels")],
)
def test_the_verdict_calls_idle_time_with_queued_work_as_the_section_does(every: int, label: str) -> None:
    """Pauses of 500 µs before queued kernels were gaps between them in the verdict, and of unknown cause in the section."""
    made, clock = Planted(), MS
    for number in range(200):
        made.activity("gemm", clock, 100 * US, launch=number * US, call_ns=800)
        clock += 104 * US + 500 * US * (number % every == every - 1)
    report = build_report(made.trace())
    assert next(cost.label for cost in report.verdict.costs if "queued" in cost.label) == label
    idle = next(section for section in report.sections if section.name == "idle")
    assert ("unknown cause" if "unknown" in label else label) in idle.answer.split(",")[0]


@pytest.mark.parametrize(
    ("code", "noted"), [("<built-in function sleep>", False), ("<built-in function dot>", True)]
)
def test_only_python_that_runs_is_faster_without_stacks(code: str, noted: bool) -> None:
    """A sleep of the host was to become shorter without Python stacks."""
    made = Planted()
    for number in range(20):
        start = 10 * MS * number
        made.span("python", "server.py(20): serve", start, start + 10 * MS)
        made.span("python", code, start + 2 * MS, start + 9 * MS)
        made.activity("gemm", start + 9_020 * US, MS, launch=start + 9_010 * US)
    notes = build_report(made.trace()).verdict.notes
    assert any(note.startswith("Python stacks were recorded") for note in notes) is noted
