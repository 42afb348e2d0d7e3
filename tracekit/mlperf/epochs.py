"""The epochs that a batch needs, by those of the batches that were run, and how far they may be wrong.

Beyond these batches epochs E follow a power of the batch B, or the law of a critical batch, E = E0 · (1 + B / Bc), by which they hardly grow with small
batches and in proportion to large ones. Both are as likely as the batches that were run make them. Epochs never fall as the batch grows, and at worst
they double as it does: then a larger batch needs as many steps as a smaller one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, hypot, log
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.mlperf.cells import Cell

__all__ = ["epochs_at"]

_SAME: Final = 0.03
"""Epochs at one batch differ by so much."""
_LEAST: Final = 0.05
"""Powers by which epochs grow with the batch differ by so much at least."""
_UNKNOWN: Final = 0.3
"""The power by which they grow where no two batches tell it."""
_NOISE: Final = ((0.01, 0.25), (0.02, 0.25), (0.03, 0.25), (0.05, 0.15), (0.1, 0.1))
"""By how much epochs may lie off their law, and how likely that is."""
_SLOPES: Final = np.linspace(0, 1, 201)
"""The powers of the batch by which epochs may grow."""
_TAIL, _SIDES = 0.01, 1.96
"""What lies beyond either end of an interval, and how many standard deviations that is."""

Floats = npt.NDArray[np.float64]


def epochs_at(
    series: Mapping[str, Sequence[Cell]], chosen: str, batch: int
) -> tuple[float, tuple[float, float]]:
    """The epochs that this batch needs: between the batches that were run in proportion to their logarithms, beyond them by the laws of epochs; and how
    far they may lie below and above, as standard deviations of their logarithm.
    """
    points = _points(series[chosen])
    places, at = [place for place, _ in points], log(batch)
    epochs = float(np.interp(at, places, [epochs for _, epochs in points]))
    below, above = (at - place for place in _beside(places, at))
    chances = _chances(series, chosen, at - below)
    if below > 0 > above:  # between two it is known from both
        far = below * -above / (below - above)
        unsure = hypot(_SAME, far * float((chances * _SLOPES**2).sum()) ** 0.5)
        return epochs, (unsure, unsure)
    grown = _growths(below)
    told = float(chances.sum(axis=1) @ grown[(0, 1), chances.argmax(axis=1)])
    order = grown.ravel().argsort()
    reached = chances.ravel()[order].cumsum()
    low, high = grown.ravel()[order][np.searchsorted(reached, (_TAIL, 1 - _TAIL))]
    sides = (_SAME + max(each, 0.0) / _SIDES for each in (told - low, high - told))
    return epochs * exp(told), (next(sides), next(sides))


def _beside(places: Sequence[float], at: float) -> tuple[float, float]:
    """The nearest places on both sides; beyond them the last one twice."""
    below, above = [place for place in places if place <= at], [place for place in places if place >= at]
    return (below or above[:1])[-1], (above or below[-1:])[0]


def _points(group: Sequence[Cell]) -> list[tuple[float, float]]:
    """The logarithms of the batches, with the mean of the epochs at each."""
    at: defaultdict[float, list[float]] = defaultdict(list)
    for cell in group:
        at[log(cell.batch or 1)].append(cell.epochs or 1.0)
    return sorted((place, float(np.mean(epochs))) for place, epochs in at.items())


def _growths(far: float) -> Floats:
    """The logarithms by which epochs grow so far from a batch, in its logarithm: by a power, and by the law of a critical batch that has this power there."""
    return np.stack([_SLOPES * far, np.log1p(_SLOPES * np.expm1(far))])


def _chances(series: Mapping[str, Sequence[Cell]], chosen: str, end: float) -> Floats:
    """How likely each law with each power at this batch is: by the powers of other series, and by how closely it meets the own batches. Of one batch
    there is only the power of others.
    """
    others = [
        log(more[1] / less[1]) / (more[0] - less[0])
        for name, group in series.items()
        for less, more in pairwise(_points(group))
        if name != chosen
    ]
    mean, spread = (
        (float(np.mean(others)), hypot(float(np.std(others)), _LEAST)) if others else (0.0, _UNKNOWN)
    )
    points = _points(series[chosen])
    above = np.stack([log(epochs) - _growths(place - end) for place, epochs in points])
    squares = ((above - above.mean(axis=0)) ** 2).sum(axis=0)
    noise, prior = np.array(_NOISE).T
    likely = np.log(prior) - (len(points) - 1) * np.log(noise) - squares[..., None] / 2 / noise**2
    likely = np.logaddexp.reduce(likely, axis=-1) - ((_SLOPES - mean) / spread) ** 2 / 2
    if len(points) == 1:
        likely[1] = -np.inf
    chances = np.exp(likely - likely.max())
    return np.asarray(chances / chances.sum())
