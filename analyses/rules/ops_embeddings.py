"""A rule about operators that could be one call: lookups in many small tables."""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.flops import json_list
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.ops import Ops
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, longest, of_time
from tracekit.analyses.scope import Scope
from tracekit.facts.units import count_of, format_ns
from tracekit.groups import at_rows
from tracekit.spans import Int64Array, take

__all__ = ["MANY_EMBEDDINGS"]

LEAST_TABLES: Final = 8
"""A language model looks up two or three tables in a row: tokens, positions and segments."""
MANY_EMBEDDINGS_LEAST_SHARE: Final = 0.05
"""Below a twentieth of the time one table for all gains little."""
MOST_BYTES_ON_PROCESSOR: Final = 1_000_000
"""If a lookup reads more bytes on average, reading takes the time, not the call."""
MOST_BYTES_ON_DEVICE: Final = 10_000_000
"""The same for a device, which reads this in a few microseconds."""
MOST_NS_ON_PROCESSOR: Final = 200_000
"""The same by the time of a lookup, if shapes were not recorded."""
MOST_NS_ON_DEVICE: Final = 50_000
"""The same for the kernels of a lookup."""
_ELEMENT_BYTES: Final = 4

_LOOKUP: Final = r"^aten::_?embedding(_bag)?$"
_HEAVY: Final = r"^aten::(linear|addmm|mm|bmm|baddbmm|matmul|einsum|scaled_dot_product_attention|lstm|gru|conv\dd|_?convolution)$"


def many_embeddings(scope: Scope, _result: Ops) -> Evidence | None:
    """Many small tables of embeddings are looked up one after the other, each with a call of its own.

    A lookup of a few rows costs mostly the call: of the operator and its kernel, again in the backward pass. Lookups count
    if at least `LEAST_TABLES` follow each other without a matrix product in between, so a loop that generates tokens does
    not count. A lookup is small by the bytes that it reads, or by its time if shapes were not recorded. At stake is the time
    of the lookups, forward and backward, but for one of each row; on a device, this is the time of their kernels and the idle
    time that they cause.

    Fires when this takes `MANY_EMBEDDINGS_LEAST_SHARE` of the time, and the lookups are small.
    """
    model = attribution(scope).model
    rows, tables = _lookups(scope)
    if not rows.size:
        return None
    marked = np.zeros(model.stack.size, dtype=bool)
    marked[rows] = True
    inside = model.stack.nesting.nearest_ancestor(marked)
    # Work of the backward pass belongs to its forward operator.
    origin = np.where(inside < 0, take(inside, take(model.backward.forward, model.backward.node)), inside)
    ns = _work(scope, origin >= 0)
    waited = 0 if scope.on_cpu else _idle(scope, origin >= 0)
    basis = int(scope.activities["duration"].sum()) if scope.on_cpu else scope.duration
    share = (ns + waited) / max(basis, 1)
    if share < MANY_EMBEDDINGS_LEAST_SHARE or not _small(scope, rows, _work(scope, inside >= 0)):
        return None
    idle = f" The device waits {format_ns(waited)} for them." if waited else ""
    trained = bool(((origin >= 0) & (inside < 0)).any())
    backward = " with their backward pass" if trained else ""
    return Evidence(
        title=f"{tables} consecutive embedding lookups{backward} take {of_time(ns + waited, scope)}",
        text=f"{count_of(int(rows.size), 'call')} of {_names(scope, rows)}, up to {tables} in a row, take {format_ns(ns)}{backward}.{idle}",
        ns_at_stake=bounded(int((ns + waited) * (1 - 1 / tables)), scope),
        waited_ns=int(waited * (1 - 1 / tables)),
        stretches=longest(scope.trace.host[["start", "duration"]][rows]),
    )


def _lookups(scope: Scope) -> tuple[Int64Array, int]:
    """The calls (span ids) of lookups in long rows, and the length of the longest row."""
    model = attribution(scope).model
    stack, nothing = model.stack, np.zeros(0, dtype=np.int64)
    lookup = stack.named(_LOOKUP, "op")
    if not lookup.any():
        return nothing, 0
    wanted = lookup | stack.named(_HEAVY, "op")
    seen = np.zeros(stack.size, dtype=bool)
    seen[scope.host("op", columns=["span_id"])["span_id"].to_numpy()] = True
    outermost = wanted & seen & (stack.nesting.nearest_ancestor(wanted, include_self=False) < 0)
    order = np.flatnonzero(outermost & (model.backward.node < 0))  # by thread and time
    if not order.size:
        return nothing, 0
    same = (lookup[order[1:]] == lookup[order[:-1]]) & (stack.thread[order[1:]] == stack.thread[order[:-1]])
    run = np.concatenate([[0], np.cumsum(~same)])
    length = np.bincount(run)[run]
    kept = lookup[order] & (length >= LEAST_TABLES)
    return order[kept], int(length[kept].max()) if kept.any() else 0


def _small(scope: Scope, rows: Int64Array, ns: int) -> bool:
    """Whether the calls cost more than what they read; `ns` is their time."""
    most_bytes = MOST_BYTES_ON_PROCESSOR if scope.on_cpu else MOST_BYTES_ON_DEVICE
    most_ns = MOST_NS_ON_PROCESSOR if scope.on_cpu else MOST_NS_ON_DEVICE
    shapes = at_rows(scope.trace.host["shapes"], rows).cast(pl.String).value_counts()
    read = [(_bytes_read(text), count) for text, count in shapes.rows()]
    if any(size is None for size, _ in read):
        return ns <= most_ns * int(rows.size)
    total = sum((size or 0) * int(count) for size, count in read)
    return total <= most_bytes * int(rows.size)


def _bytes_read(shapes: str | None) -> int | None:
    """The bytes that a lookup of these inputs (table, indices, …) reads; None if they were not recorded."""
    match json_list(shapes)[:2]:
        case [[int(), int(width)], [*indices]]:
            sizes = [size for size in indices if isinstance(size, int)]
            return prod(sizes) * width * _ELEMENT_BYTES if len(sizes) == len(indices) else None
    return None


def _names(scope: Scope, rows: Int64Array) -> str:
    names: list[str] = at_rows(scope.trace.host["name"], rows).cast(pl.String).unique().sort().to_list()
    return " and ".join(names)


def _work(scope: Scope, marked: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """The summed time of the activities whose innermost operator is marked, in ns."""
    rows = scope.activities[["op_id", "duration"]].drop_nulls()
    return int(rows["duration"].to_numpy()[marked[rows["op_id"].to_numpy()]].sum())


def _idle(scope: Scope, marked: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """The idle time that marked operators cause on the device where it is the most, in ns."""
    pieces = idle_causes(scope).pieces[["device_id", "op_id", "duration_ns"]].drop_nulls()
    mine = pieces.filter(pl.Series(marked[pieces["op_id"].to_numpy()], dtype=pl.Boolean))
    sums = mine.group_by("device_id").agg(pl.col("duration_ns").sum())
    return int(sums["duration_ns"].max() or 0)  # type: ignore[arg-type]


MANY_EMBEDDINGS = Rule(
    id="many_embeddings",
    analysis="ops",
    evidence=many_embeddings,
    advice=Advice(
        "Look all tables up in one call: a table-batched embedding (fbgemm_gpu.SplitTableBatchedEmbeddingBagsCodegen, or "
        "EmbeddingBagCollection of torchrec), or one EmbeddingBag that holds all tables, with the first row of each table added "
        "to its indices.",
        processor=(
            "Put the tables into one EmbeddingBag, add the first row of each table to its indices, and look all features up in "
            "one call.\n"
            "[training] The backward pass and the update then also run once, not once per table."
        ),
    ),
    explains=frozenset({"host_bound_launches", "short_kernels"}),
)
