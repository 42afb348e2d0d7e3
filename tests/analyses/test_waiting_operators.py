"""Without a device, the self time of an operator that waits for a collective is communication, not computation."""

from __future__ import annotations

import polars as pl
import pytest
from planted import US, Planted

from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.collectives import collectives
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.scope import select
from tracekit.trace import Trace


def planted(operator: str, *, queues: str | None = None, gloo: tuple[int, int] = (30, 80)) -> Trace:
    """An operator of 100 µs, which computes in another one from 10 to 20 µs, and a collective of gloo."""
    made = Planted()
    made.step(0, 0, 100 * US)
    made.span("op", operator, 0, 100 * US)
    made.span("op", "aten::mm", 10 * US, 20 * US)
    if queues is not None:
        made.span("op", queues, 20 * US, 22 * US)
    made.span("annotation", "gloo:all_gather", gloo[0] * US, gloo[1] * US, 2, shapes="[[1000]]")
    return made.trace(devices=())


@pytest.mark.parametrize(
    ("operator", "queues", "computing", "only_communicating"),
    [
        # Python's own operator queues an all-gather at 20 µs and waits until 80.
        ("_AllGather", "c10d::allgather_", 20 + 20, 60),
        ("_AllGather", "_c10d_functional::all_gather_into_tensor", 20 + 20, 60),
        ("_c10d_functional::wait_tensor", None, 10, 90),
        # Any other operator computes while the collective runs.
        ("aten::linear", None, 100, 0),
        ("_AllGather", None, 100, 0),
    ],
)
def test_what_waits_does_not_compute(
    operator: str, queues: str | None, computing: int, only_communicating: int
) -> None:
    trace = planted(operator, queues=queues)
    row = breakdown(trace).devices.row(0, named=True)
    assert row["compute_ns"] == computing * US
    assert row["exposed_communication_ns"] == only_communicating * US
    assert collectives(trace).calls["name"].to_list() == ["all_gather"]


def test_a_collective_that_goes_on_afterwards_is_not_waited_for() -> None:
    row = breakdown(planted("_Start", queues="c10d::allgather_", gloo=(30, 130))).devices.row(0, named=True)
    assert row["compute_ns"] == 98 * US


@pytest.mark.parametrize(("hook", "idle"), [(200, 0), (300, 300 - 50)])
def test_a_hook_is_not_the_work_of_a_node(hook: int, idle: int) -> None:
    """A slow hook in Python was elementwise work of the node that called it, and so was a wait for what FSDP2 gathers."""
    made = Planted()
    made.step(0, 0, (hook + 20) * US)
    made.span("op", "autograd::engine::evaluate_function: AddBackward0", 0, (hook + 20) * US)
    made.span("op", "AddBackward0", hook * US, (hook + 20) * US)
    made.span("annotation", "gloo:all_gather", 0, 50 * US, 2, shapes="[[1000]]")
    row = breakdown(made.trace(devices=())).devices.row(0, named=True)
    assert row["idle_ns"] == idle * US
    assert row["exposed_communication_ns"] == (50 * US if idle else 0)


def test_python_in_a_hook_is_python() -> None:
    """It was dispatch of operators, since a node lies around it."""
    made = Planted()
    made.step(0, 0, 400 * US)
    made.span("op", "autograd::engine::evaluate_function: AddBackward0", 0, 400 * US)
    made.span("python", "train.py(3): clip", 10 * US, 370 * US)
    made.span("op", "AddBackward0", 380 * US, 400 * US)
    pieces = idle_causes(select(made.trace(devices=()))).pieces
    assert pieces.select("cause", "frame", "duration_ns").cast(
        {"cause": pl.String, "frame": pl.String}
    ).rows() == [
        ("operator_dispatch", None, 10 * US),
        ("python", "train.py(3): clip", 360 * US),
        ("operator_dispatch", None, 10 * US),
    ]
