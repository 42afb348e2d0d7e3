"""The ranges of a trace: push/pop ranges, which nest on a thread, and start/end ranges, which need not nest: the rows of
`nvtx_sum`, `nvtx_pushpop_sum` and `nvtx_startend_sum`, and `nvtx_pushpop_trace`.

Push/pop ranges are the host spans that NVTX would record: steps, annotations (`record_function`), layers, and
operators, which `emit_nvtx` turns into ranges; not calls of cuBLAS, cuDNN and MPI that nsys traced without NVTX. A range's
level and children follow from the nesting on its thread, for ranges of all domains together.

NVIDIA's guide does not define some details. Here the time of a range is its whole duration, with the ranges inside. The name
is `domain:name` without the parts that `emit_nvtx` adds for each call (`seq = …`), so that calls of one operator are one row.
`DurChild` sums the ranges directly inside, so that `DurNonChild` is the range's own time. Marks have no duration and are
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.nsys_stats.rows import Rows, stacked
from tracekit.groups import at_rows
from tracekit.name_table import NameTable
from tracekit.readers import format_named
from tracekit.spans import Nesting, nesting_of, take
from tracekit.trace import RANGE_SCHEMA, Trace, empty, one_of

__all__ = [
    "DEEPEST_STACK",
    "all_ranges",
    "is_range",
    "nested",
    "nvtx_pushpop_trace",
    "pushpop_ranges",
    "range_name",
    "range_stacks",
    "startend_ranges",
    "unnested",
]

_RANGE_KINDS: Final = ("step", "annotation", "module", "op")
"""The kinds of host spans that are ranges."""
DEEPEST_STACK: Final = 64
"""Below this level there is no text of the ranges around: its length would grow with the square of the depth."""
_COLUMNS: Final = ("name", "domain", "process_id", "thread_id", "start", "duration")


def all_ranges(traces: Sequence[Trace]) -> Rows:
    """Ranges of both styles."""
    return Rows(pl.concat([*nested(traces), *unnested(traces)], how="diagonal"))


def pushpop_ranges(traces: Sequence[Trace]) -> Rows:
    """Push/pop ranges."""
    return Rows(pl.concat(nested(traces)))


def startend_ranges(traces: Sequence[Trace]) -> Rows:
    """Start/end ranges."""
    return Rows(pl.concat(unnested(traces)))


def nvtx_pushpop_trace(traces: Sequence[Trace]) -> Rows:
    """Every push/pop range, with its position in the nesting."""
    frame = stacked(traces, map(_with_stacks, nested(traces)))
    return Rows(frame.with_columns((pl.col("start") + pl.col("duration")).alias("End (ns)")))


def _with_stacks(ranges: pl.DataFrame) -> pl.DataFrame:
    duration, parent = ranges["duration"].to_numpy(), ranges["parent"].to_numpy()
    inside = np.zeros(duration.size, dtype=np.int64)
    np.add.at(inside, parent[parent >= 0], duration[parent >= 0])
    dashes = pl.lit("--").repeat_by(pl.col("Lvl").clip(upper_bound=DEEPEST_STACK)).list.join("")
    return ranges.with_columns(
        pl.Series("DurChild (ns)", inside),
        pl.Series("DurNonChild (ns)", duration - inside),
        range_name().alias("Name"),
        range_stacks(ranges).alias("RangeStack"),
        (dashes + range_name()).alias("NameTree"),
    )


def is_range(trace: Trace) -> pl.Series:
    """True for host spans that are push/pop ranges, which excludes library calls that the profiler itself traced."""
    ranges = trace.host.select(one_of("kind", *_RANGE_KINDS)).to_series()
    pattern = format_named(trace.meta.format).call_names
    if pattern is None:
        return ranges
    calls = pl.Series(NameTable(trace.host["name"]).matching(pattern), dtype=pl.Boolean)
    return ranges & ~(calls & trace.host["domain"].is_null())


def nested(traces: Sequence[Trace]) -> list[pl.DataFrame]:
    """The push/pop ranges of each trace, for each thread sorted by start: `name`, `domain`, `process_id`, `thread_id`,
    `start` and `duration` (ns, the trace's own clock), and NVIDIA's `Style`, `Lvl`, `NumChild`, `RangeId` and `ParentId`.

    `parent` is the row of the range directly around each, −1 for none.
    """
    return [_nested(trace, number) for trace, (number, _) in zip(traces, _first_numbers(traces), strict=True)]


def _nested(trace: Trace, first_number: int) -> pl.DataFrame:
    inside = is_range(trace).to_numpy()
    rows = np.flatnonzero(inside)
    place = np.full(inside.size, -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    above = nesting_of(trace.host).nearest_ancestor(inside, include_self=False)[rows] if inside.size else rows
    parent = take(place, above)
    return (
        trace.host.select(_COLUMNS)
        .filter(inside)
        .with_columns(
            pl.lit("PushPop").alias("Style"),
            pl.Series("parent", parent),
            pl.Series("Lvl", Nesting(parent, parent, parent, parent).depth()),
            pl.Series("NumChild", np.bincount(parent[parent >= 0], minlength=rows.size), dtype=pl.Int64),
            pl.int_range(first_number, first_number + pl.len(), dtype=pl.Int64).alias("RangeId"),
        )
        .with_columns(pl.when(pl.col("parent") >= 0).then(first_number + pl.col("parent")).alias("ParentId"))
    )


def unnested(traces: Sequence[Trace], *, one_thread: bool = False) -> list[pl.DataFrame]:
    """The start/end ranges of each trace, with the columns of push/pop ranges; no rows if they were not recorded.

    With `one_thread`, only ranges that end on the thread on which they began.
    """
    numbers = _first_numbers(traces)
    return [_unnested(trace, number, one_thread) for trace, (_, number) in zip(traces, numbers, strict=True)]


def _unnested(trace: Trace, first_number: int, one_thread: bool) -> pl.DataFrame:
    recorded = empty(RANGE_SCHEMA) if trace.ranges is None else trace.ranges
    complete = (pl.col("kind") == "start_end") & pl.col("duration").is_not_null()
    if one_thread:
        complete &= pl.col("thread_id") == pl.col("end_thread_id")
    return (
        recorded.with_columns(
            pl.int_range(first_number, first_number + pl.len(), dtype=pl.Int64).alias("RangeId")
        )
        .filter(complete)
        .sort("process_id", "thread_id", "start", maintain_order=True)
        .select(
            *_COLUMNS,
            pl.lit("StartEnd").alias("Style"),
            pl.lit(-1, pl.Int64).alias("parent"),
            *(pl.lit(0, pl.Int64).alias(name) for name in ("Lvl", "NumChild")),
            "RangeId",
            pl.lit(None, pl.Int64).alias("ParentId"),
        )
    )


def _first_numbers(traces: Sequence[Trace]) -> list[tuple[int, int]]:
    """For each trace, the RangeIds of its first push/pop range and of its first start/end range."""
    numbers, free = [], 1
    for trace in traces:
        inside = int(is_range(trace).sum())
        numbers.append((free, free + inside))
        free += inside + (0 if trace.ranges is None else trace.ranges.height)
    return numbers


def range_name() -> pl.Expr:
    """`domain:name`, as `nsys stats` prints it; the default domain has no text before the colon.

    >>> pl.DataFrame({"domain": ["NCCL", None], "name": ["ncclAllReduce", "step"]}).select(range_name()).to_series().to_list()
    ['NCCL:ncclAllReduce', ':step']
    """
    domain = pl.col("domain").cast(pl.String).fill_null("")
    return (domain + pl.lit(":") + pl.col("name").cast(pl.String)).alias("Range")


def range_stacks(ranges: pl.DataFrame) -> pl.Series:
    """The RangeIds around each range and its own, each after a colon; null below `DEEPEST_STACK`.

    One round per level, each on whole columns.
    """
    own = ":" + ranges["RangeId"].cast(pl.String)
    level = ranges["Lvl"].to_numpy()
    for depth in range(1, min(int(level.max(initial=0)), DEEPEST_STACK) + 1):
        rows = pl.Series(np.flatnonzero(level == depth), dtype=pl.UInt32)
        own = own.scatter(rows, at_rows(own, at_rows(ranges["parent"], rows)) + at_rows(own, rows))
    return pl.select(pl.when(ranges["Lvl"] <= DEEPEST_STACK).then(own)).to_series()
