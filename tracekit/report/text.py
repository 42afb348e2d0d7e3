"""Text from a trace, made fit to be shown: one line, without control characters, without anyone's home folder."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from tracekit.facts.home_folders import HOME_FOLDER

__all__ = ["clean", "clean_frame", "unbroken"]

# Control characters would move a terminal's cursor; bidirectional marks would reorder what stands around them.
_UNSAFE: Final = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200e\u200f\ufeff]+"
_QUANTITY: Final = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s|B|kB|MB|GB|TB)(?![A-Za-z]))")
_UNSAFE_RE: Final = re.compile(_UNSAFE)
_HOME_RE: Final = re.compile(HOME_FOLDER)


def clean(text: str) -> str:
    r"""The text on one line, without control and direction characters, home folders written as `~`.

    >>> clean("a\x1b[31mb\n/home/someone/train.py")
    'a [31mb ~/train.py'
    """
    printable = text.encode("utf-8", "replace").decode("utf-8")  # file names may hold lone surrogates
    return _HOME_RE.sub("~", _UNSAFE_RE.sub(" ", printable))


def unbroken(text: str) -> str:
    r"""The text with a no-break space between each figure and its unit, so that no line ends there.

    >>> unbroken("busy 5.7 % of 300 ms")
    'busy 5.7\xa0% of 300\xa0ms'
    """
    return _QUANTITY.sub("\xa0", text)


def clean_frame(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with every text column cleaned, and every ratio or mean that is no finite number null."""
    columns = []
    for name, dtype in frame.schema.items():
        column = pl.col(name)
        if dtype in (pl.Categorical, pl.Enum, pl.String):
            columns.append(
                column.cast(pl.String).str.replace_all(_UNSAFE, " ").str.replace_all(HOME_FOLDER, "~")
            )
        elif dtype.is_float():
            columns.append(pl.when(column.is_finite()).then(column).alias(name))
    return frame.with_columns(columns)
