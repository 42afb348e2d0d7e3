"""`tracekit report`: the whole report, in every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.analyses.registry import BUILT_IN
from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Reading, Selection, with_flags
from tracekit.cli.sources import Sources, expanded
from tracekit.report import formats
from tracekit.report.formats import Can

if TYPE_CHECKING:
    from tracekit.report.model import Report, Section
    from tracekit.trace import Trace

__all__ = ["report"]


@with_flags
def report(
    traces: flags.TraceFiles,
    selection: Selection,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="ANALYSIS",
            help="Report only this analysis; repeatable.",
            autocompletion=lambda: [one.name for one in BUILT_IN],
        ),
    ] = None,
    top: flags.Top = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Show the full report of every trace, even if there are more than 8."),
    ] = False,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
    ncu: flags.Ncu = None,
    *,
    reading: Reading,
) -> None:
    """Report what bounds a run, what costs most, and what to try."""
    chosen = formats.choose_format(Can.REPORT, format_, output, command="report", several=True)
    if only:
        from tracekit.analyses.registry import get_analysis

        for name in only:  # said before the traces are read
            get_analysis(name)
    paths = expanded(traces)
    page = out.page_for(chosen)
    sources = Sources(paths, selection, reading, ncu)
    as_text = figures is None and Can.FILES not in chosen.can
    question = sources.question("report", only, top, every, chosen, page) if as_text else None
    if question and (answer := question.answer()) is not None:
        out.emit(answer, output)
        return
    read, fits = sources.read()
    few = not every and Can.DATA not in chosen.can and Can.FILES not in chosen.can
    read, overview = _few(read, selection) if few else (read, None)
    from tracekit.report.build import build_report

    reports = [
        (build_report(one, window=selection.window.value, step=selection.step, only=only, top=top), one)
        for one in read
    ]
    if figures is not None:
        out.without_notes_of_matplotlib()
        from tracekit.report.figures import write as draw

        for one, folder in _folders(reports, figures):
            draw(one, folder, figure_format)
    if output is not None and Can.FILES in chosen.can:
        from tracekit.report.tables import write

        for one, folder in _folders(reports, output):
            write(one, folder, chosen.value)
        return
    text = formats.render_reports(chosen, _told_apart(reports), page, overview)
    if question and fits:  # a warning is to be seen every time
        question.keep(text)
    out.emit(text, output)


def _few(read: list[Trace], selection: Selection) -> tuple[list[Trace], Section | None]:
    """The traces to report in full, and an overview of all; no overview if there are few enough for a report each."""
    from tracekit.report import several

    if len(read) <= several.MOST_IN_FULL:
        return read, None
    ranks = {trace.meta.rank for trace in read}
    if None not in ranks and len(ranks) == len(read):
        other = "--rank N shows another report"
    elif read[0].meta.parts == len(read):
        other = "--process PID shows another report"
    else:
        other = "a single file as argument shows another report"
    table = several.overview_table(read, window=selection.window.value, step=selection.step)
    on_cpu = not any(trace.has_device for trace in read)
    overview = several.overview(table, f"{other}, and --all shows all reports", on_cpu=on_cpu)
    return [read[several.busiest(table)]], overview


def _told_apart(reports: Sequence[tuple[Report, Trace]]) -> list[tuple[Report, Trace]]:
    """The reports; those of several files with one name begin with the name of the folder that holds each."""
    from tracekit.names import clean

    files = {Path(trace.meta.path): trace.meta.name for _, trace in reports}
    names = list(files.values())
    apart = []
    for report, trace in reports:
        if names.count(trace.meta.name) > 1:
            folder = clean(Path(trace.meta.path).resolve().parent.name)
            report = replace(report, trace=replace(report.trace, path=f"{folder}/{report.trace.path}"))  # noqa: PLW2901
        apart.append((report, trace))
    return apart


def _folders(reports: Sequence[tuple[Report, Trace]], folder: Path) -> list[tuple[Report, Path]]:
    """Each report with its folder: `folder` for one report, else a folder below it for each trace.

    Every capture calls its trace `trace.json.gz`, so traces of one name take in the name of their folder, and those that
    still have the same name a number.
    """
    if len(reports) == 1:
        return [(reports[0][0], folder)]
    names = [trace.meta.name for _, trace in reports]
    paths = [Path(trace.meta.path) for _, trace in reports]
    longer = [
        f"{path.resolve().parent.name}-{name}" if names.count(name) > 1 else name
        for name, path in zip(names, paths, strict=True)
    ]
    own = [
        name if longer.count(name) == 1 else f"{name}-{longer[:at].count(name) + 1}"
        for at, name in enumerate(longer)
    ]
    return [(report, folder / name) for (report, _), name in zip(reports, own, strict=True)]
