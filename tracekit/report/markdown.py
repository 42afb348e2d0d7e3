"""The report as Markdown (GitHub's dialect), for an issue, a pull request or a chat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.findings import Finding
from tracekit.names import shorten_names
from tracekit.report.format import (
    RIGHT_ALIGNED,
    bound_name,
    costliest,
    first_rows,
    format_scalars,
    format_source,
    format_value,
    format_window,
    legend,
    listed_tables,
    missing,
    shown_columns,
)
from tracekit.report.formats import Page
from tracekit.report.model import Column, Cost, Report, Section, Table, TraceInfo, Verdict
from tracekit.report.repeats import with_repeats

__all__ = ["DEFAULT_ROWS", "escape", "head", "render", "render_section"]

DEFAULT_ROWS: Final = 10
_PAGE: Final = Page()
NAME_WIDTH: Final = 80

# Whatever means something to Markdown or HTML is escaped: a kernel's name must not become a link or a tag.
# Underscores within a word are plain text in GitHub's dialect.
_SPECIAL: Final = re.compile(r"([\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_LINK: Final = re.compile(r"(?i)\b(https?|ftp|mailto|www)([:.])")
_MENTION: Final = "@&#8203;"
"""An @ that notifies nobody."""


def render(report: Report, page: Page = _PAGE) -> str:
    """The report as Markdown text; tables have at most `page.top` rows (None: 10)."""
    blocks = [f"# tracekit report: {escape(report.trace.name)}", *_verdict(report.verdict)]
    window = f"*Window: {escape(format_window(report.window))}*"
    blocks.append(f"*{escape(format_source(report.trace))}*  \n{window}")
    for section in report.sections:
        blocks += _section(section, page.top or DEFAULT_ROWS)
    return _text([*blocks, *_health(report)])


def render_section(section: Section, page: Page = _PAGE) -> str:
    """One section as Markdown text; tables have at most `page.top` rows (None: 10)."""
    return _text(_section(section, page.top or DEFAULT_ROWS))


def _text(blocks: Iterable[str]) -> str:
    return "\n\n".join(blocks).rstrip() + "\n"


def head(trace: TraceInfo, _page: Page) -> str:
    """The line above one of several reports, which says of which trace it is."""
    return f"*{escape(format_source(trace))}*\n"


def escape(text: str) -> str:
    r"""Text that Markdown shows as it is.

    >>> escape("void f<int*>(a|b)")
    'void f&lt;int\\*&gt;(a\\|b)'
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _LINK.sub(r"\1&#8203;\2", _SPECIAL.sub(r"\\\1", text))
    return text.replace("@", _MENTION)


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield f"**{bound_name(verdict.bound)}.** {escape(verdict.headline)}"
    yield from _costs("largest costs", verdict.basis, verdict.costs)
    plain = "" if verdict.path_basis == verdict.basis else f" {verdict.path_basis}"
    yield from _costs(f"critical path{plain}", format_ns(verdict.path_ns), verdict.path)
    if verdict.advice:
        yield "**What to try first**"
        yield "\n".join(
            f"{number}. {escape(advice.title)}{f' ({advice.saves})' if advice.saves else ''}: {escape(advice.advice)}"
            for number, advice in enumerate(verdict.advice, 1)
        )
    for note in verdict.notes:
        yield f"> {escape(note)}"


def _costs(title: str, whole: str, costs: Iterable[Cost]) -> Iterator[str]:
    lines = [
        f"| {escape(cost.label)} | {format_ns(cost.ns)} | {format_share(cost.share)} |" for cost in costs
    ]
    if lines:
        yield "\n".join([f"| {title} | time | share of {whole} |", "|:--|--:|--:|", *lines])


def _stake(ns: int | None) -> str:
    return f" (up to {format_ns(ns)})" if ns else ""


def _section(section: Section, top: int) -> Iterator[str]:
    yield f"## {escape(section.question)}"
    if section.error is not None:
        yield f"This analysis failed: {escape(section.error)}"
        return
    yield (
        f"**{escape(section.tag.capitalize())}.** {escape(section.answer)}"
        if section.tag
        else escape(section.answer)
    )
    if section.points:
        yield "\n".join(f"- **{escape(label)}**: {escape(text)}" for label, text in section.points)
    lacking = missing(section)
    if lacking:
        yield f"*Not captured: {escape(lacking)}.*"
    if scalars := format_scalars(section):
        yield " · ".join(f"{escape(name)} {escape(value)}" for name, value in scalars)
    if section.findings:
        yield "\n".join(map(_finding, section.findings))
    listed = [one for table in listed_tables(section) for one in with_repeats(table)]
    for number, table in enumerate(listed):
        # Below a verdict the first table is enough until a reader wants more.
        yield from _folded(table, top) if section.tag and number else _table(table, top)
    if names := legend(costliest(table, top) for table in listed):
        yield escape(names)


def _finding(finding: Finding) -> str:
    stake = _stake(finding.ns_at_stake)
    text = f"- **{finding.severity}**: {escape(finding.title)}{stake}. {escape(finding.evidence)}"
    return f"{text} *Try:* {escape(finding.advice)}" if finding.advice else text


def _folded(table: Table, top: int) -> Iterator[str]:
    title, *rows = _table(table, top) if table.frame.height else [""]
    if rows:
        yield f"<details><summary>{title.replace('**', '')}</summary>"
        yield from rows
        yield "</details>"


def _table(table: Table, top: int) -> Iterator[str]:
    if not table.frame.height:
        return
    columns = shown_columns(table, table.short or None)
    frame = costliest(table, top) if table.tree is not None else first_rows(table, top)
    shown = min(top, frame.height)
    more = f" ({shown} of {format_count(table.total_rows)})" if table.total_rows > frame.height else ""
    yield f"**{escape(table.title)}**{more}"
    rows = [[escape(column.title) for column in columns]]
    rows += map(list, zip(*(_cells(frame[column.name], column) for column in columns), strict=True))
    head, *others = ("| " + " | ".join(cells) + " |" for cells in rows)
    rule = "|" + "|".join("--:" if column.unit in RIGHT_ALIGNED else ":--" for column in columns) + "|"
    yield "\n".join([head, rule, *others])


def _cells(values: pl.Series, column: Column) -> list[str]:
    texts = [format_value(value, column) for value in values]
    short = shorten_names(texts, NAME_WIDTH)
    return [escape(short[text]) for text in texts]


def _health(report: Report) -> Iterator[str]:
    if report.health:
        yield "## Health of the trace"
        yield "\n".join(
            f"- **{item.severity}** {escape(item.kind)} × {format_count(item.count)}: {escape(item.meaning)}"
            for item in report.health
        )
