"""`tracekit report`: the whole report, in every format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.asked import Reading, Which, with_flags
from tracekit.cli.loading import expanded
from tracekit.cli.options import FigureKind, Format
from tracekit.cli.sources import Sources
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.report.model import Report
    from tracekit.trace import Trace

__all__ = ["report"]

_NAMED: Final = 8
"""Processes that an error names."""


@with_flags
def report(
    traces: flags.TraceFiles,
    which: Which,
    only: flags.Only = None,
    top: flags.Top = None,
    every: flags.Every = False,
    format_: flags.FormatFlag = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = FigureKind.svg,
    ncu: flags.Ncu = None,
    *,
    reading: Reading,
) -> None:
    """What bounds this run, what costs most, and what to try: verdict first."""
    chosen = out.choose_format(format_, output)
    paths = expanded(traces)
    if which.rank is None and which.process is None:  # whatever the files hold, it is one trace each at least
        _check_one_page(len(paths), chosen)
    sources = Sources(paths, which, reading, ncu)
    as_text = figures is None and chosen not in out.TABLE_FILES
    question = sources.question("report", only, top, every, out.looks_of(chosen)) if as_text else None
    if question and (known := question.answer()) is not None:
        out.emit(known, output)
        return
    read, fits = sources.read()
    _check_one_page(len(read), chosen, read)
    at_a_glance = ""
    if chosen in (Format.table, Format.md) and not every:
        read, at_a_glance = _few(read, which, chosen)
    from tracekit.report.build import build_report

    made = [
        (build_report(t, window=which.window.value, step=which.step, only=only, top=top), t) for t in read
    ]
    if figures is not None:
        _draw(made, figures, figure_format)
    if chosen in out.TABLE_FILES:
        _write_folders(made, chosen, output)
        return
    text = _text(made, chosen, at_a_glance)
    if question and fits:  # a warning is to be seen every time
        question.keep(text)
    out.emit(text, output)


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


def _few(read: list[Trace], which: Which, chosen: Format) -> tuple[list[Trace], str]:
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
    table = several.overview_table(read, window=which.window.value, step=which.step)
    section = several.overview(
        table, f"{other}, --all those of all", on_cpu=not any(t.has_device for t in read)
    )
    return [read[several.busiest(table)]], out.render_section(section, chosen, table.total_rows) + "\n"


def _draw(made: Sequence[tuple[Report, Trace]], folder: Path, kind: FigureKind) -> None:
    from tracekit.report import figures

    for result, trace in made:
        figures.write(result, folder if len(made) == 1 else folder / trace.meta.name, kind.value)


def _write_folders(made: Sequence[tuple[Report, Trace]], chosen: Format, output: Path | None) -> None:
    from tracekit.report import tables

    if output is None:
        raise UsageError(f"a report is many {chosen.value} tables", remedy="give -o FOLDER")
    kind: Literal["csv", "parquet"] = "csv" if chosen is Format.csv else "parquet"
    for result, trace in made:
        tables.write(result, output if len(made) == 1 else output / trace.meta.name, kind)


def _text(made: Sequence[tuple[Report, Trace]], chosen: Format, at_a_glance: str) -> str:
    texts = [_render(result, trace, chosen) for result, trace in made]
    if chosen is Format.json and len(texts) > 1:
        return '{"schema_version": "1.0", "reports": [' + ",\n".join(texts) + "]}"
    sources = [result.trace for result, _ in made]
    return at_a_glance + "\n".join(out.headed(texts, sources, chosen, always=bool(at_a_glance)))


def _render(result: Report, trace: Trace, chosen: Format) -> str:
    if chosen is Format.json:
        from tracekit.report.json import render as json_

        return json_.render(result)
    if chosen is Format.md:
        from tracekit.report import markdown

        return markdown.render(result)
    if chosen is Format.html:
        from tracekit.report import html

        return html.render(result, trace)
    from tracekit.report import terminal

    return terminal.render(result, width=out.terminal_width(), color=out.use_color())
