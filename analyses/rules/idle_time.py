"""Idle time by cause, for rules: how much of it, and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from tracekit.analyses.attribution.layer_spans import ROOT
from tracekit.analyses.idle.causes import idle_causes
from tracekit.intervals import IntervalSet
from tracekit.trace import one_of

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
