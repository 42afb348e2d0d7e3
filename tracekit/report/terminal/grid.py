"""Tables as lines of text that fit a width: long names are shortened, shapes and sentences go on below, what does not fit is left out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Final

import polars as pl
from rich.cells import cell_len, set_cell_size

from tracekit.names import shorten_name, shorten_names
from tracekit.report.format import FOLDED, RIGHT_ALIGNED, SHAPES, costliest, format_value, shown_columns
from tracekit.report.model import Column, Table

__all__ = ["grid", "tree_lines"]

GAP: Final = 2
LEAST_NAME: Final = 20
"""A name column narrower than this says nothing; rather leave out a figure."""
GREATEST_TEXT: Final = 72
LEAST_FOLDED: Final = 24
"""Two shapes of four dimensions."""
MOST_LINES: Final = 3

BAR: Final = 12
"""Cells of the longest bar."""

INDENT: Final = 2
DEEPEST: Final = 10
"""From this level on, rows are indented no further."""

LEAST_TREE_NAME: Final = 24
LEAST_LABEL: Final = 12
"""Where names do not fit, indentation gives way until so much of one can be read."""

_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def grid(table: Table, columns: Sequence[Column], *, width: int, rows: int) -> tuple[list[str], list[Column]]:
    """The header and the first `rows` rows in lines of at most `width` cells, and the columns that have room."""
    cells = {
        column.name: [format_value(value, column) for value in table.frame[column.name].head(rows).to_list()]
        for column in columns
    }
    fitted = _fit(columns, cells, width, table.kept)
    widths = _widths(fitted, cells, width)
    lines = [_line([column.title for column in fitted], fitted, widths)]
    count = len(next(iter(cells.values()))) if cells else 0
    short = [_in_width(column, cells[column.name], size) for column, size in zip(fitted, widths, strict=True)]
    for row in range(count):
        texts = [named[cells[column.name][row]] for named, column in zip(short, fitted, strict=True)]
        below = zip_longest(*(text.split("\n") for text in texts), fillvalue="")
        lines += [_line(parts, fitted, widths) for parts in below]
    return lines, fitted


def _in_width(column: Column, texts: Sequence[str], width: int) -> dict[str, str]:
    """The texts of a column in this width: names shortened so that they differ, shapes and sentences in several lines."""
    if column.name not in FOLDED:
        return shorten_names(texts, width)
    folded = {text: textwrap.wrap(text, width) or [""] for text in texts}
    for lines in folded.values():
        if column.name in SHAPES and len(lines) > MOST_LINES:
            lines[MOST_LINES - 1 :] = [f"… {lines[-1][: width - 2]}"]
    return {text: "\n".join(lines) for text, lines in folded.items()}


def _natural(column: Column, cells: dict[str, list[str]]) -> int:
    return max([cell_len(column.title), *map(cell_len, cells[column.name])])


def _fit(
    columns: Sequence[Column], cells: dict[str, list[str]], width: int, last: Sequence[str]
) -> list[Column]:
    """Drop columns from the right, those named in `last` after all others, until the rest fits with its text columns cut to the least."""
    kept = list(columns)
    while len(kept) > 1:
        least = [
            min(_natural(c, cells), LEAST_FOLDED if c.name in FOLDED else LEAST_NAME)
            if c.unit == "text"
            else _natural(c, cells)
            for c in kept
        ]
        if sum(least) + GAP * (len(kept) - 1) <= width:
            break
        others = [index for index, column in enumerate(kept) if column.name not in last]
        del kept[others[-1] if others else -1]
    return kept


def _widths(columns: Sequence[Column], cells: dict[str, list[str]], width: int) -> list[int]:
    """Natural widths; what goes on below gives way first, then the widest text column."""
    widths = [min(_natural(column, cells), GREATEST_TEXT) for column in columns]
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    while excess > 0:
        texts = [i for i, one in enumerate(columns) if one.name in FOLDED and widths[i] > LEAST_FOLDED]
        texts = texts or [i for i, column in enumerate(columns) if column.unit == "text"]
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


def tree_lines(table: Table, *, width: int, rows: int) -> list[str]:
    """The header and the costliest rows in lines of at most `width` cells: the indented name, a bar, figures."""
    if table.tree is None:
        message = f"{table.name} is no tree"
        raise TypeError(message)
    frame = costliest(table, rows)
    columns = _tree_columns(table, frame)
    cells = [_tree_cells(frame, column) for column in columns]
    sizes = [cell_len(texts[0]) for texts in cells]
    placed = frame.select(_named(frame), pl.col("depth").clip(upper_bound=DEEPEST) * INDENT).rows()
    names = [" " * lead + name for name, lead in placed]
    longest = min(max(map(cell_len, [*names, "layer"])), GREATEST_TEXT)
    with_bar = width >= LEAST_TREE_NAME + GAP + BAR + sum(size + GAP for size in sizes[:1])
    taken = BAR + GAP if with_bar else 0
    count = len(columns)
    while count > 1 and min(longest, LEAST_TREE_NAME) + taken + sum(s + GAP for s in sizes[:count]) > width:
        count -= 1
    room = max(min(longest, width - taken - sum(size + GAP for size in sizes[:count])), 4)
    bars = _bars(table, frame) if with_bar else None
    lines = [_tree_line("layer", [texts[0] for texts in cells[:count]], room, "" if with_bar else None)]
    short = {lead: _apart(placed, lead, room) for _, lead in placed}
    for row, (name, lead) in enumerate(placed):
        figures = [texts[row + 1] for texts in cells[:count]]
        text = " " * lead + short[lead].get(name, name)
        lines.append(_tree_line(text, figures, room, bars[row] if bars else None))
    return lines


def _named(frame: pl.DataFrame) -> pl.Expr:
    """The names, those that are a number (of a layer of `nn.Sequential`) with their class: `0 (Conv2d)`."""
    if "type" not in frame.columns:
        return pl.col("name")
    with_type = pl.format("{} ({})", "name", "type")  # null without a type
    is_number = pl.col("name").str.contains(r"^\d+$")
    return pl.when(is_number & with_type.is_not_null()).then(with_type).otherwise("name")


def _apart(rows: Sequence[tuple[str, int]], lead: int, room: int) -> dict[str, str]:
    """The names with this indentation in their short forms, which tell them apart; none if there is no room for one."""
    names = [name for name, own in rows if own == lead]
    return shorten_names(names, room - lead) if room - lead >= LEAST_LABEL else {}


def _tree_cells(frame: pl.DataFrame, column: Column) -> list[str]:
    """The title and the values of a column, all of one width."""
    texts = [column.title, *(format_value(value, column) for value in frame[column.name])]
    width = max(map(cell_len, texts))
    gaps = [" " * (width - cell_len(text)) for text in texts]
    right = column.unit in RIGHT_ALIGNED
    return [gap + text if right else text + gap for text, gap in zip(texts, gaps, strict=True)]


def _tree_columns(table: Table, frame: pl.DataFrame) -> list[Column]:
    """What the tree is measured by comes first, then the declared figures that say anything."""
    measure = table.tree.measure if table.tree else ""
    wanted = dict.fromkeys([measure, *(name for name in table.short if name not in ("path", "name"))])
    shown = shown_columns(replace(table, frame=frame), list(wanted), zeros=True)
    first = table.column(measure)
    return shown if first is None or first in shown else [first, *shown]


def _bars(table: Table, frame: pl.DataFrame) -> list[str]:
    measure = table.tree.measure if table.tree else ""
    greatest = table.frame[measure].abs().max()
    values: list[Any] = frame[measure].fill_null(0).abs().to_list()
    return [
        _bar(value / greatest if isinstance(greatest, int | float) and greatest > 0 else 0)
        for value in values
    ]


def _bar(part: float) -> str:
    eighths = round(8 * BAR * min(max(part, 0), 1))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def _tree_line(name: str, figures: list[str], room: int, bar: str | None) -> str:
    lead = len(name) - len(name.lstrip(" "))
    plain = name.lstrip(" ")
    lead = min(lead, max(room - min(len(plain), LEAST_LABEL), 0))
    short = " " * lead + shorten_name(plain, room - lead)
    parts = [set_cell_size(short, room)]
    if bar is not None:
        parts.append(bar.ljust(BAR))
    return (" " * GAP).join([*parts, *figures]).rstrip()
