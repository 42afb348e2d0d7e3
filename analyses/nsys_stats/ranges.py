"""Ranges on the host: the rows of `nvtx_sum`, `nvtx_pushpop_sum` and `nvtx_startend_sum`, and `nvtx_pushpop_trace`.

Which spans are ranges, and what lies in what, is defined in `range_rows`. Chosen where NVIDIA's guide is silent:
the time of a range is its whole duration, with the ranges inside; the name is `domain:name`, without what `emit_nvtx`
adds to it for each call (`seq = …`), so that calls of one operator are one row; `DurChild` adds up the
ranges directly inside, so that `DurNonChild` is the range's own time; marks have no duration, and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit.analyses.nsys_stats.range_rows import (
    Ranges,
    nested,
    on_clock,
    range_name,
    range_stacks,
    unnested,
)
from tracekit.analyses.nsys_stats.table import Rows
from tracekit.trace import Trace

__all__ = ["all_ranges", "nvtx_pushpop_trace", "pushpop_ranges", "startend_ranges"]


def all_ranges(traces: Sequence[Trace]) -> Rows:
    """Ranges of both styles."""
    return _stacked([*_pushpop(traces), *_startend(traces)])


def pushpop_ranges(traces: Sequence[Trace]) -> Rows:
    """Push/pop ranges."""
    return _stacked(_pushpop(traces))


def startend_ranges(traces: Sequence[Trace]) -> Rows:
    """Start/end ranges."""
    return _stacked(_startend(traces))


def nvtx_pushpop_trace(traces: Sequence[Trace]) -> Rows:
    """Every push/pop range, by start, with its place among the others."""
    frames = [
        _traced(on_clock(traces, part, found.frame), found) for part, found in enumerate(_pushpop(traces))
    ]
    return Rows(pl.concat(frames).sort("Start (ns)", "RangeId"))


def _pushpop(traces: Sequence[Trace]) -> list[Ranges]:
    return [nested(traces, part) for part in range(len(traces))]


def _startend(traces: Sequence[Trace]) -> list[Ranges]:
    return [unnested(traces, part) for part in range(len(traces))]


def _stacked(ranges: Sequence[Ranges]) -> Rows:
    frames = [
        one.frame.select("domain", "name", "duration", pl.lit(one.style).alias("Style")) for one in ranges
    ]
    return Rows(pl.concat(frames))


def _traced(frame: pl.DataFrame, ranges: Ranges) -> pl.DataFrame:
    duration = frame["duration"].to_numpy()
    inside = np.zeros(duration.size, dtype=np.int64)
    has_parent = ranges.parent >= 0
    np.add.at(inside, ranges.parent[has_parent], duration[has_parent])
    named = frame.with_columns(range_name(), pl.Series("Lvl", ranges.level))
    dashes = pl.lit("--").repeat_by(pl.col("Lvl").clip(upper_bound=64)).list.join("")
    return named.select(
        pl.col("start").alias("Start (ns)"),
        (pl.col("start") + pl.col("duration")).alias("End (ns)"),
        pl.col("duration").alias("Duration (ns)"),
        pl.Series("DurChild (ns)", inside),
        pl.Series("DurNonChild (ns)", duration - inside),
        pl.col("Range").alias("Name"),
        pl.col("process_id").alias("PID"),
        pl.col("thread_id").alias("TID"),
        "Lvl",
        pl.Series("NumChild", ranges.children),
        pl.Series("RangeId", ranges.number),
        ranges.parent_number.alias("ParentId"),
        range_stacks(ranges).alias("RangeStack"),
        (dashes + pl.col("Range")).alias("NameTree"),
    )
