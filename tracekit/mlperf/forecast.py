"""Forecasts of the time to train on systems that were not run, from cells of several sizes.

A run takes epochs · K(b) / batch and what stands apart from training. Where a series has several sizes that is what evaluations take while nothing
trains, and it stays as chips are added (in round 0.6 it follows a power of the chips of −0.02, the median of the pairs of sizes), but each evaluation
except the last comes as often as epochs do; a node alone may evaluate otherwise than many do, so of a series of one size it is the last evaluation. K,
the training time of an epoch times the batch, depends on the batch of a chip, b, since a step's time does. It is told in two ways. Chips get less
efficient as b gets smaller: K falls like a power of b, whose exponent changes slowly. So K of a size that was not run follows from that of the nearest b
in its series, along the exponent that pairs of neighbouring sizes show: of its own series, of other systems with this benchmark, and, with little weight,
of other benchmarks. Far pairs count less. Between two b that were run it follows from both, so that it is theirs at either. And beyond three sizes or
more, K follows the laws of a step that they bear out (`mixture`). The forecast is the mean of both, by how sure each is, and the interval that of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, hypot, log, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from tracekit.classes import dataclass
from tracekit.mlperf.asked import (
    UNIT,
    Question,
    benchmark_of,
    in_unit,
    is_asked,
    place_of,
    question_of,
    series_for,
)
from tracekit.mlperf.cells import Cell, ends_of, series_of
from tracekit.mlperf.epochs import epochs_at
from tracekit.mlperf.mixture import Point, Steps, step_at
from tracekit.scaling.laws import non_negative

__all__ = [
    "Forecast",
    "Question",
    "benchmark_of",
    "compared",
    "enough_chips",
    "forecast",
    "left_out",
    "question_of",
    "without",
]

_OWN, _SAME, _OTHER = 0.5, 1.0, 0.05
"""The weights of exponents: of the own series, of other systems with the benchmark, and of all other pairs."""
_REACH: Final = 0.7
"""At a distance of so many units of ln(b) a pair's weight falls to 1/e."""
_FOREIGN: Final = 2.0
"""The distance of pairs whose batch is counted in another unit, such as tokens."""
_KNOWN: Final = 4.0
"""Pairs of the own sizes count as so much further for each other one, squared: laws of many sizes know all that their pairs tell."""
_STRANGE: Final = 0.35
"""Chips of systems that no one compared differ by so much at least: by a factor of two in 95 % of cases."""
_STAYS: Final = 0.9
"""A start that is shorter than this part of another one gets shorter with more chips."""
_LAST: Final = 0.1
"""The last evaluation is at most this part of a run."""
_LEAST_SPREAD: Final = 0.03
"""Runs of one configuration differ by so much."""
_BEYOND: Final = 0.15
"""The standard deviation of the exponent at larger batches of a chip than any that was run, by which forecasts of left-out sizes of round 0.6 err."""
_FEWEST: Final = 3
"""Sizes; of two, no law can be wrong."""
_GROWTH: Final = 0.036
"""The power of the chips by which steps with one batch of a chip may grow where none were seen to."""
_OFF: Final = 0.06
"""Sizes with one batch of a chip differ by so much."""
_LEAST_CHANGE, _CHANGE = 0.05, 0.07
"""An exponent is unsure by so much at least, and by so much per unit of the distance of the pairs that tell it."""
_HALF: Final = 0.5
_NO_STEP: Final = 1e-9
"""Logarithms that differ by less are the same."""
_OFF_LAWS: Final = 0.2
"""Laws are unsure by so much per unit of the distance to the nearest batch of a chip: real systems follow none of them exactly."""
_NORMAL: Final = np.array([NormalDist().inv_cdf((at + 0.5) / 1000) for at in range(1000)])
"""Values that are equally likely if spread normally."""
_TAIL: Final = 0.003
"""What the laws and the exponents leave beyond either end: less than an interval may miss, as other sizes may follow laws that are none of these."""
_SIDES: Final = 1.96
_GAIN: Final = 1.1


@dataclass(frozen=True, slots=True)
class Forecast:
    """The time to train. Seconds; the interval holds 95 % of such forecasts."""

    seconds: float
    low: float
    high: float
    batch: int
    epochs: float
    from_chips: int
    """The size whose time it follows from."""
    exponent: float
    """By which power of the batch of a chip the time of a step grows."""
    series: str
    """The series that it follows from."""
    own: bool
    """Whether this is of the system, the organisation and the round that were asked for, where they were."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two neighbouring sizes of a series."""

    exponent: float
    middle: float
    """Of the logarithms of their batches of a chip."""


def forecast(cells: Sequence[Cell], question: Question) -> Forecast | None:
    """The time to train that these cells foretell; None if none of them has the benchmark with a batch, epochs and a score.

    >>> from tracekit.mlperf.runs import LoggedRun
    >>> def cell(chips, seconds):
    ...     run = LoggedRun(name="", status="success", run_s=seconds, epochs=4.0, batch=1024)
    ...     return Cell("we", f"box-{chips}", "net", chips, 1024, (run,))
    >>> found = forecast([cell(8, 800.0), cell(16, 500.0), cell(32, 312.5)], Question("net", 64, epochs=4.0))
    >>> round(found.seconds, 1), found.from_chips, round(found.exponent, 3)
    (198.7, 32, 0.678)
    """
    series = {name: [cell for cell in group if _known(cell)] for name, group in series_of(cells).items()}
    chosen = series_for(series, question)
    if chosen is None:
        return None
    own, same = series[chosen], is_asked(series[chosen][0], question)
    near = min(own, key=lambda cell: abs(log((cell.accelerators or 1) / question.accelerators)))
    batch = (question.batch if same or in_unit(own, question) else None) or near.batch or 1
    given = question.epochs
    epochs, unsure = (given, (0.0, 0.0)) if given else epochs_at(series, chosen, batch)
    at = log(batch / question.accelerators)
    within = _within(own, at, question.accelerators)
    level, spread, exponent, closest = _level_along(
        series, chosen, at, question.accelerators, laws=not within
    )
    sides = spread, spread
    if not within:
        sizes = [
            (cell.accelerators or 1, exp(place_of(cell)), exp(_level(cell, several=True))) for cell in own
        ]
        steps = step_at(sizes, question.accelerators, exp(at))
        level, sides = _joint(level, hypot(spread, _by_chips(sizes, closest, question.accelerators)), steps, min(abs(place_of(cell) - at) for cell in own))  # fmt: skip
    apart = _apart(near, _several(own), epochs)
    training = epochs * exp(level) / batch
    beyond = _BEYOND * max(0.0, at - max(map(place_of, own)))
    foreign = 0.0 if same else _foreign(series, chosen, at, question.accelerators)
    low, high = (
        exp(_SIDES * hypot(_LEAST_SPREAD, side, beyond, by_epochs, foreign))
        for side, by_epochs in zip(sides, unsure, strict=True)
    )
    seconds = training + apart
    least = _least_apart(own, near, epochs * exp(-_SIDES * unsure[0])) if same else 0.0
    return Forecast(seconds, min(max(seconds / low, least), seconds), seconds * high, batch, epochs, closest.accelerators or 0, exponent, chosen, same)  # fmt: skip


def _level_along(
    series: Mapping[str, Sequence[Cell]], chosen: str, at: float, chips: int, *, laws: bool = True
) -> tuple[float, float, float, Cell]:
    """The level at this batch of a chip by the exponents from the sizes nearest to it, its standard deviation, and from the nearest one the exponent
    and the cell. `laws`: those of a step are asked as well.
    """
    own = series[chosen]
    closest = min(own, key=lambda cell: (round(abs(place_of(cell) - at), 9), -(cell.accelerators or 0)))
    level, spread, exponent = _level_from(series, chosen, closest, at, chips, laws=laws)
    if (opposite := _opposite(own, closest, at)) is not None:
        other, other_spread, _ = _level_from(series, chosen, opposite, at, chips, laws=laws)
        near_by, far_off = (at - place_of(closest)) ** 2, (at - place_of(opposite)) ** 2
        weight = near_by / (near_by + far_off)  # as the errors of both grow with the distance
        level, spread = (1 - weight) * level + weight * other, (1 - weight) * spread + weight * other_spread
    return level, spread, exponent, closest


def _level_from(
    series: Mapping[str, Sequence[Cell]], chosen: str, cell: Cell, at: float, chips: int, *, laws: bool
) -> tuple[float, float, float]:
    """The level at this batch of a chip as it follows from that of a cell, its standard deviation, and the exponent along which it does."""
    own = series[chosen]
    alike = [other for other in own if abs(place_of(other) - place_of(cell)) < _NO_STEP]
    level, unsure = _level_at(alike, _several(own), chips)
    exponent, spread = _exponent(series, chosen, (at + place_of(cell)) / 2, laws=laws)
    far = at - place_of(cell)
    return level + exponent * far, sqrt(unsure**2 + (spread * far) ** 2), exponent


def _opposite(own: Sequence[Cell], closest: Cell, at: float) -> Cell | None:
    """The cell nearest to this batch of a chip on the other side of it than the closest one."""
    side = at - place_of(closest)
    others = [cell for cell in own if (place_of(cell) - at) * side > _NO_STEP]
    return min(
        others, key=lambda cell: (round(abs(place_of(cell) - at), 9), -(cell.accelerators or 0)), default=None
    )


def left_out(cells: Sequence[Cell]) -> dict[str, float]:
    """Of each series with several sizes the relative error of the forecast for its largest one, at its fastest batch, from all other cells."""
    errors = {}
    for name, group in series_of(cells).items():
        known = [cell for cell in group if _known(cell)]
        if not known or not _several(known):
            continue
        _, most = ends_of(known)
        rest = without(cells, group, most)
        question = question_of(most)
        found = forecast(rest, question)
        if found is not None and most.score_s:
            errors[name] = found.seconds / most.score_s - 1
    return errors


def without(cells: Sequence[Cell], group: Sequence[Cell], cell: Cell) -> list[Cell]:
    """The cells without those of its size in this series, whatever their batches."""
    left = {id(other) for other in group if other.accelerators == cell.accelerators}
    return [other for other in cells if id(other) not in left]


def enough_chips(cells: Sequence[Cell], question: Question) -> tuple[int, int] | None:
    """The number of chips, doubled from that of the question, from which another doubling at the same batch gains less than 10 %, or would leave a chip
    less than one sample: the fewest and the most that it may be, since beyond the sizes that were run times lie between the ends of their intervals;
    None if nothing is known.
    """
    first = forecast(cells, question)
    if first is None:
        return None
    known = [cell.accelerators or 1 for cell in series_of(cells)[first.series] if _known(cell)]
    chips, found = [question.accelerators], [first]
    while 2 * chips[-1] <= first.batch:
        chips.append(2 * chips[-1])
        asked = replace(question, accelerators=chips[-1], batch=first.batch, epochs=first.epochs)
        found.append(forecast(cells, asked) or first)
    ends = [(each.seconds,) * 2 if at <= max(known) else (each.high, each.low) for at, each in zip(chips, found, strict=True)]  # fmt: skip
    slow, fast = (
        next((at for at, less, more in zip(chips, times, times[1:], strict=False) if less < _GAIN * more), chips[-1])
        for times in zip(*ends, strict=True)
    )  # fmt: skip
    return slow, fast


# -- of cells ---------------------------------------------------------------------------------------


def _known(cell: Cell) -> bool:
    return bool(cell.batch and cell.accelerators and cell.score_s and cell.epochs)


def _several(group: Sequence[Cell]) -> bool:
    """Whether a series has several sizes."""
    return len({cell.accelerators for cell in group}) > 1


def _apart(cell: Cell, several: bool, epochs: float | None = None) -> float:
    """The seconds in which a run only evaluates, had it so many epochs; with one size those of an evaluation: of the last one nothing is hidden."""
    shares, score = cell.shares, cell.score_s or 0.0
    lengths = [end - begin for run in cell.succeeded for begin, end in run.evaluation_s]
    last = float(np.mean(lengths)) if lengths else 0.0
    if not several or shares is None:
        return min(last, _LAST * score)
    alone, count = shares[1] * score, cell.mean("evaluations") or 0.0
    if not epochs or not cell.epochs or count <= 1:
        return alone
    more = (count * epochs / cell.epochs - 1) / (count - 1)  # of each evaluation but the last
    return alone + (alone - min(last, alone)) * (max(more, 0.0) - 1)


def _least_apart(own: Sequence[Cell], near: Cell, epochs: float) -> float:
    """The seconds that no number of chips makes shorter: evaluations of so many epochs, and the start where it does not fall as chips are added; 0 of
    one size, which does not show what stays.
    """
    if not _several(own):
        return 0.0
    by_chips = sorted(own, key=lambda cell: cell.accelerators or 0)
    starts = [cell.shares[2] * (cell.score_s or 0.0) for cell in by_chips if cell.shares is not None]
    stays = bool(starts) and starts[-1] >= _STAYS * starts[0]
    return _apart(near, several=True, epochs=epochs) + (min(starts) if stays else 0.0)


def _level(cell: Cell, several: bool) -> float:
    """The logarithm of K: the training time of an epoch times the batch."""
    seconds = (cell.score_s or 0.0) - _apart(cell, several)
    return log(seconds * (cell.batch or 1) / (cell.epochs or 1.0))


def _level_at(alike: Sequence[Cell], several: bool, chips: int) -> tuple[float, float]:
    """The level of the cells with one batch of a chip on so many chips, near ones first, and its standard deviation, which grows with the distance from
    their chips. It follows a rising power of the chips if three sizes or more show one: if they lie half as far from it as from their mean at most.
    """
    places = np.array([log(cell.accelerators or 1) for cell in alike])
    levels = np.array([_level(cell, several) for cell in alike])
    slope = float(np.polyfit(places, levels, 1)[0]) if np.ptp(places) > _NO_STEP else 0.0
    rest = levels - slope * places
    if len(set(places)) >= _FEWEST and slope > 0 and rest.std() <= _HALF * levels.std():
        return float(rest.mean()) + slope * log(chips), float(levels.std())
    unsure = hypot(_GROWTH, slope) * np.abs(places - log(chips))
    weights = 1 / np.hypot(_OFF, unsure) ** 2
    level = float(np.average(levels, weights=weights))
    return level, hypot(sqrt(float(np.average((levels - level) ** 2, weights=weights))), float(unsure.min()))


def _within(own: Sequence[Cell], at: float, chips: int) -> bool:
    """Whether sizes with fewer and with more chips were run, and with smaller and with larger batches of one; of too few sizes no law is known."""
    counts = [cell.accelerators or 1 for cell in own]
    places = [place_of(cell) for cell in own]
    inside = min(counts) <= chips <= max(counts) and min(places) - _NO_STEP <= at <= max(places) + _NO_STEP
    return inside or len(set(counts)) < _FEWEST


def _by_chips(sizes: Sequence[Point], closest: Cell, chips: int) -> float:
    """Half of what the laws say that steps grow by from these chips to so many with the same batch of each: exponents know nothing of it."""
    batch = exp(place_of(closest))
    more, less = (step_at(sizes, count, batch).level for count in (chips, closest.accelerators or 1))
    return _HALF * (more - less)


def _joint(level: float, spread: float, steps: Steps, far: float) -> tuple[float, tuple[float, float]]:
    """The mean of a level by exponents, with its standard deviation, and of those by laws, so far from the nearest batch of a chip: each weighted by the
    inverse of its fourth power, so that the one that is far less sure counts for nothing. And how far below and above it they reach, as standard deviations.
    """
    sure, other = max(spread, _NO_STEP) ** 4, max(hypot(steps.spread, _OFF_LAWS * far), _NO_STEP) ** 4
    laws = sure / (sure + other)
    mean = (1 - laws) * level + laws * steps.level
    levels = np.concatenate([level + spread * _NORMAL, steps.levels])
    chances = np.concatenate([np.full(len(_NORMAL), (1 - laws) / len(_NORMAL)), laws * steps.chances])
    order = levels.argsort()
    low, high = levels[order][np.searchsorted(chances[order].cumsum(), (_TAIL, 1 - _TAIL))]
    below, above = (hypot(max(each, 0.0) / _SIDES, laws * steps.noise) for each in (mean - low, high - mean))
    return mean, (below, above)


# -- exponents --------------------------------------------------------------------------------------


def _foreign(series: Mapping[str, Sequence[Cell]], chosen: str, at: float, chips: int) -> float:
    """The standard deviation of the level of a system that was not run: that of the systems with this benchmark, with as large a batch of a chip."""
    own = series[chosen]
    levels = [
        _level_along(series, name, at, chips)[0]
        for name, group in series.items()
        if group
        and benchmark_of(group[0].benchmark) == benchmark_of(own[0].benchmark)
        and min(abs(place_of(cell) - at) for cell in group) <= UNIT
    ]
    return hypot(_STRANGE, sqrt(2) * float(np.std(levels)))  # both systems differ from their mean


def _pairs(group: Sequence[Cell]) -> list[_Pair]:
    """The neighbours along the batch of a chip."""
    places = sorted({round(place_of(cell), 9) for cell in group})
    levels = [
        float(np.mean([_level(cell, _several(group)) for cell in group if round(place_of(cell), 9) == place]))
        for place in places
    ]
    return [
        _Pair(
            (levels[at + 1] - levels[at]) / (places[at + 1] - places[at]),
            (places[at + 1] + places[at]) / 2,
        )
        for at in range(len(places) - 1)
    ]


def _exponent(
    series: Mapping[str, Sequence[Cell]], chosen: str, middle: float, *, laws: bool
) -> tuple[float, float]:
    """The exponent around this ln of a chip's batch, and its standard deviation over the pairs; beside `laws` those of many own sizes tell little."""
    weights, values, distances = [], [], []
    for name, group in series.items():
        if not group:
            continue
        same = benchmark_of(group[0].benchmark) == benchmark_of(series[chosen][0].benchmark)
        pairs = _pairs(group)
        known = _KNOWN * (len(pairs) - 1) ** 2 if laws and name == chosen else 0.0
        for pair in pairs:
            distance = abs(pair.middle - middle)
            distance = distance if same and distance <= UNIT else _FOREIGN
            weight = (_OWN if name == chosen else _SAME) if same else _OTHER
            weights.append(weight * exp(-distance / _REACH))
            distances.append(distance + known)
            values.append(min(max(pair.exponent, 0.0), 1.0))
    if not weights:
        return 1.0, 0.5
    mean = float(np.average(values, weights=weights))
    spread = sqrt(float(np.average((np.array(values) - mean) ** 2, weights=weights)))
    return mean, hypot(spread, _LEAST_CHANGE, _CHANGE * float(np.average(distances, weights=weights)))


# -- simpler laws beside it -------------------------------------------------------------------------


def compared(cells: Sequence[Cell]) -> list[tuple[str, int, float, float | None, float | None]]:
    """Of each series with several sizes its name, its most chips, and the relative errors for these: of the forecast from all other cells, and of
    Amdahl's law (time of an epoch = fixed + compute / chips) and a power law of the chips, from the other sizes of the series.
    """
    found: list[tuple[str, int, float, float | None, float | None]] = []
    errors = left_out(cells)
    for name, group in series_of(cells).items():
        if name in errors:
            known = [cell for cell in group if _known(cell)]
            _, most = ends_of(known)
            rest = without(known, known, most)
            truth = (most.score_s or 1.0) / (most.epochs or 1.0)
            chips = np.array([cell.accelerators or 1 for cell in rest], dtype=np.float64)
            times = np.array([(cell.score_s or 1.0) / (cell.epochs or 1.0) for cell in rest])
            at = float(most.accelerators or 1)
            told: tuple[float | None, float | None] = (None, None)
            if len(set(chips.tolist())) > 1:
                fixed, compute = non_negative(np.column_stack([1 / times, 1 / chips / times]))[0]
                slope, level = np.polyfit(np.log(chips), np.log(times), 1)
                told = (fixed + compute / at) / truth - 1, exp(level + slope * log(at)) / truth - 1
            found.append((name, int(at), errors[name], *told))
    return found
