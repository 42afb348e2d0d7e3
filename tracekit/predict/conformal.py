"""Intervals from how far predictions were off where the answer was known (conformal prediction), on the logarithm of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.predict.support import INSIDE, Places
from tracekit.predict.table import Floats

__all__ = ["LEVEL", "Intervals", "intervals_of"]

LEVEL: Final = 0.9
"""The share of times that lie in their interval."""
_ANY: Final = "any"
_LEAST: Final = 10
_NARROWEST: Final = 0.005
_WIDEST: Final = 5.0


@dataclass(frozen=True, slots=True)
class Intervals:
    """By kind of question, the half-width of the interval in logarithms, and the distance at which it was learnt."""

    level: float
    widths: Mapping[str, tuple[float, float]]

    def half_widths(self, places: Places) -> Floats:
        """The half-width of each row's interval, in logarithms: along each axis wider beyond the distance at which errors were seen, and
        along several axes as errors of independent causes add up, in squares.
        """
        outside = [width for kind, (width, _) in self.widths.items() if kind != INSIDE]
        otherwise = self.widths.get(_ANY, (max(outside, default=_WIDEST), 1.0))
        squares = np.zeros(places.kind.size)
        for axis, distance in places.axes.items():
            width, learnt = self.widths.get(axis, otherwise)
            squares += (distance > 0) * (width * np.maximum(1.0, distance / max(learnt, 0.1))) ** 2
        inside = self.widths.get(INSIDE, otherwise)[0]
        found: Floats = np.clip(np.where(squares > 0, np.sqrt(squares), inside), _NARROWEST, _WIDEST)
        return found

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {"level": self.level, "widths": {kind: list(each) for kind, each in self.widths.items()}}

    @staticmethod
    def restore(state: Mapping[str, Any]) -> Intervals:
        """The intervals of a state. Raises ValueError, KeyError, TypeError or AttributeError for one that is none."""
        widths = {
            str(kind): (float(width), float(learnt)) for kind, (width, learnt) in state["widths"].items()
        }
        level = float(state["level"])
        if not 0 < level < 1 or not all(width >= 0 and learnt >= 0 for width, learnt in widths.values()):
            raise ValueError("an interval has no width")
        return Intervals(level, widths)


def intervals_of(residuals: Floats, weights: Floats, places: Places, level: float = LEVEL) -> Intervals:
    """Intervals from the residuals (logarithms of measured over predicted) of rows that were foretold without being fitted.

    `weights`: of each row, one over the number of its configuration's repetitions. The errors along an axis are those of rows that are
    outside along no other, where there are 10 configurations of them. Axes of fewer configurations share the residuals of all rows
    outside.
    """
    beyond = np.array([distance > 0 for distance in places.axes.values()]).reshape(-1, residuals.size)
    count = beyond.sum(axis=0)
    widths = {}

    def learn(kind: str, rows: npt.NDArray[np.bool_], distance: Floats) -> None:
        learnt = float(np.median(distance[rows]))
        widths[kind] = (_quantile(np.abs(residuals[rows]), weights[rows], level), learnt)

    for (axis, distance), rows in zip(places.axes.items(), beyond, strict=True):
        alone = rows & (count == 1)
        enough = [each for each in (alone, rows) if weights[each].sum() >= _LEAST]
        if enough:
            learn(axis, enough[0], distance)
    if count.any():
        learn(_ANY, count > 0, places.distance)
    if residuals.size:
        inside = count == 0
        learn(INSIDE, inside if weights[inside].sum() >= _LEAST else inside >= 0, np.zeros(residuals.size))
    return Intervals(level, widths)


def _quantile(values: Floats, weights: Floats, level: float) -> float:
    """The weighted quantile, as if one more configuration had the largest value."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / (weights.sum() + 1)
    return float(values[order][min(int(np.searchsorted(reached, level)), values.size - 1)])
