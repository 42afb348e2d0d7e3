"""Which host spans are a forward pass that runs again inside the backward pass (activation checkpointing)."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.spans import BoolArray, Int64Array, take

__all__ = ["recomputed_spans"]

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
