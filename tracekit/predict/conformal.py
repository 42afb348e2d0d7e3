"""Intervals from how far predictions were off where the answer was known (conformal prediction), on the logarithm of the time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.predict.describe import CATEGORIES
from tracekit.predict.support import INSIDE, Places
from tracekit.predict.table import Floats

__all__ = ["LEVEL", "Intervals", "intervals_of"]

LEVEL: Final = 0.9
"""The share of times that lie in their interval."""
_ANY: Final = "any"
_LEAST: Final = 10
_NARROWEST: Final = 0.005
_WIDEST: Final = 5.0
_LARGEST: Final = 1e3
"""No residual of a logarithm, and no distance, is larger."""
_DOUBLED: Final = 0.5 * float(np.log(2))
"""Along an axis that never varied a doubling may do all between nothing and its most, to double or to halve the time: so far, as a
logarithm, either end is from the middle.
"""
_NOTHING_ASKED: Final = float(np.log(2))
"""The half-width where too few configurations were measured to leave any out."""


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
        if not 0 < level < 1 or not all(0 <= each <= _LARGEST for pair in widths.values() for each in pair):
            raise ValueError("an interval has no width")
        return Intervals(level, widths)


def intervals_of(
    residuals: Floats,
    weights: Floats,
    places: Places,
    folds: npt.NDArray[np.int64],
    level: float = LEVEL,
    constant: Iterable[str] = (),
    of_two: Iterable[str] = (),
) -> Intervals:
    """Intervals from the residuals (logarithms of measured over predicted) of rows that were foretold without being fitted.

    `weights`: of each row, one over the number of its configuration's repetitions; `folds`: the question in which it was foretold;
    `constant`: the axes that never varied, of which nothing can be learnt but what doubling can do at most; `of_two`: those with two
    values, along which a time may bend by half as much. The
    errors along an axis are those of rows that are outside along no other, where there are 10 configurations of them. Axes of fewer
    configurations share the residuals of all rows outside. Without any residual a time may be half or twice as long.
    """
    if not residuals.size:
        return Intervals(level, {INSIDE: (_NOTHING_ASKED, 0.0), _ANY: (_NOTHING_ASKED, 1.0)})
    beyond = np.array([distance > 0 for distance in places.axes.values()]).reshape(-1, residuals.size)
    count = beyond.sum(axis=0)
    widths = {}
    for (axis, distance), rows in zip(places.axes.items(), beyond, strict=True):
        alone = rows & (count == 1)
        enough = next((each for each in (alone, rows) if weights[each].sum() >= _LEAST), None)
        if enough is not None:
            of = (residuals[enough], weights[enough])
            width = (
                _of_names(*of, folds[enough], level)
                if axis in CATEGORIES
                else _quantile(np.abs(of[0]), of[1], level)
            )
            widths[axis] = (width, float(np.median(distance[enough])))
    if (outside := count > 0).any():
        width = _quantile(np.abs(residuals[outside]), weights[outside], level)
        widths[_ANY] = (width, float(np.median(places.distance[outside])))
        widths.update({axis: (float(np.hypot(width, _DOUBLED)), 1.0) for axis in constant})
        widths.update({axis: (max(width, _DOUBLED / 2), 1.0) for axis in of_two if axis not in widths})
    if residuals.size:
        inside = ~outside if weights[~outside].sum() >= _LEAST else count >= 0
        widths[INSIDE] = (_quantile(np.abs(residuals[inside]), weights[inside], level), 0.0)
    return Intervals(level, widths)


def _of_names(residuals: Floats, weights: Floats, folds: npt.NDArray[np.int64], level: float) -> float:
    """The half-width for a name that was never seen, from names that were left out, each in its fold.

    What all rows of a name have in common is one draw for each name, however many rows it has, and a few draws tell the size of the
    next one by Student's distribution. How the rows of a name differ is seen in all of them.
    """
    from scipy.special import stdtrit  # noqa: PLC0415 - an extra, which only fitting needs

    numbers, fold = np.unique(folds, return_inverse=True)
    total = np.bincount(fold, weights)
    common = np.bincount(fold, weights * residuals) / total
    draws = max(numbers.size, 2)
    between = float(stdtrit(draws, (1 + level) / 2)) * float(np.sqrt(np.mean(common**2)))
    within = _quantile(np.abs(residuals - common[fold]), weights * total.mean() / total[fold], level)
    return float(np.hypot(between, within))


def _quantile(values: Floats, weights: Floats, level: float) -> float:
    """The weighted quantile, as if one more configuration had the largest value."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / (weights.sum() + 1)
    return float(values[order][min(int(np.searchsorted(reached, level)), values.size - 1)])
