"""Stretches of a launch sequence with the same launches, from one start to the next.

Stretches are compared as multisets of launches, because with several launching threads no step repeats the order of
another.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tracekit.analyses.steps_inferred.sequence import FEW, LaunchSequence
from tracekit.spans import Int64Array

__all__ = ["ALIKE", "FEWEST", "MOST", "Stretches", "group_starts", "stretches"]

FEWEST: Final = 3
"""Two stretches may be the warm-up and the run."""

MOST: Final = 0.5
"""The share of the work, and of the launches, in the steps."""

ALIKE: Final = 0.75
"""Share of a stretch's launches that another has as well; and share of all that happens between the first and last step that
must be steps."""

_LEAST_ACTIVITIES: Final = 4
"""A loop around a single kernel is not a step."""

_NARROW: Final = 4
"""Marks less than one part in so many of the distance between steps apart are one mark."""


class Stretches(msgspec.Struct, frozen=True, eq=False):
    """Stretches of about `length` launches, each from `begin` to before `end`; `shared` is the number of launches in them
    that the typical one has as well. `whole`: from the first to the last of them there is nothing else.
    """

    sequence: LaunchSequence
    length: int
    begin: Int64Array
    end: Int64Array
    shared: int
    whole: bool

    @property
    def possible(self) -> bool:
        """Whether these can be steps at all.

        They are many enough, hold enough kernels, most of the launches and of the kernels' time, and launches of all threads:
        a layer is on the thread of its pass alone. They begin within nothing that holds the launch before.
        """
        held = int((self.end - self.begin).sum())
        sequence = self.sequence
        return (
            self.begin.size >= FEWEST
            and held >= MOST * sequence.symbols.size
            and held >= ALIKE * int(self.end[-1] - self.begin[0])
            and self.total(sequence.activities).sum() >= _LEAST_ACTIVITIES * self.begin.size
            and self.total(sequence.duration).sum() >= MOST * sequence.duration.sum()
            and all(self._with(launches) >= 1 - FEW for launches in sequence.threads)
            and float(sequence.enclosed(self.begin).mean()) <= FEW
        )

    def total(self, values: Int64Array) -> Int64Array:
        """The sum of the values in each stretch."""
        sums = np.append(0, np.cumsum(values))
        total: Int64Array = sums[self.end] - sums[self.begin]
        return total

    def _with(self, launches: Int64Array) -> float:
        """The share of stretches with one of these launches."""
        return float((np.searchsorted(launches, self.end) > np.searchsorted(launches, self.begin)).mean())

    def complete(self) -> tuple[Int64Array, Int64Array]:
        """`begin` and `end` of the stretches that begin like the others and are followed by such a beginning; the
        others have no certain end.
        """
        symbols, counts = np.unique(self.sequence.symbols[self.begin], return_counts=True)
        begins = np.isin(np.append(self.sequence.symbols, -1), symbols[counts > 1])
        certain = begins[self.begin] & begins[self.end]
        return self.begin[certain], self.end[certain]


def group_starts(places: Int64Array, *, after: bool = False) -> Int64Array:
    """The first of marks that lie close together; `after` is the position after the last."""
    if places.size < 2:
        return places[:0]
    gaps = np.diff(places)
    usual = int(np.sort(gaps)[-2:][0])  # the widest may be a pause of the program's
    wide = gaps * _NARROW > max(usual, _NARROW)
    starts: Int64Array = places[np.append(wide, True)] + 1 if after else places[np.append(True, wide)]
    return starts


def stretches(sequence: LaunchSequence, starts: Int64Array) -> Stretches | None:
    """The alike stretches from start to start, with one before the first and one after the last."""
    symbols = sequence.symbols
    if starts.size < FEWEST - 1:
        return None
    lengths = np.sort(np.diff(starts))
    length = int(lengths[(lengths.size - 1) // 2])
    opening = np.flatnonzero(symbols == np.bincount(symbols[starts[:-1]]).argmax())
    before = _next(opening, starts[:1] - length, length)
    starts = _next(opening, starts, length)
    after = starts[-1:] + length
    bounds = np.concatenate([before[np.isin(before, opening)], starts, after[after <= symbols.size]])
    lengths = np.diff(bounds)
    longer = np.maximum(lengths, length)
    if lengths[np.minimum(lengths, length) >= ALIKE * longer].sum() < MOST * symbols.size:
        return None
    reference = int(np.flatnonzero(bounds == starts[0])[0] + np.argmin(np.abs(np.diff(starts) - length)))
    shared = _shared(symbols, bounds, reference)
    good = shared >= ALIKE * longer
    which = np.flatnonzero(good)
    whole = bool(good[which[0] :].all())
    return Stretches(sequence, length, bounds[:-1][good], bounds[1:][good], int(shared[good].sum()), whole)


def _next(opening: Int64Array, starts: Int64Array, length: int) -> Int64Array:
    """The first opening from each start on, where one is near: what a step does now and then at its end is not the next one's."""
    following = np.append(opening, np.iinfo(np.int64).max)[np.searchsorted(opening, starts)]
    near: Int64Array = np.where(following - starts <= FEW * length, following, starts)
    return near


def _shared(symbols: Int64Array, bounds: Int64Array, reference: int) -> Int64Array:
    """The number of launches of each stretch that the reference has as well, each equally often and in any order."""
    count = bounds.size - 1
    stretch = np.repeat(np.arange(count), np.diff(bounds))
    pairs, counts = np.unique(stretch << 32 | symbols[bounds[0] : bounds[-1]], return_counts=True)
    owner, symbol = pairs >> 32, pairs & 0xFFFFFFFF
    wanted = np.zeros(int(symbols.max()) + 1, np.int64)
    wanted[symbol[owner == reference]] = counts[owner == reference]
    return np.bincount(owner, np.minimum(counts, wanted[symbol]), count).astype(np.int64)
