"""A section as lines: its answer, findings, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.cells import cell_len

from tracekit.facts.units import count_of, format_count, format_ns, format_share
from tracekit.findings import Finding
from tracekit.report.format import (
    costliest,
    first_rows,
    format_scalars,
    legend,
    missing,
    shown_columns,
)
from tracekit.report.model import Figure, Section, Table
from tracekit.report.terminal.grid import grid, tree_lines
from tracekit.report.terminal.lines import Lines, cut, fold, labelled, tagged, wrapped

__all__ = ["bars", "finding_lines", "heat", "opening", "scalars", "tables"]

_MOST_LINES: Final = 8
"""Of one point below an answer."""
LEAST_SHARE: Final = 0.0005
"""A part below this would be listed with 0.0 %."""
_MARKS: Final = {"critical": ("!!", "bold red"), "warning": ("! ", "yellow"), "info": ("· ", "cyan")}
MOST_HEAT_ROWS: Final = 16
_DOES: Final = (("█", "green"), ("▓", "magenta"), ("░", "yellow"), ("·", "bright_black"))
_GLYPHS: Final = (("█", "green"), ("▓", "magenta"), ("▒", "yellow"), ("·", "bright_black"), ("+", "blue"))


def opening(section: Section, width: int) -> Lines:
    """The question, the answer with the points below it, and what was not captured."""
    yield ()
    *above, title = fold(f"── {section.question}", width - 2)
    yield from (((line, "bold"),) for line in above)
    yield ((f"{title} {'─' * max(0, width - len(title) - 1)}", "bold"),)
    if section.error is not None:
        yield from wrapped(f"This analysis failed: {section.error}", width, "red")
        return
    yield from tagged(section.tag, section.answer, width) if section.tag else wrapped(section.answer, width)
    yield from _points(section.points, width)
    lacking = missing(section)
    if lacking:
        yield from wrapped(f"Not captured: {lacking}.", width, "dim")


def _points(points: Sequence[tuple[str, str]], width: int) -> Lines:
    for label, text in points:
        yield from labelled(label, text, width, most=_MOST_LINES)


def scalars(section: Section, width: int) -> Lines:
    """The single figures in a line."""
    if told := format_scalars(section):
        figures = (f"{name} {value}".replace(" ", "\xa0") for name, value in told)  # each stays on one line
        yield from wrapped(" · ".join(figures), width, "dim")


def finding_lines(finding: Finding, width: int, *, advice: bool, full: bool) -> Lines:
    """A finding with its evidence, and its `advice`; not `full`, a minor one has only its title and a line of advice."""
    mark, style = _MARKS[finding.severity]
    stake = f" [up to {format_ns(finding.ns_at_stake)}]" if finding.ns_at_stake else ""
    text = f"{finding.title}{stake}."
    if finding.evidence and (full or finding.severity != "info"):
        text += f" {finding.evidence}"
    lines = fold(text, width - 3)
    for index, line in enumerate(lines):
        yield (f"{mark} " if index == 0 else "   ", style), (line, "")
    if advice and finding.advice:
        steps = fold(f"→ {finding.advice}", width - 3)
        if not full and finding.severity == "info" and len(steps) > 1:
            steps = [cut(f"{steps[0]} …", width - 3)]
        for line in steps:
            yield ((f"   {line}", "green"),)


def tables(tables: Sequence[Table], width: int, rows: Sequence[int], *, titled: bool) -> Lines:
    """As many tables as `rows` are given for, and what stands for no layer in them."""
    shown = list(zip(tables, rows, strict=False))
    for table, count in shown:
        yield from _table(table, width, count, titled=titled)
    yield from wrapped(legend(costliest(table, count) for table, count in shown), width, "dim")


def _table(table: Table, width: int, rows: int, *, titled: bool) -> Lines:
    if not table.frame.height:
        return
    shown, left_out = min(rows, table.frame.height), list[str]()
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
        left_out = [column.title for column in columns if column not in fitted]
    if titled:
        more = f"  {shown} of {format_count(table.total_rows)}" if table.total_rows > shown else ""
        if left_out:
            named, counted = (
                f"{more}  no room for: {', '.join(left_out)}",
                f"{more}  {count_of(len(left_out), 'column')} left out",
            )
            room = width - 2 - len(table.title)
            more = named if len(named) <= room else cut(counted, room)
        yield ("  " + table.title, "italic"), (more, "dim")
    yield (("  " + lines[0], "bold cyan"),)
    for line in lines[1:]:
        yield (("  " + line, ""),)
    if not titled and table.total_rows > shown:
        yield ((f"  … {format_count(table.total_rows - shown)} more", "dim"),)


def bars(figure: Figure, width: int) -> Lines:
    """One stacked bar for each row; the glyphs tell the parts apart where there is no colour."""
    for row in figure.data["rows"][:8]:
        total = sum(part["value"] for part in row["parts"])
        if not total:
            continue
        room = width - 2
        bar, legend, used, passed = [("  ", "")], list[tuple[str, str]](), 0, 0
        for part, (glyph, style) in zip(row["parts"], _GLYPHS, strict=False):
            passed += part["value"]
            until = round(room * passed / total)
            bar.append((glyph * (until - used), style))
            used = until
            if part["value"] < LEAST_SHARE * total:
                continue
            entry = f"{part['label']} {format_share(part['value'] / total)}"
            if legend and sum(len(text) for text, _ in legend) + len(entry) + 4 > width:
                yield legend
                legend = []
            legend += ("  ", ""), (f"{glyph} ", style), (entry, "")
        yield bar
        yield legend


def heat(figure: Figure, width: int) -> Lines:
    """What each row mostly did over time; nothing if there are many rows."""
    busy, communication, waits = (one["rows"] for one in figure.data["maps"])
    if len(busy) > MOST_HEAT_ROWS:
        return
    yield ("  " + figure.title, "italic"), (f"  {format_ns(figure.data['span_ns'])} in all", "dim")
    labels = [row["label"] for row in busy]
    margin = max(map(cell_len, labels))
    columns = max(min(width - margin - 4, len(busy[0]["percent"])), 1)
    for label, *rows in zip(labels, busy, communication, waits, strict=True):
        line = [(f"  {label.rjust(margin)}  ", "")]
        bins = list(zip(*(row["percent"] for row in rows), strict=True))
        for column in range(columns):
            low = column * len(bins) // columns
            line.append(_mostly(bins[low : (column + 1) * len(bins) // columns]))
        yield line
    names = ("computing", "communicating", "waiting for the last rank", "idle")
    parts = [
        ((f"{glyph} ", style), (f"{name}  ", "")) for (glyph, style), name in zip(_DOES, names, strict=True)
    ]
    yield ("  ", ""), *(one for pair in parts for one in pair)


def _mostly(bins: Sequence[tuple[int, int, int]]) -> tuple[str, str]:
    """The glyph and its style of what most of this time was; a blank where there is no trace of it."""
    there = [one for one in bins if one[0] >= 0]
    if not there:
        return " ", ""
    busy, communication, waits = (sum(values) for values in zip(*there, strict=True))
    parts = (busy, communication - waits, waits, 100 * len(there) - busy - communication)
    return _DOES[parts.index(max(parts))]
