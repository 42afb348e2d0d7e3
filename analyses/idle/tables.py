"""The tables of idle time: by cause, place, frame and range, and the longest gaps."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import Attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.attribution.layer_ranges import counting
from tracekit.analyses.idle.calls import Calls
from tracekit.analyses.idle.span_causes import open_before, without_line
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import CAUSES
from tracekit.facts.stack_names import NOT_A_LAYER
from tracekit.groups import (
    any_known,
    at_rows,
    distinct,
    falling,
    groups,
    none_to_null,
    or_none,
    runs,
    text_codes,
    with_series,
)
from tracekit.limits import LONGEST_NAME
from tracekit.range_filter import RangeFilter
from tracekit.spans import BoolArray, Int64Array, nest, take
from tracekit.trace import Schema, Trace, one_of

__all__ = [
    "LISTED_GAPS",
    "by_cause",
    "grouped",
    "longest_gaps",
    "longest_rows",
    "open_frames",
    "open_ranges",
    "with_names",
    "with_open_share",
]

LISTED_GAPS = 100
"""The number of rows in the tables of longest gaps."""
_PLACED_GAPS = 10
"""The longest gaps, for which the innermost call is looked up."""
_NUMBER: Final = re.compile(r"\d+")


def with_names(trace: Trace, owners: Attribution, pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces with the names of their operators, ranges and layers."""
    name, range_id = trace.host["name"], _ranges(trace, owners, pieces)
    named = {
        "range_id": range_id,
        "operator": at_rows(name, pieces["op_id"]),
        "layer": at_rows(owners.layers["path"].cast(pl.Categorical), pieces["layer_id"]),
        "range": at_rows(name, range_id),
    }
    return pieces.hstack([column.alias(title) for title, column in named.items()])


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
    spans = or_none(pieces["span_id"])
    if trace.device.height:
        spans = np.where(
            spans >= 0, spans, take(or_none(trace.device["launch_id"]), or_none(pieces["ended_by"]))
        )
    around = take(stack.nesting.nearest_ancestor(named), spans)
    return none_to_null(around)


def _chosen(stack: HostStack, named: BoolArray, chosen: RangeFilter) -> BoolArray:
    """The user ranges that the flags select."""
    rows = np.flatnonzero(named)
    rows = rows[counting(stack.frame["name", "domain"][rows], chosen)]
    if chosen.depth is not None:
        rows = rows[nest(stack.thread[rows], stack.start[rows], stack.end[rows]).depth() < chosen.depth]
    wanted = np.zeros(named.size, dtype=bool)
    wanted[rows] = True
    return wanted


def open_ranges(named: pl.DataFrame) -> pl.DataFrame:
    """The names of the ranges of pieces, and the `label` of each: the name, or its pattern if several names have it."""
    names = distinct(named["range"])
    texts = names.cast(pl.String).to_list()
    patterns = [_NUMBER.sub("#", text)[:LONGEST_NAME] for text in texts]
    several = {pattern for pattern, count in Counter(patterns).items() if count > 1}
    labels = [pattern if pattern in several else text for text, pattern in zip(texts, patterns, strict=True)]
    return pl.DataFrame({"name": names, "label": pl.Series(labels, dtype=pl.String)})


def open_frames(stack: HostStack, named: pl.DataFrame) -> pl.DataFrame:
    """The names of the frames of pieces, each its own label; of those that were open before the recording without the line."""
    if not any_known(named["frame"]):
        return pl.DataFrame(schema={"label": pl.String, "name": pl.Categorical})
    frames = distinct(named["frame"]).cast(pl.String)
    before = distinct(stack.frame["name"].filter(pl.Series(open_before(stack)))).cast(pl.String)
    longer = pl.DataFrame({"label": without_line(before), "name": before})
    names = pl.concat([pl.DataFrame({"label": frames, "name": frames}), longer])
    return names.filter(pl.col("label").is_in(frames.implode())).cast({"name": pl.Categorical})


def with_open_share(scope: Scope, table: pl.DataFrame, labels: pl.DataFrame) -> pl.DataFrame:
    """A table by the labels of spans (`name`, `label`), with the part of the window in which one of the spans is open."""
    end = pl.col("start") + pl.col("duration")
    before = pl.col("end").cum_max().shift(1).over("label")
    new = (pl.col("end") - pl.max_horizontal("start", "before")).clip(0)
    opened = (
        scope.trace.host.lazy()
        .filter(one_of("kind", "python", "annotation"))
        .select("name", "start", end.alias("end"))
        .join(labels.lazy(), on="name")
        .select("label", pl.col("start", "end").clip(scope.start, scope.end))
        .sort("start")
        .with_columns(before.alias("before"))
        .group_by("label")
        .agg((new.sum() / scope.duration).alias("open_share"))
        .collect()
    )
    shares = dict(opened.rows())
    of_labels = [shares.get(label) for label in table.to_series().to_list()]
    return with_series(table, pl.Series("open_share", of_labels, dtype=pl.Float64))


def by_cause(scope: Scope, pieces: pl.DataFrame, calls: Calls) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """`IdleTables.by_cause` and `IdleTables.by_call`."""
    rows, parts = [], []
    ns, gap = (pieces[name].to_numpy() for name in ("duration_ns", "gap_id"))
    found = groups(pieces["device_id"].to_numpy(), pieces["cause"].to_physical().to_numpy())
    for device, cause, mine in zip(*(key.tolist() for key in found.keys), found.rows(), strict=True):
        call, several = calls.most(calls.given[mine], ns[mine])
        total = int(ns[mine].sum())
        rows.append((device, CAUSES[cause], total, runs(gap[mine]).size, call))
        parts += [(device, CAUSES[cause], total, part, held, held / total) for part, held in several]
    place: Schema = {"device_id": pl.Int64, "cause": pl.String, "total_ns": pl.Int64}
    window = scope.duration
    rows.sort(key=lambda row: (row[0], -row[2], row[1]))
    parts.sort(key=lambda row: (row[0], -row[2], row[1]))
    sums = pl.DataFrame(
        [(*row[:3], row[2] / window if window else None, *row[3:]) for row in rows],
        schema={**place, "share": pl.Float64, "gaps": pl.Int64, "call": pl.String},
        orient="row",
    )
    if not parts:
        return sums, None
    held: Schema = {**place, "call": pl.String, "held": pl.Int64, "share": pl.Float64}
    several_ = pl.DataFrame(parts, schema=held, orient="row")
    return sums, several_.select("device_id", "cause", "call", pl.col("held").alias("total_ns"), "share")


def grouped(named: pl.DataFrame, by: str, labels: pl.DataFrame | None = None) -> pl.DataFrame:
    """Idle time by one column, or the `label` of its names, and cause, with the names of the most idle time first."""
    ns = named["duration_ns"].to_numpy()
    total = int(ns.sum())
    place, texts = text_codes(named[by])
    if labels is not None:
        label_of = dict(zip(labels["name"].cast(pl.String), labels["label"], strict=True))
        number = {label: at for at, label in enumerate(dict.fromkeys(label_of.get(text) for text in texts))}
        place = np.array([number[label_of.get(text)] for text in texts], dtype=np.int64)[place]
        texts = list(number)
    found = groups(place, named["cause"].to_physical().to_numpy())
    sums = found.sums(ns)
    of_place = np.bincount(found.keys[0], weights=sums, minlength=len(texts)).tolist()
    rows = [
        (texts[place], CAUSES[cause], each, each / total if total else None, of_place[place])
        for place, cause, each in zip(*(key.tolist() for key in found.keys), sums.tolist(), strict=True)
    ]
    rows.sort(key=lambda row: (-row[4], row[0] is None, row[0] or "", -row[2], CAUSES.index(row[1])))
    schema: Schema = {by: pl.String, "cause": pl.String, "total_ns": pl.Int64, "share": pl.Float64}
    return pl.DataFrame([row[:4] for row in rows], schema=schema, orient="row")


def longest_gaps(scope: Scope, gaps: pl.DataFrame, named: pl.DataFrame, calls: Calls) -> pl.DataFrame:
    """The longest gaps, each with its largest cause and the largest piece of that cause."""
    start, length = gaps["start"].to_numpy(), (gaps["end"] - gaps["start"]).to_numpy()
    longest = longest_rows(length, start)  # gaps are numbered by their row
    rank = np.full(gaps.height, -1, dtype=np.int64)
    rank[longest] = np.arange(longest.size)
    gap, ns = rank[named["gap_id"].to_numpy()], named["duration_ns"].to_numpy()
    rows = np.flatnonzero(gap >= 0)
    rows = rows[falling(-ns[rows], named["start"].to_numpy()[rows])]
    gap, ns, cause = gap[rows], ns[rows], named["cause"].to_physical().to_numpy()[rows]
    by_cause_ = groups(gap, cause)
    held = by_cause_.sums(ns)
    # Of each gap the cause with the most time, and of that the longest piece.
    order = falling(by_cause_.keys[0], -held, by_cause_.keys[1])
    main = order[groups(by_cause_.keys[0][order]).first]
    chosen = np.full(longest.size, -1, dtype=np.int64)
    chosen[by_cause_.keys[0][main]] = rows[by_cause_.first[main]]
    largest = none_to_null(chosen)
    placed = [
        calls.innermost(calls.given[rows[gap == each]], ns[gap == each])
        for each in range(min(longest.size, _PLACED_GAPS))
    ]
    few = gaps[longest]
    activities = scope.activities if scope.on_cpu else scope.trace.device
    cause_ns = np.full(longest.size, -1, dtype=np.int64)
    cause_ns[by_cause_.keys[0][main]] = held[main]

    def of_largest(name: str) -> pl.Series:
        return at_rows(named[name], largest)

    return pl.DataFrame(
        {
            "device_id": few["device_id"],
            "stream_id": few["stream_id"],
            "start": few["start"],
            "duration_ns": length[longest],
            "cause": of_largest("cause").cast(pl.String),
            "cause_ns": none_to_null(cause_ns),
            "operator": of_largest("operator").cast(pl.String),
            "layer": of_largest("layer").cast(pl.String),
            "frame": of_largest("frame").cast(pl.String),
            "call": pl.Series([*placed, *[None] * (longest.size - len(placed))], dtype=pl.String),
            "range": of_largest("range").cast(pl.String),
            "dependency": of_largest("dependency").cast(pl.String),
            "name": _names_of(activities, few["ended_by"]),
            "activity_id": few["ended_by"],
        }
    )


def longest_rows(length: Int64Array, start: Int64Array) -> Int64Array:
    """The rows of the `LISTED_GAPS` longest, those that begin first before others of their length."""
    least = np.partition(length, -LISTED_GAPS)[-LISTED_GAPS] if length.size > LISTED_GAPS else 0
    few = np.flatnonzero(length >= least)
    return few[falling(-length[few], start[few])[:LISTED_GAPS]]


def _names_of(activities: pl.DataFrame, ids: pl.Series) -> pl.Series:
    """The names of a few activities, null where there is none."""
    rows = np.flatnonzero(np.isin(activities["activity_id"].to_numpy(), or_none(ids)))
    few = activities["activity_id", "name"][rows]
    names = dict(zip(few["activity_id"], few["name"].cast(pl.String), strict=True))
    return pl.Series([names.get(each) for each in ids], dtype=pl.String)
