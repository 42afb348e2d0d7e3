"""The model: a `Trace` is one profiled process (one rank) read from one file.

Readers of every format fill the same frames, so that every analysis works on every format. Times are Int64
nanoseconds from the trace's own origin. What the profile did not record is null or a frame that is None,
never zero.
"""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.facts.ceilings import Ceilings
from tracekit.manifest import Manifest
from tracekit.names import clean
from tracekit.notebook import block, grid, items
from tracekit.range_filter import RangeFilter

__all__ = [
    "ACTIVITY_KINDS",
    "CATEGORIES",
    "COLLECTIVE_SCHEMA",
    "COMPUTE_CATEGORIES",
    "COUNTER_SCHEMA",
    "DEVICE_SCHEMA",
    "FLOW_SCHEMA",
    "FRAMES",
    "GRAPH_NODE_SCHEMA",
    "HEALTH_SCHEMA",
    "HOST_KINDS",
    "HOST_SCHEMA",
    "MEMORY_SCHEMA",
    "OS_CALL_SCHEMA",
    "RANGE_KINDS",
    "RANGE_SCHEMA",
    "SAMPLE_SCHEMA",
    "SYNC_SCHEMA",
    "THREAD_SCHEMA",
    "DeviceInfo",
    "Excerpt",
    "Meta",
    "Schema",
    "Trace",
    "empty",
    "one_of",
]

Schema = dict[str, pl.DataType | type[pl.DataType]]

HOST_KINDS: Final = ("step", "annotation", "module", "op", "python", "runtime", "sync", "overhead")
ACTIVITY_KINDS: Final = ("kernel", "memcpy", "memset", "graph", "op")
"""`op` stands for operator self time, which takes the device's place in a trace without a device."""

COMPUTE_CATEGORIES: Final = (
    "gemm",
    "convolution",
    "attention",
    "normalisation",
    "softmax",
    "embedding",
    "elementwise",
    "reduction",
    "sort",
    "optimizer",
    "rnn",
    "pooling",
    "fused",
    "copy",
    "random",
    "quantisation",
    "other",
)
CATEGORIES: Final = (*COMPUTE_CATEGORIES, "communication", "memcpy", "memset")

HOST_SCHEMA: Final[Schema] = {
    "span_id": pl.Int64,  # the row number
    "parent_id": pl.Int64,  # null for a root
    "depth": pl.Int32,
    "process_id": pl.Int64,
    "thread_id": pl.Int64,
    "kind": pl.Enum(HOST_KINDS),
    "name": pl.Categorical(),
    "start": pl.Int64,
    "duration": pl.Int64,
    "correlation": pl.Int64,  # of runtime calls: links to device activities of the same process
    "external_id": pl.Int64,  # the profiler's number of the operator
    "sequence": pl.Int64,  # autograd sequence number
    "forward_thread": pl.Int64,  # the profiler's own number of the forward thread, not an OS thread id
    "shapes": pl.Categorical(),  # JSON text of the operator's input dimensions
    "strides": pl.Categorical(),  # JSON text of the strides of its inputs, where one is 0 or windows overlap: such an input repeats its elements
    "dtypes": pl.Categorical(),  # JSON text of the operator's input types
    "concrete_inputs": pl.Categorical(),  # JSON text of the operator's scalar arguments
    "python_id": pl.Int64,
    "python_parent_id": pl.Int64,
    "module_id": pl.Int64,
    "layer": pl.Categorical(),  # qualified module name, from ranges that the capture wrote
    "module_type": pl.Categorical(),
    "domain": pl.Categorical(),  # NVTX domain; null for the default one, and for what is no NVTX range
    "payload": pl.Categorical(),  # JSON text of what an NVTX range carries beside its name
    "call_stack": pl.Categorical(),  # the operator's Python frames, the innermost first, separated by ;
}

DEVICE_SCHEMA: Final[Schema] = {
    "activity_id": pl.Int64,  # the row number
    "process_id": pl.Int64,  # of the launching process; null when no launch is known and several processes ran
    "kind": pl.Enum(ACTIVITY_KINDS),
    "category": pl.Enum(CATEGORIES),
    "name": pl.Categorical(),
    "device_id": pl.Int64,
    "stream_id": pl.Int64,
    "start": pl.Int64,
    "duration": pl.Int64,
    "correlation": pl.Int64,
    "launch_id": pl.Int64,  # host.span_id of the launch call; null when it was not recorded
    "op_id": pl.Int64,  # host.span_id of the innermost operator around the launch
    "external_id": pl.Int64,
    "grid": pl.Categorical(),
    "block": pl.Categorical(),
    "blocks": pl.Int64,  # thread blocks in the grid
    "registers": pl.Int32,  # per thread
    "shared_memory": pl.Int64,  # bytes per block, static and dynamic
    "dynamic_shared_memory": pl.Int64,  # bytes per block, the dynamic part of it
    "occupancy": pl.Float64,  # estimated achieved occupancy, 0 to 1
    "bytes": pl.Int64,
    "graph_node": pl.Int64,
    "context_id": pl.Int64,
}

RANGE_KINDS: Final = ("start_end", "mark")

RANGE_SCHEMA: Final[Schema] = {
    "kind": pl.Enum(RANGE_KINDS),
    "name": pl.Categorical(),
    "domain": pl.Categorical(),  # null for the default one
    "payload": pl.Categorical(),  # JSON text
    "process_id": pl.Int64,
    "thread_id": pl.Int64,  # of the start
    "end_thread_id": pl.Int64,  # null for a mark
    "start": pl.Int64,
    "duration": pl.Int64,  # null for a mark
}
"""Ranges of a process that need not nest (NVTX start/end) and marks; ranges that nest on a thread are host spans."""

OS_CALL_SCHEMA: Final[Schema] = {
    "name": pl.Categorical(),
    "process_id": pl.Int64,
    "thread_id": pl.Int64,
    "start": pl.Int64,
    "duration": pl.Int64,
}
"""Calls of the operating system's runtime library that waited long enough to be recorded."""

GRAPH_NODE_SCHEMA: Final[Schema] = {
    "process_id": pl.Int64,
    "graph_node": pl.Int64,
    "thread_id": pl.Int64,
    "start": pl.Int64,
}
"""When, and on which thread, a node of a CUDA graph was made: during the capture, however often it was copied since."""

SAMPLE_SCHEMA: Final[Schema] = {
    "process_id": pl.Int64,
    "thread_id": pl.Int64,
    "start": pl.Int64,  # when the sample was taken
    "stack": pl.Categorical(),  # functions, the outermost first, separated by ;
}
"""Samples of what the processor was doing."""

THREAD_SCHEMA: Final[Schema] = {"process_id": pl.Int64, "thread_id": pl.Int64, "name": pl.String}

COUNTER_SCHEMA: Final[Schema] = {
    "name": pl.Categorical(),  # the track, or the kernel that a measured range covers
    "series": pl.Categorical(),
    "start": pl.Int64,
    "duration": pl.Int64,  # null for a sample
    "value": pl.Float64,
    "activity_id": pl.Int64,  # of a value that another recording measured for this very activity; else null
}

MEMORY_SCHEMA: Final[Schema] = {
    "start": pl.Int64,
    "process_id": pl.Int64,
    "thread_id": pl.Int64,
    "device_id": pl.Int64,  # −1 is host memory
    "address": pl.Int64,
    "bytes": pl.Int64,  # negative: freed
    "allocated": pl.Int64,  # total after the event; null in old files
    "reserved": pl.Int64,
}

SYNC_SCHEMA: Final[Schema] = {
    "name": pl.Categorical(),
    "device_id": pl.Int64,
    "stream_id": pl.Int64,
    "start": pl.Int64,
    "duration": pl.Int64,
    "correlation": pl.Int64,
    "wait_on_stream": pl.Int64,
    "wait_on_correlation": pl.Int64,
}

COLLECTIVE_SCHEMA: Final[Schema] = {
    "span_id": pl.Int64,  # host.span_id of the recording operator
    "activity_id": pl.Int64,  # device.activity_id of the kernel, where only that says it
    "name": pl.Categorical(),
    "group": pl.String,
    "group_size": pl.Int64,
    "group_ranks": pl.Categorical(),  # JSON text of the group's ranks; cut off where the group is large
    "split_in": pl.Categorical(),  # JSON text: how an uneven all-to-all parts its input among the ranks
    "split_out": pl.Categorical(),
    "elements_in": pl.Int64,
    "elements_out": pl.Int64,
    "dtype": pl.Categorical(),
    "sequence": pl.Int64,
    "peer": pl.Int64,  # rank that a send goes to or a receive comes from
    "start": pl.Int64,
    "duration": pl.Int64,
}

FLOW_SCHEMA: Final[Schema] = {
    "flow_id": pl.Int64,
    "source_process": pl.Int64,
    "source_thread": pl.Int64,
    "source_time": pl.Int64,
    "target_process": pl.Int64,
    "target_thread": pl.Int64,
    "target_time": pl.Int64,
}

HEALTH_SCHEMA: Final[Schema] = {
    "kind": pl.String,  # stable name of the defect
    "severity": pl.String,  # info | warning | error
    "count": pl.Int64,
    "meaning": pl.String,
    "example": pl.String,
}


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One accelerator as the profile describes it; what it does not say is None."""

    device_id: int
    name: str = ""
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    max_threads_per_sm: int | None = None
    warp_size: int | None = None
    memory_bandwidth: int | None = None  # peak, bytes/s
    clock_hz: int | None = None

    @property
    def is_amd(self) -> bool:
        """Whether AMD made it, by its name, or since 64 threads of it run in step."""
        return "AMD" in self.name or self.warp_size == 64


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What was read of a trace that holds more events than were wanted: a window in time, and how much lies in it."""

    start: int  # of the window, in ns from the trace's origin
    end: int
    rows: int  # that were kept
    total_rows: int  # of the file
    steps: int  # whole steps in the window; 0: it cuts one, or there are none
    total_steps: int  # of the file

    def since(self, origin: int) -> Excerpt:
        """The same with the window counted from another origin."""
        return replace(self, start=self.start - origin, end=self.end - origin)


@dataclass(frozen=True, slots=True)
class Meta:
    """What is known about the file and the run, beside the events; what the file does not say is None or empty."""

    path: str
    format: str  # `tracekit.readers.Format.name`
    format_version: str = ""
    size_bytes: int = 0  # of the file
    event_count: int = 0
    producer: dict[str, str] = field(default_factory=dict)  # versions of what wrote the file
    rank: int | None = None
    world_size: int | None = None
    one_group: bool = False  # the file says that the process group of all ranks is the only one
    groups: tuple[
        tuple[int, ...], ...
    ] = ()  # the ranks of each process group of this rank; empty if the file does not list them
    backend: str | None = None  # of the collectives
    process_ids: tuple[int, ...] = ()
    devices: tuple[DeviceInfo, ...] = ()  # those that worked; all when none did
    origin_ns: int = 0  # what was subtracted from every time of the file
    origin_utc_ns: int | None = None  # the same instant in UTC
    captured: frozenset[str] = frozenset()  # what the profile recorded: keys of `tracekit.readers.RECORDABLE`
    excerpt: Excerpt | None = None  # None: the whole file was read
    layers: str | None = field(default=None, repr=False)  # JSON text of the layer table that a capture wrote
    domains: tuple[
        str, ...
    ] = ()  # NVTX domains of all processes of the file, used or only registered; sorted
    part: int = 0  # which of the file's processes this is, from 0
    parts: int = 1  # how many traces the file holds

    @property
    def process_id(self) -> int | None:
        """The process; None if the file says none."""
        return self.process_ids[0] if self.process_ids else None

    @property
    def name(self) -> str:
        """The file's name without its folder and trace suffixes; with the process, where a file holds several."""
        name = Path(self.path).name
        for suffix in (".gz", ".json", ".pt.trace", ".sqlite", ".nsys-rep"):
            name = name.removesuffix(suffix)
        return (
            name if self.parts == 1 else f"{name}-{self.part if self.process_id is None else self.process_id}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One profiled process. Frames follow the `*_SCHEMA` of this module, row for row and type for type.

    A frame that is None was not recorded.
    """

    meta: Meta
    host: pl.DataFrame  # what the host did, span by span
    device: pl.DataFrame  # what the devices did
    threads: pl.DataFrame  # names of threads
    health: pl.DataFrame  # what the reader met
    counters: pl.DataFrame | None = None  # hardware counters and other series
    memory: pl.DataFrame | None = None  # allocator events
    syncs: pl.DataFrame | None = None  # waits on the device
    collectives: pl.DataFrame | None = None
    flows: pl.DataFrame | None = None  # from the forward to the backward pass
    ranges: pl.DataFrame | None = None  # that need not nest, and marks
    os_calls: pl.DataFrame | None = None
    samples: pl.DataFrame | None = None  # of the processor
    graph_nodes: pl.DataFrame | None = None
    manifest: Manifest | None = None  # what was run, where a capture's manifest lies beside the trace
    layer_ranges: RangeFilter | None = (
        None  # which named ranges count as layers (None: all); no reader sets it
    )
    ceilings: Ceilings | None = None  # measured on the device, or the processors; no reader sets it

    def __post_init__(self) -> None:
        for name, schema in FRAMES.items():
            frame = getattr(self, name)
            if frame is None:
                continue
            if dict(frame.schema) != {key: _instance(dtype) for key, dtype in schema.items()}:
                message = f"frame {name!r} does not follow its schema: {frame.schema}"
                raise TypeError(message)

    @property
    def has_device(self) -> bool:
        """Whether the profile holds activities of an accelerator."""
        return self.device.height > 0

    def equals(self, other: Trace) -> bool:
        """Whether all frames and all of `meta` are equal, but for the file's path and size: a copy may be compressed."""
        if replace(self.meta, path="", size_bytes=0) != replace(other.meta, path="", size_bytes=0):
            return False
        frames = ((getattr(self, name), getattr(other, name)) for name in FRAMES)
        return all(
            theirs is None if mine is None else theirs is not None and mine.equals(theirs)
            for mine, theirs in frames
        )

    def __repr__(self) -> str:
        """One line: where it comes from. The frames have texts of their own."""
        return clean(f"<Trace {self.meta.name}: {self.meta.format}, {self.meta.event_count:,} events>")

    def _repr_html_(self) -> str:
        """For notebooks: where it comes from, and how many rows each frame has."""
        meta = self.meta
        facts = [
            ("trace:", f"{meta.name} ({meta.format}, {meta.event_count:,} events)"),
            ("rank:", "unknown" if meta.rank is None else str(meta.rank)),
            ("devices:", ", ".join(f"{one.device_id}: {one.name}" for one in meta.devices) or "none"),
            ("captured:", ", ".join(sorted(meta.captured)) or "nothing"),
        ]
        frames = {name: getattr(self, name) for name in FRAMES}
        rows = [(name, f"{frame.height:,}") for name, frame in frames.items() if frame is not None]
        return block([items(facts), grid(["frame", "rows"], rows, [1])])


FRAMES: Final[dict[str, Schema]] = {
    "host": HOST_SCHEMA,
    "device": DEVICE_SCHEMA,
    "threads": THREAD_SCHEMA,
    "health": HEALTH_SCHEMA,
    "counters": COUNTER_SCHEMA,
    "memory": MEMORY_SCHEMA,
    "syncs": SYNC_SCHEMA,
    "collectives": COLLECTIVE_SCHEMA,
    "flows": FLOW_SCHEMA,
    "ranges": RANGE_SCHEMA,
    "os_calls": OS_CALL_SCHEMA,
    "samples": SAMPLE_SCHEMA,
    "graph_nodes": GRAPH_NODE_SCHEMA,
}
"""Every frame of a Trace with its schema."""


def one_of(column: str, *values: str) -> pl.Expr:
    """Whether an Enum column has one of these values, compared as numbers: text would be made for every row."""
    return pl.any_horizontal([pl.col(column) == value for value in values])


def empty(schema: Schema) -> pl.DataFrame:
    """A frame without rows that follows `schema`."""
    return pl.DataFrame(schema=schema)


def _instance(dtype: pl.DataType | type[pl.DataType]) -> pl.DataType:
    return dtype() if isinstance(dtype, type) else dtype
