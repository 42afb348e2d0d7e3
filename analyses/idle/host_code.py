"""What the host did while the device was idle and no recorded call was open: calls of the OS, and sampled functions.

Each ns of idle time with the cause `python` or `host_code` belongs to the innermost OS runtime call that was open on
the thread that launched next, or to none. A sample belongs to this time if it was taken in it, on that thread. Only
running threads are sampled, so samples say nothing about waits of the thread.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.facts.idle_names import CAUSES
from tracekit.facts.program_names import TEXT_FUNCTION, UNNAMED_FUNCTION
from tracekit.groups import at_rows, or_none
from tracekit.intervals import IntervalSet
from tracekit.limits import LONGEST_NAME
from tracekit.spans import Int64Array, Nesting, nest, take
from tracekit.trace import Trace

__all__ = [
    "HOST_CODE",
    "Pieces",
    "Timeline",
    "by_function",
    "by_os_call",
    "formats_text",
    "host_code",
    "sampled_most",
    "timeline",
]

HOST_CODE: Final = ("python", "host_code")
"""The causes of idle time in which no recorded call was open."""

LEAST_SAMPLES: Final = 20
"""Fewer samples give no reliable share."""


def host_code(trace: Trace, pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces of idle time in which the host ran code outside recorded calls: `process_id`, `thread_id` (the thread
    that launched the activity at the end of the gap), `start`, `end`.
    """
    start, ns = pieces["start"].to_numpy(), pieces["duration_ns"].to_numpy()
    wanted = np.isin(
        pieces["cause"].to_physical().to_numpy(), [CAUSES.index(cause) for cause in HOST_CODE]
    ) & (ns > 0)
    ended = or_none(pieces["ended_by"])
    launch = take(or_none(trace.device["launch_id"]), np.where(wanted, ended, -1))
    rows = np.flatnonzero(launch >= 0)
    threads = trace.host["process_id", "thread_id"][launch[rows]]
    return threads.with_columns(pl.Series("start", start[rows]), pl.Series("end", (start + ns)[rows]))


def by_os_call(trace: Trace, waits: pl.DataFrame) -> pl.DataFrame | None:
    """The time of `waits` (of `host_code`) by the call of the OS that was open: `os_call` (null: none), `total_ns`,
    `share`, `calls`. None where no such calls were recorded, or there are no waits.
    """
    if trace.os_calls is None or not waits.height:
        return None
    keys = ["process_id", "thread_id"]
    numbered = waits.select(keys).unique().sort(keys).with_row_index("code")
    intervals = waits.join(numbered, on=keys, how="inner", nulls_equal=True)
    calls = (
        trace.os_calls.filter(pl.col("duration") > 0)
        .join(numbered, on=keys, how="inner", nulls_equal=True)
        .sort("code", "start", "duration", descending=[False, False, True])
    )
    total = int((waits["end"] - waits["start"]).sum())
    by_call = _split(intervals, calls)
    rest = pl.DataFrame(
        {"os_call": [None], "total_ns": [total - int(by_call["total_ns"].sum())], "calls": [None]},
        schema=by_call.schema,
    )
    return (
        pl.concat([by_call, rest])
        .with_columns((pl.col("total_ns") / total).alias("share"))
        .sort("total_ns", "os_call", descending=[True, False])
        .select("os_call", "total_ns", "share", "calls")
    )


def _split(intervals: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The time inside calls: `os_call`, `total_ns`, `calls`."""
    code = intervals["code"].to_numpy().astype(np.int64)
    start = calls["start"].to_numpy()
    line = nest(calls["code"].to_numpy(), start, start + calls["duration"].to_numpy())
    pieces = timeline(line, code).split(code, intervals["start"].to_numpy(), intervals["end"].to_numpy())
    inside = pieces.span >= 0
    rows = pl.DataFrame(
        {
            "os_call": at_rows(calls["name"].cast(pl.String), pieces.span[inside]),
            "ns": (pieces.end - pieces.start)[inside],
            "call": pieces.span[inside],
        }
    )
    return rows.group_by("os_call").agg(
        pl.col("ns").sum().alias("total_ns"), pl.col("call").n_unique().cast(pl.Int64).alias("calls")
    )


def by_function(trace: Trace, waits: pl.DataFrame) -> pl.DataFrame | None:
    """Samples that were taken in `waits`, by the function that ran: `function`, `samples`, `share`.

    It is the innermost one; null where it has no symbol. None where no such sample was recorded.
    """
    if trace.samples is None or not waits.height:
        return None
    parts = [trace.samples.clear()]
    for (process, thread), mine in waits.group_by("process_id", "thread_id", maintain_order=True):
        own = trace.samples.filter(
            pl.col("process_id").eq_missing(process) & pl.col("thread_id").eq_missing(thread)
        )
        region = IntervalSet.of(mine["start"].to_numpy(), mine["end"].to_numpy())
        parts.append(own.filter(pl.Series(region.contains(own["start"].to_numpy()), dtype=pl.Boolean)))
    inside = pl.concat(parts)
    if not inside.height:
        return None
    function = pl.col("stack").cast(pl.String).str.split(";").list.last()
    named = pl.when(~function.str.contains(UNNAMED_FUNCTION)).then(function.str.slice(0, LONGEST_NAME))
    return (
        inside.group_by("stack")
        .agg(pl.len().cast(pl.Int64).alias("samples"))
        .group_by(named.alias("function"))
        .agg(pl.col("samples").sum())
        .with_columns((pl.col("samples") / inside.height).alias("share"))
        .sort("samples", "function", descending=[True, False], nulls_last=True)
    )


def sampled_most(functions: pl.DataFrame | None) -> tuple[str, float, int] | None:
    """The function of `by_function` with the most samples, its share of the samples, and their number; None if there
    are too few, or none has a symbol.
    """
    if functions is None or int(functions["samples"].sum()) < LEAST_SAMPLES:
        return None
    named = functions.drop_nulls("function")
    if not named.height:
        return None
    return named["function"][0], float(named["share"][0]), int(functions["samples"].sum())


def formats_text(functions: pl.DataFrame | None) -> str | None:
    """The largest function of `by_function` that formats text, if such functions have half of the samples with a name, and enough
    samples were taken; else None.
    """
    if functions is None or sampled_most(functions) is None:
        return None
    named = functions.drop_nulls("function")
    text = named.filter(pl.col("function").str.contains(TEXT_FUNCTION))
    return text["function"][0] if 2 * text["samples"].sum() >= named["samples"].sum() else None


# -- what each thread did, moment by moment ---------------------------------------------------------
#
# What each host thread did, moment by moment: every ns belongs to the innermost span that is open in it.
#
# Of spans that overlap without one containing the other the innermost is the one that started last.

_EARLIEST = np.iinfo(np.int64).min // 2


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """Parts of intervals, one interval after the other: how many each has, start and end in ns, and the span (−1 for none)."""

    counts: Int64Array
    start: Int64Array
    end: Int64Array
    span: Int64Array

    @property
    def interval(self) -> Int64Array:
        """The number of the interval of each."""
        return np.repeat(np.arange(self.counts.size), self.counts)


class Timeline(msgspec.Struct, frozen=True, eq=False):
    """Pieces of threads, by thread and time; on each thread they cover all time, so each ends where the next one begins. `first` has the
    number of the first piece of each of the `threads`, and the number of pieces.
    """

    threads: Int64Array
    first: Int64Array
    start: Int64Array
    span: Int64Array

    def split(self, thread: Int64Array, start: Int64Array, end: Int64Array) -> Pieces:
        """The pieces of the intervals [start[i], end[i]) of threads, in the order of the intervals.

        They sum to the intervals exactly. The timeline must know the threads.
        """
        first, counts = np.zeros(start.size, dtype=np.int64), np.zeros(start.size, dtype=np.int64)
        order = np.argsort(thread, kind="stable")
        threads, begins = np.unique(thread[order], return_index=True)
        for code, rows in zip(threads.tolist(), np.split(order, begins[1:]), strict=False):
            at = int(np.searchsorted(self.threads, code))
            low, high = int(self.first[at]), int(self.first[at + 1])
            first[rows] = low - 1 + np.searchsorted(self.start[low:high], start[rows], side="right")
            counts[rows] = low + np.searchsorted(self.start[low:high], end[rows], side="left") - first[rows]
        counts[end <= start] = 0
        some = np.flatnonzero(counts)
        after = np.cumsum(counts)
        piece = np.repeat(first - after + counts, counts) + np.arange(after[-1] if after.size else 0)
        span, begin = self.span[piece], self.start[piece]
        del piece  # of a large trace each of these is among the largest arrays that there are
        begin[(after - counts)[some]] = start[some]
        until = np.empty_like(begin)
        until[:-1] = begin[1:]
        until[after[some] - 1] = end[some]
        return Pieces(counts, begin, until, span)


def timeline(nesting: Nesting, threads: Int64Array) -> Timeline:
    """The timeline of these threads of the spans. Spans of no length own no time."""
    codes = np.unique(threads)
    first, starts, spans = [0], [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for code in codes.tolist():
        times, found = nesting.moments(code)
        starts += [np.array([_EARLIEST]), times]  # before its first span none is open
        spans += [np.array([-1]), found]
        first.append(first[-1] + 1 + times.size)
    return Timeline(codes, np.array(first), np.concatenate(starts), np.concatenate(spans))
