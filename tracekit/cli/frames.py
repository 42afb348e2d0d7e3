"""A table that is no section of a report, in the formats of the others: the runs of a sweep, the models of one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli import output as out
from tracekit.cli.options import Format
from tracekit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from tracekit.report.model import Section

__all__ = ["Listing", "check_format", "emit_listing", "sorted_by"]


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Rows with the `question` that they answer and the `answer` in one line.

    `shown` are the columns for a reader, in order, and `titles` what those are called that do not speak for
    themselves; data formats get every column.
    """

    name: str
    question: str
    answer: str
    frame: pl.DataFrame
    shown: Sequence[str]
    titles: Mapping[str, str] = field(default_factory=dict)


def check_format(chosen: Format, output: Path | None) -> None:
    """Raise UsageError for a format that a listing has not, or that would go to a terminal."""
    if chosen is Format.html:
        raise UsageError("this table has no HTML", remedy="use --format table, json, csv, md or parquet")
    if chosen is Format.parquet and output is None and sys.stdout.isatty():
        raise UsageError("Parquet is not for a terminal", remedy="send it to a file with >")


def emit_listing(listing: Listing, chosen: Format, output: Path | None = None) -> None:
    """Write the listing to the file, or to stdout. Raises UsageError when the file cannot be written."""
    if chosen is Format.parquet and output is None:
        listing.frame.write_parquet(sys.stdout.buffer)
        sys.stdout.flush()
    elif chosen in (Format.csv, Format.parquet):
        out.emit_frame(listing.frame, chosen, output)
    elif chosen is Format.json:
        out.emit(_json(listing), output)
    else:
        out.emit(_page(listing, chosen), output)


def sorted_by(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """The rows by this column, largest first; texts from a to z. Raises UsageError when there is no such column."""
    import polars as pl

    if column not in frame.columns:
        raise UsageError(
            f"there is no column {column!r}", remedy=f"the columns are {', '.join(frame.columns)}"
        )
    descending = frame.schema[column] != pl.String
    return frame.sort(column, descending=descending, nulls_last=True, maintain_order=True)


def _json(listing: Listing) -> str:
    """One object; each row on a line of its own."""
    import msgspec

    rows = ",\n  ".join(msgspec.json.encode(row).decode() for row in listing.frame.iter_rows(named=True))
    return f'{{"schema_version": "1.0", "{listing.name}": [\n  {rows}\n]}}\n'


def _page(listing: Listing, chosen: Format) -> str:
    return out.render_section(_section(listing), chosen, max(listing.frame.height, 1))


def _section(listing: Listing) -> Section:
    from tracekit.analyses.result import column_of
    from tracekit.report.model import Section, Table
    from tracekit.report.text import clean, clean_frame

    frame = clean_frame(listing.frame)
    columns = []
    for name, kind in frame.schema.items():
        column = column_of(name, kind)
        columns.append(replace(column, title=listing.titles.get(name, column.title)))
    table = Table(
        name=listing.name,
        title=listing.name.capitalize(),
        frame=frame,
        columns=tuple(columns),
        total_rows=frame.height,
        short=tuple(listing.shown),
    )
    return Section(listing.name, listing.question, clean(listing.answer), tables=(table,))
