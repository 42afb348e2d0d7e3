"""What a fitted model's state may hold: tables, and numbers that a fit can have found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["LARGEST", "number", "numbers", "table"]

LARGEST: Final = 100.0
"""Of a logarithm, an exponent or a time in seconds."""


def table(value: object) -> dict[str, Any]:
    """A table of a state. Raises TypeError for what is none."""
    if not isinstance(value, Mapping):
        raise TypeError("a table is none")
    return {str(name): each for name, each in value.items()}


def numbers(value: object) -> dict[str, float]:
    """A table of numbers. Raises TypeError or ValueError for what is none."""
    return {name: number(each) for name, each in table(value).items()}


def number(value: object, most: float = LARGEST) -> float:
    """A number of a state.

    >>> number(2)
    2.0

    Raises ValueError for what is none, or one that no fit can have found.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a parameter is not a number")
    if not abs(value) <= most:  # nor for NaN
        raise ValueError("a parameter is not that of a fit")
    return float(value)
