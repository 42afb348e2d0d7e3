"""Typed records of `args` by kind of event; the decoder skips other keys at full speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec

from tracekit.readers.kineto import vocabulary as words
from tracekit.readers.kineto.salvage import Defects

__all__ = [
    "LABEL",
    "REAL",
    "ActivityArgs",
    "MemoryArgs",
    "NoArgs",
    "OpArgs",
    "PythonArgs",
    "RuntimeArgs",
    "Scalar",
    "SyncArgs",
    "decode_args",
    "loose_args",
    "record_of",
]

Scalar = int | str | float | None
LABEL: Final = "label"
REAL: Final = "real"
Label = Annotated[Scalar, msgspec.Meta(extra={LABEL: True})]
"""Read as a text; a `Scalar` without such a mark is read as a whole number."""
Real = Annotated[Scalar, msgspec.Meta(extra={REAL: True})]
"""Read as a number of floating point."""


class CollectiveArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "collective": "Collective name",
        "elements_in": "In msg nelems",
        "elements_out": "Out msg nelems",
        "group": "Process Group Name",
        "group_size": "Group size",
        "collective_sequence": "Seq",
        "group_ranks": "Process Group Ranks",
        "split_in": "In split size",
        "split_out": "Out split size",
        "source": "Src Rank",
        "destination": "Dst Rank",
    },
):
    """What is recorded of a collective: by the operator `record_param_comms`, and once more by the kernels that it launched."""

    collective: Label = None
    dtype: Label = None
    elements_in: Scalar = None
    elements_out: Scalar = None
    group: Label = None
    group_size: Scalar = None
    collective_sequence: Scalar = None
    group_ranks: msgspec.Raw = msgspec.Raw()
    split_in: msgspec.Raw = msgspec.Raw()
    split_out: msgspec.Raw = msgspec.Raw()
    source: Scalar = None
    destination: Scalar = None


class OpArgs(
    CollectiveArgs,
    gc=False,
    rename={
        "external_id": "External id",
        "sequence": "Sequence number",
        "forward_thread": "Fwd thread id",
        "shapes": "Input Dims",
        "strides": "Input Strides",
        "dtypes": "Input type",
        "concrete_inputs": "Concrete Inputs",
        "call_stack": "Call stack",
    },
):
    """Operators and annotations."""

    external_id: Scalar = None
    sequence: Scalar = None
    forward_thread: Scalar = None
    shapes: msgspec.Raw = msgspec.Raw()
    strides: msgspec.Raw = msgspec.Raw()
    dtypes: msgspec.Raw = msgspec.Raw()
    concrete_inputs: msgspec.Raw = msgspec.Raw()
    call_stack: Label = None
    layer: Label = None
    module: Label = None


class RuntimeArgs(
    msgspec.Struct, gc=False, rename={"external_id": "External id", "external_id_2021": "external id"}
):
    """Calls of the CUDA or HIP API."""

    correlation: Scalar = None
    external_id: Scalar = None
    external_id_2021: Scalar = None


class PythonArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "python_id": "Python id",
        "python_parent_id": "Python parent id",
        "module_id": "Python module id",
    },
):
    """Python functions and module calls."""

    python_id: Scalar = None
    python_parent_id: Scalar = None
    module_id: Scalar = None


class ActivityArgs(
    CollectiveArgs,
    gc=False,
    rename={
        "external_id": "External id",
        "external_id_2021": "external id",
        "registers": "registers per thread",
        "shared_memory": "shared memory",
        "occupancy": "est. achieved occupancy %",
        "graph_node": "graph node id",
        "byte_count": "bytes",
        "byte_count_2024": "Bytes",
    },
):
    """Kernels, copies and fills."""

    device: Scalar = None
    context: Scalar = None
    stream: Scalar = None
    correlation: Scalar = None
    external_id: Scalar = None
    external_id_2021: Scalar = None
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    registers: Scalar = None
    shared_memory: Scalar = None
    occupancy: Real = None
    graph_node: Scalar = None
    byte_count: Scalar = None
    byte_count_2024: Scalar = None


class SyncArgs(msgspec.Struct, gc=False, rename={"wait_on_correlation": "wait_on_cuda_event_record_corr_id"}):
    """Device-side synchronisation records."""

    device: Scalar = None
    stream: Scalar = None
    correlation: Scalar = None
    wait_on_stream: Scalar = None
    wait_on_correlation: Scalar = None


class MemoryArgs(
    msgspec.Struct,
    gc=False,
    rename={
        "address": "Addr",
        "byte_count": "Bytes",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_id": "Device Id",
        "device_type": "Device Type",
    },
):
    """Allocator events."""

    address: Scalar = None
    byte_count: Scalar = None
    allocated: Scalar = None
    reserved: Scalar = None
    device_id: Scalar = None
    device_type: Scalar = None


class NoArgs(msgspec.Struct, gc=False):
    """What the profiler does itself: nothing of it is read."""


_OF_HOST_KIND: Final[dict[str, type[msgspec.Struct]]] = {
    "runtime": RuntimeArgs,
    "python": PythonArgs,
    "overhead": NoArgs,
}


def record_of(category: str | None) -> type[msgspec.Struct]:
    """The record by which arguments of complete events of a category are read, if they are read by one."""
    if category in words.DEVICE_CATEGORIES:
        return ActivityArgs
    if category in words.DEVICE_SYNC_CATEGORIES:
        return SyncArgs
    return _OF_HOST_KIND.get(words.HOST_CATEGORIES.get(category or "", ""), OpArgs)


def loose_args(raw: msgspec.Raw | bytes, defects: Defects) -> dict[str, Any]:
    """Arguments with keys of any name; empty, and counted as a defect, if they are not an object."""
    try:
        args: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        args = None
    if isinstance(args, dict):
        return args
    defects.add("odd_arguments", bytes(raw))
    return {}


_Args = TypeVar("_Args", bound=msgspec.Struct)


def decode_args(raws: Sequence[msgspec.Raw], record: type[_Args], defects: Defects) -> list[_Args]:
    """The `args` of many events as records; if one is not an object, its record is empty and it is counted as a defect."""
    try:
        return msgspec.json.decode(b"[" + b",".join(raws) + b"]", type=list[record])  # type: ignore[valid-type]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [_decode_one(bytes(raw), record, defects) for raw in raws]


def _decode_one(raw: bytes, record: type[_Args], defects: Defects) -> _Args:
    try:
        return msgspec.json.decode(raw, type=record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        defects.add("odd_arguments", raw)
    loose = loose_args(raw, Defects())
    fields = msgspec.structs.fields(record)
    kept: dict[str, Any] = {}
    for field in fields:
        value = loose.get(field.encode_name)
        if field.type is msgspec.Raw:
            if value is not None:
                kept[field.name] = msgspec.Raw(msgspec.json.encode(value))
        elif isinstance(value, int | str | float):
            kept[field.name] = value
    return record(**kept)
