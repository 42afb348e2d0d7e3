"""`tracekit xsp`: the 15 analyses of XSP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.catalogue import as_json, as_pages, format_for
from tracekit.cli.options import NamedRanges, Reading, with_flags
from tracekit.cli.sources import attached, read_one, read_reports
from tracekit.errors import UsageError
from tracekit.report.formats import Can, Format

if TYPE_CHECKING:
    from tracekit.analyses.xsp.result import XspTable
    from tracekit.report.model import Section
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
        help="Folders of captures or sweeps, or trace files; several differ in the batch.",
    ),
]
_Analysis = Annotated[
    list[str] | None,
    typer.Option(metavar="A1…A15", help="Only this analysis, or overhead; repeatable."),
]
_Metrics = Annotated[
    Path | None,
    typer.Option(
        metavar="TRACE",
        help="A trace of the same steps with hardware counters (CUPTI); its times are not used.",
    ),
]
_Batch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of several runs, the one that A2 to A14 are about; default: the optimal batch.",
    ),
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
    """XSP's analyses A1 to A15 of model, layers and kernels, each from the level at which it counts."""
    from tracekit.analyses.xsp.catalogue import CATALOGUE

    keys = _keys(analysis, CATALOGUE)
    chosen = format_for("xsp", len(keys), format_, output, one="--analysis")
    layers = ranges.filter
    reports = read_reports(ncu)

    def read(path: Path) -> Trace:
        trace = read_one(path, process, reading, layers)
        # The trace of another level may hold no kernel, which is no fault.
        return attached(trace, reports)[0] if trace.has_device or path in traces else trace

    from tracekit.analyses.xsp.analysis import find_runs, xsp_of

    runs = find_runs(traces, rank=rank)
    tables = xsp_of(runs, read, analyses=keys, counters=metrics, batch=batch, step=step)
    if figures is not None:
        from tracekit.report.xsp_figures import write_xsp

        write_xsp(tables, figures, figure_format)
    _write(tables, chosen, output, top)


def _keys(asked: Sequence[str] | None, known: Mapping[str, object]) -> list[str]:
    """The analyses asked for by their keys, however they are cased. Raises UsageError for one that is not there."""
    if not asked:
        return list(known)
    by_name = {key.lower(): key for key in known}
    for name in asked:
        if name.lower() not in by_name:
            raise UsageError(f"there is no analysis {name!r}", remedy=f"choose of {', '.join(known)}")
    return list(dict.fromkeys(by_name[name.lower()] for name in asked))


def _write(tables: Mapping[str, XspTable], chosen: Format, output: Path | None, top: int | None) -> None:
    if Can.FILES in chosen.can:
        if len(tables) == 1:
            (table,) = tables.values()
            out.emit_frame(table.frame.head(top) if top else table.frame, chosen, output)
            return
        _write_folder(tables, chosen, output)
        return
    if chosen is Format.json:
        from tracekit.analyses.xsp.catalogue import CATALOGUE

        shown = {key: (CATALOGUE[key], table, table.frame) for key, table in tables.items()}
        out.emit(as_json("xsp", shown, top=top), output)
        return
    out.emit(as_pages([_section(table) for table in tables.values()], chosen, top=top), output)


def _write_folder(tables: Mapping[str, XspTable], chosen: Format, output: Path | None) -> None:
    from tracekit.files import make_directory

    folder = make_directory(output or Path())
    for key, table in tables.items():
        if table.frame.height:
            out.emit_frame(table.frame, chosen, folder / f"{key}.{chosen.value}")


def _section(table: XspTable) -> Section:
    from tracekit.analyses.result import column_of
    from tracekit.analyses.xsp.catalogue import CATALOGUE
    from tracekit.report.model import Section, Table
    from tracekit.report.text import clean, clean_frame

    entry = CATALOGUE[table.key]
    name = entry.key if entry.key == "overhead" else f"{entry.key}: {entry.title}"
    frame = clean_frame(table.frame)
    made = [column_of(column, kind) for column, kind in frame.schema.items()]
    columns = tuple(replace(column, title=_TITLES.get(column.name, column.title)) for column in made)
    # A column of which nothing is known takes room and tells nothing; the note below the table names it.
    shown = tuple(column for column in entry.shown if frame[column].count())
    shape = Table(entry.key, entry.title, frame, columns, frame.height, short=shown)
    tables = (shape,) if frame.height else ()
    return Section(name, f"{name} · {entry.question}", clean(table.answer), table.not_captured, tables=tables)
