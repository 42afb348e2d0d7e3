"""Parameters of tests, of which only a few are for the quick run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """The first values as they are, and the others for the slow run alone."""
    return [
        value if number < quick else pytest.param(value, marks=pytest.mark.slow)
        for number, value in enumerate(values)
    ]
