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

from tracekit.analyses.flops.passed_on import around
from tracekit.analyses.flops.work import operator_named
from tracekit.facts.stack_names import ENGINE_PREFIX
from tracekit.groups import NameTable, or_none
from tracekit.spans import BoolArray, Int64Array, Nesting

__all__ = ["idle"]

_SAVES: Final = ("aten::detach", "detach")
_NO_WORK: Final = (*_SAVES, "PythonDispatchMode")
"""What an operator may hold that does none of its work: saved inputs, also under a mode."""
_ROOM: Final = "aten::new_empty"
_CALL: Final = ["name", "shapes", "dtypes"]


def idle(rows: pl.DataFrame, host: pl.DataFrame, nesting: Nesting, tangent: BoolArray) -> BoolArray:
    """Which spans compute nothing of their own: operators of the calls with models (`rows`), with all in them and those around them.

    A tangent of which all is zero (`tangents`) has no data either, but what its operator calls may copy others.
    """
    names = NameTable(host["name"])
    found = np.concatenate([_stopped(rows, host, nesting, names), _without_data(rows, nesting, names)])
    nothing = around(found, nesting, tangent)
    nothing[found] = True
    of_tangent = nesting.nearest_ancestor(tangent)[found] >= 0
    empty = np.zeros(host.height, dtype=bool)
    empty[found[~of_tangent]] = True
    nothing |= nesting.nearest_ancestor(empty) >= 0
    return nothing


def _stopped(rows: pl.DataFrame, host: pl.DataFrame, nesting: Nesting, names: NameTable) -> Int64Array:
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
    spans = rows["span_id"].to_numpy()
    if not stopped[spans].any():
        return none
    calls = rows[["span_id", *_CALL]].with_columns(pl.Series("holds", holds[spans]))
    forward = calls.filter(pl.Series(node[spans] < 0))
    working = forward.group_by(_CALL).agg(pl.col("holds").all()).filter("holds")
    found = calls.filter(pl.Series(stopped[spans])).join(working, on=_CALL, how="semi", nulls_equal=True)
    return or_none(found["span_id"])


def _without_data(rows: pl.DataFrame, nesting: Nesting, names: NameTable) -> Int64Array:
    """The calls on tensors without data that show it."""
    spans = or_none(rows["span_id"])
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
