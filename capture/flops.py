"""Counts the FLOPs of operators that run: torch's counter, and the fused operators that it does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

__all__ = ["flop_counter"]

Shape = Sequence[int]


def flop_counter() -> FlopCounterMode:
    """A context that counts 2 × multiply-adds of matrix products, convolutions, attention and recurrent layers.

    Torch's own counter counts a fused attention on a CPU and a fused LSTM or GRU as 0. Neither counts operators inside a
    compiled graph. Its `get_total_flops()` is the count.

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
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(
    gradient: Shape, query: Shape, key: Shape, value: Shape, *_: object, **__: object
) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]


_COUNTS: dict[str, Callable[..., int]] = {
    "mkldnn_rnn_layer": _fused_layer,
    "mkldnn_rnn_layer_backward": _twice(_fused_layer),
    "_cudnn_rnn": _fused_network,
    "_cudnn_rnn_backward": _twice(_fused_network),
    "miopen_rnn": _fused_network,
    "miopen_rnn_backward": _twice(_fused_network),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
