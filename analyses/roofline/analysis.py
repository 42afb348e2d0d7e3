"""How close the work comes to what the device can do: FLOPs and bytes against its ceilings (DEFINITIONS §7).

The work comes from hardware counters, or from the shapes of operators (`analyses.roofline.pieces`); each row says which. The ceilings
are those of the device in the catalogue, or measured ones that were joined to the trace (`tracekit.facts.ceilings`). Without a
device the pieces are operators of the processors, with their self times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import UNATTRIBUTED, attribution
from tracekit.analyses.attribution.layer_spans import OF_MODEL
from tracekit.analyses.counters.analysis import has_ranges
from tracekit.analyses.flops.coverage import CALLS_OTHERS, UNMODELLED, coverage
from tracekit.analyses.processors import CPU_DEVICE
from tracekit.analyses.program import program
from tracekit.analyses.recording import is_slowed
from tracekit.analyses.result import NotCaptured, Result, TableView
from tracekit.analyses.roofline.levels import LEVEL_SCHEMA, levels, under_roofs
from tracekit.analyses.roofline.pieces import RECORDED, pieces
from tracekit.analyses.scope import Scope, once
from tracekit.facts.ceilings import Ceilings, catalogue_ceilings, recorded_ceilings
from tracekit.facts.kernel_rules import ORDINARY_INSTRUCTIONS, TENSOR_CORE
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.findings import SHOWN_SHARE
from tracekit.groups import are_known, at_rows, kept, or_none, text_codes
from tracekit.names import shorten_name
from tracekit.readers import how_to_record
from tracekit.trace import DeviceInfo, Schema, Trace, empty

__all__ = [
    "TABLES",
    "TELLING_SHARE",
    "Roofline",
    "computing_share",
    "device_ceilings",
    "matrix_utilisation",
    "rated_pieces",
    "roofline",
    "uncounted_kernels",
]

_LEVELS: Final = {
    "operators": ("By operator", "operator", "", " rated_share"),
    "layers": ("By layer", "layer", " type", " rated_share"),
    "types": ("By type of layer", "type", "", " rated_share"),
    "kernels": ("By kernel", "name", " category kind", ""),  # some have the time of others, too
    "model": (
        "The whole window",
        "name",
        " window_ns steps model_utilisation hardware_utilisation",
        " model_utilisation rated_share",
    ),
}
TABLES: Final = {
    **{
        name: TableView(
            title,
            f"{key}{more} {' '.join(LEVEL_SCHEMA)}",
            short=f"{key} device_ns{shown} efficiency wasted_ns bound intensity flops_per_s flops source",
            titles={"source": "FLOPs from"},
            hidden="flops_ns bytes_ns rated_ns" + ("" if shown else " rated_share"),
            main=name == "operators",
        )
        for name, (title, key, more, shown) in _LEVELS.items()
    },
    "coverage": TableView("Where the figures come from", "figure source device_ns share"),
    "unmodelled": TableView("Neither FLOPs nor bytes are known", "name reason calls device_ns share"),
    "ceilings": TableView("Ceilings", "device_id device precision unit level flops_per_s bytes_per_s source"),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Roofline(Result):
    """The work of a scope against the ceilings of its devices. The tables of levels have the columns of `levels.LEVEL_SCHEMA`; their
    rows sum to the same `device_ns`, `flops`, `bytes`, `least_ns` and `wasted_ns`.
    """

    operators: pl.DataFrame
    """By `operator`: the outermost with a model around the launch, else the innermost; null without one."""
    layers: pl.DataFrame
    """By path (`layer`) and `type`; a layer's own work, without that of the layers inside."""
    types: pl.DataFrame
    """By `type` of layer; work in no layer has a name in angle brackets."""
    kernels: pl.DataFrame
    """By `name`, `category` and `kind`. Of an operator with several kernels the longest has the figures, over the time of all."""
    model: pl.DataFrame
    """One row, the window: its `name`, `window_ns`, the number of `steps`, and `model_utilisation` (MFU): the matrix FLOPs over
    those of all devices at their peaks in the window, without what activation checkpointing computes again;
    `hardware_utilisation` counts that too. Null if a peak is not known.
    """
    coverage: pl.DataFrame
    """For each `figure` (FLOPs, bytes) the time of the pieces by `source`, and the rest; `share` of the device time."""
    unmodelled: pl.DataFrame | None
    """The operators of which neither FLOPs nor bytes are known, with the reason (`analyses.flops.coverage`); None with counters."""
    ceilings: pl.DataFrame
    """The peak of each `precision` and `unit` that is used, and the bandwidth of each `level` of memory, with their `source`."""
    flops_share: float | None
    """The share of the device time for which FLOPs are known."""
    bytes_share: float | None
    """The same for bytes."""
    efficiency: float | None
    """The least time over the time, of the work whose FLOPs, bytes and ceilings are known."""
    model_utilisation: float | None
    """That of `model`."""
    wasted_ns: int | None
    """The time beyond the least time."""


def roofline(scope: Scope | Trace) -> Roofline:
    """The rooflines of the scope's kernels, operators, layers and model.

    >>> import tracekit
    >>> found = roofline(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> found.operators["flops"].sum() == found.layers["flops"].sum() == found.model["flops"].sum() > 0
    True
    """
    return once(scope, _roofline)


def device_ceilings(scope: Scope) -> dict[int, Ceilings]:
    """The ceilings of each device by its number: measured ones, if the trace has them, else those of the catalogue, else what the
    trace records.
    """
    measured = scope.trace.ceilings
    if scope.on_cpu:
        return {} if measured is None else {CPU_DEVICE: measured}
    found = {one.device_id: measured or _published(one) for one in scope.trace.meta.devices}
    return {number: ceilings for number, ceilings in found.items() if ceilings is not None}


def _published(device: DeviceInfo) -> Ceilings | None:
    listed = catalogue_ceilings(device.name, device.memory_bytes)
    return listed or recorded_ceilings(
        device.name,
        compute_capability=device.compute_capability,
        sm_count=device.sm_count,
        clock_hz=device.clock_hz,
        memory_bandwidth=device.memory_bandwidth,
    )


def rated_pieces(scope: Scope) -> pl.DataFrame:
    """The pieces of the scope under the ceilings of their devices."""
    return scope.once(rated_pieces, lambda: under_roofs(pieces(scope), device_ceilings(scope)))


def _roofline(scope: Scope) -> Roofline:
    rows = _with_layers(rated_pieces(scope), scope)
    rows = rows.with_columns(
        pl.coalesce("op_id", -1 - pl.col("call")).alias("operator call"), pl.lit(scope.label).alias("label")
    )
    operators, layers, types, kernels, window = levels(
        rows,
        (["operator"], "operator call"),
        *((keys, "call") for keys in (["layer", "type"], ["type"], ["name", "category", "kind"], ["label"])),
    )
    model = _model(scope, window)
    row = model.row(0, named=True)
    measured = ((rows["source"] != RECORDED) | (rows["bytes_source"] != RECORDED)).any()
    lacking = NotCaptured(
        "the FLOPs and bytes of operators", how_to_record("shapes", scope.trace.meta.format)
    )
    if not program(scope.trace).pytorch:  # it has no operators with shapes
        lacking = NotCaptured(
            "the FLOPs and bytes of kernels",
            "add what Nsight Compute measures (--ncu), if the device is NVIDIA's",
        )
    unmodelled = coverage(scope).unmodelled if scope.trace.counters is None else None
    return Roofline(
        answer=_answer(scope, row, operators, unmodelled, measured=measured),
        not_captured=None if measured else lacking,
        operators=operators,
        layers=layers,
        types=types,
        # Figures stand at the longest kernel over the time of all of its operator, so they have no share of its own.
        kernels=kernels.with_columns(pl.lit(None, pl.Float64).alias("rated_share")),
        model=model,
        coverage=_coverage(rows),
        unmodelled=unmodelled,
        ceilings=_ceilings(scope, rows),
        flops_share=_share(row["flops_ns"], row["device_ns"]) if measured else None,
        bytes_share=_share(row["bytes_ns"], row["device_ns"]),
        efficiency=row["efficiency"],
        model_utilisation=row["model_utilisation"],
        wasted_ns=row["wasted_ns"],
    )


def _with_layers(rows: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """The pieces with the path of their `layer` and its `type`; work in no layer has a name in angle brackets for both."""
    layers = attribution(scope).layers
    paths = layers["path"].to_list()
    types = [
        kind if source in OF_MODEL else path
        for kind, source, path in zip(layers["type"], layers["source"], paths, strict=True)
    ]
    at = or_none(rows["layer_id"], layers.height)
    return rows.hstack(
        # Encoded, they are grouped by number.
        [
            at_rows(pl.Series(name, [*values, UNATTRIBUTED], dtype=pl.Categorical), at)
            for name, values in (("layer", paths), ("type", types))
        ]
    )


def _model(scope: Scope, window: pl.DataFrame) -> pl.DataFrame:
    """The table of that name."""
    about = {
        "name": scope.label,
        "window_ns": scope.duration,
        "steps": scope.steps.height if scope.window == "steps" else 0,
        "model_utilisation": matrix_utilisation(scope),
        "hardware_utilisation": matrix_utilisation(scope, again=True),
    }
    kinds = (pl.String, pl.Int64, pl.Int64, pl.Float64, pl.Float64)
    schema = dict(zip(about, kinds, strict=True))
    figures = (
        window if window.height else pl.DataFrame({name: [None] for name in window.columns}, window.schema)
    )
    return pl.DataFrame([about], schema=schema).hstack(figures[list(LEVEL_SCHEMA)])


def matrix_utilisation(scope: Scope, *, again: bool = False) -> float | None:
    """The matrix FLOPs of the scope over those of its devices at their peaks; with `again` also those that activation checkpointing
    computes again. None if there are none, a peak is not known, or they are more than the peaks allow: then shapes or device are wrong.
    """
    rows = rated_pieces(scope)[["unit", "flops", "compute_ns", "piece_ns", "recomputed"]]
    matrix = kept(rows, (rows["unit"] == "matrix") & (rows["flops"] > 0))
    time = scope.duration * max(1, scope.activities["device_id"].n_unique())
    if not matrix.height or matrix["compute_ns"].null_count() or matrix["piece_ns"].null_count() or time <= 0:
        return None
    chosen = matrix if again else kept(matrix, ~matrix["recomputed"])
    busy = float(chosen["compute_ns"].sum())
    return busy / time if busy <= time else None


def computing_share(scope: Scope) -> float | None:
    """The share of the time of kernels that compute whose FLOPs are known, 0 to 1; None without such a time."""
    rows = rated_pieces(scope)[["kind", "category", "flops", "piece_ns", "duration"]]
    rows = kept(rows, (rows["kind"] != "memcpy") & (rows["kind"] != "memset"))
    rows = kept(rows, rows["category"] != "communication")
    known = int(kept(rows, are_known(rows["flops"]))["piece_ns"].sum())
    total = int(rows["duration"].sum())
    return known / total if total else None


def uncounted_kernels(scope: Scope) -> str:
    """Of how many kernels the counters do not tell the FLOPs, where kernels were replayed; empty if they tell those of all."""
    rows = rated_pieces(scope)
    if not has_ranges(scope.trace) or are_known(rows["flops"]).all():
        return ""
    names = kept(rows, ~are_known(rows["flops"]))["name"].cast(pl.String)
    text = f"{format_count(names.len())} of {format_count(rows.height)} kernels"
    tensor = names.str.contains(f"(?i){TENSOR_CORE}") & ~names.str.contains(ORDINARY_INSTRUCTIONS)
    return f"{text}, which use tensor cores" if tensor.all() else text


def _coverage(rows: pl.DataFrame) -> pl.DataFrame:
    """The table of that name."""
    total = int(rows["duration"].sum())
    found: list[tuple[str, str | None, int, float | None]] = []
    for figure, source in (("FLOPs", "source"), ("bytes", "bytes_source")):
        of, texts = text_codes(rows[source])
        sums = np.zeros(len(texts), dtype=np.int64)
        np.add.at(sums, of, or_none(rows["piece_ns"], 0))
        known = [(text, ns) for text, ns in zip(texts, sums.tolist(), strict=True) if text is not None]
        known.sort(key=lambda one: -one[1])
        rest = (None, total - sum(ns for _, ns in known))
        found += [(figure, text, ns, ns / total if total else None) for text, ns in (*known, rest)]
    return pl.DataFrame(found, schema=_COVERAGE, orient="row")


_COVERAGE: Final[Schema] = {
    "figure": pl.String,
    "source": pl.String,
    "device_ns": pl.Int64,
    "share": pl.Float64,
}
_CEILINGS: Final = {
    "device_id": pl.Int64,
    "device": pl.String,
    "precision": pl.String,
    "unit": pl.String,
    "level": pl.String,
    "flops_per_s": pl.Float64,
    "bytes_per_s": pl.Float64,
    "source": pl.String,
}


def _ceilings(scope: Scope, rows: pl.DataFrame) -> pl.DataFrame:
    """The table of that name."""
    keys = ["device_id", "precision", "unit"]
    kinds = kept(rows[keys], rows["flops"] > 0).unique().sort(keys).rows()
    found = []
    for number, one in device_ceilings(scope).items():
        who = {"device_id": number, "device": one.device, "source": one.source}
        for precision, unit in [work for device, *work in kinds if device == number]:
            peak = one.peak(precision, unit or "vector") if precision else None
            found += [{**who, "precision": precision, "unit": unit, "flops_per_s": peak}] if peak else []
        found += [{**who, "level": name, "bytes_per_s": rate} for name, rate in one.bandwidth.items()]
    return pl.DataFrame(found, schema=_CEILINGS)


TELLING_SHARE: Final = 0.5
"""If the FLOPs of less than this part of the computation are known, their rate tells nothing of the whole."""
_WRONG: Final = 100
"""Caches make work faster than the memory's roof allows, but none by so much."""
_TOLD_SHARE: Final = 0.005
"""Less of the time is not worth a sentence."""
_NAME: Final = 60
"""Of a name in a sentence."""
_OF_LOST: Final = ["name", "reason", "device_ns", "share"]


def _share(part: int | None, total: int | None) -> float | None:
    return (part or 0) / total if total else None


def _answer(
    scope: Scope,
    model: dict[str, Any],
    operators: pl.DataFrame,
    unmodelled: pl.DataFrame | None,
    *,
    measured: bool,
) -> str:
    total = model["device_ns"]
    if not total and not has_ranges(scope.trace):
        return "The window holds no work."
    if not total:
        text = "The times are not known, since the kernels were replayed to count their work."
        lost = uncounted_kernels(scope)
        return (
            f"{text} The counters do not give the FLOPs of {lost}: sums over these are lower bounds."
            if lost
            else text
        )
    time = "operators' time" if scope.on_cpu else "device time"
    flops, moved = (format_share(_share(model[name], total)) for name in ("flops_ns", "bytes_ns"))
    rest = f"FLOPs are known for {flops} of the {time}, and bytes for {moved}."
    text = f"FLOPs and bytes are known for {flops} of the {time}." if flops == moved else rest
    if not measured:
        text = f"Only the bytes of copies and fills are known, {moved} of the {time}."
        text = text if model["bytes_ns"] else f"Neither FLOPs nor bytes are known for any of the {time}."
    without = empty(UNMODELLED) if unmodelled is None else unmodelled
    calling = float(kept(without, without["reason"] == CALLS_OTHERS)["share"].sum())
    if calling >= _TOLD_SHARE:
        text += f" Another {format_share(calling)} is overhead of views and operator wrappers."
    for name, reason, ns, share in kept(without, without["reason"] != CALLS_OTHERS)[:1, _OF_LOST].rows():
        if share >= _TOLD_SHARE:
            text += f" The largest unknown is {shorten_name(name, _NAME)}, {format_ns(ns)} ({reason})."
    if model["least_ns"] is None:
        return f"{text} {_no_roof(scope)}".rstrip()
    if not measured:  # what is left are copies and fills, whose roof says nothing of the program
        return text
    work = "The work" if flops == moved == format_share(1) else "The work for which both are known"
    roof = f"its roofline ({', '.join(sorted(set(map(_named, device_ceilings(scope).values()))))})"
    if model["efficiency"] > _WRONG:
        text += f" {work} takes less time than {roof} allows: the recorded shapes or this device's ceilings are wrong."
        return text
    text += (
        f" {work} reaches {format_share(model['efficiency'])} of {roof}: at the roof it would take "
        f"{format_ns(round(model['wasted_ns']))} less."
    )
    worst = kept(operators, operators["wasted_ns"] > 0).head(1)
    for name, wasted, share, bound in worst[["operator", "wasted_ns", "efficiency", "bound"]].rows():
        where = "outside operators" if name is None else f"in {shorten_name(name, _NAME)}"
        limit = "" if bound is None else f", {bound}-bound"
        most = "Most of that" if wasted > model["wasted_ns"] / 2 else "The largest part of that"
        text += f" {most} is {where}: {format_ns(round(wasted))}, at {format_share(share)}{limit}."
    utilisation = model["model_utilisation"] or 0.0
    if utilisation >= SHOWN_SHARE and (computing_share(scope) or 0.0) >= TELLING_SHARE:
        least = "" if flops == format_share(1) else "at least "
        over = " over the recorded time" if is_slowed(scope) else ""
        text += f" Model FLOPs utilisation is {least}{format_share(utilisation)}{over}."
    return text


def _named(ceilings: Ceilings) -> str:
    """Whose ceilings they are, and where they come from."""
    return f"{ceilings.device}, {ceilings.source.partition(':')[0]}"


def _no_roof(scope: Scope) -> str:
    """Why no work has a roof, in one sentence; empty if none is known that could have one."""
    rows = rated_pieces(scope).filter(pl.col("flops").is_not_null() & pl.col("bytes").is_not_null())
    if not rows.height and not scope.on_cpu:
        return ""
    if rows.height and (rows["unit"] == "link").all():
        return "Copies between host and device, and communication, have no roof: a link bounds them."
    names = sorted({one.name for one in scope.trace.meta.devices if one.name})
    if scope.on_cpu:
        return "`tracekit machine` measures the ceilings of processors."
    if not names:
        return "The trace does not name its device, so its ceilings are not known."
    listed = [catalogue_ceilings(one.name, one.memory_bytes) for one in scope.trace.meta.devices]
    if not any(listed):
        return f"The catalogue does not have {', '.join(names)}: `tracekit machine` measures it."
    lacks = (
        "peak in the precision of this work"
        if all(one is None or one.bandwidth for one in listed)
        else "bandwidth"
    )
    return f"For {', '.join(names)} the catalogue has no {lacks}: `tracekit machine` measures it."
