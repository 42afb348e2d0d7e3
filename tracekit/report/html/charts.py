"""Figures as shapes for the page: percentages, paths and texts. Nothing here knows HTML."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from tracekit.classes import dataclass
from tracekit.facts.units import format_share
from tracekit.names import category_name
from tracekit.report.format import format_cell
from tracekit.report.html.curve import Curves, curves
from tracekit.report.html.heat import HeatMap, heat_maps
from tracekit.report.model import Figure
from tracekit.trace import CATEGORIES

__all__ = ["Bar", "Box", "Chart", "Line", "Part", "StackRow", "chart", "kind_class"]

KNOWN_KINDS: Final = frozenset(
    {
        *CATEGORIES,
        *("compute", "exposed-communication", "exposed-copies", "idle", "kernel", "runtime"),
        *("data-loader", "operator", "busy", "host-wait", "kernel-wait", "other-wait", "unknown", "step"),
        *(
            "annotation",
            "module",
            "op",
            "sync",
            "forward",
            "backward",
            "data",
            "set-up",
            "waits",
            "in-both",
            "slower",
            "a-little-slower",
            "a-little-faster",
            "faster",
            "efficiency",
            "slower-training",
            "more-epochs",
            "evaluation",
            "start",
            "start-up",
            "device",
            "host",
            "loading-not-hidden",
            "synchronisation",
        ),
    }
)
"""Kinds that have a colour of their own in the style sheet."""

MANY_ROWS: Final = 6
"""More bars than this stand upright side by side instead of lying under each other."""

LABELLED: Final = 1.5
"""A narrower box, in percent of the figure, has no room for a label."""

PATH_WIDTH: Final = 1000
PATH_HEIGHT: Final = 100


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar: where it begins and how long it is, in percent of the figure."""

    kind: str
    offset: float
    length: float
    hint: str


@dataclass(frozen=True, slots=True)
class StackRow:
    """One stacked bar with its total in words."""

    label: str
    total: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, its length in percent of the greatest, its value and share in words. Also an entry of a legend."""

    label: str
    kind: str
    length: float
    value: str
    share: str


@dataclass(frozen=True, slots=True)
class Line:
    """One series as an SVG path in a box of 1000 × 100."""

    label: str
    kind: str
    path: str
    area: str
    peak: str


@dataclass(frozen=True, slots=True)
class Box:
    """A box of an icicle: left edge and width in percent, its level, and its label where there is room for one."""

    kind: str
    offset: float
    length: float
    depth: int
    label: str
    hint: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure ready to be drawn; which of the tuples are filled depends on `kind`."""

    name: str
    title: str
    kind: str
    rows: tuple[StackRow, ...] = ()
    legend: tuple[Bar, ...] = ()
    bars: tuple[Bar, ...] = ()
    lines: tuple[Line, ...] = ()
    boxes: tuple[Box, ...] = ()
    levels: int = 0
    curves: Curves | None = None
    maps: tuple[HeatMap, ...] = ()
    note: str = ""
    """How to read it."""
    top: str = ""
    first: str = ""
    last: str = ""


def kind_class(label: str) -> str:
    """The style class of a kind: its name if it has a colour, else `other`.

    >>> kind_class("exposed communication"), kind_class("something new")
    ('exposed-communication', 'other')
    """
    slug = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
    if slug == "between-operators":
        return "host-wait"
    return slug if slug in KNOWN_KINDS else "other"


def chart(figure: Figure) -> Chart:
    """The figure as shapes."""
    if figure.kind == "stack":
        return _stack(figure)
    if figure.kind == "icicle":
        return _icicle(figure)
    if figure.kind == "curve":
        return Chart(figure.name, figure.title, "curve", curves=curves(figure))
    if figure.kind == "heat":
        return _heat(figure)
    return _bars(figure) if figure.kind == "bars" else _lines(figure)


def _heat(figure: Figure) -> Chart:
    maps = heat_maps(figure.data)
    note = "the stronger the colour, the larger the part of the time"
    if any(one.grouped for one in maps):
        note += "; a row of several ranks shows the middle one"
    last = format_cell(figure.data["span_ns"], "time")
    return Chart(
        figure.name, figure.title, "heat", maps=maps, first=format_cell(0, "time"), last=last, note=note
    )


def _icicle(figure: Figure) -> Chart:
    unit, total, nodes = figure.data["unit"], figure.data["total"], figure.data["nodes"]
    boxes, legend = [], []
    for node in nodes:
        share, value = format_share(node["value"] / total), format_cell(node["value"], unit)
        length = _percent(node["value"], total)
        kind = kind_class(node["kind"])
        label = node["label"] if length >= LABELLED else ""
        hint = node.get("hint", f"{node['label']}: {value} ({share})")
        boxes.append(Box(kind, _percent(node["start"], total), length, node["depth"], label, hint))
        if node["depth"] == 0 and "kinds" not in figure.data:
            legend.append(Bar(node["label"], kind, length, value, share))
    legend += [Bar(word, kind_class(kind), 0, "", "") for kind, word in figure.data.get("kinds", {}).items()]
    levels = max((node["depth"] for node in nodes), default=0) + 1
    return Chart(figure.name, figure.title, "icicle", legend=tuple(legend), boxes=tuple(boxes), levels=levels)


def _stack(figure: Figure) -> Chart:
    unit, data = figure.data["unit"], figure.data["rows"]
    totals = [sum(part["value"] for part in row["parts"]) for row in data]
    longest = max(totals, default=0) or 1
    rows = []
    sums: dict[str, int] = {}
    for row, total in zip(data, totals, strict=True):
        parts, at = [], 0
        for part in row["parts"]:
            value = part["value"]
            sums[part["label"]] = sums.get(part["label"], 0) + value
            if value:
                share = "" if unit == "ratio" else f" ({format_share(value / total)})"
                hint = f"{row['label']}: {category_name(part['label'])} {format_cell(value, unit)}{share}"
                parts.append(
                    Part(kind_class(part["label"]), _percent(at, longest), _percent(value, longest), hint)
                )
            at += value
        # Shares always sum to 1, so the first of them says more of the row.
        told = row["parts"][0]["value"] if unit == "ratio" and row["parts"] else total
        rows.append(StackRow(row["label"], format_cell(told, unit), tuple(parts)))
    whole = sum(totals) or 1
    legend = tuple(
        _bar(category_name(label), label, value, unit, whole, whole) for label, value in sums.items() if value
    )
    if unit == "ratio" or figure.data.get(
        "apart"
    ):  # shares of several rows have no sum, nor have alternatives
        legend = tuple(replace(one, value="", share="") for one in legend)
    kind = "columns" if len(rows) > MANY_ROWS else "stack"
    return Chart(figure.name, figure.title, kind, rows=tuple(rows), legend=legend)


def _bars(figure: Figure) -> Chart:
    unit, data = figure.data["unit"], figure.data["bars"]
    greatest = max((bar["value"] for bar in data), default=0) or 1
    total = sum(bar["value"] for bar in data) or 1
    bars = tuple(
        _bar(category_name(bar["label"]), bar["label"], bar["value"], unit, greatest, total) for bar in data
    )
    return Chart(figure.name, figure.title, "bars", bars=bars)


def _bar(label: str, kind: str, value: int, unit: Any, greatest: int, total: int) -> Bar:
    cell = format_cell(value, unit)
    share = (
        "" if unit == "number" else format_share(value / total)
    )  # plain numbers, such as ratios, have no sum
    return Bar(label, kind_class(kind), _percent(value, greatest), cell, share)


def _lines(figure: Figure) -> Chart:
    unit, series = figure.data["unit"], figure.data["series"]
    low = min(one["x"][0] for one in series)
    high = max(one["x"][-1] for one in series)
    top = max(max(one["y"]) for one in series) or 1
    bottom = min(0, *(min(one["y"]) for one in series))
    ends = figure.data.get("ends")
    first, last = ends or [format_cell(x, "time") for x in (low, high)]
    lines = tuple(
        _line(one, index, (low, high), (bottom, top), unit, holds=not ends)
        for index, one in enumerate(series)
    )
    return Chart(
        figure.name,
        figure.title,
        "line",
        lines=lines,
        top=format_cell(top, unit),
        first=first,
        last=last,
    )


def _line(
    one: dict[str, Any], index: int, span: tuple[int, int], limits: tuple[int, int], unit: Any, *, holds: bool
) -> Line:
    """A series; its last value `holds` until the end of the figure."""
    low, high = span
    bottom, top = limits
    across, up = PATH_WIDTH / max(high - low, 1), PATH_HEIGHT / max(top - bottom, 1)
    pieces, last = [], None
    for x, y in zip(one["x"], one["y"], strict=True):
        at, height = (x - low) * across, PATH_HEIGHT - (y - bottom) * up
        # a value holds until the next one: first across, then up or down
        pieces.append(f"M{at:.1f} {height:.1f}" if last is None else f"H{at:.1f}V{height:.1f}")
        last = height
    path = "".join(pieces) + (f"H{PATH_WIDTH}" if holds else "")
    zero = PATH_HEIGHT + bottom * up
    start = (one["x"][0] - low) * across
    area = f"{path}V{zero:.1f}H{start:.1f}Z"
    return Line(one["label"], f"series-{index % 8}", path, area, format_cell(max(one["y"]), unit))


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 3)
