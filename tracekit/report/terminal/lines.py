"""Lines of text for a terminal: wrapped, labelled, coloured."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

from tracekit.names import unbroken

__all__ = ["Line", "Lines", "cut", "draw", "fold", "labelled", "tagged", "wrapped"]

Line = Sequence[tuple[str, str]]
"""Texts, each with its style: words of `_CODES`, or none."""
Lines = Iterator[Line]

_CODES: Final = {
    "bold": 1,
    "dim": 2,
    "italic": 3,
    "reverse": 7,
    "red": 31,
    "green": 32,
    "yellow": 33,
    "blue": 34,
    "magenta": 35,
    "cyan": 36,
    "bright_black": 90,
}
"""What a terminal is told for each."""


def tagged(tag: str, text: str, width: int) -> Lines:
    """The text behind a word or two that stand out."""
    tag = tag.upper()
    for index, line in enumerate(fold(f"{tag}  {text}", width)):
        yield ((line, ""),) if index else ((tag, "bold reverse"), (line[len(tag) :], ""))


def labelled(label: str, text: str, width: int, style: str = "", *, most: int = 4) -> Lines:
    """A label in a column of its own, and the text beside it."""
    indent = max(8, len(label) + 1)
    lines = fold(text, width - indent) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], cut(f"{lines[most - 1]} …", width - indent)]
    for index, line in enumerate(lines):
        lead = label.ljust(indent) if index == 0 else " " * indent
        yield (lead, "bold"), (line, style)


def fold(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`, never broken between a figure and its unit."""
    lines = textwrap.wrap(unbroken(text), width, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def cut(text: str, width: int) -> str:
    """The text, its end an ellipsis if it is too long."""
    return text if len(text) <= width else f"{text[: width - 2].rstrip()} …"


def wrapped(text: str, width: int, style: str = "") -> Lines:
    """The text in lines of one style."""
    for line in fold(text, width):
        yield ((line, style),)


def draw(lines: Iterable[Line], width: int, color: bool) -> str:
    """The lines as text; the end of one that is too wide is an ellipsis."""
    return "\n".join("".join(_drawn(_cropped(line, width), color)) for line in lines) + "\n"


def _cropped(line: Line, width: int) -> Line:
    whole = "".join(text for text, _ in line)
    if cell_len(whole) <= width:
        return line
    whole, parts = f"{set_cell_size(whole, width - 1)}…", []
    for text, style in line:
        parts.append((whole[: len(text)], style))
        whole = whole[len(text) :]
    return parts


def _drawn(line: Line, color: bool) -> Iterator[str]:
    for text, style in line:
        codes = ";".join(str(_CODES[word]) for word in style.split())
        yield f"\x1b[{codes}m{text}\x1b[0m" if color and codes and text else text
