"""Every collective and every point-to-point call: what it moves, among which ranks, when, and how fast (DEFINITIONS §8)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution.attribute import attributed, attribution
from tracekit.analyses.flops import json_list
from tracekit.analyses.result import Result, TableView
from tracekit.analyses.scope import Scope, launch_times, once
from tracekit.facts.collectives import ELEMENT_BYTES, algorithm_of, bus_factor, collective_name, protocol_of
from tracekit.facts.stack_names import COLLECTIVE_RANGE
from tracekit.facts.units import format_bytes, format_count, format_ns
from tracekit.spans import Int64Array, take
from tracekit.trace import COLLECTIVE_SCHEMA, Schema, Trace, empty

__all__ = ["CALLS", "TABLES", "Collectives", "collectives"]

CALLS: Final[Schema] = {
    "name": pl.String,
    "group": pl.String,
    "group_size": pl.Int64,
    "group_ranks": pl.String,
    "sequence": pl.Int64,
    "dtype": pl.String,
    "elements_in": pl.Int64,
    "elements_out": pl.Int64,
    "bytes": pl.Int64,
    "bus_bytes": pl.Float64,
    "algorithm": pl.String,
    "protocol": pl.String,
    "device_id": pl.Int64,
    "stream_id": pl.Int64,
    "step": pl.Int64,
    "phase": pl.String,
    "layer": pl.String,
    "launched": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "duration_ns": pl.Int64,
    "exposed_ns": pl.Int64,
    "kernels": pl.Int64,
}
"""Columns of `Collectives.calls`."""

TABLES: Final = {
    "by_size": TableView(
        "By group and size",
        "name group group_size bytes dtype count total_ns exposed_ns min_ns median_ns max_ns algorithm_gbps bus_gbps",
        short="name group_size bytes count total_ns exposed_ns min_ns bus_gbps",
        titles={"min_ns": "shortest", "algorithm_gbps": "algorithm bandwidth", "bus_gbps": "bus bandwidth"},
        main=True,
    ),
    "calls": TableView(
        "Every call",
        " ".join(CALLS),
        short="name start duration_ns exposed_ns bytes group_size",
        hidden="group_ranks bus_bytes",
        titles={"duration_ns": "duration", "launched": "launched at"},
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Collectives(Result):
    """The calls of a scope, and what equal ones have in common."""

    calls: pl.DataFrame
    """One row per call by start, with the columns of `CALLS`; times are ns from the trace's origin.

    `name` is that of `facts.collectives`. `elements_in`, `elements_out` and `dtype` are this rank's; `bytes` is the size of the
    call as nccl-tests count it: of an all-gather what a rank has afterwards, of a reduce-scatter what it had, else what it
    puts in. `bus_bytes` is what the links carry for each rank: `bytes` times the factor of nccl-tests, of an uneven all-to-all
    what this rank sends to or receives from the others, whichever is more. `launched` is the start of the launch on the host,
    `exposed_ns` the time in which nothing computed on the same device, `kernels` how many activities the call has. What was not
    recorded is null. Without a device, a call is a range of the CPU backend (`gloo:…`).
    """
    by_size: pl.DataFrame
    """One row per `name`, `group`, `group_size`, `bytes` and `dtype`. The bandwidths are those of the shortest call, which waited least:
    `algorithm_gbps` = bytes / time, `bus_gbps` = bus bytes / time, in 10⁹ bytes a second; null without sizes.
    """


def collectives(scope: Scope | Trace) -> Collectives:
    """The collectives and point-to-point calls of the scope.

    >>> import tracekit
    >>> result = collectives(tracekit.read("sample_traces/bert_cpu_ddp/trace-rank0.json.gz"))
    >>> result.calls["name", "bytes"].unique().sort("bytes").rows()
    [('broadcast', 1024), ('all_reduce', 153608)]
    """
    return once(scope, _collectives)


def _collectives(scope: Scope) -> Collectives:
    calls = _calls(scope)
    none = f"no communication ran {'' if scope.on_cpu else 'on a device '}in this window"
    return Collectives(
        answer=_answer(calls) if calls.height else f"{none.capitalize()}.",
        calls=calls,
        by_size=_by_size(calls),
        not_captured=None if calls.height else none,
    )


def _calls(scope: Scope) -> pl.DataFrame:
    work = _work(scope)
    if not work.height:
        return empty(CALLS)
    rows = (
        work.group_by("call", maintain_order=True)
        .agg(
            pl.col("name").cast(pl.String).first().alias("kernel"),
            *(pl.col(name).first() for name in ("record", "span", "device_id", "stream_id", "step", "phase")),
            pl.col("layer").cast(pl.String).first(),
            pl.col("launched").min(),
            pl.col("start").min(),
            pl.col("end").max(),
            pl.col("exposed").sum().alias("exposed_ns"),
            pl.len().cast(pl.Int64).alias("kernels"),
        )
        .sort("start", "end", maintain_order=True)
    )
    rows = _recorded(scope, rows)
    names = [_name(*texts) for texts in rows.select("record_name", "span_name", "kernel").rows()]
    rows = rows.with_columns(
        pl.Series("name", names, dtype=pl.String),
        _per_text(rows["kernel"], algorithm_of).alias("algorithm"),
        _per_text(rows["kernel"], protocol_of).alias("protocol"),
        (pl.col("end") - pl.col("start")).alias("duration_ns"),
    )
    return _sized(rows, scope.trace.meta.rank).select(
        pl.col(name).cast(dtype) for name, dtype in CALLS.items()
    )


def _work(scope: Scope) -> pl.DataFrame:
    """The communication of the scope by start. `call` is equal for the activities of one call; `record` and `span` (−1 for none) are
    the spans of the host that say more of it: the record of PyTorch, and the range of the backend.
    """
    rows = attributed(scope).with_columns(pl.Series("launched", launch_times(scope.trace, scope.activities)))
    rows = rows.filter(pl.col("class") == "communication")
    if not rows.height:
        return rows
    span = _backend_ranges(scope, rows)
    if scope.on_cpu and (span >= 0).any():  # the operators of these collectives only queue them
        rows, span = rows.filter(pl.Series(span >= 0)), span[span >= 0]
    known = scope.trace.collectives
    recorded = empty(COLLECTIVE_SCHEMA)["span_id"] if known is None else known["span_id"].drop_nulls()
    op = rows["op_id"].fill_null(-1)
    record = np.where(op.is_in(recorded.unique().implode()).to_numpy(), op.to_numpy(), -1)
    alone = -2 - rows["activity_id"].to_numpy()
    call = np.where(record >= 0, record, np.where(span >= 0, span, alone))
    layers = attribution(scope).layers.select(pl.col("layer_id"), pl.col("path").alias("layer"))
    return (
        rows.with_columns(
            pl.Series("record", record),
            pl.Series("span", span),
            pl.Series("call", call),
            _exposed(scope, rows),
        )
        .drop("layer", strict=False)
        .join(layers, on="layer_id", how="left", maintain_order="left")
        .sort("start", "end", maintain_order=True)
    )


def _backend_ranges(scope: Scope, rows: pl.DataFrame) -> Int64Array:
    """The nearest range of PyTorch's backend around the launch of each activity, −1 for none."""
    stack = attribution(scope).model.stack
    anchor = rows.select(pl.coalesce("launch_id", "op_id").fill_null(-1)).to_series().to_numpy()
    return take(stack.nesting.nearest_ancestor(stack.named(COLLECTIVE_RANGE, "annotation", "op")), anchor)


def _exposed(scope: Scope, rows: pl.DataFrame) -> pl.Series:
    """The time of each activity in which nothing computes on its device, in ns."""
    exposed = rows["duration"].to_numpy().copy()
    device = rows["device_id"].to_numpy()
    for one in scope.device_ids:
        mine = device == one
        starts, ends = rows["start"].to_numpy()[mine], rows["end"].to_numpy()[mine]
        exposed[mine] -= scope.intervals(one, "compute").coverage(starts, ends)
    return pl.Series("exposed", exposed)


def _recorded(scope: Scope, rows: pl.DataFrame) -> pl.DataFrame:
    """With what PyTorch or NCCL recorded of each call, else with the shapes of the backend's range."""
    known = scope.trace.collectives if scope.trace.collectives is not None else empty(COLLECTIVE_SCHEMA)
    columns = ("group", "group_size", "group_ranks", "sequence", "dtype", "elements_in", "elements_out")
    records = known.unique("span_id", keep="last").select(
        pl.col("span_id").alias("record"), pl.col("name").cast(pl.String).alias("record_name"), *columns, "split_in", "split_out"
    )  # fmt: skip
    spans = scope.trace.host.select(
        pl.col("span_id").alias("span"),
        pl.col("name").cast(pl.String).alias("span_name"),
        pl.col("shapes").cast(pl.String),
        pl.col("dtypes").cast(pl.String),
    ).filter(pl.col("span").is_in(rows["span"].unique().implode()))
    joined = rows.join(records, on="record", how="left", maintain_order="left")
    joined = joined.join(spans, on="span", how="left", maintain_order="left")
    elements, dtypes = [], []
    for shapes, types in joined.select("shapes", "dtypes").rows():
        elements.append(_elements(shapes))
        first = next(iter(json_list(types)), None)
        dtypes.append(first if isinstance(first, str) and first in ELEMENT_BYTES else None)
    return joined.with_columns(
        pl.coalesce("elements_in", pl.Series(elements, dtype=pl.Int64)).alias("elements_in"),
        pl.coalesce(pl.col("dtype").cast(pl.String), pl.Series(dtypes, dtype=pl.String)).alias("dtype"),
    )


def _elements(shapes: str | None) -> int | None:
    """The number of elements of the first tensors in the shapes of a range; None if there are none."""
    first = next((each for each in json_list(shapes) if each), None)
    if not isinstance(first, list):
        return None
    tensors = first if isinstance(first[0], list) else [first]
    if not all(isinstance(size, int) for tensor in tensors for size in tensor):
        return None
    return sum(prod(tensor) for tensor in tensors)


def _name(record: str | None, span: str | None, kernel: str) -> str:
    return next(
        (name for text in (record, span, kernel) if text and (name := collective_name(text))), "other"
    )


def _per_text(texts: pl.Series, function: object) -> pl.Series:
    return texts.map_elements(function, return_dtype=pl.String)  # type: ignore[arg-type]


# -- sizes ------------------------------------------------------------------------------------------


def _sized(rows: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """With `bytes` and `bus_bytes`."""
    item = pl.col("dtype").cast(pl.String).replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    gathered = pl.coalesce("elements_out", pl.col("elements_in") * pl.col("group_size"))
    elements = pl.when(pl.col("name") == "all_gather").then(gathered).otherwise("elements_in")
    moves = pl.col("name") != "barrier"
    rows = rows.with_columns(
        pl.when(moves & (elements > 0)).then(elements * item).alias("bytes"), item.alias("item")
    )
    needed = (
        "name",
        "group_size",
        "bytes",
        "group_ranks",
        "split_in",
        "split_out",
        "elements_in",
        "elements_out",
        "item",
    )
    carried = [_carried(row, rank) for row in rows.select(needed).iter_rows(named=True)]
    return rows.with_columns(pl.Series("bus_bytes", carried, dtype=pl.Float64))


def _carried(row: dict[str, object], rank: int | None) -> float | None:
    """The bytes that the links carry for this rank in a call; None if its size or its group is unknown."""
    size, ranks = row["bytes"], row["group_size"]
    if not isinstance(size, int) or not isinstance(ranks, int):
        return None
    uneven = (
        [
            _to_others(row[f"split_{way}"], row[f"elements_{way}"], row["group_ranks"], rank)
            for way in ("in", "out")
        ]
        if row["name"] == "all_to_all"
        else []
    )
    known = [elements for elements in uneven if elements is not None]
    if known:
        return max(known) * row["item"]  # type: ignore[operator]
    factor = bus_factor(str(row["name"]), ranks)
    return None if factor is None else size * factor


def _to_others(split: object, elements: object, group: object, rank: int | None) -> float | None:
    """The elements that do not stay on this rank, by the parts into which it splits them (rows, each of the same size)."""
    parts, members = json_list(split), json_list(group)  # type: ignore[arg-type]
    if not parts or rank not in members or len(parts) != len(members) or not isinstance(elements, int):
        return None
    whole = sum(parts)
    return elements * (whole - parts[members.index(rank)]) / whole if whole else 0.0


def _by_size(calls: pl.DataFrame) -> pl.DataFrame:
    time = pl.col("duration_ns")
    shortest = pl.when(time.min() > 0).then(time.min())
    return (
        calls.group_by("name", "group", "group_size", "bytes", "dtype")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            time.sum().alias("total_ns"),
            pl.col("exposed_ns").sum(),
            time.min().alias("min_ns"),
            time.median().alias("median_ns"),
            time.max().alias("max_ns"),
            (pl.col("bytes").first() / shortest).alias("algorithm_gbps"),
            (pl.col("bus_bytes").filter(time == time.min()).first() / shortest).alias("bus_gbps"),
        )
        .sort("total_ns", "name", "bytes", descending=[True, False, False])
    )


def _answer(calls: pl.DataFrame) -> str:
    total, exposed = int(calls["duration_ns"].sum()), int(calls["exposed_ns"].sum())
    sizes = calls["bytes"].drop_nulls()
    moved = f" move {format_bytes(int(sizes.sum()))}" if sizes.len() == calls.height else ""
    count = format_count(calls.height)
    return (
        f"{count} calls{moved} in {format_ns(total)}; for {format_ns(exposed)} of it nothing else computes."
    )
