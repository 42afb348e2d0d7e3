"""`tracekit dataset`: captures as a table of runs, as `tracekit predict fit` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import output as out
from tracekit.cli.options import Reading, format_option, with_flags
from tracekit.cli.sources import local, read_one
from tracekit.report import formats
from tracekit.report.formats import Can, Format

__all__ = ["dataset"]


@with_flags
def dataset(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of sweeps or captures, or traces of captures."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the table to this file, .parquet or .csv."
        ),
    ],
    format_: Annotated[
        Format | None, format_option(Can.FRAMES, "The format. The default is that of the file's suffix.")
    ] = None,
    *,
    reading: Reading,
) -> None:
    """Make a table of captured runs.

    A row for each run: its model, its workload, the machine, and the times that were measured. What was not captured is empty.
    tracekit predict fit reads the table as it is.
    """
    chosen = formats.choose_format(Can.FRAMES, format_, output, command="dataset")
    from tracekit.facts.units import count_of
    from tracekit.predict.dataset import dataset as made_of

    made = made_of([local(path) for path in runs], lambda path: read_one(path, None, reading))
    for line in made.left_out:
        out.say(f"tracekit: left out: {line}")
    out.emit_frame(made.table, chosen, output)
    out.say(f"{output}: {count_of(made.table.height, 'run')}")
