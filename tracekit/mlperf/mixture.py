"""The time of a step on more chips, by all laws that the sizes of a series may follow, each as far as they bear it out.

A step takes a part that follows a power of the batch of a chip, or compute and a fixed part; and messages around a ring, along a tree or on a 2-D torus,
or none. Few sizes seldom tell one law from all others, so the answer is the mean over all laws. A law weighs what Bayes' rule gives it: by how closely
its best factors meet the sizes, and by how many other factors would meet them as well, so that a law with more of them has to meet them better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import log, pi
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.scaling.laws import HOPS, non_negative

__all__ = ["Point", "step_at"]

Floats = npt.NDArray[np.float64]
Point = tuple[int, float, float]
"""A size: its chips, the batch of a chip, and the time of a step."""

_POWERS: Final = tuple(tenths / 10 for tenths in range(2, 11))
"""The powers of the batch of a chip that are tried."""
_TOLD_APART: Final = 1e6
"""The most by which rounding may grow in a fit."""
_POWER, _FIXED = 0.6, 0.4
"""How likely a power of the batch and a fixed part are before any size is known."""
_MESSAGES: Final = 0.25
"""Likewise messages beside either."""
_NOISE: Final = ((1e-7, 0.02), (0.02, 0.2), (0.03, 0.3), (0.05, 0.25), (0.1, 0.2))
"""By how much the steps of sizes may lie off their law, and how likely that is: mostly as runs of one configuration do. Nothing measured is exact."""


@dataclass(frozen=True, slots=True)
class _Law:
    """A law with the factors by which it meets the sizes best."""

    power: float
    """Of the batch of a chip."""
    fixed: bool
    hops: str
    """`ring`, `tree` or `torus`; empty: no messages."""
    factors: Floats
    covariance: Floats
    weight: float
    """The logarithm of its probability, up to a summand that all laws have."""

    def at(self, chips: int, batch: float) -> tuple[float, float]:
        """The logarithm of a step's time, and its standard deviation."""
        row = _row(self.power, self.hops, chips, batch, fixed=self.fixed)
        time = float(row @ self.factors)
        return log(time), float(row @ self.covariance @ row) ** 0.5 / time


def step_at(points: Sequence[Point], chips: int, batch: float) -> tuple[float, float]:
    """The logarithm of a step's time on so many chips with this batch of each, and its standard deviation: that of each law and that between them.

    >>> from math import exp
    >>> points = [(chips, 512 / chips, 0.004 * 512 / chips + 0.02) for chips in (8, 16, 32, 64)]
    >>> level, _ = step_at(points, 128, 4)
    >>> round(exp(level), 4)
    0.036
    """
    laws = _laws(tuple(points))
    weights = np.exp(np.array([law.weight for law in laws]) - max(law.weight for law in laws))
    weights /= weights.sum()
    levels, spreads = np.array([law.at(chips, batch) for law in laws]).T
    level = float(weights @ levels)
    return level, float(weights @ (spreads**2 + (levels - level) ** 2)) ** 0.5


@lru_cache(maxsize=1 << 10)  # each number of chips asks for them again
def _laws(points: tuple[Point, ...]) -> list[_Law]:
    kinds = chain(
        ((power, False, hops) for power in _POWERS for hops in ("", *HOPS)),
        ((1.0, True, hops) for hops in ("", *HOPS)),
    )
    return [law for kind in kinds if (law := _law(points, *kind)) is not None]


def _law(points: Sequence[Point], power: float, fixed: bool, hops: str) -> _Law | None:
    """The law of this kind; None if the sizes do not tell its parts apart."""
    rows = np.array([_row(power, hops, chips, batch, fixed=fixed) for chips, batch, _ in points])
    design = rows / np.array([time for *_, time in points])[:, None]
    count, free = design.shape
    scale = np.linalg.norm(design, axis=0)
    if free > count or not scale.all() or np.linalg.cond(design / scale) > _TOLD_APART:
        return None
    factors, squares = non_negative(design)
    if not factors[: 2 if fixed else 1].any():  # messages alone: on one chip a step would take no time
        return None
    noise, prior = np.array(_NOISE).T
    # Of each noise, the probability of the sizes over all factors that are shares of the step on the most chips.
    likely = np.log(prior) - (count - free) * np.log(noise) - squares / 2 / noise**2
    shares = design / design[max(range(count), key=lambda at: points[at][0])]
    evidence = (
        float(np.logaddexp.reduce(likely))
        + free / 2 * log(2 * pi)
        - np.linalg.slogdet(shares.T @ shares)[1] / 2
    )
    variance = float(np.exp(likely - likely.max()) @ noise**2 / np.exp(likely - likely.max()).sum())
    before = _FIXED if fixed else _POWER / len(_POWERS)
    before *= _MESSAGES / len(HOPS) if hops else 1 - _MESSAGES
    return _Law(
        power, fixed, hops, factors, np.linalg.inv(design.T @ design) * variance, log(before) + evidence
    )


def _row(power: float, hops: str, chips: int, batch: float, *, fixed: bool) -> Floats:
    """What the factors of a law are multiplied by; a sum over all chips goes there and back."""
    messages = [2 * HOPS[hops](chips)] if hops else []
    return np.array([batch**power, *([1.0] if fixed else []), *messages])
