"""`tracekit characterize`: what a sweep says about each model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.cli import options as flags
from tracekit.cli.listing import Listing, format_of, varied
from tracekit.errors import UsageError, nearest

if TYPE_CHECKING:
    import polars as pl

__all__ = ["characterize"]

_TITLES: Final = {
    "online_latency_ns": "latency at 1",
    "maximum_throughput_per_s": "most samples/s",
    "optimal_batch": "optimal batch",
    "out_of_memory_batch": "no memory at",
    "convolution_share": "convolution",
    "gpu_share": "GPU",
}


def characterize(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.")] = Path(
        "runs/sweep"
    ),
    sort: Annotated[
        str,
        typer.Option(
            metavar="COLUMN", help="Sort by this column: numbers from the largest, text from a to z."
        ),
    ] = "maximum_throughput_per_s",
    format_: flags.TablesFormat = None,
    output: flags.Output = None,
    max_events: flags.MaxEvents = flags.MAX_EVENTS,
    no_size_limit: flags.NoSizeLimit = False,
) -> None:
    """Compare the models of a sweep.

    The table shows the latency, throughput and optimal batch of each model, and what bounds it at that batch.
    """
    chosen = format_of(format_, output, command="characterize")
    from tracekit.report.characterize import FIGURES, SETTINGS
    from tracekit.report.characterize import characterize as characterized

    if sort not in (columns := {**SETTINGS, **FIGURES}):
        # Said before the traces are read.
        remedy = nearest(sort, columns, f"the columns are {', '.join(columns)}")
        raise UsageError(f"there is no column {sort!r}", remedy=remedy)
    limits = flags.Reading(max_events=max_events, no_size_limit=no_size_limit).limits
    rows = _sorted_by(characterized(folder, limits=limits), sort)
    listing = Listing(
        "models",
        "How fast is each model, and what bounds it?",
        _answer(rows),
        rows,
        [
            *("workload", "precision", *(name for name in varied(rows, SETTINGS) if name != "precision")),
            *(name for name in FIGURES if name not in ("parameters", "runs")),
        ],
        _TITLES,
    )
    listing.emit(chosen, output)


def _answer(rows: pl.DataFrame) -> str:
    count = f"{rows.height} series of runs"
    still = rows.filter(rows["open"].fill_null(value=False)).height
    if not still:
        return f"{count}. Convolution, GPU and bound are figures of the optimal batch."
    return (
        f"{count}. In {still} of them, throughput still rises at the largest batch, so the optimal batch is open and the "
        "table shows the largest batch."
    )


def _sorted_by(rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """The rows by this column, largest first; texts from a to z."""
    import polars as pl

    descending = rows.schema[column] != pl.String
    return rows.sort(column, descending=descending, nulls_last=True, maintain_order=True)
