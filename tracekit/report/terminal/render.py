"""The report for a terminal: the verdict in the first lines, then a section for each question, on two screens."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from io import StringIO
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tracekit.facts.units import count_of, format_count, format_ns, format_share
from tracekit.findings import Finding
from tracekit.names import unbroken
from tracekit.report.format import (
    bound_name,
    costliest,
    first_rows,
    format_scalars,
    format_source,
    format_window,
    is_silent,
    legend,
    listed_tables,
    missing,
    shown_columns,
    sorted_tree,
)
from tracekit.report.formats import Page
from tracekit.report.model import Figure, Report, Section, Table, TraceInfo, Verdict
from tracekit.report.terminal.grid import grid, tree_lines

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

_MOST_LINES: Final = 8
"""Of one point below an answer."""
MOST_LINES: Final = 110
"""Two screens; a longer report shows fewer rows of its tables."""

LEAST_ROWS: Final = 2
LEAST_LAYERS: Final = 5
"""Fewer rows of a tree are hardly more than its trunk."""

ONE_TABLE: Final = 3
"""From this round of shortening on, a section shows its first table only."""

SHORTEST: Final = 6

DEFAULT_ROWS: Final = 20
GLOSSARY: Final = "What the words mean: docs/definitions.md, or the glossary in the HTML report."
LEAST_SHARE: Final = 0.0005
"""A part below this would be listed with 0.0 %."""

_MARKS: Final = {"critical": ("!!", "bold red"), "warning": ("! ", "yellow"), "info": ("· ", "cyan")}
MOST_HEAT_ROWS: Final = 16
_DOES: Final = (("█", "green"), ("▓", "magenta"), ("░", "yellow"), ("·", "bright_black"))
_GLYPHS: Final = (("█", "green"), ("▓", "magenta"), ("▒", "yellow"), ("·", "bright_black"), ("+", "blue"))

Lines = Iterator[Text]


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
        Text(),
        *_wrapped(GLOSSARY, width, "dim"),
    ]
    made: dict[tuple[str, tuple[int, ...]], list[Text]] = {}
    for shorter in range(SHORTEST + 1):  # by so many rows
        lines = list(above)
        for section in shown:
            limits = _limits(section, page.top, shorter)
            key = section.name, tuple(limits.values())
            if key not in made:
                made[key] = [*_section(section, width, limits, said)]
            lines += made[key]
        if page.top is not None or len(lines) + len(below) <= MOST_LINES:
            break
    return _draw([*lines, *below], width, page.color)


def head(trace: TraceInfo, page: Page) -> str:
    """The line above one of several reports, which says of which trace it is."""
    text = f"══ {format_source(trace)} "
    return set_cell_size(text + "═" * (page.width - cell_len(text)), page.width)


def render_section(section: Section, page: Page) -> str:
    """One section with all its tables and figures, at most `page.top` rows each (None: 20).

    A time series is listed only where it is the one table.
    """
    width = max(page.width, LEAST_WIDTH)
    lines = [*_opening(section, width), *_scalars(section, width)]
    for finding in section.findings:
        lines += _finding(finding, width, advice=True, full=True)
    listed = listed_tables(section)
    lines += _tables(listed, width, [page.top or DEFAULT_ROWS] * len(listed), titled=True)
    for figure in section.figures:
        if figure.kind == "heat":
            lines += _heat(figure, width)
    return _draw(lines[1:], width, page.color)


def summary(report: Report) -> str:
    """The verdict, the trace and how to see more, as wide as the terminal: what `print(report)` shows."""
    names = [section.name for section in report.sections]
    others = f", or of {', '.join(names[1:])}" if names[1:] else ""
    sections = f'print(report.section("{names[0]}")){others}; ' if names else ""
    more = f"{sections}report.plot() shows the figures in a notebook"
    width = max(_page().width, LEAST_WIDTH)
    return _draw([*_head(report, width), *_labelled("more", more, width)], width, color=False).rstrip()


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


def _head(report: Report, width: int) -> Lines:
    yield from _verdict(report.verdict, width)
    yield from _labelled("trace", format_source(report.trace), width, "dim")
    yield from _labelled("window", format_window(report.window), width, "dim")


def _verdict(verdict: Verdict, width: int) -> Lines:
    yield from _tagged(bound_name(verdict.bound), verdict.headline, width)
    costs = [f"{cost.label} {format_ns(cost.ns)} ({format_share(cost.share)})" for cost in verdict.costs]
    if costs:
        yield from _labelled("costs", f"of {format_ns(verdict.basis_ns)}: {' · '.join(costs)}", width)
    layers = [f"{cost.label} {format_ns(cost.ns)} ({format_share(cost.share)})" for cost in verdict.layers]
    if layers:
        devices = verdict.layers_ns // verdict.basis_ns
        whole = f"{devices} × " if devices > 1 else ""
        yield from _labelled(
            "layers", f"of {whole}{format_ns(verdict.basis_ns)}: {' · '.join(layers)}", width
        )
    for index, advice in enumerate(verdict.advice):
        stake = f" [up to {format_ns(advice.ns_at_stake)}]" if advice.ns_at_stake else ""
        # The rest of the other advice stands in the sections.
        words = _first_sentence(advice.advice) if index else advice.advice
        yield from _labelled("also" if index else "try", f"{advice.title}{stake}: {words}", width, most=8)
    for note in verdict.notes:
        yield from _labelled("note", note, width)


def _tagged(tag: str, text: str, width: int) -> Lines:
    """The text behind a word or two that stand out."""
    tag = tag.upper()
    for index, line in enumerate(_fold(f"{tag}  {text}", width)):
        yield Text(line) if index else Text.assemble((tag, "bold reverse"), line[len(tag) :])


def _first_sentence(text: str) -> str:
    """Up to the first full stop before a new sentence."""
    return re.split(r"(?<=\.) (?=[A-Z_`])", text, maxsplit=1)[0]


def _labelled(label: str, text: str, width: int, style: str = "", *, most: int = 4) -> Lines:
    """A label in a column of its own, and the text beside it."""
    indent = 8
    wrapped = _fold(text, width - indent) or [""]
    if len(wrapped) > most:
        wrapped = [*wrapped[: most - 1], _cut(f"{wrapped[most - 1]} …", width - indent)]
    for index, line in enumerate(wrapped):
        lead = label.ljust(indent) if index == 0 else " " * indent
        yield Text.assemble((lead, "bold"), (line, style))


def _fold(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`, never broken between a figure and its unit."""
    lines = textwrap.wrap(unbroken(text), width, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 2].rstrip()} …"


# -- a section -------------------------------------------------------------------------------------


def _overview(section: Section) -> list[Table]:
    if section.name not in OVERVIEW:
        return [table for table in section.tables if not table.series][:2]
    found = (section.table(name) for name, _ in OVERVIEW[section.name])
    return [table for table in found if table is not None]


def _limits(section: Section, top: int | None, shorter: int) -> dict[str, int]:
    few = dict(OVERVIEW.get(section.name, ()))
    shown = _overview(section)[: 1 if shorter >= ONE_TABLE else None]
    least = {table.name: LEAST_ROWS if table.tree is None else LEAST_LAYERS for table in shown}
    return {name: top or max(few.get(name, 4) - shorter, rows) for name, rows in least.items()}


def _section(section: Section, width: int, limits: dict[str, int], said: set[str]) -> Lines:
    yield from _opening(section, width)
    for finding in section.findings[:FINDINGS]:
        yield from _finding(finding, width, advice=finding.id not in said, full=False)
    if len(section.findings) > FINDINGS:
        more = f"{len(section.findings) - FINDINGS} more: see `tracekit {section.name}`"
        yield Text(f"   {more}", style="dim")
    for figure in section.figures:
        if figure.name == "breakdown":
            yield from _bars(figure, width)
    yield from _tables(_overview(section), width, list(limits.values()), titled=len(limits) > 1)


def _opening(section: Section, width: int) -> Lines:
    yield Text()
    *above, title = _fold(f"── {section.question}", width - 2)
    yield from (Text(line, style="bold") for line in above)
    yield Text(f"{title} {'─' * max(0, width - len(title) - 1)}", style="bold")
    if section.error is not None:
        yield from _wrapped(f"This analysis failed: {section.error}", width, "red")
        return
    yield from _tagged(section.tag, section.answer, width) if section.tag else _wrapped(section.answer, width)
    yield from _points(section.points, width)
    lacking = missing(section)
    if lacking:
        yield from _wrapped(f"Not captured: {lacking}.", width, "dim")


def _points(points: Sequence[tuple[str, str]], width: int) -> Lines:
    for label, text in points:
        yield from _labelled(label, text, width, most=_MOST_LINES)


def _scalars(section: Section, width: int) -> Lines:
    if scalars := format_scalars(section):
        yield from _wrapped(" · ".join(f"{name} {value}" for name, value in scalars), width, "dim")


def _wrapped(text: str, width: int, style: str = "") -> Lines:
    for line in _fold(text, width):
        yield Text(line, style=style)


def _finding(finding: Finding, width: int, *, advice: bool, full: bool) -> Lines:
    mark, style = _MARKS[finding.severity]
    stake = f" [up to {format_ns(finding.ns_at_stake)}]" if finding.ns_at_stake else ""
    text = f"{finding.title}{stake}."
    if finding.evidence and (full or finding.severity != "info"):
        text += f" {finding.evidence}"
    lines = _fold(text, width - 3)
    for index, line in enumerate(lines):
        yield Text.assemble((f"{mark} " if index == 0 else "   ", style), line)
    if advice and finding.advice:
        steps = _fold(f"→ {finding.advice}", width - 3)
        if not full and finding.severity == "info" and len(steps) > 1:
            steps = [_cut(f"{steps[0]} …", width - 3)]
        for line in steps:
            yield Text(f"   {line}", style="green")


def _tables(tables: Sequence[Table], width: int, rows: Sequence[int], *, titled: bool) -> Lines:
    """As many tables as `rows` are given for, and what stands for no layer in them."""
    shown = list(zip(tables, rows, strict=False))
    for table, count in shown:
        yield from _table(table, width, count, titled=titled)
    yield from _wrapped(legend(costliest(table, count) for table, count in shown), width, "dim")


def _table(table: Table, width: int, rows: int, *, titled: bool) -> Lines:
    if not table.frame.height:
        return
    shown, left_out = min(rows, table.frame.height), ""
    if table.tree is not None:
        lines = tree_lines(table, width=width - 2, rows=shown)
        shown = len(lines) - 1
    else:
        columns = shown_columns(table, table.short or None)
        if not columns:
            return
        some = first_rows(table, shown)
        lines, fitted = grid(replace(table, frame=some), columns, width=width - 2, rows=some.height)
        shown = table.frame.height if some.height == table.frame.height else shown
        left_out = ", ".join(column.title for column in columns if column not in fitted)
    if titled:
        more = f"  {shown} of {format_count(table.total_rows)}" if table.total_rows > shown else ""
        if left_out:
            more = _cut(f"{more}  no room for: {left_out}", width - 2 - len(table.title))
        yield Text.assemble(("  " + table.title, "italic"), (more, "dim"))
    yield Text("  " + lines[0], style="bold cyan")
    for line in lines[1:]:
        yield Text("  " + line)
    if not titled and table.total_rows > shown:
        yield Text(f"  … {format_count(table.total_rows - shown)} more", style="dim")


def _bars(figure: Figure, width: int) -> Lines:
    """One stacked bar for each row; the glyphs tell the parts apart where there is no colour."""
    for row in figure.data["rows"][:8]:
        total = sum(part["value"] for part in row["parts"])
        if not total:
            continue
        room = width - 2
        bar, legend, used, passed = Text("  "), Text(), 0, 0
        for part, (glyph, style) in zip(row["parts"], _GLYPHS, strict=False):
            passed += part["value"]
            until = round(room * passed / total)
            bar.append(glyph * (until - used), style=style)
            used = until
            if part["value"] < LEAST_SHARE * total:
                continue
            entry = f"{part['label']} {format_share(part['value'] / total)}"
            if len(legend) and len(legend) + len(entry) + 4 > width:
                yield legend
                legend = Text()
            legend.append("  ").append(f"{glyph} ", style=style).append(entry)
        yield bar
        yield legend


def _heat(figure: Figure, width: int) -> Lines:
    """What each row mostly did over time; nothing if there are many rows."""
    busy, communication, waits = (one["rows"] for one in figure.data["maps"])
    if len(busy) > MOST_HEAT_ROWS:
        return
    yield Text.assemble(
        ("  " + figure.title, "italic"), (f"  {format_ns(figure.data['span_ns'])} in all", "dim")
    )
    labels = [row["label"] for row in busy]
    margin = max(map(cell_len, labels))
    columns = max(min(width - margin - 4, len(busy[0]["percent"])), 1)
    for label, *rows in zip(labels, busy, communication, waits, strict=True):
        line = Text(f"  {label.rjust(margin)}  ")
        bins = list(zip(*(row["percent"] for row in rows), strict=True))
        for column in range(columns):
            low = column * len(bins) // columns
            line.append(*_mostly(bins[low : (column + 1) * len(bins) // columns]))
        yield line
    legend = Text("  ")
    for (glyph, style), name in zip(
        _DOES, ("computing", "communicating", "waiting for the last rank", "idle"), strict=True
    ):
        legend.append(f"{glyph} ", style=style).append(f"{name}  ")
    yield legend


def _mostly(bins: Sequence[tuple[int, int, int]]) -> tuple[str, str]:
    """The glyph and its style of what most of this time was; a blank where there is no trace of it."""
    there = [one for one in bins if one[0] >= 0]
    if not there:
        return " ", ""
    busy, communication, waits = (sum(values) for values in zip(*there, strict=True))
    parts = (busy, communication - waits, waits, 100 * len(there) - busy - communication)
    return _DOES[parts.index(max(parts))]


# -- the end ---------------------------------------------------------------------------------------


def _not_captured(sections: Sequence[Section], width: int) -> Lines:
    if not sections:
        return
    yield Text()
    yield Text("── Not answered " + "─" * max(0, width - 16), style="bold")
    for section in sections:
        yield from _labelled(f"{section.name:<10}"[:10], section.not_captured or "", width, "dim", most=2)


def _health(report: Report, width: int) -> Lines:
    serious = [item for item in report.health if item.severity != "info"]
    if not report.health:
        return
    yield Text()
    yield Text("── Health of the trace " + "─" * max(0, width - 23), style="bold")
    for item in serious[:6]:
        yield from _wrapped(f"! {format_count(item.count)} × {item.kind}: {item.meaning}", width, "yellow")
    rest = len(report.health) - len(serious[:6])
    if rest:
        what = count_of(rest, "other remark" if serious else "remark")
        yield Text(f"{what}; see `tracekit doctor`.", style="dim")


def _draw(lines: Iterable[Text], width: int, color: bool) -> str:
    """The lines through rich, which knows how to colour them; never wrapped again."""
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        force_jupyter=False,  # in a notebook rich would show each line itself
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    # One by one, rich would take three times as long.
    console.print(Text("\n").join(lines), no_wrap=True, overflow="ellipsis", crop=False, soft_wrap=False)
    return out.getvalue()
