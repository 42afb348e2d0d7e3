"""The phase of host spans: by the nearest range that tells one, by autograd, by what a thread does meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.analyses.attribution.backward import Backward
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.attribution.layer_spans import Layers
from tracekit.analyses.program import Program
from tracekit.facts.stack_names import (
    COLLECTIVE_RANGE,
    COMMUNICATION_LAYER,
    GRADIENT_REDUCTION_LAYER,
    GRAPH_LAYER,
    PHASE_MARKERS,
    PHASES,
)
from tracekit.spans import Int64Array, Nesting, nest, take

__all__ = ["Phases", "phases_of", "pseudo_layers"]

_P = {name: number for number, name in enumerate(PHASES)}


def pseudo_layers() -> list[tuple[str, str]]:
    """(path, source) of the rows of the layer table that stand for work in no layer."""
    named = dict.fromkeys(layer for _, _, layer in PHASE_MARKERS if layer is not None)
    named.update(dict.fromkeys((GRADIENT_REDUCTION_LAYER, COMMUNICATION_LAYER)))
    return [*((name, "phase") for name in named), (GRAPH_LAYER, "graph")]


@dataclass(frozen=True, slots=True, eq=False)
class Phases:
    """`marker` is the nearest range around each span that tells a phase (−1 for none); `marked_phase` and
    `marked_layer` are what such ranges tell. `main` maps a process to the thread that runs its steps; `collective_threads` run
    nothing but collectives. `trains`: there is a backward pass or an optimizer; `models`: there may be a forward pass, since the
    program shows PyTorch or trains.
    """

    stack: HostStack
    backward: Backward
    marker: Int64Array
    marked_phase: Int64Array
    marked_layer: Int64Array
    markers: Nesting
    marker_rows: Int64Array
    main: dict[int, int]
    collective_threads: Int64Array
    trains: bool
    models: bool

    def at(self, spans: Int64Array, in_layer: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Int64Array:
        """The phase of host spans that are in no backward node, as numbers into PHASES."""
        phase = take(self.marked_phase, take(self.marker, spans))
        on_engine = np.isin(self.stack.thread[spans], self.backward.engine_threads)
        phase = np.where((phase < 0) & on_engine, _P["backward"], phase)
        forward = in_layer | (take(self.stack.sequence, spans) >= 0) | self._in_numbered(spans)
        if not self.trains:  # without a backward pass or an optimizer all work is inference
            forward |= True
        forward &= self.models
        return np.where(phase >= 0, phase, np.where(forward, _P["forward"], _P["other"]))

    def pseudo_at(self, spans: Int64Array) -> Int64Array:
        """The layer that stands for the phase around each span; −1 for none."""
        return take(self.marked_layer, take(self.marker, spans))

    def main_thread(self, process: Int64Array) -> Int64Array:
        """The main thread of each process; −1 for none."""
        codes, back = np.unique(process, return_inverse=True)
        return np.array([self.main.get(int(code), -1) for code in codes], dtype=np.int64)[back]

    def of_main_thread(self, spans: Int64Array) -> Int64Array:
        """The phase that the main thread of each span's process is in when the span starts; −1 when unknown."""
        known = np.flatnonzero(spans >= 0)
        phase = np.full(spans.size, -1, dtype=np.int64)
        rows = spans[known]
        thread, time = self.main_thread(self.stack.process[rows]), self.stack.start[rows]
        phase[known] = take(
            self.marked_phase, take(self.marker_rows, self.markers.innermost_at(thread, time))
        )
        return phase

    def _in_numbered(self, spans: Int64Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        numbered = self.stack.of_kind("op") & (self.stack.sequence >= 0) & ~self.backward.is_node
        mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
            take(self.stack.nesting.nearest_ancestor(numbered), spans) >= 0
        )
        return mask


def phases_of(stack: HostStack, backward: Backward, layers: Layers, shown: Program) -> Phases:
    """The phases of a trace."""
    phase = np.full(stack.size, -1, dtype=np.int64)
    layer = phase.copy()
    for pattern, name, pseudo in PHASE_MARKERS:
        rows = stack.named(pattern, "annotation", "op", "step") & (phase < 0)
        phase[rows] = _P[name]
        layer[rows] = -1 if pseudo is None else layers.id_of(pseudo, "phase")
    marks = np.flatnonzero(phase >= 0)
    nesting = nest(stack.thread[marks], stack.start[marks], stack.end[marks])
    trains = bool(
        backward.is_node.any() or (phase == _P["optimizer"]).any() or (phase == _P["backward"]).any()
    )
    main = _main_threads(stack, backward, marks)
    return Phases(
        stack=stack,
        backward=backward,
        marker=stack.nesting.nearest_ancestor(phase >= 0),
        marked_phase=phase,
        marked_layer=layer,
        markers=nesting,
        marker_rows=marks,
        main=main,
        collective_threads=_collective_threads(stack, backward, main),
        trains=trains,
        models=trains or shown.pytorch,
    )


def _collective_threads(stack: HostStack, backward: Backward, main: dict[int, int]) -> Int64Array:
    """Threads that a backend for collectives keeps for itself."""
    ranged = np.unique(stack.thread[stack.named(COLLECTIVE_RANGE, "annotation")])
    busy = np.array([*main.values(), *backward.engine_threads.tolist()], dtype=np.int64)
    threads: Int64Array = np.setdiff1d(ranged, busy)
    return threads


def _main_threads(stack: HostStack, backward: Backward, marks: Int64Array) -> dict[int, int]:
    """The thread of each process that runs its steps; without steps the one with the most marked ranges, operators."""
    signals = [
        np.flatnonzero(stack.of_kind("step")),
        marks,
        np.flatnonzero(stack.of_kind("op") & ~backward.is_node),
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
