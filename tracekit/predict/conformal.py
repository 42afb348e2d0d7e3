"""Intervals from how far predictions were off where the answer was known (conformal prediction), on the logarithm of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

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
        """The half-width of each row's interval, in logarithms: wider beyond the distance at which the kind's errors were seen."""
        outside = [width for kind, (width, _) in self.widths.items() if kind != INSIDE]
        otherwise = self.widths.get(_ANY, (max(outside, default=_WIDEST), 1.0))
        width = np.array([self.widths.get(kind, otherwise)[0] for kind in places.kind])
        learnt = np.array([self.widths.get(kind, otherwise)[1] for kind in places.kind])
        grown = np.where(
            places.kind == INSIDE, 1.0, np.maximum(1.0, places.distance / np.maximum(learnt, 0.1))
        )
        found: Floats = np.clip(width * grown, _NARROWEST, _WIDEST)
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

    `weights`: of each row, one over the number of its configuration's repetitions. Kinds of question with fewer than 10
    configurations share the residuals of all kinds outside.
    """
    outside = places.kind != INSIDE
    widths = {}
    for kind in (*dict.fromkeys(places.kind), _ANY):
        rows = outside if kind == _ANY else places.kind == kind
        if weights[rows].sum() >= _LEAST or (kind == _ANY and rows.any()):
            learnt = float(np.median(places.distance[rows]))
            widths[kind] = (_quantile(np.abs(residuals[rows]), weights[rows], level), learnt)
    if INSIDE not in widths and residuals.size:
        widths[INSIDE] = (_quantile(np.abs(residuals), weights, level), 0.0)
    return Intervals(level, widths)


def _quantile(values: Floats, weights: Floats, level: float) -> float:
    """The weighted quantile, as if one more configuration had the largest value."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / (weights.sum() + 1)
    return float(values[order][min(int(np.searchsorted(reached, level)), values.size - 1)])
