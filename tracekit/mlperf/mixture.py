"""The time of a step on more chips, by all laws that the sizes of a series may follow, each as far as they bear it out.

A step takes a part that follows a power of the batch of a chip, or compute and a fixed part; and messages around a ring, along a tree or on a 2-D torus,
or none. Few sizes seldom tell one law from all others, so the answer is every law with every share of its parts, each as likely as Bayes' rule makes it:
by how closely it meets the sizes, and by how likely it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from math import log2, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass

__all__ = ["Point", "Steps", "step_at"]

Floats = npt.NDArray[np.float64]
Point = tuple[int, float, float]
"""A size: its chips, the batch of a chip, and the time of a step."""


def _torus(chips: int) -> float:
    """Hops of one way on a 2-D torus: of 2^k chips those of the most square grid, and in between in proportion, so that numbers of chips without a
    square grid differ little from their neighbours.
    """
    doublings = chips.bit_length() - 1
    below, above = ((1 << each // 2) + (1 << each - each // 2) - 2 for each in (doublings, doublings + 1))
    return below + (chips / (1 << doublings) - 1) * (above - below)


_HOPS: Final[tuple[tuple[Callable[[int], float], float], ...]] = (
    (lambda chips: chips - 1, 0.3),
    (log2, 0.45),
    (_torus, 0.25),
)
"""Messages that follow each other around a ring, along a tree and on a torus, and how likely each is where there are messages."""
_POWERS: Final = tuple(tenths / 10 for tenths in range(2, 10))
"""The powers of the batch of a chip that are tried."""
_POWER, _FIXED, _COMPUTE = (0.35, 0.03), (0.45, 0.07), (0.07, 0.03)
"""How likely a power of the batch, compute and a fixed part, and compute alone are before any size is known, each without messages and with them."""
_SHARES: Final = 100
"""So many shares of a part are tried, small ones closer to each other: few messages on the sizes that were run may be many beyond."""
_NOISE: Final = ((0.003, 0.03), (0.01, 0.17), (0.02, 0.3), (0.03, 0.3), (0.05, 0.15), (0.1, 0.05))
"""By how much the steps of sizes may lie off their law, and how likely that is: mostly as runs of one configuration do."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What laws tell of a step."""

    levels: Floats
    """The logarithm of its time by each law."""
    chances: Floats
    """How likely each law is; they sum to 1."""
    noise: float
    """The standard deviation of all levels, by the noise of the sizes."""

    @property
    def level(self) -> float:
        """The mean."""
        return float(self.chances @ self.levels)

    @property
    def spread(self) -> float:
        """The standard deviation."""
        return sqrt(float(self.chances @ (self.levels - self.level) ** 2) + self.noise**2)


def step_at(points: Sequence[Point], chips: int, batch: float) -> Steps:
    """A step's time on so many chips with this batch of each.

    >>> from math import exp
    >>> points = [(chips, 512 / chips, 0.004 * 512 / chips + 0.02) for chips in (8, 16, 32, 64, 128)]
    >>> round(exp(step_at(points, 256, 2).level), 3)
    0.028
    """
    sizes = tuple(points)
    levels, chances, noise = _borne_out(sizes)
    return Steps(levels + _shapes(max(sizes), chips, batch), chances, noise)


@lru_cache(maxsize=1 << 8)  # each number of chips asks for them again
def _borne_out(points: tuple[Point, ...]) -> tuple[Floats, Floats, float]:
    """Of each law the level at which it meets the sizes best, and how likely they make it; and the standard deviation of the level."""
    most = max(points)
    above = np.stack([np.log(time) - _shapes(most, chips, batch) for chips, batch, time in points])
    levels = above.mean(axis=0)
    squares = ((above - levels) ** 2).sum(axis=0)
    noise, prior = np.array(_NOISE).T
    likely = np.log(prior) - (len(points) - 1) * np.log(noise) - squares[:, None] / 2 / noise**2
    likely += np.log(_laws()[-1])[:, None]
    chances = np.exp(likely - likely.max())
    chances /= chances.sum()
    return levels, chances.sum(axis=1), sqrt(float(chances.sum(axis=0) @ noise**2) / len(points))


def _shapes(most: Point, chips: int, batch: float) -> Floats:
    """By each law the logarithm of a step's time over that on the most chips."""
    powers, hops, fixed, messages, _ = _laws()
    grown = np.array([0.0, *(count(chips) / count(most[0]) for count, _ in _HOPS)])
    compute = (1 - fixed - messages) * (batch / most[1]) ** powers
    return np.asarray(np.log(compute + fixed + messages * grown[hops.astype(int)]))


@cache
def _laws() -> tuple[Floats, ...]:
    """Of all laws the powers of the batch, the numbers of their messages (0: none), the shares of what is fixed and of messages in a step on the most
    chips, and how likely each law is before any size is known.
    """
    powers, hops, fixed, messages, prior = np.array(list(_each_law())).T
    return powers, hops, fixed, messages, prior


def _each_law() -> Iterator[tuple[float, int, float, float, float]]:
    without, beside = _POWER
    for power in _POWERS:
        yield from _with_messages(power, 0.0, without / len(_POWERS), beside / len(_POWERS))
    yield from _with_messages(1.0, 0.0, *_COMPUTE)
    without, beside = _FIXED
    for fixed, chance in _shares():
        yield from _with_messages(
            1.0, fixed, chance * without, 2 * chance * beside
        )  # shares sum to 1 at most


def _with_messages(
    power: float, fixed: float, without: float, beside: float
) -> Iterator[tuple[float, int, float, float, float]]:
    yield power, 0, fixed, 0.0, without
    for number, (_, likely) in enumerate(_HOPS, start=1):
        for messages, chance in _shares():
            if fixed + messages < 1:
                yield power, number, fixed, messages, beside * likely * chance


def _shares() -> list[tuple[float, float]]:
    """The squares of even steps, and how likely each is if all shares are alike."""
    steps = [(step + 0.5) / _SHARES for step in range(_SHARES)]
    return [(step**2, 2 * step / _SHARES) for step in steps]
