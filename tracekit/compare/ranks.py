"""Rank correlation and Pareto sets."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

__all__ = ["kendall_tau", "pareto_set"]


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's τ-b of two figures of the same things, −1 to 1; None if all values of one of them are equal.

    Pairs that tie in a figure count for neither order, and the norm leaves them out of that figure's pairs.

    >>> kendall_tau([1, 2, 3, 4], [10, 20, 40, 30])
    0.6666666666666666
    >>> kendall_tau([1, 1], [2, 3]) is None
    True
    """
    a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    score = of_one = of_other = 0
    for at in range(len(a) - 1):
        first, second = np.sign(a[at + 1 :] - a[at]), np.sign(b[at + 1 :] - b[at])
        score += int((first * second).sum())
        of_one += int(np.count_nonzero(first))
        of_other += int(np.count_nonzero(second))
    return score / sqrt(of_one * of_other) if of_one and of_other else None


def pareto_set(one: Sequence[float], other: Sequence[float]) -> list[bool]:
    """Which points no other one is below: not larger in both figures, and smaller in at least one.

    >>> pareto_set([1, 2, 3, 3], [5, 7, 2, 2])
    [True, False, True, True]
    """
    values, place = np.unique(np.asarray(one, dtype=np.float64), return_inverse=True)
    cost = np.asarray(other, dtype=np.float64)
    least = np.full(len(values), np.inf)
    np.minimum.at(least, place, cost)
    before = np.minimum.accumulate(np.concatenate([[np.inf], least]))[:-1]
    found: list[bool] = ((cost == least[place]) & (least < before)[place]).tolist()
    return found
