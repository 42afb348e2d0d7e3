"""A table whose rows form a tree: in which order its rows are shown, which of them, and as lines of text with bars."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl
from rich.cells import cell_len

from tracekit.analyses._layer_tree import depth_first, parent_rows
from tracekit.report.format import format_value
from tracekit.report.model import Column, Table, Tree
from tracekit.report.text import shorten_name

__all__ = ["arranged", "costliest", "sorted_tree", "tree_lines"]

BAR: Final = 12
"""Cells of the longest bar."""

INDENT: Final = 2
DEEPEST: Final = 10
"""From this level on, rows are indented no further."""

LEAST_NAME: Final = 24
GREATEST_NAME: Final = 72
GAP: Final = 2
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def arranged(table: Table) -> pl.DataFrame:
    """The rows as a reader meets them: siblings by what the tree is measured by, or as they are."""
    tree = table.tree
    if tree is None or not tree.largest_first:
        return table.frame
    return _by(table.frame, tree.measure)


def sorted_tree(table: Table, column: Column) -> Table:
    """The tree with siblings by this column, largest first (texts from a to z), and measured by it if it can be."""
    frame = _by(table.frame, column.name, descending=column.unit != "text")
    measured = column.unit in ("ns", "count", "ratio")
    return replace(table, frame=frame, tree=Tree(column.name if measured else "device_ns", largest_first=False))


def _by(frame: pl.DataFrame, column: str, *, descending: bool = True) -> pl.DataFrame:
    rank = frame.select(pl.col(column).rank("ordinal", descending=descending)).to_series()
    key = rank.cast(pl.Int64).fill_null(frame.height + 1).to_numpy()
    return frame[depth_first(parent_rows(frame), key)]


def costliest(table: Table, rows: int) -> pl.DataFrame:
    """At most `rows` rows with the most of the tree's measure, and what is above them, in the order of `arranged`."""
    frame = arranged(table)
    if table.tree is None or frame.height <= rows:
        return frame.head(rows)
    above = parent_rows(frame).tolist()
    measure = frame[table.tree.measure].fill_null(0).to_numpy()
    kept: set[int] = set()
    for row in np.lexsort((np.arange(frame.height), frame["depth"].to_numpy(), -measure)).tolist():
        chain = _missing_chain(row, above, kept)
        if len(kept) + len(chain) <= rows:
            kept.update(chain)
        if len(kept) == rows:
            break
    return frame[sorted(kept)]


def _missing_chain(row: int, above: list[int], kept: set[int]) -> list[int]:
    """The row and what is above it, as far as it is not kept yet."""
    chain = []
    while row >= 0 and row not in kept:
        chain.append(row)
        row = above[row]
    return chain


def tree_lines(table: Table, *, width: int, rows: int) -> list[str]:
    """The header and the costliest rows in lines of at most `width` cells: the indented name, a bar, figures."""
    if table.tree is None:
        message = f"{table.name} is no tree"
        raise TypeError(message)
    frame = costliest(table, rows)
    columns = _columns(table, frame)
    cells = [[format_value(value, column) for value in frame[column.name]] for column in columns]
    sizes = [max(map(cell_len, [column.title, *texts])) for column, texts in zip(columns, cells, strict=True)]
    names = [_indented(name, depth) for name, depth in frame["name", "depth"].rows()]
    longest = min(max(map(cell_len, [*names, "layer"])), GREATEST_NAME)
    with_bar = width >= LEAST_NAME + GAP + BAR + sum(size + GAP for size in sizes[:1])
    taken = BAR + GAP if with_bar else 0
    count = len(columns)
    while count > 1 and min(longest, LEAST_NAME) + taken + sum(s + GAP for s in sizes[:count]) > width:
        count -= 1
    room = max(min(longest, width - taken - sum(size + GAP for size in sizes[:count])), 4)
    bars = _bars(table, frame) if with_bar else None
    lines = [_line("layer", [c.title for c in columns[:count]], sizes, room, "" if with_bar else None)]
    for row, name in enumerate(names):
        figures = [texts[row] for texts in cells[:count]]
        lines.append(_line(name, figures, sizes, room, bars[row] if bars else None))
    return lines


def _columns(table: Table, frame: pl.DataFrame) -> list[Column]:
    """What the tree is measured by comes first, then the declared figures that say anything."""
    measure = table.tree.measure if table.tree else ""
    wanted = dict.fromkeys([measure, *(name for name in table.short if name not in ("path", "name"))])
    found = [table.column(name) for name in wanted]
    return [
        column
        for column in found
        if column is not None and (column.name == measure or frame[column.name].null_count() < frame.height)
    ]


def _indented(name: str, depth: int) -> str:
    return " " * (INDENT * min(depth, DEEPEST)) + name


def _bars(table: Table, frame: pl.DataFrame) -> list[str]:
    measure = table.tree.measure if table.tree else ""
    greatest = table.frame[measure].max()
    values: list[Any] = frame[measure].fill_null(0).to_list()
    return [_bar(value / greatest if isinstance(greatest, int | float) and greatest > 0 else 0) for value in values]


def _bar(part: float) -> str:
    eighths = round(8 * BAR * min(max(part, 0), 1))
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def _line(name: str, figures: list[str], sizes: list[int], room: int, bar: str | None) -> str:
    lead = len(name) - len(name.lstrip(" "))
    lead = min(lead, max(room - 8, 0))
    short = " " * lead + shorten_name(name.strip(" "), room - lead)
    parts = [short + " " * max(room - cell_len(short), 0)]
    if bar is not None:
        parts.append(bar.ljust(BAR))
    parts += [" " * (size - cell_len(text)) + text for text, size in zip(figures, sizes, strict=False)]
    return (" " * GAP).join(parts).rstrip()
