"""What-if on captures that measured their steps without recording, too: it begins there, since recording slows the host."""

from __future__ import annotations

import dataclasses

import pytest
from manifests import manifest
from planted import A100, MS, US, Planted

from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.graph.joint import joint_graph
from tracekit.analyses.scope import select
from tracekit.analyses.what_if import FasterHost, Scale, what_if
from tracekit.analyses.what_if.replay import host_speeds
from tracekit.manifest import Run
from tracekit.trace import Trace

KERNELS = 50


def loop(kernel: int, plain: float | None) -> Trace:
    """Three steps of kernels that the host launches every 100 µs; `plain` is the part of a step that it takes without recording."""
    made = Planted()
    begin, busy = 0, 0
    for step in range(3):
        for number in range(KERNELS):
            at = begin + number * 100 * US
            made.span("op", "aten::mm", at, at + 95 * US)
            busy = max(busy, at + 50 * US)
            made.activity("gemm", busy, kernel, launch=at + 40 * US)
            busy += kernel
        made.step(step, begin, begin + KERNELS * 100 * US)
        begin += KERNELS * 100 * US
    trace = made.trace()
    if plain is None:
        return trace
    each = select(trace).duration // 3
    runs = [
        Run(level="M", step_times_ns=[round(each * plain)]),
        Run(level="MLG", step_times_ns=[each], trace="trace.json.gz"),
    ]
    return dataclasses.replace(trace, manifest=manifest(device="cuda", runs=runs))


def test_steps_that_the_host_bounds_begin_as_long_as_without_recording() -> None:
    trace = loop(10 * US, 0.5)
    assert host_speeds(select(trace)) == pytest.approx((2, 2, 2), rel=0.02)
    unchanged = what_if(trace, [Scale("category:gemm", 1.0)])
    assert unchanged.before_ns == unchanged.after_ns == pytest.approx(select(trace).duration / 2, rel=0.01)
    assert unchanged.steps is not None
    assert unchanged.steps["before_ns"].equals(unchanged.steps["after_ns"])
    twice = what_if(trace, [FasterHost(2.0)])
    assert twice.after_ns == pytest.approx(select(trace).duration / 4, rel=0.03)
    assert any("2.00 times as fast as recorded" in one for one in twice.assumptions["assumption"])


def test_of_steps_that_the_device_bounds_the_host_may_have_any_speed() -> None:
    """A layer of a CNN on an H100 at half its time was predicted to gain 0.5 %, and gained 38 %: the recorded host was the next bound."""
    trace = loop(120 * US, 1.0)
    best, likely, worst = host_speeds(select(trace))
    assert (best, likely) == (16.0, 1.7)
    assert worst < 1.2
    halved = what_if(trace, [Scale("category:gemm", 0.5)])
    plain = what_if(loop(120 * US, None), [Scale("category:gemm", 0.5)])
    assert halved.after_ns < plain.after_ns
    assert halved.after_ns == pytest.approx(3 * KERNELS * 60 * US, rel=0.02)
    assert halved.low_ns <= halved.after_ns <= halved.high_ns
    assert halved.high_ns >= 3 * KERNELS * 80 * US
    assert any("The steps do not show" in one for one in halved.assumptions["assumption"])


@pytest.mark.parametrize("plain", [None, 1.0])
def test_without_a_measurement_or_a_difference_times_are_as_recorded(plain: float | None) -> None:
    trace = loop(10 * US, plain)
    assert host_speeds(select(trace)) == pytest.approx((1, 1, 1), rel=0.01)
    assert what_if(trace, [Scale("category:gemm", 1.0)]).before_ns == pytest.approx(
        select(trace).duration, rel=0.01
    )


def test_a_gain_is_what_it_is_without_recording() -> None:
    recorded, plain = loop(10 * US, None), loop(10 * US, 0.5)
    changes = [FasterHost(2.0)]
    gains = [one.before_ns - one.after_ns for one in (what_if(recorded, changes), what_if(plain, changes))]
    assert gains[1] == pytest.approx(gains[0] / 2, rel=0.05)
    assert gains[1] > MS


def test_a_path_that_a_replay_does_not_give_is_doubted() -> None:
    """A copy that waited for another device was `waiting between host and device`, 46.8 % of the path, without a word of doubt."""
    made = Planted()
    for at in range(8):
        made.activity("gemm", at * 20 * US + 8 * US, 10 * US, launch=at * 20 * US)
    made.activity("Memcpy PtoP", 2 * MS, 50 * US, launch=170 * US, device=1, kind="memcpy")
    answer = critical_path(made.trace(devices=(A100, dataclasses.replace(A100, device_id=1)))).answer
    assert "A replay with usual lags gives a window that differs by " in answer
    assert "what is called waiting may be for other work." in answer


def test_the_path_of_processors_is_as_long_as_the_window() -> None:
    """It ended with the last step, and the window with a reduction on another thread: the parts summed to less than the path was told to be long."""
    made = Planted()
    for step in range(2):
        at = step * 10 * MS
        made.step(step, at, at + 10 * MS)
        made.span("op", "aten::mm", at, at + 8 * MS)
        made.span("op", "c10d::allreduce_", at + 8 * MS, at + 8 * MS + 10 * US, shapes="[[[1000]]]")
        made.span("annotation", "gloo:all_reduce", at + 8 * MS + 20 * US, at + 14 * MS, 2, shapes="[[1000]]")
    scope = select(made.trace(devices=()))
    found = critical_path(scope)
    assert scope.end == 24 * MS
    assert found.length_ns == found.by_cause["total_ns"].sum() == scope.duration


def test_a_range_of_gloo_links_ranks_whatever_runs_in_it() -> None:
    """All-gathers copy what they gathered; since their ranges then have several activities, none of FSDP2's linked its ranks."""
    scopes = []
    for rank, computes in enumerate((2, 8)):
        made = Planted()
        for step in range(3):
            at = step * 20 * MS
            end = at + 9 * MS + 100 * US
            made.step(step, at, at + 20 * MS)
            made.span("op", "aten::mm", at, at + computes * MS)
            shapes = "[[[2000]], [[1000]]]"
            made.span(
                "op",
                "c10d::_allgather_base_",
                at + computes * MS,
                at + computes * MS + 10 * US,
                shapes=shapes,
            )
            made.span(
                "annotation", "gloo:all_gather", at + computes * MS + 20 * US, end, 2, shapes="[[1000]]"
            )
            made.span("op", "aten::copy_", end - 50 * US, end - 20 * US, 2)
            made.span("op", "aten::add", end + 10 * US, at + 19 * MS)
        trace = made.trace(devices=())
        meta = dataclasses.replace(trace.meta, rank=rank, world_size=2, one_group=True)
        scopes.append(select(dataclasses.replace(trace, meta=meta)))
    joint = joint_graph(scopes)
    assert (joint.alike, joint.other) == (3, 0)
    waited = [(one.waited / MS).round().tolist() for one in joint.waits]
    assert waited == [[6.0] * 3, [0.0] * 3]
