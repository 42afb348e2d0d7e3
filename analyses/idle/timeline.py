"""What each host thread did, moment by moment: every ns belongs to the innermost span that is open in it.

Of spans that overlap without one containing the other the innermost is the one that started last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tracekit.spans import Int64Array, nest, take

__all__ = ["Pieces", "Timeline", "timeline"]

_EARLIEST = np.iinfo(np.int64).min // 2
_LATEST = np.iinfo(np.int64).max // 2
_PORTION = 1 << 18
"""Spans whose edges are sorted at once."""


class _Spans(Protocol):
    """Spans by thread and start: those of a `HostStack`, or calls that are no spans of the host frame."""

    @property
    def thread(self) -> Int64Array:
        """The number of each span's thread."""

    @property
    def start(self) -> Int64Array:
        """Each span's start in ns."""

    @property
    def end(self) -> Int64Array:
        """Each span's end in ns."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Parts of asked intervals: the number of the interval, start and end in ns, and the span (−1 for none)."""

    interval: Int64Array
    start: Int64Array
    end: Int64Array
    span: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Pieces of threads, by thread and time; on each thread they cover all time, without overlap."""

    thread: Int64Array
    start: Int64Array
    end: Int64Array
    span: Int64Array

    def split(self, thread: Int64Array, start: Int64Array, end: Int64Array) -> Pieces:
        """The pieces of the intervals [start[i], end[i]) of threads, in the order of the intervals.

        They sum to the intervals exactly. The timeline must know the threads.
        """
        first, last = np.zeros(start.size, dtype=np.int64), np.zeros(start.size, dtype=np.int64)
        order = np.argsort(thread, kind="stable")
        asked, begins = np.unique(thread[order], return_index=True)
        for code, rows in zip(asked.tolist(), np.split(order, begins[1:]), strict=False):
            low, high = np.searchsorted(self.thread, [code, code + 1])
            first[rows] = low + np.searchsorted(self.end[low:high], start[rows], side="right")
            last[rows] = low + np.searchsorted(self.start[low:high], end[rows], side="left")
        counts = np.where(end > start, last - first, 0)
        interval = np.repeat(np.arange(start.size), counts)
        before = np.cumsum(counts) - counts
        piece = np.repeat(first - before, counts) + np.arange(interval.size)
        return Pieces(
            interval,
            np.maximum(self.start[piece], start[interval]),
            np.minimum(self.end[piece], end[interval]),
            self.span[piece],
        )


def timeline(stack: _Spans, threads: Int64Array) -> Timeline:
    """The timeline of these threads (codes of the stack). Spans of no length own no time."""
    # Some threads after the others, since the arrays of all edges are the largest that there are.
    parts = [_of_threads(stack, codes) for codes in _portions(stack, np.unique(threads))]
    columns = [np.concatenate([np.zeros(0, dtype=np.int64), *column]) for column in zip(*parts, strict=True)]
    return Timeline(*columns) if parts else Timeline(*([np.zeros(0, dtype=np.int64)] * 4))


def _portions(stack: _Spans, codes: Int64Array) -> list[Int64Array]:
    """The threads in portions of about as many spans, of one thread at least."""
    sizes = np.searchsorted(stack.thread, codes + 1) - np.searchsorted(stack.thread, codes)
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // _PORTION)) + 1
    return [portion for portion in np.split(codes, cuts) if portion.size]


def _of_threads(stack: _Spans, codes: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """The columns of a `Timeline` of these threads, which are in order."""
    low, high = np.searchsorted(stack.thread, [codes[0], codes[-1] + 1])
    rows = low + np.flatnonzero(
        (stack.end[low:high] > stack.start[low:high]) & np.isin(stack.thread[low:high], codes)
    )
    nesting = nest(stack.thread[rows], stack.start[rows], stack.end[rows])
    of_edge = np.concatenate([nesting.thread, nesting.thread, codes, codes])
    ends = np.repeat([_EARLIEST, _LATEST], codes.size)
    edge = np.concatenate([nesting.start, nesting.end, ends])
    order = np.lexsort((edge, of_edge))
    of_edge, edge = of_edge[order], edge[order]
    # Each edge begins a piece that the next one ends; of equal edges the last, of a thread all but the last.
    begins = np.flatnonzero((of_edge[1:] == of_edge[:-1]) & (edge[1:] > edge[:-1]))
    thread, start, end = of_edge[begins], edge[begins], edge[begins + 1]
    return thread, start, end, take(rows, nesting.innermost_at(thread, start))
