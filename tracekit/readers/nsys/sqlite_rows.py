"""The rows of a table of an SQLite export, page by page in order of their ids, without the columns that say nothing.

Of the many columns of a table most hold one number in every row, or none at all. To hand a value over takes the driver
longer than it takes SQLite to see that it is the same as before: so what the first page shows to be one number is looked
for in the others by one query, and is read no more where it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from tracekit.readers.nsys.pages import PAGE_ROWS
from tracekit.readers.nsys.sqlite_schema import quoted

__all__ = ["TableRows"]


class TableRows:
    """The pages of one table.

    `read_as` maps the columns to the expressions that read them, `where` is a condition (or "true"). `same` maps the columns
    that the pages lack to their only value in all rows that are still to come.
    """

    def __init__(
        self,
        query: Callable[[str], pl.DataFrame],
        table: str,
        row_id: str,
        read_as: Mapping[str, str],
        where: str,
    ) -> None:
        self.same: dict[str, int | None] = {}
        self._query = query
        self._table, self._row_id, self._where = quoted(table), row_id, where
        self._read_as = dict(read_as)

    def first(self) -> pl.DataFrame:
        """The first page, with every column and the row ids as `__row`."""
        return self._page("")

    def second(self, last: int, page: pl.DataFrame) -> pl.DataFrame:
        """The page after the first one, which is `page` and ends with the row id `last`; from here on without the columns of `same`."""
        self.same = self._still_same(last, _same_in(page.select(list(self._read_as))))
        for name in self.same:
            del self._read_as[name]
        return self.after(last)

    def after(self, last: int) -> pl.DataFrame:
        """The page that begins behind a row id."""
        # By row id, so that a page costs as much as its own rows, however many lie before it.
        return self._page(f" and {self._row_id} > {last}")

    def _page(self, after: str) -> pl.DataFrame:
        chosen = "".join(f", {what} as {quoted(name)}" for name, what in self._read_as.items())
        return self._query(
            f"select {self._row_id} as __row{chosen} from {self._table} where {self._where}{after} "  # noqa: S608 - quoted
            f"order by {self._row_id} limit {PAGE_ROWS}"
        )

    def _still_same(self, last: int, values: dict[str, int | None]) -> dict[str, int | None]:
        """Those of the values that all rows behind a row id have as well; one pass over the table, as each query goes on
        where a value was found to differ.
        """
        values = dict(values)
        while values:
            # The plus takes the column's declared type out of the comparison, which would make numbers of texts.
            differs = {
                name: f"+{quoted(name)} is not {'null' if value is None else value}"
                for name, value in values.items()
            }
            columns = ", ".join(f"{what} as {quoted(name)}" for name, what in differs.items())
            change = self._query(
                f"select {self._row_id} as __row, {columns} from {self._table} where {self._where} "  # noqa: S608 - quoted
                f"and {self._row_id} > {last} and ({' or '.join(differs.values())}) order by {self._row_id} limit 1"
            )
            if not change.height:
                break
            last, *there = change.row(0)
            values = {
                name: value for (name, value), other in zip(values.items(), there, strict=True) if not other
            }
        return values


def _same_in(page: pl.DataFrame) -> dict[str, int | None]:
    """The columns with one number in every row, or with none."""
    same: dict[str, int | None] = {}
    for column in page:
        if column.null_count() == column.len():
            same[column.name] = None
        elif column.dtype == pl.Int64 and not column.null_count() and column.min() == column.max():
            same[column.name] = int(column[0])
    return same
