"""The vocabulary of Nsight Systems' exports: tables, codes and names, in every version of the schema.

Sources: NVIDIA's public reference of the export schema, and of NVTX's payload extension (types and flags). Tables and
columns differ between versions, so a name here does not mean that it exists; the reader asks the file. The head of a
payload in `binaryData` is not in the reference; it follows descriptions by users of exports. A payload whose head does not
agree with its row and its schema is not read.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "API_CLASSES",
    "API_VERSION",
    "COMMUNICATOR",
    "COPY_KINDS",
    "COPY_KIND_LABELS",
    "DESCRIBING_TABLES",
    "DOMAIN_CREATED",
    "EMITTED_INPUTS",
    "EMITTED_OPERATOR",
    "EMITTED_SEQUENCE",
    "EMITTED_SIZES",
    "EVENT_TABLES",
    "EXPORT_SUFFIX",
    "FIXED_LAYOUT",
    "FORMAT_NAME",
    "FORWARD_EVENT",
    "GRAPH_NODE_TABLES",
    "GRAPH_TABLE",
    "KERNEL_TABLE",
    "LIBRARY_CALL",
    "LIBRARY_TABLES",
    "MARKS",
    "MEMCPY_TABLE",
    "MEMORY_KINDS",
    "MEMORY_KIND_LABELS",
    "MEMSET_TABLE",
    "MESSAGE_SIZES",
    "METADATA_TABLES",
    "MPI_TRAFFIC",
    "NAMED_THREAD",
    "NCCL_COLLECTIVE",
    "NESTED_RANGES",
    "NORMALISED_TIMES",
    "NOT_IN_PLACE",
    "NVTX_TABLES",
    "OPERATOR_NAME",
    "OVERHEAD_LABELS",
    "OVERHEAD_TABLES",
    "PAYLOAD_COLUMNS",
    "PAYLOAD_ENTRIES",
    "PAYLOAD_HEAD_BYTES",
    "PAYLOAD_SCHEMAS",
    "PAYLOAD_TABLE",
    "PAYLOAD_TYPES",
    "PEER",
    "RANKS",
    "RANK_NAME",
    "REPORT_SUFFIXES",
    "RUNTIME_TABLE",
    "SPANNING_RANGES",
    "SQLITE_MAGIC",
    "SYNC_NAMES",
    "SYNC_TABLE",
    "TRACED_CALL",
]

FORMAT_NAME: Final = "nsys"

SQLITE_MAGIC: Final = b"SQLite format 3\0"
"""The first bytes of every SQLite database."""

EXPORT_SUFFIX: Final = ".sqlite"
REPORT_SUFFIXES: Final = (".nsys-rep", ".qdrep")
"""Files that nsys itself records; their format is not public, and `nsys export` converts them."""

KERNEL_TABLE: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY_TABLE: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET_TABLE: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TABLE: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME_TABLE: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNC_TABLE: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPH_NODE_TABLES: Final = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")
"""The tables of graph node creation: the second until 2022; since then it holds whole graphs."""

OVERHEAD_TABLES: Final = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD", "CUPTI_ACTIVITY_KIND_JIT")
LIBRARY_TABLES: Final = (
    "CUBLAS_EVENTS",
    "CUDNN_EVENTS",
    "MPI_COLLECTIVES_EVENTS",
    "MPI_P2P_EVENTS",
    "MPI_START_WAIT_EVENTS",
    "MPI_OTHER_EVENTS",
    "UCP_SUBMIT_EVENTS",
    "UCP_PROGRESS_EVENTS",
    "UCP_EVENTS",
)
"""Calls of libraries that nsys traces itself; each becomes an operator."""

MPI_TRAFFIC: Final = frozenset({"MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS"})
"""Those of them that say what a call moves."""

TRACED_CALL: Final = r"^(cublas(Lt|Xt)?[A-Z]|cudnn[A-Z]|MPI_)"
"""The names of library calls that need no NVTX (`--trace=cublas,cudnn,mpi`)."""

NVTX_TABLES: Final = ("NVTX_EVENTS", "NVTXT_EVENTS")
"""Ranges of programs, and since 2024 a separate table for ranges of imported text files."""

METADATA_TABLES: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""The table with the version that wrote the export; its name changed in 2023."""

EVENT_TABLES: Final = (
    *(KERNEL_TABLE, MEMCPY_TABLE, MEMSET_TABLE, GRAPH_TABLE, RUNTIME_TABLE, SYNC_TABLE),
    *OVERHEAD_TABLES,
    *LIBRARY_TABLES,
    *NVTX_TABLES,
    *("OSRT_API", "GPU_METRICS", "CUDA_GPU_MEMORY_USAGE_EVENTS"),
)
"""Tables of events that are read."""

DESCRIBING_TABLES: Final = (
    r"^(ENUM|META_DATA|TARGET_INFO|ANALYSIS|NVTX_PAYLOAD|DYNAMIC_NVTXPAYLOAD_DATATYPE|GENERIC_EVENT_TYPE"
    r"|NET_IB_DEVICE)_|_CALLCHAINS$"
    r"|^(EXPORT_META_DATA|StringIds|ThreadNames|PROCESSES|ProcessStreams|UnwindMethodType"
    r"|DIAGNOSTIC_EVENT|MPI_RANKS|MPI_COMMUNICATORS|UCP_WORKERS|NIC_ID_MAP|ETW_PROVIDERS|ETW_TASKS"
    r"|NVTX_SCOPES|NVTX_EVENTS_PAYLOAD_SCHEMAS|NVTX_EXPORT_TRANSLATION|NVTXT_META_EVENTS"
    r"|GENERIC_EVENT_SOURCES|GENERIC_EVENT_TYPES|GENERIC_EVENT_DATA"
    r"|OSRT_ARGUMENTS|OSRT_FILE_ACCESS_DESCRIPTORS"
    r"|PMU_EVENT_REQUESTS|PMU_EVENT_COUNTERS|UNCORE_PMU_EVENT_VALUES|BANDWIDTH_USAGE_VALUES"
    r"|CUPTI_ACTIVITY_KIND_CUDA_EVENT|COMPOSITE_EVENTS|CUDA_GRAPH_EVENTS|CUDA_GRAPH_NODE_EVENTS)$"
)
"""Tables that describe the rows of other tables, or are read along with them: their rows are not events."""

NESTED_RANGES: Final = (59, 70)
"""`eventType` of push/pop ranges: of programs, and of imported text files."""

SPANNING_RANGES: Final = (60, 71)
MARKS: Final = (34, 65)
NAMED_THREAD: Final = 39
DOMAIN_CREATED: Final = 75

API_CLASSES: Final = (0, 1, 13, 26)
"""`eventClass` of runtime and driver calls. Others repeat calls: 67 holds calls with a backtrace."""

API_VERSION: Final = r"_v\d{4,5}$"
"""The version of the API at the end of a call's name, which other profilers do not show."""

EMITTED_SEQUENCE: Final = ", seq = "
EMITTED_OPERATOR: Final = ", op_id = "
EMITTED_SIZES: Final = ", sizes = "
EMITTED_INPUTS: Final = ", input_op_ids = "
"""The separators between the parts of the text that `torch.autograd.profiler.emit_nvtx` and `nsys --pytorch` write."""

_NAMESPACES = (
    r"aten|prims?|quantized|torch|torchvision|torchaudio|c10d|inductor|autograd|nccl_ops|_c10d_functional"
)
OPERATOR_NAME: Final = (
    rf"^(?:{_NAMESPACES})::[\w.:]+$|^autograd::engine::|^\w+Backward\d*$|^(?:detach_?|record_param_comms)$"
)
"""Names that only PyTorch's operators have."""

FORWARD_EVENT: Final = r"^FSDP::|^nccl:|^gloo:|^torch\.distributed\."
"""Ranges of PyTorch that are not operators, although their names look like operators."""

LIBRARY_CALL: Final = (
    r"^nccl[A-Z]\w*$|^P?MPI_\w+$|^cub::|^thrust::|^(cublas|cudnn|cusparse|cusolver|cufft|curand)[A-Z]\w*$"
)
"""Names that only calls of these libraries have, for domains whose name was not recorded."""

NCCL_COLLECTIVE: Final = r"^nccl(AllReduce|Broadcast|Bcast|Reduce|AllGather|ReduceScatter|AlltoAll|AllToAll|Gather|Scatter|Send|Recv)$"
"""Ranges of NCCL's domain that are communication, not bookkeeping."""

RANK_NAME: Final = r"^MPI Rank (\d{1,9})$"
"""The name that nsys gives to the main thread of an MPI rank."""

COPY_KINDS: Final[dict[int, str]] = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "Unified HtoD",
    12: "Unified DtoH",
    13: "Unified DtoD",
}
"""`copyKind`, abbreviated as other profilers do."""

MEMORY_KINDS: Final[dict[int, str]] = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
"""`srcKind`, `dstKind` and `memKind`."""

SYNC_NAMES: Final[dict[int, str]] = {
    1: "Event Sync",
    2: "Stream Wait Event",
    3: "Stream Sync",
    4: "Context Sync",
}
"""`syncType`, under the names that PyTorch's profiler uses."""

COPY_KIND_LABELS: Final = ("ENUM_CUDA_MEMCPY_OPER", r"(\w)\w*-to-(\w)\w*", "${1}to${2}")
"""The table with the labels of copy kinds, and the replacement that turns `Host-to-Device` into the usual `HtoD`."""

MEMORY_KIND_LABELS: Final = "ENUM_CUDA_MEM_KIND"
OVERHEAD_LABELS: Final = "ENUM_CUPTI_OVERHEAD_TYPE"
"""Tables (`id`, `label`) of codes; older files have none, and the numbers are the same in all public versions."""

NORMALISED_TIMES: Final = "EXPORT_PARAM_TIME_NORMALIZE"
"""The key that says whether times are UNIX times (`nsys export --ts-normalize true`) instead of the session's."""

# -- payloads of NVTX ranges: their tables, and the layout of their bytes ---------------------------------------

PAYLOAD_SCHEMAS: Final = "NVTX_PAYLOAD_SCHEMAS"
PAYLOAD_ENTRIES: Final = "NVTX_PAYLOAD_SCHEMA_ENTRIES"

PAYLOAD_TABLE: Final = r"^DYNAMIC_NVTXPAYLOAD_DATATYPE_\d+_(\d+)_(\d+)$"
"""Tables of `nsys export --dynamic-tables=all`, one for each process, domain and schema, with a row per payload."""
PAYLOAD_COLUMNS: Final = "NVTX_EXPORT_TRANSLATION"
"""`originalName` and `sanitizedName` of the columns of those tables."""

PAYLOAD_HEAD_BYTES: Final = 32
"""Domain, schema, size of the payload, and one more number; 8 bytes each, the least significant first."""

FIXED_LAYOUT: Final = 1
"""The type of a schema whose entries lie at the same offsets in each payload."""

NOT_IN_PLACE: Final = 0b11_1110
"""Flags of an entry that is an array or is stored elsewhere."""

PAYLOAD_TYPES: Final[dict[int, tuple[str, int]]] = {
    **{3: ("Int16", 2), 4: ("UInt16", 2), 5: ("Int32", 4), 6: ("UInt32", 4), 9: ("Int64", 8)},
    **{10: ("UInt64", 8), 11: ("Int8", 1), 12: ("UInt8", 1), 13: ("Int16", 2), 14: ("UInt16", 2)},
    **{15: ("Int32", 4), 16: ("UInt32", 4), 17: ("Int64", 8), 18: ("UInt64", 8), 19: ("Float32", 4)},
    **{20: ("Float64", 8), 22: ("UInt64", 8), 43: ("Float32", 4), 44: ("Float64", 8)},
}
"""Types and sizes in bytes of numbers by code: types of the same size on every platform, and 64-bit `size_t`."""

COMMUNICATOR: Final = "NCCL communicator ID"
MESSAGE_SIZES: Final = ("Message size [bytes]", "Bytes")
PEER: Final = "Peer rank"
RANKS: Final = "No. of ranks"
"""The entries of NCCL's payloads."""
