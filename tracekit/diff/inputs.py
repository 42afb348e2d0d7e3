"""What differs between the inputs of two calls, in a few words."""

from __future__ import annotations

import json
from typing import Final

import msgspec

from tracekit.facts.terminal_text import printable
from tracekit.facts.units import listed

__all__ = ["PRODUCTS", "alike", "inputs_of", "inputs_told", "shapes_told", "types_of", "types_told"]

_MOST_INPUTS: Final = 3
_DTYPES: Final = {"float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
PRODUCTS: Final = {"aten::mm": 2, "aten::bmm": 2, "aten::addmm": 5, "aten::baddbmm": 5}
"""How many inputs these products have if they make their own result; compiled code gives the place of the result as one more."""


def inputs_of(operator: str | None, shapes: str, dtypes: str | None) -> tuple[str, str | None]:
    """The shapes and types of the inputs of a call, without the place of its result.

    >>> inputs_of("aten::mm", "[[2, 3], [3, 4], [2, 4]]", '["float", "float", "float"]')
    ('[[2, 3], [3, 4]]', '["float", "float"]')
    """
    sizes, given = _list(shapes), PRODUCTS.get(operator or "", -2)
    if len(sizes) != given + 1:
        return shapes, dtypes
    return json.dumps(sizes[:given]), None if dtypes is None else json.dumps(_list(dtypes)[:given])


def _list(text: str | None) -> list[object]:
    """The inputs that a text of shapes or types lists."""
    try:
        return msgspec.json.decode(text or "[]", type=list[object])
    except (msgspec.DecodeError, RecursionError):
        return [text]


def alike(one: str, other: str) -> int | None:
    """How many sizes two lists of inputs' shapes have in common; None if the inputs are not of one kind.

    >>> alike("[[32, 64], [64, 8]]", "[[32, 64], [64, 16]]"), alike("[[32, 64]]", "[[32]]")
    (3, None)
    """
    common, old, new = 0, _list(one), _list(other)
    for a, b in zip(old, new, strict=False):
        if not isinstance(a, list) or not isinstance(b, list) or len(a) != len(b):
            return None
        common += sum(x == y for x, y in zip(a, b, strict=True))
    return common if len(old) == len(new) else None


def shapes_told(text: str) -> str:
    """The inputs that are no scalars.

    >>> shapes_told("[[32, 64], [64, 8], []]"), shapes_told("[[], []]")
    ('inputs of 32 × 64 and 64 × 8', 'scalar inputs')
    """
    sizes = [_size(shape) for shape in _list(text) if shape != []][:_MOST_INPUTS]
    return printable(f"inputs of {listed(sizes)}" if sizes else "scalar inputs")


def types_of(text: str) -> str:
    """The types of the inputs that are tensors, each once.

    >>> types_of('["float", "c10::BFloat16", "", "Scalar"]')
    'fp32 and bf16'
    """
    named = [str(each) for each in _list(text) if each not in ("", "Scalar", "ScalarList", "TensorList")]
    return printable(listed([*dict.fromkeys(_DTYPES.get(each, each) for each in named)][:_MOST_INPUTS]))


def types_told(before: str | None, after: str | None) -> tuple[str | None, str | None]:
    """The types that differ, from two lists of inputs' types: of inputs that both calls have. Nones if none of these does.

    >>> types_told('["float", "int"]', '["c10::BFloat16", "int"]')
    ('fp32', 'bf16')
    >>> types_told('["float", ""]', '["float", "Scalar"]')
    (None, None)
    """
    both = zip(_list(before), _list(after), strict=False)
    pairs = dict.fromkeys((str(old), str(new)) for old, new in both if old != new and old and new)
    if not pairs:
        return None, None
    old, new = (
        printable(" and ".join(dict.fromkeys(_DTYPES.get(each, each) for each in side)))
        for side in zip(*pairs, strict=True)
    )
    return old, new


def inputs_told(before: str, after: str) -> str:
    r"""Which shapes differ, from two lists of inputs' shapes.

    >>> inputs_told("[[32, 64], []]", "[[128, 64], []]")
    'input 1 is 128 × 64, not 32 × 64'
    >>> inputs_told("[[32]]", '[["\\u202e\\u001b[2J"]]')
    'input 1 is  [2J, not 32'
    """
    old, new = _list(before), _list(after)
    if len(old) != len(new):
        return f"{len(new)} inputs, not {len(old)}"
    both = enumerate(zip(old, new, strict=True), 1)
    told = [f"input {number} is {_size(b)}, not {_size(a)}" for number, (a, b) in both if a != b]
    return printable("; ".join(told[:_MOST_INPUTS]))


def _size(shape: object) -> str:
    return " × ".join(str(each) for each in shape) or "a scalar" if isinstance(shape, list) else str(shape)
