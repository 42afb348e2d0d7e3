"""A period of the launches as steps: where in it a step begins, and whether it can be one at all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.analyses.steps_inferred.repetitions import FEWEST, Repetition
from tracekit.analyses.steps_inferred.sequence import LaunchSequence
from tracekit.spans import BoolArray, Int64Array

__all__ = ["LEAST_ACTIVITIES", "MOST_STEPS_WITHOUT", "Candidate", "gaps", "possible"]

LEAST_ACTIVITIES: Final = 4
"""A kernel in a loop is no step."""

MOST_STEPS_WITHOUT: Final = 0.1
"""Share of the steps that may lack what each should hold: of every first or last one something may be cut off."""

_LEAST_TIME: Final = 0.5
"""Share of the kernels' time that the steps must hold."""

_MOST: Final = 0.5
"""Share of the steps from which on a place in them is said to be marked."""

_MOST_ASKED: Final = 4
"""Repetitions of which it is looked up what holds each launch."""

_LATEST: Final = 8
"""A step begins no more than one part in so many of it after the optimizer."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A period, and what it means in the sequence it was found in."""

    sequence: LaunchSequence
    period: Repetition

    @cached_property
    def offset(self) -> int | None:
        """The place in the template at which a step begins: after the optimizer, else with its data, else where the
        host takes its longest break; None where all places lie within something larger.
        """
        period, sequence = self.period, self.sequence
        free = self._free
        if not free.any():
            return None
        optimizer = np.flatnonzero(period.folded(sequence.optimizer) >= _MOST)
        if optimizer.size:
            wanted = _before_widest_gap(optimizer, period.length) + 1
            later = int(np.argmax(np.roll(free, -wanted)))
            return (wanted + later) % period.length if later * _LATEST <= period.length else None
        for marks in (sequence.loaded, sequence.fed):
            marked = np.flatnonzero((period.folded(marks) >= _MOST) & free)
            if marked.size:
                return _after_widest_gap(marked, period.length)
        return int(np.argmax(np.where(free, period.folded_median(sequence.breaks), -1)))

    @cached_property
    def _free(self) -> BoolArray:
        """For each place in the template, whether nothing that is a part of a step holds it and the place before."""
        places = self.period.places(_MOST_ASKED)
        inside = self.sequence.enclosed(places.reshape(-1)).reshape(places.shape)
        held: BoolArray = np.logical_or.reduce(inside, axis=0)
        return ~held

    @cached_property
    def cut(self) -> tuple[Int64Array, Int64Array]:
        """First and one-past-last launch of each step."""
        if self.offset is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return self.period.cut(self.offset)

    def every(self, marks: BoolArray) -> bool:
        """Whether the mark is in nearly every step."""
        begin, end = self.cut
        if not begin.size:
            return False
        total = np.append(0, np.cumsum(marks))
        return float((total[end] > total[begin]).mean()) >= 1 - MOST_STEPS_WITHOUT

    @cached_property
    def possible(self) -> bool:
        """Whether these can be steps at all."""
        return possible(self.sequence, *self.cut)

    def complete(self) -> tuple[Int64Array, Int64Array]:
        """First and one-past-last launch of each step whose end is known: of the last one that is so where the next begins."""
        begin, end = self.cut
        symbols, template = self.sequence.symbols, self.period.template
        if end[-1] == symbols.size or symbols[end[-1]] != template[self.offset]:
            return begin[:-1], end[:-1]
        return begin, end


def possible(sequence: LaunchSequence, begin: Int64Array, end: Int64Array) -> bool:
    """Whether the launches from each `begin` to before each `end` can be steps at all.

    They are many enough, hold enough kernels and most of the kernels' time, and launches of all threads: a layer is on the
    thread of its pass alone.
    """
    if begin.size < FEWEST:
        return False
    activities = np.append(0, np.cumsum(sequence.activities))
    time = np.append(0, np.cumsum(sequence.duration))
    if int((activities[end] - activities[begin]).sum()) < LEAST_ACTIVITIES * begin.size or int(
        (time[end] - time[begin]).sum()
    ) < _LEAST_TIME * int(time[-1]):
        return False
    low, high = sequence.times(begin, end)
    launches = (np.searchsorted(at, high) - np.searchsorted(at, low) for at in sequence.threads)
    return all(float((count > 0).mean()) >= 1 - MOST_STEPS_WITHOUT for count in launches)


def gaps(places: npt.NDArray[np.int64], length: int) -> Int64Array:
    """From each place to the next one, around the end of the period."""
    found: Int64Array = np.diff(np.append(places, places[0] + length))
    return found


def _before_widest_gap(places: npt.NDArray[np.int64], length: int) -> int:
    return int(places[int(np.argmax(gaps(places, length)))])


def _after_widest_gap(places: npt.NDArray[np.int64], length: int) -> int:
    return int(places[(int(np.argmax(gaps(places, length))) + 1) % places.size])
