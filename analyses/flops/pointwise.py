"""Operators that treat each element alone: FLOPs for each element of the output are those of the formula.

One FLOP is an addition, multiplication, division, power, root, change of sign, rounding or elementary function (exp, log, tanh, erf,
…) of real numbers; a comparison (relu, maximum), a selection, an operation on bits or a change of type is none. A composed function
counts what its formula holds: sigmoid 1 / (1 + exp(−x)) and silu 4, gelu 5, hardswish 3, addcmul and lerp 3, dropout 2, logaddexp
max(a, b) + log1p(exp(−|a − b|)) 6; backward, sigmoid and tanh 3, silu 9, gelu 11, a squared error 3. Of gelu it is the exact form, x / 2 · (1 + erf(x / √2)): which form a call has is
not recorded. The factor `alpha` of an addition is not counted.
Of complex numbers a sum is 2, a product 6 (2 with a real number), a quotient 11, the absolute value 4, exp 5. Arithmetic of integers is no
FLOP, but for functions that make fractions of them. Bytes: each input once and the output once; an operator in place reads and
writes its first input. A number of fp64 beside a tensor, neither with dimensions, is taken for one of Python, which does not widen it. Of operators on lists of tensors (`_foreach_…`) the bytes are known if a kernel's name tells their type;
`addcmul` reads two of them, since torch's optimizers pass the gradients twice, and so does `addcmul_` of two alike tensors in the step of an
optimizer. On processors torch goes through the tensors of a list by
operators that count themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, Literal

from tracekit.analyses.flops.distinct_calls import Calls
from tracekit.analyses.flops.tensors import (
    LIST,
    are_whole,
    broadcast,
    bytes_of,
    is_complex,
    is_complex_list,
    is_floating,
    is_whole_list,
    list_precision,
    list_shapes,
    list_width,
    made,
    precision_of,
    result_width,
    tensors,
)
from tracekit.analyses.flops.work import Family, Inputs, Model, Work
from tracekit.name_table import NameTable
from tracekit.spans import Nesting

__all__ = ["BACKWARD", "COMPARISONS", "FAMILY", "POINTWISE", "with_squares"]

FAMILY: Final = Family("pointwise")

POINTWISE: Final[dict[tuple[int, int], str]] = {
    (1, 0): "relu relu6 hardtanh threshold sign sgn nan_to_num bitwise_not tril triu flip roll conj_physical",
    (
        1,
        1,
    ): "neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc erfinv ceil floor round trunc frac lgamma digamma leaky_relu hardshrink softshrink",
    (1, 2): "hardsigmoid elu",
    (1, 3): "hardswish logit",
    (1, 4): "sigmoid silu mish softplus",
    (1, 5): "gelu",
    (2, 0): "maximum minimum fmax fmin clamp_min clamp_max bitwise_and bitwise_or bitwise_xor copysign "
    "bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__",
    (2, 1): "add sub mul div rsub pow fmod remainder atan2 floor_divide heaviside",
    (2, 2): "xlogy",
    (2, 3): "hypot",
    (2, 6): "logaddexp logaddexp2",
    (3, 0): "where clamp masked_fill",
    (3, 3): "addcmul addcdiv lerp",
}
"""The names by the places at which a tensor may be an input, counted from the first, and the FLOPs for each element."""

COMPARISONS: Final = {
    1: "logical_not isnan isinf isfinite signbit isposinf isneginf",
    2: "eq ne lt le gt ge logical_and logical_or logical_xor",
}
"""Operators whose result is true or false, by the places of tensors: no FLOPs."""

BACKWARD: Final[dict[tuple[int, int], str]] = {
    (2, 0): "threshold_backward hardtanh_backward hardshrink_backward softshrink_backward",
    (2, 1): "leaky_relu_backward hardsigmoid_backward _prelu_kernel",
    (2, 2): "native_dropout_backward",
    (2, 3): "sigmoid_backward tanh_backward logit_backward hardswish_backward",
    (2, 5): "softplus_backward",
    (2, 9): "silu_backward",
    (2, 11): "gelu_backward",
    (3, 2): "smooth_l1_loss_backward huber_loss_backward",
    (3, 3): "mse_loss_backward",
    (4, 5): "binary_cross_entropy_backward",
    (6, 2): "elu_backward",
}
"""The same of gradients, which no operator computes in place."""

_LISTED: Final = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp lgamma log "
    "log10 log1p log2 maximum minimum mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc"
)
"""Those that torch has for lists of tensors, too."""

_NEVER_IN_PLACE: Final = "flip roll hardshrink softshrink softplus maximum minimum fmax fmin logaddexp logaddexp2 rsub where isnan isinf isfinite signbit isposinf isneginf"

_FRACTIONS: Final = (
    "div exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "erfc erfinv lgamma digamma sigmoid logit atan2 xlogy"
)
"""Of integers they make numbers of torch's default type, which is not recorded."""

_OPTIONAL: Final = ("clamp", "binary_cross_entropy_backward")
"""Operators that may be called without one of their operands."""

Result = Literal["promoted", "bool", "first"]

_COMPLEX: Final = {
    **{"add": 2, "sub": 2, "rsub": 2, "neg": 2, "mul": 6, "square": 6, "div": 11, "reciprocal": 6, "exp": 5},
    **{"abs": 4, "sgn": 6, "addcmul": 14, "addcdiv": 19, "lerp": 10},
}
"""FLOPs for each complex number: a quotient is a · b* / |b|². Of other functions of complex numbers they are not known."""
_BY_REAL: Final = 2
"""The FLOPs of a complex number times a real one, or over it."""


def _arithmetic(name: str, inputs: Inputs, operands: int, flops: int) -> int | None:
    """The FLOPs for each element, by the types of the inputs: those of integers are none, unless fractions are made of them."""
    given = tensors(inputs, range(operands))
    if not any(is_complex(inputs, place) for place in given):
        return 0 if name not in _FRACTIONS.split() and are_whole(inputs, range(operands)) else flops
    real = [place for place in given if is_floating(inputs, place) and not is_complex(inputs, place)]
    if real and (name == "mul" or (name, real) == ("div", [1])):
        return _BY_REAL
    return _COMPLEX.get(name, None if flops else 0)


def _is_unrecorded(inputs: Inputs, operands: int) -> bool:
    """Whether an operand has no type and no sizes, as a nested tensor, which need not be recorded."""
    given = zip(inputs.shapes[:operands], inputs.dtypes, strict=False)
    return any(dtype == "" and not sizes for sizes, dtype in given)


def _model(name: str, operands: int, flops: int, result: Result = "promoted") -> Model:
    """The model of an operator whose tensors are among the first inputs; one behind them is the given output (`out=`)."""

    def work(inputs: Inputs) -> Work:
        places = tensors(inputs, range(operands))
        if len(inputs.shapes) < operands or (name not in _OPTIONAL and _is_unrecorded(inputs, operands)):
            raise ValueError  # such as `where` of a condition alone
        elements = prod(broadcast([inputs.shape(place, 0) for place in places]))
        out = tensors(inputs, range(operands, len(inputs.shapes)))
        if out or result == "first":
            width = inputs.itemsize(out[0] if out else 0)
        elif result == "bool":
            width = 1
        else:
            width = result_width(inputs, range(operands))
            if name in _FRACTIONS.split() and not any(is_floating(inputs, place) for place in places):
                width = None
            if name == "abs" and width is not None and is_complex(inputs, 0):
                width //= 2  # the size of a complex number is a real one
        each = _arithmetic(name, inputs, operands, flops)
        amount = None if each is None else elements * each
        return Work(amount, bytes_of(inputs, places), made(elements, width), precision_of(inputs, places))

    return work


def _in_lists(name: str, operands: int, flops: int) -> Model:
    """The model of an operator on the tensors of lists, one after another (`_foreach_…`), all of one type."""

    def work(inputs: Inputs) -> Work:
        elements = sum(map(prod, list_shapes(inputs, 0)))
        lists = sum(str(dtype).startswith(LIST) for dtype in inputs.dtypes[:operands])
        width = list_width(inputs, 0)
        read, written = made(elements * lists, width), made(elements, width)
        each: int | None = 0 if name not in _FRACTIONS.split() and is_whole_list(inputs, 0) else flops
        if is_complex_list(inputs, 0):
            each = _COMPLEX.get(name, None if flops else 0)
            written = written // 2 if name == "abs" and written is not None else written
        return Work(None if each is None else elements * each, read, written, list_precision(inputs, 0))

    return work


def _declare(names: Sequence[str], operands: int, flops: int, result: Result = "promoted") -> None:
    """The operators of these names; those that work in place have the type of their first input."""
    for name in names:
        of_self = "first" if name == "masked_fill" else result
        FAMILY.model(f"aten::{name}")(_model(name, operands, flops, of_self))
        if not name.startswith("__") and name not in _NEVER_IN_PLACE.split():
            FAMILY.model(f"aten::{name}_")(_model(name, operands, flops, "first"))
        if name in _LISTED.split():
            # What torch's optimizers multiply are the gradients, twice: the least that is read are two lists.
            lists = operands - (name == "addcmul")
            both = (f"aten::_foreach_{name}", f"aten::_foreach_{name}_")
            FAMILY.model(*both, composite=True)(_in_lists(name, lists, flops))


_ADDCMUL: Final = "aten::addcmul_"
_SQUARE: Final = "aten::addcmul_ (square)"
"""As which the `addcmul_` of an optimizer counts."""
_STEP: Final = "Optimizer.step#"


@FAMILY.model(_SQUARE)
def _squares(inputs: Inputs) -> Work:
    """`addcmul_(self, one, other)` in the step of an optimizer: alike tensors are the gradient, twice."""
    alike = all(each[1:2] == each[2:3] for each in (inputs.shapes, inputs.dtypes))
    return _model("addcmul", 2 if alike else 3, 3, "first")(inputs)


def with_squares(calls: Calls, names: NameTable, nesting: Nesting) -> Calls:
    """The calls, with the name of its own for an `addcmul_` in the step of an optimizer."""
    products = calls.named((_ADDCMUL,))
    if not products.size:
        return calls
    steps = names.which(lambda name: name.startswith(_STEP))
    inside = nesting.nearest_ancestor(steps)[calls.spans[products]] >= 0
    return calls.renamed(products[inside], _SQUARE)


for (_operands, _flops), _names in POINTWISE.items():
    _declare(_names.split(), _operands, _flops)
for _operands, _compared in COMPARISONS.items():
    _declare(_compared.split(), _operands, 0, "bool")
for (_operands, _flops), _names in BACKWARD.items():
    for _name in _names.split():
        FAMILY.model(f"aten::{_name}")(_model(_name, _operands, _flops))


@FAMILY.model("aten::native_dropout", "aten::_fused_dropout")
def _dropout(inputs: Inputs) -> Work:
    """`native_dropout(input, p, train)`: 2 FLOPs an element, with the mask and the factor; it writes the mask, too."""
    width = inputs.itemsize(0)
    elements = inputs.elements(0)
    return Work(
        2 * elements, inputs.size(0), None if width is None else elements * (width + 1), inputs.precision(0)
    )


@FAMILY.model("aten::log_sigmoid_forward")
def _log_sigmoid(inputs: Inputs) -> Work:
    """`log_sigmoid_forward(input)`: min(x, 0) − log1p(exp(−|x|)). What processors keep for backward is left out."""
    return Work(5 * inputs.elements(0), inputs.size(0), inputs.size(0), inputs.precision(0))


@FAMILY.model("aten::glu")
def _gated(inputs: Inputs) -> Work:
    """`glu(input, dim)`: one half of it times the sigmoid of the other, 5 FLOPs for each element of the result."""
    size = inputs.elements(0) // 2
    return Work(5 * size, inputs.size(0), made(size, inputs.itemsize(0)), inputs.precision(0))


@FAMILY.model("aten::glu_backward")
def _gated_back(inputs: Inputs) -> Work:
    """`glu_backward(grad, input, dim)`: a sigmoid, grad · s, and grad · a · s · (1 − s) for each element of the gradient."""
    return Work(9 * inputs.elements(0), bytes_of(inputs, (0, 1)), inputs.size(1), inputs.precision(0))


@FAMILY.model("aten::log_sigmoid_backward")
def _log_sigmoid_back(inputs: Inputs) -> Work:
    """`log_sigmoid_backward(grad, input, buffer)`: grad · (1 − z / (1 + z)), with z as processors kept it."""
    return Work(4 * inputs.elements(0), bytes_of(inputs, (0, 1, 2)), inputs.size(1), inputs.precision(0))


@FAMILY.model("aten::_prelu_kernel_backward")
def _prelu_back(inputs: Inputs) -> Work:
    """`_prelu_kernel_backward(grad, input, weight)`: a product for each of two gradients, that of the weight as large as the input."""
    size = inputs.size(1)
    written = None if size is None else 2 * size
    return Work(2 * inputs.elements(0), bytes_of(inputs, (0, 1, 2)), written, inputs.precision(0))


@FAMILY.model("aten::_amp_foreach_non_finite_check_and_unscale_", composite=True)
def _unscaled(inputs: Inputs) -> Work:
    """`_amp_foreach_non_finite_check_and_unscale_(tensors, found, factor)`: a product for each element."""
    return _in_lists("mul", 1, 1)(inputs)
