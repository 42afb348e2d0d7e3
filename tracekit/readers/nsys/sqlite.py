"""The tables of an Nsight Systems export that is an SQLite file, page by page.

A file is untrusted. It is opened read-only; only real tables are read, never views or virtual tables; texts come as
bytes and are decoded here; values of another type than the column's declared type are null.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import quote

import polars as pl

from tracekit.errors import UnreadableTraceError
from tracekit.limits import LONGEST_TEXT, SMALLEST_ROW
from tracekit.readers.nsys.pages import (
    DTYPES,
    LONGEST_PAYLOAD,
    PAGE_ROWS,
    ColumnKind,
    Only,
    clocked,
    conditions_on,
    decoded,
)
from tracekit.readers.nsys.sqlite_rows import TableRows
from tracekit.readers.nsys.sqlite_schema import SqliteTable, described, listed, quoted

__all__ = ["EXPORT_AGAIN", "SqliteTables"]

EXPORT_AGAIN: Final = "export it again: nsys export --type sqlite FILE.nsys-rep"


class SqliteTables:
    """An export as an SQLite database."""

    def __init__(self, path: Path) -> None:
        # Imported here: the driver is not needed for other formats.
        import adbc_driver_manager as manager  # noqa: PLC0415
        import adbc_driver_sqlite  # noqa: PLC0415

        self.path = path
        self.replaced_texts = 0
        self._manager = manager
        self._querying = threading.Lock()
        try:
            self._database = manager.AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=_uri(path))
            self._connection = manager.AdbcConnection(self._database)
        except manager.Error as error:
            raise self._unreadable(error) from error
        for pragma in ("trusted_schema=off", "cell_size_check=on", "mmap_size=0"):
            self._query(f"pragma {pragma}")
        self._utf16 = str(self._query("pragma encoding").item(0, 0)).startswith("UTF-16")
        self._names = listed(self._query, utf16=self._utf16)
        self._described: dict[str, SqliteTable] = {}
        self._counted: dict[str, int] = {}
        self._most_rows = path.stat().st_size // SMALLEST_ROW

    def names(self) -> list[str]:
        """The tables in order."""
        return sorted(self._names)

    def without_row_ids(self) -> list[str]:
        """The tables that cannot be read page by page: they are declared WITHOUT ROWID, which nsys never does."""
        return [name for name in self.names() if not self._table(name).row_id]

    def columns(self, table: str) -> frozenset[str]:
        """The names of a table's columns; empty if the table does not exist."""
        return self._table(table).columns

    def count(self, table: str) -> int:
        """The number of rows of a table."""
        if not self.columns(table):
            return 0
        if table not in self._counted:
            # Pages that refer to each other in a cycle have endless rows.
            beyond = f"select 1 from {quoted(table)} limit 1 offset {self._most_rows}"  # noqa: S608 - it is quoted
            if self._query(beyond).height:
                raise self._damaged()
            total = self._query(f"select count(*) from {quoted(table)}")  # noqa: S608 - it is quoted
            self._counted[table] = int(total.item(0, 0))
        return self._counted[table]

    def pages(
        self, table: str, wanted: Mapping[str, ColumnKind], only: Only | None = None
    ) -> Iterator[pl.DataFrame]:
        """The rows of a table with these columns, some ten thousands at a time; missing columns are null.

        With `only` (a column and values), only the rows with one of these values in the column.
        """
        there = self.columns(table)
        if not self.count(table) or (only and only[0] not in there):
            return
        read_as = {name: self._read_as(kind, quoted(name)) for name, kind in wanted.items() if name in there}
        where = f"{quoted(only[0])} in ({', '.join(map(str, only[1]))})" if only else "true"
        rows = TableRows(self._query, table, self._table(table).row_id, read_as, where)
        # One page is read ahead: SQLite works without the interpreter's lock while the last page is processed.
        with ThreadPoolExecutor(1) as reading:
            last: int | None = None
            coming = reading.submit(rows.first)
            while (page := coming.result()).height:
                same, begun = rows.same, last is not None
                last = self._last_row(page["__row"], last)
                full = page.height == PAGE_ROWS
                if full:
                    coming = (
                        reading.submit(rows.after, last) if begun else reading.submit(rows.second, last, page)
                    )
                yield clocked(page.select(self._typed(page, name, wanted[name], same) for name in wanted))
                if not full:
                    return

    def _last_row(self, rows: pl.Series, before: int | None) -> int:
        """The last row id of a page. Raises UnreadableTraceError if the ids do not rise, as in damaged pages."""
        first, last = int(rows[0]), int(rows[-1])
        if (before is not None and first <= before) or not (rows.slice(1) > rows.head(rows.len() - 1)).all():
            raise self._damaged()
        return last

    def texts(self, table: str, column: str) -> pl.DataFrame:
        """`id` and `text` of the strings that a column of a table refers to."""
        if column not in self.columns(table) or not {"id", "value"} <= self.columns("StringIds"):
            return pl.DataFrame(schema={"id": pl.Int64, "text": pl.String})
        for name in (table, "StringIds"):
            self.count(name)
        strings = self._strings(f"id in (select {quoted(column)} from {quoted(table)})")  # noqa: S608 - names are quoted
        return strings.unique("id", keep="first", maintain_order=True)

    def texts_by_id(self, ids: pl.Series) -> pl.DataFrame | None:
        """`id` and `text` of the strings with these ids, each once; None if a lookup would read all strings."""
        if not self._string_keys:
            return None
        strings = [self._strings(condition) for condition in conditions_on("id", ids)]
        return pl.concat([pl.DataFrame(schema={"id": pl.Int64, "text": pl.String}), *strings])

    def _strings(self, where: str) -> pl.DataFrame:
        page = self._query(
            f"select {self._read_as('int', 'id')} as id, {self._read_as('text', 'value')} as text from StringIds "  # noqa: S608 - a condition on ids
            f"where {where}"
        )
        return pl.DataFrame([self._typed(page, "id", "int", {}), self._typed(page, "text", "text", {})])

    @functools.cached_property
    def _string_keys(self) -> bool:
        """True if the id of a string is its row id, so that it is found without a search."""
        if not {"id", "value"} <= self.columns("StringIds"):
            return False
        keys = self._query("select name, type from pragma_table_info('StringIds') where pk > 0")
        return keys.height == 1 and [str(word).upper() for word in map(_plain, keys.row(0))] == [
            "ID",
            "INTEGER",
        ]

    def _table(self, name: str) -> SqliteTable:
        if name not in self._described:
            there = name in self._names
            description = described(self._query, name, utf16=self._utf16) if there else SqliteTable()
            self._described[name] = description
        return self._described[name]

    def close(self) -> None:
        """Close the database after the page that is read ahead has arrived: a Ctrl-C can come before any code waits for it."""
        with self._querying:
            self._connection.close()
            self._database.close()

    def _read_as(self, kind: ColumnKind, column: str) -> str:
        """Values of another type than the declared type are null: texts are not converted to numbers."""
        if kind == "text":
            # As bytes: a declared text need not be UTF-8. SQLite itself converts UTF-16 to valid UTF-8.
            read = column if self._utf16 else f"cast({column} as blob)"
            return f"case typeof({column}) when 'text' then substr({read}, 1, {LONGEST_TEXT}) end"
        if kind == "bytes":
            read = f"substr(cast({column} as blob), 1, {LONGEST_PAYLOAD})"
            return f"case when typeof({column}) in ('blob', 'text') then {read} end"
        if kind == "int":
            return f"case typeof({column}) when 'integer' then {column} end"
        return (
            f"case typeof({column}) when 'integer' then cast({column} as real) when 'real' then {column} end"
        )

    def _typed(
        self, page: pl.DataFrame, name: str, kind: ColumnKind, same: Mapping[str, int | None]
    ) -> pl.Series:
        dtype = DTYPES[kind]
        if name not in page.columns:
            return pl.Series(name, [same.get(name)], dtype=dtype).new_from_index(0, page.height)
        values = page[name]
        if values.dtype == pl.Binary and kind != "bytes":
            text, replaced = decoded(values)
            self.replaced_texts += replaced
            return text
        if values.null_count() == values.len():  # a column without values has no type
            return pl.Series(name, [None], dtype=dtype).new_from_index(0, page.height)
        # A copy (reversed twice): the original column keeps the driver's whole page alive, with its texts.
        return values.cast(dtype).reverse().reverse()

    def _query(self, sql: str) -> pl.DataFrame:
        with self._querying:
            statement = self._manager.AdbcStatement(self._connection)
            try:
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(PAGE_ROWS)})
                statement.set_sql_query(sql)
                stream, _ = statement.execute_query()
                return pl.DataFrame(stream)
            except (self._manager.Error, pl.exceptions.PolarsError) as error:
                raise self._unreadable(error) from error
            finally:
                statement.close()

    def _unreadable(self, error: Exception) -> UnreadableTraceError:
        text = str(error)
        if "malformed" in text or "not a database" in text or "disk I/O" in text:
            return self._damaged()
        return UnreadableTraceError(f"SQLite cannot read it ({text})", path=self.path, remedy=EXPORT_AGAIN)

    def _damaged(self) -> UnreadableTraceError:
        return UnreadableTraceError("the SQLite database is damaged", path=self.path, remedy=EXPORT_AGAIN)


def _plain(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _uri(path: Path) -> str:
    """A path as SQLite's URI, byte by byte: it need not be UTF-8."""
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
