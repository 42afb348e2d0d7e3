"""A report, or a section of one, in a cell of a notebook: the verdict, answers, short tables, and figures as images."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from html import escape
from typing import Final

from tracekit.classes import dataclass
from tracekit.facts.units import format_count
from tracekit.names import clean, shorten_names
from tracekit.notebook import ROWS, block, grid, heading, items, paragraph
from tracekit.report.format import (
    RIGHT_ALIGNED,
    costliest,
    format_scalars,
    format_source,
    format_value,
    format_window,
    is_silent,
    missing,
    shown_columns,
)
from tracekit.report.model import Figure, Report, Section, Table

__all__ = ["Plots", "report_html", "section_html"]

_NAME_WIDTH: Final = 64


@dataclass(frozen=True, slots=True)
class Plots:
    """Figures that a notebook shows one below the other."""

    figures: tuple[Figure, ...]

    def _repr_html_(self) -> str:
        from tracekit.report.figures import encode  # noqa: PLC0415 - matplotlib, which only a drawing needs

        # As an image a drawing cannot run or load anything, whatever the names in it are.
        return "".join(
            f'<img alt="{escape(clean(one.title))}" src="data:image/svg+xml;base64,'
            f'{base64.b64encode(encode(one, "svg")).decode()}">'
            for one in self.figures
        )

    def __repr__(self) -> str:
        """The names only: the data of a figure are long."""
        return f"Plots({', '.join(one.name for one in self.figures)})"


def report_html(report: Report) -> str:
    """The verdict, and each section that has something to say with its first table."""
    source = f"{format_source(report.trace)} · {format_window(report.window)}"
    parts = [report.verdict._repr_html_(), paragraph(source)]
    for section in report.sections:
        if not is_silent(section):
            parts += _section(section, tables=1)
    if silent := [section.name for section in report.sections if is_silent(section)]:
        parts.append(paragraph(", ".join(silent), "Not answered:"))
    defects = [(f"{one.kind} × {format_count(one.count)}:", one.meaning) for one in report.health]
    return block([*parts, heading("Health of the trace"), items(defects)])


def section_html(section: Section) -> str:
    """A section with all of its tables."""
    return block(_section(section, tables=len(section.tables)))


def _section(section: Section, tables: int) -> Iterator[str]:
    yield heading(section.question)
    if section.error is not None:
        yield paragraph(section.error, "This analysis failed:")
        return
    yield paragraph(section.answer, f"{section.tag.capitalize()}." if section.tag else "")
    yield items((f"{label}:", text) for label, text in section.points)
    if lacking := missing(section):
        yield paragraph(lacking, "Not captured:")
    if scalars := format_scalars(section):
        yield paragraph(" · ".join(f"{name} {value}" for name, value in scalars))
    yield items((f"{one.title}.", f"{one.evidence} {one.advice}") for one in section.findings)
    listed = [one for one in section.tables if one.frame.height and not one.series]
    for table in listed[:tables]:
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    columns = shown_columns(table, table.short or None)
    frame = costliest(table, ROWS) if table.tree is not None else table.frame.head(ROWS)
    texts = [[format_value(value, column) for value in frame[column.name]] for column in columns]
    short = [shorten_names(values, _NAME_WIDTH) for values in texts]
    rows = zip(
        *([names[text] for text in values] for values, names in zip(texts, short, strict=True)), strict=True
    )
    more = f", {frame.height} of {table.total_rows:,} rows" if table.total_rows > frame.height else ""
    yield paragraph(f"{table.title}{more}")
    right = [number for number, column in enumerate(columns) if column.unit in RIGHT_ALIGNED]
    yield grid([column.title for column in columns], rows, right)
