"""`tracekit scrub`: a copy of an Nsight Systems export that can be passed on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.cli import output as out
from tracekit.cli.sources import local
from tracekit.errors import UsageError
from tracekit.facts.terminal_text import printable

if TYPE_CHECKING:
    from tracekit.scrub import Scrubbed

__all__ = ["scrub"]

_PROGRESS_AFTER_S: Final = 0.5


def scrub(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="An Nsight Systems export: .sqlite, or a folder (parquetdir)."),
    ],
    target: Annotated[Path | None, typer.Argument(metavar="OUT", help="The path of the copy.")] = None,
    replace: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Also replace this text wherever it occurs; repeatable."),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Do not replace this word in names; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be kept and left out; OUT is not needed.")
    ] = False,
) -> None:
    """Copy what tracekit reads of an Nsight Systems export.

    The copy has no environment variables, command lines, program output, host and user names, or paths.
    """
    from tracekit.scrub import rehearse
    from tracekit.scrub import scrub as run

    if target is None and not dry_run:
        raise UsageError(
            "the output file is missing", remedy="name one: tracekit scrub IN OUT, or use --dry-run"
        )
    source = local(source)
    progress = _progress()
    try:
        if target is None or dry_run:
            done = rehearse(source, replace=replace or (), keep=keep or (), progress=progress)
        else:
            done = run(source, target, replace=replace or (), keep=keep or (), progress=progress)
    finally:
        progress("")
    out.emit(_summary(done), None)


def _summary(done: Scrubbed) -> str:
    from tracekit.facts.units import format_bytes, format_count
    from tracekit.names import clean

    rows: list[tuple[str, ...]] = [("table", "rows", "columns", "replaced texts")]
    for one in done.kept:
        counts = ((one.rows, one.rows_before), (one.columns, one.columns_before))
        of = (f"{format_count(now)} of {format_count(before)}" for now, before in counts)
        rows.append((clean(one.table), *of, format_count(one.replaced) if one.replaced else ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if done.left_out:
        lines.append(f"{len(done.left_out)} tables left out: {clean(', '.join(done.left_out))}")
    lines.append(f"{format_count(done.words)} private words searched for in the texts")
    where = "dry run, no file was written" if done.path is None else clean(str(done.path))
    lines.append(f"{where}: {format_bytes(done.bytes_after)} of {format_bytes(done.bytes_before)}")
    return "\n".join(lines)


def _progress() -> Callable[[str], None]:
    """A line with the table that is copied, on a terminal's stderr only; called with "" it wipes itself."""
    began = time.monotonic()
    visible = False

    def report(table: str) -> None:
        nonlocal visible
        if not sys.stderr.isatty():
            return
        if not table:
            sys.stderr.write("\r\033[K" if visible else "")
        elif time.monotonic() - began > _PROGRESS_AFTER_S:
            visible = True
            sys.stderr.write(f"\r\033[Kscrubbing {printable(table)}")
        sys.stderr.flush()

    return report
