"""From an activity of a replayed CUDA graph to the host span in which its node was captured.

A replay is one call for all that the graph holds; the call that made the node lies where the work was written down:
under the layer's range, in the operator, in the phase.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.scope import Scope
from tracekit.facts.launch_apis import GRAPH_COPY
from tracekit.spans import BoolArray, Int64Array, take

__all__ = ["captured_in", "lies_below"]


def captured_in(scope: Scope, stack: HostStack) -> Int64Array:
    """For each activity of the scope the innermost host span that was open when its graph node was made; −1 for none.

    A node of which only the copy was seen has none: all of a graph's nodes are copied in one call.
    """
    nodes = scope.trace.graph_nodes
    rows = scope.activities
    if nodes is None or not rows["graph_node"].is_not_null().any():
        return np.full(rows.height, -1, dtype=np.int64)
    nodes = nodes.unique(["process_id", "graph_node"], keep="first", maintain_order=True)
    thread = stack.code_of(nodes["process_id"], nodes["thread_id"])
    span = stack.nesting.innermost_at(thread, nodes["start"].to_numpy())
    copies = np.flatnonzero(stack.named(GRAPH_COPY, "runtime"))
    span = np.where((thread >= 0) & ~np.isin(span, copies), span, -1)
    known = nodes.select("process_id", "graph_node").with_columns(pl.Series("span", span))
    joined = rows.select("process_id", "graph_node").join(
        known, on=["process_id", "graph_node"], how="left", maintain_order="left"
    )
    return joined["span"].fill_null(-1).to_numpy()


def lies_below(layers: pl.DataFrame, inner: Int64Array, outer: Int64Array) -> BoolArray:
    """Which layers of `inner` lie below those of `outer` beside them (rows of `layers`); −1, none, lies nowhere."""
    parent = layers["parent_layer_id"].fill_null(-1).to_numpy()
    found = np.zeros(inner.size, dtype=bool)
    above = take(parent, inner)
    while (above >= 0).any():
        found |= (above == outer) & (above >= 0)
        above = take(parent, above)
    return found
