"""`tracekit capture`: run a training loop and record it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tracekit.cli.capture_options import Recording, Training, workload_names
from tracekit.cli.ending import ended_by_signals
from tracekit.cli.options import with_flags
from tracekit.cli.output import emit_paths, say, terminal_width
from tracekit.errors import UsageError
from tracekit.facts.units import times

if TYPE_CHECKING:
    from tracekit.capture.run import CaptureResult
    from tracekit.manifest import Level

__all__ = ["capture", "default_folder", "tell"]

_REPLACED: Final = ("nsys", "output", "levels")
"""Flags that have other values below nsys."""


@with_flags
def capture(
    context: typer.Context,
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="NAME, NAME:VARIANT or FILE.py:FUNCTION; --list shows the names.",
            autocompletion=workload_names,
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="The folder to write. The default is runs/WORKLOAD-TIME."
        ),
    ] = None,
    *,
    training: Training,
    recording: Recording,
    nsys: Annotated[
        bool, typer.Option("--nsys", help="Record with Nsight Systems instead of torch's profiler.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List the workloads with their parameters and FLOPs.")
    ] = False,
) -> None:
    """Train a model for a few steps and record it.

    This writes traces and a manifest.
    """
    if list_:
        _print_list()
        return
    if not workload:
        raise UsageError("the workload is missing", remedy="see tracekit capture --list")
    folder = output or default_folder(workload)
    if nsys:
        with ended_by_signals():
            _capture_under_nsys(context, folder, recording.extent.chosen, training.setup.device)
        return
    with ended_by_signals():
        result = _run(workload, folder, training, recording)
    _print_result(result)


def _run(workload: str, folder: Path, training: Training, recording: Recording) -> CaptureResult:
    from tracekit.capture.nsys import noted
    from tracekit.capture.run import run
    from tracekit.manifest import MANIFEST_FILE

    before = _written_at(folder / MANIFEST_FILE)
    try:
        with noted():
            return run(
                workload,
                folder,
                settings=training.settings,
                options=recording.options,
                levels=recording.extent.chosen,
                data=training.setup.data,
                progress=tell,
            )
    except BaseException:
        if _written_at(folder / MANIFEST_FILE) != before:
            _say_what_is_left(folder)
        raise


def tell(line: str) -> None:
    """Print a line about the progress on stderr."""
    # A file's name may hold what moves a terminal's cursor.
    typer.echo("".join(letter if letter.isprintable() else "?" for letter in line), err=True)


def _print_result(result: CaptureResult) -> None:
    emit_paths([*result.traces, result.manifest_path])
    for run in result.manifest.runs:
        if run.trace_defect:
            say(f"warning: {run.trace}: {run.trace_defect}")
    if result.manifest.counters_missing:
        say(f"warning: no hardware counters: {result.manifest.counters_missing}")
    if result.manifest.skipped_samples:
        say(
            f"warning: a sample could not be used {times(result.manifest.skipped_samples)}, and another took its place "
            "(a sample that is drawn twice counts twice)"
        )


def _say_what_is_left(folder: Path) -> None:
    from tracekit.manifest import MANIFEST_FILE, read_manifest

    done = ", ".join(dict.fromkeys(run.level for run in read_manifest(folder / MANIFEST_FILE).runs))
    if done:
        say(f"finished levels ({done}) are in {folder}")


def _written_at(path: Path) -> int | None:
    """The time at which a file was written, which tells it from a file of an earlier capture."""
    return path.stat().st_mtime_ns if path.exists() else None


def default_folder(workload: str) -> Path:
    """`runs/WORKLOAD-TIME`, with the name alone of what is a file."""
    import re
    import time

    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(workload).name if ".py" in workload else workload)
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _capture_under_nsys(context: typer.Context, folder: Path, levels: tuple[Level, ...], device: str) -> None:
    """Run this command below nsys, writing into `folder`, and print what was written.

    Raises `typer.Exit` with the capture's exit code when it failed; it has said why. Raises UsageError when no level
    has ranges, MissingDependencyError without nsys, TracekitError when nsys failed.
    """
    from tracekit.capture.nsys import PROFILE_FILE, levels_under_nsys, profile
    from tracekit.manifest import MANIFEST_FILE, read_manifest

    words = [
        *(sys.executable, "-m", "tracekit", "capture"),
        *_words_of(context, without=_REPLACED),
        *("--output", str(folder), "--levels", ",".join(levels_under_nsys(levels))),
    ]
    code = profile(words, folder, on_gpu=device.startswith("cuda"))
    if code:
        raise typer.Exit(code)
    traces = [run.trace for run in read_manifest(folder / MANIFEST_FILE).runs if run.trace]
    emit_paths(folder / name for name in (*traces, MANIFEST_FILE, PROFILE_FILE))


def _words_of(context: typer.Context, *, without: Iterable[str] = ()) -> list[str]:
    """The arguments of this command in a form that it accepts again, without those of some names."""
    left_out = set(without)
    words: list[str] = []
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is None or source.name != "COMMANDLINE" or parameter.name in left_out:
            continue
        words += _words(parameter, context.params[str(parameter.name)])
    return words


def _words(parameter: Any, value: object) -> list[str]:
    if parameter.param_type_name == "argument":
        return [str(value)]
    if isinstance(value, bool):
        return [parameter.opts[0] if value else parameter.secondary_opts[0]]
    return [parameter.opts[0], str(value.value if isinstance(value, Enum) else value)]


def _print_list() -> None:
    from tracekit.capture.listing import listing

    typer.echo(listing(terminal_width() if sys.stdout.isatty() else None))
