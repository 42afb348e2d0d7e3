"""Which inputs of a call are tensors, the bytes that they hold, and the shape and type of what is made of them.

The profiler writes a tensor's sizes and type, and of a list of tensors the sizes alone: `analyses.flops.calls` adds the type of
their elements where a kernel's name tells it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from tracekit.analyses.flops.work import DTYPES, Inputs

__all__ = [
    "INDEX",
    "LIST",
    "are_whole",
    "asked_width",
    "broadcast",
    "bytes_of",
    "is_complex",
    "is_complex_list",
    "is_floating",
    "is_tensor",
    "is_whole_list",
    "list_precision",
    "list_shapes",
    "list_width",
    "made",
    "of_products",
    "of_sums",
    "precision_of",
    "reduced",
    "result_width",
    "tensors",
]

INDEX: Final = 8
"""The bytes of an index that torch makes."""

LIST: Final = "TensorList"
"""What the profiler writes as the type of a list of tensors; with `:` and their type, or the bytes of an element, behind it if that is known."""

_BOOL, _INT, _FLOAT, _COMPLEX = range(4)
_DEFAULT_TYPES: Final = ("double", "c10::complex<double>")
"""As which a Python number is passed, too: it does not widen other numbers with fractions, and beside integers counts as torch's default
type, which is not recorded."""
_WRITTEN: Final = {"Scalar": "0.", "Double": "0.", "Int": "0"}
"""What stands for a number that was not recorded, by its type: that which may change the type of the result most."""


def is_tensor(inputs: Inputs, place: int) -> bool:
    """Whether a tensor was given there: it has sizes, or it has none and a type of tensors."""
    sizes = inputs.shapes[place] if place < len(inputs.shapes) else None
    if not isinstance(sizes, list):
        return False
    return type(sizes[0]) is int if sizes else _dtype(inputs, place) in DTYPES


def tensors(inputs: Inputs, places: Iterable[int] | None = None) -> list[int]:
    """The places, of these or of all, at which a tensor was given."""
    return [
        place
        for place in (range(len(inputs.shapes)) if places is None else places)
        if is_tensor(inputs, place)
    ]


def bytes_of(inputs: Inputs, places: Iterable[int]) -> int | None:
    """The bytes of the tensors at these places; None if a type is not known."""
    sizes = [inputs.size(place) for place in tensors(inputs, places)]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def made(elements: int | None, width: int | None) -> int | None:
    """The bytes of so many elements of a width; None if either is not known."""
    return None if elements is None or width is None else elements * width


def broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """The shape that tensors of these shapes have together. Raises ValueError when they do not fit.

    >>> broadcast([[4, 1, 3], [5, 1]])
    [4, 5, 3]
    """
    if len(shapes) == 1:
        return list(shapes[0])
    rank = max(map(len, shapes))
    sides = zip(*([1] * (rank - len(shape)) + list(shape) for shape in shapes), strict=True)
    return [_side(set(side)) for side in sides]


def _side(sizes: set[int]) -> int:
    wide = sizes - {1}
    if len(wide) > 1:
        raise ValueError
    return wide.pop() if wide else 1


def result_width(inputs: Inputs, places: Sequence[int]) -> int | None:
    """The bytes of an element of what torch's promotion of types makes of the inputs at these places; None if it is not known."""
    given = tensors(inputs, places)
    dtypes = [_dtype(inputs, place) for place in given]
    if not given or not all(dtype in DTYPES for dtype in dtypes):
        return None
    whole = [dtype for dtype, place in zip(dtypes, given, strict=True) if inputs.shapes[place]]
    single = [dtype for dtype, place in zip(dtypes, given, strict=True) if not inputs.shapes[place]]
    numbers = [_number(inputs, place) for place in places if not is_tensor(inputs, place)]
    if not whole:
        whole = [dtype for dtype in single if dtype not in _DEFAULT_TYPES] or single
    category, width = _promoted(whole)
    if single and (beside := _promoted(single))[0] > category:
        unsure = any(dtype in _DEFAULT_TYPES for dtype in single)
        category, width = beside[0], None if unsure else beside[1]
    if max(numbers, default=_BOOL) > category:
        return 8 if max(numbers) == _INT else None
    return width


def _promoted(dtypes: Sequence[str]) -> tuple[int, int | None]:
    """The category and the width that types have together."""
    highest = max(map(_category, dtypes))
    names = {dtype.replace(" int", "") for dtype in dtypes if _category(dtype) == highest}
    widths = sorted(DTYPES[dtype][0] for dtype in dtypes if _category(dtype) == highest)
    if len(names) > 1 and widths[0] == widths[-1]:  # such as bf16 and fp16, or signed and unsigned
        return highest, 4 if names == {"c10::Half", "c10::BFloat16"} else None
    return highest, widths[-1]


def _category(dtype: str) -> int:
    if dtype == "bool":
        return _BOOL
    return _COMPLEX if dtype.startswith("c10::complex") else _INT if DTYPES[dtype][1] is None else _FLOAT


def _number(inputs: Inputs, place: int) -> int:
    """The category of a scalar argument; that of a Boolean for what is none."""
    text = (
        str(inputs.concrete[place])
        if place < len(inputs.concrete)
        else _WRITTEN.get(_dtype(inputs, place), "")
    )
    if text.lstrip("-").isdigit():
        return _INT
    return _FLOAT if text and text not in ("True", "False") and text[-1] in "0123456789.fn" else _BOOL


def is_floating(inputs: Inputs, place: int) -> bool:
    """Whether a tensor's type is known to have fractions."""
    return DTYPES.get(_dtype(inputs, place), (0, None))[1] is not None


def is_complex(inputs: Inputs, place: int) -> bool:
    """Whether a tensor's numbers are complex: two real ones each."""
    return _dtype(inputs, place).startswith("c10::complex")


def are_whole(inputs: Inputs, places: Iterable[int]) -> bool:
    """Whether all tensors and numbers at these places are known to be integers: their arithmetic is none of floating-point numbers."""
    dtypes = {place: _dtype(inputs, place) for place in places}
    given = tensors(inputs, dtypes)
    numbers = [_number(inputs, place) for place in dtypes if place not in given]
    whole = all(DTYPES.get(dtypes[each], (0, ""))[1] is None and "::q" not in dtypes[each] for each in given)
    return bool(given) and whole and _FLOAT not in numbers


def of_products(inputs: Inputs, place: int, flops: int, sums: int = 0) -> int:
    """The FLOPs of products with so many of real numbers, and of sums beside them, for a tensor's type.

    A complex number is multiplied and added with 4 multiplications and 4 additions, not 2 operations.
    """
    return 4 * flops + 2 * sums if is_complex(inputs, place) else flops + sums


def of_sums(inputs: Inputs, place: int, count: int) -> int:
    """The FLOPs of so many additions, for a tensor's type: none of integers, two of complex numbers."""
    if are_whole(inputs, (place,)):
        return 0
    return count * (2 if is_complex(inputs, place) else 1)


def precision_of(inputs: Inputs, places: Iterable[int]) -> str | None:
    """The first precision among tensors."""
    return next((found for place in places if (found := inputs.precision(place))), None)


def asked_width(inputs: Inputs, place: int, otherwise: int | None) -> int | None:
    """The width of the type that an argument `dtype` names; the other if none was given."""
    return inputs.named_itemsize(place) if inputs.given(place) else otherwise


def list_shapes(inputs: Inputs, place: int) -> list[list[int]]:
    """The shapes of a list of tensors. Raises ValueError where there is none, or old profilers did not write them."""
    shapes = inputs.tensors(place)
    if not shapes or not _dtype(inputs, place).startswith(LIST):
        raise ValueError
    return shapes


def list_width(inputs: Inputs, place: int) -> int | None:
    """The bytes of an element of the tensors in a list; None if it is not known."""
    of = _list_type(inputs, place)
    return int(of) if of.isdigit() else DTYPES.get(of, (None, None))[0]


def is_complex_list(inputs: Inputs, place: int) -> bool:
    """Whether the tensors in a list are known to have complex numbers."""
    return _list_type(inputs, place).startswith("c10::complex")


def is_whole_list(inputs: Inputs, place: int) -> bool:
    """Whether the tensors in a list are known to have integers."""
    return DTYPES.get(_list_type(inputs, place), (0, ""))[1] is None


def list_precision(inputs: Inputs, place: int) -> str | None:
    """The precision of the tensors in a list; None if their type has none, or is not known."""
    return DTYPES.get(_list_type(inputs, place), (None, None))[1]


def _list_type(inputs: Inputs, place: int) -> str:
    return _dtype(inputs, place).partition(":")[2]


def reduced(inputs: Inputs, place: int, at: int) -> int | None:
    """How many elements are left of a tensor that is reduced over the dimensions at `at`; None if they were not recorded."""
    shape = inputs.shape(place, 0)
    if at >= len(inputs.shapes) or _dtype(inputs, at) == "":
        return 1  # over all: None was given, or the overload has no dimensions
    if at >= len(inputs.concrete):
        return None
    text = str(inputs.concrete[at])
    if text in ("", "[]", "True", "False"):  # over all: no dimensions, or the overload has a flag there
        return 1
    over = inputs.numbers(at) if text.startswith("[") else (int(text),)
    gone = {dimension % max(len(shape), 1) for dimension in over}
    return prod(size for dimension, size in enumerate(shape) if dimension not in gone)


def _dtype(inputs: Inputs, place: int) -> str:
    dtype = inputs.dtypes[place] if place < len(inputs.dtypes) else ""
    return dtype if isinstance(dtype, str) else ""
