"""Names of kernels and functions, cut to a width so that their most telling parts stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["shorten_name"]


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
