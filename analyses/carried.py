"""The layers whose gradients, parameters or activations a call of communication carries, as far as the trace shows it.

* A range of FSDP around the call names the module.
* DistributedDataParallel reduces a bucket in the hook of the last gradient that goes into it. The bucket holds the gradients since the
  reduction before, or since the backward pass began, if their sizes sum to that of the call; else the trace does not show what it holds.
* Any other call in a layer's range is that layer's own, but for those in other ranges of FSDP, which may fetch another layer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution.attribute import attribution
from tracekit.analyses.attribution.span_places import METHODS, StackModel
from tracekit.analyses.call_sizes import elements_of
from tracekit.analyses.calls import calls_of
from tracekit.analyses.scope import Scope, once
from tracekit.facts.collectives import SHARDED_RANGE
from tracekit.facts.stack_names import ACCUMULATE_NODE, NO_LAYERS
from tracekit.groups import or_none
from tracekit.spans import BoolArray, Int64Array, take
from tracekit.trace import Schema, empty

__all__ = ["CARRIED", "carried_layers"]

CARRIED: Final[Schema] = {
    "call": pl.Int64,
    "layer": pl.String,
    "carries": pl.String,
    "bytes": pl.Int64,
}
"""Columns of `carried_layers`."""

_SURE: Final = ("capture", "module", "range", "compiled", "sequence", "accumulate")
"""Methods by which the layer of a span is known, not only likely."""


_SHARDING: Final = r"^(FSDP::|FullyShardedDataParallel\._)"


def carried_layers(scope: Scope) -> pl.DataFrame:
    """One row per call and layer, with the columns of `CARRIED`: `call` is a row of `calls_of(scope).table`.

    `carries`: `gradients`, `parameters`, or `own` (the layer launched the call). `bytes` are the layer's part of the call.
    `layer` is null for gradients that belong to no layer. Calls of which nothing is known are left out.
    """
    return once(scope, _carried_layers)


def _carried_layers(scope: Scope) -> pl.DataFrame:
    table, spans = calls_of(scope).table, calls_of(scope).launch_span
    if not table.height:
        return empty(CARRIED)
    model = attribution(scope).model
    sharded = take(model.stack.nesting.nearest_ancestor(model.stack.named(SHARDED_RANGE.pattern)), spans)
    hook = take(model.stack.nesting.nearest_ancestor(model.stack.named(ACCUMULATE_NODE)), spans)
    sharding = take(model.stack.nesting.nearest_ancestor(model.stack.named(_SHARDING)), spans)
    rows = [
        _of_modules(scope, table, sharded),
        _of_buckets(model, table, spans, (hook >= 0) & (sharded < 0), scope.trace.host["shapes"]),
        _of_own(model, table, spans, (hook < 0) & (sharding < 0)),
    ]
    return pl.concat(rows).sort("call", maintain_order=True)


def _of_modules(scope: Scope, table: pl.DataFrame, ranges: Int64Array) -> pl.DataFrame:
    """Calls in a range of FSDP (−1: in none)."""
    call = np.flatnonzero(ranges >= 0)
    names = scope.trace.host["name"][ranges[call]].cast(pl.String)
    matches = [SHARDED_RANGE.match(name) for name in names]
    layers = [match[2] if match else None for match in matches]
    gathers = [bool(match and match[1] == "all_gather") for match in matches]
    return pl.DataFrame(
        {
            "call": call,
            "layer": layers,
            "carries": ["parameters" if gather else "gradients" for gather in gathers],
            "bytes": table["bytes"][call],
        },
        schema=CARRIED,
    )


def _of_own(model: StackModel, table: pl.DataFrame, spans: Int64Array, wanted: BoolArray) -> pl.DataFrame:
    rows = table.select(pl.int_range(pl.len()).alias("call"), "layer", "bytes").with_columns(
        _sure_layers(model, spans).alias("of_span")
    )
    real = pl.when(~pl.col("layer").is_in(list(NO_LAYERS))).then("layer")
    rows = rows.with_columns(pl.coalesce(real, "of_span").alias("layer"), pl.lit("own").alias("carries"))
    rows = rows.filter(pl.Series(wanted) & pl.col("layer").is_not_null())
    return rows.select(pl.col(name).cast(kind) for name, kind in CARRIED.items())


def _sure_layers(model: StackModel, spans: Int64Array) -> pl.Series:
    """The path of the layer of each span; null where it has none, or where it is only likely."""
    places = model.places(spans)
    sure = np.isin(places.method, [METHODS.index(method) for method in _SURE])
    paths = model.layers.table.select("layer_id", pl.col("path").alias("layer"))
    ids = pl.DataFrame({"layer_id": np.where(sure, places.layer, -1)})
    found = ids.join(paths, on="layer_id", how="left", maintain_order="left")["layer"]
    return found.set(found.is_in(list(NO_LAYERS)), None)


# -- buckets of gradients ---------------------------------------------------------------------------


def _of_buckets(
    model: StackModel, table: pl.DataFrame, spans: Int64Array, in_hook: BoolArray, shapes: pl.Series
) -> pl.DataFrame:
    """The gradients in the buckets that are reduced `in_hook`s."""
    stack = model.stack
    nodes = np.flatnonzero(stack.named(f"^{ACCUMULATE_NODE}"))
    nodes = nodes[np.lexsort((stack.start[nodes], stack.thread[nodes]))]
    calls = np.flatnonzero(in_hook)
    calls = calls[np.argsort(stack.start[spans[calls]], kind="stable")]
    sizes = np.array([elements_of(text) or 0 for text in shapes[nodes].cast(pl.String)], dtype=np.int64)
    wanted = or_none(table["elements_in"], 0)
    found: list[tuple[int, Int64Array, Int64Array]] = []
    for thread in np.unique(stack.thread[spans[calls]]):
        mine = stack.thread[nodes] == thread
        here, of_thread = nodes[mine], calls[stack.thread[spans[calls]] == thread]
        first, last = _bucket_bounds(
            stack.start[here],
            sizes[mine],
            _pass_begins(model, here),
            stack.start[spans[of_thread]],
            wanted[of_thread],
        )
        found += [
            (int(call), here[low:high], sizes[mine][low:high])
            for call, low, high in zip(of_thread, first, last, strict=True)
            if low >= 0
        ]
    if not found:
        return empty(CARRIED)
    rows = pl.DataFrame(
        {
            "call": np.repeat([call for call, _, _ in found], [members.size for _, members, _ in found]),
            "layer": _sure_layers(model, np.concatenate([members for _, members, _ in found])),
            "elements": np.concatenate([elements for _, _, elements in found]),
        }
    )
    item = table.select(
        pl.int_range(pl.len()).alias("call"), (pl.col("bytes") // pl.col("elements_in")).alias("item")
    )
    summed = (
        rows.group_by("call", "layer", maintain_order=True)
        .agg(pl.col("elements").sum())
        .join(item, on="call")
    )
    return summed.select(
        "call",
        "layer",
        pl.lit("gradients").alias("carries"),
        (pl.col("elements") * pl.col("item")).alias("bytes"),
    )


def _pass_begins(model: StackModel, nodes: Int64Array) -> BoolArray:
    """Which of these gradients, in order of time on one thread, are the first of a backward pass: a forward operator ran before."""
    stack = model.stack
    forward = stack.of_kind("op") & (stack.sequence >= 0) & (model.backward.node < 0)
    before = np.searchsorted(np.sort(stack.start[forward]), stack.start[nodes])
    begins: BoolArray = np.diff(before, prepend=0) > 0
    return begins


def _bucket_bounds(
    start: Int64Array, sizes: Int64Array, begins: BoolArray, launch: Int64Array, wanted: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """The first gradient of each reduction and the one after its last, −1 where their sizes do not sum to what it reduces.

    `start`, `sizes` and `begins` are of the gradients, `launch` and `wanted` (elements) of the reductions, both in order of time on
    one thread. A size of 0 is not known.
    """
    summed = np.concatenate([[0], np.cumsum(sizes)])
    lost = np.concatenate([[0], np.cumsum(sizes == 0)])
    last = np.searchsorted(start, launch, side="right")
    before = np.concatenate([[0], last[:-1]])
    first = np.searchsorted(summed, summed[last] - wanted)
    fits = (wanted > 0) & (summed[first] == summed[last] - wanted) & (lost[first] == lost[last])
    at_begin = np.append(begins, False)[first]
    after_one = (first == before) & (np.arange(first.size) > 0)
    return np.where(fits & (first >= before) & (at_begin | after_one), first, -1), last
