"""`tracekit report`: the whole report, in every format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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


@with_flags
def report(
    traces: flags.TraceFiles,
    which: Which,
    only: flags.Only = None,
    top: flags.Top = None,
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
    question = sources.question("report", only, top, out.looks_of(chosen)) if as_text else None
    if question and (known := question.answer()) is not None:
        out.emit(known, output)
        return
    read, fits = sources.read()
    _check_one_page(len(read), chosen)
    from tracekit.report.build import build_report

    made = [
        (build_report(t, window=which.window.value, step=which.step, only=only, top=top), t) for t in read
    ]
    if figures is not None:
        _draw(made, figures, figure_format)
    if chosen in out.TABLE_FILES:
        _write_folders(made, chosen, output)
        return
    text = _text(made, chosen)
    if question and fits:  # a warning is to be seen every time
        question.keep(text)
    out.emit(text, output)


def _check_one_page(traces: int, chosen: Format) -> None:
    """Raises UsageError when several traces are to be one HTML page."""
    if traces > 1 and chosen is Format.html:
        raise UsageError(
            "one HTML file holds one trace", remedy="run report once a trace, or use --rank or --process"
        )


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


def _text(made: Sequence[tuple[Report, Trace]], chosen: Format) -> str:
    texts = [_render(result, trace, chosen) for result, trace in made]
    if chosen is Format.json and len(texts) > 1:
        return '{"schema_version": "1.0", "reports": [' + ",\n".join(texts) + "]}"
    return "\n".join(out.headed(texts, [result.trace for result, _ in made], chosen))


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
