"""Groups of cells whose calls take longer, or less long, by one factor.

The group is taken of which one factor explains most; its cells that changed in the same way, but by more, keep the rest of it for a group
of their own. So a cell may have been in several groups, but is told in the last of them alone, with all of its change: then no two
sentences tell the same time, and each percentage is that of the cells that it is told of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.diff.cells import Cells, Groups, groups_of

__all__ = ["SURE", "Factor", "depths", "factors", "specific"]

Array: TypeAlias = npt.NDArray[Any]

SURE: Final = 4.5
"""Standard errors; thousands of groups are tried."""
_AS_GOOD: Final = 0.98
_HARDLY_LARGER: Final = 1.25
_WITHIN: Final = 0.5
_MOST: Final = 96


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """Cells that take longer or less long."""

    kind: Literal["slower", "faster"]
    cells: Array
    by: tuple[str, ...]
    """What they have in common."""
    node: int


def factors(
    cells: Cells,
    wanted: Array,
    parents: Array,
    dimensions: tuple[tuple[str, ...], ...],
    least: float,
    listed: float,
) -> Iterator[Factor]:
    """Those among the wanted cells (a mask), of `least` ns or more, the first found first. A cell that changed by `listed` ns more than its group,
    which may be noise, is in none.
    """
    groups = groups_of(cells, wanted & (cells.base > 0), parents, dimensions)
    if groups.kind.size:
        search = _Search(cells, groups, depths(groups.node, parents), least)
        search.run()
        yield from search.told(listed)


class _Search:
    def __init__(self, cells: Cells, groups: Groups, depth: Array, least: float) -> None:
        self.cells, self.groups, self.depth, self.least = cells, groups, depth, least
        self.left = cells.new - cells.base
        self.open = np.ones(cells.base.size, dtype=bool)  # nothing explains all of the cell's change
        self.last = np.full(cells.base.size, -1, dtype=np.int64)  # the last group that explains some of it
        self.weight = groups.sums(cells.base)

    def run(self) -> None:
        """Take away what groups explain, until one is left that explains nothing."""
        groups, error = self.groups, np.sqrt(self.groups.sums(self.cells.error**2))
        open_ = np.ones(groups.kind.size, dtype=bool)
        known = np.full(groups.kind.size, np.nan)  # the gain of each group, until its cells change
        for _ in range(_MOST):
            up, down = groups.sums(np.maximum(self.left, 0)), groups.sums(np.maximum(-self.left, 0))
            most, net = np.maximum(up, down), np.abs(up - down)
            # Of a group most of which is explained, the rest would be told under its name.
            whole = groups.sums(self.cells.base * self.open) >= _WITHIN * self.weight
            tried = np.flatnonzero(open_ & whole & (net > SURE * error) & (net > self.least))
            gains, best = {}, 0.0
            for group in tried[np.argsort(-most[tried], kind="stable")]:
                if most[group] < _AS_GOOD * best:
                    break
                if np.isnan(known[group]):
                    known[group] = self._gain(groups.cells(int(group)))
                gains[int(group)] = float(known[group])
                best = max(best, gains[int(group)])
            if best <= 0:
                return
            good = np.array([group for group, gain in gains.items() if gain >= _AS_GOOD * best])
            group, before = specific(good, self.weight, groups.kind, self.depth), self.left.copy()
            if self._taken(group):
                known[groups.sums(self.left != before) > 0] = np.nan
            else:
                open_[group] = False

    def _gain(self, mine: Array) -> float:
        mine = mine[self.open[mine]]
        left, base = self.left[mine], self.cells.base[mine]
        predicted = _median_ratio(left, base) * base
        return float(np.abs(left).sum() - np.abs(left - predicted).sum())

    def _taken(self, group: int) -> bool:
        """Take away what one factor for a group explains. Cells that changed in the same way, but by more, keep the rest of it."""
        mine = self.groups.cells(group)
        mine = mine[self.open[mine]]
        left, error = self.left[mine], 3 * self.cells.error[mine]
        predicted = _median_ratio(left, self.cells.base[mine]) * self.cells.base[mine]
        sign = 1.0 if predicted.sum() > 0 else -1.0
        along, expected = left * sign, np.abs(predicted)
        most = expected + np.maximum(_WITHIN * expected, error)
        whole, part = (along >= -error) & (along <= most), along > most
        delta = float(left[whole].sum() + predicted[part].sum())
        touched = mine[whole | part]
        if abs(delta) < self._needed(touched):
            return False
        self.last[touched] = group
        self.left[mine] = np.where(whole, 0.0, left - predicted * part)
        self.open[mine[whole]] = False
        return True

    def _needed(self, mine: Array) -> float:
        """The least change of some cells that is told as sure."""
        noise = self.cells.noise(mine) or float(np.sqrt((self.cells.error[mine] ** 2).sum()))
        return max(self.least, SURE * noise)

    def told(self, listed: float) -> Iterator[Factor]:
        """Each cell in the last group that it was in, as far as that is sure then; cells of which much is left, in none."""
        change = self.cells.new - self.cells.base
        much = self.open & (np.abs(self.left) >= listed)
        for group in dict.fromkeys(self.last[self.last >= 0].tolist()):
            mine = np.flatnonzero((self.last == group) & ~much)
            for some in (mine, mine[~self.open[mine]]):
                delta = float(change[some].sum())
                if some.size and abs(delta) >= self._needed(some):
                    by = self.groups.dimensions[self.groups.kind[group]]
                    kind: Literal["slower", "faster"] = "slower" if delta > 0 else "faster"
                    yield Factor(kind, some, by, int(self.groups.node[group]))
                    break


def depths(nodes: Array, parents: Array) -> Array:
    """How many layers each node is in, itself among them."""
    depth, at = np.zeros(nodes.size, dtype=np.int64), nodes.copy()
    for _ in range(64):
        inside = at >= 0
        if not inside.any():
            break
        depth += inside
        at = np.where(inside, parents[at], -1)
    return depth


def specific(good: Array, weight: Array, kind: Array, depth: Array) -> int:
    """Of groups that do equally well one of the smallest: of those that are hardly larger than it the simplest, the innermost."""
    small = good[weight[good] <= weight[good].min() * _HARDLY_LARGER]
    return int(small[np.lexsort((-depth[small], kind[small]))[0]])


def _median_ratio(change: Array, base: Array) -> float:
    """The factor for which the sum of |change − factor · base| is least."""
    ratio = change / base
    order = np.argsort(ratio, kind="stable")
    reach = np.cumsum(base[order])
    return float(ratio[order][np.searchsorted(reach, reach[-1] / 2)])
