"""Passes over the rows of nested spans (see `spans.Nesting`): natively where that was built, else by NumPy with the same answers.

Rows rise from parents to children, so natively one pass is enough, where NumPy jumps along pointers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit._native import nesting as native

__all__ = [
    "PATIENCE",
    "BoolArray",
    "Int64Array",
    "NarrowArray",
    "Spans",
    "address",
    "after",
    "by_numpy",
    "depth",
    "innermost",
    "may_overlap",
    "moments",
    "native",
    "nearest",
    "parents",
    "sums_of_paths",
    "take",
    "whole",
]

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
NarrowArray = npt.NDArray[np.signedinteger[Any]]
"""Numbers in as few bits as hold them."""
Spans = tuple[Int64Array, Int64Array, Int64Array, NarrowArray]
"""Thread, start, end and parent of spans."""

PATIENCE = 64
"""Levels that are walked one by one, which is fast for traces of real programs; beyond it a search that has no worst case."""


def by_numpy() -> bool:
    """Whether the native passes are not there."""
    return native is None


def address(array: npt.NDArray[Any]) -> int:
    """The address of an array for a native pass, which takes rows one behind the other."""
    if not array.flags.c_contiguous:
        raise ValueError("an array with gaps")
    return int(array.ctypes.data)


def whole(values: npt.NDArray[Any]) -> Int64Array:
    """Numbers of 64 bits, one behind the other."""
    return np.ascontiguousarray(values, dtype=np.int64)


def _rows(values: NarrowArray) -> NarrowArray:
    """Signed numbers of 8, 16, 32 or 64 bits, one behind the other."""
    signed = values if values.dtype.kind == "i" and values.dtype.isnative else values.astype(np.int64)
    return np.ascontiguousarray(signed)


def parents(thread: Int64Array, end: Int64Array) -> Int64Array:
    """The previous row on the same thread whose end is not smaller: the innermost container.

    >>> parents(np.array([1, 1, 1, 2]), np.array([9, 4, 8, 3])).tolist()
    [-1, 0, 0, -1]
    """
    if native is None:
        return _parents(thread, end)
    thread, end = whole(thread), whole(end)
    if thread.size != end.size:
        raise ValueError("arrays of different lengths")
    found = np.empty(end.size, dtype=np.int64)
    native.parents(address(thread), address(end), end.size, address(found))
    return found


def after(parent: NarrowArray) -> Int64Array:
    """For each row the first one behind all that lies in it.

    >>> after(np.array([-1, 0, 0, -1])).tolist()
    [3, 2, 3, 4]
    """
    return _after(parent) if native is None else _along(native.after, parent)


def depth(parent: NarrowArray) -> Int64Array:
    """For each row how many lie around it.

    >>> depth(np.array([-1, 0, 1, -1])).tolist()
    [0, 1, 2, 0]
    """
    return _depth(parent) if native is None else _along(native.depth, parent)


def _along(native_pass: Any, parent: NarrowArray, *more: int) -> Int64Array:
    parent = _rows(parent)
    found = np.empty(parent.size, dtype=np.int64)
    if parent.size:
        native_pass(address(parent), parent.itemsize, parent.size, *more, address(found))
    return found


def nearest(parent: NarrowArray, wanted: BoolArray, *, include_self: bool = True) -> Int64Array:
    """For each row itself if it is wanted (and counts), else the nearest wanted one around it, or −1.

    >>> nearest(np.array([-1, 0, 1, -1]), np.array([True, False, False, False])).tolist()
    [0, 0, 0, -1]
    """
    if native is None:
        found = _nearest(parent, wanted)
        return found if include_self else take(found, parent)
    flags = np.ascontiguousarray(wanted, dtype=np.bool_)
    if flags.size != parent.size:
        raise ValueError("arrays of different lengths")
    return _along(native.nearest, parent, address(flags), include_self)


def _arrays(spans: Spans) -> Spans:
    thread, start, end, parent = *map(whole, spans[:3]), _rows(spans[3])
    if not thread.size == start.size == end.size == parent.size:
        raise ValueError("arrays of different lengths")
    return thread, start, end, parent


def innermost(spans: Spans, thread: Int64Array, time: Int64Array) -> Int64Array:
    """For each (thread, time) the row of the innermost of these spans that is open then, or −1."""
    if native is None:
        row, pending = _innermost(spans, thread, time)
    else:
        span_thread, start, end, parent = _arrays(spans)
        thread, time = whole(thread), whole(time)
        if thread.size != time.size:
            raise ValueError("arrays of different lengths")
        row = np.empty(time.size, dtype=np.int64)
        places = (
            address(parent),
            parent.itemsize,
            start.size,
            address(thread),
            address(time),
            time.size,
            address(row),
            PATIENCE,
        )
        native.innermost(address(span_thread), address(start), address(end), *places)
        pending = np.flatnonzero(row < -1)
        row[pending] = -2 - row[pending]
    if pending.size:
        last = _last_reaching(spans[2], row[pending] + 1, time[pending] + 1)
        row[pending] = np.where(take(spans[0], last) == thread[pending], last, -1)
    return row


def may_overlap(spans: Spans) -> bool:
    """Whether a span may overlap one partly that began before it; False is certain.

    All that lies between a span and its parent has ended when the span begins, where none does.
    """
    if native is None:
        return _may_overlap(spans)
    thread, start, end, parent = _arrays(spans)
    found: bool = native.overlap(
        address(thread), address(start), address(end), address(parent), parent.itemsize, parent.size
    )
    return found


def moments(spans: Spans, low: int, high: int) -> tuple[Int64Array, Int64Array]:
    """The times at which one of the rows from `low` to `high`, those of one thread, begins or ends, and the innermost that is open from
    then on, or −1. Spans of no length count as nothing.
    """
    thread, start, end, parent = _arrays(spans)
    if not 0 <= low <= high <= parent.size:
        raise ValueError("rows that are not there")
    lasting = low + np.flatnonzero(end[low:high] > start[low:high])
    ends = np.sort(end[lasting], kind="stable")  # in order nearly: so it takes a tenth of the time
    if native is None:
        times = np.sort(np.concatenate([start[lasting], ends]), kind="stable")
        times = times[np.append(True, times[1:] > times[:-1])[: times.size]]
        number = np.full(parent.size + 1, -1, dtype=np.int64)
        number[lasting] = np.arange(lasting.size)
        alone = thread[lasting], start[lasting], end[lasting], number[parent[lasting]]
        return times, take(lasting, innermost(alone, np.repeat(thread[low : low + 1], times.size), times))
    times, found = np.empty(2 * ends.size, dtype=np.int64), np.empty(2 * ends.size, dtype=np.int64)
    rows = address(start), address(end), address(parent), parent.itemsize, parent.size
    count = native.moments(*rows, low, high, address(ends), ends.size, address(times), address(found))
    return times[:count], found[:count]


def take(values: NarrowArray, rows: Int64Array) -> Int64Array:
    """`values[rows]` in 64 bits, and −1 where the row is −1.

    >>> take(np.array([7, 8], dtype=np.int8), np.array([1, -1])).tolist()
    [8, -1]
    """
    if not values.size:
        return np.full(rows.size, -1, dtype=np.int64)
    if native is not None:
        values, rows = _rows(values), whole(rows)
        found = np.empty(rows.size, dtype=np.int64)
        native.take(address(values), values.itemsize, values.size, address(rows), rows.size, address(found))
        return found
    values_of_rows: Int64Array = values.take(rows).astype(np.int64, copy=False)  # faster than an index
    values_of_rows[rows < 0] = -1
    return values_of_rows


def sums_of_paths(values: Int64Array, parent: NarrowArray) -> Int64Array:
    """For each row the sum over it and all around it; after k rounds a row has added up 2^k of them.

    >>> sums_of_paths(np.array([1, 2, 4]), np.array([-1, 0, 1])).tolist()
    [1, 3, 7]
    """
    found, hop = values.copy(), parent.copy()
    active = np.flatnonzero(hop >= 0)
    while active.size:
        above = hop[active]
        gained, further = found[above], hop[above]
        found[active] += gained
        hop[active] = further
        active = active[further >= 0]
    return found


# -- by NumPy ---------------------------------------------------------------------------------------


def _after(parent: NarrowArray) -> Int64Array:
    last = np.arange(parent.size)
    inner = np.flatnonzero(parent >= 0)
    last[parent[inner]] = inner  # rows rise, so the last child stands there
    # Pointer jumping to the last child of the last child.
    active = np.flatnonzero(last[last] != last)
    while active.size:
        last[active] = last[last[active]]
        active = active[last[last[active]] != last[active]]
    return last + 1


def _depth(parent: NarrowArray) -> Int64Array:
    return sums_of_paths((parent >= 0).astype(np.int64), parent)


def _nearest(parent: NarrowArray, wanted: BoolArray) -> Int64Array:
    rows = np.flatnonzero(wanted)
    skip = parent.astype(np.int64)
    skip[rows] = rows
    settled = np.append(wanted, True)  # the last one stands for −1
    # Pointer jumping over the unwanted: what is settled is a valid shortcut for the rows below it.
    active = np.flatnonzero(~settled[skip])
    while active.size:
        hop = skip[skip[active]]
        skip[active] = hop
        active = active[~settled[hop]]
    return skip


def _may_overlap(spans: Spans) -> bool:
    thread, start, end, parent = spans
    rows = 1 + np.flatnonzero((parent[1:] != np.arange(parent.size - 1)) & (thread[1:] == thread[:-1]))
    before = rows - 1
    for _ in range(PATIENCE):
        if (end[before] > start[rows]).any():
            return True
        before = parent[before].astype(np.int64)
        further = before != parent[rows]
        rows, before = rows[further], before[further]
        if not rows.size:
            return False
    return True


def _innermost(spans: Spans, thread: Int64Array, time: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The row where the search stands for each place, and for which of them it has not ended."""
    span_thread, start, end, parent = spans
    row = _last_started(span_thread, start, thread, time)
    # Everything between a span and its parent ended before the span did, so walking up is exact.
    pending = np.flatnonzero(row >= 0)
    for _ in range(PATIENCE):
        at = row[pending]
        when = time[pending]
        closed = ~((end[at] > when) | (start[at] == when))
        pending = pending[closed]
        row[pending] = parent[row[pending]]
        pending = pending[row[pending] >= 0]
        if not pending.size:
            break
    return row, pending


def _parents(thread: Int64Array, end: Int64Array) -> Int64Array:
    """Invariant: every row strictly between `parent[i]` and `i` ends before row i does. So when the candidate ends
    too early as well, all rows back to the candidate's own candidate do, and the row can jump there at once.
    """
    rows = np.arange(end.size, dtype=np.int64)
    parent = rows - 1
    if end.size:
        parent[np.flatnonzero(np.append(True, thread[1:] != thread[:-1]))] = -1
    pending = np.flatnonzero(parent >= 0)
    for _ in range(PATIENCE):
        candidate = parent[pending]
        short = end[candidate] < end[pending]
        pending = pending[short]
        parent[pending] = parent[candidate[short]]
        pending = pending[parent[pending] >= 0]
        if not pending.size:
            return parent
    last = _last_reaching(end, pending, end[pending])
    parent[pending] = np.where(take(thread, last) == thread[pending], last, -1)
    return parent


def _last_reaching(end: Int64Array, before: Int64Array, bound: Int64Array) -> Int64Array:
    """For each i the last row < before[i] whose end is not smaller than bound[i], or −1.

    The greatest ends of blocks of 1, 2, 4, … rows lead there in two rounds per size, however deep spans nest.
    """
    levels = [end]
    while levels[-1].size > 1:
        below = levels[-1]
        odd = below[-1:] if below.size % 2 else below[:0]
        levels.append(np.append(np.maximum(below[:-1:2], below[1::2]), odd))
    block = before - 1  # the block that may hold the row, at the size where the search stands
    height = np.zeros(block.size, dtype=np.int64)
    rising = np.flatnonzero(block >= 0)
    for level, greatest in enumerate(levels):
        rising = rising[greatest[block[rising]] < bound[rising]]
        even = block[rising] % 2 == 0  # the block before it lies under another one that is twice as large
        block[rising] = np.where(even, block[rising] // 2 - 1, (block[rising] - 1) // 2)
        height[rising] = level + 1
        rising = rising[block[rising] >= 0]
    for level in range(len(levels) - 2, -1, -1):
        falling = np.flatnonzero((height > level) & (block >= 0))
        right = np.minimum(2 * block[falling] + 1, levels[level].size - 1)
        block[falling] = np.where(levels[level][right] >= bound[falling], right, right - 1)
    return np.maximum(block, -1)


def _last_started(
    thread: Int64Array, start: Int64Array, query_thread: Int64Array, query_time: Int64Array
) -> Int64Array:
    """The last row of each query's thread whose start is not after the query's time, or −1."""
    if thread.size and thread[0] == thread[-1] and (query_thread == thread[0]).all():
        return np.searchsorted(start, query_time, side="right") - 1
    last = np.full(query_thread.size, -1, dtype=np.int64)
    first = np.flatnonzero(np.append(True, thread[1:] != thread[:-1])[: thread.size])
    codes = thread[first]
    bounds = np.append(first, thread.size)
    which = np.searchsorted(codes, query_thread)
    has_spans = which < codes.size
    has_spans[has_spans] &= codes[which[has_spans]] == query_thread[has_spans]
    rows = np.flatnonzero(has_spans)
    rows = rows[np.argsort(which[rows], kind="stable")]
    groups, begins = np.unique(which[rows], return_index=True)
    for code, group in zip(groups.tolist(), np.split(rows, begins[1:]), strict=False):
        low, high = int(bounds[code]), int(bounds[code + 1])
        at = low + np.searchsorted(start[low:high], query_time[group], side="right") - 1
        last[group] = np.where(at >= low, at, -1)
    return last
