"""Text from a trace, made fit to be shown: one line, without control characters, without anyone's home folder."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

__all__ = ["clean", "clean_frame", "shorten_name"]

# Control characters would move a terminal's cursor; bidirectional marks would reorder what stands around them.
_UNSAFE: Final = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200e\u200f\ufeff]+"
_HOME: Final = r"(?:/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s\"':]+"
_UNSAFE_RE: Final = re.compile(_UNSAFE)
_HOME_RE: Final = re.compile(_HOME)


def clean(text: str) -> str:
    r"""The text on one line, without control and direction characters, home folders written as `~`.

    >>> clean("a\x1b[31mb\n/home/someone/train.py")
    'a [31mb ~/train.py'
    """
    return _HOME_RE.sub("~", _UNSAFE_RE.sub(" ", text))


def clean_frame(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with every text column cleaned, and every ratio or mean that is no finite number null."""
    columns = []
    for name, dtype in frame.schema.items():
        column = pl.col(name)
        if dtype in (pl.Categorical, pl.Enum, pl.String):
            columns.append(column.cast(pl.String).str.replace_all(_UNSAFE, " ").str.replace_all(_HOME, "~"))
        elif dtype.is_float():
            columns.append(pl.when(column.is_finite()).then(column).alias(name))
    return frame.with_columns(columns)


def shorten_name(name: str, width: int) -> str:
    """A name in at most `width` characters: template arguments go first, then the middle.

    >>> shorten_name("void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>>(int)", 60)
    'void at::native::vectorized_elementwise_kernel<…>(int)'
    >>> shorten_name("abcdefghijklmnop", 9)
    'abcd…mnop'
    """
    if len(name) <= width:
        return name
    short = _without_arguments(name)
    if len(short) <= width:
        return short
    for prefix in ("void ", "at::native::", "(anonymous namespace)::"):
        short = short.replace(prefix, "", 1)
    if len(short) <= width:
        return short
    if width <= 1:
        return "…"[:width]
    head = (width - 1 + 1) // 2
    tail = width - 1 - head
    return f"{short[:head]}…{short[len(short) - tail :]}" if tail else f"{short[:head]}…"


def _without_arguments(name: str) -> str:
    """Write everything inside the outermost <…> and long (…) as an ellipsis."""
    out: list[str] = []
    depth = 0
    for index, letter in enumerate(name):
        # operator<, -> and << are no brackets
        opens = letter == "<" and index + 1 < len(name) and name[index + 1] not in "<="
        closes = letter == ">" and index > 0 and name[index - 1] != "-"
        if opens:
            depth += 1
            if depth == 1:
                out.append("<…>")
        elif closes and depth:
            depth -= 1
        elif not depth:
            out.append(letter)
    text = "".join(out)
    start = text.rfind("(")
    if text.endswith(")") and len(text) - start > 8 and not text.startswith("Mem"):
        text = f"{text[:start]}(…)"
    return text
