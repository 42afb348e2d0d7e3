"""Curves on logarithmic or linear axes as shapes for the page."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log
from typing import Any, Final

from tracekit.classes import dataclass
from tracekit.report.model import Figure

__all__ = ["Curve", "Curves", "curves"]

WIDTH: Final = 640
HEIGHT: Final = 300
LEFT: Final = 44
BOTTOM: Final = 34
EDGE: Final = 12
LEAST_RADIUS: Final = 2.5
RADIUS: Final = 10
MIDDLE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Curve:
    """One series: `path` for a line, `band` around it, `dots` (x, y, radius, what it is), and `marks` beside them (x, y, text)."""

    label: str
    style: str
    kind: str
    path: str
    band: str
    dots: tuple[tuple[float, float, float, str], ...]
    marks: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """The series in a box of `width` × `height`, and the ticks of both axes: place and label."""

    width: int
    height: int
    series: tuple[Curve, ...]
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    titles: tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    begin: float
    end: float
    base: float
    """0 for a linear axis; else `low` and `high` are powers of it."""

    def at(self, value: float) -> float:
        """The place of a value, at an end of the axis if it lies beyond."""
        if self.base:
            value = log(max(value, self.base**self.low), self.base)
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)


def curves(figure: Figure) -> Curves:
    """The shapes of a figure of this kind. The axes hold all dots and lines; of a band that goes beyond, its part inside is drawn."""
    series, base = figure.data["series"], float(figure.data.get("base", 2))
    x = _axis([value for one in series for value in one["x"]], LEFT, WIDTH - EDGE, base)
    y = _axis([value for one in series for value in one["y"]], HEIGHT - BOTTOM, EDGE, base)
    return Curves(
        WIDTH,
        HEIGHT,
        tuple(_curve(one, index, x, y) for index, one in enumerate(series)),
        _ticks(x),
        _ticks(y),
        (figure.data["x_title"], figure.data["y_title"]),
    )


def _axis(values: Sequence[float], begin: float, end: float, base: float) -> _Axis:
    if not base:
        margin = (max(values) - min(values)) / 20 or abs(values[0]) / 20 or 1.0
        return _Axis(min(values) - margin, max(values) + margin, begin, end, base)
    powers = [log(value, base) for value in values if value > 0]
    low, high = floor(min(powers)), ceil(max(powers))
    return _Axis(low, max(high, low + 1), begin, end, base)


def _ticks(axis: _Axis) -> tuple[tuple[float, str], ...]:
    if not axis.base:
        power = 10 ** floor(log((axis.high - axis.low) / 4, 10))
        width = next(power * each for each in (1, 2, 5, 10) if (axis.high - axis.low) / (power * each) <= 8)
        places = [width * each for each in range(ceil(axis.low / width), floor(axis.high / width) + 1)]
        return tuple((axis.at(place), f"{place:.6g}") for place in places)
    every = ceil((axis.high - axis.low) / 10)
    powers = range(int(axis.low), int(axis.high) + 1, every)
    return tuple((axis.at(axis.base**power), f"{axis.base**power:g}") for power in powers)


def _curve(one: dict[str, Any], index: int, x: _Axis, y: _Axis) -> Curve:
    label, style = str(one["label"]), str(one["style"])
    points = list(zip(one["x"], one["y"], strict=True))
    dots = []
    if style == "dots":
        names = one.get("names") or [f"{a:g}: {b:.3g}" for a, b in points]
        radii = [
            LEAST_RADIUS + (RADIUS - LEAST_RADIUS) * size for size in one.get("sizes", [MIDDLE] * len(points))
        ]
        dots = [
            (x.at(a), y.at(b), round(r, 1), name)
            for (a, b), r, name in zip(points, radii, names, strict=True)
        ]
    marks = tuple(
        (x.at(a), y.at(b), mark) for (a, b), mark in zip(points, one.get("marks", []), strict=False)
    )
    path = "" if style == "dots" and not marks else _path([(x.at(a), y.at(b)) for a, b in points])
    around = [*zip(one["x"], one["high"], strict=True), *reversed(list(zip(one["x"], one["low"], strict=True)))] if "low" in one else []  # fmt: skip
    band = f"{_path([(x.at(a), y.at(b)) for a, b in around])}Z" if around else ""
    kind = "other" if style == "dashes" else f"series-{index}"
    return Curve(label, style, kind, path, band, tuple(dots), marks)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a} {b}" for a, b in points)
