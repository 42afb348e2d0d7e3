"""What the ranks did when: for each rank and bin of time the part that was busy, exposed communication, and waiting for the last rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.ranks.align import Alignment
from tracekit.analyses.ranks.summary import BINS, Summary
from tracekit.analyses.ranks.waits import Waits
from tracekit.classes import dataclass
from tracekit.intervals import IntervalSet
from tracekit.spans import Int64Array

__all__ = ["NOTHING", "PARTS", "Heat", "heat_of"]

PARTS: Final = ("busy", "communication", "wait")
"""`busy`: computing or copying; `communication`: exposed, waits included; `wait`: in a collective before its last rank has come."""
NOTHING: Final = 255
"""The percentage of a bin outside the rank's window."""
_COLUMNS: Final = 120
_FARTHEST: Final = 4
"""Windows that together span so many times the middle one were not recorded at one time."""

Percent = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """A matrix ranks × bins for each of `PARTS`, in percent of the bin (`NOTHING` where the rank has no window)."""

    start: int
    """ns on the clock of the job."""
    bin_ns: float
    parts: dict[str, Percent]

    def row(self, part: str, places: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """The middle, the least and the greatest percentage of these ranks in each bin; −1 where none has a window."""
        values = np.where(self.parts[part][list(places)] == NOTHING, np.nan, self.parts[part][list(places)])
        nothing = np.isnan(values).all(axis=0)
        values[:, nothing] = -1
        return (
            np.nanmedian(values, axis=0).astype(int).tolist(),
            np.nanmin(values, axis=0).astype(int).tolist(),
            np.nanmax(values, axis=0).astype(int).tolist(),
        )


def heat_of(summaries: Sequence[Summary], aligned: Alignment, waits: Waits) -> Heat | None:
    """The matrices of a job; None if its ranks were not recorded at one time."""
    shift = aligned.clocks["shift_ns"].to_numpy()
    begin = np.array([one.facts.window_start_ns for one in summaries]) + shift
    length = np.array([one.facts.window_ns for one in summaries])
    start, span = int(begin.min()), int((begin + length).max() - begin.min())
    if not 0 < span <= _FARTHEST * int(np.median(length)):
        return None
    edges = start + np.arange(_COLUMNS + 1) * (span / _COLUMNS)
    parts = {part: np.full((len(summaries), _COLUMNS), NOTHING, dtype=np.uint8) for part in PARTS}
    waited = {int(str(at)): rows for (at,), rows in waits.calls.filter(pl.col("wait_ns") > 0).group_by("at")}
    ends: dict[int, int] = dict(waits.calls.group_by("at").agg(pl.col("end").max()).rows())
    for at, one in enumerate(summaries):
        own = begin[at] + np.arange(BINS + 1) * (length[at] / BINS)
        inside = np.diff(np.clip(edges, own[0], own[-1]))
        there = inside > 0
        sums = _rebinned(one, own, edges)
        sums["wait"] = _waits(waited.get(at), edges)
        compared = edges[1:] <= ends.get(at, begin[at]) if one.cut else there
        for part, values in sums.items():
            share = values[there] / inside[there]
            parts[part][at, there] = np.rint(100 * np.clip(share, 0, 1)).astype(np.uint8)
        parts["wait"][at, ~compared] = NOTHING
    return Heat(start, span / _COLUMNS, parts)


def _rebinned(one: Summary, own: _Floats, edges: _Floats) -> dict[str, _Floats]:
    """The ns of a device in the bins of the job, from those of the rank's window."""
    devices = max(one.facts.active_devices, 1)
    columns = {name: one.timeline[f"{name}_ns"].to_numpy() / devices for name in ("communication", "idle")}
    columns["busy"] = np.diff(own) - columns["communication"] - columns.pop("idle")
    return {
        name: np.diff(np.interp(edges, own, np.concatenate(([0.0], np.cumsum(values)))))
        for name, values in columns.items()
    }


def _waits(rows: pl.DataFrame | None, edges: _Floats) -> _Floats:
    if rows is None:
        return np.zeros(edges.size - 1)
    start = rows["start"].to_numpy()
    bounds: Int64Array = np.rint(edges).astype(np.int64)
    waited = IntervalSet.of(start, start + rows["wait_ns"].to_numpy())
    return waited.coverage(bounds[:-1], bounds[1:]).astype(np.float64)
