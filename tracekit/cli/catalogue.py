"""What the commands share that show several tables of a catalogue: `xsp` and `nsys-stats`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tracekit.cli import output as out
from tracekit.errors import UsageError
from tracekit.report.formats import Can, Format, choose_format, render_data, render_sections

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

    Raises UsageError for a format that has no such tables, and for several files without a folder for them.
    """
    chosen = choose_format(Can.TABLES, given, output, command=command)
    if Can.FILES in chosen.can and tables > 1 and (output is None or output.suffix):
        raise UsageError(f"these are {tables} {chosen.value} tables", remedy=f"give {one}, or -o FOLDER")
    return chosen


def as_json(
    command: str, tables: Mapping[str, tuple[Entry, Answered, pl.DataFrame]], *, top: int | None
) -> str:
    """One object with a key per table; each row on a line of its own."""
    parts = {
        key: {
            "title": entry.title,
            "question": entry.question,
            "answer": table.answer,
            "not_captured": table.not_captured,
            "rows": (frame.head(top) if top else frame).to_dicts(),
        }
        for key, (entry, table, frame) in tables.items()
    }
    return render_data(Format.json, {"schema_version": "1.0", command: parts})


def as_pages(sections: Sequence[Section], chosen: Format, *, top: int | None) -> str:
    """The sections one below the other, as Markdown or for a terminal."""
    rows = top or (_ROWS if len(sections) > 1 else None)
    return render_sections(chosen, [(section, None) for section in sections], out.page_for(chosen, rows))
