"""Steps that nobody marked and no range shows: a period in the sequence of launches (DEFINITIONS §1).

The sequence is that of the launch calls of one process that put kernels on its busiest device, in the order of the calls on
all its threads, each known by the name of its kernel; collectives, copies and fills are left out of it. What repeats in it
(`_repetitions`) need not be a step: the layers of a network repeat as well, and so do the parts of a step that
accumulates gradients. So a period of a network's launches is a step only where something says so that occurs once in a
step, and where nothing says that it lies inside of one. Where that is open, there are no steps: a wrong step is worse
than none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses._launch_sequence import LaunchSequence, sequences
from tracekit.analyses._repetitions import FEWEST, Repetition, repetitions
from tracekit.spans import BoolArray, Int64Array
from tracekit.trace import Trace

__all__ = ["launch_steps"]

_LEAST_ACTIVITIES: Final = 4
"""A kernel in a loop is no step."""

_MOST_STEPS_WITHOUT: Final = 0.1
"""Share of the steps that may lack what each should hold: of every first or last one something may be cut off."""

_LEAST_SHARE: Final = 0.1
"""Share of the launches from which on a thread takes part in every step, and at least which a step's own work makes up
beside its optimizer."""

_LEAST_TIME: Final = 0.5
"""Share of the kernels' time that the steps must hold."""

_WIDEST_INPUT: Final = 0.4
"""Part of a step in which all its copies to the device lie; those of a layer's experts are spread over all of it."""

_SAME: Final = 0.005
"""Share of the launches by which one period must explain more than another that is shorter."""


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A period, and what it means in the sequence it was found in."""

    sequence: LaunchSequence
    period: Repetition

    @property
    def _region(self) -> slice:
        return slice(self.period.first, self.period.last)

    @cached_property
    def optimizer_marks(self) -> bool:
        return bool(self.sequence.optimizer[self._region].any())

    @cached_property
    def offset(self) -> int:
        """The place in the template at which a step begins: after the optimizer, else with its input, else where the
        host takes its longest break."""
        period, sequence = self.period, self.sequence
        optimizer = np.flatnonzero(period.folded(sequence.optimizer) > 0.5)  # noqa: PLR2004 - most
        if optimizer.size:
            return (_before_widest_gap(optimizer, period.length) + 1) % period.length
        fed = np.flatnonzero(period.folded(sequence.fed) > 0.5)  # noqa: PLR2004
        if fed.size:
            return _after_widest_gap(fed, period.length)
        return int(np.argmax(period.folded_median(sequence.breaks)))

    @cached_property
    def cut(self) -> tuple[Int64Array, Int64Array]:
        return self.period.cut(self.offset)

    def every(self, marks: BoolArray) -> bool:
        """Whether the mark is in nearly every step."""
        begin, end = self.cut
        total = np.append(0, np.cumsum(marks))
        return float((total[end] > total[begin]).mean()) >= 1 - _MOST_STEPS_WITHOUT

    @cached_property
    def possible(self) -> bool:
        """Whether these can be steps at all: many enough, and large enough, of all threads, and in nothing larger."""
        begin, end = self.cut
        if begin.size < FEWEST:
            return False
        sequence = self.sequence
        activities = np.append(0, np.cumsum(sequence.activities))
        time = np.append(0, np.cumsum(sequence.duration))
        return (
            int((activities[end] - activities[begin]).sum()) >= _LEAST_ACTIVITIES * begin.size
            and int((time[end] - time[begin]).sum()) >= _LEAST_TIME * int(time[-1])
            and all(self.every(sequence.thread == thread) for thread in sequence.threads(_LEAST_SHARE))
            and sequence.enclosed(begin) <= _MOST_STEPS_WITHOUT
        )


def launch_steps(trace: Trace, rows: pl.DataFrame, launched: Int64Array) -> tuple[int, pl.DataFrame] | None:
    """Launches per step and the steps (`name`, `start`, `duration` in ns) of a trace that marks none; None when
    nothing in the sequence of launches is surely a step.

    `rows` are all activities of the device, `launched` the time at which each was launched.
    """
    for sequence in sequences(trace, rows, launched):
        found = [_Candidate(sequence, each) for each in repetitions(sequence.symbols)]
        chosen = _chosen([each for each in found if each.possible])
        if chosen is not None:
            return chosen.period.length, _spans(chosen)
    return None


def _chosen(candidates: list[_Candidate]) -> _Candidate | None:
    """The period that is the step; candidates are in order of length."""
    if not candidates:
        return None
    if any(each.optimizer_marks for each in candidates):
        return next((each for each in candidates if _has_optimizer(each)), None)
    best = min(each.period.unexplained for each in candidates)
    size = candidates[0].sequence.symbols.size
    simplest = next(each for each in candidates if each.period.unexplained <= best + _SAME * size)
    if not simplest.sequence.neural:
        return simplest
    tests: tuple[Callable[[_Candidate], bool], ...] = (_has_loader, _has_threads, _has_input, _has_wait)
    # Anything left unexplained may be the optimizer of a step of which this is a part.
    plain = simplest.period.regular and simplest is candidates[-1]
    return simplest if plain and any(test(simplest) for test in tests) else None


def _has_optimizer(candidate: _Candidate) -> bool:
    """Every step has one, and more beside it: its own loop over the parameters is no step."""
    marks = candidate.sequence.optimizer
    begin, end = candidate.cut
    own = np.append(0, np.cumsum(~marks))
    beside = own[end] - own[begin]
    return candidate.every(marks) and bool((beside >= _LEAST_SHARE * (end - begin)).all())


def _has_loader(candidate: _Candidate) -> bool:
    """Every step asks the data loader for a batch."""
    return candidate.every(candidate.sequence.loaded)


def _has_threads(candidate: _Candidate) -> bool:
    """A forward pass on one thread and a backward pass on another."""
    return len(candidate.sequence.threads(_LEAST_SHARE)) > 1


def _has_input(candidate: _Candidate) -> bool:
    """Every step begins with copies to the device, and after the last one comes nothing that a model's end may be."""
    period, fed = candidate.period, candidate.sequence.fed
    places = np.flatnonzero(period.folded(fed) > 0.5)  # noqa: PLR2004 - most
    if not places.size or not candidate.every(fed):
        return False
    wide = period.length - int(_gaps(places, period.length).max())
    return wide <= _WIDEST_INPUT * period.length and period.ends_within()


def _has_wait(candidate: _Candidate) -> bool:
    """The host waits in every step, and there is nothing but steps: a model has a beginning or an end beside its layers."""
    period = candidate.period
    return candidate.every(candidate.sequence.waited) and period.begins_within() and period.ends_within()


def _gaps(places: npt.NDArray[np.int64], length: int) -> Int64Array:
    """From each place to the next one, around the end of the period."""
    gaps: Int64Array = np.diff(np.append(places, places[0] + length))
    return gaps


def _before_widest_gap(places: npt.NDArray[np.int64], length: int) -> int:
    return int(places[int(np.argmax(_gaps(places, length)))])


def _after_widest_gap(places: npt.NDArray[np.int64], length: int) -> int:
    return int(places[(int(np.argmax(_gaps(places, length))) + 1) % places.size])


def _spans(candidate: _Candidate) -> pl.DataFrame:
    """The steps on the host: from the first launch of each to the first of the next, or to the end of its last one."""
    begin, end = candidate.cut
    start, until = candidate.sequence.times(begin, end)
    frame = pl.DataFrame({"start": start, "duration": until - start})
    return frame.select(
        pl.format("step {}", pl.int_range(pl.len())).alias("name"), "start", "duration"
    )
