"""The numbers by which an Nsight Systems export names processes, threads and strings."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.limits import LONGEST_NAME
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.tables import Tables, whole

__all__ = ["UNNAMED", "Texts", "labels_of", "process_of", "thread_of"]

UNNAMED: Final = "<unnamed>"
"""The name of a row whose name is missing in the file."""

_PID_BITS, _TID_BITS = 24, 24
_MOST_CODES: Final = 1 << 10
_LONGEST_LABEL: Final = 64
_MANY_STRINGS: Final = 1 << 19
_SHORT: Final = pl.format("{}… #{}", pl.col("text").str.slice(0, LONGEST_NAME // 2), "id")
_MOST_BYTES: Final = 1 << 28
"""The most bytes that the names of all rows of a table may have together."""


def process_of(column: str) -> pl.Expr:
    """The process of a serialised id: 8 bits for hardware, 8 for a VM, 24 for a process, 24 for a thread."""
    return ((pl.col(column) // (1 << _TID_BITS)) % (1 << _PID_BITS)).alias("process_id")


def thread_of(column: str) -> pl.Expr:
    """The thread of a serialised id."""
    return (pl.col(column) % (1 << _TID_BITS)).alias("thread_id")


def labels_of(tables: Tables, table: str) -> dict[int, str]:
    """The labels of codes from a table of the file; empty if there is no such table."""
    rows = whole(tables, table, {"id": "int", "label": "text"}, _MOST_CODES).drop_nulls()
    return {code: label[:_LONGEST_LABEL] for code, label in rows.rows() if label}


class Texts:
    """The strings that a column of a table refers to; they are read with the first lookup.

    Matches of `without` (a regular expression) are removed from each. If there are very many strings, for example if each
    range has its own text, only the strings of one page are held.
    """

    def __init__(self, tables: Tables, table: str, column: str, *, without: str | None = None) -> None:
        self._tables, self._table, self._column = tables, table, column
        self._without = without
        self._strings: pl.DataFrame | None = None

    def of(self, ids: pl.Series) -> pl.Series:
        """The strings with these ids as a categorical column, null where there is none."""
        return self._of(ids, pl.Categorical())

    def strings(self, ids: pl.Series) -> pl.Series:
        """The strings with these ids as texts, for columns in which they rarely repeat."""
        return self._of(ids, pl.String())

    def _of(self, ids: pl.Series, dtype: pl.DataType) -> pl.Series:
        if ids.null_count() == ids.len():
            return pl.Series([None], dtype=dtype).new_from_index(0, ids.len())
        strings = self._of_page(ids) if self._strings is None else self._strings
        if strings is None:
            self._strings = strings = self._all()
        joined = ids.alias("id").to_frame().join(strings, on="id", how="left", maintain_order="left")
        return joined["text"].cast(dtype)

    def _of_page(self, ids: pl.Series) -> pl.DataFrame | None:
        """The strings with these ids if the file has very many; long strings are cut, and their id is added."""
        if self._tables.count("StringIds") <= _MANY_STRINGS:
            return None
        strings = self._tables.texts_by_id(ids)
        if strings is None:
            return None
        text, size = pl.col("text"), pl.col("text").str.len_bytes()
        strings = strings.with_columns(
            pl.when(size > LONGEST_NAME).then(_SHORT).otherwise(text).alias("text")
        )
        return self._stripped(strings)

    def _all(self) -> pl.DataFrame:
        strings = self._short(self._tables.texts(self._table, self._column))
        return self._stripped(strings).with_columns(pl.col("text").cast(pl.Categorical()))

    def _stripped(self, strings: pl.DataFrame) -> pl.DataFrame:
        if self._without is None:
            return strings
        return strings.with_columns(pl.col("text").str.replace(self._without, ""))

    def _short(self, strings: pl.DataFrame) -> pl.DataFrame:
        """The same strings; if the names of all rows would take too many bytes, long strings are cut, and their id is added.

        One string can be the name of every row, and later code may hold one name per row.
        """
        size = pl.col("text").str.len_bytes().cast(pl.Int64)
        longest, rows = strings.select(size.max()).item() or 0, self._tables.count(self._table)
        if longest * rows <= _MOST_BYTES:
            return strings
        wanted: dict[str, ColumnKind] = {self._column: "int"}
        pages = [page.group_by(self._column).len("rows") for page in self._tables.pages(self._table, wanted)]
        uses = pl.concat(pages).group_by(pl.col(self._column).alias("id")).agg(pl.col("rows").sum())
        total = strings.join(uses, on="id", how="inner").select((size * pl.col("rows").cast(pl.Int64)).sum())
        if total.item() <= max(_MOST_BYTES, LONGEST_NAME * rows):
            return strings
        return strings.with_columns(
            pl.when(size > LONGEST_NAME // 2).then(_SHORT).otherwise("text").alias("text")
        )
