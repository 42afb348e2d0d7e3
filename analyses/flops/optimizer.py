"""Optimizers that update all parameters in one call (`_fused_…`): FLOPs for each parameter.

Adam is 13: 3 for the mean of the gradients, 4 for that of their squares, 3 for its root, 3 for the step; a decay of the weights adds
2, that of AdamW 1. SGD is 2, with momentum 3 more, Nesterov's 2 more, with decay 2 more. Adagrad is 6. Bytes: parameters, gradients
and states are read, parameters and states written.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from tracekit.analyses.flops.tensors import LIST, list_precision, list_shapes, list_width, made
from tracekit.analyses.flops.work import Family, Inputs, Work

__all__ = ["FAMILY"]

FAMILY: Final = Family("optimizer")


def _number(inputs: Inputs, place: int) -> float:
    return float(inputs.concrete[place])


def _adam(inputs: Inputs) -> int:
    """`_fused_adam_(self, grads, means, squares, largest, steps, lr, beta1, beta2, weight_decay, …)`."""
    return 13 + 2 * (_number(inputs, 9) != 0)


def _adamw(inputs: Inputs) -> int:
    return 13 + (_number(inputs, 9) != 0)


def _sgd(inputs: Inputs) -> int:
    """`_fused_sgd_(self, grads, momentum_buffers, weight_decay, momentum, lr, dampening, nesterov, …)`."""
    moves = 3 + 2 * inputs.flag(7) if _number(inputs, 4) else 0
    return 2 + moves + 2 * (_number(inputs, 3) != 0)


def _adagrad(inputs: Inputs) -> int:
    """`_fused_adagrad_(self, grads, sums, steps, lr, lr_decay, weight_decay, …)`."""
    return 6 + 2 * (_number(inputs, 6) != 0)


def _declare(name: str, flops: Callable[[Inputs], int], states: range) -> None:
    @FAMILY.model(f"aten::{name}")
    def work(inputs: Inputs) -> Work:
        elements, width = sum(map(prod, list_shapes(inputs, 0))), list_width(inputs, 0)
        kept = sum(
            1 for place in states if inputs.shapes[place] and str(inputs.dtypes[place]).startswith(LIST)
        )
        read, written = made(elements * (2 + kept), width), made(elements * (1 + kept), width)
        return Work(elements * flops(inputs), read, written, list_precision(inputs, 0))


for _name, _flops, _states in (
    ("_fused_adam_", _adam, range(2, 5)),
    ("_fused_adamw_", _adamw, range(2, 5)),
    ("_fused_sgd_", _sgd, range(2, 3)),
    ("_fused_adagrad_", _adagrad, range(2, 3)),
):
    _declare(_name, _flops, _states)
