"""Operators that are recorded but compute nothing: where a recomputation stops, and where tensors have no data.

Activation checkpointing (`use_reentrant=False`) runs the forward pass again inside the backward pass, and leaves it by an exception as
soon as the last tensor is saved that the backward pass needs: in the middle of an operator, which has saved its inputs (`detach`) but
not called what computes. In the forward pass the same call holds others. Kernels show this by themselves; on processors only the
records do. An operator that never calls others looks the same whether it computed or not: it counts.

On the device `meta` tensors have sizes alone. torch works out the size of a result in Python there: a product does nothing but make
room for its result (`new_empty`), and others call `prims::…`, which no operator does on a tensor with data.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.flops.distinct_calls import Calls
from tracekit.analyses.flops.passed_on import around
from tracekit.analyses.flops.work import operator_named
from tracekit.facts.stack_names import ENGINE_PREFIX
from tracekit.groups import groups, or_none, text_codes
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, Nesting

__all__ = ["idle"]

_SAVES: Final = ("aten::detach", "detach")
_NO_WORK: Final = (*_SAVES, "PythonDispatchMode")
"""What an operator may hold that does none of its work: saved inputs, also under a mode."""
_ROOM: Final = "aten::new_empty"
_CALL: Final = ["name", "shapes", "dtypes"]


def idle(
    calls: Calls, host: pl.DataFrame, names: NameTable, nesting: Nesting, tangent: BoolArray
) -> BoolArray:
    """Which spans compute nothing of their own: operators of the calls with models, with all in them and those around them.

    A tangent of which all is zero (`tangents`) has no data either, but what its operator calls may copy others.
    """
    found = np.concatenate([_stopped(calls, host, nesting, names), _without_data(calls, nesting, names)])
    nothing = around(found, nesting, tangent)
    if not found.size:
        return nothing
    nothing[found] = True
    of_tangent = nesting.nearest_ancestor(tangent)[found] >= 0
    empty = np.zeros(host.height, dtype=bool)
    empty[found[~of_tangent]] = True
    nothing |= nesting.nearest_ancestor(empty) >= 0
    return nothing


def _stopped(calls: Calls, host: pl.DataFrame, nesting: Nesting, names: NameTable) -> Int64Array:
    """The calls in which a recomputation stops: those that hold no others, where all calls of the forward pass with the same inputs do.

    Such a call has saved a tensor, or, if that needs no gradient and is kept as it is, is the last of its node's recomputation.
    """
    none = np.zeros(0, dtype=np.int64)
    nodes = names.which(lambda name: name.startswith(ENGINE_PREFIX))
    saving = names.which(_SAVES.__contains__)
    if not nodes.any() or not saving.any():
        return none
    node = nesting.nearest_ancestor(nodes)
    works = ~names.which(_NO_WORK.__contains__) & (host["kind"] != "python").to_numpy()
    holder = nesting.nearest_ancestor(works, include_self=False)
    numbered = or_none(host["sequence"]) >= 0
    saves, holds = np.zeros(host.height, dtype=bool), np.zeros(host.height, dtype=bool)
    saves[holder[saving & (holder >= 0)]] = True
    holds[holder[works & (holder >= 0)]] = True
    again = numbered & (node >= 0)
    last = np.full(host.height, -1)
    np.maximum.at(last, node[again], np.flatnonzero(again))
    of_checkpoint = np.zeros(host.height, dtype=bool)
    of_checkpoint[node[again & saves]] = True
    at_end = np.zeros(host.height, dtype=bool)
    at_end[last[of_checkpoint]] = True
    stopped = again & ~holds & (saves | at_end)
    spans = calls.spans
    if not stopped[spans].any():
        return none
    alike = groups(*(text_codes(calls.inputs[name])[0] for name in _CALL))
    of, forward = alike.of[calls.of], node[spans] < 0
    working, bare = (
        np.bincount(of[forward & some], minlength=alike.size) for some in (holds[spans], ~holds[spans])
    )
    stops: BoolArray = stopped[spans] & ((working > 0) & (bare == 0))[of]
    return spans[stops]


def _without_data(calls: Calls, nesting: Nesting, names: NameTable) -> Int64Array:
    """The calls on tensors without data that show it."""
    spans = calls.spans
    room, reference = names.which(_ROOM.__eq__), names.which(lambda name: name.startswith("prims::"))
    if not room.any() and not reference.any():
        return spans[:0]
    makes, works, refers = (_directly_around(each, nesting) for each in (room, ~room, reference))
    products = names.which(_is_product)
    return spans[refers[spans] | (makes & ~works & products)[spans]]


def _is_product(name: str) -> bool:
    operator = operator_named(name)
    return operator is not None and operator.family in ("matmul", "convolution") and name.startswith("aten::")


def _directly_around(spans: BoolArray, nesting: Nesting) -> BoolArray:
    around = np.zeros(spans.size, dtype=bool)
    parents = nesting.parent[spans]
    around[parents[parents >= 0]] = True
    return around
