"""`tracekit sweep`: run a grid of captures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tracekit.cli.capture_options import Extent, GridFlags, Profile, Setup, workload_names
from tracekit.cli.ending import ended_by_signals
from tracekit.cli.listing import Listing, format_of, varied
from tracekit.cli.options import format_option, with_flags
from tracekit.cli.output import say
from tracekit.errors import TracekitError
from tracekit.facts.terminal_text import printable
from tracekit.facts.units import count_of, format_ns
from tracekit.report.formats import Can, Format

if TYPE_CHECKING:
    import polars as pl

    from tracekit.capture.sweep import Progress

__all__ = ["sweep"]

_RUN_TITLES: Final = {
    "step_trimmed_mean_ns": "step time",
    "throughput_per_s": "samples/s",
    "profiling_overhead": "profiled ÷ plain",
    "peak_memory_bytes": "peak memory",
    "flops_per_step": "FLOPs a step",
}


@with_flags
def sweep(
    workload: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD...",
            help="NAME, NAME:VARIANT or FILE.py:FUNCTION; capture --list shows the names.",
            autocompletion=workload_names,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder for the index, and for one folder per run."
        ),
    ] = Path("runs/sweep"),
    *,
    grid: GridFlags,
    setup: Setup,
    extent: Extent,
    retry: Annotated[
        bool, typer.Option("--retry", help="Repeat runs that failed, ran out of memory or were skipped.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop a run that takes longer than this.")
    ] = None,
    format_: Annotated[
        Format, format_option(Can.TABLES, "The format of the table on stdout.")
    ] = Format.table,
) -> None:
    """Capture every combination of some settings.

    Each runs in a fresh process. The same command continues an interrupted sweep.
    """
    chosen = format_of(format_, None, command="sweep")
    combinations, settings, options, levels = (
        grid.of(workload, setup.settings.seed),
        setup.settings,
        Profile().of(extent.length),
        extent.chosen,
    )
    with ended_by_signals():
        from tracekit.capture.sweep import sweep as run_all

        try:
            rows = run_all(
                combinations,
                output,
                settings=settings,
                options=options,
                levels=levels,
                data=setup.data,
                retry=retry,
                timeout=timeout,
                progress=_teller(),
            )
        except KeyboardInterrupt:
            _say_how_to_go_on(output)
            raise
    _runs(rows, output).emit(chosen)
    _say_what_failed(rows)


def _teller() -> Callable[[Progress], None]:
    """Print a line for each run on stderr; on a terminal also a line that stays while the run lasts."""
    live = sys.stderr.isatty()

    def tell(progress: Progress) -> None:
        if progress.row is None and not live:
            return
        line = printable(_line(progress))
        wipe = "\r\033[K" if live else ""
        sys.stderr.write(f"{wipe}{line}" + ("" if progress.row is None else "\n"))
        sys.stderr.flush()

    return tell


def _line(progress: Progress) -> str:
    text = f"[{progress.number}/{progress.total}] {progress.label}: {_result(progress.row)}"
    if not progress.seconds_left:
        return text
    return f"{text}; {_time_left(progress.seconds_left)} left"


def _result(row: dict[str, Any] | None) -> str:

    if row is None:
        return "running"
    if row["status"] != "done":
        return f"{row['status']} ({row['error']})"
    if row["step_trimmed_mean_ns"] is None:
        return "done"
    text = f"{format_ns(row['step_trimmed_mean_ns'])} a step"
    rate = row["throughput_per_s"]
    return text if rate is None else f"{text}, {rate:,.{0 if rate >= 10 else 2}f} samples/s"


def _time_left(seconds: float) -> str:
    """An estimated time in few digits.

    >>> _time_left(12.3), _time_left(130), _time_left(3900)
    ('12 s', '2 min', '1 h 5 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _say_how_to_go_on(folder: Path) -> None:
    from tracekit.sweep_index import INDEX_FILE, read_index

    if sys.stderr.isatty():
        say("")
    if (folder / INDEX_FILE).exists():
        runs = read_index(folder).height
        say(f"{folder / INDEX_FILE} holds {count_of(runs, 'run')}; the same command continues the sweep")


def _runs(rows: pl.DataFrame, folder: Path) -> Listing:
    from tracekit.sweep_index import ASKED, INDEX_FILE, STATUSES

    counts = [(status, rows.filter(rows["status"] == status).height) for status in STATUSES]
    listed = ", ".join(f"{count} {status}" for status, count in counts if count)
    return Listing(
        "runs",
        "What is the result of each run?",
        f"{count_of(rows.height, 'run')}: {listed}. All columns are in {folder / INDEX_FILE}.",
        rows,
        [
            *("workload", *varied(rows, ASKED), "batch", "status"),
            *("step_trimmed_mean_ns", "throughput_per_s"),
            *("peak_memory_bytes", "profiling_overhead", "flops_per_step", "folder", "error"),
        ],
        _RUN_TITLES,
    )


def _say_what_failed(rows: pl.DataFrame) -> None:
    if not rows.filter(rows["status"] == "done").height:
        raise TracekitError(f"no run succeeded; the first error is: {rows['error'][0]}")
    failed = rows.filter(rows["status"] == "failed").height
    if failed:
        say(f"{count_of(failed, 'run')} failed; the same command with --retry tries again")
