"""`tracekit capture`: run a training loop and record it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import capture_options as flags
from tracekit.cli.asked import with_flags
from tracekit.cli.ending import ended_by_signals
from tracekit.cli.output import terminal_width
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.capture.run import CaptureResult

__all__ = ["capture"]


@with_flags
def capture(
    context: typer.Context,
    workload: flags.WorkloadName = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Default: runs/WORKLOAD-TIME.")
    ] = None,
    *,
    training: flags.Training,
    recording: flags.Recording,
    nsys: flags.Nsys = False,
    list_: flags.ListFlag = False,
) -> None:
    """Train a model for a few steps and record it; writes traces and a manifest."""
    if list_:
        _print_list()
        return
    if not workload:
        raise UsageError("no workload is given", remedy="see tracekit capture --list")
    folder = output or _default_folder(workload)
    if nsys:
        from tracekit.cli.capture_nsys import capture_under_nsys

        with ended_by_signals():
            capture_under_nsys(context, folder, flags.levels_of(recording.levels), training.device)
        return
    with ended_by_signals():
        result = _run(workload, folder, training, recording)
    _print_result(result)


def _run(workload: str, folder: Path, training: flags.Training, recording: flags.Recording) -> CaptureResult:
    from tracekit.capture.nsys import noted
    from tracekit.capture.run import run
    from tracekit.manifest import MANIFEST_FILE

    levels = flags.levels_of(recording.levels)
    before = _written_at(folder / MANIFEST_FILE)
    try:
        with noted():
            return run(
                workload,
                folder,
                settings=training.settings,
                options=recording.options,
                levels=levels,
                data=training.data,
                progress=_tell,
            )
    except BaseException:
        if _written_at(folder / MANIFEST_FILE) != before:
            _say_what_is_left(folder)
        raise


def _tell(line: str) -> None:
    # A file's name may hold what moves a terminal's cursor.
    typer.echo("".join(letter if letter.isprintable() else "?" for letter in line), err=True)


def _print_result(result: CaptureResult) -> None:
    for path in (*result.traces, result.manifest_path):
        typer.echo(path)
    for run in result.manifest.runs:
        if run.trace_defect:
            typer.echo(f"warning: {run.trace}: {run.trace_defect}", err=True)
    if result.manifest.counters_missing:
        typer.echo(f"warning: no hardware counters: {result.manifest.counters_missing}", err=True)
    if result.manifest.skipped_samples:
        times = "once" if result.manifest.skipped_samples == 1 else f"{result.manifest.skipped_samples} times"
        typer.echo(
            f"warning: {times} a sample could not be used, and another took its place "
            "(one that is drawn again counts again)",
            err=True,
        )


def _say_what_is_left(folder: Path) -> None:
    from tracekit.manifest import MANIFEST_FILE, read_manifest

    done = ", ".join(dict.fromkeys(run.level for run in read_manifest(folder / MANIFEST_FILE).runs))
    if done:
        typer.echo(f"finished levels ({done}) are in {folder}", err=True)


def _written_at(path: Path) -> int | None:
    """When a file was written, so that what an earlier capture left is not taken for this one's."""
    return path.stat().st_mtime_ns if path.exists() else None


def _default_folder(workload: str) -> Path:
    import re
    import time

    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(workload).name if ".py:" in workload else workload)
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _print_list() -> None:
    from tracekit.capture.listing import listing

    typer.echo(listing(terminal_width() if sys.stdout.isatty() else None))
