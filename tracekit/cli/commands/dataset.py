"""`tracekit dataset`: captured runs as a table, to predict others from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Reading, with_flags

__all__ = ["dataset"]


@with_flags
def dataset(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of sweeps or captures, or traces of captures."),
    ],
    format_: flags.TablesFormat = None,
    output: flags.Output = None,
    *,
    reading: Reading,
) -> None:
    """Make a table of captured runs, to predict others from.

    A row for each run: model, workload, machine and step time. Its columns have names that tracekit predict fit knows.
    """
    from tracekit.cli.listing import Listing, format_of
    from tracekit.cli.sources import local, read_one
    from tracekit.facts.units import count_of
    from tracekit.predict.dataset import dataset

    chosen = format_of(format_, output, command="dataset")
    made = dataset([local(path) for path in runs], lambda path: read_one(path, None, reading))
    for line in made.left_out:
        out.say(f"tracekit: left out: {line}")
    answer = f"{count_of(made.table.height, 'run')}. Data formats have all {made.table.width} columns."
    shown = ["network", "batch", "precision", "device", "gpus", "host_threads", "flops", "step_time_ns"]
    Listing("runs", "Which runs are there to predict from?", answer, made.table, shown).emit(chosen, output)
