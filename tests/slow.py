"""Marks of tests that a person does not wait for; `pytest -m "slow or not slow"` runs all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["rest_is_slow"]


def rest_is_slow(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """The parameters of a test, all but the first `quick` marked slow."""
    return [
        value if number < quick else pytest.param(value, marks=pytest.mark.slow)
        for number, value in enumerate(values)
    ]
