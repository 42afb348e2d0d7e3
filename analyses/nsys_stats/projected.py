"""Which device work was launched in which range, without a row per pair.

The calls that launched work are sorted by thread and start, as host spans are. The work of a range is then a slice
of them: from the first call that begins in the range to the last one that ends in it, on the range's thread. Sums over a
slice are differences of prefix sums; the earliest start and the latest end come from tables of the extremes of
1, 2, 4, … neighbours, of which one is held at a time. So the cost does not grow with the depth of the ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.nsys_stats.range_rows import Ranges
from tracekit.spans import Int64Array
from tracekit.trace import Trace, one_of

__all__ = ["Launched", "Slices", "launched", "pairs_of", "slice_extremes", "slices_of"]

_PATIENCE: Final = 64
"""Calls at the end of a slice that are looked at; on one thread at most one can reach over the end of a range."""


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """Device work by its launch: `rows` has `name`, `start` and `duration` of each activity, in the order of the calls.

    `process`, `thread`, `start` and `end` are of the calls that launched something, `first` is the place in `rows` of the first
    activity of each, and has one entry more, the end.
    """

    rows: pl.DataFrame
    process: Int64Array
    thread: Int64Array
    start: Int64Array
    end: Int64Array
    first: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """For each range the rows of `Launched` from `low` to before `high`; as many when there are none."""

    low: Int64Array
    high: Int64Array


def launched(trace: Trace, *kinds: str) -> Launched:
    """The activities of these kinds (of all, when none is named) whose launch was recorded."""
    device = trace.device.filter(one_of("kind", *kinds)) if kinds else trace.device
    rows = device.filter(pl.col("launch_id").is_not_null()).select("name", "start", "duration", "launch_id")
    rows = rows.sort("launch_id", "start", maintain_order=True)
    launch = rows["launch_id"].to_numpy()
    calls, first = np.unique(launch, return_index=True)
    host = trace.host.select("process_id", "thread_id", "start", "duration")[calls]
    start = host["start"].to_numpy()
    return Launched(
        rows.drop("launch_id"),
        host["process_id"].to_numpy(),
        host["thread_id"].to_numpy(),
        start,
        start + host["duration"].to_numpy(),
        np.append(first, launch.size).astype(np.int64),
    )


def slices_of(ranges: Ranges, work: Launched) -> Slices:
    """Which work was launched in each range: on its process and thread, by calls that begin and end in it."""
    frame = ranges.frame
    process, thread = frame["process_id"].to_numpy(), frame["thread_id"].to_numpy()
    start = frame["start"].to_numpy()
    end = start + frame["duration"].to_numpy()
    low, high = np.zeros(start.size, dtype=np.int64), np.zeros(start.size, dtype=np.int64)
    for mine, begin, stop in _threads(process, thread, work):
        called = work.start[begin:stop]
        low[mine] = begin + np.searchsorted(called, start[mine], side="left")
        high[mine] = begin + np.searchsorted(called, end[mine], side="right")
    high = np.maximum(high, low)
    for _ in range(_PATIENCE):
        over = np.flatnonzero(high > low)
        over = over[work.end[high[over] - 1] > end[over]]
        if not over.size:
            break
        high[over] -= 1
    return Slices(work.first[low], work.first[high])


def _threads(
    process: Int64Array, thread: Int64Array, work: Launched
) -> Iterator[tuple[Int64Array, int, int]]:
    """For each thread that launched work and has ranges: the rows of its ranges, and its part of the calls."""
    order = np.lexsort((thread, process))
    edges = np.flatnonzero((np.diff(process[order]) != 0) | (np.diff(thread[order]) != 0)) + 1
    groups = np.split(order, edges) if order.size else []
    changes = np.flatnonzero((np.diff(work.process) != 0) | (np.diff(work.thread) != 0)) + 1
    begins = np.append(0, changes) if work.process.size else changes
    stops = np.append(changes, work.process.size)
    at = {
        (int(work.process[begin]), int(work.thread[begin])): (int(begin), int(stop))
        for begin, stop in zip(begins, stops, strict=False)
    }
    for rows in groups:
        found = at.get((int(process[rows[0]]), int(thread[rows[0]])))
        if found is not None:
            yield rows, *found


def slice_extremes(
    values: Int64Array, slices: Slices, pick: Callable[[Int64Array, Int64Array], Int64Array]
) -> Int64Array:
    """The least (`np.minimum`) or greatest (`np.maximum`) value of each slice; none of them may be empty.

    >>> found = slice_extremes(np.array([5, 3, 8, 1]), Slices(np.array([0, 1, 2]), np.array([4, 3, 3])), np.minimum)
    >>> found.tolist()
    [1, 3, 8]
    """
    found = np.empty(slices.low.size, dtype=np.int64)
    if not found.size:
        return found
    # The exponent of a float is exact for lengths below 2^53.
    level = np.frexp((slices.high - slices.low).astype(np.float64))[1] - 1
    table, width = values, 1
    for height in range(int(level.max()) + 1):
        if height:
            table, width = pick(table[:-width], table[width:]), 2 * width
        mine = np.flatnonzero(level == height)
        # Two overlapping stretches of 2^height values cover the slice.
        found[mine] = pick(table[slices.low[mine]], table[slices.high[mine] - width])
    return found


def pairs_of(slices: Slices) -> tuple[Int64Array, Int64Array]:
    """A row for each range and each activity in it: the number of the range, and the row of the activity.

    >>> [part.tolist() for part in pairs_of(Slices(np.array([0, 2, 1]), np.array([2, 2, 3])))]
    [[0, 0, 2, 2], [0, 1, 1, 2]]
    """
    length = slices.high - slices.low
    owner = np.repeat(np.arange(length.size, dtype=np.int64), length)
    before = np.cumsum(length) - length
    return owner, np.arange(owner.size, dtype=np.int64) - np.repeat(before - slices.low, length)
