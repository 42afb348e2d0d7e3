"""The output of results: stdout or a file, in the requested format."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import UsageError
from tracekit.facts.terminal_text import printable
from tracekit.report.formats import Can, FigureFormat, Format, Page, encode_frame, render_alone

if TYPE_CHECKING:
    import polars as pl

    from tracekit.report.model import Section

__all__ = [
    "PAGE_WIDTH",
    "check_binary",
    "emit",
    "emit_frame",
    "emit_paths",
    "emit_section",
    "labelled",
    "page_for",
    "say",
    "terminal_width",
    "without_notes_of_matplotlib",
]

PAGE_WIDTH: Final = 80
"""The width of the lines of `info` and `doctor`."""

_WIDEST: Final = 160
_PIPED_WIDTH: Final = 100
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
"""No other escape sequence is in any text, and a file has no colours."""


def terminal_width() -> int:
    """The columns of the terminal, at most 160; 100 when stdout is not one."""
    if not sys.stdout.isatty():
        return shutil.get_terminal_size((_PIPED_WIDTH, 24)).columns
    return min(shutil.get_terminal_size().columns, _WIDEST)


def page_for(chosen: Format, top: int | None = None) -> Page:
    """For what a text of this format is laid out; only one for a terminal depends on it."""
    if Can.FITTED not in chosen.can:
        return Page(top=top)
    return Page(terminal_width(), _coloured(), top)


def _coloured() -> bool:
    """Whether a terminal's text has colours: as NO_COLOR says, else as FORCE_COLOR says, else if stdout is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def emit(text: str, output: Path | None) -> None:
    """Write text to the file, atomically, or to stdout.

    Raises UsageError when the file cannot be written.
    """
    text = text if text.endswith("\n") else text + "\n"
    if output is not None:
        from tracekit.files import write_text

        write_text(output, _COLOUR.sub("", text))
        return
    _write(text.encode(sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict"))


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def emit_paths(paths: Iterable[Path]) -> None:
    """Write paths to stdout, one a line; what would steer a terminal is a space."""
    emit("\n".join(printable(str(path)) for path in paths), None)


def without_notes_of_matplotlib() -> None:
    """Keep off stderr what it says of a home folder that cannot be written, and of letters that no font has."""
    import logging
    import warnings

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "Glyph ")


def say(line: str) -> None:
    """Write a line to stderr; what would steer a terminal is a space."""
    sys.stderr.write(f"{printable(line)}\n")


def emit_frame(frame: pl.DataFrame, chosen: Format, output: Path | None, *, piped: bool = False) -> None:
    """Write one table to the file, or to stdout; a binary format goes there only if it may be `piped`, and never to a terminal.

    Raises UsageError when that is so, or the file cannot be written.
    """
    data = encode_frame(chosen, frame)
    if output is not None:
        from tracekit.files import write_bytes

        write_bytes(output, data)
    elif Can.BINARY not in chosen.can:
        emit(data.decode(), None)
    else:
        check_binary(chosen, None, piped=piped)
        _write(data)


def emit_section(
    section: Section,
    chosen: Format,
    output: Path | None,
    *,
    figures: Path | None,
    figure_format: FigureFormat,
    top: int | None = None,
) -> None:
    """Write a section that is of no single trace to the file or stdout, or its tables into the folder; its figures into another.

    Raises UsageError when a file cannot be written.
    """
    from tracekit.files import write_all

    emit_figures(section, figures, figure_format)
    if output is not None and Can.FILES in chosen.can:
        tables = ((f"{section.name}.{one.name}.{chosen.value}", one.frame) for one in section.tables)
        write_all(output, ((name, encode_frame(chosen, frame)) for name, frame in tables))
    else:
        emit(render_alone(chosen, section, page_for(chosen, top)), output)


def emit_figures(section: Section, folder: Path | None, figure_format: FigureFormat) -> None:
    """Write the figures of a section into the folder, if there is one. Raises UsageError when a file cannot be written."""
    from tracekit.files import write_all

    if folder is None:
        return
    without_notes_of_matplotlib()
    from tracekit.report.figures import encode

    drawn = (
        (f"{section.name}.{one.name}.{figure_format}", encode(one, figure_format)) for one in section.figures
    )
    write_all(folder, drawn)


def check_binary(chosen: Format, output: Path | None, *, piped: bool) -> None:
    """Raise UsageError if a binary format would go to a terminal."""
    if output is None and Can.BINARY in chosen.can and (not piped or sys.stdout.isatty()):
        remedy = "send it to a file with >" if piped else f"give -o FILE.{chosen.value}"
        raise UsageError(f"{chosen.value} cannot be shown on a terminal", remedy=remedy)


def labelled(rows: Mapping[str, str], indent: str = "", width: int = 13) -> list[str]:
    """Names with their texts, in lines of at most 80 characters."""
    room = max(0, width - len(indent))
    lines = []
    for name, text in rows.items():
        # A long call is folded behind its bracket, where Python allows it, not in a word.
        words = [
            each if len(each) <= PAGE_WIDTH - width else each.replace("(", "( ") for each in text.split()
        ]
        folded = textwrap.wrap(" ".join(words), PAGE_WIDTH - width, break_on_hyphens=False) or [""]
        lines += [f"{indent}{name if not n else '':<{room}}{line}" for n, line in enumerate(folded)]
    return lines
