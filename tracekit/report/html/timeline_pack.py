"""Columns of whole numbers as few bytes: variable-length numbers, compressed, as text that HTML can hold."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tracekit.spans import Int64Array

__all__ = ["packed", "varints", "zigzag"]


def varints(values: npt.ArrayLike) -> bytes:
    """Each number in groups of seven bits, the lowest first; every byte but a number's last has its top bit set.

    >>> varints([1, 300]).hex()
    '01ac02'

    Raises ValueError for a negative number.
    """
    numbers = np.asarray(values, dtype=np.int64)
    if numbers.size and numbers.min() < 0:
        raise ValueError("only numbers from 0 on can be written")
    length = np.ones(numbers.size, dtype=np.int64)
    for group in range(1, 9):
        length += numbers >= (1 << (7 * group))
    at = np.cumsum(length) - length
    out = np.zeros(int(length.sum()), dtype=np.uint8)
    for group in range(int(length.max()) if length.size else 0):
        has = np.flatnonzero(length > group)
        more = np.where(length[has] > group + 1, 0x80, 0)
        out[at[has] + group] = ((numbers[has] >> (7 * group)) & 0x7F) | more
    return out.tobytes()


def zigzag(values: Int64Array) -> Int64Array:
    """Numbers of either sign as numbers from 0 on, small ones small.

    >>> zigzag(np.array([0, -1, 1, -2])).tolist()
    [0, 1, 2, 3]
    """
    return (values << 1) ^ (values >> 63)


def packed(columns: Mapping[str, npt.ArrayLike]) -> tuple[list[tuple[str, int]], str]:
    """The name and size in bytes of each column's varints, and all of them deflated (zlib) as base64."""
    parts = {name: varints(values) for name, values in columns.items()}
    text = base64.b64encode(zlib.compress(b"".join(parts.values()), 6)).decode("ascii")
    return [(name, len(part)) for name, part in parts.items()], text
