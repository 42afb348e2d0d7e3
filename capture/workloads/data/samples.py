"""Samples that are made up, and a count of those of real data that cannot be used."""

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
    """50,000 samples that `make` makes from a random state; each depends on its index and the seed alone."""

    def __init__(self, make: Callable[[torch.Generator], Any], seed: int) -> None:
        self.make = make
        self.seed = seed

    def __len__(self) -> int:
        return _EPOCH

    def __getitem__(self, index: int) -> Any:
        return self.make(torch_generator(self.seed, index))


class SkipCounter:
    """Counts over all loader processes without a lock, which could not be handed to processes of every kind.

    Each worker adds to a slot of its own in shared memory; beyond 255 workers some share one, and a count made by
    two of them at the same instant may be lost.
    """

    def __init__(self) -> None:
        self._slots = torch.zeros(_SLOTS, dtype=torch.int64, device="cpu")
        self._slots.share_memory_()  # type: ignore[no-untyped-call]

    def add(self, count: int = 1) -> None:
        """Count `count` more, in whatever process this is."""
        worker = get_worker_info()
        self._slots[0 if worker is None else 1 + worker.id % (_SLOTS - 1)] += count

    def __call__(self) -> int:
        """Return the count so far, of all processes."""
        return int(self._slots.sum())
