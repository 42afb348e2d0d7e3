"""Floating-point operations of matrix products, convolutions and attention, from recorded shapes.

2 × multiply-adds; a bias adds one operation for each element of the output. Every other operator has no count here,
and neither has one whose shapes, or whose scalar arguments where they matter, were not recorded: None, never 0.
Operators are nested (`aten::convolution` calls `aten::cudnn_convolution`), so only the outermost that can be counted
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl

from tracekit.spans import Int64Array, Nesting, take

__all__ = [
    "FIRST_FACTOR",
    "PRECISIONS",
    "CountedOperators",
    "attention_flops",
    "convolution_backward_flops",
    "convolution_flops",
    "counted_operators",
    "json_list",
    "matmul_flops",
    "operator_flops",
    "product_sizes",
]

Shape = Sequence[int]

_MOST: Final = 2**53
"""Above this the shapes are damaged: no operator runs for hours, and sums must fit 64 bits."""

PRECISIONS: Final = {"float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16", "double": "fp64"}
"""What the profiler calls a type of tensors, and the precision in whose peak it is measured."""

_NAMES: Final = tuple(PRECISIONS.values())

_ODD: Final = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(RecursionError, msgspec.DecodeError),
)
"""What inputs raise that are not those of an operator."""

_MOST_DIMENSIONS: Final = 64
"""No tensor has more; products of far more sizes would take minutes."""


def matmul_flops(m: int, k: int, n: int, *, batch: int = 1, bias: bool = False) -> int:
    """FLOPs of `batch` products m×k · k×n, with a bias that is added to each element of the result.

    >>> matmul_flops(2, 3, 4), matmul_flops(2, 3, 4, batch=5, bias=True)
    (48, 280)
    """
    return 2 * batch * m * k * n + (batch * m * n if bias else 0)


def convolution_flops(
    inputs: Shape,
    weight: Shape,
    *,
    stride: Shape = (1,),
    padding: Shape = (0,),
    dilation: Shape = (1,),
    transposed: bool = False,
    output_padding: Shape = (0,),
    groups: int = 1,
    bias: bool = False,
) -> int:
    """FLOPs of a convolution of `inputs` (N, C_in, …) with `weight`, in torch's layouts, any number of dimensions.

    The weight's second size is C_in / groups; of a transposed convolution C_out / groups. A list with one entry holds
    for all dimensions. Raises ValueError when the sizes do not fit each other.

    >>> convolution_flops((1, 3, 8, 8), (16, 3, 3, 3), padding=(1,))
    55296
    """
    size, kernel = list(inputs[2:]), list(weight[2:])
    if len(inputs) != len(weight) or not size or groups < 1:
        message = f"no convolution of {list(inputs)} with {list(weight)}"
        raise ValueError(message)
    steps, pads, gaps, extra = (_each(v, len(size)) for v in (stride, padding, dilation, output_padding))
    sides = zip(size, kernel, steps, pads, gaps, extra, strict=True)
    if transposed:
        output = [(a - 1) * s - 2 * p + d * (k - 1) + e + 1 for a, k, s, p, d, e in sides]
    else:
        output = [(a + 2 * p - d * (k - 1) - 1) // s + 1 for a, k, s, p, d, _ in sides]
    if min(output) < 0:
        message = f"a convolution of {list(inputs)} with {list(weight)} has no output"
        raise ValueError(message)
    # Every place of the output meets the whole kernel; transposed, every place of the input does.
    flops = 2 * inputs[0] * prod(size if transposed else output) * prod(weight)
    channels = weight[1] * groups if transposed else weight[0]
    return flops + (inputs[0] * channels * prod(output) if bias else 0)


def convolution_backward_flops(
    inputs: Shape, weight: Shape, *, wanted: Sequence[bool] = (True, True), **how: Any
) -> int:
    """FLOPs of the gradients of a convolution: those of the forward for each that is wanted, of inputs and weight.

    `how` are the arguments of `convolution_flops`.

    >>> convolution_backward_flops((1, 3, 8, 8), (16, 3, 3, 3), wanted=(False, True), padding=(1,))
    55296
    """
    return sum(map(bool, wanted[:2])) * convolution_flops(inputs, weight, **how)


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


def operator_flops(name: str, shapes: Any, concrete: Any) -> int | None:
    """FLOPs of one call of an operator as the profiler writes its inputs; None where they cannot be told.

    `shapes` are those of the inputs, `concrete` the scalar arguments as texts, both by position.

    >>> operator_flops("aten::mm", [[2, 3], [3, 4]], ["", ""]), operator_flops("aten::add", [[2], [2]], [])
    (48, None)
    """
    formula = _FORMULAS.get(name)
    if formula is None:
        return None
    try:
        flops = formula(_Inputs(shapes, concrete))
    except _ODD:
        return None  # a trace is foreign matter: its shapes may be anything
    return flops if 0 <= flops <= _MOST else None


def product_sizes(name: str, shapes: Any) -> tuple[int, int, int, int] | None:
    """The batch, m, k and n of one call of a matrix product m×k · k×n; None of other operators and of odd inputs.

    >>> product_sizes("aten::addmm", [[4], [2, 3], [3, 4]]), product_sizes("aten::bmm", [[5, 2, 3], [5, 3, 4]])
    ((1, 2, 3, 4), (5, 2, 3, 4))
    """
    at = FIRST_FACTOR.get(name)
    if at is None:
        return None
    try:
        inputs = _Inputs(shapes, [])
        one, other = inputs.shape(at, 2), inputs.shape(at + 1, 2)
    except _ODD:
        return None
    if len(one) != len(other) or len(one) > 3 or one[:-2] != other[:-2] or one[-1] != other[-2]:
        return None
    return prod(one[:-2]), one[-2], one[-1], other[-1]


@dataclass(frozen=True, slots=True, eq=False)
class CountedOperators:
    """Arrays with one entry per host span.

    `flops` are those of the spans that count, −1 for the others; `precision` is an index into `names`, −1 for none;
    `owner` is the span that counts around each span, itself included, −1 for none.
    """

    flops: Int64Array
    precision: Int64Array
    owner: Int64Array
    names: tuple[str, ...] = _NAMES


def counted_operators(host: pl.DataFrame, nesting: Nesting) -> CountedOperators:
    """Which spans of `trace.host` can be counted, outermost first, and around which spans they lie."""
    keys = ["name", "shapes", "dtypes", "concrete_inputs"]
    spans_with_shapes = host.select("span_id", *keys).filter(
        pl.col("shapes").is_not_null() & pl.col("name").cast(pl.String).is_in(list(_FORMULAS))
    )
    flops = np.full(host.height, -1, dtype=np.int64)
    precision = flops.copy()
    # Calls of one operator with the same inputs are the same: few are told apart, however many there are.
    distinct = spans_with_shapes.select(keys).unique(maintain_order=True)
    counts = [_count(*row) for row in distinct.with_columns(pl.all().cast(pl.String)).rows()]
    by_inputs = distinct.with_columns(
        pl.Series("flops", [count for count, _ in counts], dtype=pl.Int64),
        pl.Series("precision", [_NAMES.index(p) if p in _NAMES else -1 for _, p in counts], dtype=pl.Int64),
    )
    rows = spans_with_shapes.join(by_inputs, on=keys, how="left", nulls_equal=True).filter(
        pl.col("flops").is_not_null()
    )
    spans = rows["span_id"].to_numpy()
    counted = np.zeros(host.height, dtype=bool)
    counted[spans] = True
    outermost = counted & (nesting.nearest_ancestor(counted, include_self=False) < 0)
    flops[spans], precision[spans] = rows["flops"].to_numpy(), rows["precision"].to_numpy()
    owner = nesting.nearest_ancestor(outermost)
    return CountedOperators(np.where(outermost, flops, -1), take(precision, owner), owner)


def _count(name: str, shapes: str, dtypes: str | None, concrete: str | None) -> tuple[int | None, str | None]:
    types = json_list(dtypes)
    precisions = [PRECISIONS[t] for t in types if isinstance(t, str) and t in PRECISIONS]
    return operator_flops(name, json_list(shapes), json_list(concrete)), precisions[0] if precisions else None


def json_list(text: str | None) -> list[Any]:
    """The list that a column of inputs (`shapes`, `dtypes`, `concrete_inputs`) holds as JSON; empty if it holds none.

    >>> json_list("[[2, 3], []]"), json_list("[[2"), json_list(None)
    ([[2, 3], []], [], [])
    """
    try:
        value = msgspec.json.decode(text) if text else []
    except (msgspec.DecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a call, by position; a missing or damaged one raises what `operator_flops` catches."""

    shapes: Any
    concrete: Any

    def shape(self, place: int, least: int = 1) -> list[int]:
        sizes = self.shapes[place]
        if (
            not isinstance(sizes, list)
            or not least <= len(sizes) <= _MOST_DIMENSIONS
            or not all(type(s) is int and s >= 0 for s in sizes)
        ):
            raise ValueError
        return sizes

    def has(self, place: int) -> bool:
        return place < len(self.shapes) and bool(self.shapes[place])

    def number(self, place: int) -> int:
        return int(self.concrete[place])

    def numbers(self, place: int) -> list[int]:
        values = msgspec.json.decode(str(self.concrete[place]))
        if not isinstance(values, list) or not values or not all(type(n) is int for n in values):
            raise ValueError
        return values

    def flag(self, place: int) -> bool:
        return {"True": True, "False": False}[self.concrete[place]]

    def flags(self, place: int) -> list[bool]:
        return [
            {"True": True, "False": False}[t.strip()] for t in self.concrete[place].strip("[]").split(",")
        ]


def _each(values: Shape, count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


def _mm(at: int, *, bias: bool = False) -> Callable[[_Inputs], int]:
    def count(inputs: _Inputs) -> int:
        (m, k), (other, n) = inputs.shape(at, 2), inputs.shape(at + 1, 2)
        if k != other:
            raise ValueError
        return matmul_flops(m, k, n, bias=bias)

    return count


def _bmm(at: int, *, bias: bool = False) -> Callable[[_Inputs], int]:
    def count(inputs: _Inputs) -> int:
        (batch, m, k), (_, other, n) = inputs.shape(at, 3), inputs.shape(at + 1, 3)
        if k != other:
            raise ValueError
        return matmul_flops(m, k, n, batch=batch, bias=bias)

    return count


def _convolution(inputs: _Inputs) -> int:
    """`convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)`."""
    return convolution_flops(
        inputs.shape(0, 3), inputs.shape(1, 3), bias=inputs.has(2), **_geometry(inputs, 3)
    )


def _convolution_backward(inputs: _Inputs) -> int:
    """`convolution_backward(grad, input, weight, bias_sizes, stride, …, groups, output_mask)`."""
    wanted = inputs.flags(10)
    how = _geometry(inputs, 4)
    return convolution_backward_flops(inputs.shape(1, 3), inputs.shape(2, 3), wanted=wanted, **how)


def _geometry(inputs: _Inputs, at: int) -> dict[str, Any]:
    return {
        "stride": inputs.numbers(at),
        "padding": inputs.numbers(at + 1),
        "dilation": inputs.numbers(at + 2),
        "transposed": inputs.flag(at + 3),
        "output_padding": inputs.numbers(at + 4),
        "groups": inputs.number(at + 5),
    }


def _attention(at: int, causal: int, *, backward: bool = False) -> Callable[[_Inputs], int]:
    def count(inputs: _Inputs) -> int:
        query, key, value = (inputs.shape(at + place, 4) for place in range(3))
        return attention_flops(query, key, value, causal=inputs.flag(causal), backward=backward)

    return count


FIRST_FACTOR: Final[dict[str, int]] = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::_addmm_activation": 1,
    "aten::_scaled_mm": 0,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
}
"""The matrix products, each with the place of its first factor among the inputs; the second one follows it."""

_SDPA: Final = "aten::_scaled_dot_product_"
_FORMULAS: Final[dict[str, Callable[[_Inputs], int]]] = {
    "aten::mm": _mm(0),
    "aten::addmm": _mm(1, bias=True),
    "aten::_addmm_activation": _mm(1, bias=True),
    "aten::_scaled_mm": _mm(0),
    "aten::bmm": _bmm(0),
    "aten::baddbmm": _bmm(1, bias=True),
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    f"{_SDPA}flash_attention": _attention(0, 4),
    f"{_SDPA}flash_attention_for_cpu": _attention(0, 4),
    f"{_SDPA}efficient_attention": _attention(0, 6),
    f"{_SDPA}cudnn_attention": _attention(0, 6),
    f"{_SDPA}flash_attention_backward": _attention(1, 11, backward=True),
    f"{_SDPA}flash_attention_for_cpu_backward": _attention(1, 7, backward=True),
    f"{_SDPA}efficient_attention_backward": _attention(1, 11, backward=True),
    f"{_SDPA}cudnn_attention_backward": _attention(1, 14, backward=True),
}
"""The operators that are counted; the places are those of torch's schemas."""
