"""`tracekit export`: the trace's frames as files, or the trace once more, with tracks of layers and idle time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import options as flags
from tracekit.cli.asked import NamedRanges, Reading, with_flags
from tracekit.cli.options import ExportKind, Format
from tracekit.cli.sources import read_one
from tracekit.errors import UsageError

__all__ = ["export"]


@with_flags
def export(
    trace: flags.TraceFile,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="PATH", help="The folder, or with --to chrome the file, to write."
        ),
    ],
    to: flags.ExportTo = ExportKind.frames,
    *,
    ranges: NamedRanges,
    process: flags.Process = None,
    format_: flags.FormatFlag = None,
    no_cache: flags.NoCache = False,
    no_size_limit: flags.NoSizeLimit = False,
) -> None:
    """Write the trace's own frames as Parquet or CSV files, or the trace with tracks of layers and idle time."""
    chosen = format_ or Format.parquet
    if to is ExportKind.chrome and format_ is not None:
        raise UsageError("a Chrome trace has no other format", remedy="leave --format out")
    layers = ranges.filter
    if layers is not None and to is ExportKind.frames:
        raise UsageError("the trace's own frames know no layers", remedy="use --nvtx-… with --to chrome")
    if chosen not in (Format.parquet, Format.csv):
        raise UsageError(f"export writes parquet or csv, not {chosen.value}")
    # A copy of the trace is one of all of it.
    reading = Reading(max_events=0, no_cache=no_cache, no_size_limit=no_size_limit)
    read = read_one(trace, process, reading, layers)
    if to is ExportKind.chrome:
        from tracekit.report import chrome

        added = chrome.write(read, output, limits=reading.limits)
        typer.echo(f"{output}: " + ", ".join(f"{count:,} {what}" for what, count in added.items()) + " added")
        return
    from tracekit.report.tables import write_trace

    for name in write_trace(read, output, chosen.value):
        typer.echo(name)
