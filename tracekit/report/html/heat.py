"""Rows × bins of time as shapes: runs of equal shade, one path for each shade. Nothing here knows HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tracekit.classes import dataclass

__all__ = ["HeatMap", "HeatRow", "heat_maps"]

_SHADES: Final = 8
_MIDDLE: Final = 0.5


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One row: its label, its mean in words, and its place from the top."""

    label: str
    hint: str
    top: int


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One map: its paths with their opacities, in a box of `columns` × rows."""

    label: str
    kind: str
    columns: int
    rows: tuple[HeatRow, ...]
    paths: tuple[tuple[str, str], ...]
    grouped: bool
    """Whether a row stands for several ranks."""


def heat_maps(data: dict[str, Any]) -> tuple[HeatMap, ...]:
    """The maps of a figure of kind `heat`."""
    return tuple(_map(one) for one in data["maps"])


def _map(one: dict[str, Any]) -> HeatMap:
    rows = []
    drawn: dict[int, list[str]] = {}
    for top, row in enumerate(one["rows"]):
        for shade, start, length in _runs(row["percent"]):
            if shade:
                drawn.setdefault(shade, []).append(f"M{start} {top}h{length}v1h-{length}z")
        there = [value for value in row["percent"] if value >= 0]
        mean = round(sum(there) / len(there)) if there else 0
        rows.append(HeatRow(row["label"], f"{row['label']}: {one['label']} {mean} % of the time", top))
    grouped = any(row["ranks"] > 1 for row in one["rows"])
    paths = tuple((f"{shade / _SHADES:.3g}", "".join(drawn[shade])) for shade in sorted(drawn))
    return HeatMap(one["label"], one["kind"], len(one["rows"][0]["percent"]), tuple(rows), paths, grouped)


def _runs(percent: Sequence[int]) -> list[tuple[int, int, int]]:
    """(shade, first bin, bins) of neighbours with one shade; 0 for next to nothing."""
    runs: list[tuple[int, int, int]] = []
    for at, value in enumerate(percent):
        shade = max(0, int(value / 100 * _SHADES + _MIDDLE))
        if runs and runs[-1][0] == shade:
            runs[-1] = (shade, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((shade, at, 1))
    return runs
