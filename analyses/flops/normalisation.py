"""Normalisations and softmax: FLOPs for each element of the input.

A normalisation by mean and variance is 6: 1 for the mean, 3 for the variance (subtract, square, add), 2 to subtract the mean and to
scale; a weight adds 1, a bias 1. By the root of the mean square it is 3 (square, add, scale). Backward, the gradient of the input is
10 (of the mean square 7), that of a weight 2, that of a bias 1. Softmax and its logarithm are 4 (subtract the maximum, exp, add,
divide or subtract), and their gradients, too. A weight that is scaled by its norm is 3 (square, add, scale), its gradient 5. What a single row needs (roots, division by the count) is not counted.
"""

from __future__ import annotations

from math import prod
from typing import Final

from tracekit.analyses.flops.tensors import asked_width, bytes_of, is_tensor, made
from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY"]

FAMILY: Final = Family("normalisation")

_BY_MEAN, _BY_SQUARE, _SOFTMAX = 6, 3, 4
_BY_MEAN_BACK, _BY_SQUARE_BACK = 10, 7
_WHEN_KNOWN: Final = 2
"""To subtract and scale, where mean and variance are known."""


def _affine(inputs: Inputs, weight: int, bias: int, *, backward: bool = False) -> int:
    return (1 + backward) * is_tensor(inputs, weight) + is_tensor(inputs, bias)


def _statistics(inputs: Inputs, rows: int, kinds: int = 2) -> int | None:
    """The bytes of what a normalisation keeps of each row: numbers of at least 4 bytes."""
    width = inputs.itemsize(0)
    return None if width is None else rows * kinds * max(width, 4)


def _sum(*sizes: int | None) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _by_rows(flops: int, weight: int, bias: int, kept: int) -> Model:
    """The model of `layer_norm(input, normalized_shape, weight, bias, eps)` and those like it, which keep so many numbers of a row."""

    def work(inputs: Inputs) -> Work:
        size, width = inputs.elements(0), inputs.size(0)
        row = prod(inputs.shape(weight)) if is_tensor(inputs, weight) else prod(inputs.numbers(1))
        each = flops + is_tensor(inputs, weight) + (bias > 0 and is_tensor(inputs, bias))
        places = (0, weight, bias) if bias else (0, weight)
        written = _sum(width, _statistics(inputs, size // max(row, 1), kept))
        return Work(each * size, bytes_of(inputs, places), written, inputs.precision(0))

    return work


FAMILY.model("aten::native_layer_norm")(_by_rows(_BY_MEAN, 2, 3, 2))
FAMILY.model("aten::_fused_rms_norm")(_by_rows(_BY_SQUARE, 2, 0, 1))


def _masked(flops: int, inputs: Inputs, of: int, weight: int, mask: int) -> tuple[int, int | None]:
    """FLOPs and bytes written of the gradients that `output_mask` asks for: of the input, the weight and the bias."""
    wanted = [*inputs.flags(mask), False][:3]
    each = flops * wanted[0] + 2 * wanted[1] + wanted[2]
    tensors = [inputs.size(of), *[inputs.size(weight) if is_tensor(inputs, weight) else 0] * 2]
    return each * inputs.elements(of), _sum(
        *(size for size, want in zip(tensors, wanted, strict=True) if want)
    )


def _rows_back(flops: int, places: tuple[int, ...], weight: int, mask: int) -> Model:
    """The model of the gradient of a normalisation: it reads the inputs at `places`; those of gradient and input come first."""

    def work(inputs: Inputs) -> Work:
        read = bytes_of(inputs, places)
        if mask >= len(inputs.concrete):  # old profilers: which gradients are wanted was not recorded
            return Work(None, read, inputs.size(places[1]), inputs.precision(places[1]))
        amount, written = _masked(flops, inputs, places[1], weight, mask)
        return Work(amount, read, written, inputs.precision(places[1]))

    return work


FAMILY.model("aten::native_layer_norm_backward")(_rows_back(_BY_MEAN_BACK, (0, 1, 3, 4, 5), 5, 7))
FAMILY.model("aten::native_group_norm_backward")(_rows_back(_BY_MEAN_BACK, (0, 1, 2, 3, 4), 4, 9))
FAMILY.model("aten::native_batch_norm_backward")(_rows_back(_BY_MEAN_BACK, (0, 1, 2, 5, 6), 2, 9))
FAMILY.model("aten::_fused_rms_norm_backward")(_rows_back(_BY_SQUARE_BACK, (0, 1, 3, 4), 4, 5))


@FAMILY.model("aten::native_group_norm")
def _group_norm(inputs: Inputs) -> Work:
    """`native_group_norm(input, weight, bias, N, C, HxW, group, eps)`: by mean and variance of each group of a sample."""
    groups = inputs.number(3) * inputs.number(6) if len(inputs.concrete) > 6 else None
    kept = None if groups is None else _statistics(inputs, groups)
    flops = (_BY_MEAN + _affine(inputs, 1, 2)) * inputs.elements(0)
    return Work(flops, bytes_of(inputs, range(3)), _sum(inputs.size(0), kept), inputs.precision(0))


@FAMILY.model("aiter::_groupnorm_run")
def _group_norm_of_aiter(inputs: Inputs) -> Work:
    """`_groupnorm_run(input, groups, weight, bias, eps)`, which keeps nothing of a group."""
    flops = (_BY_MEAN + _affine(inputs, 2, 3)) * inputs.elements(0)
    return Work(flops, bytes_of(inputs, (0, 2, 3)), inputs.size(0), inputs.precision(0))


def _batch_norm(training: int | None) -> Model:
    """The model of `batch_norm(input, weight, bias, running_mean, running_var, training, …)`: known statistics need only 2 FLOPs.

    In training the statistics of the batch are kept, and the running ones updated. None: it always is training.
    """

    def work(inputs: Inputs) -> Work:
        known = training is None or training < len(inputs.concrete)
        trains = training is None or (known and inputs.flag(training))
        each = (_BY_MEAN if trains else _WHEN_KNOWN) + _affine(inputs, 1, 2)
        read, running = bytes_of(inputs, range(5)), bytes_of(inputs, (3, 4))
        kept = _sum(running, _statistics(inputs, inputs.shape(0, 2)[1])) if trains else 0
        flops = each * inputs.elements(0) if known else None
        return Work(flops, read, _sum(inputs.size(0), kept), inputs.precision(0))

    return work


FAMILY.model(
    *("aten::cudnn_batch_norm", "aten::miopen_batch_norm", "aten::native_batch_norm"),
    "aten::_native_batch_norm_legit",
)(_batch_norm(5))
FAMILY.model("aten::_batch_norm_with_update")(_batch_norm(None))


def _all_gradients(order: tuple[int, int]) -> Model:
    """The model of the gradient of a batch norm that is given `input`, `grad_output` (at these places), `weight` and the statistics."""

    def work(inputs: Inputs) -> Work:
        image = order[0]
        flops = (_BY_MEAN_BACK + 3) * inputs.elements(image)
        written = _sum(inputs.size(image), bytes_of(inputs, [2]), bytes_of(inputs, [2]))
        return Work(flops, bytes_of(inputs, (*order, 2, 5, 6)), written, inputs.precision(image))

    return work


FAMILY.model("aten::cudnn_batch_norm_backward", "aten::miopen_batch_norm_backward")(_all_gradients((0, 1)))


def _softmax(inputs: Inputs) -> Work:
    """`_softmax(input, dim, half_to_float)`."""
    asked = len(inputs.concrete) > 2 and inputs.flag(2)
    written = made(inputs.elements(0), 4 if asked else inputs.itemsize(0))
    return Work(_SOFTMAX * inputs.elements(0), inputs.size(0), written, inputs.precision(0))


def _softmax_back(inputs: Inputs) -> Work:
    """`_softmax_backward_data(grad_output, output, dim, input_dtype)`."""
    written = made(inputs.elements(0), asked_width(inputs, 3, inputs.itemsize(0)))
    return Work(_SOFTMAX * inputs.elements(0), bytes_of(inputs, (0, 1)), written, inputs.precision(0))


FAMILY.model("aten::_softmax", "aten::_log_softmax")(_softmax)
FAMILY.model("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")(_softmax_back)


@FAMILY.model("aten::_weight_norm_interface")
def _scaled_weight(inputs: Inputs) -> Work:
    """`_weight_norm_interface(v, g, dim)`: it writes the weight and the norms."""
    return Work(3 * inputs.elements(0), inputs.sizes((0, 1)), inputs.sizes((0, 1)), inputs.precision(0))


@FAMILY.model("aten::_weight_norm_interface_backward")
def _scaled_weight_back(inputs: Inputs) -> Work:
    """`_weight_norm_interface_backward(grad, v, g, norms, dim)`: grad · v is summed, and v times that taken from grad."""
    return Work(5 * inputs.elements(0), inputs.sizes(range(4)), inputs.sizes((1, 2)), inputs.precision(0))
