"""How much communication is hidden behind computation: |X ∩ C| / |X| (DEFINITIONS §3, HTA's definition), and where the rest of it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.analyses.attribution.attribute import attribution
from tracekit.analyses.calls import calls_of, of_one_rank
from tracekit.analyses.carried import carried_layers
from tracekit.analyses.exposure import POSITIONS, exposed_by, positions
from tracekit.analyses.result import NotCaptured, Result, TableView
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.facts.stack_names import GRADIENT_REDUCTION_LAYER
from tracekit.facts.units import format_ns, format_share
from tracekit.readers import how_to_record
from tracekit.trace import Trace

__all__ = ["TABLES", "Overlap", "overlap"]

_TIMES: Final = {
    "communication_ns": pl.Int64,
    "overlap_ns": pl.Int64,
    "exposed_ns": pl.Int64,
    "overlap": pl.Float64,
}
_DEVICE_COLUMNS: Final = {
    "device_id": pl.Int64,
    "communication_ns": pl.Int64,
    "compute_ns": pl.Int64,
    "overlap_ns": pl.Int64,
    "exposed_ns": pl.Int64,
    "overlap": pl.Float64,
}
_GROUP: Final = ("group", "group_size", "group_ranks")
_LAYER: Final = ("layer", "carries")

TABLES: Final = {
    "devices": TableView("Communication per device", " ".join(_DEVICE_COLUMNS)),
    "groups": TableView(
        "Communication by process group",
        f"{' '.join(_GROUP)} count {' '.join(_TIMES)}",
        short="group group_size count communication_ns exposed_ns overlap",
        hidden="group_ranks",
    ),
    "layers": TableView(
        "Communication by layer that it carries",
        f"{' '.join(_LAYER)} count bytes {' '.join(_TIMES)}",
        short="layer carries count communication_ns exposed_ns overlap",
        main=True,
    ),
    "phases": TableView(
        "Mean step, by the phase that computes meanwhile",
        "phase mean_communication_ns mean_exposed_ns",
        titles={"mean_communication_ns": "communication", "mean_exposed_ns": "exposed"},
    ),
    "positions": TableView("Communication within a step", " ".join(POSITIONS), series=True),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Overlap(Result):
    """Communication, and how much of it computation hides.

    In all tables, `communication_ns` is the time in which the activities of a row run, `overlap_ns` the part in which their device
    computes, `exposed_ns` the rest, and `overlap` the ratio of the first two, or null. Rows that communicate at once share their time:
    each counts it.
    """

    devices: pl.DataFrame
    """Per device communication, compute, their overlap and what is exposed, in ns; `overlap` is a ratio or null."""
    groups: pl.DataFrame | None
    """Per process group (`group`, `group_size`, `group_ranks`) the number of calls and the times; None if there are fewer than two."""
    layers: pl.DataFrame | None
    """Per `layer` and what the calls carry of it (`carries`: its `gradients`, its `parameters`, or `own`: it launches them): the number of
    the calls, the bytes of the layer in them, and the times of the whole calls. A bucket counts for each of its layers. None if
    the trace does not show it (see `analyses.carried`), empty without communication.
    """
    phases: pl.DataFrame | None
    """The sums of `positions` by phase; None if fewer than two are known."""
    positions: pl.DataFrame | None
    """The mean step in fiftieths, with the columns of `analyses.exposure.POSITIONS`; None without steps."""


def overlap(scope: Scope | Trace) -> Overlap:
    """Communication hidden behind computation: per device, process group, layer and place in the step.

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
    if not total:
        empty = pl.DataFrame(schema=dict.fromkeys(TABLES["layers"].columns.split(), pl.Int64))
        return Overlap(
            answer=f"{none.capitalize()}.", devices=devices, groups=None, layers=empty, phases=None, positions=None,
            not_captured=none,
        )  # fmt: skip
    layers, within = _layers(scope), positions(scope)
    one_rank = of_one_rank(calls_of(scope).table)
    alone = " Its groups have one rank each, so nothing is exchanged." if one_rank else ""
    return Overlap(
        answer=f"{format_share(hidden / total)} of {format_ns(total)} of communication ran behind computation.{alone}",
        devices=devices,
        groups=_groups(scope),
        layers=layers,
        phases=_phases(within),
        positions=within if within.height else None,
        not_captured=_lacks(scope, layers),
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


def _groups(scope: Scope) -> pl.DataFrame | None:
    calls = calls_of(scope)
    keyed = calls.table.select(pl.int_range(pl.len()).alias("call"), *_GROUP).filter(
        pl.col("group").is_not_null()
    )
    rows = _timed(scope, keyed, _GROUP)
    return rows if rows.height > 1 else None


def _layers(scope: Scope) -> pl.DataFrame | None:
    rows = _timed(scope, carried_layers(scope).filter(pl.col("layer").is_not_null()), _LAYER)
    return rows if rows.height else None


def _lacks(scope: Scope, layers: pl.DataFrame | None) -> NotCaptured | None:
    """Why a reduction of gradients does not show whose they are."""
    reduces = (calls_of(scope).table["layer"] == GRADIENT_REDUCTION_LAYER).any()
    if not reduces or (layers is not None and (layers["carries"] == "gradients").any()):
        return None
    meta = scope.trace.meta
    shown = {"shapes": "shapes" in meta.captured, "layers": bool(attribution(scope).model.layers.methods)}
    lacking = next((how_to_record(what, meta.format) for what, there in shown.items() if not there), "")
    return NotCaptured("whose gradients are reduced", lacking)


def _timed(scope: Scope, keyed: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The calls with these keys (`call` is their row) by key: their number, bytes and times; those with exposed time first."""
    numbered = keyed.with_columns(pl.struct(keys).rank("dense").cast(pl.Int64).alias("key"))
    times = exposed_by(scope, calls_of(scope).parts.join(numbered[["call", "key"]], on="call"), "key")
    size = [pl.col("bytes").sum()] if "bytes" in keyed.columns else []
    hidden = pl.col("communication_ns") - pl.col("exposed_ns")
    return (
        numbered.group_by("key")
        .agg(*(pl.col(name).first() for name in keys), pl.col("call").n_unique().cast(pl.Int64).alias("count"), *size)
        .join(times, on="key")  # calls on the host have no times
        .with_columns(hidden.alias("overlap_ns"))
        .with_columns((pl.col("overlap_ns") / pl.when(pl.col("communication_ns") > 0).then("communication_ns")).alias("overlap"))
        .sort("exposed_ns", *keys, descending=[True, *(False for _ in keys)])
        .select(*keys, "count", *(["bytes"] if size else []), *_TIMES)
    )  # fmt: skip


def _phases(within: pl.DataFrame) -> pl.DataFrame | None:
    rows = (
        within.drop_nulls("phase")
        .group_by("phase", maintain_order=True)
        .agg(pl.col("mean_communication_ns", "mean_exposed_ns").sum())
    )
    return rows if rows.height > 1 else None
