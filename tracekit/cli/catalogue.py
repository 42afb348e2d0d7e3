"""Functions for the commands that show several tables of a catalogue: `xsp` and `nsys-stats`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.cli import output as out
from tracekit.errors import InconclusiveError, UsageError, nearest
from tracekit.report.formats import Can, Format, choose_format, encode_frame, render_data, render_sections

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analyses.stated import Entry, StatedTable
    from tracekit.report.model import Column, Section

__all__ = ["format_for", "keys_of", "section_of", "write_tables"]

_ROWS: Final = 10
"""The number of rows of each table if several are shown on a page."""


def keys_of(
    words: Sequence[str],
    catalogue: Sequence[str],
    what: str,
    groups: Mapping[str, Sequence[str]],
    elsewhere: Mapping[str, str] | None = None,
) -> list[str]:
    """The keys in a catalogue of what a user names, in lists with commas, however they are cased; of groups all keys.

    Raises UsageError for a name that is not there; `elsewhere` says of some what answers them.
    """
    by_name = {key.lower(): (key,) for key in catalogue} | {
        name: tuple(keys) for name, keys in groups.items()
    }
    keys: list[str] = []
    for name in (part.strip() for word in words for part in word.split(",")):
        if name.lower() not in by_name:
            names = nearest(name, [*catalogue, *groups], f"choose one of {', '.join(catalogue)}")
            remedy = (elsewhere or {}).get(name, names)
            raise UsageError(f"there is no {what} {name!r}", remedy=remedy)
        keys += by_name[name.lower()]
    return list(dict.fromkeys(keys))


def format_for(command: str, tables: int, format_: Format | None, output: Path | None, *, one: str) -> Format:
    """The format in which so many tables are written; `one` is the flag that asks for a single one.

    Raises UsageError for a format that has no such tables, and for several files without a folder for them.
    """
    chosen = choose_format(Can.TABLES, format_, output, command=command)
    if Can.FILES in chosen.can and tables > 1 and (output is None or output.suffix):
        raise UsageError(f"these are {tables} {chosen.value} tables", remedy=f"give {one}, or -o FOLDER")
    return chosen


def write_tables(
    command: str,
    tables: Sequence[tuple[Entry, StatedTable]],
    section: Callable[[Any, Any], Section],
    chosen: Format,
    output: Path | None,
    *,
    top: int | None,
) -> None:
    """The tables as JSON, as pages (each a `section` of its entry and table), or as files.

    One table goes to the output; several go to its folder, under their keys. A table of which nothing was captured makes no
    file: InconclusiveError of a single one, a line on stderr among several.
    """
    if Can.FILES in chosen.can:
        _write_files(tables, chosen, output, top)
    elif chosen is Format.json:
        out.emit(render_data(chosen, _document(command, tables, top)), output)
    else:
        rows = top or (_ROWS if len(tables) > 1 else None)
        sections = [(section(entry, table), None) for entry, table in tables]
        out.emit(render_sections(chosen, sections, out.page_for(chosen, rows)), output)


def _write_files(
    tables: Sequence[tuple[Entry, StatedTable]], chosen: Format, output: Path | None, top: int | None
) -> None:
    from tracekit.files import write_all

    several = len(tables) > 1
    there: list[tuple[Entry, StatedTable]] = []
    for entry, table in tables:
        if table.not_captured is None or table.frame.height:
            there.append((entry, table))
        elif several:
            out.say(f"tracekit: {entry.key} is not captured: {table.not_captured}")
        else:
            raise InconclusiveError(f"{entry.key}: not captured", remedy=table.not_captured)
    if several:
        files = ((f"{entry.key}.{chosen.value}", encode_frame(chosen, table.frame)) for entry, table in there)
        write_all(output or Path(), files)
    else:
        ((_, table),) = there
        out.emit_frame(table.frame.head(top) if top else table.frame, chosen, output)


def _document(
    command: str, tables: Sequence[tuple[Entry, StatedTable]], top: int | None
) -> dict[str, object]:
    """One object with a key per table."""
    parts = {
        entry.key: {
            "title": entry.title,
            "question": entry.question,
            "answer": table.answer,
            "not_captured": table.not_captured,
            "rows": (table.frame.head(top) if top else table.frame).to_dicts(),
        }
        for entry, table in tables
    }
    return {"schema_version": "1.0", command: parts}


def section_of(
    heading: str,
    entry: Entry,
    table: StatedTable,
    column: Callable[[str, pl.DataType], Column],
    *,
    short: Sequence[str],
    ends: bool = False,
) -> Section:
    """A table as a section of a page, `short` the columns of a narrow one. With `ends` the texts at their ends are kept: they
    say what a row is.
    """
    from tracekit.names import clean, clean_frame
    from tracekit.report.model import Section, Table

    frame = clean_frame(table.frame)
    columns = tuple(column(name, kind) for name, kind in frame.schema.items())
    texts = {each.name for each in columns if each.unit == "text"}
    kept = tuple(name for name in (*short[:1], *short[-1:]) if name in texts) if ends else ()
    shape = Table(entry.key, entry.title, frame, columns, frame.height, short=tuple(short), kept=kept)
    return Section(
        heading,
        f"{heading} · {entry.question}",
        clean(table.answer),
        table.not_captured,
        tables=(shape,) if frame.height else (),
    )
