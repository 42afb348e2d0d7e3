"""Optimizers whose learning rate depends on the number of updates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tracekit.manifest import Setting

__all__ = ["AdamWWithWarmUp", "ScheduledOptimizer", "linear_warmup"]


def linear_warmup(rate: float, updates: int) -> Callable[[int], float]:
    """Return the learning rate of update 1, 2, ...: up to `rate` in equal steps over `updates`, then `rate`."""
    return lambda update: rate * min(1.0, update / updates)


class ScheduledOptimizer:
    """Makes an optimizer, and sets its learning rate after each update.

    `optimizer` and `after_update` are those of a `Recipe`; they use the optimizer made last.
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


class AdamWWithWarmUp(ScheduledOptimizer):
    """AdamW whose learning rate rises linearly to `rate` over 100 updates; for a `tiny` model to 0.01 over 4.

    Weights of two dimensions and more decay, biases and the scales of norms do not. `config` are its settings, for
    the manifest.
    """

    def __init__(self, rate: float, *, decay: float, tiny: bool) -> None:
        rate, warm_up = (1e-2, 4) if tiny else (rate, 100)
        super().__init__(self._adamw, linear_warmup(rate, warm_up))
        self._decay = decay
        self.config: dict[str, Setting] = {
            "optimizer": "AdamW",
            "learning_rate": rate,
            "weight_decay": decay,
            "warm_up_updates": warm_up,
        }

    def _adamw(self, model: nn.Module, rate: float) -> torch.optim.Optimizer:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [each for each in trained if each.dim() > 1], "weight_decay": self._decay},
            {"params": [each for each in trained if each.dim() <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate)
