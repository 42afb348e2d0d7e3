"""Pooling, interpolation, windows as columns and Fourier transforms.

A maximum is no FLOP; a mean is as many as its windows have elements. Interpolation is, for each element of the output, what weighs its
neighbours: none of the nearest, 3 linear, 9 bilinear, 21 trilinear, 35 bicubic. Sampling at the places of a grid is a product and a sum
for each of the 4, 8 (in three dimensions) or 16 (cubic) neighbours but the first: the weights of a place, which all channels share, are
not counted. A transform of n complex numbers is 5 · n · log₂ n, as is the custom, one of real numbers half of it. Bytes: input and
output once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd, log2, prod
from typing import Final

import msgspec

from tracekit.analyses.flops.tensors import INDEX, bytes_of, made
from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY"]

FAMILY: Final = Family("pooling")


def _pooled(inputs: Inputs, at: int, ceiled: int, dilated: int | None) -> list[int] | None:
    """The shape of the output of `pool(input, kernel, stride, padding, …)` with the kernel at `at`; None if it was not recorded."""
    if at >= len(inputs.concrete):
        return None
    shape, kernel = inputs.shape(0, 2), inputs.numbers(at)
    count = len(shape) - 1 if len(shape) < 3 or len(kernel) == len(shape) - 1 > 1 else len(shape) - 2
    windows = _each(kernel, count)
    text = str(inputs.concrete[at + 1])
    strides = windows if text in ("", "[]") else _each(inputs.numbers(at + 1), count)
    pads = _each(inputs.numbers(at + 2), count)
    gaps = [1] * count if dilated is None else _each(inputs.numbers(dilated), count)
    upwards = inputs.flag(ceiled)
    sides = zip(shape[-count:], windows, strides, pads, gaps, strict=True)
    return [*shape[:-count], *(_windows(*side, upwards=upwards) for side in sides)]


def _windows(size: int, kernel: int, stride: int, pad: int, gap: int, *, upwards: bool) -> int:
    """How many windows begin inside the padded side."""
    room = size + 2 * pad - gap * (kernel - 1) - 1
    count = (ceil(room / stride) if upwards else room // stride) + 1
    return count - 1 if upwards and (count - 1) * stride >= size + pad else count


def _each(values: Sequence[int], count: int) -> list[int]:
    return list(values) * (count if len(values) == 1 else 1)


@FAMILY.model(*(f"aten::max_pool{d}d_with_indices" for d in (2, 3)), "aten::adaptive_max_pool2d")
def _max_pool(inputs: Inputs) -> Work:
    """`max_pool2d_with_indices(input, kernel, stride, padding, dilation, ceil_mode)`: no FLOPs; it writes places, too."""
    width = inputs.itemsize(0)
    adaptive = len(inputs.shapes) < 5
    shape = _adaptive(inputs) if adaptive else _pooled(inputs, 1, 5, 4)
    written = None if shape is None or width is None else prod(shape) * (width + INDEX)
    return Work(0, inputs.size(0), written, inputs.precision(0))


@FAMILY.model(*(f"aten::max_pool{d}d_with_indices_backward" for d in (2, 3)))
def _max_pool_back(inputs: Inputs) -> Work:
    """`max_pool2d_with_indices_backward(grad, input, …, indices)`: it adds each gradient to its place."""
    return Work(inputs.elements(0), bytes_of(inputs, (0, 7)), inputs.size(1), inputs.precision(0))


@FAMILY.model("aten::max_pool1d", composite=True, arguments=6)
def _max_pool_alone(inputs: Inputs) -> Work:
    """`max_pool1d(input, kernel, stride, padding, dilation, ceil_mode)`: where no gradient is asked for, processors need no places."""
    shape = _pooled(inputs, 1, 5, 4)
    written = None if shape is None else made(prod(shape), inputs.itemsize(0))
    return Work(0, inputs.size(0), written, inputs.precision(0))


def _adaptive(inputs: Inputs) -> list[int] | None:
    if len(inputs.concrete) < 2:
        return None
    shape, asked = inputs.shape(0, 2), inputs.numbers(1)
    return [*shape[: -len(asked)], *asked]


@FAMILY.model("aten::avg_pool2d", "aten::avg_pool3d")
def _avg_pool(inputs: Inputs) -> Work:
    """`avg_pool2d(input, kernel, stride, padding, ceil_mode, …)`: for each element of the output as many FLOPs as its window has."""
    shape = _pooled(inputs, 1, 4, None)
    if shape is None:
        return Work(None, inputs.size(0), None, inputs.precision(0))
    window = prod(_each(inputs.numbers(1), 2 if len(shape) < 5 else 3))
    return Work(
        prod(shape) * window, inputs.size(0), made(prod(shape), inputs.itemsize(0)), inputs.precision(0)
    )


@FAMILY.model("aten::avg_pool2d_backward", "aten::avg_pool3d_backward")
def _avg_pool_back(inputs: Inputs) -> Work:
    """`avg_pool2d_backward(grad, input, kernel, …)`: each gradient is added to each place of its window."""
    flops = None
    if len(inputs.concrete) > 2:
        window = prod(_each(inputs.numbers(2), 3 if len(inputs.shape(1)) > 4 else 2))
        flops = inputs.elements(0) * window
    return Work(flops, inputs.size(0), inputs.size(1), inputs.precision(0))


def _overlapping(size: int, count: int) -> int:
    """The summed sizes of `count` windows that cover a side as torch places them: neighbours share one element where they do not part."""
    return size + count - gcd(size, count)


@FAMILY.model("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def _adaptive_avg(inputs: Inputs) -> Work:
    """`_adaptive_avg_pool2d(input, output_size)`: each element of each window once."""
    shape, output = inputs.shape(0, 2), _adaptive(inputs)
    if output is None:
        return Work(None, inputs.size(0), None, inputs.precision(0))
    count = len(inputs.numbers(1))
    windows = prod(map(_overlapping, shape[-count:], output[-count:]))
    flops = prod(shape[:-count]) * windows
    return Work(flops, inputs.size(0), made(prod(output), inputs.itemsize(0)), inputs.precision(0))


@FAMILY.model("aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward")
def _adaptive_avg_back(inputs: Inputs) -> Work:
    """`_adaptive_avg_pool2d_backward(grad, input)`: each gradient is added to each place of its window."""
    grad, image = inputs.shape(0, 2), inputs.shape(1, 2)
    # Only the sizes of the sides that are pooled differ, and those of one element are covered once either way.
    flops = prod(map(_overlapping, image, grad))
    return Work(flops, inputs.size(0), inputs.size(1), inputs.precision(0))


# -- interpolation and Fourier transforms -----------------------------------------------------------

_TAPS: Final = {
    "nearest1d": 0,
    "nearest2d": 0,
    "nearest3d": 0,
    "linear1d": 3,
    "bilinear2d": 9,
    "trilinear3d": 21,
    "bicubic2d": 35,
}
"""FLOPs for each element of the output: 3 to weigh two values, 7 to weigh four, in each direction."""


def _upsample(flops: int) -> Model:
    """The model of `upsample(input, output_size, …)`, whose size may be told by a list of factors instead."""

    def work(inputs: Inputs) -> Work:
        shape = inputs.shape(0, 3)
        lists = [msgspec.json.decode(text) for text in inputs.concrete[1:] if str(text).startswith("[")]
        if not lists or len(lists[0]) != len(shape) - 2:
            return Work(None if flops else 0, inputs.size(0), None, inputs.precision(0))
        sized = str(inputs.concrete[1]).startswith("[")
        sides = lists[0] if sized else [int(side * by) for side, by in zip(shape[2:], lists[0], strict=True)]
        size = prod(shape[:2]) * prod(sides)
        return Work(size * flops, inputs.size(0), made(size, inputs.itemsize(0)), inputs.precision(0))

    return work


def _upsample_back(flops: int) -> Model:
    """The model of `upsample_backward(grad, output_size, input_size, …)`: the same work, and to add."""

    def work(inputs: Inputs) -> Work:
        size = prod(inputs.numbers(2)) if len(inputs.concrete) > 2 else None
        return Work(
            inputs.elements(0) * max(flops, 1),
            inputs.size(0),
            made(size, inputs.itemsize(0)),
            inputs.precision(0),
        )

    return work


for _name, _flops in _TAPS.items():
    FAMILY.model(f"aten::upsample_{_name}")(_upsample(_flops))
    FAMILY.model(f"aten::upsample_{_name}_backward")(_upsample_back(_flops))


_NEAREST, _CUBIC = 1, 2
"""Modes of sampling; 0 weighs the next neighbours on each side."""


@FAMILY.model("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def _sampled(inputs: Inputs) -> Work:
    """`grid_sampler_2d(input, grid, mode, …)`: the grid has a place for each element of a channel of the output."""
    shape, mode = inputs.shape(0, 4), inputs.number(2)
    size = prod(shape[:2]) * prod(inputs.shape(1, 4)[1:-1])
    neighbours = 16 if mode == _CUBIC else 2 ** (len(shape) - 2)
    flops = 0 if mode == _NEAREST else size * (2 * neighbours - 1)
    return Work(flops, bytes_of(inputs, (0, 1)), made(size, inputs.itemsize(0)), inputs.precision(0))


@FAMILY.model("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def _sampled_back(inputs: Inputs) -> Work:
    """`grid_sampler_2d_backward(grad, input, grid, …, mask)`: the gradient of the grid is made in any case."""
    wanted = (1, 2) if inputs.flags(6)[0] else (2,)
    return Work(None, bytes_of(inputs, (0, 1, 2)), bytes_of(inputs, wanted), inputs.precision(0))


@FAMILY.model("aten::im2col")
def _columns(inputs: Inputs) -> Work:
    """`im2col(input, kernel, dilation, padding, stride)`: each window as a column."""
    shape = inputs.shape(0, 3)
    kernel, gaps, pads, strides = (_each(inputs.numbers(at), 2) for at in (1, 2, 3, 4))
    sides = zip(shape[-2:], kernel, strides, pads, gaps, strict=True)
    windows = prod(_windows(*side, upwards=False) for side in sides)
    written = made(prod(shape[:-2]) * prod(kernel) * windows, inputs.itemsize(0))
    return Work(0, inputs.size(0), written, inputs.precision(0))


@FAMILY.model("aten::col2im")
def _from_columns(inputs: Inputs) -> Work:
    """`col2im(input, output_size, kernel, …)`: each element of a column is added to its place."""
    shape, kernel = inputs.shape(0, 2), prod(_each(inputs.numbers(2), 2))
    size = prod(shape[:-1]) // kernel * prod(_each(inputs.numbers(1), 2))
    return Work(inputs.elements(0), inputs.size(0), made(size, inputs.itemsize(0)), inputs.precision(0))


def _transform(last: str) -> Model:
    """The model of `_fft_…(input, dim, …)`: 5 · n · log₂ n for each transform of n complex numbers, half of it for real ones."""

    def work(inputs: Inputs) -> Work:
        shape, over = inputs.shape(0), inputs.numbers(1)
        sizes = {dimension % len(shape): shape[dimension] for dimension in over}
        width = inputs.itemsize(0)
        output, wide = list(shape), width
        if last == "r2c" and width is not None:
            output[over[-1]] = shape[over[-1]] // 2 + 1 if inputs.flag(3) else shape[over[-1]]
            wide = 2 * width
        elif last == "c2r" and width is not None:
            output[over[-1]] = sizes[over[-1] % len(shape)] = inputs.number(3)
            wide = width // 2
        length = prod(sizes.values())
        count = prod(size for place, size in enumerate(shape) if place not in sizes)
        flops = int(count * (5 if last == "c2c" else 2.5) * length * log2(max(length, 1)))
        return Work(flops, inputs.size(0), made(prod(output), wide), inputs.precision(0))

    return work


for _name in ("c2c", "r2c", "c2r"):
    FAMILY.model(f"aten::_fft_{_name}")(_transform(_name))
