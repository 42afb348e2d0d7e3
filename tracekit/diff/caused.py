"""Idle time that goes with work: of calls that only one side has, the device also waits for these calls, and of other updates for the optimizer."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.diff.cells import Cells
from tracekit.diff.model import ChangeKind
from tracekit.diff.updates import UPDATE
from tracekit.groups import or_none

__all__ = ["IdleOf"]

Array: TypeAlias = npt.NDArray[Any]

_OF_OTHERS: Final = ("synchronisation", "data_loading")
"""A call that waits for the device is told as such, and data are loaded for the whole step."""


_SIGNS: Final[dict[ChangeKind, int]] = {"added": 1, "more_calls": 1, "removed": -1, "fewer_calls": -1}
"""Changes with which idle time comes, or goes; with other updates it does either."""
_PART: Final = 0.1
"""Of the change of the work: less idle time is none of it, but that of a device that is always busy."""
_SURE: Final = 4.5
"""Standard errors, as of any change."""


class IdleOf:
    """Which idle time some work caused."""

    def __init__(self, cells: Cells) -> None:
        frame = cells.frame
        idle = frame["kind"].cast(pl.String) == "idle"
        own = idle & ~frame["category"].cast(pl.String).is_in(_OF_OTHERS).fill_null(value=False)
        node = or_none(frame["node"])
        called = frame.select(pl.struct(pl.col("operator").cast(pl.String), "node").rank("dense")).to_series()
        nameless = (frame["operator"].is_null() | frame["node"].is_null()).to_numpy()
        self._updates = (frame["how"].cast(pl.String) == UPDATE).to_numpy()
        self._of_updates = (
            own.to_numpy() & (frame["phase"].cast(pl.String) == "optimizer").fill_null(value=False).to_numpy()
        )
        self._cells = cells
        self._idle, self._work = own.to_numpy(), ~idle.to_numpy()
        self._codes = node, np.where(nameless, -1, called.to_numpy().astype(np.int64))

    def __call__(self, kind: ChangeKind, work: Array, left: Array) -> Array:
        """The cells of the idle time that came or went with these cells of work, if it is a real part of the change. `left` is what no change
        explains yet.
        """
        updates = bool(self._updates[work].any())
        if kind not in _SIGNS and not updates:
            return work[:0]
        idle = np.flatnonzero(self._of_updates) if updates else self._beside(work)
        idle = idle[left[idle] != 0]
        more, of_work = (float(left[cells].sum()) for cells in (idle, work))
        more = abs(more) if updates else _SIGNS[kind] * more
        least = 0.0 if updates else _PART * abs(of_work)  # a phase of the step is one either way
        noise = self._cells.noise(idle) if idle.size else None
        enough = more > max(least, _SURE * (noise or 0.0))
        return np.asarray(idle if enough else idle[:0])

    def _beside(self, work: Array) -> Array:
        """The idle cells in layers all of whose work these cells are, and in operators all of whose work in a layer they are."""
        mine = np.zeros(self._work.size, dtype=np.int64)
        mine[work] = 1
        found = np.zeros(mine.size, dtype=bool)
        for code in self._codes:
            place = code + 1
            own, whole = (np.bincount(place, each) for each in (mine, self._work))
            found |= self._idle & ((own > 0) & (own == whole))[place] & (code >= 0)
        return np.flatnonzero(found)
