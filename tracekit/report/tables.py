"""The tables of a report as a directory of Parquet or CSV files, with a manifest that says what is in which."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import polars as pl

from tracekit.errors import UsageError
from tracekit.files import make_directory, write_bytes, write_text
from tracekit.report.json.render import render_data, report_dict, section_dict
from tracekit.report.model import Report, Table
from tracekit.trace import FRAMES, Trace

__all__ = ["MANIFEST", "encode_frame", "write", "write_trace"]

_ENCODERS: Final[dict[str, Callable[[pl.DataFrame, BytesIO], None]]] = {
    "parquet": lambda frame, stream: frame.write_parquet(stream),
    "csv": lambda frame, stream: frame.write_csv(stream),
}
MANIFEST: Final = "manifest.json"


def write(report: Report, directory: str | os.PathLike[str], format: str = "parquet") -> tuple[Path, ...]:
    """Write every table as `<section>.<table>.<format>` and, last, `manifest.json`; return the paths written.

    The directory is made if it is not there. The manifest holds the envelope of the JSON report (trace, window,
    verdict, health, answers, findings) and, for each file, its columns with their units and its number of rows.
    Raises UsageError for an unknown format or when a file cannot be written.
    """
    _check(format)
    folder = make_directory(directory)
    written, entries = [], []
    for section in report.sections:
        for table in section.tables:
            name = f"{_safe(section.name)}.{_safe(table.name)}.{format}"
            written.append(write_bytes(folder / name, encode_frame(table.frame, format)))
            entries.append(_entry(section.name, table, name))
    return (*written, write_text(folder / MANIFEST, render_data(_manifest(report, entries))))


def write_trace(trace: Trace, directory: str | os.PathLike[str], format: str = "parquet") -> tuple[Path, ...]:
    """Write the frames of a trace as `<frame>.<format>`, as they are, and return the paths written.

    Frames that the profile did not record are left out. The directory is made if it is not there. Raises UsageError
    for an unknown format or when a file cannot be written.
    """
    _check(format)
    folder = make_directory(directory)
    frames = ((name, getattr(trace, name)) for name in FRAMES)
    return tuple(
        write_bytes(folder / f"{name}.{format}", encode_frame(frame, format))
        for name, frame in frames
        if frame is not None
    )


def encode_frame(frame: pl.DataFrame, format: str) -> bytes:
    """One table as the bytes of a file."""
    stream = BytesIO()
    _ENCODERS[format](frame, stream)
    return stream.getvalue()


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
