"""The training of YOLOv5: three parameter groups, warm-up, a falling learning rate, averaged weights."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["Training", "WeightAverage", "accumulated", "parameter_groups"]

_LEARNING_RATE = 0.01
_MOMENTUM = 0.937
_WEIGHT_DECAY = 5e-4
_NOMINAL_BATCH = 64
_EPOCHS = 300
_WARM_UP_EPOCHS = 3
_LEAST_WARM_UP = 100
_WARM_UP_MOMENTUM = 0.8
_WARM_UP_BIAS_RATE = 0.1
_AVERAGE_DECAY = 0.9999
_AVERAGE_RAMP = 2000.0


def accumulated(batch: int) -> int:
    """Return the number of batches of `batch` over which gradients are accumulated, to reach about 64 images."""
    return max(round(_NOMINAL_BATCH / batch), 1)


def parameter_groups(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Parameter]]:
    """Return the biases, the convolutions' weights and the normalisations' weights of `model`.

    Each parameter is in exactly one group, in the order of the modules.
    """
    biases: list[nn.Parameter] = []
    weights: list[nn.Parameter] = []
    norms: list[nn.Parameter] = []
    seen: set[nn.Parameter] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in seen:
                continue
            seen.add(parameter)
            if name == "bias":
                biases.append(parameter)
            elif isinstance(module, _BatchNorm):
                norms.append(parameter)
            else:
                weights.append(parameter)
    return biases, weights, norms


class WeightAverage:
    """An exponential moving average of all floating-point entries of a model's state.

    `state` maps an entry's name, without the prefixes of wrappers, to its average.
    """

    def __init__(self) -> None:
        self.state: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def start(self, model: nn.Module) -> None:
        """Begin at the current state of `model`."""
        self.state = {name: value.clone() for name, value in _floating_state(model).items()}

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        """Move towards the state of `model` after this number of `updates`; fewer updates move it more."""
        decay = _AVERAGE_DECAY * (1 - math.exp(-updates / _AVERAGE_RAMP))
        for name, value in _floating_state(model).items():
            self.state[name].mul_(decay).add_(value, alpha=1 - decay)


class Training:
    """Makes the optimizer, and after each update sets its rates and averages the weights.

    An instance is a `Recipe`'s `after_update`. `batches_per_epoch` sets the lengths of the warm-up and of the
    fall to `final_share` of the learning rate; each batch counts as an update.
    """

    def __init__(self, *, batch: int, batches_per_epoch: int, final_share: float) -> None:
        self.weight_decay = _WEIGHT_DECAY * batch * accumulated(batch) / _NOMINAL_BATCH
        self.batches_per_epoch = max(batches_per_epoch, 1)
        self.warm_up = max(_WARM_UP_EPOCHS * self.batches_per_epoch, _LEAST_WARM_UP)
        self.final_share = final_share
        self.average = WeightAverage()
        self._optimizer: torch.optim.Optimizer | None = None

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """Return SGD for `model`, set for the first update, and start the average at its weights."""
        biases, weights, norms = parameter_groups(model)
        optimizer = torch.optim.SGD(
            [
                {"params": biases, "weight_decay": 0.0},
                {"params": weights, "weight_decay": self.weight_decay},
                {"params": norms, "weight_decay": 0.0},
            ],
            lr=_LEARNING_RATE,
            momentum=_MOMENTUM,
            nesterov=True,
        )
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        self.average.start(model)
        self._optimizer = optimizer
        self._set_rates(optimizer, 0)
        return optimizer

    def __call__(self, model: nn.Module, updates: int) -> None:
        """Average the weights of `model` and set the optimizer for the update after `updates`."""
        if self._optimizer is None:
            raise RuntimeError("the weights cannot be averaged before the optimizer exists")
        self.average.update(model, updates)
        self._set_rates(self._optimizer, updates)

    def learning_rates(self, updates: int) -> tuple[float, float]:
        """Return the biases' and the other parameters' learning rate after this number of updates."""
        epoch = min(updates // self.batches_per_epoch, _EPOCHS)
        rate = _LEARNING_RATE * (1 - epoch / _EPOCHS * (1 - self.final_share))
        warmth = min(updates / self.warm_up, 1.0)
        return _WARM_UP_BIAS_RATE + warmth * (rate - _WARM_UP_BIAS_RATE), warmth * rate

    def momentum(self, updates: int) -> float:
        """Return the momentum after this number of updates."""
        warmth = min(updates / self.warm_up, 1.0)
        return _WARM_UP_MOMENTUM + warmth * (_MOMENTUM - _WARM_UP_MOMENTUM)

    def _set_rates(self, optimizer: torch.optim.Optimizer, updates: int) -> None:
        bias_rate, rate = self.learning_rates(updates)
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] = rate if number else bias_rate
            group["momentum"] = self.momentum(updates)


def _floating_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the floating-point entries of the model that DistributedDataParallel or torch.compile wraps."""
    while True:
        inner = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            break
        model = inner
    # The names of a separately compiled block contain the name of its wrapper.
    return {
        name.replace("_orig_mod.", ""): value
        for name, value in model.state_dict().items()
        if value.is_floating_point()
    }
