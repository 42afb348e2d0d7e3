"""Lines of text for a terminal: wrapped, labelled, coloured."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from io import StringIO

from rich.console import Console
from rich.text import Text

from tracekit.names import unbroken

__all__ = ["Lines", "cut", "draw", "fold", "labelled", "tagged", "wrapped"]

Lines = Iterator[Text]


def tagged(tag: str, text: str, width: int) -> Lines:
    """The text behind a word or two that stand out."""
    tag = tag.upper()
    for index, line in enumerate(fold(f"{tag}  {text}", width)):
        yield Text(line) if index else Text.assemble((tag, "bold reverse"), line[len(tag) :])


def labelled(label: str, text: str, width: int, style: str = "", *, most: int = 4) -> Lines:
    """A label in a column of its own, and the text beside it."""
    indent = max(8, len(label) + 1)
    lines = fold(text, width - indent) or [""]
    if len(lines) > most:
        lines = [*lines[: most - 1], cut(f"{lines[most - 1]} …", width - indent)]
    for index, line in enumerate(lines):
        lead = label.ljust(indent) if index == 0 else " " * indent
        yield Text.assemble((lead, "bold"), (line, style))


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
        yield Text(line, style=style)


def draw(lines: Iterable[Text], width: int, color: bool) -> str:
    """The lines through rich, which knows how to colour them; never wrapped again."""
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        force_jupyter=False,  # in a notebook rich would show each line itself
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    # One by one, rich would take three times as long.
    console.print(Text("\n").join(lines), no_wrap=True, overflow="ellipsis", crop=False, soft_wrap=False)
    return out.getvalue()
