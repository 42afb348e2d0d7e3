"""Matrix products: 2 · b · m · n · k FLOPs, and b · m · n more with an addend (DEFINITIONS §7)."""

from __future__ import annotations

from math import prod
from typing import Any, Final

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
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::_addmm_activation": 1,
    "aten::_scaled_mm": 0,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
}
"""The matrix products, each with the place of its first factor among the inputs; the second one follows it."""


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


def _product(at: int) -> Model:
    """The model of a product whose first factor is at a place; what stands before it is added to the result."""

    def work(inputs: Inputs) -> Work:
        batch, m, k, n = _sizes(inputs, at)
        width = inputs.itemsize(at)
        return Work(
            matmul_flops(m, k, n, batch=batch, bias=at > 0),
            inputs.sizes(range(at + 2)),
            None if width is None else batch * m * n * width,
            inputs.precision(at),
            "matrix",
        )

    return work


for _name, _at in FIRST_FACTOR.items():
    FAMILY.model(_name)(_product(_at))
