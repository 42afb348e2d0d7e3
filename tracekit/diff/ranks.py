"""Which ranks a change is of, where it is the mean over ranks that did not change alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.cells import Cells
from tracekit.diff.factors import SURE
from tracekit.diff.pool import Pool
from tracekit.facts.units import listed

__all__ = ["Ranks"]

Array: TypeAlias = npt.NDArray[Any]

_ALIKE: Final = 0.5
"""Of the mean change: ranks whose changes are no farther apart changed alike."""
_HARDLY: Final = 0.1
"""Of the largest change of a rank: one that changed less did not take part."""
_MOST: Final = 4
"""Ranks that are named."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The ranks that both sides have; none if a side is no run of several, or they are not the same."""

    names: tuple[int, ...]
    sides: tuple[_Side, _Side] | None

    @staticmethod
    def of(celled: pl.DataFrame, base: Pool, new: Pool) -> Ranks:
        """Those of two sides with the rows of `matching.cells_of`."""
        found = [[facts.rank for facts in pool.side.facts] for pool in (base, new)]
        names = tuple(rank for rank in found[0] if rank is not None)
        one_run = all(pool.runs.max(initial=0) == 0 and pool.side.has_steps for pool in (base, new))
        told = len(names) == len({*names}) == len(found[0]) > 1 and found[0] == found[1] and one_run
        if not told:
            return Ranks((), None)
        at_base, at_new = (_Side.of(celled.filter(pl.col("new") == at), pool) for at, pool in ((False, base), (True, new)))  # fmt: skip
        return Ranks(names, (at_base, at_new))

    def told(self, title: str, cells: Cells, mine: Array) -> str:
        """The title of a change of some cells, which says so if the ranks differ."""
        if self.sides is None:
            return title
        base, new = (side.means(mine, cells.base.size, len(self.names)) for side in self.sides)
        change = new - base
        chance = SURE * (cells.noise(mine) or 0.0) * float(np.sqrt(2 * len(self.names)))
        if float(np.ptp(change)) <= max(_ALIKE * abs(float(change.mean())), chance):
            return title
        text, bracket, amount = title.rpartition(" (") if title.endswith(")") else (title, "", "")
        return f"{text}, in the mean of {len(self.names)} ranks{self._which(change)}{bracket}{amount}"

    def _which(self, change: Array) -> str:
        most = float(np.abs(change).max())
        part = np.abs(change) > _HARDLY * most
        some: Sequence[str] = [str(self.names[at]) for at in np.flatnonzero(part)]
        if len(some) == len(self.names) or len(some) > _MOST:
            return ", which differ"
        return f": only {'rank' if len(some) == 1 else 'ranks'} {listed(some)} changed"


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """The values of a side: the cell of each, its rank, and ns over the steps of this rank."""

    cell: Array
    rank: Array
    ns: Array

    @staticmethod
    def of(rows: pl.DataFrame, pool: Pool) -> _Side:
        cell_of = np.full(pool.leaves.height, -1, dtype=np.int64)
        cell_of[rows["leaf"].to_numpy()] = rows["cell"].to_numpy()
        ranks = pool.side.steps.filter("kept")["run"].to_numpy()  # of each kept step
        at = pool.values["at"].to_numpy()
        counts = np.maximum(np.bincount(ranks, minlength=len(pool.side.facts)), 1)
        ns = pool.values["ns"].to_numpy() / pool.side.unit / counts[ranks[at]]
        return _Side(cell_of[pool.values["leaf"].to_numpy()], ranks[at], ns)

    def means(self, mine: Array, cells: int, ranks: int) -> Array:
        """What some cells take per step on each rank."""
        wanted = np.zeros(cells + 1, dtype=bool)  # the last is that of no cell, −1
        wanted[mine] = True
        there = wanted[self.cell]
        return np.bincount(self.rank[there], self.ns[there], minlength=ranks)
