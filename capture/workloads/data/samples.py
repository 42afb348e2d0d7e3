"""Generated samples, the random numbers that they are made of, and a count of unusable samples of real data.

Random numbers depend only on the seed and the index of the sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

__all__ = [
    "GeneratedSamples",
    "SkipCounter",
    "bounded_zipf",
    "hashed_uniform",
    "log_normal_length",
    "numpy_generator",
    "torch_generator",
]

_EPOCH: Final = 50_000
_SLOTS: Final = 256


class GeneratedSamples(Dataset[Any]):
    """50,000 samples that `make` makes from a random state; each depends only on its index and the seed."""

    def __init__(self, make: Callable[[torch.Generator], Any], seed: int) -> None:
        self.make = make
        self.seed = seed

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> Any:
        return self.make(torch_generator(self.seed, index))


class SkipCounter:
    """Counts over all loader processes without a lock, which not every kind of process can inherit.

    Each worker adds to its own slot in shared memory; with more than 255 workers some share a slot, and if two of them
    count at the same instant, one count may be lost.
    """

    def __init__(self) -> None:
        self._slots = torch.zeros(_SLOTS, dtype=torch.int64, device="cpu")
        self._slots.share_memory_()  # type: ignore[no-untyped-call]

    def add(self, count: int = 1) -> None:
        """Count `count` more, in any process."""
        worker = get_worker_info()
        self._slots[0 if worker is None else 1 + worker.id % (_SLOTS - 1)] += count

    def __call__(self) -> int:
        """Return the count of all processes so far."""
        return int(self._slots.sum())


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def numpy_generator(seed: int, index: int) -> np.random.Generator:
    """Return the generator of sample `index` in the data set of this `seed`; `seed` may be negative."""
    return np.random.default_rng([seed % 2**64, index])


def torch_generator(seed: int, index: int) -> torch.Generator:
    """Return the random state of sample `index` in the data set of this `seed`, on the host."""
    return torch.Generator(device="cpu").manual_seed((seed * 1_000_003 + index) % (1 << 63))


def hashed_uniform(seed: int, indices: NDArray[np.int64], columns: int) -> NDArray[np.float64]:
    """Return uniform numbers in (0, 1) of shape (len(indices), columns); a row depends on its index and the seed.

    Unlike a generator for each sample, this makes thousands of rows at once: number k of the splitmix64 sequence
    is a hash of k, so that any row can be made without the rows before it.
    """
    start = _splitmix64(np.array(seed % 2**64, dtype=np.uint64))
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is intended
        first: NDArray[np.uint64] = indices.astype(np.uint64) * np.uint64(columns)
        places: NDArray[np.uint64] = np.add.outer(first + start, np.arange(columns, dtype=np.uint64))
        bits = _splitmix64(places)
    # The middle of each of 2**53 equal parts of (0, 1): neither end, so that a logarithm is finite. The topmost
    # would round up to 1.
    uniform: NDArray[np.float64] = np.minimum(((bits >> np.uint64(11)) + 0.5) * 2.0**-53, 1 - 2.0**-53)
    return uniform


def _splitmix64(places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        state = (places + np.uint64(1)) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed


def bounded_zipf(
    uniform: NDArray[np.float64], sizes: NDArray[np.int64] | int, exponent: float
) -> NDArray[np.int64]:
    """Return ranks in [0, size) that fall off as (rank + 1) ** -exponent, by the inverse of their distribution.

    The distribution is the continuous one on [1, size + 1), rounded down, so that no table of its sums is needed,
    however many ranks there are. `sizes` is broadcast to `uniform`. `exponent` must not be 1.
    """
    if exponent == 1:
        raise ValueError("the inverse distribution has another form at exponent 1")
    top = np.asarray(sizes, dtype=np.float64) + 1
    power = 1 - exponent
    ranks = (uniform * (top**power - 1) + 1) ** (1 / power)
    capped: NDArray[np.int64] = np.minimum(ranks.astype(np.int64), np.asarray(sizes, dtype=np.int64)) - 1
    return capped


def log_normal_length(
    random: np.random.Generator, *, median: float, sigma: float, least: int, most: int
) -> int:
    """Return a length drawn from a log-normal distribution, rounded and clipped to [least, most]."""
    drawn = random.lognormal(np.log(median), sigma)
    return int(min(max(round(drawn), least), most))
