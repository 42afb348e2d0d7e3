"""`tracekit trajectory`: how performance moves along a setting of a sweep, and the best configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Reading, with_flags
from tracekit.cli.sources import local, read_one
from tracekit.errors import InconclusiveError, UsageError, nearest
from tracekit.report import formats
from tracekit.report.formats import Can

if TYPE_CHECKING:
    from tracekit.trajectory import Swept

__all__ = ["trajectory"]


@with_flags
def trajectory(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of sweeps or captures, or traces of captures."),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING",
            help="The setting to follow: batch, threads, ranks, precision, size, … The default is the only one that differs.",
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
    """Show how performance moves along a setting of a sweep.

    The points of the runs below the roofline, what each segment between them means, and the best configuration.
    """
    chosen = formats.choose_format(Can.REPORT, format_, output, command="trajectory", several=True)
    from tracekit.report.trajectory import trajectory_section
    from tracekit.trajectory import KEYS, read_runs, trajectories_of

    key = None if key is None else key.replace("-", "_")
    if key is not None and key not in KEYS:
        raise UsageError(
            f"there is no key {key!r}", remedy=nearest(key, KEYS, f"choose one of {', '.join(KEYS)}")
        )
    swept = read_runs([local(path) for path in runs], lambda path: read_one(path, None, reading), step=step)
    found = trajectories_of(swept, key or _only_key(swept)) if swept.runs else None
    for line in swept.left_out if found is None else found.left_out:
        out.say(f"tracekit: left out: {line}")
    if found is None or not found.runs:
        raise InconclusiveError(
            f"no run tells its {'settings' if found is None else found.key.replace('_', ' ')}",
            remedy="name the folders of a tracekit sweep or of captures",
        )
    out.emit_section(trajectory_section(found), chosen, output, figures=figures, figure_format=figure_format)


def _only_key(swept: Swept) -> str:
    """The setting in which the runs differ. Raises UsageError if there is none, or several."""
    from tracekit.trajectory import varied_keys

    names = varied_keys(swept.runs)
    if len(names) == 1:
        return names[0]
    if names:
        told = f"{', '.join(names[:-1])} and {names[-1]}"
        raise UsageError(f"the runs differ in {told}", remedy=f"choose one: --key {names[0]}")
    raise UsageError("the runs do not differ in any setting", remedy="name runs that do, such as a tracekit sweep")  # fmt: skip
