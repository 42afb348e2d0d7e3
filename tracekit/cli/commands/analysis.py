"""The commands of single analyses: one section of the report, or what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli import output as out
from tracekit.cli.asked import Asked
from tracekit.cli.loading import expanded
from tracekit.cli.options import Format
from tracekit.cli.refine import Refine
from tracekit.cli.sources import Sources
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.report.model import Section
    from tracekit.trace import Trace

__all__ = ["run_analysis"]


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
    sources = Sources(expanded(asked.traces), asked.which, asked.reading, ncu)
    question = sources.question(name, asked.table, asked.top, asked.sort, refine, out.looks_of(chosen))
    if chosen not in out.TABLE_FILES and (known := question.answer()) is not None:
        out.emit(known, asked.output)
        return
    read, fits = sources.read()
    if chosen is Format.json:
        text = _json_of(name, asked, refine, read)
    else:
        sections = _sections(name, asked, refine, read)
        if chosen in out.TABLE_FILES:
            _write_table(sections, chosen, asked)
            return
        text = _pages(sections, read, chosen, asked.top)
    if fits:  # a warning is to be seen every time
        question.keep(text)
    out.emit(text, asked.output)


def _sections(name: str, asked: Asked, refine: Refine | None, read: Sequence[Trace]) -> list[Section]:
    from tracekit.analyses.scope import select
    from tracekit.report.build import build_section

    which = asked.which
    scopes = [select(trace, window=which.window.value, step=which.step) for trace in read]
    whole = [build_section(one, name, scope=scope) for one, scope in zip(read, scopes, strict=True)]
    return [_narrow(section, one, refine, asked) for section, one in zip(whole, read, strict=True)]


def _pages(sections: Sequence[Section], read: Sequence[Trace], chosen: Format, top: int | None) -> str:
    from tracekit.report.presentation import trace_info

    texts = [out.render_section(section, chosen, top) for section in sections]
    return "\n".join(out.headed(texts, [trace_info(trace) for trace in read], chosen))


def _json_of(name: str, asked: Asked, refine: Refine | None, read: Sequence[Trace]) -> str:
    """Reports with the one section, and with the verdict, which other analyses have a part in."""
    from tracekit.report.build import build_report
    from tracekit.report.json import render as json_

    texts = []
    for trace in read:
        made = build_report(trace, window=asked.which.window.value, step=asked.which.step, only=[name])
        section = _narrow(made.sections[0], trace, refine, asked)
        texts.append(json_.render(replace(made, sections=(section,)), top=asked.top))
    return "\n".join(texts)


def _write_table(sections: Sequence[Section], chosen: Format, asked: Asked) -> None:
    if len(sections) > 1:
        raise UsageError(
            f"one {chosen.value} file holds the table of one trace", remedy="use --rank or --process"
        )
    from tracekit.report.tree import costliest

    table = sections[0].tables[0]
    out.emit_frame(costliest(table, asked.top) if asked.top else table.frame, chosen, asked.output)


def _narrow(section: Section, trace: Trace, refine: Refine | None, asked: Asked) -> Section:
    """The section with only what is asked for, sorted as asked for."""
    section = section if refine is None else refine(section, trace.meta.format)
    tables, table, sort = section.tables, asked.table, asked.sort
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
