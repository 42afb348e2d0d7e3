"""Which few groups of cells explain the change.

What differs in kind comes first: work of one side only, other kernels, types, shapes, numbers of calls. Of each such difference the
largest groups are taken in which everything differs so. Then, for what is left and the same on both sides, the hypothesis "the
calls of this group take longer by one factor, and nothing else changed" is tried for every group; the one that leaves least
(the sum of |change − predicted change|) is taken, the more specific of two that do equally well; what it explains is taken away;
again, until what is left is noise (`factors`). Idle time goes by cause: there, the group whose sum changed most. If there are more calls that
wait for the device, or fewer, the idle time in them and that until the host has launched more work are one change; else idle time goes with the work of
one side that caused it.
"""

from __future__ import annotations

from dataclasses import field
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.caused import IdleOf
from tracekit.diff.cells import Cells, Groups, groups_of
from tracekit.diff.factors import SURE, depths, factors, specific
from tracekit.diff.inputs import types_told
from tracekit.diff.model import ChangeKind
from tracekit.diff.replaced import LAYER
from tracekit.diff.updates import UPDATE
from tracekit.diff.waits import Waits
from tracekit.groups import or_none

__all__ = ["WAITS", "Found", "explained"]

Array: TypeAlias = npt.NDArray[Any]

_DIMENSIONS: Final = (
    ("layer",),
    ("operator",),
    ("type",),
    ("category",),
    ("name",),
    ("phase",),
    ("layer", "operator"),
    ("layer", "category"),
    ("layer", "name"),
    ("layer", "phase"),
    ("type", "operator"),
    ("type", "phase"),
    ("operator", "shapes"),
    ("operator", "phase"),
    ("category", "phase"),
    ("layer", "operator", "phase"),
    (),
    ("cell",),
)
"""What the cells of a group may have in common; of groups that do equally well the first."""
_OF_IDLE: Final = (
    ("category",),
    ("category", "name"),
    ("category", "operator"),
    ("category", "layer"),
    ("category", "name", "operator"),
    ("category", "name", "operator", "layer"),
    ("cell",),
)

WAITS: Final = ("waits",)
"""`Found.by` of idle time that goes with more or fewer waiting calls."""

_PURE: Final = 0.97
_FEWER: Final = 0.02
_LEAST: Final = 5e-4
"""Of the step time: smaller changes are not told."""
_LEAST_NS: Final = 1.0
_MUCH: Final = 0.01
"""Of the step time: what is left of a category is told from this on."""
_PART: Final = 0.1
"""Of a change that is so much; then smaller parts of it are told."""
_AS_GOOD_IDLE: Final = 0.9
_WITHIN: Final = 0.5
_MOST: Final = 24
"""Changes of one kind of difference."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A part of the change: its cells, how much of them it explains, and what they have in common."""

    kind: ChangeKind
    cells: Array
    delta: Fraction
    noise: float | None
    by: tuple[str, ...]
    """The columns of the group; empty for all work, `rest` for the small ones of a kind together."""
    node: int = -1
    sure: bool = True
    idle: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Cells of idle time that this work caused; `delta` holds it."""


def explained(cells: Cells, parents: Array, *, names: bool, waits: Waits) -> list[Found]:
    """The changes; their cells may overlap, their amounts do not. `names`: kernels of both sides have the same names."""
    if not cells.base.size:
        return []
    return _Search(cells, parents, names=names, waits=waits).found


class _Search:
    def __init__(self, cells: Cells, parents: Array, *, names: bool, waits: Waits) -> None:
        self.cells = cells
        self.parents = parents
        self.left = cells.new - cells.base
        self.given = np.zeros(cells.base.size, dtype=np.int64)  # ps of each cell's change that are explained
        self.open = np.ones(cells.base.size, dtype=bool)  # nothing explains all of the cell's change
        self.least = max(_LEAST * max(cells.base.sum(), cells.new.sum()), _LEAST_NS)
        self.found: list[Found] = []
        idle = (cells.frame["kind"] == "idle").to_numpy()
        self.dimensions = tuple(each for each in _DIMENSIONS if names or "name" not in each)
        self.idle = idle
        self.idle_of = None if waits.matter else IdleOf(cells)
        how = cells.frame["how"].cast(pl.String).to_numpy()
        other = np.isin(how, ["operator", "category"])
        replaced = (how == "kernel") & names
        open_ = ~idle
        self._pure("added", (how == "none") & (cells.base == 0) & open_)
        self._pure("removed", (how == "none") & (cells.base > 0) & open_)
        retyped = (how == "dtype") & _retyped(cells.frame)
        self._pairs("dtype", retyped & open_, "base_dtypes", "new_dtypes")
        self._reshaped((how == "shape") & open_)
        self._pairs("kernel", how == UPDATE, "phase")
        self._pairs("kernel", how == LAYER, "base_work", "new_work")
        self._pairs("kernel", replaced & open_, "base_name", "new_name")
        self._of_others(other & open_)
        open_ &= ~replaced & ~other & ~retyped & ~np.isin(how, ["none", "shape", UPDATE, LAYER])
        more, fewer = self._called(open_)
        self._pure("more_calls", more)
        self._pure("fewer_calls", fewer)
        self._factors(open_ & ~more & ~fewer)
        self._waits(idle, waits)
        self._idle(idle)
        self._unsure(idle)

    # -- what differs in kind -----------------------------------------------------------------------

    @cached_property
    def groups(self) -> Groups:
        """The groups of all work."""
        return groups_of(self.cells, ~self.idle, self.parents, self.dimensions)

    def _called(self, wanted: Array) -> tuple[Array, Array]:
        """Cells whose number of calls explains most of their change: more, fewer. Calls may take less time than the others; and where there are
        many more or fewer, no other change is that of the same calls.
        """
        before, after = (self.cells.frame[f"{side}_calls"].to_numpy() for side in ("base", "new"))
        known = wanted & (before > 0) & (np.abs(after - before) > _FEWER * before)
        effect = np.where(known, (after - before) * self.cells.base / np.where(known, before, 1.0), 0.0)
        size, error, along = np.abs(effect), 3 * self.cells.error, self.left * np.sign(effect)
        as_long = np.abs(self.left - effect) <= np.maximum(_WITHIN * size, error)
        cheaper, many = (along > 0) & (along < size), size >= _WITHIN * self.cells.base
        known &= as_long | ((np.abs(self.left) > error) & (cheaper | many))
        return known & (after > before), known & (after < before)

    def _reshaped(self, mask: Array) -> None:
        """Of other shapes, layers in which no layer keeps its shapes and the like; the rest by operator and layer."""
        if not mask.any():
            return
        groups, node = self.groups, or_none(self.cells.frame["node"])
        size, place = np.maximum(self.cells.base, self.cells.new) * ~self.idle, node + 1
        whole, there = (np.bincount(place, each) for each in (size, size * mask))
        keeps = ((whole >= self.least) & (there < _WITHIN * whole))[place]
        inner = node[groups.members] != np.repeat(groups.node, np.diff(groups.starts))
        spread = np.add.reduceat(inner, groups.starts[:-1]) > 0
        told = [each not in (("operator", "shapes"), ("cell",)) for each in groups.dimensions]
        mixed = [each != ("layer",) and "layer" in each for each in groups.dimensions]
        kind = groups.kind
        wanted = np.array(told)[kind] & (groups.sums(keeps) == 0) & ~(np.array(mixed)[kind] & spread)
        self._pairs("shape", self._grouped("shape", mask, wanted), "operator", "node")

    def _pure(self, kind: ChangeKind, mask: Array) -> None:
        """The largest groups in which everything differs so, and the rest."""
        if not mask.any():
            return
        free = self._grouped(kind, mask, np.ones(self.groups.kind.size, dtype=bool))
        rest = np.flatnonzero(free)
        if np.maximum(self.cells.base, self.cells.new)[rest].sum() >= self.least:
            self._whole(kind, rest, ("rest",), -1)

    def _grouped(self, kind: ChangeKind, mask: Array, wanted: Array) -> Array:
        """Take the largest of the wanted groups in which everything differs so; the cells of none."""
        groups, size = self.groups, np.maximum(self.cells.base, self.cells.new)
        there = groups.sums(size * mask)
        pure = np.flatnonzero(wanted & (there > 0) & (there >= _PURE * groups.sums(size)))
        outer = kind in ("added", "removed")
        depth = depths(groups.node[pure], self.parents) * (1 if outer else -1)
        order = pure[np.lexsort((depth, groups.kind[pure], -np.round(there[pure])))]
        free, taken = mask.copy(), 0
        for group in order:
            mine = groups.cells(int(group))
            mine = mine[free[mine]]
            if mine.size and size[mine].sum() >= _WITHIN * there[group]:
                if there[group] < self.least or taken == _MOST:
                    break
                by = groups.dimensions[groups.kind[group]]
                self._whole(kind, mine, by or (() if not taken else ("rest",)), int(groups.node[group]))
                free[mine] = False
                taken += 1
        return free

    def _of_others(self, mask: Array) -> None:
        """Work of other operators. Of several on a side none stands for one other: what does the work of a category is one change."""
        several = (self.cells.frame["leaves"] > 2).to_numpy() & (
            self.cells.frame["how"].cast(pl.String) == "category"
        ).to_numpy()
        self._pairs("kernel", mask & several, "category")
        self._pairs("kernel", mask & ~several, "base_operator", "new_operator", "category")

    def _pairs(self, kind: ChangeKind, mask: Array, *keys: str) -> None:
        """All cells that agree in the keys, as those in which one thing stands for one other; of types in those that differ."""
        wanted = np.flatnonzero(mask)
        size = np.maximum(self.cells.base, self.cells.new)
        told = self.cells.frame[wanted].select(pl.col(keys).cast(pl.String))
        if kind == "dtype":
            rows = [types_told(*pair) for pair in told.rows()]
            told = pl.DataFrame(rows, dict.fromkeys(keys, pl.String), orient="row")
        pairs = (
            told.with_columns(pl.Series("cell", wanted), pl.Series("size", size[wanted]))
            .group_by(keys)
            .agg("cell", pl.col("size").sum())
            .sort("size", *keys, descending=[True, *(False for _ in keys)])
        )
        rest: list[Array] = []
        for number, (mine, total) in enumerate(pairs.select("cell", "size").rows()):
            if number < _MOST and total >= self.least:
                self._whole(kind, np.array(mine), ("pair",), -1)
            else:
                rest.append(np.array(mine))
        if rest and size[np.concatenate(rest)].sum() >= self.least:
            self._whole(kind, np.concatenate(rest), ("rest",), -1)

    def _whole(
        self, kind: ChangeKind, mine: Array, by: tuple[str, ...], node: int, *, sure: bool = True
    ) -> None:
        """All that is left of some cells is this."""
        idle = self.idle_of(kind, mine, self.left * self.open) if self.idle_of else mine[:0]
        both = np.concatenate([mine, idle])
        delta = self.cells.exactly(both) - Fraction(int(self.given[both].sum()), 1000)
        self.found.append(Found(kind, mine, delta, self.cells.noise(both), by, node, sure, idle))
        self.left[both] = 0.0
        self.open[both] = False

    # -- what takes longer ---------------------------------------------------------------------------

    def _factors(self, wanted: Array) -> None:
        """Each cell is in one of these changes, which holds all that it took longer or less."""
        for one in factors(self.cells, wanted, self.parents, self.dimensions, self.least, self._listed()):
            self._whole(one.kind, one.cells, one.by, one.node)

    def _exactly(self, mine: Array, whole: Array, parts: Array) -> Fraction:
        """All that is left of some of these cells (a mask), and so many ps of the others."""
        left = self.cells.exactly(mine[whole]) - Fraction(int(self.given[mine[whole]].sum()), 1000)
        return left + Fraction(int(parts.sum()), 1000)

    def _take(self, mine: Array, whole: Array, parts: Array) -> None:
        self.given[mine] += parts
        self.left[mine] = np.where(whole, 0.0, self.left[mine] - parts / 1000)
        self.open[mine[whole]] = False

    # -- idle time -----------------------------------------------------------------------------------

    def _waits(self, wanted: Array, waits: Waits) -> None:
        """Idle time that goes with more or fewer calls that wait."""
        part = waits.parts(self.cells, self.left * wanted)
        mine = np.flatnonzero(part)
        least = max(self.least, SURE * (self.cells.noise(mine) or 0.0))
        if mine.size and abs(float(self.left @ part)) >= least:
            whole = part[mine] == 1
            parts = np.where(whole, 0, np.round(self.left * part * 1000)[mine]).astype(np.int64)
            exact = self._exactly(mine, whole, parts)
            self.found.append(Found("idle", mine, exact, self.cells.noise(mine), WAITS))
            self._take(mine, whole, parts)

    def _idle(self, wanted: Array) -> None:
        groups = groups_of(self.cells, wanted, self.parents, _OF_IDLE)
        if not groups.kind.size:
            return
        error = np.sqrt(groups.sums(self.cells.error**2))
        weight, depth = (
            groups.sums(np.maximum(self.cells.base, self.cells.new)),
            depths(groups.node, self.parents),
        )
        open_ = np.ones(groups.kind.size, dtype=bool)
        for _ in range(2 * _MOST):
            score = np.where(open_, np.abs(groups.sums(self.left)) - 2 * error, 0.0)
            if score.max() < self.least:
                return
            good = np.flatnonzero(score >= _AS_GOOD_IDLE * score.max())
            group = specific(good, weight, groups.kind, depth)
            mine = groups.cells(group)
            mine = mine[self.left[mine] != 0]
            noise = self.cells.noise(mine)
            delta = float(self.left[mine].sum())
            if abs(delta) < SURE * (noise or float(error[group])):
                open_[group] = False
                continue
            by, node = groups.dimensions[groups.kind[group]], int(groups.node[group])
            self._whole("idle", mine, by, node)

    def _listed(self) -> float:
        """What may be noise is told from so many ns on."""
        much, change = _MUCH / _LEAST * self.least, abs(float(self.cells.new.sum() - self.cells.base.sum()))
        return float(max(self.least, min(much, _PART * change)) if change >= much else much)

    def _unsure(self, idle: Array) -> None:
        """What is left of a category of work or a cause, if that is much, or much of a change that is: it may be noise. If nearly all of
        it is in one cell, only of this one.
        """
        least = self._listed()
        for mask in (idle, ~idle & (self.cells.base > 0)):
            groups = groups_of(self.cells, mask & self.open, self.parents, (("category",),))
            left = groups.sums(self.left)
            for group in np.flatnonzero(np.abs(left) >= least):
                kind: ChangeKind = "idle" if mask is idle else "slower" if left[group] > 0 else "faster"
                mine = groups.cells(int(group))
                order = mine[np.argsort(-np.abs(self.left[mine]))]
                first, second = (float(self.left[each].sum()) for each in (order[:1], order[1:2]))
                alone = first / left[group] >= _AS_GOOD_IDLE and abs(second) < _WITHIN * abs(first)
                by = ("cell",) if alone else ("category",)
                self._whole(kind, order[:1] if alone else mine, by, -1, sure=False)


def _retyped(frame: pl.DataFrame) -> Array:
    """Whether an input of a cell has another type; an optional one that only one side gives is the same work."""
    pairs = frame.select(pl.col("base_dtypes", "new_dtypes").cast(pl.String))
    known = {pair: types_told(*pair) != (None, None) for pair in pairs.unique().rows()}
    return np.array([known[pair] for pair in pairs.rows()], dtype=bool)
