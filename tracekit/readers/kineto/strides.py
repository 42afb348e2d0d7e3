"""Which inputs read elements more than once, by their strides."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from operator import mul
from typing import Final

import msgspec
import polars as pl

from tracekit.groups import any_known
from tracekit.readers.kineto import columns

__all__ = ["repeating"]

_ZERO: Final = re.compile(r"\b0\b")
_NO_SHAPES: Final = (1 << 32) - 1
_LISTS: Final = msgspec.json.Decoder(list[list[int]])


def repeating(strides: pl.Series, shapes: pl.Series) -> pl.Series:
    """The strides of inputs of which one is 0, or of which windows overlap; null for the others, of which there are many."""
    if not any_known(strides):
        return strides
    pairs = strides.to_physical().cast(pl.UInt64) * (1 << 32) + shapes.to_physical().fill_null(_NO_SHAPES)
    first = pairs.arg_unique()
    each = zip(strides[first].cast(pl.String), shapes[first].cast(pl.String), strict=True)
    found = pairs[first].filter(pl.Series([_repeats(steps, sizes) for steps, sizes in each]))
    if not found.len():
        return columns.constant(None, pl.Categorical, strides.len())
    return strides.set(~pairs.is_in(found.implode()), None)


@lru_cache(maxsize=4096)
def _repeats(strides: str | None, shapes: str | None) -> bool:
    """Whether a stride is 0, or a tensor of the inputs has more elements than lie between its first and its last one."""
    if not strides:
        return False
    if _ZERO.search(strides):
        return True
    try:
        inputs = list(zip(_LISTS.decode(shapes or ""), _LISTS.decode(strides), strict=False))
    except msgspec.DecodeError:
        # Lists of tensors, or damaged text: nothing is known of overlaps, and all elements count.
        return False
    # A side of n elements takes n − 1 steps.
    return any(
        len(sizes) == len(steps) > 1 and sum(map(mul, sizes, steps)) - sum(steps) < prod(sizes) - 1
        for sizes, steps in inputs
    )
