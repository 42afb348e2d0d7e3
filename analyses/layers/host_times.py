"""Host time by layer: each moment of a thread belongs to the innermost call that is open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracekit.analyses.attribution.span_places import StackModel
from tracekit.analyses.scope import Scope
from tracekit.spans import BoolArray, Int64Array, Nesting, nest
from tracekit.trees import rolled_up, rolled_up_least

__all__ = ["HostTimes", "host_times"]


@dataclass(frozen=True, slots=True, eq=False)
class HostTimes:
    """Per layer: `calls`, their `total` time in ns, the start of the `first`, and whether calls are `known`."""

    calls: Int64Array
    total: Int64Array
    first: Int64Array
    known: BoolArray

    def rolled_up(self, parent: Int64Array, depth: Int64Array) -> tuple[Int64Array, HostTimes]:
        """Each layer's own calls, and the same with `total`, `first` and `known` over all layers below it."""
        known = rolled_up(self.known.astype(np.int64), parent, depth) > 0
        first = rolled_up_least(self.first, parent, depth)
        return self.calls, HostTimes(self.calls, rolled_up(self.total, parent, depth), first, known)


def host_times(scope: Scope, model: StackModel, size: int) -> HostTimes:
    """The own host times of the layers in the scope's window on the host; `size` rows, one a layer.

    A call's own time is what of it passes in no call of another layer of the same source. The ranges of a
    pseudo-layer count where no layer is open; one inside another of the same pseudo-layer is no further call.
    """
    found = HostTimes(
        np.zeros(size, dtype=np.int64),
        np.zeros(size, dtype=np.int64),
        np.full(size, np.iinfo(np.int64).max),
        np.zeros(size, dtype=bool),
    )
    for source in model.layers.sources:
        inside = _in_window(scope, source.nesting) & (source.layer >= 0)
        _add(found, source.nesting, source.layer, inside, inside)
    _add_pseudo_layers(found, scope, model)
    return found


def _add_pseudo_layers(found: HostTimes, scope: Scope, model: StackModel) -> None:
    layer = model.phases.marked_layer
    marks = np.flatnonzero(layer >= 0)
    if not marks.size:
        return
    stack = model.stack
    parts = [(stack.thread[marks], stack.start[marks], stack.end[marks], layer[marks])]
    for source in model.layers.sources:
        of = source.nesting
        parts.append((of.thread, of.start, of.end, np.full(source.layer.size, -1)))
    thread, start, end, owner = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((-end, start, thread))
    nesting = nest(thread[order], start[order], end[order])
    owner = owner[order]
    counted = _in_window(scope, nesting) & (owner >= 0)
    again = (nesting.parent >= 0) & (owner[np.maximum(nesting.parent, 0)] == owner)
    _add(found, nesting, owner, counted, counted & ~again)


def _add(found: HostTimes, nesting: Nesting, layer: Int64Array, counted: BoolArray, calls: BoolArray) -> None:
    np.add.at(found.total, layer[counted], nesting.self_time()[counted])
    np.add.at(found.calls, layer[calls], 1)
    np.minimum.at(found.first, layer[counted], nesting.start[counted])
    found.known[layer[layer >= 0]] = True


def _in_window(scope: Scope, nesting: Nesting) -> BoolArray:
    if scope.window != "steps" or not scope.steps.height:
        return np.ones(nesting.start.size, dtype=bool)
    low, high = scope.host_window()
    inside: BoolArray = (nesting.start >= low) & (nesting.start < high)
    return inside
