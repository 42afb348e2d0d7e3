"""How close the work comes to what the device can do: FLOPs and bytes against its ceilings (DEFINITIONS §7).

The work comes from hardware counters, or from the shapes of operators (`analyses.roofline.pieces`); each row says which. The ceilings
are those of the device in the catalogue, or measured ones that were joined to the trace (`tracekit.facts.ceilings`). Without a
device the pieces are operators of the processors, with their self times.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import UNATTRIBUTED, attribution
from tracekit.analyses.attribution.layer_spans import OF_MODEL
from tracekit.analyses.flops.coverage import CALLS_OTHERS, Coverage, coverage
from tracekit.analyses.program import program
from tracekit.analyses.result import NotCaptured, Result, TableView
from tracekit.analyses.roofline.answer import answer, says_of_whole
from tracekit.analyses.roofline.levels import LEVEL_SCHEMA, levels
from tracekit.analyses.roofline.pieces import RECORDED
from tracekit.analyses.roofline.rated import (
    TELLING_SHARE,
    computing_share,
    device_ceilings,
    matrix_utilisation,
    rated_pieces,
)
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.groups import at_rows, kept, or_none, text_codes
from tracekit.readers import how_to_record
from tracekit.trace import Schema, Trace

__all__ = ["TABLES", "Roofline", "roofline", "roofline_levels"]

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
    "unmodelled": TableView("FLOPs or bytes are not known", "name reason calls device_ns share"),
    "ceilings": TableView("Ceilings", "device_id device precision unit level flops_per_s bytes_per_s source"),
}
"""How each table is presented."""
_NO_TYPE: Final = "<no type>"
"""Of layers that are named ranges."""


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
    """By `type` of layer; work in no layer, and in layers without a type, has a name in angle brackets."""
    kernels: pl.DataFrame
    """By `name`, `category` and `kind`. Of an operator with several kernels the longest has the figures, over the time of all."""
    model: pl.DataFrame
    """One row, the window: its `name`, `window_ns`, the number of `steps`, and `model_utilisation` (MFU): the matrix FLOPs over
    those of all devices at their peaks in the window, without what activation checkpointing computes again;
    `hardware_utilisation` counts that too. FLOPs without a known peak are left out; null if they take most of the time of matrix FLOPs, or if the FLOPs of half of the
    computation are not known.
    """
    coverage: pl.DataFrame
    """For each `figure` (FLOPs, bytes) the time of the pieces by `source`, of views and operator wrappers, which have none (`no work`),
    and the rest; `share` of the device time.
    """
    unmodelled: pl.DataFrame | None
    """The operators of which neither FLOPs nor bytes are known, and those of which only one is (`bytes: …` and `FLOPs: …` say what
    lacks), with the reason (`analyses.flops.coverage`), the longest first; None with counters."""
    ceilings: pl.DataFrame
    """The peak of each `precision` and `unit` that is used, and the bandwidth of each `level` of memory, with their `source`."""
    flops_share: float | None
    """The share of the device time for which FLOPs are known; without a device, of the time without views and operator wrappers."""
    bytes_share: float | None
    """The same for bytes."""
    efficiency: float | None
    """The least time over the time, of the work whose FLOPs, bytes and ceilings are known; None if that is no more than copies and
    fills, or less than 0.5 % of the time."""
    model_utilisation: float | None
    """That of `model`."""
    wasted_ns: int | None
    """The time beyond the least time; None where `efficiency` is."""


def roofline(scope: Scope | Trace) -> Roofline:
    """The rooflines of the scope's kernels, operators, layers and model.

    >>> import tracekit
    >>> found = roofline(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> found.operators["flops"].sum() == found.layers["flops"].sum() == found.model["flops"].sum() > 0
    True
    """
    return once(scope, _roofline)


def roofline_levels(scope: Scope) -> dict[str, pl.DataFrame]:
    """The pieces by operator, layer, type of layer, kernel, and as one row of the `window`; by operator with the shapes and types of its
    inputs (`shapes`), where these were recorded.
    """
    rows = _with_layers(rated_pieces(scope), scope)
    label = pl.Series("label", [scope.label], dtype=pl.Categorical).new_from_index(0, rows.height)
    rows = rows.with_columns(pl.coalesce("op_id", -1 - pl.col("call")).alias("operator call"), label)
    keys = {
        "operators": ["operator"],
        "layers": ["layer", "type"],
        "types": ["type"],
        "kernels": ["name", "category", "kind"],
        "window": ["label"],
    }
    if "shapes" in scope.trace.meta.captured:
        inputs = scope.trace.host[["shapes", "dtypes"]]
        rows = rows.hstack([at_rows(column, rows["op_id"]) for column in inputs])
        keys["shapes"] = ["operator", "shapes", "dtypes"]
    calls = {"operators": "operator call"}
    found = levels(rows, *((names, calls.get(level, "call")) for level, names in keys.items()))
    tables = dict(zip(keys, found, strict=True))
    return tables | {
        "types": tables["types"].with_columns(pl.col("type").cast(pl.String).fill_null(_NO_TYPE))
    }


def _roofline(scope: Scope) -> Roofline:
    rows, tables = rated_pieces(scope), once(scope, roofline_levels)
    operators, kernels, window = (tables[name] for name in ("operators", "kernels", "window"))
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
    known = coverage(scope) if scope.trace.counters is None else None
    unmodelled, overhead = (None, 0) if known is None else (_not_known(known), known.overhead_ns)
    working = row["device_ns"] - overhead if row["device_ns"] else None
    telling = says_of_whole(row, measured=measured)
    return Roofline(
        answer=answer(scope, row, operators, unmodelled, measured=measured),
        not_captured=None if measured else lacking,
        operators=operators,
        layers=tables["layers"],
        types=tables["types"],
        # Figures stand at the longest kernel over the time of all of its operator, so they have no share of its own.
        kernels=kernels.with_columns(pl.lit(None, pl.Float64).alias("rated_share")),
        model=model,
        coverage=_coverage(rows, overhead),
        unmodelled=unmodelled,
        ceilings=_ceilings(scope, rows),
        flops_share=_share(row["flops_ns"], working) if measured else None,
        bytes_share=_share(row["bytes_ns"], working),
        efficiency=row["efficiency"] if telling else None,
        model_utilisation=row["model_utilisation"],
        wasted_ns=row["wasted_ns"] if telling else None,
    )


def _not_known(known: Coverage) -> pl.DataFrame:
    """What lacks FLOPs or bytes, the longest first, and overhead last."""
    rows = pl.concat([known.unmodelled, known.without_bytes, known.without_flops])
    order = [rows["reason"] == CALLS_OTHERS, "device_ns", "name"]
    return rows.sort(order, descending=[False, True, False])


def _share(part: int | None, total: int | None) -> float | None:
    return (part or 0) / total if total else None


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
    # A lower bound from little of the computation would pass for the utilisation.
    telling = (computing_share(scope) or 0.0) >= TELLING_SHARE
    about = {
        "name": scope.label,
        "window_ns": scope.duration,
        "steps": scope.steps.height if scope.window == "steps" else 0,
        "model_utilisation": matrix_utilisation(scope) if telling else None,
        "hardware_utilisation": matrix_utilisation(scope, again=True) if telling else None,
    }
    kinds = (pl.String, pl.Int64, pl.Int64, pl.Float64, pl.Float64)
    schema = dict(zip(about, kinds, strict=True))
    figures = (
        window if window.height else pl.DataFrame({name: [None] for name in window.columns}, window.schema)
    )
    return pl.DataFrame([about], schema=schema).hstack(figures[list(LEVEL_SCHEMA)])


_NO_WORK: Final = "no work"


def _coverage(rows: pl.DataFrame, overhead: int) -> pl.DataFrame:
    """The table of that name."""
    total = int(rows["duration"].sum())
    found: list[tuple[str, str | None, int, float | None]] = []
    for figure, source in (("FLOPs", "source"), ("bytes", "bytes_source")):
        of, texts = text_codes(rows[source])
        sums = np.zeros(len(texts), dtype=np.int64)
        np.add.at(sums, of, or_none(rows["piece_ns"], 0))
        known: list[tuple[str | None, int]] = [
            (text, ns) for text, ns in zip(texts, sums.tolist(), strict=True) if text is not None
        ]
        known += [(_NO_WORK, overhead)] if overhead else []
        known.sort(key=lambda one: -one[1])
        rest = total - sum(ns for _, ns in known)
        known += [(None, rest)] if rest or not known else []
        found += [(figure, text, ns, ns / total if total else None) for text, ns in known]
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
