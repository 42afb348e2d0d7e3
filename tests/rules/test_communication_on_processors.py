"""What a report says about communication without a device, against the rows that were planted."""

from __future__ import annotations

import polars as pl
from planted import MS, US, Planted
from planted_gloo import gloo

from tracekit.analyses.attribution import attributed
from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.layers import layers
from tracekit.analyses.overlap import overlap
from tracekit.analyses.scope import select
from tracekit.report.build import build_report


def test_calls_on_several_threads_take_the_time_in_which_one_of_them_runs() -> None:
    """Two calls at once counted twice, so communication took 53.3 % of a window of which it had 33.3 %."""
    made = Planted()
    made.span("op", "aten::mm", 0, 2 * MS)
    for thread in (2, 3, 4):
        gloo(made, 1 * MS, 2 * MS, 1000, thread=thread)
    for number in range(12):
        made.span("op", "aten::add", 3 * MS + number * 10 * US, 3 * MS + (number + 1) * 10 * US)
    verdict = build_report(made.trace(devices=())).verdict
    costs = {cost.label: cost.ns for cost in verdict.costs}
    assert costs == {
        "matrix multiplication": 2 * MS,
        "exposed communication": MS,
        "elementwise work": 120 * US,
    }
    assert sum(costs.values()) == verdict.basis_ns


def test_the_critical_path_has_communication_where_the_layers_have_it() -> None:
    """The time of gloo was in no layer on the path, while the table of layers had it outside the layers."""
    made = Planted()
    made.span("op", "aten::mm", 0, MS)
    made.span("op", "c10d::allreduce_", MS, MS + 10 * US, shapes="[[[1000]], []]")
    gloo(made, MS + 5 * US, 3 * MS, 1000)
    made.span("op", "aten::mul", 4 * MS + 10 * US, 5 * MS)
    trace = made.trace(devices=())
    path = critical_path(trace).by_layer
    assert path is not None
    on_path, work = path.filter(pl.col("layer") == "<communication>").select("total_ns", "work_ns").row(0)
    tree = layers(trace).tree
    assert on_path >= 2_900 * US
    assert work == int(tree.filter(pl.col("path") == "<communication>")["device_ns"].sum())


def step_with_reduction(*, grows: bool = False, again: bool = False) -> Planted:
    """Three steps: forward, backward, a reduction and a division in grad mode, the update. With `grows`, numbers grow in the division, as in
    a forward pass; with `again`, another forward and backward pass comes before the update.
    """
    made = Planted()
    for number in range(3):
        at, first = number * 20 * MS, 10 * number
        made.step(number, at, at + 20 * MS)

        def passes(at: int, first: int) -> None:
            made.span("op", "aten::linear", at, at + MS, sequence=first)
            made.span("op", "AddmmBackward0", at + MS, at + 2 * MS, sequence=first, forward_thread=1)

        passes(at, first)
        made.span("op", "c10d::allreduce_", at + 2 * MS, at + 2 * MS + 10 * US, sequence=first + 1)
        gloo(made, at + 2 * MS + 10 * US, 4 * MS, 1000)
        for part in range(2):
            begin = at + (7 + part) * MS
            made.span("op", "aten::div_", begin, begin + MS, sequence=first + 1 + part * grows)
        if again:
            passes(at + 10 * MS, first + 5)
        update = at + 15 * MS
        made.span("annotation", "Optimizer.step#SGD.step", update, update + MS)
        made.span("op", "aten::add_", update, update + MS)
        made.span("op", "aten::mean", at + 17 * MS, at + 18 * MS, sequence=first + 8)
    return made


def phases(made: Planted) -> dict[str, set[str]]:
    rows = attributed(select(made.trace(devices=()))).select(pl.col("name", "phase").cast(pl.String))
    return {name: set(mine["phase"]) for (name,), mine in rows.group_by("name")}


def test_work_between_the_backward_pass_and_the_update_is_no_forward_pass() -> None:
    """A collective peeks at the next sequence number, so the reduction of all gradients was called the forward pass."""
    found = phases(step_with_reduction())
    assert found["aten::linear"] == {"forward"}
    assert found["AddmmBackward0"] == {"backward"}
    assert found["aten::div_"] == found["aten::mean"] == {"other"}
    assert found["gloo:all_reduce"] == found["c10d::allreduce_"] == {"communication"}
    shown = overlap(step_with_reduction().trace(devices=())).phases
    assert shown is not None
    times = dict(shown[["phase", "mean_communication_ns"]].rows())
    # The place where nothing computes counts for the phase before.
    assert times["forward"] == 0
    assert set(times) == {"forward", "backward", "other", "optimizer"}


def test_a_model_that_runs_after_the_backward_pass_is_a_forward_pass() -> None:
    assert phases(step_with_reduction(grows=True))["aten::div_"] == {"forward"}
    assert phases(step_with_reduction(again=True))["aten::div_"] == {"forward"}
