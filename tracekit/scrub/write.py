"""The copy of an export: a database, or a folder of Parquet files, whose tables are written page by page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import polars as pl

from tracekit.readers.nsys.sqlite_schema import quoted

__all__ = ["FolderWriter", "SqliteWriter", "Writer"]

_TYPES: Final = {pl.Int64(): "INTEGER", pl.Float64(): "REAL", pl.String(): "TEXT"}


class SqliteWriter:
    """A new database in UTF-8. Pages go to SQLite as they are, which takes a seventh of the time of row by row."""

    def __init__(self, path: Path) -> None:
        # Imported here: the driver is not needed for other formats.
        import adbc_driver_manager as manager  # noqa: PLC0415
        import adbc_driver_sqlite  # noqa: PLC0415

        path.open(
            "xb"
        ).close()  # with the mode of the user's umask, and the system's own error where it cannot be
        self._manager, self._table = manager, ""
        uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=rw"  # byte by byte: a path need not be UTF-8
        self._database = manager.AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=uri)
        self._connection = manager.AdbcConnection(self._database)
        for pragma in ("journal_mode=off", "synchronous=off"):
            self._execute(f"PRAGMA {pragma}")

    def begin(self, table: str, schema: Mapping[str, pl.DataType]) -> None:
        """Make a table with these columns."""
        parts = [f"{quoted(name)} {_TYPES[dtype]}" for name, dtype in schema.items()]
        if table == "StringIds" and "id" in schema:
            # By which a reader finds a string; of two with one id the first counts.
            parts.append("PRIMARY KEY (id) ON CONFLICT IGNORE")
        self._table = table
        self._execute("BEGIN")
        self._execute(f"CREATE TABLE {quoted(table)} ({', '.join(parts)})")

    def add(self, page: pl.DataFrame) -> None:
        """Add rows to the table that was begun."""
        self._execute(None, page)

    def end(self) -> None:
        """Close the table."""
        self._execute("COMMIT")

    def close(self) -> None:
        """Close the database."""
        self._connection.close()
        self._database.close()

    def _execute(self, sql: str | None, page: pl.DataFrame | None = None) -> None:
        """Run a statement, or add a page. Raises OSError when the database cannot be written."""
        statement = self._manager.AdbcStatement(self._connection)
        try:
            if page is None:
                statement.set_sql_query(sql)
            else:
                append = {
                    "adbc.ingest.target_table": self._table,
                    "adbc.ingest.mode": "adbc.ingest.mode.append",
                }
                statement.set_options(**append)
                statement.bind_stream(page)
            statement.execute_update()
        except self._manager.Error as error:
            raise OSError(None, str(error)[:200]) from error
        finally:
            statement.close()


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


Writer = SqliteWriter | FolderWriter
"""Takes tables one after the other: `begin`, some pages, `end`."""
