"""Matrix products: 2 · b · m · n · k FLOPs, and b · m · n more with an addend (DEFINITIONS §7).

Of complex numbers they are 8 · b · m · n · k, and 2 · b · m · n: each multiplication is 4 real ones and 2 sums, each sum 2. Products of
integers count as operations, too, and have no roof but those of 8 bits that a device rates. An addend whose factor `beta` is 0 is
neither read nor added. `addr` is a multiplication and an addition for each element. Of grouped products (`_grouped_mm`), every row is
taken to belong to a group. Scales of quantised factors are read, not counted as arithmetic. `einsum` and `multi_dot` have no model of their own: the
products in them count. Without a model are sparse products, whose number of entries is not recorded, products with packed weights
whose sizes are not recorded (`quantized::linear`), and the functions of TransformerEngine, whose arguments change with its version.
"""

from __future__ import annotations

from itertools import zip_longest
from math import prod
from typing import Any, Final

from tracekit.analyses.flops.tensors import is_complex, of_products
from tracekit.analyses.flops.work import ODD_INPUTS, Family, Inputs, Model, Work

__all__ = ["FAMILY", "FIRST_FACTOR", "matmul_flops", "product_sizes"]

FAMILY: Final = Family("matmul")


def matmul_flops(m: int, k: int, n: int, *, batch: int = 1, bias: bool = False) -> int:
    """FLOPs of `batch` products m×k · k×n, with a bias that is added to each element of the result.

    >>> matmul_flops(2, 3, 4), matmul_flops(2, 3, 4, batch=5, bias=True)
    (48, 280)
    """
    return 2 * batch * m * k * n + (batch * m * n if bias else 0)


FIRST_FACTOR: Final[dict[str, int]] = {
    **{"aten::mm": 0, "aten::bmm": 0, "aten::_int_mm": 0, "aten::_scaled_mm": 0},
    **{"aten::addmm": 1, "aten::addmm_": 1, "aten::_addmm_activation": 1},
    **{"aten::baddbmm": 1, "aten::baddbmm_": 1},
}
"""The matrix products, each with the place of its first factor among the inputs; the second one follows it."""

_DTYPE_OVERLOADS: Final = {"aten::mm": 3, "aten::bmm": 3, "aten::addmm": 6, "aten::baddbmm": 6}
"""How many arguments the overload has that takes the type of the result, behind the factors."""


def product_sizes(name: str, shapes: Any) -> tuple[int, int, int, int] | None:
    """The batch, m, k and n of one call of a matrix product m×k · k×n; None of other operators and of odd inputs.

    >>> product_sizes("aten::addmm", [[4], [2, 3], [3, 4]]), product_sizes("aten::bmm", [[5, 2, 3], [5, 3, 4]])
    ((1, 2, 3, 4), (5, 2, 3, 4))
    """
    at = FIRST_FACTOR.get(name)
    if at is None:
        return None
    try:
        return _sizes(Inputs(shapes, [], []), at)
    except ODD_INPUTS:
        return None


def _sizes(inputs: Inputs, at: int) -> tuple[int, int, int, int]:
    one, other = inputs.shape(at, 2), inputs.shape(at + 1, 2)
    if len(one) != len(other) or len(one) > 3 or one[:-2] != other[:-2] or one[-1] != other[-2]:
        raise ValueError
    return prod(one[:-2]), one[-2], one[-1], other[-1]


def _written(elements: int, width: int | None) -> int | None:
    return None if width is None else elements * width


def _product(name: str, at: int) -> Model:
    """The model of a product whose first factor is at a place; what stands before it is added to the result."""
    overload = _DTYPE_OVERLOADS.get(name)

    def work(inputs: Inputs) -> Work:
        batch, m, k, n = _sizes(inputs, at)
        behind, last = at + 2, len(inputs.shapes) - 1
        width = inputs.itemsize(at)
        if last >= behind and inputs.has(last):
            width = inputs.itemsize(last)  # a tensor for the result was given
        elif last + 1 == overload:
            width, behind = inputs.named_itemsize(behind), behind + 1
        added = at > 0 and not (inputs.given(behind) and float(inputs.concrete[behind]) == 0)
        return Work(
            of_products(inputs, at, matmul_flops(m, k, n, batch=batch), batch * m * n if added else 0),
            inputs.sizes(range(0 if added else at, at + 2)),
            _written(batch * m * n, width),
            inputs.precision(at),
            "matrix",
        )

    return work


for _name, _at in FIRST_FACTOR.items():
    if _name not in ("aten::_scaled_mm", "aten::_int_mm"):
        FAMILY.model(_name)(_product(_name, _at))


@FAMILY.model("aten::_int_mm")
def _integers(inputs: Inputs) -> Work:
    """`_int_mm(one, other)` of 8-bit integers; the sums have 32 bits."""
    _, m, k, n = _sizes(inputs, 0)
    return Work(matmul_flops(m, k, n), inputs.sizes((0, 1)), 4 * m * n, "int8", "matrix")


@FAMILY.model("aten::addbmm", "aten::addbmm_")
def _summed(inputs: Inputs) -> Work:
    """`addbmm(addend, one, other)`: the products of a batch are summed, as if it were part of k."""
    batch, m, k, n = _sizes(inputs, 1)
    return Work(
        of_products(inputs, 1, matmul_flops(m, batch * k, n), m * n),
        inputs.sizes(range(3)),
        _written(m * n, inputs.itemsize(1)),
        inputs.precision(1),
        "matrix",
    )


# -- quantised and grouped ---------------------------------------------------------------------------


def _scaled(scales: tuple[int, ...], bias: int, dtype: int) -> Model:
    def work(inputs: Inputs) -> Work:
        at, out = (bias, dtype)
        if scales and inputs.given(
            3
        ):  # up to torch 2.4 the bias and the type of the result stood before the scales
            at, out = 2, 3
        _, m, k, n = _sizes(inputs, 0)
        width = inputs.named_itemsize(out) if inputs.given(out) else inputs.itemsize(0)
        return Work(
            matmul_flops(m, k * _packed(inputs), n, bias=inputs.has(at)),
            inputs.sizes((0, 1, *scales, *(() if at in scales else (at,)))),
            _written(m * n, width),
            inputs.precision(0),
            "matrix",
        )

    return work


def _packed(inputs: Inputs) -> int:
    """How many numbers one element of the first factor holds."""
    return 2 if inputs.precision(0) == "fp4" else 1


FAMILY.model("aten::_scaled_mm")(_scaled((2, 3, 4, 5), bias=4, dtype=6))
# The scales of the second version are lists, whose types are not recorded: they are left out of the bytes.
FAMILY.model("aten::_scaled_mm_v2")(_scaled((), bias=8, dtype=9))


def _grouped(scales: tuple[int, ...], offsets: int, dtype: int, default: int | None = None) -> Model:
    """A product of a matrix for each group: those of one factor, or both, lie one behind the other up to the `offsets`."""

    def work(inputs: Inputs) -> Work:
        one, other = inputs.shape(0, 2), inputs.shape(1, 2)
        if one[-1] != other[-2] or len(one) > 3 or len(other) > 3:
            raise ValueError
        both = len(one) == len(other) == 3
        groups = one[0] if both else inputs.shape(offsets)[0]
        if both and one[0] != other[0]:
            raise ValueError
        elements = one[-2] * other[-1] * (groups if len(one) == len(other) else 1)
        width = inputs.named_itemsize(dtype) if inputs.given(dtype) else default or inputs.itemsize(0)
        k = one[-1] * _packed(inputs)
        bias = inputs.has(offsets + 1)
        return Work(
            matmul_flops(one[-2], k, other[-1], batch=groups if both else 1) + (elements if bias else 0),
            inputs.sizes((0, 1, *scales, offsets, offsets + 1)),
            _written(elements, width),
            inputs.precision(0),
            "matrix",
        )

    return work


FAMILY.model("aten::_grouped_mm")(_grouped((), offsets=2, dtype=4))
FAMILY.model("aten::_scaled_grouped_mm")(_grouped((2, 3), offsets=4, dtype=7, default=2))
FAMILY.model("aten::_scaled_grouped_mm_v2")(_grouped((), offsets=8, dtype=10, default=2))


@FAMILY.model("aten::_weight_int4pack_mm", "aten::_weight_int4pack_mm_for_cpu")
def _packed_weight(inputs: Inputs) -> Work:
    """`_weight_int4pack_mm(input, packed, group, scales)`: the scales are (k / group, n, 2)."""
    m, k = inputs.shape(0, 2)
    groups, n, _ = inputs.shape(3, 3)
    if groups * inputs.number(2) != k:
        raise ValueError
    return _weight_only(inputs, m, k, n, range(4))


@FAMILY.model("aten::_weight_int8pack_mm")
def _byte_weight(inputs: Inputs) -> Work:
    """`_weight_int8pack_mm(input, weight, scales)`: the weight is (n, k)."""
    (m, k), (n, same) = inputs.shape(0, 2), inputs.shape(1, 2)
    if k != same:
        raise ValueError
    return _weight_only(inputs, m, k, n, range(3))


def _weight_only(inputs: Inputs, m: int, k: int, n: int, read: range) -> Work:
    """Weights of few bits are widened first: the product is one of the input's type."""
    written = _written(m * n, inputs.itemsize(0))
    return Work(matmul_flops(m, k, n), inputs.sizes(read), written, inputs.precision(0), "matrix")


# -- with vectors ------------------------------------------------------------------------------------


@FAMILY.model("aten::mv")
def _matrix_vector(inputs: Inputs) -> Work:
    """`mv(matrix, vector)`."""
    return _by_vector(inputs, 0)


@FAMILY.model("aten::addmv", "aten::addmv_")
def _added_matrix_vector(inputs: Inputs) -> Work:
    """`addmv(addend, matrix, vector)`."""
    return _by_vector(inputs, 1)


def _by_vector(inputs: Inputs, at: int) -> Work:
    (m, k), (same,) = inputs.shape(at, 2), inputs.shape(at + 1)
    if k != same:
        raise ValueError
    written = _written(m, inputs.itemsize(at))
    flops = of_products(inputs, at, matmul_flops(m, k, 1), m if at else 0)
    return Work(flops, inputs.sizes(range(at + 2)), written, inputs.precision(at))


@FAMILY.model("aten::dot", "aten::vdot")
def _inner(inputs: Inputs) -> Work:
    """`dot(one, other)`: as many multiplications as additions."""
    (k,), (same,) = inputs.shape(0), inputs.shape(1)
    if k != same:
        raise ValueError
    flops = of_products(inputs, 0, 2 * k)
    return Work(flops, inputs.sizes((0, 1)), inputs.itemsize(0), inputs.precision(0))


@FAMILY.model("aten::addr", "aten::addr_")
def _added_outer(inputs: Inputs) -> Work:
    """`addr(addend, one, other, beta, alpha)`: a product for each pair of elements, and a sum where `beta` is not 0."""
    (m,), (n,) = inputs.shape(1), inputs.shape(2)
    added = not (inputs.given(3) and float(inputs.concrete[3]) == 0)
    product, total = (6, 2) if is_complex(inputs, 1) else (1, 1)
    flops = m * n * (product + (total if added else 0))
    read = inputs.sizes(range(0 if added else 1, 3))
    return Work(flops, read, _written(m * n, inputs.itemsize(1)), inputs.precision(1))


# -- of any shapes -----------------------------------------------------------------------------------


def _linear(weight: int, bias: int) -> Model:
    """`linear(input, weight, bias)`: the weight is (n, k), or (k,) for one output."""

    def work(inputs: Inputs) -> Work:
        rows, factor = inputs.shape(0), inputs.shape(weight)
        if rows[-1] != factor[-1] or len(factor) > 2:
            raise ValueError
        m, n = prod(rows[:-1]), prod(factor[:-1])
        return Work(
            of_products(inputs, 0, matmul_flops(m, rows[-1], n), m * n if inputs.has(bias) else 0),
            inputs.sizes(range(bias + 1)),
            _written(m * n, inputs.itemsize(0)),
            inputs.precision(0),
            "matrix",
        )

    return work


FAMILY.model("aten::linear", composite=True, arguments=3)(_linear(1, 2))
FAMILY.model("aten::mkldnn_linear")(_linear(1, 2))


@FAMILY.model("mkldnn::_linear_pointwise")
def _linear_pointwise(inputs: Inputs) -> Work:
    """`_linear_pointwise(input, weight, bias, …)`, six arguments, or five with the other operand of what follows behind the input."""
    binary = len(inputs.shapes) == 5
    return (_linear(2, 3) if binary else _linear(1, 2))(inputs)


@FAMILY.model("aten::matmul", composite=True, arguments=2)
def _matmul(inputs: Inputs) -> Work:
    """`matmul(one, other)`: the batches are broadcast, a vector is a matrix with one row or column."""
    one, other = inputs.shape(0), inputs.shape(1)
    left, right = one if len(one) > 1 else [1, *one], other if len(other) > 1 else [*other, 1]
    if left[-1] != right[-2]:
        raise ValueError
    batch = 1
    for a, b in zip_longest(reversed(left[:-2]), reversed(right[:-2]), fillvalue=1):
        if a != b and 1 not in (a, b):
            raise ValueError
        batch *= b if a == 1 else a
    return _whole(inputs, batch * left[-2], left[-1], right[-1])


@FAMILY.model("aten::tensordot", composite=True, arguments=4)
def _tensordot(inputs: Inputs) -> Work:
    """`tensordot(one, other, dimensions of one, dimensions of other)`."""
    one, other = inputs.shape(0), inputs.shape(1)
    left, right = inputs.numbers(2), inputs.numbers(3)
    if [one[d] for d in left] != [other[d] for d in right]:
        raise ValueError
    k = prod(one[d] for d in left)
    return _whole(inputs, prod(one) // k, k, prod(other) // k)


def _whole(inputs: Inputs, m: int, k: int, n: int) -> Work:
    written = _written(m * n, inputs.itemsize(0))
    flops = of_products(inputs, 0, matmul_flops(m, k, n))
    return Work(flops, inputs.sizes((0, 1)), written, inputs.precision(0), "matrix")
