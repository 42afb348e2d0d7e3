"""Fused attention: its two products, of the pairs of a query and a key that are not masked (DEFINITIONS §7)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY", "attention_flops"]

FAMILY: Final = Family("attention")

Shape = Sequence[int]


def attention_flops(
    query: Shape, key: Shape, value: Shape, *, causal: bool = False, backward: bool = False
) -> int:
    """FLOPs of a fused attention of query (B, H, Nq, d), key and value (B, H', Nkv, d): its two products.

    Grouped heads count as many as the query has. Causal: query i sees the keys 0 … i, as torch aligns them. Backward
    recomputes the scores and makes four more products: 2.5 × forward.

    >>> attention_flops((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)), attention_flops((1, 1, 3, 8), (1, 1, 2, 8), (1, 1, 2, 8), causal=True)
    (1024, 160)
    """
    batch, heads, queries, width = query
    keys = key[2]
    whole = min(queries, keys)
    pairs = whole * (whole + 1) // 2 + (queries - whole) * keys if causal else queries * keys
    forward = 2 * batch * heads * pairs * (width + value[3])
    return forward * 5 // 2 if backward else forward


def _attention(at: int, causal: int, *, backward: bool = False) -> Model:
    """The model of an attention whose query, key and value begin at one place, and whose flag `is_causal` is at another."""

    def work(inputs: Inputs) -> Work:
        query, key, value = (inputs.shape(at + place, 4) for place in range(3))
        # The output has the queries' places and the values' width; backward, each gradient has the size of its tensor.
        tensors = inputs.sizes(range(at, at + 3))
        width = inputs.itemsize(at)
        output = None if width is None else prod(query[:3]) * value[3] * width
        return Work(
            attention_flops(query, key, value, causal=inputs.flag(causal), backward=backward),
            # Backward reads the gradient of the output, and the output itself, beside the inputs.
            tensors if not backward or tensors is None or output is None else tensors + 2 * output,
            tensors if backward else output,
            inputs.precision(at),
            "matrix",
        )

    return work


_SDPA: Final = "aten::_scaled_dot_product_"
_PLACES: Final = {
    "flash_attention": (0, 4, False),
    "flash_attention_for_cpu": (0, 4, False),
    "efficient_attention": (0, 6, False),
    "cudnn_attention": (0, 6, False),
    "flash_attention_backward": (1, 11, True),
    "flash_attention_for_cpu_backward": (1, 7, True),
    "efficient_attention_backward": (1, 11, True),
    "cudnn_attention_backward": (1, 14, True),
}
"""Where torch's schemas have the query and the flag `is_causal`, and whether it is the backward."""

for _name, (_at, _causal, _backward) in _PLACES.items():
    FAMILY.model(_SDPA + _name)(_attention(_at, _causal, backward=_backward))
