"""Pieces of HTML for the cells of a notebook, in which every text is escaped: names come from traces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from typing import Final

from tracekit.names import clean

__all__ = ["ROWS", "block", "grid", "heading", "items", "paragraph"]

ROWS: Final = 10
"""So many rows of a table are shown; its frame has all."""


def block(parts: Iterable[str]) -> str:
    """The pieces as one element. It takes its colours from the notebook, and brings no script and no style sheet."""
    return f'<div style="max-width: 60em">{"".join(parts)}</div>'


def heading(text: str) -> str:
    """A line above other pieces.

    >>> heading("void f<int>()")
    '<p><b>void f&lt;int&gt;()</b></p>'
    """
    return f"<p><b>{_shown(text)}</b></p>"


def paragraph(text: str, strong: str = "") -> str:
    """A paragraph, which may begin with a `strong` word."""
    return f"<p>{f'<b>{_shown(strong)}</b> ' if strong else ''}{_shown(text)}</p>"


def items(texts: Iterable[tuple[str, str]]) -> str:
    """A list, each item with a strong beginning; nothing if there is none."""
    lines = [f"<li><b>{_shown(strong)}</b> {_shown(text)}</li>" for strong, text in texts]
    return f"<ul>{''.join(lines)}</ul>" if lines else ""


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """A table; the columns with these numbers are aligned to the right."""
    aligns = ["right; white-space: nowrap" if number in right else "left" for number in range(len(columns))]

    def line(tag: str, cells: Sequence[str]) -> str:
        shown = (
            f'<{tag} style="text-align: {align}">{_shown(cell)}</{tag}>'
            for align, cell in zip(aligns, cells, strict=True)
        )
        return f"<tr>{''.join(shown)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"


def _shown(text: str) -> str:
    return escape(clean(text))
