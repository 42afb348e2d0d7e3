"""Plain records: what the generator plants, and what the oracle reasons about.

Every time is an integer number of nanoseconds on the profiler's own clock: that of the file's `ts` when the
file carries `baseTimeNanoseconds`. Nothing here knows how tracekit stores a trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
"""One Chrome event; `ts` and `dur` are integer nanoseconds until a writer prints them."""

COMPUTE, COMMUNICATION, MEMORY = "compute", "communication", "memory"

INCIDENTS = (
    "data_loading",
    "python",
    "operator_dispatch",
    "allocation",
    "synchronisation",
    "compilation",
    "profiler_overhead",
    "unexplained",
    "dependency",
)
"""Gaps that the generator can plant on purpose, each under the cause that DEFINITIONS gives it."""


@dataclass(frozen=True)
class Config:
    """What a generated trace holds. The defaults give a small training run with everything in it."""

    steps: int = 3
    first_step: int = 5
    layers: int = 4
    devices: int = 1
    side_stream: bool = True  # a second compute stream per device, forked and joined with events
    communication: bool = True
    custom_communication: bool = False  # collectives whose kernels do not say nccl
    backward: bool = True
    optimizer: bool = True
    graph: bool = True  # one graph launch per step, many kernels
    triton: bool = True
    incidents: tuple[str, ...] = INCIDENTS  # each once per step
    warmup_ops: int = 2  # launched and recorded before the first step
    orphans: int = 3  # kernels that run first in the window and were launched before it
    lost_launches: int = 2  # launches in the middle of the trace whose runtime record was lost
    workers: int = 0  # other processes without a device, whose thread ids equal the main thread's
    host_recorded: bool = True
    device_recorded: bool = True
    sync_rows: bool = True
    python_stacks: bool = False
    memory_events: bool = True
    counters: bool = True
    flows: bool = True
    gpu_annotations: bool = True
    vendor: str = "nvidia"  # or "amd"
    kernel_ns: tuple[int, int] = (1_500, 90_000)
    dispatch_ns: tuple[int, int] = (0, 9_000)  # what an operator does before and after its children
    zero_kernels: bool = False  # now and then a kernel of no length, as coarse clocks record
    tick_ns: int = 1  # every time is a multiple; 1000 for files with whole microseconds
    rank: int | None = 0
    world_size: int = 2
    origin_ns: int = 4_203_669_603_000_000  # the clock at the start of the trace: uptime, not an epoch
    base_ns: int = 1_735_632_360_000_000_000  # UTC of the clock's zero


@dataclass
class HostSpan:
    """A span on a thread. `index` is its place in the file among the spans."""

    index: int
    process: int
    thread: int
    kind: str  # step | annotation | module | op | python | runtime | overhead
    name: str
    start_ns: int
    dur_ns: int = 0
    parent: int | None = None
    depth: int = 0
    correlation: int | None = None
    external_id: int | None = None
    sequence: int | None = None
    forward_thread: int | None = None
    cause: str = "python"  # what idle time of the device is due to while this span is the innermost
    cat: str = "cpu_op"
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.dur_ns


@dataclass
class Activity:
    """A device activity. `launch`, `op` and `outer_op` are indices of host spans."""

    index: int
    kind: str  # kernel | memcpy | memset
    cls: str  # compute | communication | memory
    category: str
    name: str
    device: int
    stream: int
    start_ns: int
    dur_ns: int
    correlation: int
    launch: int | None = None
    launch_start_ns: int | None = None
    launch_end_ns: int | None = None
    launch_thread: tuple[int, int] | None = None  # (process, thread)
    op: int | None = None
    outer_op: int | None = None
    step: int | None = None
    external_id: int | None = None
    bytes: int | None = None
    graph_node: int | None = None
    bound: str = ""  # what its start waited for: launch | stream | dependency | delay
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.dur_ns


@dataclass(frozen=True)
class Step:
    """One `ProfilerStep#number`."""

    number: int
    span: int
    start_ns: int
    dur_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.dur_ns


@dataclass(frozen=True)
class Gap:
    """A maximal stretch of [first start, last end] of all activities in which one device does nothing.

    `cause` is `host` when the launch of the activity that ends the gap came late, and None when the cause
    cannot be known (no launch record, or no later activity on the device). `split` gives every ns a reason.
    """

    device: int
    start_ns: int
    end_ns: int
    ended_by: int | None
    cause: str | None
    split: dict[str, int]
    by_span: dict[int | None, int]  # the same for the part before the launch, by innermost host span


@dataclass(frozen=True)
class Incident:
    """A gap planted on purpose, after the device has drained: where, when on the host, and of which kind."""

    step: int | None
    cause: str
    thread: tuple[int, int]
    start_ns: int
    end_ns: int
    ended_by: int  # the first activity launched after it


@dataclass(frozen=True)
class Collective:
    """One collective: the recording operator and its kernel."""

    name: str
    op: int
    activity: int
    elements: int
    dtype: str
    group_size: int
    sequence: int


@dataclass(frozen=True)
class MemoryEvent:
    """One allocation (positive) or release (negative)."""

    time_ns: int
    thread: tuple[int, int]
    device: int
    address: int
    bytes: int
    allocated: int
    reserved: int


@dataclass(frozen=True)
class Planted:
    """A trace and the truth about it. `events` are in file order, `header` holds the other top-level keys."""

    config: Config
    events: list[Event]
    header: dict[str, Any]
    spans: list[HostSpan]
    activities: list[Activity]
    steps: list[Step]
    gaps: list[Gap]
    incidents: list[Incident]
    collectives: list[Collective]
    memory: list[MemoryEvent]
    counters: list[tuple[str, str, int, int]]  # name, series, time, value
    main_thread: tuple[int, int]
    backward_thread: tuple[int, int]

    @property
    def window(self) -> tuple[int, int]:
        """First start to last end of all device activities; (0, 0) without any."""
        if not self.activities:
            return 0, 0
        return min(a.start_ns for a in self.activities), max(a.end_ns for a in self.activities)
