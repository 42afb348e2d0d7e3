"""`tracekit xsp`: the 15 analyses of XSP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.loading import attached, digests_of, limits_of, load, read_reports
from tracekit.cli.options import FigureKind, Format
from tracekit.errors import UsageError
from tracekit.ranges import range_filter

if TYPE_CHECKING:
    from tracekit.analyses.xsp._result import XspTable
    from tracekit.report.model import Section
    from tracekit.trace import Trace

__all__ = ["xsp"]

_FILES: Final = (Format.csv, Format.parquet)
_TITLES: Final = {
    "duration_ns": "duration",
    "self_ns": "own time",
    "gpu_ns": "on device",
    "non_gpu_ns": "not on device",
}
_ROWS: Final = 10
"""Rows of each table when several are shown to a reader."""


def xsp(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Folders of captures or sweeps, or trace files; several differ in the batch.",
        ),
    ],
    analysis: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A1…A15", help="Only this analysis, or overhead; repeatable.", rich_help_panel="Selection"
        ),
    ] = None,
    metrics: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE",
            help="A trace of the same steps with hardware counters (CUPTI); its times are not used.",
            rich_help_panel="Selection",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of several runs, the one that A2 to A14 are about; default: the optimal batch.",
            rich_help_panel="Selection",
        ),
    ] = None,
    rank: flags.Rank = None,
    process: flags.Process = None,
    step: flags.Step = None,
    nvtx_depth: flags.NvtxDepth = None,
    nvtx_include: flags.NvtxInclude = None,
    nvtx_exclude: flags.NvtxExclude = None,
    nvtx_domain: flags.NvtxDomain = None,
    top: flags.Top = None,
    format_: flags.FormatFlag = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = FigureKind.svg,
    ncu: flags.Ncu = None,
    max_events: flags.MaxEvents = flags.MAX_EVENTS,
    no_cache: flags.NoCache = False,
    no_size_limit: flags.NoSizeLimit = False,
) -> None:
    """XSP's analyses A1 to A15 of model, layers and kernels, each from the level at which it counts."""
    from tracekit.analyses.xsp.catalogue import CATALOGUE

    keys = _keys(analysis, CATALOGUE)
    folder_wanted = format_ in _FILES and len(keys) > 1
    chosen = Format(format_) if format_ in _FILES and folder_wanted else out.choose_format(format_, output)
    if chosen is Format.html:
        raise UsageError("xsp has no HTML", remedy="use --format table, json, csv, md or parquet")
    if chosen in _FILES and len(keys) > 1 and (output is None or output.suffix):
        raise UsageError(
            f"these are {len(keys)} {chosen.value} tables", remedy="give --analysis, or -o FOLDER"
        )
    limits = limits_of(no_size_limit=no_size_limit, max_events=max_events)
    ranges = range_filter(nvtx_depth, nvtx_include, nvtx_exclude, nvtx_domain)

    reports = read_reports(ncu)

    def read(path: Path) -> Trace:
        digest = digests_of([path], no_cache=no_cache)[0]
        trace = load(path, limits=limits, digest=digest, process=process, ranges=ranges)
        # The trace of another level may hold no kernel, which is no fault.
        return attached(trace, reports)[0] if trace.has_device or path in traces else trace

    from tracekit.xsp import find_runs, xsp_of

    runs = find_runs(traces, rank=rank)
    tables = xsp_of(runs, read, analyses=keys, counters=metrics, batch=batch, step=step)
    if figures is not None:
        from tracekit.report.xsp_figures import write_xsp

        write_xsp(tables, figures, figure_format.value)
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
    if chosen in _FILES:
        if len(tables) == 1:
            (table,) = tables.values()
            out.emit_frame(table.frame.head(top) if top else table.frame, chosen, output)
            return
        _write_folder(tables, chosen, output)
        return
    if chosen is Format.json:
        out.emit(_json(tables, top), output)
        return
    rows = top or (_ROWS if len(tables) > 1 else None)
    texts = [_page(_section(table), chosen, rows) for table in tables.values()]
    out.emit("\n".join(texts), output)


def _write_folder(tables: Mapping[str, XspTable], chosen: Format, output: Path | None) -> None:
    from tracekit.report._write import make_directory

    folder = make_directory(output or Path())
    for key, table in tables.items():
        if table.frame.height:
            out.emit_frame(table.frame, chosen, folder / f"{key}.{chosen.value}")


def _json(tables: Mapping[str, XspTable], top: int | None) -> str:
    """One object with a key per analysis; each row on a line of its own."""
    import msgspec

    from tracekit.analyses.xsp.catalogue import CATALOGUE

    parts = []
    for key, table in tables.items():
        about: dict[str, Any] = {
            "title": CATALOGUE[key].title,
            "question": CATALOGUE[key].question,
            "answer": table.answer,
            "not_captured": table.not_captured,
        }
        head = msgspec.json.encode(about).decode().removesuffix("}")
        frame = table.frame.head(top) if top else table.frame
        rows = ",\n   ".join(msgspec.json.encode(row).decode() for row in frame.iter_rows(named=True))
        parts.append(f'  "{key}": {head}, "rows": [\n   {rows}\n  ]}}')
    body = ",\n".join(parts)
    return f'{{"schema_version": "1.0", "xsp": {{\n{body}\n}}}}\n'


def _page(section: Section, chosen: Format, top: int | None) -> str:
    if chosen is Format.md:
        from tracekit.report import markdown

        return markdown.render_section(section, top=top)
    from tracekit.report import terminal

    return terminal.render_section(section, width=out.terminal_width(), color=out.use_color(), top=top)


def _section(table: XspTable) -> Section:
    from tracekit.analyses.xsp.catalogue import CATALOGUE
    from tracekit.report.columns import column_of
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
