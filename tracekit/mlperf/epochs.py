"""The epochs that a batch needs, by those of the batches that were run, and how far they may be wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, hypot, log
from typing import Final

import numpy as np

from tracekit.mlperf.cells import Cell

__all__ = ["epochs_at"]

_SAME: Final = 0.03
"""Epochs at one batch differ by so much."""
_LEAST: Final = 0.05
"""Powers by which epochs grow with the batch differ by so much at least."""
_UNKNOWN: Final = 0.3
"""The power by which they grow where no two batches tell it."""
_REACH: Final = log(4)
"""The weight of a batch so far from the last one, in logarithms, falls to 1/e."""
_CHANGE: Final = 0.5
"""Powers change by such a part of themselves beyond the batches that were run: epochs hardly grow with small batches, and in proportion to large ones."""


def epochs_at(series: Mapping[str, Sequence[Cell]], chosen: str, batch: int) -> tuple[float, float]:
    """The epochs that this batch needs: between the batches that were run in proportion to their logarithms, beyond them along a power of the batch; and
    the standard deviation of their logarithm, which grows with the distance from these batches.
    """
    points = _points(series[chosen])
    places, at = [place for place, _ in points], log(batch)
    epochs = float(np.interp(at, places, [epochs for _, epochs in points]))
    power, unsure = _power(series, chosen, at)
    below, above = (at - place for place in _beside(places, at))
    if below > 0 > above:  # between two it is known from both
        return epochs, hypot(_SAME, below * -above / (below - above) * hypot(power, unsure))
    return epochs * exp(power * below), hypot(_SAME, abs(below) * hypot(unsure, _CHANGE * power))


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


def _power(series: Mapping[str, Sequence[Cell]], chosen: str, at: float) -> tuple[float, float]:
    """The power of the batch by which epochs grow around this logarithm of one, between 0 and 1, and its standard deviation: of the own series, near
    batches first, and of all others, each as far as it is known.
    """
    others = [
        log(more[1] / less[1]) / (more[0] - less[0])
        for name, group in series.items()
        for less, more in pairwise(_points(group))
        if name != chosen
    ]
    told = [(float(np.mean(others)), hypot(float(np.std(others)), _LEAST)) if others else (0.0, _UNKNOWN)]
    places, levels = np.array(_points(series[chosen])).T
    if len(places) > 1:
        weights = np.exp(-np.abs(places - places[np.abs(places - at).argmin()]) / _REACH)
        apart = places - np.average(places, weights=weights)
        squares = float(weights @ apart**2)
        told.append(
            (float(weights @ (apart * np.log(levels))) / squares, hypot(_SAME / squares**0.5, _LEAST))
        )
    sure = [1 / spread**2 for _, spread in told]
    mean = sum(weight * power for weight, (power, _) in zip(sure, told, strict=True)) / sum(sure)
    return min(max(mean, 0.0), 1.0), sum(sure) ** -0.5
