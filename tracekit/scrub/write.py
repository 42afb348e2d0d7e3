"""The copy of an export: a database, or a folder of Parquet files, whose tables are written page by page."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import polars as pl

from tracekit.readers.nsys.schema import quoted

__all__ = ["FolderWriter", "SqliteWriter", "Writer"]

_TYPES: Final = {pl.Int64(): "INTEGER", pl.Float64(): "REAL", pl.String(): "TEXT"}


class Writer(Protocol):
    """Takes tables one after the other."""

    def begin(self, table: str, schema: Mapping[str, pl.DataType]) -> None:
        """Make a table with these columns."""
        ...

    def add(self, page: pl.DataFrame) -> None:
        """Add rows to the table that was begun."""
        ...

    def end(self) -> None:
        """Close the table."""
        ...

    def close(self) -> None:
        """Close the copy."""
        ...


class SqliteWriter:
    """A new database in UTF-8."""

    def __init__(self, path: Path) -> None:
        path.open(
            "xb"
        ).close()  # with the mode of the user's umask, and the system's own error where it cannot be
        self._base = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode=off", "synchronous=off"):
            self._base.execute(f"PRAGMA {pragma}").fetchall()
        self._insert = ""

    def begin(self, table: str, schema: Mapping[str, pl.DataType]) -> None:
        """Make a table with these columns."""
        parts = [f"{quoted(name)} {_TYPES[dtype]}" for name, dtype in schema.items()]
        if table == "StringIds" and "id" in schema:
            parts.append(
                "PRIMARY KEY (id)"
            )  # by which a reader finds a string; of two with one id the first counts
        self._base.execute("BEGIN")
        self._base.execute(f"CREATE TABLE {quoted(table)} ({', '.join(parts)})")
        marks = ", ".join("?" * len(schema))
        self._insert = f"INSERT OR IGNORE INTO {quoted(table)} VALUES ({marks})"  # noqa: S608 - the name is quoted

    def add(self, page: pl.DataFrame) -> None:
        """Add rows to the table that was begun."""
        self._base.executemany(self._insert, page.iter_rows())

    def end(self) -> None:
        """Close the table."""
        self._base.execute("COMMIT")

    def close(self) -> None:
        """Close the database."""
        self._base.close()


class FolderWriter:
    """A new folder with a Parquet file for each table."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._table = ""
        self._parts: list[Path] = []

    def begin(self, table: str, schema: Mapping[str, pl.DataType]) -> None:
        """Begin a table with these columns."""
        self._table, self._parts = table, []
        self.add(pl.DataFrame(schema=dict(schema)))

    def add(self, page: pl.DataFrame) -> None:
        """Put rows aside, until the table is closed."""
        self._parts.append(self._folder / f"{len(self._parts)}.part")
        page.write_ipc(self._parts[-1], compression="lz4")

    def end(self) -> None:
        """Write the table."""
        pl.scan_ipc(self._parts).sink_parquet(self._folder / f"{self._table}.parquet")
        for part in self._parts:
            part.unlink()

    def close(self) -> None:
        """Nothing is open."""
