"""Convolutions of one to three dimensions: 2 · output · (C_in / groups) · kernel FLOPs, and one for each output with a bias (DEFINITIONS §7)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from tracekit.analyses.flops.work import Family, Inputs, Work

__all__ = ["FAMILY", "convolution_backward_flops", "convolution_flops", "convolution_output"]

FAMILY: Final = Family("convolution")

Shape = Sequence[int]


def convolution_output(
    inputs: Shape,
    weight: Shape,
    *,
    stride: Shape = (1,),
    padding: Shape = (0,),
    dilation: Shape = (1,),
    transposed: bool = False,
    output_padding: Shape = (0,),
    groups: int = 1,
) -> list[int]:
    """The shape of the output of a convolution of `inputs` (N, C_in, …) with `weight`, in torch's layouts.

    The weight's second size is C_in / groups; of a transposed convolution C_out / groups. A list with one entry holds for all
    dimensions. Raises ValueError when the sizes do not fit each other.

    >>> convolution_output((1, 3, 8, 8), (16, 3, 3, 3), stride=(2,), padding=(1,))
    [1, 16, 4, 4]
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
    return [inputs[0], weight[1] * groups if transposed else weight[0], *output]


def convolution_flops(inputs: Shape, weight: Shape, *, bias: bool = False, **how: Any) -> int:
    """FLOPs of a convolution; `how` are the other arguments of `convolution_output`, which says what they mean and what it raises.

    >>> convolution_flops((1, 3, 8, 8), (16, 3, 3, 3), padding=(1,))
    55296
    """
    output = convolution_output(inputs, weight, **how)
    # Every place of the output meets the whole kernel; transposed, every place of the input does.
    places = inputs[2:] if how.get("transposed") else output[2:]
    return 2 * inputs[0] * prod(places) * prod(weight) + (prod(output) if bias else 0)


def convolution_backward_flops(
    inputs: Shape, weight: Shape, *, wanted: Sequence[bool] = (True, True), **how: Any
) -> int:
    """FLOPs of the gradients of a convolution: those of the forward for each that is wanted, of inputs and weight.

    `how` are the arguments of `convolution_output`.

    >>> convolution_backward_flops((1, 3, 8, 8), (16, 3, 3, 3), wanted=(False, True), padding=(1,))
    55296
    """
    return sum(map(bool, wanted[:2])) * convolution_flops(inputs, weight, **how)


def _each(values: Shape, count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


def _geometry(inputs: Inputs, at: int) -> dict[str, Any]:
    return {
        "stride": inputs.numbers(at),
        "padding": inputs.numbers(at + 1),
        "dilation": inputs.numbers(at + 2),
        "transposed": inputs.flag(at + 3),
        "output_padding": inputs.numbers(at + 4),
        "groups": inputs.number(at + 5),
    }


@FAMILY.model("aten::convolution", "aten::_convolution")
def _convolution(inputs: Inputs) -> Work:
    """`convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)`."""
    image, weight, how = inputs.shape(0, 3), inputs.shape(1, 3), _geometry(inputs, 3)
    width = inputs.itemsize(0)
    return Work(
        convolution_flops(image, weight, bias=inputs.has(2), **how),
        inputs.sizes([0, 1, 2]),
        None if width is None else prod(convolution_output(image, weight, **how)) * width,
        inputs.precision(0),
        "matrix",
    )


@FAMILY.model("aten::convolution_backward")
def _convolution_backward(inputs: Inputs) -> Work:
    """`convolution_backward(grad, input, weight, bias_sizes, stride, …, groups, output_mask)`."""
    image, weight, wanted = inputs.shape(1, 3), inputs.shape(2, 3), inputs.flags(10)
    # The gradient of the input meets the weight, that of the weight the input; each has the size of what it belongs to.
    read = inputs.sizes([0, *([2] if wanted[0] else []), *([1] if wanted[1] else [])])
    written = inputs.sizes([place for place, want in zip((1, 2), wanted, strict=False) if want])
    return Work(
        convolution_backward_flops(image, weight, wanted=wanted, **_geometry(inputs, 4)),
        read,
        written,
        inputs.precision(1),
        "matrix",
    )
