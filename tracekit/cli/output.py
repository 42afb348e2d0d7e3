"""Where results go: stdout or a file, in the format that was asked for."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.cli.options import Format
from tracekit.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from tracekit.report.model import Section, TraceInfo

__all__ = [
    "TABLE_FILES",
    "choose_format",
    "emit",
    "emit_frame",
    "headed",
    "looks_of",
    "render_section",
    "terminal_width",
    "use_color",
]

TABLE_FILES: Final = (Format.csv, Format.parquet)
"""The formats of one table a file: several tables are a folder."""

_SUFFIXES: Final = {
    ".html": Format.html,
    ".htm": Format.html,
    ".json": Format.json,
    ".md": Format.md,
    ".markdown": Format.md,
    ".csv": Format.csv,
    ".parquet": Format.parquet,
    ".txt": Format.table,
}
_WIDEST: Final = 160
_PIPED_WIDTH: Final = 100


def choose_format(given: Format | None, output: Path | None) -> Format:
    """The format asked for, else the one of the output's suffix, else a table.

    Raises UsageError for a suffix that says nothing.
    """
    if given is not None:
        return given
    if output is None:
        return Format.table
    try:
        return _SUFFIXES[output.suffix.lower()]
    except KeyError:
        known = ", ".join(sorted(_SUFFIXES))
        raise UsageError(
            f"the suffix {output.suffix!r} tells no format",
            path=output,
            remedy=f"use {known}, or give --format",
        ) from None


def terminal_width() -> int:
    """The columns of the terminal, at most 160; 100 when stdout is not one."""
    if not sys.stdout.isatty():
        return shutil.get_terminal_size((_PIPED_WIDTH, 24)).columns
    return min(shutil.get_terminal_size().columns, _WIDEST)


def use_color() -> bool:
    """Whether stdout is a terminal that wants colour (NO_COLOR is honoured)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def emit(text: str, output: Path | None) -> None:
    """Write text to the file, atomically, or to stdout.

    Raises UsageError when the file cannot be written.
    """
    if output is not None:
        from tracekit.report.write import write_text

        write_text(output, text if text.endswith("\n") else text + "\n")
        return
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def emit_frame(frame: pl.DataFrame, format_: Format, output: Path | None) -> None:
    """Write one table as CSV (anywhere) or Parquet (to a file only).

    Raises UsageError when Parquet would go to stdout or the file cannot be written.
    """
    import io

    if format_ is Format.csv:
        emit(frame.write_csv(), output)
        return
    if output is None:
        raise UsageError("Parquet is not for a terminal", remedy="give -o FILE.parquet")
    from tracekit.report.write import write_bytes

    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    write_bytes(output, buffer.getvalue())


def looks_of(chosen: Format) -> tuple[object, ...]:
    """The format, and what else the same report's text depends on."""
    return (chosen, terminal_width(), use_color()) if chosen is Format.table else (chosen,)


def headed(
    texts: Sequence[str], traces: Sequence[TraceInfo], chosen: Format, *, always: bool = False
) -> Sequence[str]:
    """Of several reports, or `always`, each with a line above it that says which trace, and which rank, it is of."""
    if (len(texts) == 1 and not always) or chosen not in (Format.table, Format.md):
        return texts
    from tracekit.report.format import format_source
    from tracekit.report.markdown import escape

    sources = [format_source(trace) for trace in traces]
    if chosen is Format.md:
        return [f"*{escape(source)}*\n\n{text}" for source, text in zip(sources, texts, strict=True)]
    from rich.cells import cell_len, set_cell_size

    width = terminal_width()
    heads = [f"══ {source} " for source in sources]
    lines = [set_cell_size(head + "═" * (width - cell_len(head)), width) for head in heads]
    return [f"{line}\n{text}" for line, text in zip(lines, texts, strict=True)]


def render_section(section: Section, chosen: Format, top: int | None) -> str:
    """The section as Markdown, or for a terminal as wide as this one, `top` rows of each table."""
    if chosen is Format.md:
        from tracekit.report import markdown

        return markdown.render_section(section, top=top)
    from tracekit.report import terminal

    return terminal.render_section(section, width=terminal_width(), color=use_color(), top=top)
