"""`tracekit export`: the trace's frames as files, or the trace once more, with tracks of layers, idle time and the critical path."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import options as flags
from tracekit.cli.options import NamedRanges, Reading, format_option, with_flags
from tracekit.cli.output import emit, emit_paths
from tracekit.cli.sources import one_file, read_one
from tracekit.errors import UsageError
from tracekit.facts.terminal_text import printable
from tracekit.facts.units import count_of
from tracekit.report.formats import Can, Format, choose_format

__all__ = ["export"]

_ONE = {
    "layer bars": "layer bar",
    "pieces of idle time": "piece of idle time",
    "bars of the critical path": "bar of the critical path",
    "arrows": "arrow",
}
"""What one of the added events is called."""


class ExportKind(str, Enum):
    """What is exported."""

    frames = "frames"
    chrome = "chrome"


@with_flags
def export(
    trace: flags.TraceFile,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="PATH", help="The folder to write; with --to chrome, the file."
        ),
    ],
    to: Annotated[
        ExportKind,
        flags.flag(
            "Write the frames that tracekit reads, or a trace for Perfetto with the added tracks.",
            "--to",
            of=ExportKind,
        ),
    ] = ExportKind.frames,
    *,
    ranges: NamedRanges,
    process: flags.Process = None,
    format_: Annotated[
        Format | None, format_option(Can.FRAMES, "The format of each frame. The default is parquet.")
    ] = None,
    no_cache: flags.NoCache = False,
    no_size_limit: flags.NoSizeLimit = False,
) -> None:
    """Write the frames of a trace as files.

    With --to chrome, write the trace again, with added tracks for layers, idle time and the critical path.
    """
    chosen = choose_format(Can.FRAMES, format_ or Format.parquet, None, command="export")
    if to is ExportKind.chrome and format_ is not None:
        raise UsageError("a Chrome trace has no other format", remedy="leave --format out")
    if to is ExportKind.frames and output == Path("-"):
        raise UsageError(
            "the frames are several files, which standard output cannot hold", remedy="name a folder"
        )
    layers = ranges.filter
    if layers is not None and to is ExportKind.frames:
        raise UsageError("the trace's own frames know no layers", remedy="use --nvtx-… with --to chrome")
    # A copy of the trace is one of all of it.
    reading = Reading(max_events=0, no_cache=no_cache, no_size_limit=no_size_limit)
    read = read_one(one_file(trace), process, reading, layers)
    if to is ExportKind.chrome:
        from tracekit.report import chrome

        added = chrome.write(read, output, limits=reading.limits)
        listed = ", ".join(count_of(count, _ONE.get(what, what), what) for what, count in added.items())
        emit(printable(f"{output}: {listed} added"), None)
        return
    from tracekit.report.tables import write_trace

    emit_paths(write_trace(read, output, chosen.value))
