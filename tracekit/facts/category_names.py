"""What a reader sees instead of the short names of categories that the tables keep."""

from __future__ import annotations

from typing import Final

__all__ = ["category_name"]

_CATEGORIES: Final = {
    "gemm": "matrix multiplication",
    "copy": "copy, cast, layout",
    "sort": "sorting",
    "fused": "fused kernels",
    "random": "random numbers",
    "rnn": "recurrent layers",
    "embedding": "embedding, gather",
}


def category_name(category: str) -> str:
    """The name of a category of activities or of waiting.

    >>> category_name("gemm"), category_name("host_wait")
    ('matrix multiplication', 'host wait')
    """
    return _CATEGORIES.get(category, category.replace("_", " "))
