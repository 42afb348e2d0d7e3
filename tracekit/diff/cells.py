"""The cells of a comparison as arrays: what each took on both sides, how sure that is, and the groups that a change may have hit."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.matching import TEXTS
from tracekit.diff.pool import Pool
from tracekit.diff.replaced import names_replaced
from tracekit.groups import or_none
from tracekit.scaling.laws import t_quantile

__all__ = ["Cells", "Groups", "cells_as_arrays", "groups_of"]

Array: TypeAlias = npt.NDArray[Any]

_MOST_LEVELS: Final = 64
_PRIOR_STEPS: Final = 4
_UNKNOWN_SPREAD: Final = 0.03
"""Of a cell, relative to its time, where there is one step only."""
_LEAST_SPREAD: Final = 1e-4
_CLOCK_NS: Final = 1.0
_MOST_CELLS: Final = 20_000
"""The groups are made of the largest cells; what lies beyond stays unexplained."""
_SPARSE: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """One entry per cell. Times are ns per step."""

    frame: pl.DataFrame
    """`how`, `leaves`, `shapes_met` (how many the leaves have), `base_sum`, `new_sum`, `base_calls`, `new_calls`, `base_whole`, `new_whole` (per step; the last two in ns, also what others hide), and of the largest leaf of either side the texts and the node as
    `base_NAME`, `new_NAME`; as `NAME` those of the new side, else of the base; `base_work` and `new_work` of layers in which other operators do the work.
    """
    sums: tuple[Array, Array]
    denominators: tuple[int, int]
    base: Array
    new: Array
    error: Array
    """The standard error of new − base."""
    observed: tuple[Observed, ...]
    """What the errors rest on: each side's, or of pairs of runs what differs within them."""
    wider: float
    """By so much few runs widen the errors."""

    def exactly(self, cells: Array) -> Fraction:
        """The change of some cells together, in ns per step."""
        base, new = (
            Fraction(int(sums[cells].sum()), denominator)
            for sums, denominator in zip(self.sums, self.denominators, strict=True)
        )
        return new - base

    def noise(self, cells: Array) -> float | None:
        """The standard error of the change of some cells together, by the spread of their sum; None where nothing shows how much it varies."""
        sums = [each.sums(cells) for each in self.observed]
        varied = [(own, each.weights) for own, each in zip(sums, self.observed, strict=True) if own.size > 1]
        if not varied:
            return None
        means = [float((weights * own).mean()) for own, weights in varied]
        squares = [float(((weights * (own - mean)) ** 2).sum()) / (own.size - 1) for (own, weights), mean in zip(varied, means, strict=True)]  # fmt: skip
        total = sum(square / own.size for square, (own, _) in zip(squares, varied, strict=True))
        if len(varied) < len(sums):  # the one run of a side varies as those of the other do
            if not self.observed[0].by_run:
                return None
            (single,) = (float(own.sum()) for own in sums if own.size < 2)
            total += squares[0] * (single / means[0]) ** 2 if means[0] else 0.0
        return float(np.sqrt(max(self.wider**2 * total, float((self.error[cells] ** 2).sum()))))


def cells_as_arrays(rows: pl.DataFrame, base: Pool, new: Pool, *, paired: bool = False) -> Cells:
    """The cells of `matching.cells_of`. `paired`: runs of one place belong together."""
    columns = (*TEXTS, "node")
    ordered = rows.sort("ns", descending=True, maintain_order=True)
    firsts = [
        ordered.filter(pl.col("new") == side)
        .unique("cell", keep="first", maintain_order=True)
        .select("cell", *(pl.col(name).alias(f"{('base', 'new')[side]}_{name}") for name in columns))
        for side in (False, True)
    ]
    of_sides = [
        pl.when(pl.col("new") == side).then(column).otherwise(0).alias(f"{('base', 'new')[side]}_{name}")
        for column, name in (("ns", "sum"), ("calls", "calls"), ("duration_ns", "whole"))
        for side in (False, True)
    ]  # columns first: a filter for each group takes twice as long
    sums = (
        rows.select("cell", "how", "shapes", *of_sides)
        .group_by("cell")
        .agg(
            pl.col("how").first(),
            pl.len().alias("leaves"),
            pl.col("shapes").n_unique().alias("shapes_met"),
            pl.exclude("cell", "how", "shapes").sum(),
        )
    )
    frame = sums.sort("cell")
    for first in firsts:
        frame = frame.join(first, on="cell", how="left", maintain_order="left")
    frame = frame.join(names_replaced(rows), on="cell", how="left", maintain_order="left")
    denominators = base.side.denominator, new.side.denominator
    frame = frame.with_columns(
        *(pl.coalesce(f"new_{name}", f"base_{name}").alias(name) for name in columns),
        pl.col("base_calls", "base_whole") / denominators[0],
        pl.col("new_calls", "new_whole") / denominators[1],
    )
    exact = frame["base_sum"].to_numpy(), frame["new_sum"].to_numpy()
    means = exact[0] / denominators[0], exact[1] / denominators[1]
    by_run = max(side.runs.max(initial=0) for side in (base, new)) > 0
    observed = tuple(
        Observed.of(rows.filter(pl.col("new") == bool(at)), side, frame.height, by_run=bool(by_run))
        for at, side in enumerate((base, new))
    )
    if paired and by_run and observed[0].weights.size == observed[1].weights.size:
        observed = (observed[1].less(observed[0]),)
    freedom = sum(each.weights.size - 1 for each in observed)
    wider = t_quantile(freedom) / t_quantile(10**9) if by_run else 1.0
    return Cells(frame, exact, denominators, *means, wider * _errors(means, observed), observed, wider)


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """How a side varies: of each step what each cell took, in the mean over ranks, or, if a side has several runs, of each run in the mean of its
    steps.
    """

    by_run: bool
    at: Array
    """The step or run of each value; cell by cell, in order."""
    ns: Array
    starts: Array
    """Where the values of each cell begin, and the last ones end."""
    weights: Array
    """How much each step or run counts; 1 in the mean."""

    @staticmethod
    def of(rows: pl.DataFrame, side: Pool, count: int, *, by_run: bool) -> Observed:
        """Those of the rows of a side; there are `count` cells."""
        cell_of = np.full(side.leaves.height, -1, dtype=np.int64)
        cell_of[rows["leaf"].to_numpy()] = rows["cell"].to_numpy()
        cell, step = cell_of[side.values["leaf"].to_numpy()], side.values["at"].to_numpy()
        told = cell >= 0
        ns = side.values["ns"].to_numpy()[told] / side.side.unit
        unit = side.runs if by_run else side.places
        weights: Array = np.bincount(unit, side.weights) if unit.size else np.ones(1)
        parts = side.weights / weights[unit]
        return _by_cell(
            by_run, cell[told], unit[step[told]], ns * parts[step[told]], weights / weights.mean(), count
        )

    def less(self, other: Observed) -> Observed:
        """What it takes more than another one of as many runs."""
        count = self.starts.size - 1
        cells = (np.repeat(np.arange(count), np.diff(each.starts)) for each in (self, other))
        at, ns = np.concatenate([self.at, other.at]), np.concatenate([self.ns, -other.ns])
        return _by_cell(self.by_run, np.concatenate([*cells]), at, ns, self.weights, count)

    def sums(self, cells: Array) -> Array:
        """What some cells took together, in each step or run."""
        sizes = self.starts[cells + 1] - self.starts[cells]
        met = np.repeat(self.starts[cells] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        return np.bincount(self.at[met], self.ns[met], minlength=self.weights.size)

    def variances(self) -> Array:
        """Of each cell that over the steps or runs."""
        count, size = self.starts.size - 1, self.weights.size
        cells, weight = np.repeat(np.arange(count), np.diff(self.starts)), self.weights[self.at]
        mean = np.bincount(cells, self.ns * weight, minlength=count) / size
        squares = np.bincount(cells, (weight * (self.ns - mean[cells])) ** 2, minlength=count)
        absent = float(self.weights @ self.weights) - np.bincount(cells, weight**2, minlength=count)
        return np.asarray((squares + np.maximum(absent, 0.0) * mean**2) / max(1, size - 1))


def _by_cell(by_run: bool, cell: Array, at: Array, ns: Array, weights: Array, count: int) -> Observed:
    """The values summed for each cell and step or run."""
    keys = cell * weights.size + at
    numbers = _numbered(keys)
    summed = np.bincount(numbers, ns)
    distinct = np.zeros(summed.size, dtype=np.int64)
    distinct[numbers] = keys
    cells, of = np.divmod(distinct, weights.size)
    return Observed(by_run, of, summed, np.searchsorted(cells, np.arange(count + 1)), weights)


def _errors(means: tuple[Array, Array], observed: tuple[Observed, ...]) -> Array:
    """The standard error of each cell's change: its own spread, drawn towards what is common relative to the mean."""
    of = [np.maximum(*means)] if len(observed) < len(means) else means
    variances, counts = [each.variances() for each in observed], [each.weights.size for each in observed]
    common = [
        float(_weighted_median(np.sqrt(variance[mean > 0]) / mean[mean > 0], mean[mean > 0]))
        if count > 1 and (mean > 0).any()
        else None
        for mean, variance, count in zip(of, variances, counts, strict=True)
    ]
    known = [each for each in common if each is not None] if observed[0].by_run else []
    total = np.zeros(means[0].size)
    for mean, variance, count, own in zip(of, variances, counts, common, strict=True):
        spread = own if own is not None else known[0] if known else _UNKNOWN_SPREAD
        prior = (max(spread, _LEAST_SPREAD) * mean) ** 2
        drawn = (_PRIOR_STEPS * prior + (count - 1) * variance) / (_PRIOR_STEPS + count - 1)
        total += (drawn + _CLOCK_NS**2) / max(1, count)
    return np.asarray(np.sqrt(total))


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values, kind="stable")
    reach = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reach, reach[-1] / 2)])


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Sets of cells that have something in common. Group g is `members[starts[g] : starts[g + 1]]`."""

    dimensions: tuple[tuple[str, ...], ...]
    kind: Array
    """Of each group the number of what its cells have in common, in `dimensions`."""
    node: Array
    """The layer below which all cells lie, if that is it; else −1."""
    members: Array
    starts: Array

    def cells(self, group: int) -> Array:
        """The cells of a group."""
        return self.members[self.starts[group] : self.starts[group + 1]]

    def sums(self, weights: Array) -> Array:
        """The sum of the cells' weights for each group."""
        return np.add.reduceat(weights[self.members], self.starts[:-1]) if self.kind.size else weights[:0]


def groups_of(cells: Cells, wanted: Array, parents: Array, dimensions: tuple[tuple[str, ...], ...]) -> Groups:
    """The groups of the wanted cells (a mask) by each of some combinations of columns. `layer` stands for all layers around a cell,
    whose `parents` are given; `cell` for the cell alone; no column for all.
    """
    at = np.flatnonzero(wanted)
    if at.size > _MOST_CELLS:
        size = np.maximum(cells.base, cells.new)[at]
        at = np.sort(at[np.argpartition(-size, _MOST_CELLS)[:_MOST_CELLS]])
    node = or_none(cells.frame["node"])[at]
    row, around = _around(node, parents)
    columns = {column for each in dimensions for column in each} - {"layer", "cell"}
    known = {name: cells.frame[name].is_not_null().to_numpy()[at] for name in columns}
    codes = {
        name: np.unique(
            cells.frame[name].to_physical().fill_null(-1).cast(pl.Int64).to_numpy()[at], return_inverse=True
        )[1]
        for name in columns
    }
    everything = np.ones(at.size, dtype=bool)
    codes["cell"] = np.arange(at.size)
    kinds, nodes, members, of, count = [], [], [], [], 0
    for number, wanted_columns in enumerate(dimensions):
        mine = row if "layer" in wanted_columns else np.arange(at.size)
        told = np.ones(mine.size, dtype=bool)
        for column in wanted_columns:
            told &= known.get(column, everything)[mine]
        mine = mine[told]
        key = around[told] if "layer" in wanted_columns else np.zeros(mine.size, dtype=np.int64)
        innermost = key
        for column in wanted_columns:
            if column != "layer":
                code = codes[column][mine]
                key = _numbered(key * (int(code.max(initial=0)) + 1) + code)
        group = _numbered(key)
        groups = int(group.max(initial=-1)) + 1
        kinds.append(np.full(groups, number))
        nodes.append(np.full(groups, -1))
        if "layer" in wanted_columns:
            nodes[-1][group] = innermost
        members.append(at[mine])
        of.append(group + count)
        count += groups
    every, group = np.concatenate(members), np.concatenate(of)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(count + 1))
    return Groups(dimensions, np.concatenate(kinds), np.concatenate(nodes), every[order], starts)


def _numbered(key: Array) -> Array:
    """The rank of each value among the distinct ones; without a sort where the values are small."""
    largest = int(key.max(initial=0))
    if largest > _SPARSE * key.size:
        return np.unique(key, return_inverse=True)[1]
    there = np.zeros(largest + 1, dtype=np.int64)
    there[key] = 1
    numbers: Array = (np.cumsum(there) - 1)[key]
    return numbers


def _around(node: Array, parents: Array) -> tuple[Array, Array]:
    """For each cell the layers around it, its own first: the row of the cell, the layer."""
    rows, found = [], []
    row, at = np.arange(node.size), node
    for _ in range(_MOST_LEVELS):
        row, at = row[at >= 0], at[at >= 0]
        if not row.size:
            break
        rows.append(row)
        found.append(at)
        at = parents[at]
    if not rows:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return np.concatenate(rows), np.concatenate(found)
