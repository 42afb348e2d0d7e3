"""`tracekit xsp`: the 15 analyses of XSP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.catalogue import format_for, keys_of, section_of, write_tables
from tracekit.cli.options import NamedRanges, Reading, with_flags
from tracekit.cli.sources import attached, local, read_one, read_reports

if TYPE_CHECKING:
    import polars as pl

    from tracekit.analyses.stated import StatedTable
    from tracekit.analyses.xsp.catalogue import Analysis
    from tracekit.report.model import Column, Section
    from tracekit.trace import Trace

__all__ = ["xsp"]

_TITLES: Final = {
    "duration_ns": "duration",
    "self_ns": "own time",
    "gpu_ns": "on device",
    "non_gpu_ns": "not on device",
}

_Traces = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        help="Folders of captures or sweeps, or trace files. Several runs may differ in their batch only.",
    ),
]
_Analysis = Annotated[
    list[str] | None,
    typer.Option(
        metavar="A1…A15",
        help="Show only this analysis, or overhead; repeatable.",
        autocompletion=lambda: [*(f"A{number}" for number in range(1, 16)), "overhead"],
    ),
]
_Metrics = Annotated[
    Path | None,
    typer.Option(
        metavar="TRACE",
        help="Add the hardware counters (CUPTI) from this trace of the same steps; its times are not used.",
    ),
]
_Batch = Annotated[
    int | None,
    flags.flag("Show the run with this batch in A2 to A14. The default is the optimal batch.", min=1),
]


@with_flags
def xsp(
    traces: _Traces,
    analysis: _Analysis = None,
    metrics: _Metrics = None,
    batch: _Batch = None,
    rank: flags.Rank = None,
    process: flags.Process = None,
    step: flags.Step = None,
    *,
    ranges: NamedRanges,
    top: flags.Top = None,
    format_: flags.TablesFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
    ncu: flags.Ncu = None,
    reading: Reading,
) -> None:
    """Show XSP's analyses of a model, its layers and kernels."""
    from tracekit.analyses.xsp.analysis import find_runs, xsp_of
    from tracekit.analyses.xsp.catalogue import CATALOGUE

    keys = keys_of(analysis or ["all"], list(CATALOGUE), "analysis", {"all": list(CATALOGUE)})
    chosen = format_for("xsp", len(keys), format_, output, one="--analysis")
    layers = ranges.filter
    reports = read_reports(ncu)

    def read(path: Path) -> Trace:
        trace = read_one(path, process, reading, layers)
        # The trace of another level may hold no kernel, which is no fault.
        return attached(trace, reports)[0] if trace.has_device or path in traces else trace

    traces = [local(path) for path in traces]
    runs = find_runs(traces, rank=rank)
    counters = None if metrics is None else local(metrics)
    tables = xsp_of(runs, read, analyses=keys, counters=counters, batch=batch, step=step)
    if figures is not None:
        out.without_notes_of_matplotlib()
        from tracekit.report.xsp_figures import write_xsp

        write_xsp(tables, figures, figure_format)
    shown = [(CATALOGUE[key], table) for key, table in tables.items()]
    write_tables("xsp", shown, _section, chosen, output, top=top)


def _section(analysis: Analysis, table: StatedTable) -> Section:
    heading = analysis.key if analysis.key == "overhead" else f"{analysis.key}: {analysis.title}"
    # A column of which nothing is known takes room and tells nothing; the note below the table names it.
    short = [name for name in analysis.shown or analysis.columns if table.frame[name].count()]
    return section_of(heading, analysis, table, _column, short=short)


def _column(name: str, kind: pl.DataType) -> Column:
    from tracekit.analyses.result import column_of

    column = column_of(name, kind)
    return replace(column, title=_TITLES.get(name, column.title))
