"""The tables of an SQLite database that can be read row by row; none of the queries can be made endless by its author.

The list comes from `sqlite_master`, in which a view is only a text: `pragma table_list` resolves every view, and views of views
take exponential time to resolve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError
from tracekit.limits import LONGEST_DEFAULT

__all__ = ["SqliteTable", "described", "listed", "quoted"]

_ROW_IDS: Final = ("_rowid_", "rowid", "oid")

Query = Callable[[str], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class SqliteTable:
    """A table's columns, and the name of its row id; a table without a row id has no name and no columns."""

    columns: frozenset[str] = frozenset()
    row_id: str = ""


def listed(query: Query, *, utf16: bool) -> list[str]:
    """The names of the real tables, without views, virtual tables and SQLite's own tables."""
    name = _as_bytes("name", utf16=utf16)
    tables = query(f"select {name} as name from sqlite_master where type = 'table' and rootpage > 0")  # noqa: S608
    return [name for name in map(_text, tables["name"]) if not name.startswith("sqlite_")]


def described(query: Query, table: str, *, utf16: bool) -> SqliteTable:
    """The columns and the row id of a real table, without hidden and computed columns."""
    name, literal = _as_bytes("name", utf16=utf16), table.replace("'", "''")
    columns = query(
        f"select {name} as name, hidden, length(dflt_value) as long from pragma_table_xinfo('{literal}')"  # noqa: S608
    )
    names = [_text(raw) for raw in columns["name"]]
    row_id = next((word for word in _ROW_IDS if word not in map(str.lower, names)), "")
    if not names or not row_id:
        return SqliteTable()
    try:
        query(f"select {row_id} from {quoted(table)} limit 0")  # noqa: S608 - it is quoted
    except UnreadableTraceError:
        return SqliteTable()  # it was declared WITHOUT ROWID; `SqliteTables.without_row_ids` names it
    rows = zip(names, columns["hidden"], columns["long"], strict=True)
    kept = (column for column, hidden, long in rows if not hidden and (long or 0) <= LONGEST_DEFAULT)
    return SqliteTable(frozenset(kept), row_id)


def _as_bytes(column: str, *, utf16: bool) -> str:
    """A name as bytes, because a declared text need not be UTF-8; SQLite itself converts UTF-16 to valid UTF-8."""
    return column if utf16 else f"cast({column} as blob)"


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def quoted(name: str) -> str:
    """A name in SQL.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
