"""Which named ranges count as layers: planted nests of ranges, whose layers are worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from planted import MS, US, Planted

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.layer_ranges import choose_ranges
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.layers import layers
from tracekit.analyses.scope import select
from tracekit.errors import UsageError
from tracekit.range_filter import RangeFilter
from tracekit.readers import cache
from tracekit.report.build import build_report
from tracekit.trace import Trace

BARE = frozenset({"device", "launches", "ops"})
WORK = {"gemm_a": 10, "gemm_b": 20, "gemm_c": 40, "gemm_d": 80}
"""Time of each kernel in µs: a sum tells which of them are in it."""


def planted() -> Planted:
    """model > block (of the domain app) > linear, each with a kernel of its own, and `sync` beside them."""
    made = Planted()
    made.span("annotation", "model", 0, 600 * US)
    made.span("annotation", "block", 100 * US, 500 * US, domain="app")
    made.span("annotation", "linear", 200 * US, 400 * US)
    made.span("annotation", "sync 7", 650 * US, 700 * US, domain="tool")
    for name, at in zip(WORK, (50, 150, 250, 660), strict=True):
        made.span("op", "aten::mm", at * US, (at + 20) * US)
        made.activity(name, (at + 10) * US, WORK[name] * US, launch=(at + 2) * US)
    return made


def places(trace: Trace) -> dict[str, str | None]:
    """The layer of each kernel."""
    found = attribution(trace)
    rows = found.activities.join(found.layers, on="layer_id", how="left", maintain_order="left")
    return dict(zip(trace.device["name"].cast(pl.String), rows["path"], strict=True))


ALL = ["model", "model/block", "model/block/linear", "sync 7"]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ALL),
        (RangeFilter(), ALL),
        (RangeFilter(depth=1), ["model", "model", "model", "sync 7"]),
        (RangeFilter(depth=2), ["model", "model/block", "model/block", "sync 7"]),
        (RangeFilter(depth=3), ALL),
        (RangeFilter(include=("^linear$",)), [None, None, "linear", None]),
        (RangeFilter(include=("^linear$", "^sync")), [None, None, "linear", "sync 7"]),
        (RangeFilter(exclude=("^block$",)), ["model", "model", "model/linear", "sync 7"]),
        (RangeFilter(exclude=("^block$", r"\d")), ["model", "model", "model/linear", None]),
        (RangeFilter(include=("l",), exclude=("^model$",)), [None, "block", "block/linear", None]),
        # Levels are counted among the ranges that count.
        (RangeFilter(depth=1, exclude=("^model$",)), [None, "block", "block", "sync 7"]),
        (RangeFilter(domains=("app",)), [None, "block", "block", None]),
        (RangeFilter(domains=("default",)), ["model", "model", "model/linear", None]),
        (
            RangeFilter(domains=("default", "app"), depth=2),
            ["model", "model/block", "model/block", None],
        ),
    ],
    ids=lambda value: value.label if isinstance(value, RangeFilter) else "",
)
def test_layers_of_what_counts(chosen: RangeFilter | None, expected: list[str | None]) -> None:
    trace = choose_ranges(planted().trace(captured=BARE), chosen)
    assert places(trace) == dict(zip(WORK, expected, strict=True))
    # However few count, nothing is lost.
    tree = layers(trace).tree
    assert int(tree["device_own_ns"].sum()) == sum(WORK.values()) * US


@pytest.mark.slow
def test_what_does_not_count_is_a_host_span_as_before() -> None:
    trace = planted().trace(captured=BARE)
    less = choose_ranges(trace, RangeFilter(include=("^linear$",)))
    assert less.host.equals(trace.host)
    assert idle_causes(less).idle_ns == idle_causes(trace).idle_ns
    kinds = ["cause", "total_ns"]
    assert idle_causes(less).by_cause.select(kinds).equals(idle_causes(trace).by_cause.select(kinds))


def test_phases_and_steps_are_told_by_ranges_that_are_no_layers() -> None:
    made = planted()
    made.span("annotation", "backward", 240 * US, 300 * US)
    made.span("op", "MmBackward0", 1000 * US, 1001 * US)
    trace = choose_ranges(made.trace(captured=BARE), RangeFilter(include=("^model$",)))
    found = attribution(trace).activities["phase"].cast(pl.String).to_list()
    assert found[2] == "backward"
    assert select(trace, step="^block$").steps.height == 1


def test_captured_layers_and_modules_are_not_touched() -> None:
    made = planted()
    made.span("annotation", "tracekit.layer/enc", 240 * US, 280 * US, layer="enc", module_type="Linear")
    made.span("module", "nn.Module: Head_0", 655 * US, 690 * US)
    trace = choose_ranges(made.trace(captured=BARE), RangeFilter(include=("^model$",), depth=1))
    assert places(trace) == dict(zip(WORK, ["model", "model", "enc", "Head_0"], strict=True))
    # A capture's own ranges are none that a person named.
    with pytest.raises(UsageError, match="leaves no range"):
        choose_ranges(made.trace(captured=BARE), RangeFilter(include=("tracekit",)))


def test_levels_of_ranges_without_work_are_not_counted() -> None:
    made = planted()
    made.span("annotation", "empty", 660 * US + 30 * US, 660 * US + 35 * US)
    made.span("annotation", "inner", 252 * US, 265 * US)
    trace = choose_ranges(made.trace(captured=BARE), RangeFilter(depth=3))
    assert places(trace)["gemm_c"] == "model/block/linear"
    assert "empty" not in attribution(trace).layers["name"].to_list()


@pytest.mark.parametrize(
    ("chosen", "fault"),
    [
        (
            RangeFilter(include=("nothing",)),
            "--nvtx-include 'nothing' leaves no range; the ranges are 'block'",
        ),
        (RangeFilter(exclude=(".",)), "--nvtx-exclude '.' leaves no range"),
        (RangeFilter(domains=("gpu",)), "its domains are 'app', 'default', 'tool'"),
        (RangeFilter(include=("model",), domains=("app",)), "--nvtx-include 'model' --nvtx-domain 'app'"),
        (RangeFilter(include=("(?<=a)b",)), "--nvtx-include '(?<=a)b' is not a regular expression"),
    ],
    ids=lambda value: value.label if isinstance(value, RangeFilter) else "",
)
def test_a_choice_that_leaves_nothing_says_so(chosen: RangeFilter, fault: str) -> None:
    with pytest.raises(UsageError) as raised:
        choose_ranges(planted().trace(captured=BARE), chosen)
    assert fault in str(raised.value)
    assert str(raised.value).startswith("planted.json: ") or "regular expression" in fault


def test_a_trace_without_ranges_says_so() -> None:
    made = Planted()
    made.span("op", "aten::mm", 0, 20 * US)
    with pytest.raises(UsageError, match="there are no user ranges"):
        choose_ranges(made.trace(captured=BARE), RangeFilter(depth=1))


def test_ranges_that_hold_no_work_are_told_of() -> None:
    made = planted()
    made.span("annotation", "idle", 900 * US, 950 * US)
    trace = choose_ranges(made.trace(captured=BARE), RangeFilter(include=("^idle$",)))
    assert "--nvtx-include '^idle$'" in str(layers(trace).not_captured)


@pytest.mark.parametrize(
    "given", [{"include": ("(",)}, {"exclude": ("*",)}, {"depth": 0}, {"depth": -3}], ids=str
)
def test_what_cannot_be_a_choice(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="--nvtx-"):
        RangeFilter(**given)  # type: ignore[arg-type]


def test_the_choice_is_no_part_of_what_is_cached() -> None:
    chosen = choose_ranges(planted().trace(captured=BARE), RangeFilter(depth=1))
    assert cache.store("f" * 64, [chosen])
    (again,) = cache.load("f" * 64, "planted.json") or ()
    assert again.layer_ranges is None
    assert again.equals(chosen)


def test_a_report_says_that_ranges_were_chosen() -> None:
    trace = planted().trace(captured=BARE)
    told = build_report(choose_ranges(trace, RangeFilter(depth=1))).verdict.notes
    assert any("--nvtx-depth 1" in note for note in told)
    assert not any("--nvtx" in note for note in build_report(trace).verdict.notes)


def test_the_backward_pass_follows_what_counts() -> None:
    """A backward node belongs to the layer of its forward operator: the range around it that counts."""
    made = Planted()
    made.span("annotation", "model", 0, 100 * US)
    made.span("annotation", "linear", 10 * US, 90 * US)
    made.span("op", "aten::mm", 20 * US, 60 * US, sequence=3, forward_thread=0)
    made.activity("gemm", 50 * US, 10 * US, launch=30 * US)
    node = {"sequence": 3, "forward_thread": 1}
    made.span("op", "autograd::engine::evaluate_function: MmBackward0", MS, MS + 50 * US, 2, **node)
    made.span("op", "MmBackward0", MS + US, MS + 40 * US, 2, **node)
    made.activity("gemm_back", MS + 20 * US, 10 * US, launch=MS + 5 * US)
    made.host[-1]["thread_id"] = 2
    trace = made.trace(captured=BARE)
    assert places(trace) == {"gemm": "model/linear", "gemm_back": "model/linear"}
    few = replace(trace, layer_ranges=RangeFilter(depth=1))
    assert places(few) == {"gemm": "model", "gemm_back": "model"}
