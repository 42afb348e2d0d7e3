"""`tracekit report`, `tracekit export`, and the commands of single analyses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.answers import Question
from tracekit.cli.asked import Asked
from tracekit.cli.loading import (
    attached,
    digests_of,
    expanded,
    limits_of,
    load,
    load_all,
    manifest_digests,
    read_reports,
)
from tracekit.cli.options import ExportKind, FigureKind, Format, WindowKind
from tracekit.cli.refine import Refine
from tracekit.errors import UsageError
from tracekit.ranges import range_filter

if TYPE_CHECKING:
    from tracekit.report.model import Report, Section, TraceInfo
    from tracekit.trace import Trace

__all__ = ["export", "report", "run_analysis"]

_FOLDERS: Final = (Format.csv, Format.parquet)
"""The formats in which a report is a folder of tables."""

_NAMED: Final = 8
"""Processes that an error names."""


def report(
    traces: flags.TraceFiles,
    rank: flags.Rank = None,
    process: flags.Process = None,
    step: flags.Step = None,
    window: flags.WindowFlag = WindowKind.steps,
    comm_pattern: flags.CommPatterns = None,
    nvtx_depth: flags.NvtxDepth = None,
    nvtx_include: flags.NvtxInclude = None,
    nvtx_exclude: flags.NvtxExclude = None,
    nvtx_domain: flags.NvtxDomain = None,
    only: flags.Only = None,
    top: flags.Top = None,
    format_: flags.FormatFlag = None,
    output: flags.Output = None,
    every: flags.Every = False,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = FigureKind.svg,
    ncu: flags.Ncu = None,
    max_events: flags.MaxEvents = flags.MAX_EVENTS,
    no_cache: flags.NoCache = False,
    no_size_limit: flags.NoSizeLimit = False,
) -> None:
    """What bounds this run, what costs most, and what to try: verdict first."""
    chosen = out.choose_format(format_, output)
    traces = expanded(traces)
    if rank is None and process is None:  # whatever the files hold, it is one trace each at least
        _check_one_page(len(traces), chosen)
    limits = limits_of(no_size_limit=no_size_limit, max_events=max_events)
    digests = digests_of(traces, no_cache=no_cache)
    names = [(path.name, about) for path, about in zip(traces, manifest_digests(traces), strict=True)]
    ranges = range_filter(nvtx_depth, nvtx_include, nvtx_exclude, nvtx_domain)
    asked = (
        names,
        rank,
        process,
        step,
        window,
        comm_pattern,
        ranges,
        only,
        top,
        every,
        limits,
        _looks_of(chosen),
    )
    metrics, keep = _metrics_of(ncu, no_cache=no_cache)
    question = (
        None
        if figures or chosen in _FOLDERS
        else Question(digests if keep else [], "report", *asked, metrics)
    )
    if question and (known := question.answer()) is not None:
        out.emit(known, output)
        return
    reports = read_reports(ncu)
    loaded = load_all(
        traces,
        digests=digests,
        rank=rank,
        process=process,
        limits=limits,
        comm_patterns=comm_pattern,
        ranges=ranges,
    )
    _check_one_page(len(loaded), chosen, loaded)
    fitted = [attached(trace, reports) for trace in loaded]
    read = [trace for trace, _ in fitted]
    from tracekit.report.build import build_report

    at_a_glance = ""
    if chosen in (Format.table, Format.md) and not every:
        read, at_a_glance = _few(read, window.value, step, chosen)
    made = [(build_report(t, window=window.value, step=step, only=only, top=top), t) for t in read]
    for result, trace in made:
        if figures is not None:
            from tracekit.report import figures as drawing

            drawing.write(
                result, figures if len(made) == 1 else figures / trace.meta.name, figure_format.value
            )
    if chosen in _FOLDERS:
        _write_folders(made, chosen, output)
        return
    rendered = [_render(result, trace, chosen) for result, trace in made]
    sources = [result.trace for result, _ in made]
    text = at_a_glance + _joined(_headed(rendered, sources, chosen, always=bool(at_a_glance)), chosen)
    if question and all(fits for _, fits in fitted):  # a warning is to be seen every time
        question.keep(text)
    out.emit(text, output)


def _metrics_of(ncu: Sequence[Path] | None, *, no_cache: bool) -> tuple[list[str | None], bool]:
    """The digests of the tables of Nsight Compute, and whether an answer that depends on them can be kept."""
    digests = digests_of(ncu or [], no_cache=no_cache)
    return digests, None not in digests


def _check_one_page(traces: int, chosen: Format, known: Sequence[Trace] = ()) -> None:
    """Raises UsageError when several traces are to be one HTML page; the processes of one file are named."""
    if traces <= 1 or chosen is not Format.html:
        return
    remedy = "run report once a trace, or use --rank or --process"
    if known and known[0].meta.parts == len(known):
        shown = ", ".join(str(trace.meta.process_ids[0]) for trace in known[:_NAMED])
        more = f", … ({len(known)} in all, `tracekit info` lists them)" if len(known) > _NAMED else ""
        remedy = f"name a process: --process {shown}{more}"
    path = known[0].meta.path if known else None
    raise UsageError("one HTML file holds one trace", path=path, remedy=remedy)


def _few(
    read: list[Trace], window: Literal["steps", "trace"], step: str | None, chosen: Format
) -> tuple[list[Trace], str]:
    """The traces to report in full, and the text of what all did; no text where they are few enough for a report each."""
    from tracekit.report import several

    if len(read) <= several.MOST_IN_FULL:
        return read, ""
    ranks = {trace.meta.rank for trace in read}
    if None not in ranks and len(ranks) == len(read):
        other = "--rank N gives that of another"
    elif read[0].meta.parts == len(read):
        other = "--process PID gives that of another"
    else:
        other = "another file alone gives its own"
    table = several.overview_table(read, window=window, step=step)
    section = several.overview(
        table, f"{other}, --all those of all", on_cpu=not any(t.has_device for t in read)
    )
    return [read[several.busiest(table)]], _render_section(section, chosen, table.total_rows) + "\n"


def _looks_of(chosen: Format) -> tuple[object, ...]:
    """The format, and what else the same report's text depends on."""
    return (chosen, out.terminal_width(), out.use_color()) if chosen is Format.table else (chosen,)


def _write_folders(made: Sequence[tuple[Report, Trace]], chosen: Format, output: Path | None) -> None:
    from tracekit.report import tables

    if output is None:
        raise UsageError(f"a report is many {chosen.value} tables", remedy="give -o FOLDER")
    kind: Literal["csv", "parquet"] = "csv" if chosen is Format.csv else "parquet"
    for result, trace in made:
        tables.write(result, output if len(made) == 1 else output / trace.meta.name, kind)


def _joined(texts: Sequence[str], chosen: Format) -> str:
    if chosen is Format.json and len(texts) > 1:
        return '{"schema_version": "1.0", "reports": [' + ",\n".join(texts) + "]}"
    return "\n".join(texts)


def _headed(
    texts: Sequence[str], traces: Sequence[TraceInfo], chosen: Format, *, always: bool = False
) -> Sequence[str]:
    """Of several reports each with a line above it that says which trace, and which rank, it is of."""
    if (len(texts) == 1 and not always) or chosen not in (Format.table, Format.md):
        return texts
    from tracekit.report.format import format_source
    from tracekit.report.markdown import escape

    sources = [format_source(trace) for trace in traces]
    if chosen is Format.md:
        return [f"*{escape(source)}*\n\n{text}" for source, text in zip(sources, texts, strict=True)]
    from rich.cells import cell_len, set_cell_size

    width = out.terminal_width()
    heads = [f"══ {source} " for source in sources]
    lines = [set_cell_size(head + "═" * (width - cell_len(head)), width) for head in heads]
    return [f"{line}\n{text}" for line, text in zip(lines, texts, strict=True)]


def _render(result: Report, trace: Trace, chosen: Format) -> str:
    if chosen is Format.json:
        from tracekit.report import json_

        return json_.render(result)
    if chosen is Format.md:
        from tracekit.report import markdown

        return markdown.render(result)
    if chosen is Format.html:
        from tracekit.report import html

        return html.render(result, trace)
    from tracekit.report import terminal

    return terminal.render(result, width=out.terminal_width(), color=out.use_color())


def run_analysis(
    name: str, asked: Asked, refine: Refine | None = None, *, ncu: Sequence[Path] | None = None
) -> None:
    """Run one analysis on each trace and write its result, or what `refine` keeps of it.

    `ncu` are tables of Nsight Compute, whose metrics are joined to the kernels.

    Raises UsageError for an unknown table, column or format.
    """
    chosen = out.choose_format(asked.format_, asked.output)
    if chosen is Format.html:
        raise UsageError(
            "a single analysis has no HTML", remedy=f"use tracekit report --only {name} -o FILE.html"
        )
    traces = expanded(asked.traces)
    limits = limits_of(no_size_limit=asked.no_size_limit, max_events=asked.max_events)
    digests = digests_of(traces, no_cache=asked.no_cache)
    names = [(path.name, about) for path, about in zip(traces, manifest_digests(traces), strict=True)]
    ranges = asked.ranges
    selection = (
        *(asked.rank, asked.process, asked.step, asked.window, asked.comm_pattern, ranges),
        *(asked.table, asked.top, asked.sort),
    )
    metrics, keep = _metrics_of(ncu, no_cache=asked.no_cache)
    looks = (limits, refine, _looks_of(chosen), metrics)
    question = Question(digests if keep else [], name, names, *selection, *looks)
    if chosen not in _FOLDERS and (known := question.answer()) is not None:
        out.emit(known, asked.output)
        return
    reports = read_reports(ncu)
    loaded = load_all(
        traces,
        digests=digests,
        rank=asked.rank,
        process=asked.process,
        limits=limits,
        comm_patterns=asked.comm_pattern,
        ranges=ranges,
    )
    fitted = [attached(trace, reports) for trace in loaded]
    read = [trace for trace, _ in fitted]
    if chosen is Format.json:
        text = _json_of(name, asked, refine, read)
    else:
        from tracekit.analyses.scope import select
        from tracekit.report.build import build_section, trace_info

        scopes = [select(trace, window=asked.window.value, step=asked.step) for trace in read]
        whole = [build_section(one, name, scope=scope) for one, scope in zip(read, scopes, strict=True)]
        sections = [
            _narrow(section, one, refine, asked.table, asked.sort)
            for section, one in zip(whole, read, strict=True)
        ]
        if chosen in _FOLDERS:
            _write_table(sections, chosen, asked)
            return
        texts = [_render_section(section, chosen, asked.top) for section in sections]
        text = "\n".join(_headed(texts, [trace_info(trace) for trace in read], chosen))
    if all(fits for _, fits in fitted):  # a warning is to be seen every time
        question.keep(text)
    out.emit(text, asked.output)


def _json_of(name: str, asked: Asked, refine: Refine | None, read: Sequence[Trace]) -> str:
    """Reports with the one section, and with the verdict, which other analyses have a part in."""
    from dataclasses import replace

    from tracekit.report import json_
    from tracekit.report.build import build_report

    texts = []
    for trace in read:
        made = build_report(trace, window=asked.window.value, step=asked.step, only=[name])
        section = _narrow(made.sections[0], trace, refine, asked.table, asked.sort)
        texts.append(json_.render(replace(made, sections=(section,)), top=asked.top))
    return "\n".join(texts)


def _write_table(sections: Sequence[Section], chosen: Format, asked: Asked) -> None:
    if len(sections) > 1:
        raise UsageError(
            f"one {chosen.value} file holds the table of one trace", remedy="use --rank or --process"
        )
    from tracekit.report._tree import costliest

    table = sections[0].tables[0]
    out.emit_frame(costliest(table, asked.top) if asked.top else table.frame, chosen, asked.output)


def _narrow(
    section: Section, trace: Trace, refine: Refine | None, table: str | None, sort: str | None
) -> Section:
    """The section with only what is asked for, sorted as asked for."""
    from dataclasses import replace

    section = section if refine is None else refine(section, trace.meta.format)
    tables = section.tables
    if table is not None:
        tables = tuple(t for t in tables if t.name == table)
        if not tables:
            known = ", ".join(t.name for t in section.tables) or "none"
            raise UsageError(f"{section.name} has no table {table!r}", remedy=f"its tables are {known}")
    if sort is not None:
        if not any(sort in t.frame.columns for t in tables):
            known = ", ".join(dict.fromkeys(c for t in tables for c in t.frame.columns))
            raise UsageError(f"{section.name} has no column {sort!r}", remedy=f"its columns are {known}")
        from tracekit.report.terminal import sort_table

        tables = tuple(sort_table(t, sort) if sort in t.frame.columns else t for t in tables)
    return replace(section, tables=tables)


def _render_section(section: Section, chosen: Format, top: int | None) -> str:
    if chosen is Format.md:
        from tracekit.report import markdown

        return markdown.render_section(section, top=top)
    from tracekit.report import terminal

    return terminal.render_section(section, width=out.terminal_width(), color=out.use_color(), top=top)


def export(
    trace: flags.TraceFile,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="PATH", help="The folder, or with --to chrome the file, to write."
        ),
    ],
    to: flags.ExportTo = ExportKind.frames,
    nvtx_depth: flags.NvtxDepth = None,
    nvtx_include: flags.NvtxInclude = None,
    nvtx_exclude: flags.NvtxExclude = None,
    nvtx_domain: flags.NvtxDomain = None,
    process: flags.Process = None,
    format_: flags.FormatFlag = None,
    no_cache: flags.NoCache = False,
    no_size_limit: flags.NoSizeLimit = False,
) -> None:
    """Write the trace's own frames as Parquet or CSV files, or the trace with tracks of layers and idle time."""
    chosen = format_ or Format.parquet
    if to is ExportKind.chrome and format_ is not None:
        raise UsageError("a Chrome trace has no other format", remedy="leave --format out")
    ranges = range_filter(nvtx_depth, nvtx_include, nvtx_exclude, nvtx_domain)
    if ranges is not None and to is ExportKind.frames:
        raise UsageError("the trace's own frames know no layers", remedy="use --nvtx-… with --to chrome")
    if chosen not in (Format.parquet, Format.csv):
        raise UsageError(f"export writes parquet or csv, not {chosen.value}")
    digest = digests_of([trace], no_cache=no_cache)[0]
    # A copy of the trace is one of all of it.
    limits = limits_of(no_size_limit=no_size_limit, max_events=0)
    read = load(trace, digest=digest, limits=limits, process=process, ranges=ranges)
    if to is ExportKind.chrome:
        from tracekit.report import chrome

        added = chrome.write(read, output, limits=limits)
        typer.echo(f"{output}: " + ", ".join(f"{count:,} {what}" for what, count in added.items()) + " added")
        return
    from tracekit.report.tables import write_trace

    for name in write_trace(read, output, chosen.value):
        typer.echo(name)
