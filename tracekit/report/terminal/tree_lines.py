"""A table whose rows form a tree as lines of text that fit a width: indented names, bars, figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import polars as pl
from rich.cells import cell_len, set_cell_size

from tracekit.names import shorten_name
from tracekit.report.format import RIGHT_ALIGNED, format_value, shown_columns
from tracekit.report.model import Column, Table
from tracekit.report.tree import costliest

__all__ = ["tree_lines"]

BAR: Final = 12
"""Cells of the longest bar."""

INDENT: Final = 2
DEEPEST: Final = 10
"""From this level on, rows are indented no further."""

LEAST_NAME: Final = 24
LEAST_LABEL: Final = 12
"""Where names do not fit, indentation gives way until so much of one can be read."""

GREATEST_NAME: Final = 72
GAP: Final = 2
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def tree_lines(table: Table, *, width: int, rows: int) -> list[str]:
    """The header and the costliest rows in lines of at most `width` cells: the indented name, a bar, figures."""
    if table.tree is None:
        message = f"{table.name} is no tree"
        raise TypeError(message)
    frame = costliest(table, rows)
    columns = _columns(table, frame)
    cells = [_cells(frame, column) for column in columns]
    sizes = [cell_len(texts[0]) for texts in cells]
    names = [_indented(name, depth) for name, depth in frame["name", "depth"].rows()]
    longest = min(max(map(cell_len, [*names, "layer"])), GREATEST_NAME)
    with_bar = width >= LEAST_NAME + GAP + BAR + sum(size + GAP for size in sizes[:1])
    taken = BAR + GAP if with_bar else 0
    count = len(columns)
    while count > 1 and min(longest, LEAST_NAME) + taken + sum(s + GAP for s in sizes[:count]) > width:
        count -= 1
    room = max(min(longest, width - taken - sum(size + GAP for size in sizes[:count])), 4)
    bars = _bars(table, frame) if with_bar else None
    lines = [_line("layer", [texts[0] for texts in cells[:count]], room, "" if with_bar else None)]
    for row, name in enumerate(names):
        figures = [texts[row + 1] for texts in cells[:count]]
        lines.append(_line(name, figures, room, bars[row] if bars else None))
    return lines


def _cells(frame: pl.DataFrame, column: Column) -> list[str]:
    """The title and the values of a column, all of one width."""
    texts = [column.title, *(format_value(value, column) for value in frame[column.name])]
    width = max(map(cell_len, texts))
    gaps = [" " * (width - cell_len(text)) for text in texts]
    right = column.unit in RIGHT_ALIGNED
    return [gap + text if right else text + gap for text, gap in zip(texts, gaps, strict=True)]


def _columns(table: Table, frame: pl.DataFrame) -> list[Column]:
    """What the tree is measured by comes first, then the declared figures that say anything."""
    measure = table.tree.measure if table.tree else ""
    wanted = dict.fromkeys([measure, *(name for name in table.short if name not in ("path", "name"))])
    shown = shown_columns(replace(table, frame=frame), list(wanted), zeros=True)
    first = table.column(measure)
    return shown if first is None or first in shown else [first, *shown]


def _indented(name: str, depth: int) -> str:
    return " " * (INDENT * min(depth, DEEPEST)) + name


def _bars(table: Table, frame: pl.DataFrame) -> list[str]:
    measure = table.tree.measure if table.tree else ""
    greatest = table.frame[measure].max()
    values: list[Any] = frame[measure].fill_null(0).to_list()
    return [
        _bar(value / greatest if isinstance(greatest, int | float) and greatest > 0 else 0)
        for value in values
    ]


def _bar(part: float) -> str:
    eighths = round(8 * BAR * min(max(part, 0), 1))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def _line(name: str, figures: list[str], room: int, bar: str | None) -> str:
    lead = len(name) - len(name.lstrip(" "))
    plain = name.lstrip(" ")
    lead = min(lead, max(room - min(len(plain), LEAST_LABEL), 0))
    short = " " * lead + shorten_name(plain, room - lead)
    parts = [set_cell_size(short, room)]
    if bar is not None:
        parts.append(bar.ljust(BAR))
    return (" " * GAP).join([*parts, *figures]).rstrip()
