"""What the commands share that show several tables of a catalogue: `xsp` and `nsys-stats`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tracekit.cli import output as out
from tracekit.cli.options import Format
from tracekit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from tracekit.report.model import Section

__all__ = ["Answered", "Entry", "as_json", "as_pages", "format_for"]

_ROWS: Final = 10
"""Rows of each table when several are shown to a reader."""


class Entry(Protocol):
    """What a catalogue says about a table."""

    @property
    def title(self) -> str:
        """What it shows."""

    @property
    def question(self) -> str:
        """What it answers."""


class Answered(Protocol):
    """What a table says beside its rows."""

    @property
    def answer(self) -> str:
        """In one sentence."""

    @property
    def not_captured(self) -> str | None:
        """What was not recorded, and how to record it."""


def format_for(command: str, tables: int, given: Format | None, output: Path | None, *, one: str) -> Format:
    """The format in which so many tables are written; `one` is the flag that asks for a single one.

    Raises UsageError for HTML, and for several files without a folder for them.
    """
    several = tables > 1
    # The suffix of a folder tells no format.
    chosen = given if given in out.TABLE_FILES and several else out.choose_format(given, output)
    if chosen is Format.html:
        raise UsageError(f"{command} has no HTML", remedy="use --format table, json, csv, md or parquet")
    if chosen in out.TABLE_FILES and several and (output is None or output.suffix):
        raise UsageError(f"these are {tables} {chosen.value} tables", remedy=f"give {one}, or -o FOLDER")
    return Format(chosen)


def as_json(
    command: str, tables: Mapping[str, tuple[Entry, Answered, pl.DataFrame]], *, top: int | None
) -> str:
    """One object with a key per table; each row on a line of its own."""
    import msgspec

    parts = []
    for key, (entry, table, frame) in tables.items():
        about: dict[str, Any] = {
            "title": entry.title,
            "question": entry.question,
            "answer": table.answer,
            "not_captured": table.not_captured,
        }
        head = msgspec.json.encode(about).decode().removesuffix("}")
        shown = frame.head(top) if top else frame
        rows = ",\n   ".join(msgspec.json.encode(row).decode() for row in shown.iter_rows(named=True))
        parts.append(f'  "{key}": {head}, "rows": [\n   {rows}\n  ]}}')
    body = ",\n".join(parts)
    return f'{{"schema_version": "1.0", "{command}": {{\n{body}\n}}}}\n'


def as_pages(sections: Sequence[Section], chosen: Format, *, top: int | None) -> str:
    """The sections one below the other, as Markdown or for a terminal."""
    rows = top or (_ROWS if len(sections) > 1 else None)
    return "\n".join(out.render_section(section, chosen, rows) for section in sections)
