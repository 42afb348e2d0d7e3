"""One table of an analysis, with what it lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from tracekit.analyses.xsp.catalogue import CATALOGUE, MISSING, empty_table
from tracekit.readers import KINETO, format_named

__all__ = ["XspTable", "lacking", "made", "worded"]


@dataclass(frozen=True, slots=True, eq=False)
class XspTable:
    """The `frame` of the analysis `key`, with the columns of its catalogue entry, and the `answer` in one sentence.

    `not_captured` says what was not recorded and how to record it: all of the table (it has no rows) or the columns
    that are null; None when nothing lacks. `missing` are the keys of MISSING that it is made of.
    """

    key: str
    frame: pl.DataFrame
    answer: str
    not_captured: str | None = None
    missing: tuple[str, ...] = ()


def made(key: str, frame: pl.DataFrame, answer: str, *missing: str | None) -> XspTable:
    """The table with its columns in order; a column that the frame lacks is null. `missing` are keys of MISSING."""
    schema = CATALOGUE[key].schema
    columns = [
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in schema.items()
    ]
    # A frame of literals alone has one row, whatever the height.
    ordered = frame.select(columns) if frame.height else empty_table(key)
    lacks = tuple(one for one in dict.fromkeys(missing) if one is not None)
    return worded(XspTable(key, ordered, answer, missing=lacks), KINETO.name)


def worded(table: XspTable, format_: str) -> XspTable:
    """The table with the flags that record what it lacks, for a trace of this format."""
    flags = format_named(format_).flags
    notes = [MISSING[one].format_map(flags) for one in table.missing]
    return replace(table, not_captured="; ".join(notes) or None)


def lacking(key: str, *missing: str) -> XspTable:
    """The table without rows, since all of this is missing."""
    return made(key, empty_table(key), "Nothing to show.", *missing)
