"""What rules look up behind the totals: idle time by cause and where it comes from, and host API calls one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import texts
from tracekit.analyses.attribution.layer_spans import ROOT
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.rules.rule import longest
from tracekit.facts.units import NS_PER_MS
from tracekit.findings import Stretches
from tracekit.intervals import IntervalSet
from tracekit.missing import endless_calls
from tracekit.spans import nesting_of
from tracekit.trace import one_of

__all__ = [
    "CONTEXT_CREATION_NS",
    "LONG_CALL_NS",
    "CausedIdle",
    "calls_with_roles",
    "caused_idle",
    "covered_by_other_rules",
    "outermost_operators",
]

if TYPE_CHECKING:
    from tracekit.analyses.launches import Launches
    from tracekit.analyses.scope import Scope

MOSTLY: Final = 0.5
"""A place is named only if at least half of the time comes from it."""
_COVERED_CAUSES: Final = ("synchronisation", "data_loading", "allocation", "compilation", "module_loading")
"""Causes that have their own rules: `blocking_synchronisation`, `data_loading`, `allocation_calls` and `cold_start`,
`compilation_in_steps`."""


@dataclass(frozen=True, eq=False)
class CausedIdle:
    """The idle time in ns that some causes have on the device where they cause the most, and where it comes from: the
    frame of the user's code, the layer and the operator with at least half of it; None if there is none.
    """

    ns: int
    pieces: pl.DataFrame
    """The pieces on that device, with the name of their `operator`."""
    layers: pl.DataFrame

    @cached_property
    def frame(self) -> str | None:
        """The frame of the user's code."""
        return _text(self._most("frame"))

    @cached_property
    def layer(self) -> str | None:
        """The path of the layer."""
        layer = self._most("layer_id")
        return None if layer is None else _layer(str(self.layers["path"][int(str(layer))]))

    @cached_property
    def operator(self) -> str | None:
        """The name of the operator."""
        return _text(self._most("operator"))

    @cached_property
    def stretches(self) -> Stretches:
        """The gaps with most of it, as `rule.longest` gives them."""
        gaps = self.pieces.group_by("gap_id").agg(
            pl.col("start").min(),
            (pl.col("start") + pl.col("duration_ns")).max().alias("end"),
            pl.col("duration_ns").sum().alias("ns"),
        )
        return longest(gaps.with_columns((pl.col("end") - pl.col("start")).alias("duration")), by="ns")

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
        return None if self.layer is None else f"layer {self.layer}"

    @staticmethod
    def _in(*places: str | None) -> str:
        there = [place for place in places if place]
        return f" (mostly in {', '.join(there)})" if there else ""

    def _most(self, by: str) -> object:
        if not self.pieces.height:
            return None
        sums = self.pieces.group_by(by).agg(pl.col("duration_ns").sum())
        name, ns = sums.sort("duration_ns", by, nulls_last=True).row(-1)
        return name if ns >= MOSTLY * self.ns else None


def caused_idle(scope: Scope, *causes: str, wanted: pl.Expr | None = None) -> CausedIdle:
    """The idle time of these causes, restricted to the pieces for which `wanted` is true.

    `wanted` may use the columns of `IdleCauses.pieces`, `operator`, the name of the operator, and `span_ns` and `span_kind`, the
    duration in ns and the kind of the span that caused each piece.
    """
    causes_of_idle = idle_causes(scope)
    host = scope.trace.host
    pieces = causes_of_idle.pieces.filter(one_of("cause", *causes))
    if pieces.height:
        spans = {"span_ns": host["duration"], "span_kind": host["kind"]}
        pieces = pieces.with_columns(
            host["name"].gather(pieces["op_id"]).alias("operator"),
            *(of.gather(pieces["span_id"]).alias(name) for name, of in spans.items()),
        )
        if wanted is not None:
            pieces = pieces.filter(wanted)
    if not pieces.height:
        return CausedIdle(0, pieces, causes_of_idle.layers)
    sums = pieces.group_by("device_id").agg(pl.col("duration_ns").sum()).sort("duration_ns", "device_id")
    device, ns = sums.row(-1)
    return CausedIdle(int(ns), pieces.filter(pl.col("device_id") == device), causes_of_idle.layers)


def covered_by_other_rules(scope: Scope, device_id: int, region: IntervalSet) -> bool:
    """Whether most of the device's idle time in this region has causes with their own rules."""
    pieces = idle_causes(scope).pieces.filter(pl.col("device_id") == device_id)
    covered = pieces.filter(one_of("cause", *_COVERED_CAUSES))
    all_idle, covered_idle = (
        IntervalSet.of(rows["start"].to_numpy(), (rows["start"] + rows["duration_ns"]).to_numpy()) & region
        for rows in (pieces, covered)
    )
    return covered_idle.measure > MOSTLY * all_idle.measure


def _layer(path: str) -> str | None:
    """The layer; None for a row in angle brackets, which stands for work in no layer."""
    return None if path.startswith("<") and path != ROOT else path


def _text(value: object) -> str | None:
    return None if value is None else str(value)


# -- calls of the host ------------------------------------------------------------------------------
#
# Host API calls one by one, for rules that need more than the totals by name.

LONG_CALL_NS: Final = NS_PER_MS
"""A launch takes 5 to 10 µs and a query less; a call that takes a hundred times as long does first-time work."""
CONTEXT_CREATION_NS: Final = 100 * NS_PER_MS
"""No allocation takes this long; a `cudaFree(0)` that creates the device's context does."""


def calls_with_roles(scope: Scope, result: Launches) -> pl.DataFrame:
    """One row per API call of the scope: `span_id`, `name`, `role`, `start`, `duration`, `end` in ns.

    Calls that last longer than all the rest of the trace are left out, since their times are wrong.
    """
    rows = scope.host("runtime", columns=["span_id", "name", "start", "duration"])
    if (scope.trace.health["kind"] == "endless_call").any():
        endless = endless_calls(scope.trace.host, scope.trace.device)
        rows = rows.join(endless, on=["name", "start", "duration"], how="anti", maintain_order="left")
    return rows.select(
        "span_id",
        texts(rows["name"]).alias("name"),
        "start",
        "duration",
        (pl.col("start") + pl.col("duration")).alias("end"),
    ).join(result.calls.select("name", "role"), on="name", how="left", maintain_order="left")


def outermost_operators(scope: Scope, span_ids: pl.Series) -> pl.Series:
    """For each span the operator that encloses it, the outermost of an unbroken chain; null outside operators.

    `aten::_local_scalar_dense` inside `aten::item` inside `aten::is_nonzero` gives `aten::is_nonzero`.
    """
    host = scope.trace.host
    is_op = (host["kind"] == "op").to_numpy()
    nesting = nesting_of(host)
    operators = (
        nesting.nearest_ancestor(is_op)[span_ids.to_numpy()]
        if span_ids.len()
        else np.empty(0, dtype=np.int64)
    )
    while operators.size:
        above = np.where(operators >= 0, nesting.parent[np.maximum(operators, 0)], -1)
        climb = (above >= 0) & is_op[np.maximum(above, 0)]
        if not climb.any():
            break
        operators = np.where(climb, above, operators)
    names = (
        host["name"].cast(pl.String).gather(np.maximum(operators, 0))
        if host.height
        else pl.Series([], dtype=pl.String)
    )
    return (
        pl.DataFrame({"name": names, "inside": operators >= 0})
        .select(pl.when("inside").then("name").alias("operator"))
        .to_series()
    )
