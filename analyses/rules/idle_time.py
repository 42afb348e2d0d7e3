"""What rules look up behind the totals: idle time by cause and where it comes from, and host API calls one by one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.layer_spans import ROOT
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.idle.host_code import HOST_CODE
from tracekit.analyses.idle.span_causes import span_causes
from tracekit.analyses.program import program
from tracekit.analyses.rules.rule import longest_of
from tracekit.facts.idle_names import CAUSES, FORWARDING_FRAME, PYTHON_FILE, SLEEPING_CALL, WAITING_CALL
from tracekit.facts.launch_apis import GRAPH_LAUNCH, KERNEL_LAUNCH, SYNCHRONISATION
from tracekit.facts.stack_names import ENGINE_PREFIX, PARTS_OF_STEP
from tracekit.facts.units import NS_PER_MS, format_count, listed
from tracekit.findings import Stretches
from tracekit.groups import at_rows, codes_of, falling, groups, or_none, text_codes, with_series
from tracekit.intervals import IntervalSet
from tracekit.missing import endless_calls
from tracekit.name_table import NameTable
from tracekit.names import called_from
from tracekit.spans import BoolArray, Int64Array, take

__all__ = [
    "CONTEXT_CREATION_NS",
    "LAUNCHING",
    "LONG_CALL_NS",
    "LONG_GAP_NS",
    "Blocked",
    "CausedIdle",
    "blocked",
    "blocked_in",
    "blocked_pieces",
    "calls_with_roles",
    "caused_idle",
    "covered_by_other_rules",
    "idle_in",
    "mostly_caused",
    "outermost_operators",
    "waits_before_graphs",
    "while_launching_for_others",
]

if TYPE_CHECKING:
    from tracekit.analyses.launches import Launches
    from tracekit.analyses.scope import Scope

LAUNCHING: Final = (
    *("python", "host_code", "operator_dispatch", "library_call"),
    *("launch_api", "launch_latency"),
)
"""The causes of idle time that faster or fewer launches would reduce."""
LONG_GAP_NS: Final = NS_PER_MS
"""Python and dispatch between two launches take tens of µs; 1 ms is something else."""
MOSTLY: Final = 0.5
"""A place is named only if at least half of the time comes from it."""
_COVERED_CAUSES: Final = ("synchronisation", "data_loading", "allocation", "compilation", "module_loading")
"""Causes that have their own rules: `blocking_synchronisation`, `data_loading`, `allocation_calls` and `cold_start`,
`compilation_in_steps`."""


class _Caused(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The pieces of idle time of a scope, and some of their columns as arrays."""

    pieces: pl.DataFrame
    host: pl.DataFrame
    layers: pl.DataFrame
    device: Int64Array
    cause: Int64Array
    gap: Int64Array
    start: Int64Array
    ns: Int64Array

    @classmethod
    def of(cls, scope: Scope) -> _Caused:
        """Those of a scope, made once."""
        return scope.once(cls.of, lambda: cls._of(scope))

    @classmethod
    def _of(cls, scope: Scope) -> _Caused:
        found = idle_causes(scope)
        rows = found.pieces
        device, gap, start, ns = (
            rows[name].to_numpy() for name in ("device_id", "gap_id", "start", "duration_ns")
        )
        cause = rows["cause"].to_physical().to_numpy()
        return cls(rows, scope.trace.host, found.layers, device, cause, gap, start, ns)

    def columns(self, names: Iterable[str], rows: Int64Array) -> pl.DataFrame:
        """These columns of some pieces, and what `caused_idle` says that there is besides."""
        return pl.DataFrame([self._column(name, rows) for name in names])

    def _column(self, name: str, rows: Int64Array | slice) -> pl.Series:
        column, by = _OF_SPANS.get(name, (None, name))
        own = self.pieces[by][rows]
        return own if column is None else at_rows(self.host[column], own).alias(name)

    @cached_property
    def places(self) -> dict[str, tuple[Int64Array, list[str | None]]]:
        """For each piece the number of its place, and the names of these, by what the places are."""
        layers, distinct = codes_of(or_none(self.pieces["layer_id"]))
        paths = [None if one < 0 else str(self.layers["path"][one]) for one in distinct.tolist()]
        named = {by: text_codes(self._column(by, slice(None))) for by in ("frame", "operator")}
        return {"layer": (layers, paths), **named}


_OF_SPANS: Final = {
    "operator": ("name", "op_id"),
    "span_ns": ("duration", "span_id"),
    "span_kind": ("kind", "span_id"),
}
"""What `caused_idle` says of a piece besides its columns: a column of the host's spans, and where the piece names its span."""


class CausedIdle(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The idle time in ns that some causes have on the device where they cause the most, and where it comes from: the
    frame of the user's code, the layer and the operator with at least half of it; None if there is none.
    """

    ns: int
    of: _Caused
    rows: Int64Array
    """The pieces on that device, by row."""

    def columns(self, *names: str) -> pl.DataFrame:
        """These columns of the pieces on that device; `operator` has the names of operators."""
        return self.of.columns(names, self.rows)

    @cached_property
    def frame(self) -> str | None:
        """The frame of the user's code."""
        return self._most("frame")

    @cached_property
    def layer(self) -> str | None:
        """The path of the layer, or the name in angle brackets of a part of the step."""
        return self._most("layer")

    @cached_property
    def operator(self) -> str | None:
        """The name of the operator."""
        return self._most("operator")

    @cached_property
    def stretches(self) -> Stretches:
        """The gaps with most of it, as `rule.longest` gives them."""
        of, rows = self.of, self.rows
        gaps = groups(of.gap[rows])
        start, end = gaps.least(of.start[rows]), gaps.greatest(of.start[rows] + of.ns[rows])
        return longest_of(start, end - start, gaps.sums(of.ns[rows]))

    @property
    def where(self) -> str:
        """` (mostly in train.py(42): step, layer encoder.0, aten::item)`; empty if no place has half of the time."""
        return self._in(self.frame, self._layer_in_words, self.operator)

    @property
    def where_in_code(self) -> str:
        """The same without the operator, for a sentence that names it already."""
        return self._in(self.frame, self._layer_in_words)

    @property
    def _layer_in_words(self) -> str | None:
        if self.layer is None or not self.layer.startswith("<") or self.layer == ROOT:
            return None if self.layer is None else f"layer {self.layer}"
        return PARTS_OF_STEP.get(self.layer)

    @staticmethod
    def _in(*places: str | None) -> str:
        there = [place for place in places if place]
        return f" (mostly in {', '.join(there)})" if there else ""

    def _most(self, by: str) -> str | None:
        if not self.rows.size:
            return None
        codes, texts = self.of.places[by]
        sums = np.bincount(codes[self.rows], weights=self.of.ns[self.rows], minlength=len(texts))
        # Of equal ones none comes before a name.
        most = max(
            (texts[code] is None, texts[code] or "", code)
            for code in np.flatnonzero(sums == sums.max()).tolist()
        )
        return texts[most[2]] if sums.max() >= MOSTLY * self.ns else None


def caused_idle(
    scope: Scope,
    *causes: str,
    wanted: pl.Expr | None = None,
    below: int | None = None,
    or_in: Int64Array | None = None,
) -> CausedIdle:
    """The idle time of these causes, restricted to the pieces for which `wanted` is true, and to gaps of which they take less
    than `below` ns or that are among `or_in`.

    `wanted` may use the columns of `IdleCauses.pieces`, `operator`, the name of the operator, and `span_ns` and `span_kind`, the
    duration in ns and the kind of the span that caused each piece.
    """
    found = _Caused.of(scope)
    rows = np.flatnonzero(np.isin(found.cause, [CAUSES.index(cause) for cause in causes]))
    if wanted is not None and rows.size:
        asked = found.columns(dict.fromkeys(wanted.meta.root_names()), rows)
        asked = asked.select(wanted.fill_null(value=False))
        rows = rows[asked.to_series().to_numpy()]
    if below is not None:
        in_gap = np.bincount(found.gap[rows], weights=found.ns[rows])
        some = in_gap[found.gap[rows]] < below
        rows = rows[some if or_in is None else some | np.isin(found.gap[rows], or_in)]
    if not rows.size:
        return CausedIdle(0, found, rows)
    devices = groups(found.device[rows])
    sums = devices.sums(found.ns[rows])
    most = int(falling(sums, devices.keys[0])[-1])
    return CausedIdle(int(sums[most]), found, rows[devices.of == most] if devices.size > 1 else rows)


def idle_of_spans(scope: Scope, inside: BoolArray) -> CausedIdle:
    """The idle time of any cause that these spans of the host stack cause."""
    return caused_idle(scope, *CAUSES, wanted=pl.col("span_id").is_in(np.flatnonzero(inside)))


Blocked = Literal["", "waits", "sleeps"]
"""What the launching thread does while it runs nothing."""


def blocked(scope: Scope, device_id: int) -> Blocked:
    """Whether the host mostly waits for something else, or mostly sleeps, in the code for which this device waits."""
    return scope.once((blocked, device_id), lambda: _blocked(scope, device_id))


def _blocked(scope: Scope, device_id: int) -> Blocked:
    found = _Caused.of(scope)
    return blocked_in(scope, found.device == device_id)


def blocked_in(scope: Scope, mine: BoolArray) -> Blocked:
    """What the host mostly does in its code in these pieces of idle time (by row of `IdleCauses.pieces`) while it runs nothing."""
    found = _Caused.of(scope)
    ns = int(found.ns[mine & _in_code(found)].sum())
    pieces = blocked_pieces(scope).items()
    return next((what for what, inside in pieces if found.ns[mine & inside].sum() > MOSTLY * ns), "")


def blocked_pieces(scope: Scope) -> dict[Blocked, BoolArray]:
    """In which pieces of idle time, by row of `IdleCauses.pieces`, the host sleeps in its code, and in which it waits there."""
    return scope.once(blocked_pieces, lambda: _blocked_pieces(scope))


def _blocked_pieces(scope: Scope) -> dict[Blocked, BoolArray]:
    found, stack = _Caused.of(scope), attribution(scope).model.stack
    spans, in_code = or_none(found.pieces["span_id"]), _in_code(found)
    calls: dict[Blocked, str] = {"sleeps": SLEEPING_CALL, "waits": WAITING_CALL}
    return {what: in_code & stack.inside(pattern, spans, "python") for what, pattern in calls.items()}


def _in_code(found: _Caused) -> BoolArray:
    return np.isin(found.cause, [CAUSES.index(cause) for cause in HOST_CODE])


def while_launching_for_others(scope: Scope) -> Int64Array:
    """The numbers of gaps of `LONG_GAP_NS` or more in which the host launches for other devices, without as long a pause and without
    a call that waits for a device.

    Empty if several processes launch, each for devices of its own.
    """
    found, launch = _Caused.of(scope), or_none(scope.activities["launch_id"])
    device, launch = scope.activities["device_id"].to_numpy()[launch >= 0], launch[launch >= 0]
    if len(scope.device_ids) < 2 or at_rows(scope.trace.host["process_id"], launch).n_unique() > 1:
        return np.zeros(0, dtype=np.int64)
    called = at_rows(scope.trace.host["start"], launch).to_numpy()
    gaps = groups(found.gap)
    start, end = gaps.least(found.start), gaps.greatest(found.start + found.ns)
    of_gap = found.device[gaps.first]
    waits = gaps.sums(np.where(found.cause == CAUSES.index("synchronisation"), found.ns, 0)) > 0
    busy = np.zeros(start.size, dtype=bool)
    for each in np.unique(of_gap).tolist():
        edges = np.unique(np.concatenate([called[device != each], [scope.start, scope.end]]))
        long = np.flatnonzero(np.diff(edges) >= LONG_GAP_NS)
        paused = IntervalSet.of(edges[long], edges[long + 1]).coverage(start, end)
        busy |= (of_gap == each) & (paused < LONG_GAP_NS)
    return gaps.keys[0][busy & ~waits & (end - start >= LONG_GAP_NS)]


def idle_in(scope: Scope, device_id: int, region: IntervalSet) -> CausedIdle:
    """The idle time of a device in the gaps that begin in this region."""
    found = _Caused.of(scope)
    mine = np.flatnonzero(found.device == device_id)
    rows = mine[region.contains(found.start[mine])]
    return CausedIdle(int(found.ns[rows].sum()), found, rows)


def covered_by_other_rules(scope: Scope, device_id: int, region: IntervalSet) -> bool:
    """Whether most of the device's idle time in this region has causes with their own rules."""
    return mostly_caused(scope, device_id, region, *_COVERED_CAUSES)


def mostly_caused(scope: Scope, device_id: int, region: IntervalSet, *causes: str) -> bool:
    """Whether most of the device's idle time in this region has these causes."""
    found = _Caused.of(scope)
    mine = found.device == device_id
    covered = mine & np.isin(found.cause, [CAUSES.index(cause) for cause in causes])
    all_idle, covered_idle = (
        IntervalSet.of(found.start[rows], found.start[rows] + found.ns[rows]) & region
        for rows in (mine, covered)
    )
    return covered_idle.measure > MOSTLY * all_idle.measure


# -- calls of the host ------------------------------------------------------------------------------
#
# Host API calls one by one, for rules that need more than the totals by name.

LONG_CALL_NS: Final = NS_PER_MS
"""A launch takes 5 to 10 µs and a query less; a call that takes a hundred times as long does first-time work."""
CONTEXT_CREATION_NS: Final = 100 * NS_PER_MS
"""No allocation takes this long; a `cudaFree(0)` that creates the device's context does."""


def calls_with_roles(scope: Scope, result: Launches) -> pl.DataFrame:
    """One row per API call of the scope, by thread and time: `span_id`, `name`, `start`, `duration`, `end` in ns, `role`.

    Calls that last longer than all the rest of the trace are left out, since their times are wrong.
    """
    rows = scope.host("runtime", columns=["span_id", "name", "start", "duration"])
    if (scope.trace.health["kind"] == "endless_call").any():
        endless = endless_calls(scope.trace.host, scope.trace.device)
        rows = rows.join(endless, on=["name", "start", "duration"], how="anti", maintain_order="left")
    names, calls = text_codes(rows["name"])
    roles = dict(result.calls[["name", "role"]].rows())
    role = pl.Series("role", [roles.get(call or "") for call in calls], dtype=pl.Categorical)
    end = (rows["start"] + rows["duration"]).alias("end")
    return with_series(rows, end, at_rows(role, names))


def outermost_operators(scope: Scope, span_ids: pl.Series) -> pl.Series:
    """For each span the operator that encloses it, the outermost of an unbroken chain below autograd's engine; null outside operators.

    `aten::_local_scalar_dense` inside `aten::item` inside `aten::is_nonzero` gives `aten::is_nonzero`.
    """
    stack = attribution(scope).model.stack
    is_op = stack.of_kind("op") & ~stack.named(f"^{ENGINE_PREFIX}", "op")
    operators = take(stack.operator, span_ids.to_numpy())
    while operators.size:
        above = take(stack.nesting.parent, operators)
        climb = (above >= 0) & is_op[np.maximum(above, 0)]
        if not climb.any():
            break
        operators = np.where(climb, above, operators)
    return at_rows(scope.trace.host["name"], operators).cast(pl.String).alias("operator")


def waits_before_graphs(scope: Scope) -> str:
    """What must go before a graph can hold the steps: the calls within each step that wait for the device, in a sentence
    with their number and place; empty if there are none in most steps.

    In the middle of a step is what comes after its first and before its last launch of a kernel: what waits before or after all of
    them hinders no graph. How long a call waits does not matter.
    """
    if scope.window != "steps":
        return ""
    return scope.once(waits_before_graphs, lambda: _waits_before_graphs(scope))


def _waits_before_graphs(scope: Scope) -> str:
    calls = scope.host("runtime", columns=["span_id", "name", "start"]).sort("start")
    names, start = NameTable(calls["name"]), calls["start"].to_numpy()
    launches = start[names.matching(f"{KERNEL_LAUNCH}|{GRAPH_LAUNCH}")]
    begin, end = (scope.steps[edge].to_numpy() for edge in ("start", "end"))
    first, after = np.searchsorted(launches, begin), np.searchsorted(launches, end)
    step = np.searchsorted(begin, start, side="right") - 1
    passed = np.searchsorted(launches, start)
    middle = names.matching(SYNCHRONISATION) & (step >= 0) & (passed > first[step]) & (passed < after[step])
    count = round(float(np.median(np.bincount(step[middle], minlength=begin.size))))
    if not count:
        return ""
    spans = calls["span_id"].filter(pl.Series(middle))
    causes, stack = span_causes(scope), attribution(scope).model.stack
    code = stack.named(PYTHON_FILE, "python") & ~stack.named(FORWARDING_FRAME, "python")
    places = pl.DataFrame(
        [
            outermost_operators(scope, spans),
            calls["name"].filter(pl.Series(middle)),
            *(
                at_rows(causes.names, take(around, spans.to_numpy())).alias(name)
                for name, around in (("code", stack.nesting.nearest_ancestor(code)), ("frame", causes.frame))
            ),
        ]
    )
    rows = places.cast(pl.String).group_by(pl.all()).len().sort("len", *places.columns)
    shown = _WAITERS if scope.once(program, lambda: program(scope.trace)).pytorch else {}
    total, told = rows["len"].sum(), dict[str, int]()
    for operator, call, inner, frame, calls_here in reversed(rows.rows()):
        if 2 * sum(told.values()) > total or len(told) == _NAMED_WAITERS:
            break
        place = called_from(inner, frame)
        what = shown.get(operator or call, operator or call) + (f" in {place}" if place else "")
        told[what] = told.get(what, 0) + calls_here
    named = sum(told.values())
    by = "from" if named == total else "mostly from" if 2 * named > total else "among others from"
    which = (
        "the call that synchronises" if count == 1 else f"the {format_count(count)} calls that synchronise"
    )
    return (
        f"A CUDA graph cannot contain a call that waits for the device: first remove {which} within each step "
        f"({by} {listed(list(told))})."
    )


_NAMED_WAITERS: Final = 2
"""Where more kinds of calls wait, the sentence would become a list."""
_WAITERS: Final = {
    "aten::item": ".item()",
    "aten::_local_scalar_dense": ".item()",
    "aten::is_nonzero": "bool(tensor)",
    "cudaDeviceSynchronize": "torch.cuda.synchronize()",
}
"""What users write for an operator, or a call outside operators."""
