"""A count of unusable samples that loader processes share."""

from __future__ import annotations

import torch
from torch.utils.data import get_worker_info

__all__ = ["SkipCounter"]

_SLOTS = 256


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
