"""The layer and the phase of host spans, and how the layer is known: what attribution knows before any activity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.attribution.backward import Backward, backward_of
from tracekit.analyses.attribution.host_stack import HostStack, host_stack
from tracekit.analyses.attribution.layer_spans import Layers, layers_of
from tracekit.analyses.attribution.phases import Phases, phases_of, pseudo_layers
from tracekit.analyses.program import program
from tracekit.facts.stack_names import PHASES
from tracekit.spans import BoolArray, Int64Array, take
from tracekit.trace import Trace

__all__ = ["METHOD", "METHODS", "PHASE", "UNATTRIBUTED", "SpanPlaces", "StackModel", "stack_model"]

UNATTRIBUTED = "unattributed"
"""The method, and in tables the layer, of what belongs nowhere."""

METHODS = (
    "capture",
    "module",
    "range",
    "compiled",
    "interval",
    "sequence",
    "accumulate",
    "enclosing-time",
    "phase",
    "graph",
    UNATTRIBUTED,
)
"""How the layer of an activity is known, the surest first."""

METHOD = {name: number for number, name in enumerate(METHODS)}
"""The number of each method in arrays."""
PHASE = {name: number for number, name in enumerate(PHASES)}
"""The number of each phase in arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class SpanPlaces:
    """Where host spans lie: arrays of one length. `layer` is −1 for none; `recomputed` marks forward work that
    runs again inside the backward pass (activation checkpointing).
    """

    layer: Int64Array
    phase: Int64Array
    method: Int64Array
    recomputed: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class StackModel:
    """What is known of the host side of a trace; `places` answers for any spans."""

    stack: HostStack
    layers: Layers
    backward: Backward
    phases: Phases

    def places(self, rows: Int64Array) -> SpanPlaces:
        """The layer, phase and method of host spans; rows of −1 are unattributed."""
        n = rows.size
        known = np.flatnonzero(rows >= 0)
        spans = rows[known]
        layer = np.full(n, -1, dtype=np.int64)
        method = np.full(n, METHOD[UNATTRIBUTED], dtype=np.int64)
        phase = np.full(n, PHASE["other"], dtype=np.int64)
        recomputed = np.zeros(n, dtype=bool)
        inner = self._spans(spans)
        layer[known], method[known] = inner.layer, inner.method
        phase[known], recomputed[known] = inner.phase, inner.recomputed
        return SpanPlaces(layer, phase, method, recomputed)

    def _spans(self, spans: Int64Array) -> SpanPlaces:
        stack, backward = self.stack, self.backward
        layer, source, since = self.layers.at(stack.thread[spans], stack.start[spans])
        node = take(backward.node, spans)
        in_node = node >= 0
        # A layer inside a node runs the forward again; a node inside a layer is a backward pass of its own.
        inside = in_node & (layer >= 0) & (since >= take(stack.start, node))
        method = np.where(layer >= 0, _methods_of(self.layers)[source], METHOD[UNATTRIBUTED])
        by_node = in_node & ~inside
        of_node, how = self._nodes(node[by_node])
        better = np.flatnonzero(by_node)[of_node >= 0]
        layer[better], method[better] = of_node[of_node >= 0], how[of_node >= 0]
        phase = self.phases.at(spans, layer >= 0)
        phase[in_node] = PHASE["backward"]
        # Where the forward operator is not in the file, a range around the backward pass is still better than none.
        layer, method = self._by_time(spans, layer, method)
        pseudo = self.phases.pseudo_at(spans)
        # A range around a backward node says nothing about the layer of the node.
        within = ~in_node | (take(stack.start, take(self.phases.marker, spans)) >= take(stack.start, node))
        named = (pseudo >= 0) & within & ((layer < 0) | (phase == PHASE["optimizer"]))
        layer[named], method[named] = pseudo[named], METHOD["phase"]
        return SpanPlaces(layer, phase, method, inside)

    def _nodes(self, nodes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The layer of the forward operator of backward nodes, and the method."""
        forward = take(self.backward.forward, nodes)
        layer = np.full(nodes.size, -1, dtype=np.int64)
        known = np.flatnonzero(forward >= 0)
        spans = forward[known]
        open_layer, _, _ = self.layers.at(self.stack.thread[spans], self.stack.start[spans])
        open_layer = np.where(open_layer >= 0, open_layer, self.phases.pseudo_at(spans))
        layer[known] = open_layer
        follows = self.backward.follows[np.maximum(nodes, 0)] if nodes.size else np.zeros(0, dtype=bool)
        return layer, np.where(follows, METHOD["accumulate"], METHOD["sequence"])

    def _by_time(
        self, spans: Int64Array, layer: Int64Array, method: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        lost = np.flatnonzero((layer < 0) & np.isin(self.stack.thread[spans], self.backward.engine_threads))
        if lost.size:
            main = self.phases.main_thread(self.stack.process[spans[lost]])
            open_layer, _, _ = self.layers.at(main, self.stack.start[spans[lost]])
            hit = open_layer >= 0
            layer[lost[hit]], method[lost[hit]] = open_layer[hit], METHOD["enclosing-time"]
        return layer, method


def stack_model(trace: Trace, steps: pl.DataFrame | None = None) -> StackModel:
    """Everything that attribution needs of a trace's host side; ranges that are `steps` (`start`, `end`) are no layers."""
    stack = host_stack(trace)
    backward = backward_of(trace, stack)
    layers = layers_of(trace, stack, backward.engine_threads, pseudo_layers(), steps)
    return StackModel(stack, layers, backward, phases_of(stack, backward, layers, program(trace)))


def _methods_of(layers: Layers) -> npt.NDArray[np.int64]:
    numbers = [METHOD[name] for name in layers.methods]
    return np.array([*numbers, METHOD[UNATTRIBUTED]], dtype=np.int64)  # the last one is for source −1
