"""`tracekit trend`: figures over many runs, and with which runs the step time changed."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Reading, WindowKind, with_flags
from tracekit.report import formats
from tracekit.report.formats import Can

__all__ = ["trend"]


class By(str, Enum):
    """What orders the runs."""

    time = "time"
    name = "name"


@with_flags
def trend(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Runs of one program: traces, folders or patterns of traces, reports in JSON, saved baselines.",
        ),
    ],
    by: Annotated[
        By, flags.flag("Order the runs by their time, or by their names.", "--by", of=By)
    ] = By.time,
    rank: flags.Rank = None,
    step: flags.Step = None,
    window: flags.WindowFlag = WindowKind.steps,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
    jobs: flags.Jobs = None,
    *,
    reading: Reading,
) -> None:
    """Show how step times moved over many runs.

    Step time, throughput, idle share and memory of each run, and what changed most where the step time did.
    """
    chosen = formats.choose_format(Can.REPORT, format_, output, command="trend", several=True)
    from tracekit.diff.sides import read_sides
    from tracekit.diff.trend import trend_of
    from tracekit.job import Options
    from tracekit.report.trend import trend_section

    options = Options(reading.limits, not reading.no_cache, window.value, step)
    (side,) = read_sides([runs], options, rank=rank, jobs=jobs)
    for error in side.left_out:
        out.say(f"tracekit: left out: {error}")
    found = trend_of(side.runs, by_name=by is By.name)
    for name, why in found.left_out:
        out.say(f"tracekit: left out: {name}: {why}")
    out.emit_section(trend_section(found), chosen, output, figures=figures, figure_format=figure_format)
