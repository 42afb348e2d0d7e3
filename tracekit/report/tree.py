"""A table whose rows form a tree: in which order its rows are shown, and which of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from tracekit.report.model import Column, Table, Tree
from tracekit.trees import depth_first, parent_rows

__all__ = ["arranged", "costliest", "sorted_tree"]


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
    return replace(
        table, frame=frame, tree=Tree(column.name if measured else "device_ns", largest_first=False)
    )


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
