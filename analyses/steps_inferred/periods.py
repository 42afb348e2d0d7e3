"""Steps that nobody marked and no range shows: a period in the sequence of launches (DEFINITIONS §1).

The sequence is that of the launch calls of one process that put kernels on its busiest device, in the order of the calls on
all its threads, each known by the name of its kernel; collectives, copies and fills are left out of it. What repeats in it
(`_repetitions`) need not be a step: the layers of a network repeat as well, and so do the parts of a step that
accumulates gradients. So a period of a network's launches is a step only where something says so that occurs once in a
step, and where nothing says that it lies inside of one. Where that is open, there are no steps: a wrong step is worse
than none.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.steps_inferred.candidates import LEAST_ACTIVITIES, MOST_STEPS_WITHOUT, Candidate, gaps
from tracekit.analyses.steps_inferred.optimizer import between_optimizers
from tracekit.analyses.steps_inferred.ranges import InferredSteps
from tracekit.analyses.steps_inferred.repetitions import repetitions
from tracekit.analyses.steps_inferred.sequence import LaunchSequence, sequences
from tracekit.spans import Int64Array
from tracekit.trace import Trace

__all__ = ["launch_steps"]

_LEAST_BESIDE: Final = 0.1
"""Share of a step's launches that are at least not its optimizer's."""

_MOST: Final = 0.5
"""Share of the steps from which on a place in them is said to be marked."""

_FEWEST_LAYERS: Final = 4
"""Repetitions within a step, each of at least so many activities, that show the layers of a network."""

_WIDEST_INPUT: Final = 0.4
"""Part of a step in which all its copies to the device lie; those of a layer's experts are spread over all of it."""

_SAME: Final = 0.005
"""Share of the launches by which one period must explain more than another that is shorter."""

_SAME_STEP: Final = 0.05
"""The same where each holds an optimizer, of launches that differ: what comes on top every tenth step (logging) makes no
step of ten, but two optimizers for two networks in turn make one of both."""


def launch_steps(trace: Trace, rows: pl.DataFrame, launched: Int64Array) -> InferredSteps | None:
    """The steps of a trace that marks none, from its launches; None when no period of them is surely a step.

    `rows` are all activities of the device, `launched` the time at which each was launched.
    """
    chosen, between = None, None
    for sequence in sequences(trace, rows, launched):
        if sequence.whole:
            between = between_optimizers(sequence)
        found = [Candidate(sequence, each) for each in repetitions(sequence.symbols)]
        chosen = _chosen([each for each in found if each.possible])
        if chosen is not None:
            break
    # Where threads launch side by side the order may differ from step to step, and only several of them together repeat.
    if between is not None and (chosen is None or between.shorter_than(chosen.period.length)):
        return _inferred(between.sequence, between.length, between.begin, between.end)
    return None if chosen is None else _inferred(chosen.sequence, chosen.period.length, *chosen.complete())


def _inferred(sequence: LaunchSequence, length: int, begin: Int64Array, end: Int64Array) -> InferredSteps:
    """The steps on the host: from the first launch of each to the first of the next."""
    start, until = sequence.times(begin, end)
    frame = pl.DataFrame({"start": start, "duration": until - start})
    name = pl.format("step {}", pl.int_range(pl.len())).alias("name")
    source = f"period of {length} launches in the launch sequence"
    return InferredSteps(
        source, f"inferred: a {source}", frame.select(name, "start", "duration"), periods=True
    )


def _chosen(candidates: list[Candidate]) -> Candidate | None:
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


def _simplest(candidates: list[Candidate], left: list[int], same: float) -> Candidate | None:
    """The shortest period of those that leave the fewest launches, but for this share of all."""
    within = (
        each
        for each, rest in zip(candidates, left, strict=True)
        if rest <= min(left) + same * each.sequence.symbols.size
    )
    return next(within, None)


def _has_optimizer(candidate: Candidate) -> bool:
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


def _has_loader(candidate: Candidate) -> bool:
    """Every step asks the data loader for one batch."""
    begin, end = candidate.cut
    total = np.append(0, np.cumsum(candidate.sequence.loaded))
    return float((total[end] - total[begin] == 1).mean()) >= 1 - MOST_STEPS_WITHOUT


def _has_input(candidate: Candidate) -> bool:
    """Every step begins with copies to the device, and has none but there."""
    period, fed = candidate.period, candidate.sequence.fed
    places = np.flatnonzero(period.folded(fed) >= _MOST)
    if not places.size or not candidate.every(fed):
        return False
    return period.length - int(gaps(places, period.length).max()) <= _WIDEST_INPUT * period.length


def _has_layers(candidate: Candidate) -> bool:
    """A part that makes up most of the step repeats within it, as the layers of a network do: so it is no layer itself."""
    begin, end = candidate.cut
    middle = begin.size // 2
    inner = repetitions(candidate.sequence.names(int(begin[middle]), int(end[middle])))
    return any(each.length >= LEAST_ACTIVITIES and int(each.good.sum()) >= _FEWEST_LAYERS for each in inner)
