"""What rules look up behind the totals: idle time by cause and where it comes from, and host API calls one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import texts
from tracekit.analyses.attribution.layer_spans import ROOT
from tracekit.analyses.idle.causes import idle_causes
from tracekit.facts.units import NS_PER_MS
from tracekit.intervals import IntervalSet
from tracekit.spans import nesting_of
from tracekit.trace import one_of

__all__ = [
    "CONTEXT_CREATION_NS",
    "LONG_CALL_NS",
    "CausedIdle",
    "calls_with_roles",
    "caused_idle",
    "outermost_operators",
    "told_elsewhere",
]

if TYPE_CHECKING:
    from tracekit.analyses.scope import Scope

__all__ = ["CausedIdle", "caused_idle", "told_elsewhere"]

MOSTLY: Final = 0.5
"""What has less than half of the time is not named as where it comes from."""
_TOLD: Final = ("synchronisation", "data_loading", "allocation", "compilation")
"""Causes with a rule of their own: `blocking_synchronisation`, `data_loading`, `allocation_calls` and `cold_start`,
`compilation_in_steps`."""


@dataclass(frozen=True, slots=True)
class CausedIdle:
    """The idle time that these causes have on the device where it is most, in ns, and where most of it comes from:
    a frame of the user's code, a layer, an operator; None where none has half of it.
    """

    ns: int
    frame: str | None
    layer: str | None
    operator: str | None

    @property
    def where(self) -> str:
        """` (in train.py(42): step, layer encoder.0, aten::item)`; nothing when nothing is known."""
        layer = None if self.layer is None else f"layer {self.layer}"
        known = [part for part in (self.frame, layer, self.operator) if part]
        return f" (mostly in {', '.join(known)})" if known else ""


def caused_idle(scope: Scope, *causes: str, wanted: pl.Expr | None = None) -> CausedIdle:
    """Idle time of these causes; of the pieces (columns of `IdleCauses.pieces`, and `span_ns`, the length of the
    span that caused each) only those that are `wanted`.
    """
    found = idle_causes(scope)
    host = scope.trace.host
    spans = host.select("span_id", pl.col("duration").alias("span_ns"), pl.col("kind").alias("span_kind"))
    pieces = found.pieces.filter(one_of("cause", *causes))
    pieces = pieces.join(spans, on="span_id", how="left", maintain_order="left")
    if wanted is not None:
        pieces = pieces.filter(wanted)
    if not pieces.height:
        return CausedIdle(0, None, None, None)
    sums = pieces.group_by("device_id").agg(pl.col("duration_ns").sum()).sort("duration_ns", "device_id")
    device, ns = sums.row(-1)
    mine = pieces.filter(pl.col("device_id") == device)
    layer = _most(mine, "layer_id", ns)
    named = mine.join(
        host.select(pl.col("span_id").alias("op_id"), pl.col("name").alias("operator")),
        on="op_id",
        how="left",
    )
    return CausedIdle(
        int(ns),
        _text(_most(mine, "frame", ns)),
        None if layer is None else _layer(str(found.layers["path"][int(str(layer))])),
        _text(_most(named, "operator", ns)),
    )


def told_elsewhere(scope: Scope, device_id: int, region: IntervalSet) -> bool:
    """Whether most of the device's idle time in this region has causes that rules of their own tell of."""
    pieces = idle_causes(scope).pieces.filter(pl.col("device_id") == device_id)
    told = pieces.filter(one_of("cause", *_TOLD))
    all_idle, known = (
        IntervalSet.of(rows["start"].to_numpy(), (rows["start"] + rows["duration_ns"]).to_numpy()) & region
        for rows in (pieces, told)
    )
    return known.measure > MOSTLY * all_idle.measure


def _most(pieces: pl.DataFrame, by: str, total: int) -> object:
    sums = pieces.group_by(by).agg(pl.col("duration_ns").sum()).sort("duration_ns", by, nulls_last=True)
    name, ns = sums.row(-1)
    return name if ns >= MOSTLY * total else None


def _layer(path: str) -> str | None:
    """The layer; not one that only stands for work in no layer, which the cause says better."""
    return None if path.startswith("<") and path != ROOT else path


def _text(value: object) -> str | None:
    return None if value is None else str(value)


# -- calls of the host ------------------------------------------------------------------------------
#
# Host API calls one by one, for rules that must look behind the totals by name.

if TYPE_CHECKING:
    from tracekit.analyses.launches import Launches
    from tracekit.analyses.scope import Scope

__all__ = ["CONTEXT_CREATION_NS", "LONG_CALL_NS", "calls_with_roles", "outermost_operators"]

LONG_CALL_NS: Final = NS_PER_MS
"""A launch takes 5 to 10 µs and a query less; a hundred times that is work done once."""
CONTEXT_CREATION_NS: Final = 100 * NS_PER_MS
"""No allocation takes this long; a `cudaFree(0)` that creates the device's context does."""


def calls_with_roles(scope: Scope, result: Launches) -> pl.DataFrame:
    """One row per API call of the scope: `span_id`, `name`, `role`, `start`, `duration`, `end` in ns."""
    rows = scope.host("runtime", columns=["span_id", "name", "start", "duration"])
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
    found = (
        nesting.nearest_ancestor(is_op)[span_ids.to_numpy()]
        if span_ids.len()
        else np.empty(0, dtype=np.int64)
    )
    while found.size:
        above = np.where(found >= 0, nesting.parent[np.maximum(found, 0)], -1)
        climb = (above >= 0) & is_op[np.maximum(above, 0)]
        if not climb.any():
            break
        found = np.where(climb, above, found)
    names = (
        host["name"].cast(pl.String).gather(np.maximum(found, 0))
        if host.height
        else pl.Series([], dtype=pl.String)
    )
    return (
        pl.DataFrame({"n": names, "known": found >= 0})
        .select(pl.when("known").then("n").alias("operator"))
        .to_series()
    )
