"""The tables of a report as a directory of Parquet or CSV files, with a manifest that says what is in which."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import polars as pl

from tracekit.errors import UsageError
from tracekit.facts.terminal_text import UNSAFE
from tracekit.files import write_all
from tracekit.report.json.render import render_data, report_dict, section_dict
from tracekit.report.model import Report, Section, Table
from tracekit.trace import FRAMES, Trace

__all__ = ["MANIFEST", "encode_frame", "write", "write_section", "write_trace"]

_ENCODERS: Final[dict[str, Callable[[pl.DataFrame, BytesIO], None]]] = {
    "parquet": lambda frame, stream: frame.write_parquet(stream),
    "csv": lambda frame, stream: _as_text(frame).write_csv(stream),
}
MANIFEST: Final = "manifest.json"

_FORMULA: Final = r"^\s*[=+@\t\r-]"
"""The beginning of a cell that a spreadsheet would calculate."""
_NUMBER: Final = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def write(report: Report, directory: str | os.PathLike[str], format: str = "parquet") -> tuple[Path, ...]:
    """Write every table as `<section>.<table>.<format>` and `manifest.json`, all or none; return the paths written.

    The directory is made if it is not there. The manifest holds the envelope of the JSON report (trace, window,
    verdict, health, answers, findings) and, for each file, its columns with their units and its number of rows.
    Raises UsageError for an unknown format or when a file cannot be written.
    """
    _check(format)
    return write_all(directory, _files(report, format))


def write_section(
    section: Section, directory: str | os.PathLike[str], format: str = "parquet"
) -> tuple[Path, ...]:
    """The same for the tables of one section, such as the joint view of a job."""
    _check(format)
    return write_all(
        directory,
        (
            (f"{_safe(section.name)}.{_safe(table.name)}.{format}", encode_frame(table.frame, format))
            for table in section.tables
        ),
    )


def _files(report: Report, format: str) -> Iterator[tuple[str, bytes]]:
    entries = []
    for section in report.sections:
        for table in section.tables:
            name = f"{_safe(section.name)}.{_safe(table.name)}.{format}"
            entries.append(_entry(section.name, table, name))
            yield name, encode_frame(table.frame, format)
    yield MANIFEST, render_data(_manifest(report, entries)).encode("utf-8", errors="replace")


def write_trace(trace: Trace, directory: str | os.PathLike[str], format: str = "parquet") -> tuple[Path, ...]:
    """Write the frames of a trace as `<frame>.<format>`, as they are, and return the paths written.

    Frames that the profile did not record are left out. The directory is made if it is not there. Raises UsageError
    for an unknown format or when a file cannot be written.
    """
    _check(format)
    frames = ((name, getattr(trace, name)) for name in FRAMES)
    return write_all(
        directory,
        ((f"{name}.{format}", encode_frame(frame, format)) for name, frame in frames if frame is not None),
    )


def encode_frame(frame: pl.DataFrame, format: str) -> bytes:
    """One table as the bytes of a file.

    In CSV, control and direction characters of texts are spaces, and a text that a spreadsheet would take for a formula
    has an apostrophe before it.
    """
    stream = BytesIO()
    _ENCODERS[format](frame, stream)
    return stream.getvalue()


def _as_text(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with texts, and names of columns, that neither a terminal nor a spreadsheet acts upon. Several values of a cell are divided by spaces."""
    lists = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List)]
    frame = frame.with_columns(pl.col(name).cast(pl.List(pl.String)).list.join(" ") for name in lists)
    texts = [name for name, kind in frame.schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)]
    names = pl.DataFrame({"name": frame.columns}).select(_inert("name")).to_series()
    return frame.with_columns(map(_inert, texts)).rename(dict(zip(frame.columns, names, strict=True)))


def _inert(name: str) -> pl.Expr:
    text = pl.col(name).cast(pl.String)
    formula = text.str.contains(_FORMULA) & ~text.str.contains(_NUMBER)
    shown = text.str.replace_all(UNSAFE, " ")
    return pl.when(formula).then(pl.lit("'") + shown).otherwise(shown).alias(name)


def _check(format: str) -> None:
    if format not in _ENCODERS:
        raise UsageError(f"unknown table format {format!r}", remedy=f"use {' or '.join(_ENCODERS)}")


def _entry(section: str, table: Table, file: str) -> dict[str, Any]:
    return {
        "analysis": section,
        "table": table.name,
        "title": table.title,
        "file": file,
        "rows": table.frame.height,
        "total_rows": table.total_rows,
        "columns": [dataclasses.asdict(column) for column in table.columns],
    }


def _manifest(report: Report, entries: list[dict[str, Any]]) -> dict[str, Any]:
    envelope = report_dict(dataclasses.replace(report, sections=()))
    for section in report.sections:
        envelope["analyses"][section.name] = section_dict(dataclasses.replace(section, tables=()))
        del envelope["analyses"][section.name]["tables"]
    return {**envelope, "tables": entries}


def _safe(name: str) -> str:
    """An analysis of another package may be called anything; a file may not."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)
