"""Tables as lines of text that fit a width: long names are shortened, columns that do not fit are left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

from tracekit.names import shorten_name
from tracekit.report.format import RIGHT_ALIGNED, format_value
from tracekit.report.model import Column, Table

__all__ = ["grid"]

GAP: Final = 2
LEAST_NAME: Final = 20
"""A name column narrower than this says nothing; rather leave out a figure."""
GREATEST_TEXT: Final = 72


def grid(table: Table, columns: Sequence[Column], *, width: int, rows: int) -> list[str]:
    """The header and the first `rows` rows in lines of at most `width` cells."""
    cells = {
        column.name: [format_value(value, column) for value in table.frame[column.name].head(rows).to_list()]
        for column in columns
    }
    fitted = _fit(columns, cells, width, table.kept)
    widths = _widths(fitted, cells, width)
    lines = [_line([column.title for column in fitted], fitted, widths)]
    count = len(next(iter(cells.values()))) if cells else 0
    lines += [_line([cells[column.name][row] for column in fitted], fitted, widths) for row in range(count)]
    return lines


def _natural(column: Column, cells: dict[str, list[str]]) -> int:
    return max([cell_len(column.title), *map(cell_len, cells[column.name])])


def _fit(
    columns: Sequence[Column], cells: dict[str, list[str]], width: int, last: Sequence[str]
) -> list[Column]:
    """Drop columns from the right, those named in `last` after all others, until the rest fits with its text columns cut to the least."""
    kept = list(columns)
    while len(kept) > 1:
        least = [
            min(_natural(c, cells), LEAST_NAME) if c.unit == "text" else _natural(c, cells) for c in kept
        ]
        if sum(least) + GAP * (len(kept) - 1) <= width:
            break
        others = [index for index, column in enumerate(kept) if column.name not in last]
        del kept[others[-1] if others else -1]
    return kept


def _widths(columns: Sequence[Column], cells: dict[str, list[str]], width: int) -> list[int]:
    """Natural widths; the widest text column gives way first."""
    widths = [min(_natural(column, cells), GREATEST_TEXT) for column in columns]
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    while excess > 0:
        texts = [i for i, column in enumerate(columns) if column.unit == "text"]
        widest = max(texts or range(len(widths)), key=lambda i: widths[i])
        if widths[widest] <= 1:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _line(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for text, column, width in zip(texts, columns, widths, strict=True):
        short = shorten_name(text, width)
        padding = width - cell_len(short)
        if padding < 0:
            parts.append(set_cell_size(short, width))
        else:
            parts.append(" " * padding + short if column.unit in RIGHT_ALIGNED else short + " " * padding)
    return (" " * GAP).join(parts).rstrip()
