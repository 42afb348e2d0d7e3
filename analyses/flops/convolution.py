"""Convolutions of one to three dimensions: 2 · output · (C_in / groups) · kernel FLOPs, and one for each output with a bias (DEFINITIONS §7).

Backward, the same again for the gradient of the input and for that of the weight, whichever are asked for; the gradient of a bias is a
sum, which is not counted, and whose bytes are written. Transposed, input and output change places. A sum with another tensor and an activation in the same
kernel (`cudnn_convolution_add_relu`) are one FLOP each for each output. Padding is multiplied like any other element. Of complex numbers products are 4 times
as many, and sums twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final, NamedTuple

from tracekit.analyses.flops.tensors import of_products
from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY", "convolution_flops", "convolution_output"]

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
    channels = weight[0] if transposed else weight[1] * groups
    if len(inputs) != len(weight) or not size or groups < 1 or inputs[1] != channels:
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
    products = _products(inputs, weight, output, transposed=bool(how.get("transposed")))
    return products + (prod(output) if bias else 0)


def _products(inputs: Shape, weight: Shape, output: Shape, *, transposed: bool) -> int:
    """Every place of the output meets the whole kernel; transposed, every place of the input does."""
    return 2 * inputs[0] * prod((inputs if transposed else output)[2:]) * prod(weight)


def _each(values: Shape, count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


class _Places(NamedTuple):
    """Where a schema has the arguments of a convolution; None where it has none.

    Without `groups`, they follow from the channels. `other` is a tensor that is added to the result.
    """

    stride: int
    padding: int
    bias: int | None = None
    dilation: int | None = None
    groups: int | None = None
    output_padding: int | None = None
    flag: int | None = None  # `transposed`, as an argument
    transposed: bool = False
    image: int = 0
    weight: int = 1
    other: int | None = None
    activation: bool = False


def _geometry(inputs: Inputs, at: _Places, image: Shape, weight: Shape) -> dict[str, Any]:
    transposed = at.transposed if at.flag is None else inputs.flag(at.flag)
    how = {
        "stride": inputs.numbers(at.stride),
        "padding": inputs.numbers(at.padding),
        "transposed": transposed,
    }
    if at.dilation is not None:
        how["dilation"] = inputs.numbers(at.dilation)
    if at.output_padding is not None:
        how["output_padding"] = inputs.numbers(at.output_padding)
    if at.groups is not None:
        how["groups"] = inputs.number(at.groups)
    elif not transposed:
        how["groups"] = image[1] // weight[1]
    return how


def _forward(at: _Places) -> Model:
    def work(inputs: Inputs) -> Work:
        image, weight = inputs.shape(at.image, 2), inputs.shape(at.weight, 3)
        if len(image) == len(weight) - 1:
            image = [1, *image]  # one image, not a batch
        how = _geometry(inputs, at, image, weight)
        bias = at.bias is not None and inputs.has(at.bias)
        output = convolution_output(image, weight, **how)
        elements = prod(output)
        added = bias + at.activation + (at.other is not None)
        width = inputs.itemsize(at.image)
        tensors = [place for place in (at.image, at.weight, at.bias, at.other) if place is not None]
        return Work(
            of_products(
                inputs,
                at.image,
                _products(image, weight, output, transposed=how["transposed"]),
                elements * added,
            ),
            inputs.sizes(tensors),
            None if width is None else elements * width,
            inputs.precision(at.image),
            "matrix",
        )

    return work


_PLAIN: Final = _Places(bias=2, stride=3, padding=4, dilation=5, flag=6, output_padding=7, groups=8)
_FUNCTION: Final = _Places(bias=2, stride=3, padding=4, dilation=5, groups=6)
_BACK_FUNCTION: Final = _Places(
    bias=2, stride=3, padding=4, output_padding=5, groups=6, dilation=7, transposed=True
)
_LIBRARY: Final = _Places(bias=2, padding=3, stride=4, dilation=5, groups=6)
_BACK_LIBRARY: Final = _Places(
    bias=2, padding=3, output_padding=4, stride=5, dilation=6, groups=7, transposed=True
)
_KERNEL: Final = _Places(bias=3, stride=4, padding=5)
_DILATED: Final = _KERNEL._replace(dilation=6)
_RELU: Final = _FUNCTION._replace(activation=True)
_ADD_RELU: Final = _Places(
    other=2, bias=4, stride=5, padding=6, dilation=7, groups=8, activation=True
)  # of which the factor of the other tensor is at 3

_FORWARD: Final[dict[str, _Places]] = {
    **dict.fromkeys(("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"), _PLAIN),
    "aten::cudnn_convolution_transpose": _Places(
        padding=2, output_padding=3, stride=4, dilation=5, groups=6, transposed=True
    ),
    **dict.fromkeys(("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu"), _RELU),
    **dict.fromkeys(("aten::cudnn_convolution_add_relu", "aten::miopen_convolution_add_relu"), _ADD_RELU),
    **dict.fromkeys(
        ("aten::miopen_convolution", "aten::miopen_depthwise_convolution", "aten::mkldnn_convolution"),
        _LIBRARY,
    ),
    "aten::miopen_convolution_transpose": _BACK_LIBRARY,
    "mkldnn::_convolution_transpose_pointwise": _BACK_LIBRARY,
    "mkldnn::_convolution_pointwise_": _Places(
        other=0, image=1, weight=2, bias=3, padding=4, stride=5, dilation=6, groups=7
    ),
    **dict.fromkeys(
        ("aten::thnn_conv2d", "aten::_slow_conv2d_forward", "aten::slow_conv3d", "aten::slow_conv3d_forward"),
        _KERNEL,
    ),
    **dict.fromkeys(
        (
            "aten::slow_conv_dilated2d",
            "aten::slow_conv_dilated3d",
            "aten::_conv_depthwise2d",
            "aten::conv_depthwise3d",
        ),
        _DILATED,
    ),
    **dict.fromkeys(
        ("aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d"),
        _Places(bias=3, stride=4, padding=5, output_padding=6, dilation=7, transposed=True),
    ),
    "aten::_nnpack_spatial_convolution": _Places(bias=2, padding=3, stride=4),
}
_CUDNN: Final = _Places(padding=2, stride=3, dilation=4, groups=5)
_COMPOSITE: Final[dict[str, _Places]] = {
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d"), _FUNCTION),
    **dict.fromkeys(
        ("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"), _BACK_FUNCTION
    ),
}

for _name, _at in _FORWARD.items():
    FAMILY.model(_name)(_forward(_at))
for _name, _at in _COMPOSITE.items():
    FAMILY.model(_name, composite=True, arguments=8 if _at.transposed else 7)(_forward(_at))


@FAMILY.model("aten::cudnn_convolution", backward="aten::cudnn_convolution_backward")
def _cudnn(inputs: Inputs) -> Work:
    """`cudnn_convolution(input, weight, padding, stride, dilation, groups, …)`; of traces without these, `cudnn_convolution_backward(input, gradient, weight, …)`.

    The gradient has the shape of the output, and the forward does the products of one of the two gradients.
    """
    if not inputs.has(2):
        return _forward(_CUDNN)(inputs)
    one = _gradients(inputs, (1, 0, 2), (False, True))
    return Work(one.flops, inputs.sizes([0, 2]), inputs.size(1), one.precision, one.unit)


@FAMILY.model("mkldnn::_convolution_pointwise")
def _pointwise(inputs: Inputs) -> Work:
    """`_convolution_pointwise(input, weight, bias, padding, …)`, ten arguments, or 13 with a tensor that is added behind the input."""
    if len(inputs.shapes) == 10:
        return _forward(_LIBRARY)(inputs)
    return _forward(_Places(other=1, weight=2, bias=3, padding=4, stride=5, dilation=6, groups=7))(inputs)


# -- backward ----------------------------------------------------------------------------------------


def _gradients(
    inputs: Inputs, places: tuple[int, int, int], wanted: Sequence[bool], *, transposed: bool = False
) -> Work:
    """Of the gradient, the input and the weight at these places; `wanted`: the gradients of input and weight, and of a bias.

    The gradient has the shape of the output, so nothing else has to be known.
    """
    gradient, image, weight = (inputs.shape(place, 3) for place in places)
    # The channels of the one are those of the weight, of the other those of all its groups.
    whole, grouped = (image, gradient) if transposed else (gradient, image)
    if len({len(gradient), len(image), len(weight)}) > 1 or gradient[0] != image[0]:
        raise ValueError
    if whole[1] != weight[0] or grouped[1] % weight[1]:
        raise ValueError
    # The gradient of the input meets the weight, that of the weight the input; each has the size of what it belongs to.
    flops = sum(map(bool, wanted[:2])) * _products(image, weight, gradient, transposed=transposed)
    both = list(zip(wanted, places[1:], places[:0:-1], strict=False))
    written = inputs.sizes([own for want, own, _ in both if want])
    if any(wanted[2:]):  # one number for each channel of the output
        written = _plus_bias(written, gradient[1], inputs.itemsize(places[0]))
    return Work(
        of_products(inputs, places[1], flops),
        inputs.sizes([places[0], *(meets for want, _, meets in both if want)]),
        written,
        inputs.precision(places[1]),
        "matrix",
    )


def _plus_bias(written: int | None, channels: int, width: int | None) -> int | None:
    return None if written is None or width is None else written + channels * width


def _backward(
    places: tuple[int, int, int], mask: int, flag: int | None = None, *, transposed: bool = False
) -> Model:
    def work(inputs: Inputs) -> Work:
        back = transposed if flag is None else inputs.flag(flag)
        return _gradients(inputs, places, inputs.flags(mask), transposed=back)

    return work


FAMILY.model("aten::convolution_backward")(_backward((0, 1, 2), mask=10, flag=7))
FAMILY.model("aten::convolution_backward_overrideable")(_backward((0, 1, 2), mask=9, flag=6))
FAMILY.model("aten::_slow_conv2d_backward")(_backward((0, 1, 2), mask=6))

# Up to torch 1.10 the libraries had operators for each gradient, whose own inputs lack a shape; `…_backward` around them has all.
for _outer, _of_weight in (
    ("aten::cudnn_convolution_backward", "weight"),
    ("aten::cudnn_convolution_transpose_backward", "weight"),
    ("aten::miopen_convolution_backward", "weight"),
    ("aten::miopen_convolution_transpose_backward", "weight"),
    ("aten::mkldnn_convolution_backward", "weights"),
):
    for _part, _wanted in (("input", (True, False)), (_of_weight, (False, True))):

        def _gradient(
            inputs: Inputs, wanted: Sequence[bool] = _wanted, *, transposed: bool = "transpose" in _outer
        ) -> Work:
            return _gradients(inputs, (1, 0, 2), wanted, transposed=transposed)

        FAMILY.model(f"{_outer}_{_part}", inputs_of=_outer)(_gradient)
