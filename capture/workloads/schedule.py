"""A learning rate that depends on the number of updates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

__all__ = ["ScheduledOptimizer", "linear_warmup"]


def linear_warmup(rate: float, updates: int) -> Callable[[int], float]:
    """Return the learning rate of update 1, 2, ...: up to `rate` in equal steps over `updates`, then `rate`."""
    return lambda update: rate * min(1.0, update / updates)


class ScheduledOptimizer:
    """Makes an optimizer, and sets its learning rate after each update.

    `optimizer` and `after_update` are what a `Recipe` needs of these names; they work on the optimizer made last.
    """

    def __init__(
        self, make: Callable[[nn.Module, float], torch.optim.Optimizer], rate: Callable[[int], float]
    ) -> None:
        """Take `make`, which gets the model and the first rate, and the `rate` of update 1, 2, ..."""
        self._make = make
        self._rate = rate
        self._optimizer: torch.optim.Optimizer | None = None

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer of `model`, with the rate of the first update."""
        self._optimizer = self._make(model, self._rate(1))
        return self._optimizer

    def after_update(self, model: nn.Module, updates: int) -> None:
        """Set the rate of the update after `updates`."""
        del model
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate(updates + 1)
