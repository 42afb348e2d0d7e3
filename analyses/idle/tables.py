"""The tables of idle time: by cause, place, frame and range, and the longest gaps."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analyses.attribution import Attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.attribution.layer_ranges import counting
from tracekit.analyses.idle.calls import Calls
from tracekit.analyses.scope import Scope
from tracekit.facts.stack_names import NOT_A_LAYER
from tracekit.limits import LONGEST_NAME
from tracekit.range_filter import RangeFilter
from tracekit.spans import BoolArray, nest, take
from tracekit.trace import Schema, Trace, one_of

__all__ = [
    "LISTED_GAPS",
    "by_cause",
    "grouped",
    "longest_gaps",
    "open_frames",
    "open_ranges",
    "pooled",
    "with_names",
    "with_open_share",
]

LISTED_GAPS = 100
"""The number of rows in the tables of longest gaps."""
_PLACED_GAPS = 10
"""The longest gaps, for which the innermost call is looked up."""


def with_names(trace: Trace, owners: Attribution, pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces with the names of their operators, ranges and layers."""
    name, range_id = trace.host["name"], _ranges(trace, owners, pieces)
    return pieces.with_columns(
        range_id,
        name.gather(pieces["op_id"]).alias("operator"),
        owners.layers["path"].gather(pieces["layer_id"]).alias("layer"),
        name.gather(range_id).alias("range"),
    )


def _ranges(trace: Trace, owners: Attribution, pieces: pl.DataFrame) -> pl.Series:
    """`range_id`: the innermost user range around the span that made the device wait, or around the launch if no span
    did; null for none. Unlike a layer, such a range need not launch work. If the trace's `layer_ranges` select ranges,
    it is one of these.
    """
    stack = owners.model.stack
    named = stack.of_kind("annotation") & ~stack.named(NOT_A_LAYER, "annotation")
    if trace.layer_ranges is not None and named.any():
        named = _chosen(stack, named, trace.layer_ranges)
    if not named.any():
        return pl.Series("range_id", [None], dtype=pl.Int64).new_from_index(0, pieces.height)
    launches = trace.device.select(pl.col("activity_id").alias("ended_by"), "launch_id")
    spans = (
        pieces.select("span_id", "ended_by")
        .join(launches, on="ended_by", how="left", maintain_order="left")
        .select(pl.coalesce("span_id", "launch_id").fill_null(-1))
        .to_series()
    )
    around = pl.Series("range_id", take(stack.nesting.nearest_ancestor(named), spans.to_numpy()))
    return around.set(around < 0, None)


def _chosen(stack: HostStack, named: BoolArray, chosen: RangeFilter) -> BoolArray:
    """The user ranges that the flags select."""
    rows = np.flatnonzero(named)
    rows = rows[counting(stack.frame["name", "domain"][rows], chosen)]
    if chosen.depth is not None:
        rows = rows[nest(stack.thread[rows], stack.start[rows], stack.end[rows]).depth() < chosen.depth]
    wanted = np.zeros(named.size, dtype=bool)
    wanted[rows] = True
    return wanted


def pooled(named: pl.DataFrame) -> pl.DataFrame:
    """The pieces with the names of their ranges, without numbers, so that all iterations of a loop are one range."""
    return (
        named.select("range", "cause", "duration_ns")
        .join(open_ranges(named), left_on="range", right_on="name", how="left")
        .select(pl.col("label").alias("range"), "cause", "duration_ns")
    )


def open_ranges(named: pl.DataFrame) -> pl.DataFrame:
    """The names of the ranges of pieces, and the `label` of each: the name, or its pattern if several names have it."""
    names = named.select(pl.col("range").unique().drop_nulls().alias("name"))
    text = pl.col("name").cast(pl.String)
    pooled = text.str.replace_all(r"\d+", "#").str.slice(0, LONGEST_NAME)
    labels = names.with_columns(pooled.alias("label"))
    several = pl.len().over("label") > 1
    return labels.with_columns(pl.when(several).then("label").otherwise(text).alias("label"))


def open_frames(named: pl.DataFrame) -> pl.DataFrame:
    """The names of the frames of pieces, each its own label."""
    frames = named.select(pl.col("frame").unique().drop_nulls().alias("label"))
    return frames.with_columns(pl.col("label").cast(pl.Categorical()).alias("name"))


def with_open_share(scope: Scope, table: pl.DataFrame, labels: pl.DataFrame) -> pl.DataFrame | None:
    """A table by the labels of spans (`name`, `label`), with the part of the window in which one of the spans is open; None without
    a label.
    """
    if not labels.height:
        return None
    end = pl.col("start") + pl.col("duration")
    host = scope.trace.host.select("kind", "name", "start", end.alias("end"))
    host = host.filter(one_of("kind", "python", "annotation"))
    spans = host.join(labels, on="name").select("label", pl.col("start", "end").clip(scope.start, scope.end))
    spans = spans.sort("start").with_columns(pl.col("end").cum_max().shift(1).over("label").alias("before"))
    new = (pl.col("end") - pl.max_horizontal("start", "before")).clip(0)
    opened = spans.group_by("label").agg((new.sum() / scope.duration).alias("open_share"))
    return table.join(opened, left_on=table.columns[0], right_on="label", how="left", maintain_order="left")


def by_cause(scope: Scope, pieces: pl.DataFrame, calls: Calls) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """`IdleTables.by_cause` and `IdleTables.by_call`."""
    rows, parts = [], []
    columns = pieces.select("device_id", "cause", "span_id", "duration_ns", "gap_id")
    for (device, cause), mine in columns.group_by("device_id", "cause"):
        ns = mine["duration_ns"]
        call, several = calls.most(mine["span_id"].fill_null(-1).to_numpy(), ns.to_numpy())
        total = int(ns.sum())
        rows.append((device, cause, total, mine["gap_id"].n_unique(), call))
        parts += [(device, cause, total, part, held, held / total) for part, held in several]
    place: Schema = {"device_id": pl.Int64, "cause": pl.String, "total_ns": pl.Int64}
    order, down = ["device_id", "total_ns", "cause"], [False, True, False]
    table = pl.DataFrame(rows, schema={**place, "gaps": pl.Int64, "call": pl.String}, orient="row")
    window = scope.duration
    share = pl.col("total_ns") / window if window else pl.lit(None, dtype=pl.Float64)
    sums = table.sort(order, descending=down).select(*place, share.alias("share"), "gaps", "call")
    if not parts:
        return sums, None
    held: Schema = {**place, "call": pl.String, "held": pl.Int64, "share": pl.Float64}
    several_ = pl.DataFrame(parts, schema=held, orient="row").sort(
        order, descending=down, maintain_order=True
    )
    return sums, several_.select("device_id", "cause", "call", pl.col("held").alias("total_ns"), "share")


def _calls(pieces: pl.DataFrame, calls: Calls, *by: str) -> pl.DataFrame:
    """The innermost `call` of each group of pieces."""
    rows = []
    for key, mine in pieces.group_by(by):
        spans = mine["span_id"].fill_null(-1).to_numpy()
        rows.append((*key, calls.innermost(spans, mine["duration_ns"].to_numpy())))
    schema: Schema = {**{name: pieces.schema[name] for name in by}, "call": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def grouped(named: pl.DataFrame, by: str) -> pl.DataFrame:
    """Idle time by one column and cause, with the names of the most idle time first."""
    total = int(named["duration_ns"].sum())
    share = pl.col("total_ns") / total if total else pl.lit(None, dtype=pl.Float64)
    return (
        named.group_by(by, "cause")
        .agg(pl.col("duration_ns").sum().alias("total_ns"))
        .with_columns(pl.col(by).cast(pl.String))
        .with_columns(share.alias("share"), pl.col("total_ns").sum().over(by).alias("all_ns"))
        .sort("all_ns", by, "total_ns", "cause", descending=[True, False, True, False], nulls_last=True)
        .select(by, pl.col("cause").cast(pl.String), "total_ns", "share")
    )


def longest_gaps(scope: Scope, gaps: pl.DataFrame, named: pl.DataFrame, calls: Calls) -> pl.DataFrame:
    """The longest gaps, each with its largest cause and the largest piece of that cause."""
    longest = (
        gaps.with_columns((pl.col("end") - pl.col("start")).alias("duration_ns"))
        .sort("duration_ns", "start", "gap_id", descending=[True, False, False])
        .head(LISTED_GAPS)
    )
    pieces = named.join(longest.select("gap_id"), on="gap_id", how="semi").sort(
        "duration_ns", "start", descending=[True, False]
    )
    places = [pl.col(name).first() for name in ("operator", "layer", "frame", "range", "dependency")]
    main = (
        pieces.group_by("gap_id", "cause", maintain_order=True)
        .agg(pl.col("duration_ns").sum().alias("cause_ns"), *places)
        .sort("cause_ns", "cause", descending=[True, False])
        .unique("gap_id", keep="first", maintain_order=True)
    )
    few = longest.head(_PLACED_GAPS).select("gap_id")
    placed = _calls(pieces.join(few, on="gap_id", how="semi"), calls, "gap_id")
    rows = scope.activities if scope.on_cpu else scope.trace.device
    names = rows.select(pl.col("activity_id").alias("ended_by"), "name")
    return (
        longest.join(main, on="gap_id", how="left", maintain_order="left")
        .join(placed, on="gap_id", how="left", maintain_order="left")
        .join(names, on="ended_by", how="left", maintain_order="left")
        .select(
            *("device_id", "stream_id", "start", "duration_ns", pl.col("cause").cast(pl.String), "cause_ns"),
            pl.col("operator").cast(pl.String),
            *("layer", "frame", "call", pl.col("range").cast(pl.String), "dependency"),
            pl.col("name").cast(pl.String),
            pl.col("ended_by").alias("activity_id"),
        )
    )
