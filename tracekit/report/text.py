"""Text from a trace, made fit to be shown: one line, without control characters, without anyone's home folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import polars as pl

from tracekit.facts.home_folders import HOME_FOLDER

__all__ = ["clean", "clean_frame", "shorten_name", "unbroken"]

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


def shorten_name(name: str, width: int) -> str:
    """A name in at most `width` characters, with its most telling parts kept.

    Of a C++ signature go, one after the other, the parameters, the namespaces, and the template arguments from
    the innermost outwards; what is still too long loses its middle.

    >>> shorten_name("void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>>(int)", 50)
    'vectorized_elementwise_kernel<4, Add<float>>'
    >>> shorten_name("void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>>(int)", 36)
    'vectorized_elementwise_kernel<…>'
    >>> shorten_name("abcdefghijklmnop", 9)
    'abcd…mnop'
    """
    if len(name) <= width:
        return name
    short = name
    if "<" in name or "(" in name:
        for short in _shorter_signatures(name):
            if len(short) <= width:
                return short
    return _without_middle(short, width)


_NAMESPACE: Final = re.compile(r"\b(?:\w+::)+(?=\w)")
_WRAPPER: Final = re.compile(r"^Kernel2?<(\w+)>$")
"""CUTLASS names its kernels in the argument of one and the same template."""


def _shorter_signatures(name: str) -> Iterator[str]:
    short = _without_parameters(name.removeprefix("void ").replace("(anonymous namespace)::", ""))
    yield short
    short = _NAMESPACE.sub("", short)
    wrapped = _WRAPPER.match(short)
    if wrapped:
        short = wrapped.group(1)
    yield short
    for depth in (3, 2, 1):
        yield _elide(short, depth)


def _without_parameters(name: str) -> str:
    """Cut the parameter list off; a bracket after a space, as in `Memcpy HtoD (Pageable -> Device)`, is none."""
    depth = 0
    for index in range(len(name) - 1, 0, -1) if name.endswith(")") else ():
        depth += {")": 1, "(": -1}.get(name[index], 0)
        if depth == 0:
            return name if name[index - 1] == " " else name[:index]
    return name


def _elide(name: str, depth: int) -> str:
    """Write what stands in the `depth`-th and deeper pair of angle brackets as an ellipsis."""
    out: list[str] = []
    level = 0
    for index, letter in enumerate(name):
        opens = letter == "<" and index + 1 < len(name) and name[index + 1] not in "<= "
        closes = letter == ">" and index > 0 and name[index - 1] not in "- "
        if opens:
            level += 1
            if level == depth:
                out.append("<…>")
                continue
        elif closes and level:
            level -= 1
            if level == depth - 1:
                continue
        if level < depth:
            out.append(letter)
    return "".join(out)


def _without_middle(text: str, width: int) -> str:
    if width <= 1:
        return "…"[:width]
    head = width // 2
    tail = width - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :] if tail else ''}"
