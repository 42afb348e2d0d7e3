"""The tables of an Nsight Systems export, page by page, for both forms of an export."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import polars as pl

from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.files import changes_beside
from tracekit.readers.nsys import vocabulary as words
from tracekit.readers.nsys.pages import DTYPES, ColumnKind, Only
from tracekit.readers.nsys.parquet import ParquetTables
from tracekit.readers.nsys.sqlite import EXPORT_AGAIN, SqliteTables

__all__ = ["Tables", "open_tables", "whole"]

_HEADER_BYTES: Final = 100
"""The length of the header of an SQLite database."""


class Tables(Protocol):
    """The interface between the reader and an export."""

    path: Path
    replaced_texts: int

    def columns(self, table: str) -> frozenset[str]:
        """The names of a table's columns; empty if the table does not exist."""
        ...

    def names(self) -> list[str]:
        """The tables."""
        ...

    def without_row_ids(self) -> list[str]:
        """The existing tables that cannot be read page by page, because their rows have no ids."""
        ...

    def count(self, table: str) -> int:
        """The number of rows of a table."""
        ...

    def pages(
        self, table: str, wanted: Mapping[str, ColumnKind], only: Only | None = None
    ) -> Iterator[pl.DataFrame]:
        """The rows of a table with these columns, some ten thousands at a time; missing columns are null.

        With `only` (a column and values), only the rows with one of these values in the column.
        """
        ...

    def texts(self, table: str, column: str) -> pl.DataFrame:
        """`id` and `text` of the strings that a column of a table refers to."""
        ...

    def texts_by_id(self, ids: pl.Series) -> pl.DataFrame | None:
        """`id` and `text` of the strings with these ids, each once; None if a lookup would read all strings."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


def open_tables(path: Path) -> Tables:
    """The tables of an export.

    Raises UnreadableTraceError for a file that is not an export, is damaged, or whose export did not finish.
    """
    if path.is_dir():
        return ParquetTables(path)
    if not path.is_file():  # a pipe can only be read in order
        raise UnreadableTraceError("it is not a file", path=path, remedy=EXPORT_AGAIN)
    try:
        with path.open("rb") as file:
            header, size = file.read(_HEADER_BYTES), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UnreadableTraceError(f"it cannot be opened ({reason_of(error)})", path=path) from error
    _refuse_broken(path, header, size)
    return SqliteTables(path)


def _refuse_broken(path: Path, header: bytes, size: int) -> None:
    """Raise UnreadableTraceError for an incomplete database."""
    if not header:
        raise UnreadableTraceError("the file is empty", path=path, remedy=EXPORT_AGAIN)
    if len(header) < _HEADER_BYTES or not header.startswith(words.SQLITE_MAGIC):
        raise UnreadableTraceError("it is not a complete SQLite database", path=path, remedy=EXPORT_AGAIN)
    page_bytes, pages = struct.unpack_from(">H", header, 16)[0], struct.unpack_from(">I", header, 28)[0]
    expected = pages * (65536 if page_bytes == 1 else page_bytes)
    if size < expected:
        fault = f"the file is truncated: it has {size / 1e6:.1f} of {expected / 1e6:.1f} MB"
        raise UnreadableTraceError(fault, path=path, remedy="copy it again, or wait until the export ends")
    if beside := changes_beside(path):
        fault = f"another program is writing it, as the file {beside.name} shows"
        raise UnreadableTraceError(fault, path=path, remedy="wait until the export ends, or export it again")


def whole(tables: Tables, table: str, wanted: Mapping[str, ColumnKind], most: int) -> pl.DataFrame:
    """All rows of a small table, at most about `most`."""
    pages: list[pl.DataFrame] = []
    rows = 0
    for page in tables.pages(table, wanted):
        pages.append(page)
        rows += page.height
        if rows >= most:
            break
    schema = {name: DTYPES[kind] for name, kind in wanted.items()}
    return pl.concat(pages).head(most) if pages else pl.DataFrame(schema=schema)
