"""Sums over trees that are given as arrays of parents: along the paths, per group, and as unions of time.

A tree is `parent` (row number, −1 for a root) and `depth` (0 for a root) per node; the loops are over levels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from tracekit.span_passes import sums_of_paths
from tracekit.spans import BoolArray, Int64Array, take

__all__ = ["depth_first", "has_same_above", "parent_rows", "rolled_up", "rolled_up_least", "union_per_node"]

_NEVER = np.iinfo(np.int64).min // 2
"""Before any time."""


def rolled_up(values: Int64Array, parent: Int64Array, depth: Int64Array) -> Int64Array:
    """The sums over each node and all below it; `values` has one row per node, with any number of columns.

    >>> rolled_up(np.array([1, 2, 4]), np.array([-1, 0, 1]), np.array([0, 1, 2])).tolist()
    [7, 6, 4]
    """
    found = values.copy()
    for rows in _deepest_first(depth):
        np.add.at(found, parent[rows], found[rows])
    return found


def rolled_up_least(values: Int64Array, parent: Int64Array, depth: Int64Array) -> Int64Array:
    """The least value among each node and all below it."""
    found = values.copy()
    for rows in _deepest_first(depth):
        np.minimum.at(found, parent[rows], found[rows])
    return found


def _deepest_first(depth: Int64Array) -> Iterator[Int64Array]:
    """The nodes of each level but the roots, the deepest level first."""
    order = np.argsort(-depth, kind="stable")
    order = order[depth[order] > 0]
    yield from np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def depth_first(parent: Int64Array, key: Int64Array) -> Int64Array:
    """The nodes in the order in which a walk meets them: each before those below it, siblings by `key`.

    >>> depth_first(np.array([-1, 0, 0, -1]), np.array([5, 9, 7, 1])).tolist()
    [3, 0, 2, 1]
    """
    below: dict[int, list[int]] = {}
    for node in np.lexsort((np.arange(key.size), key))[::-1].tolist():
        below.setdefault(int(parent[node]), []).append(node)
    waiting, found = list(below.get(-1, [])), []
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += below.get(node, [])
    return np.array(found, dtype=np.int64)


def has_same_above(parent: Int64Array, group: Int64Array) -> BoolArray:
    """Which nodes have a node of the same group above them, however far."""
    found = np.zeros(parent.size, dtype=bool)
    if not parent.size:
        return found
    depth = sums_of_paths(np.ones(parent.size, dtype=np.int64), parent) - 1
    size = rolled_up(np.ones(parent.size, dtype=np.int64), parent, depth)
    # Where a walk meets each node: after the one above it and all below its siblings before it.
    order = np.argsort(parent, kind="stable")
    before = np.cumsum(size[order]) - size[order]
    first = np.searchsorted(parent[order], parent[order])
    ahead = np.empty_like(size)
    ahead[order] = before - before[first]
    place = sums_of_paths(ahead, parent) + depth
    # So those below a node are a range of places; of ranges that nest the furthest end tells whether one is open.
    code = np.unique(group, return_inverse=True)[1].astype(np.int64) * (parent.size + 1)
    order = np.argsort(code + place)
    reach = np.maximum.accumulate((code + place + size)[order])
    found[order[1:]] = reach[:-1] > (code + place)[order[1:]]
    return found


def union_per_node(
    node: Int64Array, start: Int64Array, end: Int64Array, parent: Int64Array, depth: Int64Array
) -> Int64Array:
    """For each node the time in ns in which at least one interval of it, or of a node below it, is open.

    `node` says where each interval [start, end) belongs; −1 for nowhere.
    """
    kept = np.flatnonzero((node >= 0) & (end > start))
    kept = kept[np.argsort(start[kept], kind="stable")]
    node, start, end = node[kept], start[kept], end[kept]
    own = np.zeros(parent.size, dtype=np.int64)
    np.add.at(own, node, end - start)
    found = rolled_up(own, parent, depth)
    # Where an interval overlaps no other, it adds its length to every union.
    shared = _overlapping(start, end)
    node, start, end = node[shared], start[shared], end[shared]
    above = node.copy()
    for level in range(int(depth[node].max()) if node.size else -1, -1, -1):
        above = np.where(depth[above] > level, take(parent, above), above)
        rows = np.flatnonzero(depth[above] == level)
        at, counted_twice = _excess(above[rows], start[rows], end[rows])
        found[at] -= counted_twice
    return found


def _overlapping(start: Int64Array, end: Int64Array) -> BoolArray:
    """Which of the intervals, in order of start, overlap another."""
    if start.size < 2:
        return np.zeros(start.size, dtype=bool)
    before = np.append(np.False_, np.maximum.accumulate(end)[:-1] > start[1:])
    after = np.append(start[1:] < end[:-1], np.False_)
    return before | after


def _excess(group: Int64Array, start: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The groups, and by how much the lengths of each exceed their union; intervals in order of start."""
    reach = pl.col("end").cum_max().shift(1).over("group")
    rows = pl.DataFrame({"group": group, "start": start, "end": end}).with_columns(reach.alias("reach"))
    # The first of a group has nothing before it; `min_horizontal` would pass over that null.
    twice = (pl.min_horizontal("end", pl.col("reach").fill_null(_NEVER)) - pl.col("start")).clip(
        lower_bound=0
    )
    sums = rows.group_by("group").agg(twice.sum().alias("twice"))
    return sums["group"].to_numpy(), sums["twice"].to_numpy()


def parent_rows(tree: pl.DataFrame) -> Int64Array:
    """For each row of a tree of layers (`layer_id`, `parent_layer_id`) the number of its parent's row, −1 for a root."""
    row_of = {layer: row for row, layer in enumerate(tree["layer_id"]) if layer is not None}
    return np.array([row_of.get(layer, -1) for layer in tree["parent_layer_id"]], dtype=np.int64)
