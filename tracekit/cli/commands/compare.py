"""`tracekit compare`: devices × models, from runs and tables of latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Reading, with_flags
from tracekit.cli.sources import local, read_one
from tracekit.errors import InconclusiveError, UnreadableTraceError, UsageError
from tracekit.report import formats
from tracekit.report.formats import Can

if TYPE_CHECKING:
    from tracekit.compare import Measured

__all__ = ["compare"]


@with_flags
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of sweeps or captures, traces of captures, or tables (.csv, .parquet) with a model, a device and a latency in each row.",
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=COLUMN",
            help="The column of a table for model, device, precision, batch, latency (latency_ms with its unit), flops, size or accuracy; repeatable. Usual names are recognised.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="A column of a table that does not tell cases apart; repeatable."
        ),
    ] = None,
    step: flags.Step = None,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
    *,
    reading: Reading,
) -> None:
    """Compare devices across models.

    Latencies and throughputs, the speed-ups of devices and precisions over the cases that both have, how well FLOPs predict the latency,
    Pareto sets, and the layer types that make the difference. On a CPU, numbers of threads are devices.
    """
    chosen = formats.choose_format(Can.REPORT, format_, output, command="compare", several=True)
    from tracekit.compare import compare as compared
    from tracekit.compare import joined
    from tracekit.report.compare import compare_section

    measured = joined(_measured([local(path) for path in runs], columns or [], ignore or [], step, reading))
    for line in measured.left_out:
        out.say(f"tracekit: left out: {line}")
    if not measured.rows.height:
        raise InconclusiveError(
            "nothing was measured", remedy="name tables, or the folders of a tracekit sweep or of captures"
        )
    out.emit_section(
        compare_section(compared(measured)), chosen, output, figures=figures, figure_format=figure_format
    )


def _measured(
    paths: Sequence[Path], columns: Sequence[str], ignored: Sequence[str], step: str | None, reading: Reading
) -> Iterator[Measured]:
    """The measurements of the tables, and of all the runs. Raises UnreadableTraceError if nothing can be read."""
    from tracekit.compare import is_table, measured_runs, read_table
    from tracekit.trajectory import read_runs

    tables = [path for path in paths if is_table(path)]
    if (columns or ignored) and not tables:
        raise UsageError("--columns and --ignore are of tables, and there is none", remedy="leave them out")
    chosen = dict(map(_role_and_column, columns))
    faults: list[UnreadableTraceError] = []
    read = 0
    runs = [path for path in paths if path not in tables]
    for path in [*tables, None]:
        try:
            if path is not None:
                yield read_table(path, columns=chosen, ignored=ignored)
            elif runs:
                yield measured_runs(read_runs(runs, lambda each: read_one(each, None, reading), step=step))
            else:
                continue
            read += 1
        except UnreadableTraceError as error:
            faults.append(error)
    if not read:
        raise faults[0]
    for fault in faults:
        out.say(f"tracekit: left out: {fault}")


def _role_and_column(text: str) -> tuple[str, str]:
    role, found, column = text.partition("=")
    if not found:
        raise UsageError(
            f"--columns {text!r} has no =", remedy="write --columns ROLE=COLUMN, such as latency_ms=Median"
        )
    return role, column
