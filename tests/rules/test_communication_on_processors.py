"""What a report says about communication without a device, against the rows that were planted."""

from __future__ import annotations

import polars as pl
from planted import MS, US, Planted

from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.layers import layers
from tracekit.report.build import build_report


def gloo(
    made: Planted, at: int, took: int, elements: int, *, thread: int = 2, name: str = "all_reduce"
) -> None:
    """A call of the backend for processors."""
    made.span(
        "annotation", f"gloo:{name}", at, at + took, thread, shapes=f"[[{elements}]]", dtypes='["float"]'
    )


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
