"""`tracekit diff`: what changed between two runs, and whether the change is more than noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import NamedRanges, Reading, WindowKind, with_flags
from tracekit.cli.sources import shown, tell_unread
from tracekit.errors import GateFailedError, InconclusiveError, UsageError
from tracekit.files import keep_inputs
from tracekit.report import formats
from tracekit.report.formats import Can

__all__ = ["diff"]

_ROWS: Final = 6
"""Of a table in a text: a diff has one for each dimension."""


def _more(side: str, name: str) -> Any:
    return flags.flag(f"Another run of the {side}, pooled with the others; repeatable.", name, metavar="RUN")


@with_flags
def diff(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="BASE NEW",
            help="Two runs to compare, each a trace, its address, a folder or a pattern of traces, a report in JSON, or a saved baseline.",
        ),
    ],
    base: Annotated[list[Path] | None, _more("base", "--base")] = None,
    new: Annotated[list[Path] | None, _more("new side", "--new")] = None,
    paired: Annotated[
        bool,
        typer.Option("--paired", help="The runs of both sides belong together in pairs, in their order."),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Compare the one run with this baseline (`tracekit baseline save`)."
        ),
    ] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMIT",
            help="Exit with 1 if the new side is slower by more than this, and with 4 if that is not clear: 3%, idle:5%, layer:encoder:10%, …; repeatable.",
        ),
    ] = None,
    rank: flags.Rank = None,
    step: flags.Step = None,
    window: flags.WindowFlag = WindowKind.steps,
    comm_pattern: flags.CommPattern = None,
    top: flags.Top = None,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
    jobs: flags.Jobs = None,
    *,
    ranges: NamedRanges,
    reading: Reading,
) -> None:
    """Say what changed between two runs, and whether it is more than noise.

    The change of the step time, the parts of the program that it comes from, and gates for continuous integration.
    """
    chosen = formats.choose_format(Can.REPORT, format_, output, command="diff", several=True)
    pair = _paths(traces, base or [], new or [], against)
    keep_inputs([path for side in pair for path in side])
    from tracekit.cli.jobs import reading_progress
    from tracekit.diff.compared import compared
    from tracekit.diff.gate import parse_gate, worst
    from tracekit.diff.sides import read_sides
    from tracekit.job import Options
    from tracekit.report.diff import diff_section

    gates = [parse_gate(text) for text in gate or ()]
    patterns = tuple(comm_pattern or ())
    options = Options(reading.limits, not reading.no_cache, window.value, step, patterns, ranges.filter)
    progress = reading_progress()
    try:
        sides = read_sides(pair, options, rank=rank, jobs=jobs, progress=progress)
    finally:
        progress(0, 0)
    for side in sides:
        tell_unread(side.left_out)
    old, fresh = ([digest for run in side.runs for digest in run.digests] for side in sides)
    found = compared(old, fresh, gates, paired=paired)
    rows = top or (_ROWS if Can.PROSE in chosen.can else None)
    section = diff_section(found)
    out.emit_section(section, chosen, output, figures=figures, figure_format=figure_format, top=rows)
    outcome = worst(found.judgements)
    if outcome == "passed":
        return
    names = [str(one.gate) for one in found.judgements if one.outcome == outcome]
    error = GateFailedError if outcome == "failed" else InconclusiveError
    raise error(f"{outcome}: {', '.join(names)}", remedy="the lines `gate` say why")


def _paths(
    traces: list[Path], base: list[Path], new: list[Path], against: str | None
) -> tuple[list[Path], list[Path]]:
    """The paths of both sides. Raises UsageError unless there is one run of each, or a new one and a saved baseline."""
    if len(traces) > 2:
        raise UsageError(
            f"{len(traces)} runs, but a diff has two sides",
            remedy="name more runs of a side with --base and --new",
        )
    if against is None:
        if len(traces) < 2:
            raise UsageError(
                "there is nothing to compare it with",
                path=shown(traces[0]),
                remedy="name two runs, BASE NEW, or a baseline with --against",
            )
        return [traces[0], *base], [traces[1], *new]
    if len(traces) > 1 or base:
        raise UsageError("--against names the base already", remedy="name the new run only")
    raise NotImplementedError
