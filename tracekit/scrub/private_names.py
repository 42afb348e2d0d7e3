"""What an Nsight Systems export may say of the machine and its user, and what of it may be passed on: by allow lists.

Source: NVIDIA's public reference of the export schema, and what real exports hold. A text column, a string or a row that
no list here names is taken for private, so that a newer version of the schema loses something rather than tells it.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CAPTURE_NAMES",
    "CAPTURE_VALUES",
    "COMMON_WORDS",
    "CREDENTIAL_NAMES",
    "EMPTIED_TABLES",
    "ENVIRONMENT_ROWS",
    "EXPORT_ROWS",
    "HOME_FOLDERS",
    "HOST_VARIABLES",
    "KEPT_TEXTS",
    "KNOWN_TABLES",
    "MARKER",
    "NAME_IDS",
    "PATH_IDS",
    "PRIVATE_NUMBERS",
    "SCHEMA_WORDS",
    "STRINGS_TABLE",
    "SYSTEM_FOLDERS",
    "USER_VARIABLES",
]

MARKER: Final = "[scrubbed]"
"""Stands where a value was."""

STRINGS_TABLE: Final = "StringIds"
"""Texts that other tables name by number."""

_FAMILIES = (
    r"ENUM|TARGET_INFO|CUPTI_ACTIVITY_KIND|CUDA|CUDNN|CUBLAS|NVTX|OSRT|MPI|UCP|UCX|NVSHMEM|OPENSHMEM|OPENMP|OPENACC|OPENGL"
    r"|OPENXR|KHR|VULKAN|DX11|DX12|D3D11|D3D12|DXGI|WDDM|SLI|NVVIDEO|NVMEDIA|NV_LOAD_BALANCE|FECS|GPU|PMU|NET|NIC|SOC"
    r"|SAMPLING|SCHED|COMPOSITE|PERF|PROFILER|THREAD|SYSCALL|GENERIC_EVENT"
)
KNOWN_TABLES: Final = (
    rf"^(?:(?:{_FAMILIES})_[A-Z0-9_]+|GENERIC_EVENTS|ANALYSIS_DETAILS|ANALYSIS_FILE|DIAGNOSTIC_EVENT|PROCESSES"
    r"|ProcessStreams|StringIds|ThreadNames|UnwindMethodType|META_DATA_CAPTURE|META_DATA_EXPORT|EXPORT_META_DATA"
    r"|DEMOTED_BYTES_EVENTS|TOTAL_BYTES_RESIDENT_IN_SEGMENT_EVENTS)$"
)
"""Tables whose numbers are kept. Any other is left out."""

EMPTIED_TABLES: Final = frozenset(
    {"ANALYSIS_FILE", "ProcessStreams", "TARGET_INFO_NIC_INFO", "TARGET_INFO_PROCESS"}
)
"""Nothing in them is for an analysis: files of the machine, what the program wrote, addresses of network interfaces,
names of processes."""

KEPT_TEXTS: Final = (
    r"^(?:NVTX_EVENTS\.(?:text|jsonText)"
    r"|NVTX_PAYLOAD_\w+\.(?:name|description)"
    r"|ENUM_\w+\.(?:name|label)"
    r"|UnwindMethodType\.name"
    r"|StringIds\.value"
    r"|TARGET_INFO_GPU\.(?:name|chipName)"
    r"|TARGET_INFO_NVTX_CUDA_\w+\.name"
    r"|TARGET_INFO_(?:GPU|NETWORK|PERF|SOC)_METRICS?\.(?:typeName|metricName|name|description|unit)"
    r"|TARGET_INFO_(?:COMPONENT|XMC_SPEC)\.(?:name|type)"
    r"|PMU_EVENT_REQUESTS\.event_name"
    r"|CUDA_GPU_MEMORY_USAGE_EVENTS\.name"
    r"|CUPTI_ACTIVITY_KIND_KERNEL\.tensorSizeMinusOneElements)$"
)
"""`TABLE.column` of texts that are kept, but for the values that were removed elsewhere: names that the program or NVIDIA
gave. Any other text is emptied."""

NAME_IDS: Final = frozenset(
    {
        *(
            "nameId",
            "endNameId",
            "textId",
            "jsonTextId",
            "demangledName",
            "shortName",
            "mangledName",
            "symbol",
        ),
        *("kernelName", "funcName", "varName", "objectName"),
    }
)
"""Columns that name, by number, a string that is kept. A string that only other columns name is left out."""

PATH_IDS: Final = frozenset({"module", "srcFile"})
"""Columns that name a file: of its path the last part is kept."""

PRIVATE_NUMBERS: Final = frozenset({"GUID", "luid", "macAddress", "ipAddress"})
"""Columns of numbers that tell one machine from all others; set to 0."""

ENVIRONMENT_ROWS: Final[dict[str, str]] = {
    "CpuCores": r"\d{1,5}",
    "CpuSpeedMhz": r"\d{1,6}",
    "CpuArchitecture": r"x86_64|aarch64|arm64|ppc64le",
    "HardwarePlatform": r"x86_64|aarch64|arm64|ppc64le",
    "HasDiscreteGpu": r"[01]",
    "IsX86BasedDevice": r"[01]",
    "NvDriverVersion": r"\d{1,4}(?:\.\d{1,4}){1,3}",
    "CudaDriverVersion": r"\d{1,6}",
}
"""Rows of TARGET_INFO_SYSTEM_ENV that are kept, with what their value must look like."""

EXPORT_ROWS: Final[dict[str, str]] = {
    "EXPORT_PRODUCT_NAME": r"NVIDIA Nsight Systems",
    "EXPORT_PRODUCT_VERSION": r"\d{1,4}(?:\.\d{1,6}){1,4}",
    "EXPORT_PRODUCT_DATE": r"\d{4}\.\d{1,2}",
    "EXPORT_SCHEMA_VERSION": r"\d{1,4}(?:\.\d{1,6}){1,3}",
    "EXPORT_SCHEMA_VERSION_MAJOR": r"\d{1,4}",
    "EXPORT_SCHEMA_VERSION_MINOR": r"\d{1,4}",
    "EXPORT_SCHEMA_VERSION_MICRO": r"\d{1,6}",
    "EXPORT_SCHEMA_VERSION_CKSUM": r"\d{1,12} \d{1,12}",
    "EXPORT_PLATFORM": r"(?:linux|windows|macos|qnx)(?:-(?:desktop|embedded|tegra|sbsa))?",
    "EXPORT_ARCH": r"x64|x86_64|aarch64|arm64|sbsa|ppc64le",
    "EXPORT_TIME": r"\d{1,6}(?:\.\d{1,6})?(?: sec)?",
    "EXPORT_TIME_UTC": r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?Z?",
    "EXPORT_TIME_LOCAL": r"(?!)",
    "EXPORT_HOST": r"(?!)",
    "EXPORT_USER": r"(?!)",
    **{
        f"EXPORT_{kind}{side}_{what}": r"(?!)"
        for kind in ("", "PARAM_")
        for side in ("INPUT", "OUTPUT", "OUTUPT")  # the last is how old versions spell it
        for what in ("FILE", "PATH", "PATH_ABS")
    },
    **{
        f"EXPORT_{kind}{flag}": r"true|false|-?\d{1,19}"
        for kind in ("", "PARAM_", "CONFIG_")
        for flag in (
            *("LAZY", "OVERWRITE", "APPEND", "PROGRESS", "USE_SHUFFLE", "INCLUDE_JSON", "INCLUDE_BLOBS"),
            *("TIME_NORMALIZE", "TIME_SHIFT"),
        )
    },
}
"""Rows of META_DATA_EXPORT and EXPORT_META_DATA, with what their value must look like; another one becomes the marker."""

_OPTIONS = (
    r"CUDA_GRAPH_TRACE_OPTIONS|OS_RUNTIME_OPTIONS|NVTX_OPTIONS|LINUX_PERF_OPTIONS|GRAPHICS_TRACE_OPTIONS"
    r"|SYMBOL_RESOLUTION_OPTIONS|GPU_METRICS_OPTIONS"
)
CAPTURE_NAMES: Final = (
    rf"^(?:PROCESS_\d{{1,4}}:)?(?:(?:{_OPTIONS}):[A-Z_]+|(?:COLLECT|CUDA|TRACE|SAMPLE|USE|INCLUDE|SUPPORTS?|BANDWIDTH)_[A-Z_]+"
    r"|CAPTURE_EVENT_TYPE|RATE_HZ|START_TRIGGER|STOP_TRIGGER|THREAD_STATE_SCAN_FREQ|POWER_RATE_SCAN_FREQ|DEVICE_TYPE"
    r"|HOW_TO_ATTACH|LAUNCH_AS_ROOT|START_DELAY_MS|RUN_DURATION_MS|START_FRAME_VALUE|RUN_DURATION_FRAMES|HAS_ANNOTATIONS"
    r"|SHOW_BACKTRACE|DISABLE_TIME_SYNC|RESUME)$"
)
"""Rows of META_DATA_CAPTURE that are kept, if their value is one of the following."""

CAPTURE_VALUES: Final = (
    r"^(?:true|false|-?\d{1,12}|Immediate|Delayed|Unix|Windows|LaunchAnother|AttachByPid|Graph|Node|ProcessTree|SystemWide"
    r"|Software|Hardware|Cuda|NvtxEvents|OSRuntime|Graphics|CuBLAS|CuDNN|MPI|UCX|NCCL|OpenMP|OpenACC|GpuMetrics|Python)$"
)

HOST_VARIABLES: Final = (
    r"^(?:HOST|HOSTNAME|COMPUTERNAME|SLURMD_NODENAME|SLURM_SUBMIT_HOST|PBS_O_HOST|NODE_NAME|POD_NAME)$"
)
USER_VARIABLES: Final = (
    r"^(?:USER|USERNAME|LOGNAME|SUDO_USER|USERDOMAIN|SLURM_JOB_USER|SLURM_JOB_ACCOUNT|PBS_O_LOGNAME)$"
)
CREDENTIAL_NAMES: Final = r"(?i)(?:secret|token|passw|passphrase|credential|api_?-?key|access_?-?key|private_?-?key|auth|cookie|webhook)"
"""Names of variables and flags whose value is a secret."""

HOME_FOLDERS: Final = r"(?i)(?:/home/|/Users/|[a-z]:\\+Users\\+)[^/\\\s\"'`;:,|<>()\[\]{}]+"
"""The home folder of a user, wherever it stands."""

SYSTEM_FOLDERS: Final = (
    r"(?i)^(?:/(?:usr|bin|sbin|lib\w*|opt|etc|proc|sys|dev|var|run|boot|root|tmp|snap)(?:/.*)?|/[^/]{0,2}"
    r"|[a-z]:\\(?:windows|program files|programdata)?(?:\\.*)?)$"
)
"""Folders that are the same on every machine."""

COMMON_WORDS: Final = frozenset(
    [
        "root",
        "user",
        "users",
        "home",
        "admin",
        "administrator",
        "ubuntu",
        "debian",
        "centos",
        "nvidia",
        "guest",
        "test",
        "tests",
        "main",
        "data",
        "default",
        "local",
        "localhost",
        "localdomain",
        "linux",
        "windows",
        "unix",
        "none",
        "null",
        "true",
        "false",
        "unknown",
        "unnamed",
        "python",
        "python3",
        "torch",
        "pytorch",
        "cuda",
        "kernel",
        "kernels",
        "train",
        "training",
        "trainer",
        "model",
        "models",
        "forward",
        "backward",
        "step",
        "steps",
        "layer",
        "layers",
        "loss",
        "optimizer",
        "adam",
        "adamw",
        "sgd",
        "batch",
        "loader",
        "data_loader",
        "worker",
        "workers",
        "rank",
        "node",
        "nodes",
        "host",
        "device",
        "devices",
        "stream",
        "graph",
        "memory",
        "copy",
        "conv",
        "conv2d",
        "linear",
        "norm",
        "softmax",
        "attention",
        "embedding",
        "relu",
        "gelu",
        "gemm",
        "matmul",
        "reduce",
        "sum",
        "mean",
        "cat",
        "split",
        "bert",
        "gpt",
        "gpt2",
        "llama",
        "resnet",
        "resnet50",
        "vit",
        "nccl",
        "gloo",
        "mpi",
        "aten",
        "autograd",
        "compile",
        "inductor",
        "triton",
        "flash",
        "float",
        "half",
        "double",
        "int8",
        "fp16",
        "bf16",
        "tf32",
        "fp32",
        "modal",
        "docker",
        "container",
        "compute",
        "work",
        "workspace",
        "content",
        "project",
        "code",
        "app",
        "apps",
        "job",
        "jobs",
        "build",
        "bash",
        "zsh",
        "sh",
        "nsys",
    ]
)
"""Words that stand in names of operators and ranges: as the name of a user or host they are not looked for there."""

SCHEMA_WORDS: Final = (
    "access active activity adapter address ahead align alloc allocation almost amount analysis array asked async "
    "average balance bandwidth binary bind block blocks budget buffer bulk bytes cache callchain callchains "
    "cancel capture category cause chip class client clock cluster clusters code collectives color command "
    "commitment communicator completion complex component composite compute config constant content context "
    "contexts copy correlation count create creation critical ctrl ctxsw cublas cuda cudnn cupti current cycles "
    "data debug decoder demangled demoted deprecated depth description destroy detail details device diagnostic "
    "discrete dispatch display domain done double duration dxgi dynamic early element elements encoder engine "
    "engines entries entry enum epoch event events evict executed export fault faulted faults fecs fence field "
    "file filename flag flags float flush format frame frames friendly func gangs generic global graph green grid "
    "group handle heap height idle inactive info init instance instruction integer interrupt issued json kernel "
    "khrd kind label last latency launch length level limit line list load local location lock long luid major "
    "managed mangled mask master memcpy memory mempool memset meta method metric metricid metrics migration minor "
    "minus mode module mutex name names nesting next node nsys null number nvtx nvvideo object offset open "
    "openacc opengl openmp oper operation optin ordinal original osrt other overhead packet page paging parallel "
    "parent patch path payload percent percentage pipeline policy pool port potential preempted preexit present "
    "primary prior priority process processes processstreams profiler progress property provider push quantum "
    "queries query queue queued range rank ranks rate real recv reduction regime region registers release "
    "released remote request requested requests resident resolve resource resources return revision runtime "
    "sampling sched schedule scheduling schema schemas section segment send sequence session severity shared "
    "shmem short size skipped smpl source spec special stack stage stall start state static stats status stop "
    "stream stringids submission submit subresource surface symbol sync synchronization syscall system table "
    "target task tensor text thread threadnames threads thumb time timeouted timestamp total trace transfer "
    "transferred type typeid uint unif union unit unresolved unwind unwindmethodtype usage utilization uuid value "
    "vector version virtual vulkan wait warp warps wddm width workers workload workshare "
)
"""What names of tables and columns consist of, in lower case: a name that is part of it is not looked for."""
