"""Forecasts of the time to train on systems that were not run, from cells of several sizes.

A run takes epochs · K(b) / batch and what stands apart from training. Where a series has several sizes that is what evaluations take while nothing
trains, and it stays as chips are added (in round 0.6 it follows a power of the chips of −0.02, the median of the pairs of sizes); a node alone may
evaluate otherwise than many do, so of a series of one size it is the last evaluation. K, the training time of an epoch times the batch, depends on
the batch of a chip, b, since a step's time does. Chips get less efficient as b gets smaller: K falls like a power of b, whose exponent changes slowly.
So K of a size that was not run follows from that of the nearest b in its series, along the exponent that pairs of neighbouring sizes show: of its own
series, of other systems with this benchmark, and, with little weight, of other benchmarks. Far pairs count less. Between two b that were run it follows
from both, so that it is theirs at either. Where the sizes follow a law of the steps (compute that follows b, a fixed part, and messages), and it foretells
the largest of them far better, K follows this law. Where sizes have one batch of a chip and K grows with the chips all the same, it follows the law of
messages that they fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt
from typing import Final

import numpy as np

from tracekit.mlperf.cells import Cell, ends_of, kind_of, series_of
from tracekit.mlperf.epochs import epochs_at
from tracekit.scaling.laws import Fit, fit_steps, non_negative

__all__ = [
    "Forecast",
    "Question",
    "benchmark_of",
    "compared",
    "doubling_end",
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
_UNIT: Final = log(30)
"""Batches of a chip that differ by more on systems of one benchmark have another unit."""
_LAST: Final = 0.1
"""The last evaluation is at most this part of a run."""
_LEAST_SPREAD: Final = 0.03
"""Runs of one configuration differ by so much."""
_BEYOND: Final = 0.15
"""The standard deviation of the exponent at larger batches of a chip than any that was run, by which forecasts of left-out sizes of round 0.6 err."""
_HALF: Final = 0.5
_NO_STEP: Final = 1e-9
"""Logarithms that differ by less are the same."""
_SIDES: Final = 1.96
_GAIN: Final = 1.1
_ALIKE: Final = {"maskrcnn": "mask"}
"""Benchmarks that submitters call by several names."""


@dataclass(frozen=True, slots=True)
class Question:
    """A configuration to forecast. `system` and `organisation` may be empty: then any system with the benchmark serves."""

    benchmark: str
    accelerators: int
    batch: int | None = None
    """Of all chips; None: that of the nearest size."""
    epochs: float | None = None
    """None: by the batch, as the series' cells show it."""
    organisation: str = ""
    system: str = ""
    round: str = ""


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
    (195.3, 32, 0.678)
    """
    series = {name: [cell for cell in group if _known(cell)] for name, group in series_of(cells).items()}
    chosen = _series_for(series, question)
    if chosen is None:
        return None
    own = series[chosen]
    near = min(own, key=lambda cell: abs(log((cell.accelerators or 1) / question.accelerators)))
    batch = question.batch or near.batch or 1
    epochs, unsure = (question.epochs, 0.0) if question.epochs else epochs_at(series, chosen, batch)
    at = log(batch / question.accelerators)
    level, spread, exponent, closest = _level_along(series, chosen, at, question.accelerators)
    if (law := _law_of(series, chosen)) is not None:
        level, spread = _level_by(law, own, at, question.accelerators)
    apart = _apart(near, _several(own))
    training = epochs * exp(level) / batch
    beyond = _BEYOND * max(0.0, at - max(map(_place, own)))
    error = hypot(_LEAST_SPREAD, spread, beyond, unsure)
    seconds = training + apart
    return Forecast(seconds, seconds * exp(-_SIDES * error), seconds * exp(_SIDES * error), batch, epochs, closest.accelerators or 0, exponent)  # fmt: skip


def _level_along(
    series: Mapping[str, Sequence[Cell]], chosen: str, at: float, chips: int
) -> tuple[float, float, float, Cell]:
    """The level at this batch of a chip by the exponents from the sizes nearest to it, its standard deviation, and from the nearest one the exponent
    and the cell.
    """
    own = series[chosen]
    closest = min(own, key=lambda cell: (round(abs(_place(cell) - at), 9), -(cell.accelerators or 0)))
    level, spread, exponent = _level_from(series, chosen, closest, at, chips)
    if (opposite := _opposite(own, closest, at)) is not None:
        other, other_spread, _ = _level_from(series, chosen, opposite, at, chips)
        near_by, far_off = (at - _place(closest)) ** 2, (at - _place(opposite)) ** 2
        weight = near_by / (near_by + far_off)  # as the errors of both grow with the distance
        level, spread = (1 - weight) * level + weight * other, (1 - weight) * spread + weight * other_spread
    return level, spread, exponent, closest


def _level_from(
    series: Mapping[str, Sequence[Cell]], chosen: str, cell: Cell, at: float, chips: int
) -> tuple[float, float, float]:
    """The level at this batch of a chip as it follows from that of a cell, its standard deviation, and the exponent along which it does."""
    own = series[chosen]
    alike = [other for other in own if abs(_place(other) - _place(cell)) < _NO_STEP]
    level, unsure = _level_at(alike, _several(own), chips)
    exponent, spread = _exponent(series, chosen, (at + _place(cell)) / 2)
    far = at - _place(cell)
    return level + exponent * far, sqrt(unsure**2 + (spread * far) ** 2), exponent


def _opposite(own: Sequence[Cell], closest: Cell, at: float) -> Cell | None:
    """The cell nearest to this batch of a chip on the other side of it than the closest one."""
    side = at - _place(closest)
    others = [cell for cell in own if (_place(cell) - at) * side > _NO_STEP]
    return min(
        others, key=lambda cell: (round(abs(_place(cell) - at), 9), -(cell.accelerators or 0)), default=None
    )


def question_of(cell: Cell) -> Question:
    """The question whose answer is the score of this cell."""
    return Question(
        cell.benchmark,
        cell.accelerators or 1,
        cell.batch,
        cell.epochs,
        cell.organisation,
        cell.system,
        cell.round,
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


def doubling_end(cells: Sequence[Cell], question: Question) -> int | None:
    """The number of chips, doubled from that of the question, from which another doubling at the same batch gains less than 10 %, or would
    leave a chip less than one sample; None if nothing is known.
    """
    chips, before = question.accelerators, forecast(cells, question)
    while before is not None and 2 * chips <= before.batch:
        asked = replace(question, accelerators=2 * chips, batch=before.batch, epochs=before.epochs)
        after = forecast(cells, asked)
        if after is None or before.seconds < _GAIN * after.seconds:
            break
        chips, before = 2 * chips, after
    return None if before is None else chips


# -- of cells ---------------------------------------------------------------------------------------


def _known(cell: Cell) -> bool:
    return bool(cell.batch and cell.accelerators and cell.score_s and cell.epochs)


def benchmark_of(name: str) -> str:
    """The name of a benchmark, one for all that submitters give it."""
    return _ALIKE.get(name.lower(), name.lower())


def _place(cell: Cell) -> float:
    """The logarithm of the batch of a chip."""
    return log((cell.batch or 1) / (cell.accelerators or 1))


def _several(group: Sequence[Cell]) -> bool:
    """Whether a series has several sizes."""
    return len({cell.accelerators for cell in group}) > 1


def _apart(cell: Cell, several: bool) -> float:
    """The seconds in which a run only evaluates; with one size those of an evaluation: of the last one nothing is hidden."""
    shares, score = cell.shares, cell.score_s or 0.0
    if several and shares is not None:
        return shares[1] * score
    lengths = [end - begin for run in cell.succeeded for begin, end in run.evaluation_s]
    return min(float(np.mean(lengths)) if lengths else 0.0, _LAST * score)


def _level(cell: Cell, several: bool) -> float:
    """The logarithm of K: the training time of an epoch times the batch."""
    seconds = (cell.score_s or 0.0) - _apart(cell, several)
    return log(seconds * (cell.batch or 1) / (cell.epochs or 1.0))


def _level_at(alike: Sequence[Cell], several: bool, chips: int) -> tuple[float, float]:
    """The level on so many chips by the cells with its batch of a chip, and its standard deviation.

    There a step grows with the messages alone: by the law of several sizes if one is named; by a power of the chips if three or more show one,
    from which they lie half as far as from their mean at most; else it is the mean.
    """
    levels = [_level(cell, several) for cell in alike]
    steps = [(cell.accelerators or 1, 1.0, exp(level)) for cell, level in zip(alike, levels, strict=True)]
    law = next((fit for fit in fit_steps(steps) if fit.best), None)
    if law is None:
        places = [log(count) for count, _, _ in steps]
        spread = float(np.std(levels))
        if len(set(places)) > 2:
            slope, level = np.polyfit(places, levels, 1)
            rest = float(np.std(np.array(levels) - slope * np.array(places)))
            if slope > 0 and rest <= _HALF * spread:
                return float(level + slope * log(chips)), spread
        return float(np.mean(levels)), spread
    middle, _, high = law.step_at(chips, 1.0)
    return log(middle), log(high / middle) / _SIDES


# -- laws -------------------------------------------------------------------------------------------


def _law_of(series: Mapping[str, Sequence[Cell]], chosen: str) -> Fit | None:
    """The law of the steps that the sizes of a series name, else one that they lie close to, which they may be too few to name. It has to err for
    the largest size, from the others, by half of what the exponents do at most, and by less than the other laws.
    """
    *rest, most = own = sorted(series[chosen], key=lambda cell: cell.accelerators or 0)
    near = [fit for fit in _fits(own) if "fixed_ns" in fit.values and fit.residual <= _LEAST_SPREAD]
    near = [fit for fit in near if fit.best] or near
    before = {fit.law: fit for fit in _fits(rest)}
    at, chips, truth = _place(most), most.accelerators or 1, _level(most, _several(own))
    errors = {
        fit.law: abs(_level_by(before[fit.law], rest, at, chips)[0] - truth)
        for fit in near
        if fit.law in before
    }
    if not errors:
        return None
    along, *_ = _level_along({**series, chosen: rest}, chosen, at, chips)
    law = min((fit for fit in near if fit.law in errors), key=lambda fit: errors[fit.law])
    return law if errors[law.law] <= _HALF * abs(along - truth) else None


def _fits(own: Sequence[Cell]) -> tuple[Fit, ...]:
    several = _several(own)
    return fit_steps(
        [(cell.accelerators or 1, exp(_place(cell)), exp(_level(cell, several))) for cell in own]
    )


def _level_by(law: Fit, own: Sequence[Cell], at: float, chips: int) -> tuple[float, float]:
    """The level at this batch of a chip by a law of these sizes, and its standard deviation."""
    least = min(own, key=lambda cell: cell.accelerators or 0)
    middle, _, high = law.step_at(chips, exp(at - _place(least)))
    return log(middle), log(high / middle) / _SIDES


# -- exponents --------------------------------------------------------------------------------------


def _series_for(series: Mapping[str, Sequence[Cell]], question: Question) -> str | None:
    """The series of the system, else one of its organisation, else any with the benchmark, the one with the most sizes."""
    wanted = [
        name
        for name, group in series.items()
        if group and benchmark_of(group[0].benchmark) == benchmark_of(question.benchmark)
    ]

    def fits(name: str) -> tuple[bool, bool, bool, int]:
        cell = series[name][0]
        same = cell.organisation.lower() == question.organisation.lower()
        asked = kind_of(question.system, question.accelerators).lower()
        return (
            same and kind_of(cell.system, cell.accelerators).lower() == asked,
            same,
            cell.round == question.round,
            len(series[name]),
        )

    return max(wanted, key=fits, default=None)


def _pairs(group: Sequence[Cell]) -> list[_Pair]:
    """The neighbours along the batch of a chip."""
    places = sorted({round(_place(cell), 9) for cell in group})
    levels = [
        float(np.mean([_level(cell, _several(group)) for cell in group if round(_place(cell), 9) == place]))
        for place in places
    ]
    return [
        _Pair(
            (levels[at + 1] - levels[at]) / (places[at + 1] - places[at]),
            (places[at + 1] + places[at]) / 2,
        )
        for at in range(len(places) - 1)
    ]


def _exponent(series: Mapping[str, Sequence[Cell]], chosen: str, middle: float) -> tuple[float, float]:
    """The exponent around this ln of a chip's batch, and its standard deviation over the pairs."""
    weights, values = [], []
    for name, group in series.items():
        if not group:
            continue
        same = benchmark_of(group[0].benchmark) == benchmark_of(series[chosen][0].benchmark)
        for pair in _pairs(group):
            distance = abs(pair.middle - middle)
            distance = _FOREIGN if distance > _UNIT else distance
            weight = (_OWN if name == chosen else _SAME) if same else _OTHER
            weights.append(weight * exp(-(distance if same else _FOREIGN) / _REACH))
            values.append(min(max(pair.exponent, 0.0), 1.0))
    if not weights:
        return 1.0, 0.5
    mean = float(np.average(values, weights=weights))
    return mean, sqrt(float(np.average((np.array(values) - mean) ** 2, weights=weights)) + 0.05**2)


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
