"""The layers of a run, call by call and by path: latency, own time, allocated memory, and the data of the capture.

A layer's latency is the time of its calls, including other layers inside them; its *own* time leaves these out, so that
own times add up. Both are host times: of the forward pass, and of the recomputation of activation checkpointing.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import METHODS, attribution
from tracekit.analyses.scope import Scope
from tracekit.analyses.xsp.catalogue import COLUMNS
from tracekit.analyses.xsp.runs import UNATTRIBUTED, XspRun, paths_of, steps_of
from tracekit.statistics import trimmed
from tracekit.trace import Trace

__all__ = ["FORWARD_METHODS", "allocations", "layer_table", "module_table", "own_time_ns"]

FORWARD_METHODS = ("capture", "module", "range", "compiled", "interval")
"""The methods of attribution for work inside a span of the layer itself."""

_COLUMNS = {
    name: COLUMNS[name][0] for name in ("index", "layer", "type", "leaf", "calls", "latency_ns", "self_ns")
}


def layer_table(run: XspRun) -> pl.DataFrame:
    """One row per layer in the order of execution: `index` (from 1), `layer`, `type`, `leaf`, `calls` per step, and the
    trimmed means over steps of `latency_ns` and `self_ns`, each the sum of the layer's calls in a step.

    From the run at level ML, else from a deeper run, which has the layers but not their latencies.
    """
    rows = _by_layer(next(iter(run.recordings), None))
    times = ("latency_ns", "self_ns")
    return rows if run.layers else rows.with_columns(pl.lit(None, pl.Float64).alias(name) for name in times)


def own_time_ns(scope: Scope | None) -> float | None:
    """The sum of the own times of all layers in a step; None without layers."""
    layers = _by_layer(scope)
    return float(layers["self_ns"].sum()) if layers.height else None


def _by_layer(scope: Scope | None) -> pl.DataFrame:
    calls = None if scope is None else _layer_calls(scope)
    if calls is None:
        return pl.DataFrame(schema=_COLUMNS)
    steps = calls.group_by("layer", "step").agg(
        pl.col("type").first(),
        pl.len().alias("calls"),
        pl.col("start").min(),
        pl.col("latency_ns", "self_ns").sum(),
        pl.col("leaf").all(),
    )
    return (
        steps.sort("step", "start")
        .group_by("layer", maintain_order=True)
        .agg(
            pl.col("type").first(),
            pl.col("leaf").all(),
            pl.col("calls").mean(),
            trimmed("latency_ns"),
            trimmed("self_ns"),
            pl.col("step", "start").first(),
        )
        .sort("step", "start", "layer")
        .with_row_index("index", 1)
        .select(pl.col(name).cast(kind) for name, kind in _COLUMNS.items())
    )


def _layer_calls(scope: Scope) -> pl.DataFrame | None:
    """One row per call of a layer in the steps: `layer` (its path), `type`, `step`, `start`, `latency_ns`, `self_ns`,
    and `leaf`, true if it calls no other layer. From the most reliable source of layers in the trace; None without layers.
    """
    sources = attribution(scope).model.layers.sources
    if not sources:
        return None
    nesting, layers = sources[0].nesting, sources[0].layer
    leaf = np.ones(layers.size, dtype=bool)
    leaf[nesting.parent[nesting.parent >= 0]] = False
    # A call inside a call of the same layer (a model that wraps itself) is part of the outer call.
    again = (nesting.parent >= 0) & (layers[np.maximum(nesting.parent, 0)] == layers)
    rows = paths_of(scope, layers).with_columns(
        steps_of(scope, nesting.start),
        pl.Series("start", nesting.start),
        pl.Series("latency_ns", np.where(again, 0, nesting.end - nesting.start)),
        pl.Series("self_ns", nesting.self_time()),
        pl.Series("leaf", leaf),
    )
    return rows.filter(pl.col("step").is_not_null())


def allocations(scope: Scope | None) -> pl.DataFrame | None:
    """`layer`, `allocated_bytes`, and the part of it in calls of the layer itself, `forward_bytes`: trimmed means over steps.

    Device memory if a device was captured, else host memory. None if the allocator was not profiled.
    """
    if scope is None or scope.trace.memory is None:
        return None
    on_device = pl.col("device_id") >= 0
    events = scope.trace.memory.filter(
        (pl.col("bytes") > 0) & (on_device if scope.trace.has_device else ~on_device)
    )
    model, start = attribution(scope).model, events["start"].to_numpy()
    threads = model.stack.code_of(events["process_id"].to_numpy(), events["thread_id"].to_numpy())
    places = model.places(model.stack.nesting.innermost_at(threads, start))
    forward = np.isin(places.method, [METHODS.index(name) for name in FORWARD_METHODS])
    rows = paths_of(scope, places.layer).with_columns(
        pl.col("layer").fill_null(UNATTRIBUTED),
        steps_of(scope, start),
        events["bytes"].alias("allocated_bytes"),
        pl.Series("forward_bytes", np.where(forward, events["bytes"].to_numpy(), 0)),
    )
    sizes = ("allocated_bytes", "forward_bytes")
    steps = rows.filter(pl.col("step").is_not_null()).group_by("layer", "step").agg(pl.col(sizes).sum())
    return steps.group_by("layer").agg(map(trimmed, sizes))


class _Module(msgspec.Struct):
    name: str
    parameters: int | None = None
    input_shapes: object = None
    output_shapes: object = None


class _Table(msgspec.Struct):
    layers: list[_Module]


def module_table(trace: Trace) -> pl.DataFrame:
    """The capture's data of each module: `layer`, `parameters` of its own, `input_shapes` and `output_shapes` (JSON)."""
    try:
        modules = msgspec.json.decode(trace.meta.layers or '{"layers": []}', type=_Table).layers
    except msgspec.DecodeError:
        modules = []  # the reader has said so in the trace's health
    rows = [
        (
            one.name or "<root>",
            _parameters(one.parameters),
            *map(_json, (one.input_shapes, one.output_shapes)),
        )
        for one in modules
    ]
    schema = dict.fromkeys(("layer", "parameters", "input_shapes", "output_shapes"), pl.String)
    frame = pl.DataFrame(rows, schema=schema | {"parameters": pl.Int64}, orient="row")
    return frame.unique("layer", keep="first", maintain_order=True)


def _parameters(count: int | None) -> int | None:
    """The count; None if it does not fit into a column, because it is then damaged."""
    return count if count is not None and 0 <= count < 2**63 else None


def _json(shapes: object) -> str | None:
    return msgspec.json.encode(shapes).decode() if shapes else None
