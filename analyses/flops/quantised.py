"""Operators on tensors of small whole numbers with a scale (`quantized::…`), as torch has them on processors, and what imitates them.

To quantise is 3 FLOPs for each element (divide by the scale, round, add the zero point), to make numbers again 2; to do both at once, as
training for quantisation does (`fake_quantize_…`), 5. A sum or product of two quantised tensors is made of these: 8. Weights are packed, without sizes: of a product the width of the result stands at the call
inside that makes room for it, so that the sizes are known; a byte is read for each weight. Whether there is a bias is not recorded: it is
neither added nor read. Of convolutions only the result is known, since the kernel's size is not recorded.
"""

from __future__ import annotations

from math import prod
from typing import Final

from tracekit.analyses.flops.tensors import asked_width, broadcast, bytes_of, made
from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY"]

FAMILY: Final = Family("quantised")

_LANES: Final = "fp32"
"""In which single elements are computed."""
_EMPTY: Final = "aten::_empty_affine_quantized"


@FAMILY.model("aten::quantize_per_tensor", "aten::quantize_per_tensor_dynamic")
def _quantise(inputs: Inputs) -> Work:
    """`quantize_per_tensor(input, scale, zero_point, dtype)`, or `quantize_per_tensor_dynamic(input, dtype, reduce_range)`."""
    elements = inputs.elements(0)
    width = asked_width(inputs, 3 if len(inputs.shapes) > 3 else 1, None)
    return Work(3 * elements, inputs.size(0), made(elements, width), _LANES)


@FAMILY.model("aten::dequantize")
def _number(inputs: Inputs) -> Work:
    """`dequantize(input)`: numbers of torch's default type, float."""
    elements = inputs.elements(0)
    return Work(2 * elements, inputs.size(0), 4 * elements, _LANES)


@FAMILY.model(
    *(f"aten::fake_quantize_per_{each}_affine_cachemask" for each in ("tensor", "channel")),
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)
def _imitated(inputs: Inputs) -> Work:
    """`fake_quantize_per_channel_affine_cachemask(input, scale, zero_point, …)`: it writes which elements were not cut off, too."""
    width, elements = inputs.itemsize(0), inputs.elements(0)
    written = None if width is None else elements * (width + 1)
    return Work(5 * elements, bytes_of(inputs, range(len(inputs.shapes))), written, inputs.precision(0))


@FAMILY.model(*(f"quantized::{name}{after}" for name in ("add", "mul") for after in ("", "_relu")))
def _of_two(inputs: Inputs) -> Work:
    """`quantized::add(a, b, scale, zero_point)`."""
    elements = prod(broadcast([inputs.shape(0, 0), inputs.shape(1, 0)]))
    return Work(8 * elements, bytes_of(inputs, (0, 1)), made(elements, inputs.itemsize(0)), _LANES)


def _sizes(inputs: Inputs, own: int, at: int) -> tuple[int, ...]:
    """The sizes of the result, which a call inside is given; `at` is their place among its inputs."""
    return inputs.numbers(own + at)


def _product(own: int, written: int | None, at: int) -> Model:
    """The model of a product m×k · k×n whose result is made inside; `written` are the bytes of its elements, None those of the input."""

    def work(inputs: Inputs) -> Work:
        *rows, k = inputs.shape(0)
        *same, n = _sizes(inputs, own, at)
        if same != rows:
            raise ValueError
        size, given = prod(rows) * n, inputs.size(0)
        read = None if given is None else given + k * n
        width = inputs.itemsize(0) if written is None else written
        return Work(2 * size * k, read, made(size, width), "int8", "matrix")

    return work


for _name in ("linear_dynamic", "linear_relu_dynamic"):
    FAMILY.model(f"quantized::{_name}", inside=("aten::empty",))(_product(3, 4, 0))
for _name in ("linear", "linear_relu"):
    FAMILY.model(f"quantized::{_name}", inside=("aten::resize_",))(_product(4, None, 1))


@FAMILY.model(
    *(f"quantized::conv{d}d{after}" for d in (1, 2, 3) for after in ("", "_relu")), inside=(_EMPTY,)
)
def _convolution(inputs: Inputs) -> Work:
    """`quantized::conv2d(input, packed, scale, zero_point)`."""
    return Work(None, None, made(prod(_sizes(inputs, 4, 0)), inputs.itemsize(0)))
