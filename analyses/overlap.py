"""How much communication is hidden behind computation: |X ∩ C| / |X| (DEFINITIONS §3, HTA's definition)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.analyses.result import AGGREGATES, Result, TableView
from tracekit.analyses.scope import Scope, once
from tracekit.facts.units import format_ns, format_share
from tracekit.statistics import duration_aggregates
from tracekit.trace import Trace

__all__ = ["TABLES", "Overlap", "overlap"]

_DEVICE_COLUMNS = {
    "device_id": pl.Int64,
    "communication_ns": pl.Int64,
    "compute_ns": pl.Int64,
    "overlap_ns": pl.Int64,
    "exposed_ns": pl.Int64,
    "overlap": pl.Float64,
}

TABLES: Final = {
    "devices": TableView("Communication per device", " ".join(_DEVICE_COLUMNS)),
    "collectives": TableView(
        "Communication by name",
        f"name {AGGREGATES} exposed_ns",
        short="name count total_ns exposed_ns mean_ns",
        main=True,
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Overlap(Result):
    """Communication, and how much of it computation hides."""

    devices: pl.DataFrame
    """Per device communication, compute, their overlap and what is exposed, in ns; `overlap` is a ratio or null."""
    collectives: pl.DataFrame
    """Communication activities by name with the usual duration columns and `exposed_ns`, the time in which no compute ran on the same device."""


def overlap(scope: Scope | Trace) -> Overlap:
    """Communication hidden behind computation, per device and per collective.

    >>> import tracekit
    >>> overlap(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).not_captured
    'no communication ran in this window'
    """
    return once(scope, _overlap)


def _overlap(scope: Scope) -> Overlap:
    devices = pl.DataFrame([_row(scope, d) for d in scope.device_ids], schema=_DEVICE_COLUMNS, orient="row")
    total, hidden = int(devices["communication_ns"].sum()), int(devices["overlap_ns"].sum())
    # A call of MPI on the host may have run, but it occupies no device.
    none = f"no communication ran {'' if scope.on_cpu else 'on a device '}in this window"
    answer = f"{none.capitalize()}."
    if total:
        answer = (
            f"{format_share(hidden / total)} of {format_ns(total)} of communication ran behind computation."
        )
    return Overlap(
        answer=answer, devices=devices, collectives=_collectives(scope), not_captured=None if total else none
    )


def _row(scope: Scope, device: int) -> dict[str, object]:
    communication = scope.intervals(device, "communication")
    compute = scope.intervals(device, "compute")
    both = (communication & compute).measure
    return {
        "device_id": device,
        "communication_ns": communication.measure,
        "compute_ns": compute.measure,
        "overlap_ns": both,
        "exposed_ns": communication.measure - both,
        "overlap": both / communication.measure if communication.measure else None,
    }


def _collectives(scope: Scope) -> pl.DataFrame:
    rows = scope.activities.filter(pl.col("class") == "communication")
    hidden = []
    for device in scope.device_ids:
        mine = rows.filter(pl.col("device_id") == device)
        covered = scope.intervals(device, "compute").coverage(
            mine["start"].to_numpy(), mine["end"].to_numpy()
        )
        hidden.append(mine.select("activity_id").with_columns(pl.Series("hidden", covered)))
    if hidden:
        rows = rows.join(pl.concat(hidden), on="activity_id", how="left")
    else:
        rows = rows.with_columns(pl.lit(0, dtype=pl.Int64).alias("hidden"))
    return (
        rows.group_by("name")
        .agg(*duration_aggregates(), (pl.col("duration") - pl.col("hidden")).sum().alias("exposed_ns"))
        .with_columns(pl.col("name").cast(pl.String))
        .sort("total_ns", "name", descending=[True, False])
    )
