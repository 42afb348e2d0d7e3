"""Which tables of an SQLite database can be read row by row, and how: nothing that its author could make endless.

The list comes from `sqlite_master`, where a view is a text: `pragma table_list` resolves every view, and views of views
take exponential time to resolve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.errors import UnreadableTraceError

__all__ = ["SqliteTable", "described", "listed", "quoted"]

_ROW_IDS: Final = ("_rowid_", "rowid", "oid")
_LONGEST_DEFAULT: Final = 64
"""Characters of a column's default, which rows that were written before the column show without holding it."""

Query = Callable[[str], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class SqliteTable:
    """A table's columns, and the word for its row id; one without a row id has no word and no columns."""

    columns: frozenset[str] = frozenset()
    row_id: str = ""


def listed(query: Query, *, utf16: bool) -> list[str]:
    """The names of the real tables; views, virtual tables and SQLite's own are none."""
    # As bytes, since what the file calls text need not be UTF-8; of UTF-16 SQLite itself makes valid UTF-8.
    name = "name" if utf16 else "cast(name as blob)"
    told = query(f"select {name} as name from sqlite_master where type = 'table' and rootpage > 0")  # noqa: S608
    names = [raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw) for raw in told["name"]]
    return [name for name in names if not name.startswith("sqlite_")]


def described(query: Query, name: str) -> SqliteTable:
    """What is known of a real table. Hidden and computed columns are none of its columns."""
    told = query(f"pragma table_xinfo({quoted(name)})")
    if not told.height:
        return SqliteTable()
    names = {str(column).lower() for column in told["name"]}
    row_id = next((word for word in _ROW_IDS if word not in names), "")
    if not row_id:
        return SqliteTable()
    try:
        query(f"select {row_id} from {quoted(name)} limit 0")  # noqa: S608 - it is quoted
    except UnreadableTraceError:
        return SqliteTable()  # it was declared WITHOUT ROWID
    columns = told.filter(pl.col("hidden") == 0).select("name", pl.col("dflt_value").cast(pl.String))
    short = pl.col("dflt_value").str.len_chars().fill_null(0) <= _LONGEST_DEFAULT
    return SqliteTable(frozenset(columns.filter(short)["name"].to_list()), row_id)


def quoted(name: str) -> str:
    """A name in SQL.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
