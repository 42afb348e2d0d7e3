"""What is said of the times of steps on a device."""

from __future__ import annotations

import pytest
from planted import MS, US, Planted

import tracekit
from tracekit.analyses.steps import steps
from tracekit.analyses.workload import workload


def test_steps_of_a_host_that_is_ahead_last_as_long_as_their_work() -> None:
    """Of ResNet-50 on an H100, whose host queues a step in 34 ms and the device works at it for 81, steps "varied by 101.6 %"."""
    found = steps(tracekit.read("sample_traces/resnet50_gpu_fp32/trace.json.gz"))
    assert found.median_ns == pytest.approx(34.2e6, rel=0.01)
    assert found.answer == (
        "The median of 3 steps is 81.2 ms, including the device work that they launch, and these times vary by 0.9 %. The host is ahead of the "
        "device: its steps before the last take 33.4 ms to 34.2 ms."
    )


def test_a_host_that_is_ahead_in_some_steps_is_ahead() -> None:
    """Of BERT on an H100, whose host waits for the device in the middle of a step, steps of 152 to 154 ms "varied by 68.0 %"."""
    found = steps(tracekit.read("sample_traces/bert_gpu_fp32/trace.json.gz"))
    assert "is 153 ms, including the device work that they launch, and these times vary by 0.7 %" in (
        found.answer or ""
    )


def test_one_step_that_waits_for_all_of_the_lead() -> None:
    """With a checkpoint in the fourth of six steps, "the median of 6 steps is 7.37 ms" stood above "the median step takes 24.5 ms"."""
    made, at = Planted(), 0
    for number in range(6):
        made.activity("gemm", number * 24 * MS + MS, 24 * MS, launch=at + US)
        end = at + 7 * MS
        if number == 3:
            end = 4 * 24 * MS + MS
            made.span("runtime", "cudaStreamSynchronize", at + MS, end)
        made.step(number, at, end)
        at = end
    assert steps(made.trace()).answer == (
        "The median of 6 steps is 24.0 ms, including the device work that they launch, and these times vary by 0.0 %. The host is ahead of the "
        "device: its median step before the last takes 7.00 ms."
    )


def test_the_largest_phase_of_a_device_is_that_which_launches_most() -> None:
    answer = workload(tracekit.read("sample_traces/resnet50_gpu_fp32/trace.json.gz")).answer
    assert (
        "The backward phase launches 70.8 % of the device's work, and takes 21.3 % of a recorded step on the host"
        in answer
    )
