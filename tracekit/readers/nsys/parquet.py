"""The tables of an Nsight Systems export that is a folder of Parquet files (`nsys export --type parquetdir`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.errors import UnreadableTraceError
from tracekit.files import scratch_folder
from tracekit.limits import LONGEST_NAME, LONGEST_TEXT
from tracekit.panics import panics_as_errors
from tracekit.readers.nsys.pages import (
    DTYPES,
    LONGEST_PAYLOAD,
    PAGE_ROWS,
    ColumnKind,
    Only,
    clocked,
    decoded,
)
from tracekit.readers.nsys.parquet_texts import with_texts_as_bytes

__all__ = ["ParquetTables"]

_MOST_BYTES: Final = 1 << 28
"""The most bytes that the texts of a column may have in one page."""

_FAR_APART: Final = 1 << 16
"""Ids that are farther apart than this are not read in one range."""
_MOST_PARTS: Final = 64
"""The most passes over the strings for one page."""

_FREE_ROWS: Final = 1 << 22
"""The most rows of a table that may take less than a byte each: times alone take two bytes, and equal rows take almost none."""


class ParquetTables:
    """An export as a folder with one Parquet file per table. A column whose type cannot hold the values is null."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replaced_texts = 0
        self._copies: tempfile.TemporaryDirectory[str] | None = None
        self._files = {file.stem: file for file in sorted(path.glob("*.parquet")) if file.is_file()}
        self._schemas: dict[str, dict[str, pl.DataType]] = {}
        table = ""
        try:
            for table, file in self._files.items():
                with panics_as_errors():
                    self._schemas[table] = dict(pl.scan_parquet(file, glob=False).collect_schema())
        except (pl.exceptions.PolarsError, OSError) as error:
            fault = f"its table {table} cannot be read ({str(error).splitlines()[0][:120]})"
            raise UnreadableTraceError(fault, path=path, remedy="export it again") from error

    def names(self) -> list[str]:
        """The tables in order."""
        return sorted(self._files)

    def without_row_ids(self) -> list[str]:
        """Empty: Parquet files are read by position."""
        return []

    def columns(self, table: str) -> frozenset[str]:
        """The names of a table's columns; empty if the table does not exist."""
        return frozenset(self._schemas.get(table, ()))

    def count(self, table: str) -> int:
        """The number of rows of a table."""
        if table not in self._files:
            return 0
        file = self._files[table]
        rows = int(self._collected(table, lambda scan: scan.select(pl.len())).item())
        if rows > max(_FREE_ROWS, file.stat().st_size):
            fault = (
                f"its table {table} has {rows:,} rows in {file.stat().st_size:,} bytes, which is impossible"
            )
            raise UnreadableTraceError(fault, path=self.path, remedy="export it again")
        return rows

    def pages(
        self, table: str, wanted: Mapping[str, ColumnKind], only: Only | None = None
    ) -> Iterator[pl.DataFrame]:
        """The rows of a table with these columns, some ten thousands at a time; missing columns are null.

        With `only` (a column and values), only the rows with one of these values in the column.
        """
        if table not in self._files or (only and only[0] not in self._schemas[table]):
            return
        schema = self._schemas[table]
        rows = self.count(table)
        columns: dict[str, ColumnKind] = {**wanted, **({only[0]: "int"} if only else {})}
        there = [name for name in schema if name in columns and _holds(schema[name], columns[name])]
        for at in range(0, rows, PAGE_ROWS):
            height = min(PAGE_ROWS, rows - at)
            page = self._page(table, there, at, height) if there else pl.DataFrame()
            typed = pl.DataFrame([self._typed(page, name, kind, height) for name, kind in columns.items()])
            if only:
                typed = typed.filter(pl.col(only[0]).is_in(only[1]))
            yield clocked(typed.select(list(wanted)))

    def schema(self, table: str) -> dict[str, pl.DataType]:
        """The columns of an existing table, with their types in the file."""
        return dict(self._schemas[table])

    def texts(self, table: str, column: str) -> pl.DataFrame:
        """`id` and `text` of the strings that a column of a table refers to."""
        kind = self._schemas.get(table, {}).get(column)
        if kind is None or not _holds(kind, "int") or not self._has_strings():
            return pl.DataFrame(schema={"id": pl.Int64, "text": pl.String})
        ids = pl.scan_parquet(self._files[table], glob=False).select(
            pl.col(column).cast(pl.Int64, strict=False).alias("id")
        )
        return self._strings(ids.unique(), pl.lit(value=True))

    def texts_by_id(self, ids: pl.Series) -> pl.DataFrame | None:
        """`id` and `text` of the strings with these ids, each once; only the ranges between nearby ids are read."""
        if not self._has_strings() or not self._schemas["StringIds"]["id"].is_integer():
            return None
        wanted = ids.drop_nulls().unique().sort().alias("id")
        far = (wanted.diff() > _FAR_APART).fill_null(value=False)
        parts = wanted.to_frame().group_by(far.cum_sum().alias("part") % _MOST_PARTS).agg("id")["id"]
        strings = [
            self._strings(part.to_frame("id").lazy(), pl.col("id").is_between(part.min(), part.max()))
            for part in parts
        ]
        return pl.concat([pl.DataFrame(schema={"id": pl.Int64, "text": pl.String}), *strings])

    def _has_strings(self) -> bool:
        strings = self._schemas.get("StringIds", {})
        return (
            {"id", "value"} <= strings.keys()
            and _holds(strings["id"], "int")
            and _holds(strings["value"], "text")
        )

    def _strings(self, ids: pl.LazyFrame, where: pl.Expr) -> pl.DataFrame:
        """`id` and `text` of the strings with these ids, each once, in the rows that fulfil the condition."""

        def named(strings: pl.LazyFrame) -> pl.LazyFrame:
            chosen = strings.filter(where).select(pl.col("id").cast(pl.Int64, strict=False), "value")
            return chosen.join(ids, on="id", how="semi")

        rows = self._collected("StringIds", named)
        text = self._typed(rows, "value", "text", rows.height).alias("text")
        return rows.select("id", text).unique("id", keep="first", maintain_order=True)

    def close(self) -> None:
        """Delete the copied files."""
        if self._copies is not None:
            self._copies.cleanup()

    def _page(self, table: str, columns: list[str], at: int, height: int) -> pl.DataFrame:
        return self._collected(table, lambda scan: scan.select(columns).slice(at, height))

    def _typed(self, page: pl.DataFrame, name: str, kind: ColumnKind, height: int) -> pl.Series:
        dtype = DTYPES[kind]
        if name not in page.columns:
            return pl.Series(name, [None], dtype=dtype).new_from_index(0, height)
        values = page[name]
        if kind == "bytes":
            return values.cast(dtype).bin.slice(0, LONGEST_PAYLOAD)
        if values.dtype == pl.Binary:
            values, replaced = decoded(values)
            self.replaced_texts += replaced
        if kind != "text":
            return values.cast(dtype, strict=False)
        values = values.cast(dtype).str.slice(0, LONGEST_TEXT)
        # A file can hold a text once for any number of rows.
        much = (values.str.len_bytes().cast(pl.Int64).sum() or 0) > _MOST_BYTES
        return values.str.slice(0, LONGEST_NAME) if much else values

    def _collected(self, table: str, query: Callable[[pl.LazyFrame], pl.LazyFrame]) -> pl.DataFrame:
        try:
            try:
                return self._read(table, query)
            except pl.exceptions.ComputeError as error:
                if "UTF-8" not in str(error) or self._is_copy(table):
                    raise
                self._files[table] = self._with_texts_as_bytes(table)
                return self._read(table, query)
        except (pl.exceptions.PolarsError, OSError, ValueError) as error:
            fault = f"its table {table} is damaged ({str(error).splitlines()[0][:120]})"
            raise UnreadableTraceError(fault, path=self.path, remedy="export it again") from error

    def _read(self, table: str, query: Callable[[pl.LazyFrame], pl.LazyFrame]) -> pl.DataFrame:
        with panics_as_errors():
            return query(pl.scan_parquet(self._files[table], glob=False)).collect()

    def _is_copy(self, table: str) -> bool:
        return self._copies is not None and self._files[table].is_relative_to(self._copies.name)

    def _with_texts_as_bytes(self, table: str) -> Path:
        """A copy of a table's file in which some text is not UTF-8; Polars cannot read a page with such a text."""
        if self._copies is None:
            self._copies = scratch_folder()
        copy = Path(self._copies.name) / f"{len(list(Path(self._copies.name).iterdir()))}.parquet"
        with_texts_as_bytes(self._files[table], copy)
        return copy


def _holds(dtype: pl.DataType, kind: ColumnKind) -> bool:
    """True if a column of the file can be read as this kind; a text can also hold a number."""
    if kind == "bytes":
        return dtype in (pl.String, pl.Binary)
    if dtype in (pl.String, pl.Null):
        return True
    if kind == "text":
        return dtype in (pl.Binary, pl.Categorical, pl.Enum)
    return dtype.is_numeric() or dtype == pl.Boolean
