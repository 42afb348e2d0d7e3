"""A tree of layers for the page: few rows open at first."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import format_ns
from tracekit.names import shorten_name
from tracekit.report.format import costliest, format_cell
from tracekit.report.html.charts import Part, kind_class
from tracekit.report.model import Column, Table
from tracekit.trees import parent_rows

__all__ = ["OPEN_LAYERS", "Branches", "Node", "branches"]

MAX_LAYERS: Final = 5000
OPEN_LAYERS: Final = 15
"""Rows that are visible at first."""

LEAST_OPEN: Final = 0.05
"""A layer with a smaller part of the time opens when the reader opens it."""

MOST_SIBLINGS: Final = 8
"""Of more layers side by side the cheapest stand behind one row, which says how many they are."""

LEAST_SIBLING: Final = 0.005
"""So do those with a smaller part of the time, if there are several."""

FIGURES: Final = (
    "device_ns",
    "share",
    "device_own_ns",
    "calls",
    "host_ns",
    "tree_base_ns",
    "tree_new_ns",
    "tree_delta_ns",
)
_CHANGE: Final = "tree_delta_ns"
"""What the tree of two runs has instead of phases."""
NAME_WIDTH: Final = 64


@dataclass(frozen=True, slots=True)
class Node:
    """A row of a tree: `ends` open nodes close before it; an `inner` one has nodes below it, and may be `open`."""

    name: str
    type: str
    path: str
    figures: tuple[str, ...]
    parts: tuple[Part, ...]
    inner: bool
    open: bool
    ends: int


@dataclass(frozen=True, slots=True)
class Branches:
    """A tree ready for the page; `ends` nodes are open after the last one. `phases` are pairs of a style class and a word."""

    title: str
    columns: tuple[str, ...]
    nodes: tuple[Node, ...]
    ends: int
    phases: tuple[tuple[str, str], ...]
    total_rows: int


def branches(table: Table, *, folded: bool) -> Branches:
    """The tree as nodes in the order of the page; with `folded` the cheapest of many siblings stand behind one row."""
    frame = costliest(table, MAX_LAYERS)
    figures = [column for column in (table.column(name) for name in FIGURES) if column is not None]
    figures = [
        one for one in figures if one.name in frame.columns and frame[one.name].null_count() < frame.height
    ]
    measure = _CHANGE if _CHANGE in frame.columns else "device_ns"
    walk = _Walk(frame, figures, measure, folded=folded)
    nodes, ends = walk.nodes()
    return Branches(
        table.title,
        tuple(column.title for column in figures),
        tuple(nodes),
        ends,
        tuple((kind_class(kind), kind.replace("_", "-")) for kind in _kinds(frame)),
        table.total_rows,
    )


def _kinds(frame: pl.DataFrame) -> list[str]:
    """What bars have pieces of."""
    if _CHANGE in frame.columns:
        return [*SIDES]
    return [phase for phase in PHASES if (frame[f"{phase}_ns"] > 0).any()]


Place = int | tuple[int, ...]
"""A row, or the rows behind one that says how many they are."""


class _Walk:
    """The walk through a tree that makes its nodes."""

    def __init__(self, frame: pl.DataFrame, figures: list[Column], measure: str, *, folded: bool) -> None:
        """Parents and their rows; `frame` has each row before those below it."""
        self.rows, self.figures, self.folded = frame.rows(named=True), figures, folded
        self.measure = measure
        self.below: dict[int, list[int]] = {}
        for row, parent in enumerate(parent_rows(frame).tolist()):
            self.below.setdefault(parent, []).append(row)
        self.summed = [column.name for column in figures if column.unit != "text"]
        if measure == _CHANGE:
            self.parts, lengths = _side_parts, ["tree_base_ns", "tree_new_ns"]
        else:
            self.parts, lengths = _phase_parts, [measure]
            self.summed += [f"{phase}_ns" for phase in PHASES]
        self.greatest = max((row[name] or 0 for row in self.rows for name in lengths), default=0) or 1
        self.total = sum(map(self._cost, self.below.get(-1, [])))
        self.opened = self._opened()

    def inside(self, place: Place) -> list[Place]:
        """What stands below a place."""
        if isinstance(place, tuple):
            return list(place)
        rows = self.below.get(place, [])
        if not self.folded:
            return list(rows)
        least = LEAST_SIBLING * self.total
        most = next((at for at, row in enumerate(rows) if self._cost(row) < least), len(rows))
        most = min(most, MOST_SIBLINGS)
        few = len(rows) <= most + 1  # a row that says "1 more" would say less than the row
        return list(rows) if few else [*rows[:most], tuple(rows[most:])]

    def _cost(self, row: int) -> int:
        cost: int = self.rows[row][self.measure] or 0
        return abs(cost)

    def _opened(self) -> set[int]:
        """The rows that are open at first: the costliest first, as long as no more than `OPEN_LAYERS` rows are visible."""
        visible = len(self.inside(-1))
        waiting: list[tuple[int, int]] = []
        opened: set[int] = set()

        def see(places: list[Place]) -> None:
            for place in places:
                if isinstance(place, int):
                    heappush(waiting, (-self._cost(place), place))

        see(self.inside(-1))
        while waiting:
            cost, row = heappop(waiting)
            inside = self.inside(row)
            if inside and -cost >= LEAST_OPEN * self.total and visible + len(inside) <= OPEN_LAYERS:
                opened.add(row)
                visible += len(inside)
                see(inside)
        return opened

    def nodes(self) -> tuple[list[Node], int]:
        """The nodes, and how many are open after the last."""
        made: list[Node] = []
        before = 0
        waiting = [(place, 0) for place in reversed(self.inside(-1))]
        while waiting:
            place, depth = waiting.pop()
            inside = self.inside(place)
            made.append(self._node(place, inner=bool(inside), ends=max(before - depth, 0)))
            before = depth + bool(inside)
            waiting += [(one, depth + 1) for one in reversed(inside)]
        return made, before

    def _node(self, place: Place, *, inner: bool, ends: int) -> Node:
        row = self._more(place) if isinstance(place, tuple) else self.rows[place]
        return Node(
            name=shorten_name(row["name"], NAME_WIDTH),
            type=shorten_name(row["type"] or "", NAME_WIDTH),
            path=row["path"],
            figures=tuple(format_cell(row[column.name], column.unit) for column in self.figures),
            parts=tuple(self.parts(row, self.greatest)),
            inner=inner,
            open=place in self.opened,
            ends=ends,
        )

    def _more(self, places: tuple[int, ...]) -> dict[str, Any]:
        """The sums over rows that stand behind one."""
        values = {
            name: [v for at in places if (v := self.rows[at][name]) is not None]
            for name in dict.fromkeys(self.summed)
        }
        sums = {name: sum(given) if given else None for name, given in values.items()}
        less = ", which changed less" if self.measure == _CHANGE else ""
        return {"name": f"{len(places)} more{less}", "type": "", "path": "", **sums}


def _phase_parts(row: dict[str, Any], greatest: int) -> Iterator[Part]:
    """The pieces of a layer's bar, one a phase."""
    at = 0
    for phase in PHASES:
        value = row[f"{phase}_ns"]
        if value:
            hint = f"{phase.replace('_', '-')} {format_ns(value)}"
            yield Part(
                kind_class(phase), round(100 * at / greatest, 2), round(100 * value / greatest, 2), hint
            )
        at += value or 0


SIDES: Final = ("in both", "slower", "faster")
"""The pieces of a bar that compares two runs: the shorter time, and by how much the other one exceeds it."""


def _side_parts(row: dict[str, Any], greatest: int) -> Iterator[Part]:
    """The pieces of a layer's bar, as long as its longer time."""
    base, new = row["tree_base_ns"] or 0, row["tree_new_ns"] or 0
    at = 0
    for kind, value in zip(SIDES, (min(base, new), max(new - base, 0), max(base - new, 0)), strict=True):
        if value:
            hint = f"{kind}: {format_ns(value)}"
            yield Part(
                kind_class(kind), round(100 * at / greatest, 2), round(100 * value / greatest, 2), hint
            )
        at += value
