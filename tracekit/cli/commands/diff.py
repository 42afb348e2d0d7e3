"""`tracekit diff`: what changed between two runs, and whether the change is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tracekit.cli import completion
from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import NamedRanges, Reading, WindowKind, with_flags
from tracekit.cli.sources import shown
from tracekit.errors import GateFailedError, InconclusiveError, UsageError
from tracekit.files import keep_inputs
from tracekit.report import formats
from tracekit.report.formats import Can

if TYPE_CHECKING:
    from tracekit.diff.gate import Judgement
    from tracekit.diff.runs import RunSet
    from tracekit.job import Options

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
            help="Two runs, each a trace, its address, a folder or a pattern of traces, or a report in JSON; with --against only NEW.",
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
            metavar="NAME",
            help="Compare with this saved baseline (`tracekit baseline save NAME RUN`).",
            autocompletion=completion.baselines,
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
    """Compare two runs: what changed, and whether it is noise.

    The change of the step time, the parts of the program that it comes from, and gates for continuous integration.
    """
    chosen = formats.choose_format(Can.REPORT, format_, output, command="diff", several=True)
    named = _sides(traces, base or [], new or [], against)
    keep_inputs([path for side in named for path in side])
    from tracekit.diff.baselines import load, path_of
    from tracekit.diff.compared import compared
    from tracekit.diff.gate import parse_gate
    from tracekit.job import Options
    from tracekit.report.diff import diff_section

    gates = [parse_gate(text) for text in gate or ()]
    saved = [] if against is None else [load(against)]
    keep_inputs([] if against is None else [path_of(against)])
    patterns = tuple(comm_pattern or ())
    options = Options(reading.limits, not reading.no_cache, window.value, step, patterns, ranges.filter)
    sides = saved + _read(named, options, rank, jobs)
    for fault in (each for side in sides for each in side.left_out):
        out.say(f"tracekit: left out: {fault}")
    old, fresh = ([run.digests for run in side.runs] for side in sides)
    found = compared(old, fresh, gates, paired=paired)
    rows = top or (_ROWS if Can.PROSE in chosen.can else None)
    section = diff_section(found)
    out.emit_section(section, chosen, output, figures=figures, figure_format=figure_format, top=rows)
    _end(found.judgements)


def _read(named: list[list[Path]], options: Options, rank: int | None, jobs: int | None) -> list[RunSet]:
    """The sides, with a line on the terminal that says how far reading is."""
    from tracekit.cli.jobs import reading_progress
    from tracekit.diff.sides import read_sides

    progress = reading_progress()
    try:
        return read_sides(named, options, rank=rank, jobs=jobs, progress=progress)
    finally:
        progress(0, 0)


def _end(judgements: Sequence[Judgement]) -> None:
    """Raise GateFailedError if a gate failed, InconclusiveError if none did and one is not clear."""
    from tracekit.diff.gate import worst

    outcome = worst(judgements)
    if outcome != "passed":
        names = ", ".join(str(one.gate) for one in judgements if one.outcome == outcome)
        error = GateFailedError if outcome == "failed" else InconclusiveError
        raise error(f"gate {outcome}: {names}", remedy="the result says why")


def _sides(traces: list[Path], base: list[Path], new: list[Path], against: str | None) -> list[list[Path]]:
    """The paths of base and new; of new alone if a baseline is the base.

    Raises UsageError unless there is one run of each.
    """
    wanted = 1 if against else 2
    if against and (len(traces) > wanted or base):
        raise UsageError(
            "--against names the base already", remedy="name the new run only, and more with --new"
        )
    if len(traces) > wanted:
        raise UsageError(
            f"{len(traces)} runs, but there are two sides",
            remedy="name more runs of a side with --base and --new",
        )
    if len(traces) < wanted:
        raise UsageError(
            "there is nothing to compare it with",
            path=shown(traces[0]),
            remedy="name the base before it, or a saved one with --against",
        )
    *first, last = traces
    return [*([[*first, *base]] if first else []), [last, *new]]
