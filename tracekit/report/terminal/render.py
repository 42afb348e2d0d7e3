"""The report for a terminal: the verdict in the first lines, then a section for each question, on two screens."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.cells import cell_len

from tracekit.facts.units import count_of, format_count, format_ns, format_share
from tracekit.report.format import (
    arranged,
    bound_name,
    format_source,
    format_window,
    is_silent,
    listed_tables,
    sorted_tree,
)
from tracekit.report.formats import Page
from tracekit.report.model import Cost, Report, Section, Table, TraceInfo, Verdict
from tracekit.report.repeats import with_repeats
from tracekit.report.terminal.lines import Line, Lines, cut, draw, labelled, tagged, wrapped
from tracekit.report.terminal.section import bars, finding_lines, heat, opening, scalars, tables

__all__ = ["head", "render", "render_section", "section_text", "sort_table", "summary"]

LEAST_WIDTH: Final = 40
WIDEST: Final = 160
FINDINGS: Final = 3
"""Findings of one section in the report; the sections' own commands show all."""

OVERVIEW: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "workload": (("phases", 4),),
    "breakdown": (("devices", 8),),
    "steps": (("table", 5),),
    "idle": (("by_cause", 4),),
    "layers": (("tree", 8),),
    "kernels": (("by_category", 4), ("by_name", 5), ("measured", 5)),
    "roofline": (("operators", 3),),
    "launches": (("calls", 3),),
    "overlap": (("groups", 3),),
    "collectives": (("by_size", 3), ("pairs", 3)),
    "memory": (("copies", 3), ("peaks", 3)),
    "counters": (("series", 5),),
}
"""The tables of each section in the report, and how many of their rows; the sections' own commands show all."""

ELSEWHERE: Final = frozenset({"ops"})
"""Sections that the report leaves to their own commands: operators stand among the kernels already."""

MOST_LINES: Final = 110
"""Two screens; a longer report shows fewer rows of its tables."""

LEAST_ROWS: Final = 2
LEAST_LAYERS: Final = 6
"""Fewer rows of a tree are hardly more than its trunk, on which no layer does work of its own."""

ONE_TABLE: Final = 3
"""From this round of shortening on, a section shows its first table only."""

SHORTEST: Final = 6

DEFAULT_ROWS: Final = 20
GLOSSARY: Final = "What the words mean: docs/definitions.md, or the glossary in the HTML report."


def render(report: Report, page: Page) -> str:
    """The whole report; without a `top` tables have few rows, so that it fits two screens."""
    width = max(page.width, LEAST_WIDTH)
    said = {advice.finding for advice in report.verdict.advice[:1]}
    silent = [section for section in report.sections if is_silent(section)]
    shown = [one for one in report.sections if one not in silent and one.name not in ELSEWHERE]
    above = [*_head(report, width)]
    below = [
        *_not_captured(silent, width),
        *_health(report, width),
        (),
        *wrapped(GLOSSARY, width, "dim"),
    ]
    overviews = {section.name: _overview(section) for section in shown}
    made: dict[tuple[str, tuple[int, ...]], list[Line]] = {}
    for shorter in range(SHORTEST + 1):  # by so many rows
        lines = list(above)
        for section in shown:
            listed = overviews[section.name]
            limits = _limits(section, listed, page.top, shorter)
            key = section.name, tuple(limits.values())
            if key not in made:
                made[key] = [*_section(section, listed, width, limits, said)]
            lines += made[key]
        if page.top is not None or len(lines) + len(below) <= MOST_LINES:
            break
    return draw([*lines, *below], width, page.color)


def head(trace: TraceInfo, page: Page) -> str:
    """The line above one of several reports, which says of which trace it is."""
    text = f"══ {format_source(trace)} "
    return cut(text + "═" * (page.width - cell_len(text)), page.width)


def render_section(section: Section, page: Page) -> str:
    """One section with all its tables and figures, at most `page.top` rows each (None: 20).

    A time series is listed only where it is the one table.
    """
    width = max(page.width, LEAST_WIDTH)
    lines = [*opening(section, width), *scalars(section, width)]
    for finding in section.findings:
        lines += finding_lines(finding, width, advice=True, full=True)
    listed = [one for table in listed_tables(section) for one in with_repeats(table)]
    lines += tables(listed, width, [page.top or DEFAULT_ROWS] * len(listed), titled=True)
    for figure in section.figures:
        if figure.kind == "heat":
            lines += heat(figure, width)
    return draw(lines[1:], width, page.color)


def summary(report: Report) -> str:
    """The verdict, the trace and how to see more, as wide as the terminal: what `print(report)` shows."""
    names = [section.name for section in report.sections]
    others = f", or of {', '.join(names[1:])}" if names[1:] else ""
    sections = f'print(report.section("{names[0]}")){others}; ' if names else ""
    more = f"{sections}report.plot() shows the figures in a notebook"
    width = max(_page().width, LEAST_WIDTH)
    return draw([*_head(report, width), *labelled("more", more, width)], width, color=False).rstrip()


def section_text(section: Section) -> str:
    """The section as wide as the terminal: what `print(section)` shows."""
    return render_section(section, _page()).rstrip()


def _page() -> Page:
    return Page(min(shutil.get_terminal_size().columns, WIDEST))


def sort_table(table: Table, column: str | None) -> Table:
    """The table sorted by a column, largest first (texts from a to z); as it is when it has no such column."""
    found = table.column(column) if column else None
    if found is None:
        return table
    if table.tree is not None:
        return sorted_tree(table, found)
    frame = table.frame.sort(
        found.name, descending=found.unit != "text", nulls_last=True, maintain_order=True
    )
    short = table.short
    if short and found.name not in short:
        short = (short[0], found.name, *short[1:])  # a narrow page drops columns from the right
    elif short:
        rest = (name for name in short[1:] if name != found.name)
        short = tuple(dict.fromkeys((short[0], found.name, *rest)))
    hidden = tuple(name for name in table.hidden if name != found.name)
    return replace(table, frame=frame, short=short, hidden=hidden)


# -- the head --------------------------------------------------------------------------------------


_WORTH: Final = 0.01
"""A smaller share of the critical path is not worth a word here."""


def _head(report: Report, width: int) -> Lines:
    yield from _verdict(report.verdict, width)
    yield from labelled("trace", format_source(report.trace), width, "dim")
    yield from labelled("window", format_window(report.window), width, "dim")


def _verdict(verdict: Verdict, width: int) -> Lines:
    yield from tagged(bound_name(verdict.bound), verdict.headline, width)
    yield from _costs("costs", format_ns(verdict.basis_ns), verdict.costs, width)
    devices = verdict.layers_ns // max(verdict.basis_ns, 1)
    whole = f"{devices} × " if devices > 1 else ""
    yield from _costs("layers", f"{whole}{format_ns(verdict.basis_ns)}", verdict.layers, width)
    for index, advice in enumerate(verdict.advice):
        stake = f" [{advice.saves}]" if advice.saves else ""
        # The rest of the other advice stands in the sections.
        words = _first_sentence(advice.advice) if index else advice.advice
        yield from labelled("also" if index else "try", f"{advice.title}{stake}: {words}", width, most=8)
    plain = "" if verdict.path_basis == verdict.basis else f" {verdict.path_basis}"
    worth = [cost for cost in verdict.path if (cost.share or 0) >= _WORTH]
    yield from _costs("path", f"{format_ns(verdict.path_ns)}{plain}", worth, width)
    for note in verdict.notes:
        yield from labelled("note", note, width)


_TELLING: Final = 30
"""The length from which on a sentence of advice says what to change."""


def _costs(label: str, whole: str, costs: Sequence[Cost], width: int) -> Lines:
    each = [f"{cost.label} {format_ns(cost.ns)} ({format_share(cost.share)})" for cost in costs]
    if each:
        yield from labelled(label, f"of {whole}: {' · '.join(each)}", width)


def _first_sentence(text: str) -> str:
    """Up to the first full stop before a new sentence; up to the second where the first says little (`Launch less from Python.`)."""
    first, *more = re.split(r"(?<=\.) (?=[A-Z_`])", text, maxsplit=2)
    return f"{first} {more[0]}" if more and len(first) < _TELLING else first


# -- a section -------------------------------------------------------------------------------------


def _overview(section: Section) -> list[Table]:
    """The tables of a section, trees arranged."""
    if section.name not in OVERVIEW:
        return [_arranged(table) for table in section.tables if not table.series][:2]
    found = (section.table(name) for name, _ in OVERVIEW[section.name])
    return [_arranged(with_repeats(table)[0]) for table in found if table is not None]


def _arranged(table: Table) -> Table:
    if table.tree is None:
        return table
    return replace(table, frame=arranged(table), tree=replace(table.tree, largest_first=False))


def _limits(section: Section, listed: Sequence[Table], top: int | None, shorter: int) -> dict[str, int]:
    few = dict(OVERVIEW.get(section.name, ()))
    shown = listed[: 1 if shorter >= ONE_TABLE else None]
    least = {table.name: LEAST_ROWS if table.tree is None else LEAST_LAYERS for table in shown}
    return {name: top or max(few.get(name, 4) - shorter, rows) for name, rows in least.items()}


def _section(
    section: Section, listed: Sequence[Table], width: int, limits: dict[str, int], said: set[str]
) -> Lines:
    yield from opening(section, width)
    for finding in section.findings[:FINDINGS]:
        yield from finding_lines(finding, width, advice=finding.id not in said, full=False)
    if len(section.findings) > FINDINGS:
        more = f"{len(section.findings) - FINDINGS} more: see `tracekit {section.name}`"
        yield ((f"   {more}", "dim"),)
    for figure in section.figures:
        if figure.name == "breakdown":
            yield from bars(figure, width)
    yield from tables(listed, width, list(limits.values()), titled=len(limits) > 1)


# -- the end ---------------------------------------------------------------------------------------


def _not_captured(sections: Sequence[Section], width: int) -> Lines:
    if not sections:
        return
    yield ()
    yield (("── Not answered " + "─" * max(0, width - 16), "bold"),)
    for section in sections:
        yield from labelled(f"{section.name:<9}", section.not_captured or "", width, "dim", most=2)


def _health(report: Report, width: int) -> Lines:
    serious = [item for item in report.health if item.severity != "info"]
    if not report.health:
        return
    yield ()
    yield (("── Health of the trace " + "─" * max(0, width - 23), "bold"),)
    for item in serious[:6]:
        yield from wrapped(f"! {format_count(item.count)} × {item.kind}: {item.meaning}", width, "yellow")
    rest = len(report.health) - len(serious[:6])
    if rest:
        what = count_of(rest, "other remark" if serious else "remark")
        yield ((f"{what}; see `tracekit doctor`.", "dim"),)
