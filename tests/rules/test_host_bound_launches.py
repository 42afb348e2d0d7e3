from __future__ import annotations

import dataclasses
import itertools

import pytest
from planted import A100, EVERYTHING, MS, US, Planted, finding

from tracekit.trace import Trace


def launched_late(count: int = 30) -> Planted:
    """Kernels of 10 µs every 100 µs, each launched 5 µs before it starts."""
    made = Planted()
    for number in range(count):
        start = number * 100 * US
        made.activity("k", start, 10 * US, launch=start - 5 * US)
    return made


def test_fires_on_many_short_gaps_with_an_empty_queue() -> None:
    found = finding(launched_late().trace(), "idle", "host_bound_launches")
    assert found is not None
    # 29 gaps of 90 µs in a window of 2,910 µs; each activity waited 5 µs of some 100.
    assert found.ns_at_stake == 29 * 90 * US
    assert found.severity == "critical"
    assert found.title == "The device waits for launches from the host 89.7 % of the time"
    assert "had 29 gaps" in found.evidence
    assert "0.05 activities were queued" in found.evidence
    assert "Python stacks" in found.evidence


def test_stacks_are_mentioned_only_when_recorded() -> None:
    found = finding(launched_late().trace(captured=EVERYTHING - {"stacks"}), "idle", "host_bound_launches")
    assert found is not None
    assert "Python stacks" not in found.evidence


def test_gaps_of_a_ms_or_more_have_another_cause() -> None:
    made = launched_late()
    end = 29 * 100 * US + 10 * US
    made.activity("k", end + 50 * MS, 10 * US, launch=end + 50 * MS - 5 * US)
    assert finding(made.trace(), "idle", "host_bound_launches") is None


def test_work_of_another_stream_hides_the_gaps() -> None:
    made = launched_late()
    made.activity("long", 0, 29 * 100 * US, launch=-10 * US, stream=8)
    assert finding(made.trace(), "idle", "host_bound_launches") is None


def test_silent_when_the_host_runs_ahead_and_when_few_kernels_ran() -> None:
    ahead = Planted()
    for number in range(30):
        ahead.activity("k", number * 100 * US, 90 * US, launch=(number - 40) * 10 * US)
    assert finding(ahead.trace(), "idle", "host_bound_launches") is None
    assert finding(launched_late(15).trace(), "idle", "host_bound_launches") is None


def test_a_host_that_is_ahead_in_one_part_of_a_step_is_late_in_another() -> None:
    """On a real device two thirds of the time were idle between short kernels, and a queue of the other third hid it."""
    made = launched_late()
    for number in range(200):  # a queue of up to 190 for 2 ms
        made.activity(
            "gemm", 3 * MS + number * 10 * US, 9 * US, launch=3 * MS - 5 * US + number * US // 2, call_ns=400
        )
    found = finding(made.trace(), "idle", "host_bound_launches")
    assert found is not None
    assert found.severity == "critical"
    assert "although the host was ahead at other times (on average 3" in found.evidence


def test_the_causes_sum_to_the_time() -> None:
    """Of a gap in which several causes together take 1 ms or more, each was listed that took less by itself."""
    made = launched_late()
    start = 3 * MS + 1100 * US
    made.span("op", "aten::sort", start - 700 * US, start + 2 * US)
    made.activity("k", start, 10 * US, launch=start - 5 * US)
    found = finding(made.trace(), "idle", "host_bound_launches")
    assert found is not None
    assert (
        "It was idle for 2.61 ms in gaps shorter than 1.00 ms: Python 2.46 ms, launch latency 145 µs. "
        in found.evidence
    )


def steps_with(waits: tuple[int, ...], *operators: str | None) -> Planted:
    """Three steps of 30 kernels of 2 µs every 100 µs, and waits so many µs into each, by .item() or these operators in turn."""
    made = Planted()
    for number in range(3):
        at = number * 4 * MS
        made.step(number, at, at + 3500 * US)
        for each in range(30):
            start = at + 10 * US + each * 100 * US
            made.span("op", "aten::add", start - 8 * US, start + US)
            made.activity("k", start, 2 * US, launch=start - 5 * US)
        for wait, operator in zip(waits, itertools.cycle(operators or ("aten::item",)), strict=False):
            if operator:
                made.span("op", operator, at + wait * US, at + (wait + 5) * US)
            made.call(
                "cudaStreamSynchronize" if operator else "cudaDeviceSynchronize", at + (wait + 1) * US, 3 * US
            )
    return made


@pytest.mark.parametrize("rule", [("idle", "host_bound_launches"), ("launches", "short_kernels")])
def test_graphs_need_steps_without_waits(rule: tuple[str, str]) -> None:
    """Real traces of loops with twelve .item() a step were told to use CUDA graphs, which cannot hold them."""
    found = finding(steps_with((60, 560, 1060)).trace(), *rule)
    assert found is not None
    assert "first remove the 3 calls that synchronise within each step (from .item())." in found.advice
    found = finding(steps_with((60,), None).trace(), *rule)
    assert found is not None
    assert (
        "first remove the call that synchronises within each step (from torch.cuda.synchronize())."
        in found.advice
    )


@pytest.mark.parametrize(
    ("operators", "told"),
    [
        (("aten::item", "aten::to"), "from aten::to and .item()"),
        (("aten::to", "aten::to", "aten::to", "aten::item"), "mostly from aten::to"),
        (("aten::to", "aten::nonzero", "aten::item"), "mostly from aten::to and aten::nonzero"),
        (("a", "b", "c", "d"), "among others from d and c"),
    ],
)
def test_no_call_waits_most_unless_it_makes_more_than_half(operators: tuple[str, ...], told: str) -> None:
    """Of twelve waits six were by aten::to and six by aten::nonzero: "mostly from aten::to"."""
    waits = tuple(range(60, 60 + 100 * 12, 100))
    found = finding(steps_with(waits, *operators).trace(), "idle", "host_bound_launches")
    assert found is not None
    assert f"the 12 calls that synchronise within each step ({told})." in found.advice


def test_a_wait_around_all_kernels_of_a_step_hinders_no_graph() -> None:
    found = finding(steps_with((1, 3200)).trace(), "idle", "host_bound_launches")
    assert found is not None
    assert "reduce-overhead" in found.advice
    assert "waits" not in found.advice


def with_copies(size: int) -> Trace:
    """Twenty copies of so many bytes at the end of each step, 18 µs apart."""
    made = steps_with(())
    for number in range(3):
        for each in range(20):
            start = number * 4 * MS + 3020 * US + each * 20 * US
            made.copy("HtoD (Pageable -> Device)", start, 2 * US, size, launch=start - 5 * US)
    return made.trace()


def test_idle_time_before_many_small_copies_is_theirs() -> None:
    """Otherwise graphs were advised first where tensors are made of lists and copied one by one."""
    small = finding(with_copies(1_000), "idle", "host_bound_launches")
    large = finding(with_copies(100_000), "idle", "host_bound_launches")
    copies = finding(with_copies(1_000), "memory", "small_copies")
    assert small is not None
    assert large is not None
    assert copies is not None
    assert copies.ns_at_stake == 3 * (20 * 2 + 108 + 19 * 18) * US
    assert large.ns_at_stake - small.ns_at_stake == 3 * (108 + 19 * 18) * US  # type: ignore[operator]


def test_launches_of_the_loss_are_not_those_of_the_model() -> None:
    """A detector lost 85 % of its idle time in the loss, and was told to compile the model."""
    made = launched_late()
    made.span("annotation", "loss", -50 * US, 30 * 100 * US)
    found = finding(made.trace(), "idle", "host_bound_launches")
    assert found is not None
    assert "(mostly in the loss and its gradients)" in found.evidence
    assert "Launch less in the loss, where most of this time is lost" in found.advice
    assert "torch.compile(model" not in found.advice
    other = finding(launched_late().trace(), "idle", "host_bound_launches")
    assert other is not None
    assert "torch.compile(model" in other.advice


def replicas(*, launching: bool = True) -> Trace:
    """Two devices; for 4 ms the first is idle, while the main thread waits in the backward pass and another launches for the second."""
    made = Planted()
    made.span("python", "train.py(9): main", 0, 7 * MS)
    made.span("python", "torch/autograd/graph.py(815): _engine_run_backward", 1_300 * US, 5_200 * US)
    for number in range(50):
        start = 50 * US * number + (4 * MS if number >= 25 else 0)
        made.activity("k", start + 10 * US, 40 * US, launch=start)
    for number in range(80 if launching else 0):
        start = 1_250 * US + number * 50 * US
        made.activity("k", start + 10 * US, 50 * US, device=1)
        made.span("runtime", "cudaLaunchKernel", start, start + 5 * US, 2, correlation=len(made.device))
    return made.trace(devices=(A100, dataclasses.replace(A100, device_id=1)))


def test_launches_for_another_device_are_not_python_code() -> None:
    """Two replicas, the second launched after the first: the backward pass of the second was called Python code to do less often."""
    found = finding(replicas(), "idle", "host_bound_launches")
    assert found is not None
    assert found.ns_at_stake == 4_490 * US
    assert "or while the host launched for other devices: operator dispatch" in found.evidence
    assert found.advice.startswith("One process launches for all devices: run one for each")
    assert finding(replicas(launching=False), "idle", "host_bound_launches") is None
