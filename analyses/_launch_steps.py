"""Steps that nobody marked and no range shows: a period in the sequence of launches (DEFINITIONS §1).

The sequence is that of the launch calls of one process that put kernels on its busiest device, in the order of the calls on
all its threads, each known by the name of its kernel; collectives, copies and fills are left out of it. What repeats in it
(`_repetitions`) need not be a step: the layers of a network repeat as well, and so do the parts of a step that
accumulates gradients. So a period of a network's launches is a step only where something says so that occurs once in a
step, and where nothing says that it lies inside of one. Where that is open, there are no steps: a wrong step is worse
than none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses._launch_sequence import LaunchSequence, sequences
from tracekit.analyses._repetitions import FEWEST, Repetition, repetitions
from tracekit.analyses._step_ranges import InferredSteps
from tracekit.spans import BoolArray, Int64Array
from tracekit.trace import Trace

__all__ = ["launch_steps"]

_LEAST_ACTIVITIES: Final = 4
"""A kernel in a loop is no step."""

_MOST_STEPS_WITHOUT: Final = 0.1
"""Share of the steps that may lack what each should hold: of every first or last one something may be cut off."""

_LEAST_BESIDE: Final = 0.1
"""Share of a step's launches that are at least not its optimizer's."""

_LEAST_TIME: Final = 0.5
"""Share of the kernels' time that the steps must hold."""

_MOST: Final = 0.5
"""Share of the steps from which on a place in them is said to be marked."""

_MOST_ASKED: Final = 4
"""Repetitions of which it is looked up what holds each launch."""

_LATEST: Final = 8
"""A step begins no more than one part in so many of it after the optimizer."""

_FEWEST_LAYERS: Final = 4
"""Repetitions within a step, each of at least so many activities, that show the layers of a network."""

_WIDEST_INPUT: Final = 0.4
"""Part of a step in which all its copies to the device lie; those of a layer's experts are spread over all of it."""

_SAME: Final = 0.005
"""Share of the launches by which one period must explain more than another that is shorter."""

_SAME_STEP: Final = 0.05
"""The same where each holds an optimizer, of launches that differ: what comes on top every tenth step (logging) makes no
step of ten, but two optimizers for two networks in turn make one of both."""


@dataclass(frozen=True, eq=False)
class _Candidate:
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
            and self._every_thread()
        )

    def _every_thread(self) -> bool:
        """Whether all threads launch in nearly every step: a layer is on the thread of its pass alone."""
        start, end = self.sequence.times(*self.cut)
        launches = (np.searchsorted(at, end) - np.searchsorted(at, start) for at in self.sequence.threads)
        return all(float((count > 0).mean()) >= 1 - _MOST_STEPS_WITHOUT for count in launches)


def launch_steps(trace: Trace, rows: pl.DataFrame, launched: Int64Array) -> InferredSteps | None:
    """The steps of a trace that marks none, from its launches; None when no period of them is surely a step.

    `rows` are all activities of the device, `launched` the time at which each was launched.
    """
    for sequence in sequences(trace, rows, launched):
        found = [_Candidate(sequence, each) for each in repetitions(sequence.symbols)]
        chosen = _chosen([each for each in found if each.possible])
        if chosen is not None:
            source = f"period of {chosen.period.length} launches in the launch sequence"
            return InferredSteps(source, f"inferred: a {source}", _spans(chosen), periods=True)
    return None


def _chosen(candidates: list[_Candidate]) -> _Candidate | None:
    """The period that is the step, of candidates in order of length."""
    if not candidates:
        return None
    sequence = candidates[0].sequence
    if sequence.neural and (sequence.optimizer.any() or not sequence.whole):
        optimizing = [each for each in candidates if _has_optimizer(each)]
        return _simplest(optimizing, [each.period.changed for each in optimizing], _SAME_STEP)
    simplest = _simplest(candidates, [each.period.unexplained for each in candidates], _SAME)
    if simplest is None or not sequence.neural:
        return simplest
    if len(sequence.threads) > 1:  # one is autograd's: of a training step there should be an optimizer
        return None
    loading = [each for each in candidates if _has_loader(each)]
    if loading:
        return _simplest(loading, [each.period.changed for each in loading], _SAME_STEP)
    # What is left unexplained, or comes after, may be the end of a step of which this is a part.
    alone = simplest is candidates[-1] and simplest.period.regular and simplest.period.ends_within()
    return simplest if alone and _has_input(simplest) and _has_layers(simplest) else None


def _simplest(candidates: list[_Candidate], left: list[int], same: float) -> _Candidate | None:
    """The shortest period of those that leave the fewest launches, but for this share of all."""
    within = (
        each
        for each, rest in zip(candidates, left, strict=True)
        if rest <= min(left) + same * each.sequence.symbols.size
    )
    return next(within, None)


def _has_optimizer(candidate: _Candidate) -> bool:
    """Every step has one, and more beside it: its own loop over the parameters is no step.

    In PyTorch the backward pass has a thread of its own, unless all is in one graph. Where no other one is there, the
    optimizer may be part of a backward pass, once for each layer.
    """
    sequence = candidate.sequence
    marks = sequence.optimizer
    begin, end = candidate.cut
    if (
        sequence.pytorch
        and sequence.launched
        and len(sequence.threads) == 1
        and sequence.activities.max() == 1
    ):
        return False
    own = np.append(0, np.cumsum(~marks))
    beside = own[end] - own[begin]
    return candidate.every(marks) and bool((beside >= _LEAST_BESIDE * (end - begin)).all())


def _has_loader(candidate: _Candidate) -> bool:
    """Every step asks the data loader for one batch."""
    begin, end = candidate.cut
    total = np.append(0, np.cumsum(candidate.sequence.loaded))
    return float((total[end] - total[begin] == 1).mean()) >= 1 - _MOST_STEPS_WITHOUT


def _has_input(candidate: _Candidate) -> bool:
    """Every step begins with copies to the device, and has none but there."""
    period, fed = candidate.period, candidate.sequence.fed
    places = np.flatnonzero(period.folded(fed) >= _MOST)
    if not places.size or not candidate.every(fed):
        return False
    return period.length - int(_gaps(places, period.length).max()) <= _WIDEST_INPUT * period.length


def _has_layers(candidate: _Candidate) -> bool:
    """A part that makes up most of the step repeats within it, as the layers of a network do: so it is no layer itself."""
    begin, end = candidate.cut
    middle = begin.size // 2
    inner = repetitions(candidate.sequence.names(int(begin[middle]), int(end[middle])))
    return any(each.length >= _LEAST_ACTIVITIES and int(each.good.sum()) >= _FEWEST_LAYERS for each in inner)


def _gaps(places: npt.NDArray[np.int64], length: int) -> Int64Array:
    """From each place to the next one, around the end of the period."""
    gaps: Int64Array = np.diff(np.append(places, places[0] + length))
    return gaps


def _before_widest_gap(places: npt.NDArray[np.int64], length: int) -> int:
    return int(places[int(np.argmax(_gaps(places, length)))])


def _after_widest_gap(places: npt.NDArray[np.int64], length: int) -> int:
    return int(places[(int(np.argmax(_gaps(places, length))) + 1) % places.size])


def _spans(candidate: _Candidate) -> pl.DataFrame:
    """The steps on the host: from the first launch of each to the first of the next. Of the last one nothing tells the end
    unless the next one begins: it is left out then, so that every step is complete.
    """
    begin, end = candidate.cut
    symbols, template = candidate.sequence.symbols, candidate.period.template
    if end[-1] == symbols.size or symbols[end[-1]] != template[candidate.offset]:
        begin, end = begin[:-1], end[:-1]
    start, until = candidate.sequence.times(begin, end)
    frame = pl.DataFrame({"start": start, "duration": until - start})
    return frame.select(pl.format("step {}", pl.int_range(pl.len())).alias("name"), "start", "duration")
