"""Exact algebra of sets of half-open integer intervals [start, end).

Every union, overlap and idle figure of tracekit rests on this module. Times are integer nanoseconds, so all
results are exact. A set is kept *normal*: sorted, disjoint, and with no two intervals touching.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit import interval_passes as passes

__all__ = ["EMPTY", "IntervalSet", "union"]

Int64Array = npt.NDArray[np.int64]


class IntervalSet(msgspec.Struct, frozen=True, eq=False):
    """A normal set of half-open intervals; build one with `IntervalSet.of` or `IntervalSet.window`.

    >>> a = IntervalSet.of([0, 5, 20], [10, 8, 30])
    >>> a.pairs()
    [(0, 10), (20, 30)]
    >>> (a - IntervalSet.window(2, 25)).pairs()
    [(0, 2), (25, 30)]
    >>> (a & IntervalSet.window(2, 25)).measure
    13
    """

    starts: Int64Array
    ends: Int64Array

    @classmethod
    def of(cls, starts: npt.ArrayLike, ends: npt.ArrayLike) -> IntervalSet:
        """The union of the intervals [starts[i], ends[i]); those that are empty or reversed count as nothing.

        Raises ValueError when the two arrays differ in length.
        """
        start = np.asarray(starts, dtype=np.int64)
        end = np.asarray(ends, dtype=np.int64)
        if start.shape != end.shape or start.ndim != 1:
            message = f"starts and ends must be flat and of one length, got {start.shape} and {end.shape}"
            raise ValueError(message)
        return cls(*passes.joined((start, end)))

    @classmethod
    def window(cls, start: int, end: int) -> IntervalSet:
        """The one interval [start, end), or the empty set when it is empty."""
        return cls.of([start], [end])

    @property
    def measure(self) -> int:
        """The total length in ns: time that is covered at least once."""
        return int((self.ends - self.starts).sum())

    def __len__(self) -> int:
        return int(self.starts.size)

    def __bool__(self) -> bool:
        return self.starts.size > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    __hash__ = None  # type: ignore[assignment]  # arrays inside

    def pairs(self) -> list[tuple[int, int]]:
        """The intervals as a list of (start, end)."""
        return list(zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def _pairs(self) -> passes.Pairs:
        return self.starts, self.ends

    def __or__(self, other: IntervalSet) -> IntervalSet:
        return IntervalSet(*passes.joined(self._pairs(), other._pairs()))

    def __and__(self, other: IntervalSet) -> IntervalSet:
        return IntervalSet(*passes.common(self._pairs(), other._pairs()))

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        return IntervalSet(*passes.without(self._pairs(), other._pairs()))

    def complement(self, start: int, end: int) -> IntervalSet:
        """What of the window [start, end) this set does not cover: the gaps."""
        return IntervalSet.window(start, end) - self

    def clip(self, start: int, end: int) -> IntervalSet:
        """The part of this set that lies inside [start, end)."""
        return self & IntervalSet.window(start, end)

    def contains(self, points: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """For each time point, whether the set covers it."""
        at = np.asarray(points, dtype=np.int64)
        index = np.searchsorted(self.starts, at, side="right") - 1
        if not self:
            return np.zeros(at.shape, dtype=bool)
        return np.asarray((index >= 0) & (at < self.ends[np.maximum(index, 0)]), dtype=bool)

    def coverage(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64Array:
        """For each window [starts[i], ends[i]), how many ns of it this set covers.

        >>> IntervalSet.of([0, 20], [10, 30]).coverage([5, 12], [25, 18]).tolist()
        [10, 0]
        """
        low = np.asarray(starts, dtype=np.int64)
        high = np.asarray(ends, dtype=np.int64)
        before, until = (passes.covered(self._pairs(), points) for points in (low, high))
        return np.asarray(np.maximum(until - before, 0), dtype=np.int64)


EMPTY = IntervalSet(*passes.NONE)


def union(sets: Iterable[IntervalSet]) -> IntervalSet:
    """The union of any number of sets.

    >>> union([IntervalSet.window(0, 2), IntervalSet.window(1, 5)]).pairs()
    [(0, 5)]
    """
    parts = list(sets)
    if not parts:
        return EMPTY
    return IntervalSet.of(np.concatenate([p.starts for p in parts]), np.concatenate([p.ends for p in parts]))
