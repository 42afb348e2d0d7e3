"""The rows of a table of an SQLite export, page by page in order of their ids, without constant columns.

Most columns of a table hold one number in every row, or only nulls. The driver needs longer to hand over a value than
SQLite needs to see that it did not change. So if a column is constant in the first page, one query checks the other
rows, and the column is not read further if it stays constant.
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
        """The page after the first `page`, which ends with the row id `last`; from here on without the columns of `same`."""
        self.same = self._still_same(last, _same_in(page.select(list(self._read_as))))
        for name in self.same:
            del self._read_as[name]
        return self.after(last)

    def after(self, last: int) -> pl.DataFrame:
        """The page that begins after a row id."""
        # By row id, so that a page costs as much as its own rows, regardless of the rows before it.
        return self._page(f" and {self._row_id} > {last}")

    def _page(self, after: str) -> pl.DataFrame:
        chosen = "".join(f", {what} as {quoted(name)}" for name, what in self._read_as.items())
        return self._query(
            f"select {self._row_id} as __row{chosen} from {self._table} where {self._where}{after} "  # noqa: S608 - quoted
            f"order by {self._row_id} limit {PAGE_ROWS}"
        )

    def _still_same(self, last: int, values: dict[str, int | None]) -> dict[str, int | None]:
        """The values that stay the same in all rows after a row id. This takes one pass over the table, because each query
        goes on at the row in which a value differs.
        """
        values = dict(values)
        while values:
            # The plus removes the column's declared type from the comparison, which would convert texts to numbers.
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
    """The columns with one number in every row, or with only nulls."""
    same: dict[str, int | None] = {}
    for column in page:
        if column.null_count() == column.len():
            same[column.name] = None
        elif column.dtype == pl.Int64 and not column.null_count() and column.min() == column.max():
            same[column.name] = int(column[0])
    return same
