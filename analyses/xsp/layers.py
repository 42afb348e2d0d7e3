"""What the levels ML and MLG tell of layers: calls, latency, own time, allocated memory; per step, by path.

A layer's latency is the time of its calls, other layers inside them included; its *own* time leaves those out, so that
own times add up. Both are the host's: of the forward pass, and of what activation checkpointing computes again.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import METHODS
from tracekit.analyses.xsp.runs import Recording
from tracekit.statistics import trimmed

__all__ = ["FORWARD_METHODS", "allocations", "layer_calls", "layer_table", "module_table"]

FORWARD_METHODS = ("capture", "module", "range", "compiled", "interval")
"""How the layer of work is known that runs inside a span of the layer itself."""

_CALLS = {
    "layer": pl.String,
    "type": pl.String,
    "step": pl.Int64,
    "start": pl.Int64,
    "latency_ns": pl.Int64,
    "self_ns": pl.Int64,
    "leaf": pl.Boolean,
}
_ALLOCATIONS = {"layer": pl.String, "step": pl.Int64, "bytes": pl.Int64, "forward": pl.Boolean}


def layer_calls(recording: Recording) -> pl.DataFrame:
    """One row per call of a layer in the steps: `layer` (its path), `type`, `step`, `start`, `latency_ns`, `self_ns`,
    and `leaf`, whether no other layer is called in it. Of the surest source of layers that the trace has.
    """
    sources = recording.found.model.layers.sources
    if not sources:
        return pl.DataFrame(schema=_CALLS)
    nesting, layers = sources[0].nesting, sources[0].layer
    leaf = np.ones(layers.size, dtype=bool)
    leaf[nesting.parent[nesting.parent >= 0]] = False
    # A call inside a call of the same layer (a model that wraps itself) is part of the outer one.
    again = (nesting.parent >= 0) & (layers[np.maximum(nesting.parent, 0)] == layers)
    return (
        recording.paths(layers)
        .with_columns(
            recording.step_of(nesting.start).alias("step"),
            pl.Series("start", nesting.start),
            pl.Series("latency_ns", np.where(again, 0, nesting.end - nesting.start)),
            pl.Series("self_ns", nesting.self_time()),
            pl.Series("leaf", leaf),
        )
        .filter(pl.col("step").is_not_null())
        .select(pl.col(name).cast(kind) for name, kind in _CALLS.items())
    )


def layer_table(calls: pl.DataFrame) -> pl.DataFrame:
    """One row per layer in the order of execution: `index` (from 1), `layer`, `type`, `leaf`, `calls` a step, and the
    trimmed means over steps of `latency_ns` and `self_ns`, each the sum of the layer's calls in a step.
    """
    first = pl.col("step").min()
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
            first.alias("first"),
            pl.col("start").first(),
        )
        .sort("first", "start", "layer")
        .select(
            pl.int_range(1, pl.len() + 1).alias("index"),
            *("layer", "type", "leaf", "calls", "latency_ns", "self_ns"),
        )
    )


def allocations(recording: Recording) -> pl.DataFrame | None:
    """One row per allocation in the steps: `layer` (null: in none), `step`, `bytes`, and whether it lay in a call of
    the layer (`forward`). Of device memory, where a device was captured. None when the allocator was not profiled.
    """
    events = recording.trace.memory
    if events is None:
        return None
    on_host = pl.col("device_id") < 0
    events = events.filter((pl.col("bytes") > 0) & (~on_host if recording.trace.has_device else on_host))
    if not events.height:
        return pl.DataFrame(schema=_ALLOCATIONS)
    model, start = recording.found.model, events["start"].to_numpy()
    threads = model.stack.code_of(events["process_id"].to_numpy(), events["thread_id"].to_numpy())
    places = model.places(model.stack.nesting.innermost_at(threads, start))
    forward = np.isin(places.method, [METHODS.index(name) for name in FORWARD_METHODS])
    return (
        recording.paths(places.layer)
        .with_columns(recording.step_of(start).alias("step"), events["bytes"], pl.Series("forward", forward))
        .filter(pl.col("step").is_not_null())
        .select(pl.col(name).cast(kind) for name, kind in _ALLOCATIONS.items())
    )


class _Module(msgspec.Struct):
    name: str
    parameters: int | None = None
    input_shapes: object = None
    output_shapes: object = None


class _Table(msgspec.Struct):
    layers: list[_Module]


def module_table(recording: Recording) -> pl.DataFrame:
    """What a capture wrote of each module: `layer`, `parameters` of its own, `input_shapes` and `output_shapes` (JSON)."""
    schema = {
        "layer": pl.String,
        "parameters": pl.Int64,
        "input_shapes": pl.String,
        "output_shapes": pl.String,
    }
    try:
        table = msgspec.json.decode(recording.trace.meta.layers or '{"layers": []}', type=_Table)
    except msgspec.DecodeError:
        return pl.DataFrame(schema=schema)  # the reader has said so in the trace's health
    rows = [
        (
            one.name or "<root>",
            _fitting(one.parameters),
            *(_text(it) for it in (one.input_shapes, one.output_shapes)),
        )
        for one in table.layers
    ]
    return pl.DataFrame(rows, schema=schema, orient="row").unique("layer", keep="first", maintain_order=True)


def _fitting(count: int | None) -> int | None:
    """The count, unless it is none that a column can hold: then it is damaged."""
    return count if count is not None and 0 <= count < 2**63 else None


def _text(shapes: object) -> str | None:
    return msgspec.json.encode(shapes).decode() if shapes else None
