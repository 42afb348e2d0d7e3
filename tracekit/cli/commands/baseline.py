"""`tracekit baseline`: keep runs under a name, to compare later runs with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import completion
from tracekit.cli import options as flags
from tracekit.cli.options import Reading, WindowKind, with_flags
from tracekit.cli.plain import PlainCommand

if TYPE_CHECKING:
    import polars as pl

    from tracekit.diff.runs import Run

__all__ = ["baseline"]

baseline = typer.Typer(
    name="baseline",
    help="Keep runs under a name, to compare later runs with.",
    epilog="Baselines are kept in $TRACEKIT_BASELINES, else in the nearest folder .tracekit/baselines from here upwards.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the baseline.", autocompletion=completion.baselines)
]


@with_flags
def save(
    name: Name,
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Runs of one program: traces, folders or patterns of the traces of ranks, reports in JSON, saved baselines.",
        ),
    ],
    rank: flags.Rank = None,
    step: flags.Step = None,
    window: flags.WindowFlag = WindowKind.steps,
    jobs: flags.Jobs = None,
    *,
    reading: Reading,
) -> None:
    """Save these runs under a name, instead of those that it had.

    A summary of the steps is kept, no events: some ten kB for each rank of a run.
    """
    from tracekit.cli.output import say
    from tracekit.diff.baselines import path_of, save
    from tracekit.diff.sides import read_sides
    from tracekit.facts.units import count_of
    from tracekit.job import Options

    path = path_of(name)  # a wrong name is known before the traces are read
    options = Options(reading.limits, not reading.no_cache, window.value, step)
    (side,) = read_sides([traces], options, rank=rank, jobs=jobs)
    if side.left_out:  # a baseline that lacks a run would be taken for whole
        raise side.left_out[0]
    replaced = path.exists()
    saved = save(name, side.runs)
    say(f"{'replaced' if replaced else 'saved'} {name}: {count_of(len(side.runs), 'run')} in {saved}")


def list_(format_: flags.TablesFormat = None, output: flags.Output = None) -> None:
    """List the baselines, with the medians of their step times."""
    from tracekit.cli.listing import Listing, format_of
    from tracekit.cli.output import say
    from tracekit.diff.baselines import baselines, folder
    from tracekit.diff.runs import date_of
    from tracekit.errors import UnreadableTraceError
    from tracekit.facts.units import count_of
    from tracekit.files import keep_inputs

    chosen = format_of(format_, output, command="baseline list")
    rows = []
    for one in baselines():
        if isinstance(one, UnreadableTraceError):
            say(f"tracekit: left out: {one}")
        else:
            keep_inputs([one.path])
            rows.append(_row(one.name, one.runs) | {"saved": date_of(one.saved_ns)})
    answer = (
        f"{count_of(len(rows), 'baseline')} in {folder()}."
        if rows
        else f"There is no baseline in {folder()}."
    )
    shown = ["name", "saved", "runs", "steps", "step_ns", "program", "device"]
    Listing("baselines", "Which baselines are there?", answer, _frame(rows), shown).emit(chosen, output)


def show(name: Name, format_: flags.TablesFormat = None, output: flags.Output = None) -> None:
    """Show the runs of a baseline."""
    from tracekit.cli.listing import Listing, format_of
    from tracekit.diff.baselines import stored
    from tracekit.diff.runs import date_of
    from tracekit.files import keep_inputs

    chosen = format_of(format_, output, command="baseline show")
    one = stored(name)
    keep_inputs([one.path])
    rows = [_row(run.name, [run]) | {"saved": date_of(one.saved_ns)} for run in one.runs]
    answer = f"Saved on {date_of(one.saved_ns)} in {one.path}."
    shown = ["name", "recorded", "ranks", "steps", "step_ns", "program", "device"]
    Listing("runs", f"Which runs are the baseline {name}?", answer, _frame(rows), shown).emit(chosen, output)


def remove(name: Name) -> None:
    """Remove a baseline."""
    from tracekit.cli.output import say
    from tracekit.diff.baselines import remove

    say(f"removed {remove(name)}")


def _row(name: str, runs: Sequence[Run]) -> dict[str, object]:
    """A baseline, or a run of one; its step time is that of a comparison: the mean of the medians of the runs."""
    from tracekit.diff.gate import step_times
    from tracekit.diff.noise import compare_times
    from tracekit.diff.runs import date_of

    facts = [one.facts for run in runs for one in run.digests]
    recorded = [at for run in runs if (at := run.recorded_ns) is not None]
    times = [step_times(ranks) for run in runs if (ranks := [one for one in run.digests if one.has_steps])]
    steps = compare_times(times, times).base
    return {
        "name": name,
        "recorded": date_of(max(recorded)) if recorded else None,
        "program": ", ".join(dict.fromkeys(one.workload or one.name for one in facts)),
        "device": ", ".join(dict.fromkeys(one.device for one in facts if one.device)) or None,
        "runs": len(runs),
        "ranks": max(len(run.digests) for run in runs),
        "steps": steps.steps,
        "step_ns": steps.median if steps.steps else None,
    }


def _frame(rows: Sequence[dict[str, object]]) -> pl.DataFrame:
    import polars as pl

    texts, numbers = ("name", "saved", "recorded", "program", "device"), ("runs", "ranks", "steps")
    schema = {**dict.fromkeys(texts, pl.String), **dict.fromkeys(numbers, pl.Int64)}
    return pl.DataFrame(rows, {**schema, "step_ns": pl.Float64})


for command, called in ((save, "save"), (list_, "list"), (show, "show"), (remove, "rm")):
    baseline.command(called, cls=PlainCommand)(command)
