"""A section as the template of the page needs it: what opens and closes, tables as grids of cells, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import polars as pl

from tracekit.classes import dataclass
from tracekit.facts.units import format_count
from tracekit.names import shorten_names
from tracekit.report.format import (
    costliest,
    first_rows,
    format_cell,
    format_scalars,
    format_value,
    is_silent,
    legend,
    missing,
    shown_columns,
)
from tracekit.report.glossary import meaning
from tracekit.report.html.charts import chart, kind_class
from tracekit.report.html.texts import tail_length
from tracekit.report.html.tree import Branches, branches
from tracekit.report.model import Column, Section, Table
from tracekit.report.repeats import repeats_as_one

__all__ = ["CLOSED", "MAX_ROWS", "Cell", "Fold", "Grid", "pair_up", "section_view"]

MAX_ROWS: Final = 1000
"""Rows of one table in the page; the JSON report has all."""
NAME_WIDTH: Final = 64
BARRED: Final = frozenset({"share", "launch_bound_share", "utilisation", "overlap"})
"""Ratios that get a small bar beside the figure."""
COLOURED: Final = frozenset({"category"})
DRAWN: Final = frozenset({"breakdown", "steps", "scaling", "diff", "compare"})
"""Sections that open with their figure, not with a table."""
MOST_PARTS: Final = 9
"""Of a section that stands beside another."""
JOINT: Final = ("ranks", "heat", "beside")
"""What of the joint view of a job is open, in this order."""
CLOSED: Final = frozenset(
    {"workload", "ops", "roofline", "launches", "overlap", "collectives", "memory", "counters"}
)
"""Sections whose answer is enough until the reader wants more."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: what is shown, what it is sorted by if that is a number, the full text where that is longer, and its decoration."""

    text: str
    value: str = ""
    full: str = ""
    bar: float | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table ready for the page; `hints` has what each of the columns means, where the title does not say it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    hints: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total_rows: int
    whole: bool
    """Whether all columns are visible at first."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A part of a section that opens and closes: its title, a note beside it, and what it holds."""

    kind: Literal["tree", "grid", "drawing", "comparison", "sums", "remarks"]
    title: str
    note: str
    item: Any
    open: bool = False


def section_view(section: Section, closed: frozenset[str] = CLOSED) -> dict[str, Any]:
    """What the template needs of a section."""
    listed = [table for table in section.tables if table.frame.height and not table.series]
    grave = [item for item in section.findings if item.severity != "info"]
    return {
        "section": section,
        "severity": grave[0].severity if grave else "",
        "findings": grave,
        "folds": _folds(section, listed, closed),
        "half": False,
        "empty": is_silent(section),
        "missing": section.not_captured if is_silent(section) else missing(section),
    }


def pair_up(views: Sequence[dict[str, Any]], closed: frozenset[str]) -> list[dict[str, Any]]:
    """The sections, of which those stand two side by side that are neighbours and show no table at first (`closed`, or a figure).

    From the last of them on: if one stays alone, it is the first, which has the longest answer and the least to draw. What has
    many parts would be long and thin beside another, so it stands above its neighbours.
    """
    ordered: list[dict[str, Any]] = []
    small: list[dict[str, Any]] = []
    for view in [*views, None]:
        if view is not None and view["section"].name in closed | DRAWN:
            (ordered if len(view["folds"]) > MOST_PARTS else small).append(view)
            continue
        for one in small[len(small) % 2 :]:
            one["half"] = True
        ordered += small if view is None else [*small, view]
        small = []
    return ordered


def _folds(section: Section, listed: Sequence[Table], closed: frozenset[str]) -> list[Fold]:
    """The parts of a section; the one that answers its question comes first and is open, if there is more to say than the answer."""
    charts = [Fold("drawing", drawn.title, drawn.note, drawn) for drawn in map(chart, section.figures)]
    tables = [
        fold
        for table in listed
        for fold in ([_grid_fold(section, table)] if table.tree is None else _tree_folds(table))
    ]
    folds = [*charts, *tables] if section.name in DRAWN else [*tables, *charts]
    if section.name == "job":
        folds = _opened_joint(folds)
    elif folds and section.name not in closed:
        folds[0] = replace(folds[0], open=True)
    scalars = format_scalars(section)
    if scalars:
        folds.append(Fold("sums", "Figures", "", scalars))
    series = [
        f"{table.title}: {format_count(table.total_rows)} rows are drawn, not listed; the JSON report has them."
        for table in section.tables
        if table.series and table.frame.height
    ]
    minor = [item for item in section.findings if item.severity == "info"]
    notes = [note for note in (legend(costliest(table, MAX_ROWS) for table in listed), *series) if note]
    if minor or notes:
        folds.append(Fold("remarks", "Remarks", format_count(len(minor) + len(notes)), (minor, notes)))
    return folds


def _opened_joint(folds: Sequence[Fold]) -> list[Fold]:
    named = {fold.item.name: fold for fold in folds}
    opened = [replace(named[name], open=True) for name in JOINT if name in named]
    return [*opened, *(fold for name, fold in named.items() if name not in JOINT)]


def _grid_fold(section: Section, table: Table) -> Fold:
    grid = _grid(section, table)
    shown = (
        f" rows, the first {format_count(len(grid.rows))} here" if len(grid.rows) < grid.total_rows else ""
    )
    return Fold("grid", table.title, f"{format_count(grid.total_rows)}{shown}", grid)


def _tree_folds(table: Table) -> list[Fold]:
    """The tree with repeated layers as one, and the tree of every layer; only the latter where none repeats."""
    merged = repeats_as_one(table)
    if merged is None:
        trees = [branches(table, folded=True)]
    else:
        trees = [
            branches(merged, folded=True),
            branches(replace(table, title="Tree of every layer"), folded=False),
        ]
    return [
        Fold("tree", tree.title, f"{format_count(tree.total_rows)}{_shown(tree)}", tree) for tree in trees
    ]


def _shown(tree: Branches) -> str:
    few = len(tree.nodes) < tree.total_rows
    return f" rows, the costliest {format_count(len(tree.nodes))} here" if few else ""


def _grid(section: Section, table: Table) -> Grid:
    frame = first_rows(table, MAX_ROWS)
    others = [name for name in frame.columns if name not in table.short]
    # figures before names, and what is the same in every row last: it tells a reader the least
    ordered = [
        *table.short,
        *sorted(others, key=lambda name: (frame[name].n_unique() == 1, _is_text(table, name))),
    ]
    columns = tuple(column for column in shown_columns(table, ordered) if column.name != "activity_id")
    cells = [_cells(frame[column.name], column) for column in columns]
    hints = tuple(meaning(section.name, column.name) for column in columns)
    rows = tuple(zip(*cells, strict=True))
    return Grid(table.name, table.title, columns, hints, rows, table.total_rows, table.whole)


def _is_text(table: Table, name: str) -> bool:
    column = table.column(name)
    return column is not None and column.unit == "text"


def _cells(values: pl.Series, column: Column) -> list[Cell]:
    if column.unit == "text":
        texts = [format_value(value, column) for value in values.to_list()]
        short = shorten_names(texts, NAME_WIDTH)
        short |= {text: text for text in short if 0 < tail_length(text) <= NAME_WIDTH}
        return [
            _text_cell(value, text, short[text], column)
            for value, text in zip(values.to_list(), texts, strict=True)
        ]
    barred = column.name in BARRED
    return [
        Cell(
            format_cell(value, column.unit),
            "" if value is None else f"{float(value):.10g}",
            bar=min(max(100 * value, 0), 100) if barred and value is not None else None,
        )
        for value in values.to_list()
    ]


def _text_cell(value: Any, text: str, short: str, column: Column) -> Cell:
    kind = kind_class(str(value)) if column.name in COLOURED and value is not None else ""
    return Cell(short, full=text if short != text else "", kind=kind)
