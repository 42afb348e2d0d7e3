"""The ranges of a trace: those that nest on a thread (push/pop), and those that need not (start/end).

Push/pop ranges are the host spans that NVTX would record: steps, annotations (`record_function`), layers, and
operators, which `emit_nvtx` turns into ranges; not calls of cuBLAS, cuDNN and MPI that nsys traced without NVTX. A range's level and children come from what contains what on its
thread, whatever the domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.nsys_stats.rows import clock_shift
from tracekit.readers import format_named
from tracekit.spans import Int64Array, Nesting, nesting_of, take
from tracekit.trace import RANGE_SCHEMA, Trace, empty, one_of

__all__ = [
    "DEEPEST_STACK",
    "RANGE_KINDS",
    "Ranges",
    "first_numbers",
    "is_range",
    "nested",
    "on_clock",
    "range_name",
    "range_stacks",
    "unnested",
]

RANGE_KINDS: Final = ("step", "annotation", "module", "op")
"""The kinds of host spans that are ranges."""
DEEPEST_STACK: Final = 64
"""Below this level no text of the ranges around is made: its length would grow with the square of the depth."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges of one trace, those of a thread by their start: `frame` has `name`, `domain`, `process_id`, `thread_id`,
    `start` and `duration` (ns, the trace's own clock).

    `parent` is the row of the range directly around each, −1 for none, `level` how many are around it, and `number`
    the RangeId. `style` is that of all of them, `PushPop` or `StartEnd`.
    """

    style: str
    frame: pl.DataFrame
    parent: Int64Array
    level: Int64Array
    number: Int64Array

    @property
    def children(self) -> Int64Array:
        """How many ranges lie directly in each."""
        inner = self.parent[self.parent >= 0]
        return np.bincount(inner, minlength=self.parent.size).astype(np.int64)

    @property
    def parent_number(self) -> pl.Series:
        """The RangeId of the range around each, null for none."""
        found = pl.Series(take(self.number, self.parent))
        return pl.select(pl.when(found >= 0).then(found)).to_series()


def is_range(trace: Trace) -> pl.Series:
    """Which host spans are push/pop ranges. Calls of libraries that the profiler itself traced are none."""
    wanted = trace.host.select(one_of("kind", *RANGE_KINDS)).to_series()
    pattern = format_named(trace.meta.format).call_names
    if pattern is None:
        return wanted
    known = trace.host.select("name", "domain").unique()
    calls = known.filter(pl.col("domain").is_null() & pl.col("name").cast(pl.String).str.contains(pattern))
    if not calls.height:
        return wanted
    found = trace.host.select("name", "domain").join(
        calls.with_columns(pl.lit(value=True).alias("call")),
        on=["name", "domain"],
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )
    return wanted & found["call"].is_null()


def first_numbers(traces: Sequence[Trace]) -> list[tuple[int, int]]:
    """For each trace the RangeId of its first push/pop range and that of its first start/end range."""
    numbers, free = [], 1
    for trace in traces:
        inside = int(is_range(trace).sum())
        numbers.append((free, free + inside))
        free += inside + (0 if trace.ranges is None else trace.ranges.height)
    return numbers


def nested(traces: Sequence[Trace], part: int) -> Ranges:
    """The push/pop ranges of one of the traces."""
    host = traces[part].host
    wanted = is_range(traces[part])
    mask = wanted.to_numpy()
    rows = np.flatnonzero(mask)
    place = np.full(mask.size, -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    above = nesting_of(host).nearest_ancestor(mask, include_self=False)[rows] if mask.size else rows
    parent = take(place, above)
    frame = host.filter(wanted).select("name", "domain", "process_id", "thread_id", "start", "duration")
    start = frame["start"].to_numpy()
    thread = np.zeros(start.size, dtype=np.int64)
    level = Nesting(thread, start, start + frame["duration"].to_numpy(), parent).depth()
    number = first_numbers(traces)[part][0] + np.arange(rows.size, dtype=np.int64)
    return Ranges("PushPop", frame, parent, level, number)


def unnested(traces: Sequence[Trace], part: int, *, one_thread: bool = False) -> Ranges:
    """The start/end ranges of one of the traces; none when they were not recorded.

    With `one_thread` only those that end on the thread on which they began.
    """
    recorded = traces[part].ranges
    if recorded is None:
        recorded = empty(RANGE_SCHEMA)
    first = first_numbers(traces)[part][1]
    numbered = recorded.with_columns(pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("number"))
    rows = numbered.filter((pl.col("kind") == "start_end") & pl.col("duration").is_not_null())
    if one_thread:
        rows = rows.filter(pl.col("thread_id") == pl.col("end_thread_id"))
    rows = rows.sort("process_id", "thread_id", "start", maintain_order=True)
    frame = rows.select("name", "domain", "process_id", "thread_id", "start", "duration")
    none = np.full(rows.height, -1, dtype=np.int64)
    return Ranges("StartEnd", frame, none, np.zeros_like(none), rows["number"].to_numpy())


def range_name() -> pl.Expr:
    """`domain:name`, as `nsys stats` prints it; nothing stands before the colon in the default domain.

    >>> pl.DataFrame({"domain": ["NCCL", None], "name": ["ncclAllReduce", "step"]}).select(range_name()).to_series().to_list()
    ['NCCL:ncclAllReduce', ':step']
    """
    domain = pl.col("domain").cast(pl.String).fill_null("")
    return (domain + pl.lit(":") + pl.col("name").cast(pl.String)).alias("Range")


def range_stacks(ranges: Ranges) -> pl.Series:
    """The RangeIds around each range and its own, each after a colon; null below `DEEPEST_STACK`.

    One round per level, each on whole columns.
    """
    made = pl.Series(ranges.number).cast(pl.String)
    own = (":" + made).alias("stack")
    deepest = min(int(ranges.level.max(initial=0)), DEEPEST_STACK)
    for level in range(1, deepest + 1):
        rows = pl.Series(np.flatnonzero(ranges.level == level), dtype=pl.UInt32)
        around = own.gather(pl.Series(ranges.parent).gather(rows))
        own = own.scatter(rows, around + own.gather(rows))
    shallow = pl.Series(ranges.level <= DEEPEST_STACK)
    return pl.select(pl.when(shallow).then(own)).to_series()


def on_clock(traces: Sequence[Trace], part: int, frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with its starts on the clock of the reports."""
    return frame.with_columns(pl.col("start") + clock_shift(traces, part))
