"""Nesting of spans on threads: parents, depths, self time, and "which span is open at time t".

All of it works on whole columns. A span is a half-open interval [start, end) on one thread. The *parent* of a
span is the latest-starting other span on its thread that contains it whole; of two equal spans the earlier row
is the outer one. Spans that only overlap partly (programmatic dependent launches, stream-sync rows) are not
each other's ancestors, and nothing is moved or dropped.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit import span_passes as passes
from tracekit.span_passes import PATIENCE, BoolArray, Int64Array, NarrowArray, take

__all__ = [
    "BoolArray",
    "Int64Array",
    "NarrowArray",
    "Nesting",
    "distinct_rows",
    "greatest_before",
    "kept_nesting",
    "narrow",
    "nest",
    "nesting_of",
    "ranges",
    "take",
    "thread_codes",
]

_SPARSE = 8
"""Of one span in so many the ancestors are found from their own side."""


class Nesting(msgspec.Struct, frozen=True, dict=True):
    """The nesting of spans that are sorted by (thread, start, −end); row numbers are span ids.

    `thread` is any integer code per row, `parent` is −1 for a root.
    """

    thread: Int64Array
    start: Int64Array
    end: Int64Array
    parent: NarrowArray

    @property
    def _columns(self) -> passes.Spans:
        return self.thread, self.start, self.end, self.parent

    @cached_property
    def after(self) -> NarrowArray:
        """For each span the row after all that lie in it: those from its own row on, up to this one, are the span and all
        below it.

        >>> nest([1, 1, 1, 2], [0, 1, 5, 0], [9, 4, 8, 3]).after.tolist()
        [3, 2, 3, 4]
        """
        return narrow(passes.after(self.parent), self.parent.size + 1)

    def sums_within(self, values: Int64Array) -> Int64Array:
        """The sums over each span and all that lies in it; `values` has a row for each span, with any number of columns.

        >>> nest([1, 1, 1], [0, 1, 5], [9, 4, 8]).sums_within(np.array([1, 2, 4])).tolist()
        [7, 2, 4]
        """
        until = np.zeros((values.shape[0] + 1, *values.shape[1:]), dtype=np.int64)
        np.cumsum(values, axis=0, out=until[1:])
        return until[self.after] - until[:-1]

    def in_same(self, group: Int64Array) -> BoolArray:
        """Which spans lie in another one of the same group (numbers from 0 on).

        >>> nest([1, 1, 1], [0, 1, 5], [9, 4, 8]).in_same(np.array([3, 3, 0])).tolist()
        [False, True, False]
        """
        order = np.argsort(narrow(group, int(group.max(initial=0)) + 1), kind="stable")
        apart = group[order] * (group.size + 1)
        reach = np.maximum.accumulate(apart + self.after[order])
        inside = np.zeros(group.size, dtype=bool)
        inside[order[1:]] = reach[:-1] > (apart + order)[1:]
        return inside

    def with_ancestors(self, rows: Int64Array) -> Int64Array:
        """These spans and all around them, each once, in order.

        >>> nest([1, 1, 1, 2], [0, 1, 5, 0], [9, 4, 8, 3]).with_ancestors(np.array([2, 2, 3])).tolist()
        [0, 2, 3]
        """
        met = np.zeros(self.parent.size, dtype=bool)
        met[rows] = True
        waiting = np.flatnonzero(met)
        for _ in range(PATIENCE):
            if not waiting.size:
                return np.flatnonzero(met)
            above = self.parent[waiting]
            above = above[above >= 0]
            above = above[~met[above]]
            met[above] = True
            # Of children of one span one is enough.
            waiting = above[np.append(above[1:] != above[:-1], True)] if above.size else above
        before = np.append(0, np.cumsum(met))
        return np.flatnonzero(before[self.after] > before[:-1])

    def depth(self) -> Int64Array:
        """How many ancestors each span has (0 for a root)."""
        return passes.depth(self.parent)

    def self_time(self) -> Int64Array:
        """Each span's duration less the time its children cover, in ns.

        Children that overlap each other partly are counted once per child and the result is kept at zero or
        more, so that one odd pair cannot make a span's own time negative.
        """
        duration = self.end - self.start
        covered = np.zeros(duration.size, dtype=np.int64)
        child = self.parent >= 0
        np.add.at(covered, self.parent[child], duration[child])
        own: Int64Array = np.maximum(duration - covered, 0)
        return own

    def innermost_at(self, thread: npt.ArrayLike, time: npt.ArrayLike) -> Int64Array:
        """The row of the innermost span open at each (thread, time), or −1 when none is.

        Open means start ≤ time < end; a span of length zero is open at its start.
        """
        query_thread = np.asarray(thread, dtype=np.int64)
        query_time = np.asarray(time, dtype=np.int64)
        many = passes.by_numpy() and _SPARSE * self.start.size < query_time.size
        if many and _in_order(query_thread, query_time):
            return self._innermost_of_many(query_thread, query_time)
        return passes.innermost(self._columns, query_thread, query_time)

    def moments(self, thread: int) -> tuple[Int64Array, Int64Array]:
        """The times at which a span of a thread begins or ends, and the row of the innermost one that is open from then on, or −1. Spans
        of no length count as nothing.

        >>> [found.tolist() for found in nest([1, 1, 1, 2], [0, 1, 5, 0], [9, 4, 9, 3]).moments(1)]
        [[0, 1, 4, 5, 9], [0, 1, 0, 2, -1]]
        """
        low, high = np.searchsorted(self.thread, [thread, thread + 1]).tolist()
        return passes.moments(self._columns, low, high)

    def _innermost_of_many(self, query_thread: Int64Array, query_time: Int64Array) -> Int64Array:
        """The same of far more times than there are spans, in order: what is open changes only at the edges of spans."""
        edge = np.concatenate([self.start, np.maximum(self.end, self.start + 1)])
        thread = np.concatenate([self.thread, self.thread])
        order = np.lexsort((edge, thread))
        edge, thread = edge[order], thread[order]
        open_ = self.innermost_at(thread, edge)
        row = np.full(query_time.size, -1, dtype=np.int64)
        for code in np.unique(self.thread).tolist():
            low, high = np.searchsorted(query_thread, [code, code + 1])
            first, last = np.searchsorted(thread, [code, code + 1])
            # Until each edge the one before it holds.
            until = np.searchsorted(query_time[low:high], edge[first:last], side="left")
            lengths = np.diff(until, prepend=0, append=high - low)
            row[low:high] = np.repeat(np.append(-1, open_[first:last]), lengths)
        return row

    def may_overlap(self) -> bool:
        """Whether a span may overlap one partly that began before it; False is certain."""
        return passes.may_overlap(self._columns)

    def nearest_ancestor(self, wanted: npt.NDArray[np.bool_], *, include_self: bool = True) -> Int64Array:
        """For each span, the row of its nearest ancestor for which `wanted` is true, or −1."""
        if not wanted.any():
            return np.full(self.parent.size, -1, dtype=np.int64)
        if passes.by_numpy() and np.count_nonzero(wanted) * _SPARSE < self.parent.size:
            found = self._innermost_of(np.flatnonzero(wanted))
            return found if include_self else take(found, self.parent)
        return passes.nearest(self.parent, wanted, include_self=include_self)

    def _innermost_of(self, rows: Int64Array) -> Int64Array:
        """For each span the innermost of these spans (in order) that is the span itself or lies around it, or −1.

        What lies in one is a range of rows. Where a range begins or ends, another one of the few is the innermost.
        """
        after = self.after[rows]
        around = take(rows, passes.parents(np.zeros(rows.size, dtype=np.int64), after))
        # At one row the inner ranges end before the outer ones, and all of them before another begins.
        edge = np.concatenate([after[::-1], rows])
        order = np.argsort(edge, kind="stable")
        edge, inside = edge[order], np.concatenate([around[::-1], rows])[order]
        lengths = np.diff(edge, prepend=0, append=self.parent.size)
        return np.repeat(np.append(-1, inside), lengths)


def nest(thread: npt.ArrayLike, start: npt.ArrayLike, end: npt.ArrayLike) -> Nesting:
    """The nesting of spans given in the order (thread, start, −end), ties in file order.

    >>> n = nest([1, 1, 1, 2], [0, 1, 5, 0], [9, 4, 8, 3])
    >>> n.parent.tolist(), n.depth().tolist(), n.self_time().tolist()
    ([-1, 0, 0, -1], [0, 1, 1, 0], [3, 3, 3, 3])
    >>> n.innermost_at([1, 1, 2], [2, 4, 7]).tolist()
    [1, 0, -1]

    Raises ValueError when the rows are not in that order.
    """
    thread_code = np.asarray(thread, dtype=np.int64)
    starts = np.asarray(start, dtype=np.int64)
    ends = np.asarray(end, dtype=np.int64)
    same = thread_code[1:] == thread_code[:-1]
    if ((thread_code[1:] < thread_code[:-1]) | (same & (starts[1:] < starts[:-1]))).any():
        raise ValueError("spans must be sorted by (thread, start, -end)")
    return Nesting(thread_code, starts, ends, passes.parents(thread_code, ends))


def nesting_of(host: pl.DataFrame) -> Nesting:
    """The nesting of a host frame that is sorted by process, thread and start; row numbers are span ids."""
    start = host["start"].to_numpy()
    return nest(thread_codes(host), start, start + host["duration"].to_numpy())


def kept_nesting(host: pl.DataFrame) -> Nesting:
    """The nesting that the whole host frame of a `Trace` holds as `parent_id`, without working it out again."""
    start = host["start"].to_numpy()
    parent = narrow(host["parent_id"].fill_null(-1).to_numpy(), host.height)
    return Nesting(thread_codes(host), start, start + host["duration"].to_numpy(), parent)


def thread_codes(host: pl.DataFrame) -> Int64Array:
    """A number per (process, thread), rising with the order of the sorted frame."""
    process, thread = host["process_id"].to_numpy(), host["thread_id"].to_numpy()
    change = np.ones(host.height, dtype=np.int64)
    if host.height:
        change[1:] = (process[1:] != process[:-1]) | (thread[1:] != thread[:-1])
    return np.cumsum(change)


def narrow(rows: Int64Array, size: int) -> NarrowArray:
    """Numbers from −1 to below `size` in as few bits as hold them, for what is kept long; `take` gives them back in 64.

    >>> narrow(np.array([7, -1]), 100).dtype
    dtype('int8')
    """
    narrowed: NarrowArray = rows.astype(np.min_scalar_type(-max(size, 1)))
    return narrowed


def distinct_rows(rows: Int64Array, size: int) -> tuple[Int64Array, Int64Array]:
    """The rows of a frame of this size that occur (−1 stands for none), in order, and where each lies among them.

    >>> distinct, back = distinct_rows(np.array([3, -1, 3]), 5)
    >>> distinct.tolist(), back.tolist()
    ([-1, 3], [1, 0, 1])
    """
    occurs = np.zeros(size + 1, dtype=bool)
    occurs[rows + 1] = True
    return np.flatnonzero(occurs) - 1, (np.cumsum(occurs) - 1)[rows + 1]


def greatest_before(values: Int64Array, first: Int64Array, none: int) -> Int64Array:
    """For each row the greatest value before it in its group, `none` for the first one. `first` has the first row of each group.

    >>> greatest_before(np.array([5, 3, 9, 1, 2]), np.array([0, 3]), -1).tolist()
    [-1, 5, 5, -1, 1]
    """
    found = np.full(values.size, none, dtype=np.int64)
    for low, high in pairwise([*first.tolist(), values.size]):
        np.maximum.accumulate(values[low : high - 1], out=found[low + 1 : high])
    return found


def ranges(first: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Each i, repeated counts[i] times, and beside it the numbers first[i] … first[i] + counts[i] − 1.

    >>> [found.tolist() for found in ranges(np.array([7, 3]), np.array([1, 2]))]
    [[0, 1, 1], [7, 3, 4]]
    """
    which = np.repeat(np.arange(first.size), counts)
    before = np.cumsum(counts) - counts
    return which, np.repeat(first - before, counts) + np.arange(which.size)


def _in_order(thread: Int64Array, time: Int64Array) -> bool:
    same = thread[1:] == thread[:-1]
    return bool(((thread[1:] > thread[:-1]) | (same & (time[1:] >= time[:-1]))).all())
