"""The tables and columns of an Nsight Systems export that the reader reads, in every version of the schema.

`tracekit scrub` copies these and no others. Binary payloads are not listed here: `payloads` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tracekit.readers.nsys import vocabulary as facts
from tracekit.readers.nsys.pages import ColumnKind

__all__ = ["COLUMNS", "STRING_COLUMNS"]


def _integers(words: str) -> dict[str, ColumnKind]:
    return dict.fromkeys(words.split(), "int")


_ACTIVITY = _integers("start end deviceId contextId streamId correlationId globalPid graphNodeId")
_CALL = _integers("start end globalTid nameId")
_NODE = _integers("start globalTid graphNodeId originalGraphNodeId")
_LABEL: dict[str, ColumnKind] = {"id": "int", "label": "text"}
_METADATA: dict[str, ColumnKind] = {"name": "text", "value": "text"}
_NVTX: dict[str, ColumnKind] = {
    **_integers("start end eventType globalTid endGlobalTid domainId textId jsonTextId"),
    **_integers("uint64Value int64Value uint32Value int32Value"),
    **{"text": "text", "jsonText": "text", "doubleValue": "float", "floatValue": "float"},
}

COLUMNS: Final[Mapping[str, Mapping[str, ColumnKind]]] = {
    facts.KERNEL_TABLE: {
        **_ACTIVITY,
        **_integers("demangledName mangledName shortName gridX gridY gridZ blockX blockY blockZ"),
        **_integers("registersPerThread staticSharedMemory dynamicSharedMemory"),
    },
    facts.MEMCPY_TABLE: {**_ACTIVITY, **_integers("bytes copyKind srcKind dstKind")},
    facts.MEMSET_TABLE: {**_ACTIVITY, **_integers("bytes memKind")},
    facts.GRAPH_TABLE: {**_ACTIVITY, **_integers("graphId")},
    facts.SYNC_TABLE: _integers(
        "start end deviceId contextId streamId correlationId globalPid syncType deprecatedSyncType eventId eventSyncId"
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": _integers("globalPid eventId eventSyncId streamId correlationId"),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": _integers(
        "start globalPid deviceId address bytes memKind memoryOperationType"
    ),
    facts.RUNTIME_TABLE: {**_CALL, **_integers("eventClass correlationId")},
    **{table: {**_CALL, "textId": "int"} for table in facts.LIBRARY_TABLES},
    **{table: {**_CALL, **_integers("textId size recvSize remoteRank")} for table in facts.MPI_TRAFFIC},
    **{table: {**_CALL, "overheadType": "int"} for table in facts.OVERHEAD_TABLES},
    "OSRT_API": _CALL,
    **dict.fromkeys(facts.NVTX_TABLES, _NVTX),
    **dict.fromkeys(facts.GRAPH_NODE_TABLES, _NODE),
    "COMPOSITE_EVENTS": _integers("id start globalTid"),
    "SAMPLING_CALLCHAINS": _integers("id symbol stackDepth"),
    "GPU_METRICS": {**_integers("timestamp typeId metricId"), "value": "float"},
    "TARGET_INFO_GPU_METRICS": {**_integers("typeId sourceId metricId"), "metricName": "text"},
    "ThreadNames": _integers("globalTid nameId"),
    "MPI_RANKS": _integers("globalTid rank"),
    "TARGET_INFO_GPU": {
        "name": "text",
        **_integers("id totalMemory memoryBandwidth clockRate smCount cuDevice maxWarpsPerSm threadsPerWarp"),
        **_integers("computeMajor computeMinor"),
    },
    "TARGET_INFO_CUDA_DEVICE": _integers("pid cudaId gpuId"),
    "TARGET_INFO_SESSION_START_TIME": _integers("utcEpochNs"),
    **dict.fromkeys(facts.METADATA_TABLES, _METADATA),
    **dict.fromkeys((facts.COPY_KIND_LABELS[0], facts.MEMORY_KIND_LABELS, facts.OVERHEAD_LABELS), _LABEL),
    "StringIds": {"id": "int", "value": "text"},
}
"""The columns by table, each with the kind of its values; calls come before their samples."""

STRING_COLUMNS: Final = frozenset(
    {"demangledName", "mangledName", "shortName", "nameId", "textId", "jsonTextId", "symbol"}
)
"""Columns that hold the id of a string in StringIds."""
