"""Passes over sets of intervals (see `intervals.IntervalSet`): natively by merging, where that was built, else by NumPy with the same answers."""

from __future__ import annotations

import numpy as np

from tracekit import span_passes
from tracekit.span_passes import Int64Array, address, whole

__all__ = ["NONE", "Pairs", "common", "covered", "joined", "without"]

Pairs = tuple[Int64Array, Int64Array]
"""Starts and ends of intervals, those of a normal set in order, and no two of them touching."""
NONE: Pairs = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)


def joined(one: Pairs, other: Pairs = NONE) -> Pairs:
    """The union of intervals in any order; those that are empty or reversed count as nothing."""
    found = None if span_passes.native is None else _merged("joined", one, other)
    if found is not None:
        return found
    start, end = (np.concatenate(both) for both in zip(one, other, strict=True)) if other[0].size else one
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        if span_passes.native is not None:
            return joined((start, end))
    return _joined(start, end)


def common(one: Pairs, other: Pairs) -> Pairs:
    """What two normal sets have in common."""
    found = None if span_passes.native is None else _merged("common", one, other)
    return _common(one, other) if found is None else found


def without(one: Pairs, other: Pairs) -> Pairs:
    """What a normal set has and another one has not."""
    found = None if span_passes.native is None else _merged("without", one, other)
    if found is not None or not one[0].size:
        return NONE if found is None else found
    (starts, ends), first, last = other, one[0][:1], one[1][-1:]
    # The gaps of the other one, with all that lies before it and after it.
    gaps = (
        np.append(np.minimum(first, starts[:1] - 1), ends),
        np.append(starts, np.maximum(last, ends[-1:] + 1)),
    )
    return _common(one, gaps) if starts.size else one


def covered(within: Pairs, points: Int64Array) -> Int64Array:
    """How much of a normal set lies before each point."""
    starts, ends = map(whole, within)
    _refuse_unlike(within)
    until = np.zeros(starts.size + 1, dtype=np.int64)
    np.cumsum(ends - starts, out=until[1:])
    if span_passes.native is not None:
        points, found = whole(points), np.empty(points.size, dtype=np.int64)
        rows = address(starts), address(ends), address(until), starts.size
        span_passes.native.covered(*rows, address(points), points.size, address(found))
        return found
    index = np.searchsorted(starts, points, side="right")
    overshoot = np.maximum(np.append(0, ends)[index] - points, 0)
    return until[index] - np.where(index > 0, overshoot, 0)


def _refuse_unlike(*sets: Pairs) -> None:
    """A native pass would read beyond the shorter array."""
    if any(starts.size != ends.size for starts, ends in sets):
        raise ValueError("arrays of different lengths")


def _merged(how: str, one: Pairs, other: Pairs) -> Pairs | None:
    """What the native pass of this name makes of two lists; None where it finds one of them out of order."""
    _refuse_unlike(one, other)
    lists = [whole(column) for column in (*one, *other)]
    size = one[0].size + other[0].size
    starts, ends = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    at = [address(column) for column in (*lists, starts, ends)]
    count = getattr(span_passes.native, how)(*at[:2], one[0].size, *at[2:4], other[0].size, *at[4:])
    if count == one[0].size == size:  # all of them, as they were
        return one
    if count < 0:
        return None
    few = 2 * count < size  # else they would keep the room for many
    return (starts[:count].copy(), ends[:count].copy()) if few else (starts[:count], ends[:count])


# -- by NumPy ---------------------------------------------------------------------------------------


def _joined(start: Int64Array, end: Int64Array) -> Pairs:
    """Of intervals in order of their starts."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if (start[1:] > end[:-1]).all():
        return start, end
    reach = np.maximum.accumulate(end)
    # A new interval begins where a start lies beyond everything that came before; touching ones merge.
    first = np.append(True, start[1:] > reach[:-1])
    last = np.append(np.flatnonzero(first)[1:] - 1, start.size - 1)
    return start[first], reach[last]


def _common(one: Pairs, other: Pairs) -> Pairs:
    # Of one set, the intervals that each of the other meets lie side by side; no two pieces touch.
    first = np.searchsorted(other[1], one[0], side="right")
    met = np.searchsorted(other[0], one[1], side="left") - first
    mine = np.repeat(np.arange(one[0].size), met)
    theirs = np.arange(mine.size) + np.repeat(first - (np.cumsum(met) - met), met)
    return np.maximum(one[0][mine], other[0][theirs]), np.minimum(one[1][mine], other[1][theirs])
