"""Made-up samples, and a count of unusable samples of real data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils.data import Dataset, get_worker_info

from tracekit.capture.workloads.data.random import torch_generator

__all__ = ["GeneratedSamples", "SkipCounter"]

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
