"""The tables and columns of Nsight Systems exports, by schema version.

Sources: NVIDIA's public documentation of the export (of 2019 and of today), and the column lists of public files. What
the documentation of 2019 says holds of the first version: there is no table of metadata, and every column is NOT
NULL, so that a missing value is written as 0 or as an empty text.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSIONS = ("1.0.0", "2.9.1", "3.20.2", "3.25.0")
"""About 2019, 2022.2, 2025.3 and 2026.2."""

OLDEST, NEWEST = VERSIONS[0], VERSIONS[-1]

# A word is a column: its name, `!` when it is NOT NULL, `:T` for TEXT, `:R` for REAL, `:S` when it refers to StringIds,
# `*` for the primary key, `@v` since which version, `<v` up to which (exclusive).
_ACTIVITY = "start! end! deviceId! contextId! greenContextId@3 streamId! correlationId globalPid"
_TABLES = {
    "StringIds": "id* value!:T",
    "NVTX_EVENTS": (
        "start! end eventType! rangeId category color text:T globalTid endGlobalTid textId:S@2 domainId@2"
        " uint64Value@2 int64Value@2 doubleValue:R@2 uint32Value@2 int32Value@2 floatValue:R@2"
        " jsonTextId:S@2 jsonText:T@2 binaryData:T@3"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start! end! eventClass!@2 globalTid correlationId nameId!:S returnValue! callchainId@2"
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_ACTIVITY} demangledName!:S shortName!:S mangledName:S@2 launchType@2 cacheConfig@2"
        " registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory!"
        " dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted@2"
        " graphNodeId@2 sharedMemoryLimitConfig@2 graphId@3.25 clusterX@3.25 clusterY@3.25 clusterZ@3.25"
        " tensorSizeMinusOneElements!:T@3.25"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        f"{_ACTIVITY} bytes! copyKind! deprecatedSrcId@2 srcKind dstKind srcDeviceId@2 srcContextId@2"
        " dstDeviceId@2 dstContextId@2 migrationCause@2 graphNodeId@2 virtualAddress@2 copyCount@3"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value! bytes! graphNodeId@2 memKind@2",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_ACTIVITY} graphId graphExecId",
    "CUDA_GRAPH_NODE_EVENTS": (
        "start!@3 end!@3 eventClass!@3 globalTid@3 nameId!:S@3 graphNodeId!@3 originalGraphNodeId@3"
    ),
    "CUDA_GRAPH_EVENTS": (
        "start!@2<3 end!@2<3 eventClass!@2<3 globalTid@2<3 nameId!:S@2<3 graphNodeId!@2<3 originalGraphNodeId@2<3"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        f"{_ACTIVITY} deprecatedSyncType@3 syncType! eventId! eventSyncId@3.25"
    ),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": (
        "start!@3.25 end!@3.25 eventClass!@3.25 globalTid@3.25 correlationId@3.25 nameId:S@3.25"
        " overheadType!@3.25"
    ),
    "PROFILER_OVERHEAD": "start! end! globalTid nameId!:S returnValue!<3.25 overheadType!@3.25",
    "OSRT_API": "start! end! eventClass!@2 globalTid nameId!:S returnValue! nestingLevel callchainId!@2",
    "ThreadNames": "nameId!:S priority globalTid",
    "PROCESSES": "globalPid@2 pid@2 name:T@2",
    "COMPOSITE_EVENTS": "id* start! cpu threadState globalTid cpuCycles!",
    "SAMPLING_CALLCHAINS": (
        "id! symbol!:S module!:S kernelMode thumbCode unresolved specialEntry originalIP@2 unwindMethod@2"
        " stackDepth!"
    ),
    "GPU_METRICS": "timestamp@2 typeId!@2 metricId!@2 value!@2",
    "TARGET_INFO_GPU_METRICS": "typeId!@2 sourceId!@2 typeName!:T@2 metricId!@2 metricName!:T@2",
    "MPI_P2P_EVENTS": "start! end! globalTid textId:S commHandle tag remoteRank size requestHandle",
    "MPI_COLLECTIVES_EVENTS": "start! end! globalTid textId:S commHandle rootRank size recvSize requestHandle",
    "NVTX_PAYLOAD_SCHEMAS": (
        "domainId@3 schemaId@3 name:T@3 type@3 flags@3 numEntries@3 payloadSize@3 alignTo@3"
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
        "domainId!@3 schemaId!@3 idx!@3 flags@3 type@3 name:T@3 description:T@3 arrayOrUnionDetail@3 offset@3"
    ),
    "TARGET_INFO_GPU": (
        "vmId!@2 id!@2 name:T@2 busLocation:T@2 isDiscrete@2 l2CacheSize@2 totalMemory@2 memoryBandwidth@2"
        " clockRate@2 smCount@2 uuid:T@2 chipName:T@2 cuDevice@2 maxRegistersPerSm@2 threadsPerWarp@2"
        " maxWarpsPerSm@2 maxBlocksPerSm@2 maxThreadsPerBlock@2 computeMajor@2 computeMinor@2"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId@3 cudaId!@3 pid!@3",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs@2 utcTime:T@2 localTime:T@2",
    "TARGET_INFO_SYSTEM_ENV": "globalVid@2 devStateName!:T@2 name!:T@2 nameEnum!@2 value!:T@2",
    "ANALYSIS_DETAILS": "globalVid!@2 duration!@2 startTime!@2 stopTime!@2",
    "EXPORT_META_DATA": "name!:T@2<3 value:T@2<3",
    "META_DATA_EXPORT": "name!:T@3 value:T@3",
    "META_DATA_CAPTURE": "name!:T@3 value:T@3",
}

_COPY_KINDS = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"}
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
_SYNC_KINDS = {1: "Event sync", 2: "Stream wait sync", 3: "Stream sync", 4: "Context sync"}
ENUMS = {
    "ENUM_CUDA_MEMCPY_OPER": _COPY_KINDS,
    "ENUM_CUDA_MEM_KIND": _MEMORY_KINDS,
    "ENUM_CUPTI_SYNC_TYPE": _SYNC_KINDS,
    "ENUM_NSYS_EVENT_TYPE": {34: "NVTX mark", 59: "NVTX push/pop range", 60: "NVTX start/end range"},
}
"""Tables of codes (`id`, `name`, `label`), from 3.20.2 on."""

COPY_KIND = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
MEMORY_KIND = {name: number for number, name in _MEMORY_KINDS.items()}


@dataclass(frozen=True)
class Column:
    """One column of one table in one version. `string`: it holds a number of StringIds."""

    name: str
    type: str = "INTEGER"
    not_null: bool = False
    key: bool = False
    string: bool = False

    @property
    def sql(self) -> str:
        return f'"{self.name}" {self.type}{" NOT NULL" * self.not_null}{" PRIMARY KEY" * self.key}'

    @property
    def missing(self) -> int | float | str | None:
        """What a row without a value has here."""
        return {"TEXT": "", "REAL": 0.0}.get(self.type, 0) if self.not_null else None


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def schema(version: str) -> dict[str, list[Column]]:
    """The columns of every table that an export of this version can have."""
    found = {table: [_column(word, version) for word in words.split()] for table, words in _TABLES.items()}
    made = {table: [column for column in columns if column] for table, columns in found.items()}
    if number(version) >= (3,):
        made |= {
            table: [Column("id", key=True), Column("name", "TEXT"), Column("label", "TEXT")]
            for table in ENUMS
        }
    return {table: columns for table, columns in made.items() if columns}


def _column(word: str, version: str) -> Column | None:
    word, _, before = word.partition("<")
    word, _, since = word.partition("@")
    word, _, kind = word.partition(":")
    if (since and number(version) < number(since)) or (before and number(version) >= number(before)):
        return None
    return Column(
        name=word.rstrip("!*"),
        type={"T": "TEXT", "R": "REAL"}.get(kind, "INTEGER"),
        not_null="!" in word or number(version) < (2,),
        key="*" in word,
        string=kind == "S",
    )
