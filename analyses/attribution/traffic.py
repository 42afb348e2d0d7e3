"""What collectives and copies carry: gradients, activations, a batch, or what a program needs before it begins.

Collectives of the backward pass sum gradients if they are reductions and hook into no node of the backward graph but
those that add up a gradient; the gradients of a bucket are those of many layers. What a node itself sends (an all-to-all
of activations, the statistics of a batch norm) belongs to the node. A copy to the device brings a batch if it is
launched in a step before the forward pass computes, or if it lies in no layer and in no other phase. Before the first step,
or in a trace without steps before the first computation, it belongs to the set-up.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution.span_places import METHOD, PHASE, StackModel
from tracekit.analyses.scope import Scope, launch_times
from tracekit.facts.stack_names import (
    ACCUMULATE_NODE,
    COLLECTIVE,
    COMMUNICATION_LAYER,
    DATA_LAYER,
    GRADIENT_HOOK,
    GRADIENT_REDUCTION_LAYER,
    HOST_TO_DEVICE,
    REDUCTION,
    SET_UP_LAYER,
)
from tracekit.groups import codes_of, or_none
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, take
from tracekit.trace import one_of

__all__ = ["Places", "of_collectives", "of_copies"]

_INITIALISES = ("random", "copy")
"""Categories of kernels that may only prepare tensors."""

_NO_STEP = np.iinfo(np.int64).min
_OF_THE_MODEL = ("capture", "module")
"""Methods by which a copy in a layer is the layer's own."""


class Places(msgspec.Struct, frozen=True, eq=False):
    """The places of the activities of a scope, as arrays: layer (−1 for none), method and phase."""

    layer: Int64Array
    method: Int64Array
    phase: Int64Array

    def moved(self, rows: BoolArray, layer: int, phase: str) -> Places:
        """The same with these rows in a layer that stands for a phase."""
        return msgspec.structs.replace(
            self,
            layer=np.where(rows, layer, self.layer),
            method=np.where(rows, METHOD["phase"], self.method),
            phase=np.where(rows, PHASE[phase], self.phase),
        )


def of_collectives(scope: Scope, model: StackModel, places: Places) -> Places:
    """The same with the places of collectives."""
    span = _spans(scope)
    talks = (scope.activities["class"] == "communication").to_numpy()
    if model.phases.collective_threads.size:
        talks = talks | np.isin(take(model.stack.thread, span), model.phases.collective_threads)
    if not talks.any():
        return places
    unknown = talks & (places.phase == PHASE["other"])
    away = model.phases.of_main_thread(span[unknown])
    during = places.phase.copy()
    during[unknown] = np.where(away >= 0, away, PHASE["other"])
    reducing = talks & (during == PHASE["backward"])
    reducing[reducing] = _reduce_gradients(
        scope.activities["name"].filter(pl.Series(reducing)), model, span[reducing]
    )
    alone = talks & ~reducing & (places.layer < 0)
    phase = np.where(unknown, PHASE["communication"], places.phase)
    layer = np.where(alone, model.layers.id_of(COMMUNICATION_LAYER, "phase"), places.layer)
    placed = Places(layer, np.where(alone, METHOD["phase"], places.method), phase)
    return placed.moved(reducing, model.layers.id_of(GRADIENT_REDUCTION_LAYER, "phase"), "communication")


def _reduce_gradients(names: pl.Series, model: StackModel, span: Int64Array) -> BoolArray:
    """Which collectives of these names, launched in these spans during the backward pass, sum gradients of weights over the ranks.

    The nearest range or operator with the name of a collective says which one it is; kernels may bear another's name.
    """
    stack = model.stack
    named = take(stack.nesting.nearest_ancestor(stack.named(COLLECTIVE, "annotation", "op")), span)
    by_span = stack.named(REDUCTION)[np.maximum(named, 0)] if stack.size else np.zeros(span.size, dtype=bool)
    name = NameTable(names)
    by_name = name.matching(REDUCTION) | ~name.matching(COLLECTIVE)
    reduces = np.where(named >= 0, by_span, by_name)
    node = take(model.backward.node, span)
    of_value = np.zeros(span.size, dtype=bool)
    if stack.size:
        of_value = (node >= 0) & (take(stack.sequence, node) >= 0) & ~stack.named(ACCUMULATE_NODE)[node]
        hook = take(stack.nesting.nearest_ancestor(stack.named(GRADIENT_HOOK, "annotation", "op")), span)
        of_value &= ~((hook >= 0) & (take(stack.start, hook) >= take(stack.start, node)))
    answer: BoolArray = reduces & ~of_value
    return answer


def _spans(scope: Scope) -> Int64Array:
    """The host span that launched each activity, else its operator; −1 for none."""
    launch = or_none(scope.activities["launch_id"])
    return np.where(launch >= 0, launch, or_none(scope.activities["op_id"]))


def of_copies(scope: Scope, model: StackModel, places: Places) -> Places:
    """The same with the places of copies to the device."""
    rows = scope.activities
    if scope.on_cpu or not (rows["kind"] == "memcpy").any():
        return places
    launch, copies = or_none(rows["launch_id"]), (rows["kind"] == "memcpy").to_numpy().copy()
    copies[copies] = NameTable(rows["name"].filter(pl.Series(copies))).matching(HOST_TO_DEVICE)
    copies &= (launch >= 0) & (places.phase != PHASE["backward"])
    marker = np.full(launch.size, -1, dtype=np.int64)
    marker[copies] = take(model.phases.marker, launch[copies])
    told = np.isin(take(model.phases.marked_phase, marker), [PHASE["data"], PHASE["optimizer"]])
    sets_up = copies & ~told & _before_all(scope, model, places)
    early = copies & ~told & ~sets_up & _before_forward(scope, places)
    batch = copies & ~sets_up & (early | ((places.layer < 0) & (marker < 0)))
    placed = places.moved(batch, model.layers.id_of(DATA_LAYER, "phase"), "data")
    return placed.moved(sets_up, model.layers.id_of(SET_UP_LAYER, "phase"), "set_up")


def _before_forward(scope: Scope, places: Places) -> BoolArray:
    """Which activities are launched in a step before its forward pass computes anything."""
    rows = scope.activities
    computes = (rows["class"] == "compute").to_numpy() & (places.phase == PHASE["forward"])
    at, (of, steps) = launch_times(scope.trace, rows), codes_of(or_none(rows["step"], _NO_STEP))
    first = np.full(steps.size, np.iinfo(np.int64).max)
    np.minimum.at(first, of[computes], at[computes])
    first[(steps == _NO_STEP) | (np.bincount(of[computes], minlength=steps.size) == 0)] = np.iinfo(
        np.int64
    ).min
    return at < first[of]


def _before_all(scope: Scope, model: StackModel, places: Places) -> BoolArray:
    """Which activities are launched before the first step; without steps, before the first computation of the trace.

    What a layer of the model launches belongs to it. A copy of as many bytes as a later one brings a batch.
    """
    rows = scope.activities
    none = np.zeros(rows.height, dtype=bool)
    if scope.trace.meta.excerpt is not None:  # it begins anywhere
        return none
    at = launch_times(scope.trace, rows)
    steps = np.flatnonzero(model.stack.of_kind("step"))
    if scope.steps.height or steps.size:
        begins = [int(model.stack.start[steps].min())] if steps.size else []
        early: BoolArray = at < min([*begins, *scope.steps["start"].head(1).to_list()])
        return early
    prepares = rows.select(one_of("category", *_INITIALISES)).to_series()
    computes = ((rows["class"] == "compute") & ~prepares).to_numpy()
    # Work without a launch was launched before the recording: the program runs already.
    if rows.sort("start")["launch_id"].head(1).is_null().any() or not computes.any():
        return none
    before = at < at[computes].min()
    later = rows.filter(pl.Series(~before) & (pl.col("kind") == "memcpy"))["bytes"]
    again = rows["bytes"].is_in(later.implode()).fill_null(value=False).to_numpy()
    of_model = np.isin(places.method, [METHOD[name] for name in _OF_THE_MODEL])
    mask: BoolArray = before & ~again & ~of_model
    return mask
