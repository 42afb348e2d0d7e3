"""Counts the FLOPs of operators that run: torch's counter, and the fused operators that it does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from traceback import walk_tb
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["by_counter", "flop_counter"]

Shape = Sequence[int]


def flop_counter() -> FlopCounterMode:
    """A context that counts 2 × multiply-adds of matrix products, convolutions, attention and recurrent layers.

    Torch's own counter counts a fused attention on a CPU and a fused LSTM or GRU as 0, and fails (until 2.11) if heads share
    keys. Neither counts operators inside a compiled graph. Its `get_total_flops()` is the count.

    >>> with flop_counter() as counter:
    ...     _ = torch.nn.LSTM(3, 5)(torch.zeros(7, 2, 3))
    >>> counter.get_total_flops() == 2 * 7 * 2 * (4 * 5) * (3 + 5)
    True
    """
    operators = torch.ops.aten
    # A torch without one of these operators cannot run it either.
    mapping: dict[Any, Any] = {
        getattr(operators, name): count for name, count in _COUNTS.items() if hasattr(operators, name)
    }
    return FlopCounterMode(display=False, custom_mapping=mapping)


def by_counter(error: BaseException) -> bool:
    """True if the error arose in torch's counter, or in an operator that it ran."""
    return any(
        frame.f_code.co_filename == torch.utils.flop_counter.__file__
        for frame, _ in walk_tb(error.__traceback__)
    )


def _fused_layer(inputs: Shape, weight: Shape, recurrent: Shape, *_: object, **__: object) -> int:
    """One direction of one layer: every weight is multiplied with every element of the sequence once."""
    return 2 * prod(inputs[:-1]) * (prod(weight) + prod(recurrent))


def _fused_network(inputs: Shape, weights: Sequence[Shape], *_: object, **__: object) -> int:
    """All layers and directions at once; vectors among the weights are biases."""
    return 2 * prod(inputs[:-1]) * sum(prod(weight) for weight in weights if len(weight) > 1)


def _twice(forward: Callable[..., int]) -> Callable[..., int]:
    """Backward: one product for the gradient of the inputs, one for that of the weights."""

    def count(*shapes: Any, **_: object) -> int:
        return 2 * forward(*shapes)

    return count


def _attention(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    """Scores and their product with the values, for each head of the query: several may share a key."""
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _attention_backward(_: Shape, query: Shape, key: Shape, value: Shape, *__: object, **___: object) -> int:
    """The scores once more, and the gradients of scores, values, queries and keys."""
    return 2 * prod(query[:-1]) * key[-2] * (3 * query[-1] + 2 * value[-1])


_ATTENTION = (
    "efficient_attention",
    "flash_attention",
    "cudnn_attention",
    "fused_attention_overrideable",
    "flash_attention_for_cpu",
)
_COUNTS: dict[str, Callable[..., int]] = {
    "mkldnn_rnn_layer": _fused_layer,
    "mkldnn_rnn_layer_backward": _twice(_fused_layer),
    "_cudnn_rnn": _fused_network,
    "_cudnn_rnn_backward": _twice(_fused_network),
    "miopen_rnn": _fused_network,
    "miopen_rnn_backward": _twice(_fused_network),
    **{f"_scaled_dot_product_{name}": _attention for name in _ATTENTION},
    **{f"_scaled_dot_product_{name}_backward": _attention_backward for name in _ATTENTION},
}
