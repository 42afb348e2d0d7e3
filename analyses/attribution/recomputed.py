"""Which host spans are a forward pass that runs again inside the backward pass (activation checkpointing)."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.spans import BoolArray, Int64Array, Nesting, take

__all__ = ["recomputed_spans", "run_again"]

_CHECKPOINT_NODE: Final = r"\bCheckpoint\w*Backward$"
"""The node of a reentrant checkpoint: it runs the forward pass again, and then the backward pass of it."""
_MOST_NODES: Final = 0.5
"""A checkpoint runs again in one node; if most nodes do, autograd records them for gradients of gradients."""


def recomputed_spans(
    stack: HostStack, is_node: BoolArray, node: Int64Array, forward: Int64Array
) -> BoolArray:
    """Which spans are forward operators that run again inside a backward node, or lie in one.

    `is_node`, `node` and `forward` are those of `Backward`. Autograd numbers the operators of a forward pass. It numbers
    those of a backward pass only if their own gradients are wanted (`create_graph=True`), and then nodes outside of the
    node bear the same numbers later.
    """
    none = np.zeros(stack.size, dtype=bool)
    in_node = stack.of_kind("op") & ~is_node & (node >= 0)
    again = in_node & (stack.sequence >= 0)
    if not again.any():
        return none
    top = stack.nesting.nearest_ancestor(is_node & (take(node, stack.nesting.parent) < 0))
    checkpoint = stack.nesting.nearest_ancestor(stack.named(_CHECKPOINT_NODE, "op") & is_node) >= 0
    holders = np.unique(top[again & ~checkpoint])
    if holders.size > _MOST_NODES * np.unique(top[in_node]).size:
        again &= checkpoint
    nodes = np.flatnonzero(is_node & (forward >= 0))
    source = forward[nodes]
    elsewhere = again[source] & (top[source] != top[nodes])
    twice = np.zeros(stack.size + 1, dtype=bool)
    twice[top[source[elsewhere]]] = True
    again &= checkpoint | ~twice[top]
    return stack.nesting.nearest_ancestor(again) >= 0


def run_again(
    nesting: Nesting, names: pl.Series, in_node: BoolArray, row: Int64Array, tree: pl.DataFrame
) -> tuple[Int64Array, pl.DataFrame]:
    """The rows of modules in their tree, and the tree: a module that runs again in the backward pass is the one that ran before.

    Then no frames of the modules around it are open. A profiler numbers the modules of a class, so its name tells which one it is, if
    all other calls with that name have one path. `row` and `tree` are those of `nested_paths`, `in_node` the frames in nodes of autograd.
    """
    top = nesting.nearest_ancestor(nesting.parent < 0)
    again = in_node[top]
    if not again.any():
        return row, tree
    paths = tree["path"].to_list()
    number: dict[str | None, int] = {path: index for index, path in enumerate(paths)}
    first = pl.DataFrame({"name": names, "row": row}).filter(~again).unique()
    once = first.filter(pl.len().over("name") == 1)
    place = {name: paths[index] for name, index in once.rows()}
    moved = np.arange(len(paths))
    for name, index in pl.DataFrame({"name": names[top], "row": row}).filter(again).unique().rows():
        if name in place:
            there = number.get(place[name] + paths[index].removeprefix(name))
            moved[index] = index if there is None else there
    new = np.where(again, moved[row], row)
    kept = np.isin(np.arange(len(paths)), new)
    above = np.array([number.get(parent, -1) for parent in tree["parent"]])
    while (more := np.setdiff1d(above[kept], [-1, *np.flatnonzero(kept)])).size:
        kept[more] = True
    return np.cumsum(kept)[new] - 1, tree.filter(kept)
