"""`tracekit capture`: run a training loop and record it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import capture_options as flags
from tracekit.cli.ending import ended_by_signals
from tracekit.cli.output import terminal_width
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.capture.run import CaptureResult
    from tracekit.manifest import CaptureOptions, Level, Settings

__all__ = ["capture"]


def capture(
    context: typer.Context,
    workload: flags.WorkloadName = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Default: runs/WORKLOAD-TIME.")
    ] = None,
    data: flags.Data = None,
    device: flags.Device = "cpu",
    batch: flags.Batch = None,
    size: flags.Size = None,
    tiny: flags.Tiny = False,
    max_rows: flags.MaxRows = None,
    precision: flags.PrecisionFlag = flags.PrecisionName.fp32,
    compile_: flags.Compile = False,
    channels_last: flags.ChannelsLast = False,
    accumulate: flags.Accumulate = 1,
    checkpoint_activations: flags.Checkpoint = False,
    workers: flags.Workers = 0,
    pin_memory: flags.PinMemory = None,
    threads: flags.Threads = None,
    ranks: flags.Ranks = 1,
    parallel: flags.ParallelFlag = flags.ParallelName.ddp,
    seed: flags.Seed = 0,
    levels: flags.Levels = "M,MLG,metrics",
    steps: flags.Steps = 3,
    warmup: flags.Warmup = 1,
    shapes: flags.Shapes = True,
    memory: flags.MemoryFlag = True,
    stack: flags.Stack = False,
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
            capture_under_nsys(context, folder, flags.levels_of(levels), device)
        return
    from tracekit.manifest import CaptureOptions, Settings

    settings = Settings(
        device=device,
        batch=batch,
        size=size,
        precision=precision.value,
        compile=compile_,
        channels_last=channels_last,
        workers=workers,
        pin_memory=pin_memory,
        accumulate=accumulate,
        checkpoint_activations=checkpoint_activations,
        tiny=tiny,
        max_rows=max_rows,
        threads=threads,
        ranks=ranks,
        parallel=parallel.value,
        seed=seed,
    )
    options = CaptureOptions(
        steps=steps, warmup=warmup, record_shapes=shapes, profile_memory=memory, with_stack=stack
    )
    with ended_by_signals():
        result = _run(workload, folder, settings, options, flags.levels_of(levels), data)
    _print_result(result)


def _run(
    workload: str,
    folder: Path,
    settings: Settings,
    options: CaptureOptions,
    levels: tuple[Level, ...],
    data: Path | None,
) -> CaptureResult:
    from tracekit.capture.nsys import noted
    from tracekit.capture.run import run
    from tracekit.manifest import MANIFEST_FILE

    before = _written_at(folder / MANIFEST_FILE)
    try:
        with noted():
            return run(
                workload,
                folder,
                settings=settings,
                options=options,
                levels=levels,
                data=data,
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
