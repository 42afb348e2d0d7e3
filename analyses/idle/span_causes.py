"""For each host span: why a device waits while the span is the innermost, and the frame of the user's code around it."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.attribution.span_places import StackModel
from tracekit.analyses.idle.call_stacks import CallStacks, of_users
from tracekit.analyses.program import program
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import (
    ASYNCHRONOUS_CALL_NS,
    CAUSES,
    COLLECTIVE_SPAN,
    COMPILING_CALL,
    COMPILING_FRAME,
    COMPILING_SPAN,
    DATA_FRAME,
    DATA_OPERATOR,
    DRIVER_WORK,
    ENGINE_CALL,
    MODULE_LOADING,
    NODE_CALL,
    NOT_AN_OPERATOR,
    PAGEABLE_COPY,
    PROFILER_FRAME,
    RECORDING_FRAME,
    RELEASING_FRAME,
    UNNAMED_COPY,
    VALUE_OPERATOR,
)
from tracekit.facts.launch_apis import ALLOCATION, LAUNCH, SYNCHRONISATION
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import NS_PER_US
from tracekit.groups import at_rows, or_none, text_codes
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, NarrowArray, narrow, take
from tracekit.trace import Trace

__all__ = [
    "CAUSE_NUMBER",
    "SpanCauses",
    "awaited_copies",
    "open_before",
    "span_causes",
    "user_frames",
    "without_line",
]

CAUSE_NUMBER = {name: number for number, name in enumerate(CAUSES)}
_C = CAUSE_NUMBER
_UNMARKED = -1
_ROUNDED_NS: Final = NS_PER_US
"""Some traces have whole µs only, so that spans that end together differ by one."""


class SpanCauses(msgspec.Struct, frozen=True, eq=False):
    """`cause` of every span, as a number into CAUSES; `frame` is the span that shows the user's frame around it, or −1,
    and `names` has that frame, without its line if it was open before the recording; `outside` the cause outside all spans.
    """

    cause: NarrowArray
    frame: NarrowArray
    names: pl.Series
    outside: int

    def of(self, spans: Int64Array) -> Int64Array:
        """The causes of spans; outside all of them (−1) it is Python, or host code."""
        return np.where(spans >= 0, take(self.cause, spans), self.outside)


def span_causes(scope: Scope) -> SpanCauses:
    """The causes of all spans of the scope's trace.

    An API call that waits, allocates, launches or loads code has its own cause. Otherwise a span in the data loader is
    data loading. Otherwise the nearest span around it with a name that gives a cause decides. Otherwise it is dispatch
    inside an operator or in the call of the autograd engine, and Python outside and in hooks of the backward pass. If the names in the trace show no
    PyTorch, dispatch is a library call; if they show no Python, Python is host code.
    """
    return scope.once(span_causes, lambda: _span_causes(scope.trace, attribution(scope).model))


def _span_causes(trace: Trace, model: StackModel) -> SpanCauses:
    shown = program(trace)
    dispatch = _C["operator_dispatch" if shown.pytorch else "library_call"]
    outside = _C["python" if shown.python else "host_code"]
    stack = model.stack
    runtime, op = stack.of_kind("runtime", "sync"), stack.of_kind("op")
    stacks = CallStacks.of(stack.frame)
    mark = _marks(stack, stacks)
    waited, returned_early = awaited_copies(trace, stack)
    mark[waited] = _C["synchronisation"]
    mark[returned_early] = _C["launch_api"]
    calls = np.where(runtime, mark, _UNMARKED)
    inner_call = calls >= 0

    inside = op & ~stack.named(NOT_AN_OPERATOR, "op")
    operator = stack.nesting.nearest_ancestor(inside)
    cause = np.where(operator >= 0, dispatch, outside)
    # The only Python that a node of autograd calls itself are hooks.
    in_node = (operator >= 0) & stack.named(NODE_CALL, "op")[operator]
    cause[stack.of_kind("python") & in_node] = outside
    # A call that no table names is the framework at work, whatever lies around it.
    cause[runtime] = dispatch
    # The engine dispatches operators meanwhile, on its threads; what Python calls in it has frames of its own.
    cause[stack.named(ENGINE_CALL, "python")] = dispatch
    inheritable = (mark >= 0) & ~np.isin(mark, [_C["launch_api"]])
    around = take(mark, stack.nesting.nearest_ancestor(inheritable))
    own_work = np.isin(
        around, [_C["allocation"], _C["compilation"], _C["module_loading"], _C["profiler_overhead"]]
    )
    inherits = (around >= 0) & (~runtime | own_work)
    cause[inherits] = around[inherits]
    cause[_loading(model, stacks) & ~_in_marked_calls(stack, inner_call)] = _C["data_loading"]
    cause[inner_call] = calls[inner_call]
    cause[stack.named(DRIVER_WORK, "overhead")] = _C["launch_api"]
    own, names = user_frames(stack), _names(stack)
    if stacks is not None:
        called = stacks.user_frames()
        own, names = own | called.is_not_null().to_numpy(), pl.select(pl.coalesce(called, names)).to_series()
    frame = narrow(stack.nesting.nearest_ancestor(own), stack.size if own.any() else 0)
    return SpanCauses(narrow(cause, len(CAUSES)), frame, names, outside)


def _names(stack: HostStack) -> pl.Series:
    """The names of all spans, those of frames that were open before the recording without their line."""
    names, rows = stack.frame["name"], np.flatnonzero(open_before(stack))
    if not rows.size:
        return names
    place = np.full(stack.size, -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    known = without_line(at_rows(names, rows).cast(pl.String)).cast(pl.Categorical)
    return pl.select(pl.coalesce(at_rows(known, place), names)).to_series()


def open_before(stack: HostStack) -> BoolArray:
    """Which spans are frames that were open when the recording began, and until its end: a profiler gives them the line where
    they were at its start, and not the function's first line.

    A thread begins with them, and ends with them: they lie around all else.
    """
    python = stack.of_kind("python")
    if not python.any():
        return python
    first = np.flatnonzero(np.diff(stack.thread, prepend=-1))
    sizes = np.diff(first, append=stack.size)
    last = np.repeat(np.maximum.reduceat(stack.end, first), sizes)
    open_still = python & (stack.end >= last - _ROUNDED_NS)
    closed = np.cumsum(~open_still)
    until_thread: Int64Array = np.repeat(closed[first] - ~open_still[first], sizes)
    mask: BoolArray = open_still & (closed == until_thread)
    return mask


def without_line(frames: pl.Series) -> pl.Series:
    """Names of Python frames without the numbers of their lines."""
    return frames.str.replace(r"\(\d+\): ", ": ")


def _marks(stack: HostStack, stacks: CallStacks | None) -> Int64Array:
    """The cause that a span's own name and kind give; −1 if they give none."""
    mark = np.full(stack.size, _UNMARKED, dtype=np.int64)
    # The last row that matches holds.
    for pattern, cause, kinds in (
        (f"{PROFILER_FRAME}|{RECORDING_FRAME}", "profiler_overhead", ("python",)),
        (COMPILING_SPAN, "compilation", ("op", "annotation")),
        (COMPILING_FRAME, "compilation", ("python",)),
        (RELEASING_FRAME, "allocation", ("python",)),
        (COLLECTIVE_SPAN, "collective_bookkeeping", ("op", "annotation")),
        (VALUE_OPERATOR, "synchronisation", ("op",)),
        (COMPILING_CALL, "compilation", ("runtime",)),
        (MODULE_LOADING, "module_loading", ("runtime",)),
        (ALLOCATION, "allocation", ("runtime",)),
        (LAUNCH, "launch_api", ("runtime",)),
        (SYNCHRONISATION, "synchronisation", ("runtime",)),
    ):
        mark[stack.named(pattern, *kinds)] = _C[cause]
        # The profiler's frames in such a stack opened a range around what is no work of the profiler.
        if stacks is not None and "python" in kinds and cause != "profiler_overhead":
            mark[stacks.through(pattern)] = _C[cause]
    mark[stack.of_kind("sync")] = _C["synchronisation"]
    mark[stack.of_kind("overhead")] = _C["profiler_overhead"]
    mark[stack.named(MODULE_LOADING, "overhead")] = _C["module_loading"]
    return mark


def _loading(model: StackModel, stacks: CallStacks | None) -> BoolArray:
    """Spans in a range that loads data, or in a frame of the data loader, or that prepare a batch."""
    stack = model.stack
    data = model.phases.marked_phase == PHASES.index("data")
    data |= stack.named(DATA_FRAME, "python") | stack.named(DATA_OPERATOR, "op")
    if stacks is not None:
        data |= stacks.through(DATA_FRAME)
    mask: BoolArray = stack.nesting.nearest_ancestor(data) >= 0
    return mask


def _in_marked_calls(stack: HostStack, marked: BoolArray) -> BoolArray:
    """Spans inside an API call with a cause."""
    mask: BoolArray = stack.nesting.nearest_ancestor(marked) >= 0
    return mask


def awaited_copies(trace: Trace, stack: HostStack) -> tuple[Int64Array, Int64Array]:
    """Copy calls that waited for their copy, and those that returned earlier, whatever their name says.

    A copy from or to pageable memory waited if it returned at the end of the copy. If the name does not give the memory
    (ROCm), only the duration of the call shows it.
    """
    device = trace.device
    launch = or_none(device["launch_id"])
    rows = np.flatnonzero((device["kind"] == "memcpy").to_numpy() & (launch >= 0))
    launch, copies = launch[rows], device["name", "start", "duration"][rows]
    names = NameTable(copies["name"])
    length = stack.end[launch] - stack.start[launch]
    done = stack.end[launch] >= (copies["start"] + copies["duration"]).to_numpy()
    likely = names.matching(PAGEABLE_COPY) | (names.matching(UNNAMED_COPY) & (length > ASYNCHRONOUS_CALL_NS))
    return launch[likely & done], launch[~done]


def user_frames(stack: HostStack) -> BoolArray:
    """Which spans are frames of Python code that belongs neither to a library nor to Python itself."""
    mask = stack.of_kind("python")
    if mask.any():
        codes, names = text_codes(stack.frame["name"].filter(pl.Series(mask)))
        mask[mask] = of_users(pl.Series(names, dtype=pl.String)).to_numpy()[codes]
    return mask
