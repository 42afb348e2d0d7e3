"""Tables of catalogues: those of `nsys stats` and of XSP stand in a catalogue each, and come with an answer of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracekit.classes import dataclass

__all__ = ["Entry", "StatedTable", "in_order", "in_schema"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a catalogue says of a table.

    * `key`: its name in the catalogue
    * `title`, `question`: what it shows, and what it answers
    * `schema`: its columns in order, with their types
    * `shown`: the columns that a narrow page shows; all when none is named
    * `order`: the columns that it is sorted by, of it or of the rows that it is made of; after a minus from the largest down
    * `needs`: what must have been recorded
    """

    key: str
    title: str
    question: str
    schema: Mapping[str, pl.DataType]
    shown: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns, in order."""
        return tuple(self.schema)


@dataclass(frozen=True, slots=True, eq=False)
class StatedTable:
    """A table of a catalogue: that of a report of `nsys stats`, or of an analysis of XSP.

    * `key`: that of its record
    * `frame`: its rows, with the columns of the record
    * `answer`: what it shows, in one sentence
    * `not_captured`: what was not recorded and how to record it: all of the table, which then has no rows, or the columns
      that are null; None when nothing lacks
    """

    key: str
    frame: pl.DataFrame
    answer: str
    not_captured: str | None = None


def in_schema(rows: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The rows with these columns in order; one that they lack is null."""
    # A frame of literals alone has one row, whatever the height.
    if not rows.height:
        return pl.DataFrame(schema=schema)
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in schema.items()
    )


def in_order(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The rows sorted by these columns, after a minus from the largest down; of equals the one that comes first.

    >>> in_order(pl.DataFrame({"a": [1, 2, 2], "b": [3, 5, 4]}), ("-a", "b")).rows()
    [(2, 4), (2, 5), (1, 3)]
    """
    if not columns:
        return rows
    names = [name.removeprefix("-") for name in columns]
    falling = [name.startswith("-") for name in columns]
    return rows.sort(names, descending=falling, nulls_last=True, maintain_order=True)
