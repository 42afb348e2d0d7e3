"""The layer, phase and method of host spans: the part of attribution that needs no activities.

The phase comes from the nearest range with a phase, from autograd, or from what the main thread does at that time.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.attribution.backward import Backward, backward_of
from tracekit.analyses.attribution.host_stack import HostStack, host_stack
from tracekit.analyses.attribution.layer_spans import Layers, layers_of
from tracekit.analyses.program import Program, program
from tracekit.facts.stack_names import (
    BACKWARD_LAYER,
    BROADCAST,
    BUFFER_LAYER,
    COLLECTIVE_RANGE,
    COMMUNICATION_LAYER,
    GRADIENT_REDUCTION_LAYER,
    GRAPH_LAYER,
    PHASE_MARKERS,
    PHASES,
    REPLICATED_FORWARD,
    SET_UP_LAYER,
    WHOLE_FORWARD,
)
from tracekit.groups import codes_of
from tracekit.spans import BoolArray, Int64Array, NarrowArray, Nesting, narrow, nest, take
from tracekit.trace import Trace

__all__ = [
    "METHOD",
    "METHODS",
    "PHASE",
    "UNATTRIBUTED",
    "Phases",
    "SpanPlaces",
    "StackModel",
    "phases_of",
    "pseudo_layers",
    "stack_model",
]

UNATTRIBUTED = "unattributed"
"""The method, and in tables the layer, of work without a place."""

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
"""The methods by which the layer of an activity is known, the most certain first."""

_MODULES = ("capture", "module")

METHOD = {name: number for number, name in enumerate(METHODS)}
"""The number of each method in arrays."""
PHASE = {name: number for number, name in enumerate(PHASES)}
"""The number of each phase in arrays."""


class SpanPlaces(msgspec.Struct, frozen=True, eq=False):
    """The places of host spans, as arrays of one length.

    `layer` is −1 for none; `recomputed` marks forward work that runs again inside the backward pass (activation
    checkpointing).
    """

    layer: Int64Array
    phase: Int64Array
    method: Int64Array
    recomputed: BoolArray


class StackModel(msgspec.Struct, frozen=True, eq=False):
    """The places on the host side of a trace; `places` gives them for any spans."""

    stack: HostStack
    layers: Layers
    backward: Backward
    phases: Phases

    def places(self, rows: Int64Array) -> SpanPlaces:
        """The layer, phase and method of host spans; rows of −1 are unattributed."""
        n = rows.size
        inside = np.flatnonzero(rows >= 0)
        spans = rows[inside]
        layer = np.full(n, -1, dtype=np.int64)
        method = np.full(n, METHOD[UNATTRIBUTED], dtype=np.int64)
        phase = np.full(n, PHASE["other"], dtype=np.int64)
        recomputed = np.zeros(n, dtype=bool)
        inner = self._spans(spans)
        layer[inside], method[inside] = inner.layer, inner.method
        phase[inside], recomputed[inside] = inner.phase, inner.recomputed
        return SpanPlaces(layer, phase, method, recomputed)

    def _spans(self, spans: Int64Array) -> SpanPlaces:
        stack, backward = self.stack, self.backward
        layer, source, since = self.layers.at(stack.thread[spans], stack.start[spans])
        node = take(backward.node, spans)
        in_node = node >= 0
        # A layer inside a node runs the forward again; a node inside a layer is a backward pass of its own.
        inside = in_node & (layer >= 0)
        inside[inside] = since[inside] >= stack.start[node[inside]]
        method = np.where(layer >= 0, _methods_of(self.layers)[source], METHOD[UNATTRIBUTED])
        by_node = in_node & ~inside
        of_node, how = self._nodes(node[by_node])
        better = np.flatnonzero(by_node)[of_node >= 0]
        layer[better], method[better] = of_node[of_node >= 0], how[of_node >= 0]
        marker = take(self.phases.marker, spans)
        phase, pseudo = self.phases.at(spans, marker, layer >= 0)
        # A range around a backward node says nothing about the node.
        within = ~in_node
        within[in_node] = take(stack.start, marker[in_node]) >= stack.start[node[in_node]]
        talks = within & (phase == PHASE["communication"])
        phase[in_node & ~talks] = PHASE["backward"]
        # Where the forward operator is not in the file, a range around the backward pass is still better than none.
        layer, method = self._by_time(spans, layer, method)
        named = (pseudo >= 0) & within & ((layer < 0) | (phase == PHASE["optimizer"]) | talks)
        layer[named], method[named] = pseudo[named], METHOD["phase"]
        again = backward.recomputed[spans] | (inside & self._of_modules(source))
        return SpanPlaces(layer, phase, method, again)

    def _of_modules(self, source: Int64Array) -> BoolArray:
        """Which sources of layers are modules: a range of the user's in a node may be of anything, such as communication."""
        return np.array([*(name in _MODULES for name in self.layers.methods), False])[source]

    def _nodes(self, nodes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The layer of the forward operator of backward nodes, and the method."""
        forward = take(self.backward.forward, nodes)
        layer = np.full(nodes.size, -1, dtype=np.int64)
        linked = np.flatnonzero(forward >= 0)
        spans = forward[linked]
        open_layer, _, _ = self.layers.at(self.stack.thread[spans], self.stack.start[spans])
        layer[linked] = np.where(open_layer >= 0, open_layer, self.phases.backward_of(spans))
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
    """The host side of a trace for attribution; ranges that are `steps` (`start`, `end`) are not layers."""
    stack = host_stack(trace)
    backward = backward_of(trace, stack)
    layers = layers_of(trace, stack, backward.engine_threads, pseudo_layers(), steps)
    thin = "missing_operators" in trace.health["kind"]
    phases = phases_of(stack, backward, layers, program(trace), thin=thin)
    return StackModel(stack, layers, backward, phases)


def _methods_of(layers: Layers) -> npt.NDArray[np.int64]:
    numbers = [METHOD[name] for name in layers.methods]
    return np.array([*numbers, METHOD[UNATTRIBUTED]], dtype=np.int64)  # the last one is for source −1


# -- phases -----------------------------------------------------------------------------------------
#
# The phase of host spans: by the nearest range that tells one, by autograd, by what a thread does meanwhile.

_P = {name: number for number, name in enumerate(PHASES)}


def pseudo_layers() -> list[tuple[str, str]]:
    """(path, source) of the rows of the layer table that stand for work in no layer."""
    named = dict.fromkeys(layer for _, _, layer in PHASE_MARKERS if layer is not None)
    named.update(dict.fromkeys((GRADIENT_REDUCTION_LAYER, BUFFER_LAYER, COMMUNICATION_LAYER, SET_UP_LAYER)))
    return [*((name, "phase") for name in named), (GRAPH_LAYER, "graph")]


class Phases(msgspec.Struct, frozen=True, eq=False):
    """`marker` is the nearest range around each span that tells a phase (−1 for none); `marked_phase` and
    `marked_layer` are what such ranges tell, `marked_backward` the layer of the backward pass of what runs in them. `main` maps a process to the thread that runs its steps; `collective_threads` run
    nothing but collectives. `sends_until` has the forward passes of DistributedDataParallel (markers, by row) that send their buffers to all
    ranks, and the time until which each does. `in_numbered`: which spans are an operator with a sequence number, or lie in one, unless it comes after the backward pass. `trains`: there is a backward pass or an optimizer, or there may be; `models`: there may be a forward pass, since the
    program shows PyTorch or trains.
    """

    stack: HostStack
    backward: Backward
    marker: NarrowArray
    marked_phase: NarrowArray
    marked_layer: NarrowArray
    marked_backward: NarrowArray
    markers: Nesting
    marker_rows: Int64Array
    main: dict[int, int]
    collective_threads: Int64Array
    sends_until: tuple[Int64Array, Int64Array]
    in_numbered: BoolArray
    buffer_layer: int
    trains: bool
    models: bool

    def at(self, spans: Int64Array, marker: Int64Array, in_layer: BoolArray) -> tuple[Int64Array, Int64Array]:
        """The phase of host spans that are in no backward node, as numbers into PHASES, and the layer that stands for the phase around
        each, −1 for none; `marker` is the one around each.
        """
        phase, pseudo = take(self.marked_phase, marker), take(self.marked_layer, marker)
        forwards, until = self.sends_until
        if forwards.size:  # some lie in the part of a forward pass that sends buffers to all ranks
            at = np.minimum(np.searchsorted(forwards, marker), forwards.size - 1)
            buffers = (forwards[at] == marker) & (marker != spans) & (self.stack.start[spans] < until[at])
            phase[buffers], pseudo[buffers] = _P["communication"], self.buffer_layer
        untold = np.flatnonzero(phase < 0)
        forward = self.in_numbered[spans[untold]]
        if not self.backward.hidden:
            forward |= in_layer[untold]
        if not self.trains:  # without a backward pass or an optimizer all work is inference
            forward |= True
        forward &= self.models
        on_engine = np.isin(self.stack.thread[spans[untold]], self.backward.engine_threads)
        phase[untold] = np.where(on_engine, _P["backward"], np.where(forward, _P["forward"], _P["other"]))
        return phase, pseudo

    def backward_of(self, spans: Int64Array) -> Int64Array:
        """The layer that stands for the backward pass of these forward operators; −1 for none."""
        return take(self.marked_backward, take(self.marker, spans))

    def main_thread(self, process: Int64Array) -> Int64Array:
        """The main thread of each process; −1 for none."""
        back, processes = codes_of(process)
        return np.array([self.main.get(each, -1) for each in processes.tolist()], dtype=np.int64)[back]

    def of_main_thread(self, spans: Int64Array) -> Int64Array:
        """The phase that the main thread of each span's process is in when the span starts; −1 when unknown."""
        open_ = np.flatnonzero(spans >= 0)
        phase = np.full(spans.size, -1, dtype=np.int64)
        rows = spans[open_]
        thread, time = self.main_thread(self.stack.process[rows]), self.stack.start[rows]
        phase[open_] = take(
            self.marked_phase, take(self.marker_rows, self.markers.innermost_at(thread, time))
        )
        return phase


def phases_of(stack: HostStack, backward: Backward, layers: Layers, shown: Program, *, thin: bool) -> Phases:
    """The phases of a trace. If most operators are missing from it (`thin`), nothing shows that there was no backward pass."""
    phase = narrow(np.full(stack.size, -1), len(PHASES))
    layer, back = (narrow(phase, layers.table.height) for _ in range(2))
    for pattern, name, pseudo in PHASE_MARKERS:
        rows = np.flatnonzero(stack.named(pattern, "annotation", "op", "step"))
        rows = rows[phase[rows] < 0]
        phase[rows] = _P[name]
        if pseudo is not None:
            layer[rows] = layers.id_of(pseudo, "phase")
            back[rows] = layers.id_of(BACKWARD_LAYER if pseudo in WHOLE_FORWARD else pseudo, "phase")
    marks = np.flatnonzero(phase >= 0)
    nesting = nest(stack.thread[marks], stack.start[marks], stack.end[marks])
    told = (phase == _P["optimizer"]) | (phase == _P["backward"])
    trains = bool(backward.is_node.any() or backward.engine_threads.size or backward.hidden or told.any())
    main = _main_threads(stack, backward, marks)
    numbered = stack.of_kind("op") & (stack.sequence >= 0) & ~backward.is_node
    numbered[_after_backward(stack, backward, np.flatnonzero(numbered), phase == _P["optimizer"])] = False
    return Phases(
        stack=stack,
        backward=backward,
        marker=narrow(stack.nesting.nearest_ancestor(phase >= 0), stack.size),
        marked_phase=phase,
        marked_layer=layer,
        marked_backward=back,
        markers=nesting,
        marker_rows=marks,
        main=main,
        collective_threads=_collective_threads(stack, backward, main),
        sends_until=_sends_until(stack),
        in_numbered=stack.nesting.nearest_ancestor(numbered) >= 0,
        buffer_layer=layers.id_of(BUFFER_LAYER, "phase"),
        trains=trains or thin,
        models=trains or shown.pytorch,
    )


def _after_backward(stack: HostStack, backward: Backward, rows: Int64Array, updates: BoolArray) -> Int64Array:
    """Those of these operators with a number that run after the backward pass of a step, before the update or the end of the step.

    An operator without a gradient, such as a collective, peeks at the number of the next one that has one, so its number does not
    tell that it belongs to a forward pass. Where numbers grow meanwhile, a model runs.
    """
    nodes, steps = np.flatnonzero(backward.is_node), np.flatnonzero(stack.of_kind("step"))
    if codes_of(stack.process[nodes])[1].size != 1:
        return rows[:0]
    had = np.zeros(stack.size, dtype=bool)
    had[backward.forward[nodes[backward.forward[nodes] >= 0]]] = True
    forward, begin, never = stack.start[had], stack.start[rows], np.iinfo(np.int64).max
    bounds, update = np.append(stack.start[steps], stack.end[steps]), stack.start[updates]
    # Without steps, only an update tells where one ends.
    parts = np.concatenate([stack.start[nodes], forward, bounds if steps.size else update])
    order = np.argsort(parts, kind="stable")
    before = np.searchsorted(parts[order], begin, side="right") - 1
    ends, forward = (np.append(np.sort(times), never) for times in (np.append(update, bounds), forward))
    ends_at, forward_at = (times[np.searchsorted(times, begin, side="right")] for times in (ends, forward))
    late = (before >= 0) & (order[before] < nodes.size) & (ends_at <= forward_at) & (ends_at < never)
    rows, before, number = rows[late], before[late], stack.sequence[rows[late]]
    places = np.stack([stack.thread[rows], before, ends_at[late]], axis=1)
    place = np.unique(places, axis=0, return_inverse=True)[1].ravel()
    least, most = np.full(rows.size, never), np.full(rows.size, -1)
    np.minimum.at(least, place, number)
    np.maximum.at(most, place, number)
    late_rows: Int64Array = rows[least[place] == most[place]]
    return late_rows


def _sends_until(stack: HostStack) -> tuple[Int64Array, Int64Array]:
    """The forward passes of DistributedDataParallel that send their buffers to all ranks, and the time until which each does, in ns.

    They do so before the model runs, by broadcasts with copies around them. Where no call of the model is recorded, or no
    broadcast before it, there is no such time.
    """
    forwards = stack.named(REPLICATED_FORWARD, "annotation", "op")
    if not forwards.any():
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    around = stack.nesting.nearest_ancestor(forwards, include_self=False)
    never = np.iinfo(np.int64).max
    begins, sent = np.full(stack.size, never), np.full(stack.size, never)
    of_model = stack.of_kind("module") | (stack.of_kind("op") & (stack.sequence >= 0))
    model = np.flatnonzero(of_model & (around >= 0))
    np.minimum.at(begins, around[model], stack.start[model])
    broadcasts = np.flatnonzero(stack.named(BROADCAST, "annotation", "op") & (around >= 0))
    np.minimum.at(sent, around[broadcasts], stack.start[broadcasts])
    rows = np.flatnonzero((sent < begins) & (begins < never))
    return rows, begins[rows]


def _collective_threads(stack: HostStack, backward: Backward, main: dict[int, int]) -> Int64Array:
    """Threads that run only work of a backend for collectives."""
    ranged = codes_of(stack.thread[stack.named(COLLECTIVE_RANGE, "annotation")])[1]
    busy = np.array([*main.values(), *backward.engine_threads.tolist()], dtype=np.int64)
    # Without its name, a thread of the backward pass is known by its nodes.
    threads: Int64Array = np.setdiff1d(ranged, np.append(busy, codes_of(stack.thread[backward.is_node])[1]))
    return threads


def _main_threads(stack: HostStack, backward: Backward, marks: Int64Array) -> dict[int, int]:
    """The thread of each process that runs its steps; without steps the one with the most marked ranges, operators, ranges."""
    signals = [
        np.flatnonzero(stack.of_kind("step")),
        marks,
        np.flatnonzero(stack.of_kind("op") & ~backward.is_node),
        np.flatnonzero(stack.of_kind("annotation") & ~np.isin(stack.thread, backward.engine_threads)),
    ]
    mains: dict[int, int] = {}
    for rows in signals:
        counts = np.bincount(stack.thread[rows])
        threads = np.flatnonzero(counts)
        threads = threads[np.argsort(-counts[threads], kind="stable")]
        processes = stack.process[np.searchsorted(stack.thread, threads)]  # spans are sorted by thread
        for process, thread in zip(processes.tolist(), threads.tolist(), strict=True):
            mains.setdefault(process, thread)
    return mains
