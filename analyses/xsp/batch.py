"""The batch from which a model gains no more (XSP's optimal batch size)."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

__all__ = ["GAIN", "optimal_batch"]

GAIN: Final = Fraction(5, 100)
"""A doubled batch that brings no more throughput than this is not worth its memory; XSP's threshold."""


def optimal_batch(runs: Mapping[int, tuple[int, float]]) -> tuple[int | None, bool]:
    """The smallest batch b for which 2b was run too and brings at most 5 % more throughput, and whether it is open.

    `runs` gives for each batch the samples of a step and its time in ns. When no doubling stops to gain, it is the
    largest batch, and open: a larger one may still gain. None, and open, when there are no runs.

    >>> optimal_batch({1: (1, 100.0), 2: (2, 110.0), 4: (4, 220.0)})
    (2, False)
    >>> optimal_batch({1: (1, 100.0), 2: (2, 110.0)})
    (2, True)
    """
    # As fractions: a gain of exactly 5 % must not depend on how a quotient was rounded.
    rates = {batch: Fraction(samples) / Fraction(time) for batch, (samples, time) in runs.items()}
    for batch in sorted(rates):
        if 2 * batch in rates and rates[2 * batch] <= (1 + GAIN) * rates[batch]:
            return batch, False
    return max(rates, default=None), True
