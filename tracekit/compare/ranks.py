"""Rank correlations and Pareto sets of many groups at once."""

from __future__ import annotations

from math import sqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["kendall_taus", "pareto_sets"]

_Array: TypeAlias = npt.NDArray[Any]


def kendall_taus(one: _Array, other: _Array, group: _Array) -> list[float | None]:
    """Kendall's τ-b of two figures of the same things, −1 to 1, of each group (their numbers count from 0); None if all values of a
    figure are equal there.

    Pairs that tie in a figure count for neither order, and the norm leaves them out of that figure's pairs.

    >>> one, other = np.array([1, 2, 3, 4, 1, 1]), np.array([10, 20, 40, 30, 2, 3])
    >>> kendall_taus(one, other, np.array([0, 0, 0, 0, 1, 1]))
    [0.6666666666666666, None]
    """
    order = np.lexsort((other, one, group))
    one, other, group = one[order], np.unique(other[order], return_inverse=True)[1], group[order]
    pairs, of_one, of_both = (_ties(group, *keys) for keys in ((), (one,), (one, other)))
    again = np.lexsort((other, group))
    of_other = _ties(group[again], other[again])
    score = pairs - of_one - of_other + of_both - 2 * _inversions(other, group)
    norms = zip((pairs - of_one).tolist(), (pairs - of_other).tolist(), strict=True)
    return [s / sqrt(a * b) if a and b else None for s, (a, b) in zip(score.tolist(), norms, strict=True)]


def _ties(group: _Array, *keys: _Array) -> _Array:
    """How many pairs of each group agree in all these keys, by which its members are sorted."""
    heads = np.flatnonzero(_begins(group, *keys))
    sizes = np.diff(np.append(heads, group.size))
    return np.bincount(group[heads], sizes * (sizes - 1) // 2).astype(np.int64)


def _begins(*keys: _Array) -> _Array:
    """Where a row differs from the one before it."""
    begins = np.ones(keys[0].size, dtype=bool)
    begins[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return begins


def _inversions(values: _Array, group: _Array) -> _Array:
    """How many pairs of each group, whose members are neighbours, stand in falling order. The values are small whole numbers.

    Members are parted by one bit after the other, from the highest: a pair falls if its first bit that differs does.
    """
    found = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
    part = np.cumsum(_begins(group)) - 1
    for bit in range(int(values.max(initial=0)).bit_length() - 1, -1, -1):
        high = values >> bit & 1
        before = np.cumsum(high) - high
        before -= before[np.flatnonzero(_begins(part))][part]
        found += np.bincount(group, np.where(high, 0, before), found.size).astype(np.int64)
        order = np.argsort(2 * part + high, kind="stable")
        values, group, part, high = values[order], group[order], part[order], high[order]
        part = np.cumsum(_begins(part, high)) - 1
    return found


def pareto_sets(one: _Array, other: _Array, group: _Array) -> _Array:
    """Which points no other one of their group is below: not larger in both figures, and smaller in at least one.

    >>> pareto_sets(np.array([1, 2, 3, 3]), np.array([5, 7, 2, 2]), np.zeros(4, int)).tolist()
    [True, False, True, True]
    """
    order = np.lexsort((other, one, group))
    one, group = one[order], group[order]
    rank = np.unique(other[order], return_inverse=True)[1]
    # In a later group every rank is below those of the groups before it, so that these never count.
    rank += (group.max(initial=0) - group) * rank.size
    begins = _begins(group, one)
    least = rank[begins]
    lowest = np.append(np.iinfo(np.int64).max, np.minimum.accumulate(least))[:-1]
    run = np.cumsum(begins) - 1
    inside = np.zeros(order.size, dtype=bool)
    inside[order] = (least < lowest)[run] & (rank == least[run])
    return inside
