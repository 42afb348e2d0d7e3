"""Reductions, scans, sorts and losses: FLOPs for each element of the input.

A sum, product, mean or running sum is 1 for each element of the input; a norm 2 (square, add), a variance 4, log-sum-exp 3. To compare
(max, argmax, any, median, sort, topk) is none. A loss is what each pair of elements needs, and 1 more where they are summed: a squared error 2,
smooth L1 and Huber 3, binary cross entropy 8; a negative log-likelihood 1 for each row. Of complex numbers a sum is 2, a product 6, a
norm 4 and a variance 8; of integers none is a FLOP. Bytes: the input and the result, once.
"""

from __future__ import annotations

from math import prod
from typing import Final

from tracekit.analyses.flops.tensors import (
    INDEX,
    are_whole,
    asked_width,
    broadcast,
    bytes_of,
    is_complex,
    is_complex_list,
    is_floating,
    list_precision,
    list_shapes,
    list_width,
    made,
    reduced,
    tensors,
)
from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY", "REDUCTIONS"]

FAMILY: Final = Family("reduction")

REDUCTIONS: Final[dict[str, tuple[int, int, int | None]]] = {
    "sum": (1, 1, 3),
    "nansum": (1, 1, 3),
    "mean": (1, 1, 3),
    "prod": (1, 1, 3),
    "amax": (0, 1, None),
    "amin": (0, 1, None),
    "norm": (2, 2, 4),
    "linalg_vector_norm": (2, 2, 4),
    "logsumexp": (3, 1, None),
    "var": (4, 1, None),
    "std": (4, 1, None),
}
"""FLOPs for each element of the input, and where the schema has `dim` and `dtype`."""

_COMPLEX: Final = {
    "sum": 2,
    "nansum": 2,
    "mean": 2,
    "prod": 6,
    "norm": 4,
    "linalg_vector_norm": 4,
    "var": 8,
    "std": 8,
}
"""FLOPs for each complex number: a sum is 2, a product 6, a square of the size 3. Of other functions they are not known."""
_REAL: Final = ("norm", "linalg_vector_norm", "var", "std")
"""Those whose results are real numbers, which take half as many bytes as complex ones."""


def _arithmetic(inputs: Inputs, name: str, flops: int, size: int) -> int | None:
    """The FLOPs for so many elements of the input, by its type."""
    if is_complex(inputs, 0):
        return size * _COMPLEX[name] if name in _COMPLEX else None
    return 0 if are_whole(inputs, (0,)) else flops * size


def _reduction(name: str, flops: int, at: int, asked: int | None) -> Model:
    def work(inputs: Inputs) -> Work:
        size, width = inputs.elements(0), inputs.itemsize(0)
        if asked == 3 and not is_floating(inputs, 0):
            width = INDEX  # sums of integers are long
        if name in _REAL and is_complex(inputs, 0) and width is not None:
            width //= 2
        # The overload for all dimensions has `dtype` where the others have `dim`.
        whole = asked == 3 and len(inputs.shapes) < 4
        left = 1 if whole else reduced(inputs, 0, at)
        number = at if whole else asked
        written = made(left, width if number is None else asked_width(inputs, number, width))
        precision, amount = inputs.precision(0), _arithmetic(inputs, name, flops, size)
        if number is not None and precision is None and inputs.given(number):
            precision = inputs.named_precision(number)  # integers that are summed as numbers of this type
            amount = amount if precision is None else flops * size
        return Work(amount, inputs.size(0), written, precision)

    return work


for _name, _how in REDUCTIONS.items():
    FAMILY.model(f"aten::{_name}")(_reduction(_name, *_how))


@FAMILY.model("aten::var_mean", "aten::std_mean")
def _moments(inputs: Inputs) -> Work:
    """`var_mean(input, dim, …)`: FLOPs as for the variance alone; two results, of complex numbers a real one and a complex one."""
    written = made(reduced(inputs, 0, 1), inputs.itemsize(0))
    both = None if written is None else written * 3 // 2 if is_complex(inputs, 0) else 2 * written
    flops = _arithmetic(inputs, "var", 4, inputs.elements(0))
    return Work(flops, inputs.size(0), both, inputs.precision(0))


@FAMILY.model("aten::aminmax")
def _both_ends(inputs: Inputs) -> Work:
    """`aminmax(input, dim, …)`: the least and the largest."""
    written = made(reduced(inputs, 0, 1), inputs.itemsize(0))
    return Work(0, inputs.size(0), None if written is None else 2 * written, inputs.precision(0))


@FAMILY.model("aten::histc")
def _counted(inputs: Inputs) -> Work:
    """`histc(input, bins, …)`: which bin an element is of is compared."""
    return Work(0, inputs.size(0), made(inputs.number(1), inputs.itemsize(0)), inputs.precision(0))


@FAMILY.model("aten::_cdist_forward", composite=True)
def _distances(inputs: Inputs) -> Work:
    """`_cdist_forward(rows, others, p, mode)`: 3 for each pair of elements (subtract, power, add). It may use a product instead."""
    (*batch, one, width), (*_, other, same) = inputs.shape(0, 2), inputs.shape(1, 2)
    if width != same:
        raise ValueError
    pairs = prod(batch) * one * other
    return Work(
        3 * pairs * width, bytes_of(inputs, (0, 1)), made(pairs, inputs.itemsize(0)), inputs.precision(0)
    )


def _searched(values: int) -> Model:
    """The model of a search for values in a sorted tensor, of which it does not read all: how much is not recorded."""

    def work(inputs: Inputs) -> Work:
        return Work(0, None, inputs.elements(values) * (INDEX // 2 if inputs.flag(2) else INDEX))

    return work


FAMILY.model("aten::searchsorted")(_searched(1))
FAMILY.model("aten::bucketize")(_searched(0))


@FAMILY.model("aten::_foreach_norm", composite=True)
def _norms(inputs: Inputs) -> Work:
    """`_foreach_norm(tensors, ord)`: a number for each tensor."""
    shapes, width = list_shapes(inputs, 0), list_width(inputs, 0)
    elements, written = sum(map(prod, shapes)), made(len(shapes), width)
    flops = 2
    if is_complex_list(inputs, 0):
        flops, written = _COMPLEX["norm"], None if written is None else written // 2
    return Work(flops * elements, made(elements, width), written, list_precision(inputs, 0))


def _chosen(*written: int) -> Model:
    """The model of a reduction that compares: what it writes for each element that is left."""

    def work(inputs: Inputs) -> Work:
        at = tensors(inputs, range(2))
        if len(at) == 2:  # max and min of two tensors
            width = inputs.itemsize(0) if inputs.itemsize(0) == inputs.itemsize(1) else None
            elements = prod(broadcast([inputs.shape(place, 0) for place in at]))
            return Work(0, bytes_of(inputs, at), made(elements, width), inputs.precision(0))
        whole = len(inputs.shapes) < 2 or (len(inputs.shapes) > 1 and inputs.dtypes[1:2] == [""])
        width = inputs.itemsize(0)
        widths = [width if each < 0 else each for each in (written[:1] if whole else written)]
        each = None if None in widths else sum(filter(None, widths))
        return Work(0, inputs.size(0), made(1 if whole else reduced(inputs, 0, 1), each), inputs.precision(0))

    return work


FAMILY.model(*(f"aten::{name}" for name in ("max", "min", "median", "nanmedian")))(_chosen(-1, INDEX))
FAMILY.model("aten::argmax", "aten::argmin")(_chosen(INDEX))
FAMILY.model("aten::any", "aten::all")(_chosen(1))


def _kept(name: str, flops: int, *written: int) -> Model:
    """The model of a scan or a sort, whose results are as large as its input; −1 stands for the width of its elements."""

    def work(inputs: Inputs) -> Work:
        size, width = inputs.elements(0), inputs.itemsize(0)
        each = None if width is None else sum(width if wide < 0 else wide for wide in written)
        return Work(
            _arithmetic(inputs, name, flops, size) if flops else 0,
            inputs.size(0),
            made(size, each),
            inputs.precision(0),
        )

    return work


def _running(name: str) -> Model:
    """The model of `cumsum(input, dim, dtype)`: a running sum of integers is long."""

    def work(inputs: Inputs) -> Work:
        size, asked = inputs.elements(0), inputs.named_precision(2) if inputs.given(2) else None
        width = asked_width(inputs, 2, inputs.itemsize(0) if is_floating(inputs, 0) else INDEX)
        flops = size if asked and inputs.precision(0) is None else _arithmetic(inputs, name, 1, size)
        return Work(flops, inputs.size(0), made(size, width), inputs.precision(0) or asked)

    return work


for _name in ("sum", "prod"):
    FAMILY.model(f"aten::cum{_name}_")(_kept(_name, 1, -1))
    FAMILY.model(f"aten::cum{_name}")(_running(_name))
FAMILY.model("aten::sort")(_kept("sort", 0, -1, INDEX))
FAMILY.model("aten::argsort", composite=True)(_kept("argsort", 0, INDEX))
FAMILY.model("aten::cummax", "aten::cummin")(_kept("cummax", 0, -1, INDEX))


@FAMILY.model("aten::topk")
def _topk(inputs: Inputs) -> Work:
    """`topk(input, k, dim, …)`: it writes values and their places."""
    shape, width = inputs.shape(0), inputs.itemsize(0)
    left = None
    if len(inputs.concrete) > 2:
        left = prod(shape) // max(shape[inputs.number(2)], 1) * inputs.number(1)
    each = None if width is None else width + INDEX
    return Work(0, inputs.size(0), made(left, each), inputs.precision(0))


def _loss(flops: int, reduction: int) -> Model:
    """The model of a loss of two tensors: one result, or with the reduction `none` (0) as many as there are elements."""

    def work(inputs: Inputs) -> Work:
        places = tensors(inputs, range(reduction))
        size = prod(broadcast([inputs.shape(place, 0) for place in places]))
        known = reduction < len(inputs.concrete)
        each = known and inputs.number(reduction) == 0
        return Work(
            size * (flops + (not each)) if known else None,
            bytes_of(inputs, places),
            made(size if each else 1, inputs.itemsize(0)) if known else None,
            inputs.precision(0),
        )

    return work


FAMILY.model("aten::mse_loss")(_loss(2, 2))
FAMILY.model("aten::smooth_l1_loss", "aten::huber_loss")(_loss(3, 2))
FAMILY.model("aten::binary_cross_entropy")(_loss(8, 3))


@FAMILY.model("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def _picked(inputs: Inputs) -> Work:
    """`nll_loss_forward(input, target, weight, reduction, ignore_index)`: of each row it reads the target's element and adds it."""
    rows = inputs.elements(1)
    own, given = made(rows, inputs.itemsize(0)), bytes_of(inputs, (1, 2))
    read = None if own is None or given is None else own + given
    known = len(inputs.concrete) > 3
    each = known and inputs.number(3) == 0
    # One result and the sum of the weights.
    written = made(rows if each else 2, inputs.itemsize(0)) if known else None
    return Work(rows, read, written, inputs.precision(0))


@FAMILY.model("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def _picked_back(inputs: Inputs) -> Work:
    """`nll_loss_backward(grad_output, input, target, weight, …)`: zeros but for one element of each row."""
    return Work(inputs.elements(2), bytes_of(inputs, (0, 2, 3)), inputs.size(1), inputs.precision(1))
