"""The layer table that a capture adds to its trace: every module, and its calls with their sequence numbers.

Autograd gives each node that it records on a thread the next *sequence number*. A module call that began at
number `first_sequence` and ended at `end_sequence` created the nodes first ≤ n < end, so a backward operation
with number n, whose forward ran on that thread, belongs to the innermost such call.
"""

from __future__ import annotations

import msgspec

__all__ = ["LAYER_TABLE_VERSION", "Layer", "LayerCalls", "LayerTable"]

LAYER_TABLE_VERSION = 1


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One module. `parameters` counts the elements of its own parameters, without its children.

    A parameter that several modules share counts in each of them. `name` is the exact qualified name ("" for
    the root), `range_name` the name of its ranges in the trace. `input_shapes` and `output_shapes` are the
    shapes of the tensors of its first recorded call, None if it was not called. A compiled block is one layer, with all
    parameters inside it.
    """

    id: int
    parent: int | None
    name: str
    range_name: str
    type: str
    parameters: int
    input_shapes: list[list[int]] | None = None
    output_shapes: list[list[int]] | None = None


class LayerCalls(msgspec.Struct, frozen=True, kw_only=True):
    """One row per module call in the recorded steps, in order of entry, as columns of equal length.

    `step` is the N of `ProfilerStep#N`, `thread` the operating system's thread id. `in_backward` marks a
    forward call that ran inside the backward pass (activation checkpointing).
    """

    layer: list[int] = msgspec.field(default_factory=list)
    step: list[int] = msgspec.field(default_factory=list)
    thread: list[int] = msgspec.field(default_factory=list)
    first_sequence: list[int] = msgspec.field(default_factory=list)
    end_sequence: list[int] = msgspec.field(default_factory=list)
    in_backward: list[bool] = msgspec.field(default_factory=list)


class LayerTable(msgspec.Struct, frozen=True, kw_only=True):
    """The modules of the model and their calls; `schema_version` rises when a field changes its meaning."""

    layers: list[Layer]
    calls: LayerCalls
    schema_version: int = LAYER_TABLE_VERSION
