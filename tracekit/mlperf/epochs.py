"""The epochs that a batch needs, by those of the batches that were run, and how far they may be wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import hypot, log
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


def epochs_at(series: Mapping[str, Sequence[Cell]], chosen: str, batch: int) -> tuple[float, float]:
    """The epochs that this batch needs: between the batches that were run in proportion to their logarithms, beyond them as at the last; and the standard
    deviation of their logarithm. It grows with the distance from these batches by the powers of the batch that epochs follow in all series.
    """
    points = _points(series[chosen])
    places, at = [place for place, _ in points], log(batch)
    epochs = float(np.interp(at, places, [epochs for _, epochs in points]))
    below, above = (at - place for place in _beside(places, at))
    far = (
        below * -above / (below - above) if below > 0 > above else min(map(abs, (below, above)))
    )  # between two it is known from both
    return epochs, hypot(_SAME, far * _power(series.values()))


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


def _power(groups: Iterable[Sequence[Cell]]) -> float:
    """The root mean square of the powers of the batch by which epochs grow from one batch to the next."""
    powers = [
        log(more[1] / less[1]) / (more[0] - less[0])
        for group in groups
        for less, more in pairwise(_points(group))
    ]
    return hypot(float(np.sqrt(np.mean(np.square(powers)))), _LEAST) if powers else _UNKNOWN
