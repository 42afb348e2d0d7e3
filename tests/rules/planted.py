"""Small traces planted by hand: a few spans and activities, assembled as a reader does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from tracekit.analyses.registry import get_analysis
from tracekit.analyses.rules import run
from tracekit.findings import Finding
from tracekit.health import HealthLog
from tracekit.readers.assemble import assemble, conform
from tracekit.trace import (
    COUNTER_SCHEMA,
    DEVICE_SCHEMA,
    HOST_SCHEMA,
    MEMORY_SCHEMA,
    SYNC_SCHEMA,
    THREAD_SCHEMA,
    DeviceInfo,
    Meta,
    Trace,
    empty,
)

US = 1_000
MS = 1_000_000
A100 = DeviceInfo(0, "NVIDIA A100", (8, 0), 108, 40_000_000_000, 2048, 32)
EVERYTHING = frozenset(
    {
        "steps",
        "device",
        "launches",
        "ops",
        "shapes",
        "stacks",
        "modules",
        "layers",
        "memory",
        "sync",
        "occupancy",
    }
)


@dataclass
class Planted:
    """Collects rows; all times are ns."""

    host: list[dict[str, Any]] = field(default_factory=list)
    device: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    counters: list[dict[str, Any]] = field(default_factory=list)
    syncs: list[dict[str, Any]] = field(default_factory=list)
    log: HealthLog = field(default_factory=HealthLog)

    def span(self, kind: str, name: str, start: int, end: int, thread: int = 1, **columns: Any) -> None:
        row = {"kind": kind, "name": name, "start": start, "duration": end - start}
        self.host.append({"process_id": 1, "thread_id": thread, **row, **columns})

    def step(self, number: int, start: int, end: int) -> None:
        self.span("step", f"ProfilerStep#{number}", start, end)

    def call(self, name: str, start: int, duration: int, thread: int = 1, **columns: Any) -> None:
        self.span("runtime", name, start, start + duration, thread, **columns)

    def activity(
        self,
        name: str,
        start: int,
        duration: int,
        *,
        launch: int | None = None,
        call: str = "cudaLaunchKernel",
        call_ns: int = 5 * US,
        kind: str = "kernel",
        stream: int = 7,
        device: int = 0,
        **columns: Any,
    ) -> None:
        """One activity and, unless `launch` is None, the call that launches it."""
        correlation = len(self.device) + 1
        row = {"name": name, "start": start, "duration": duration, "kind": kind, "correlation": correlation}
        self.device.append({**row, "device_id": device, "stream_id": stream, **columns})
        if launch is not None:
            self.call(call, launch, call_ns, correlation=correlation)

    def copy(self, direction: str, start: int, duration: int, count: int, **more: Any) -> None:
        """A copy between device and host; `direction` as the profiler writes it: `HtoD (Pinned -> Device)`."""
        self.activity(
            f"Memcpy {direction}", start, duration, kind="memcpy", call="cudaMemcpyAsync", bytes=count, **more
        )

    def trace(
        self, *, devices: tuple[DeviceInfo, ...] = (A100,), captured: frozenset[str] = EVERYTHING
    ) -> Trace:
        host = pl.DataFrame(self.host, infer_schema_length=None) if self.host else empty(HOST_SCHEMA)
        device = pl.DataFrame(self.device, infer_schema_length=None) if self.device else empty(DEVICE_SCHEMA)
        made = assemble([conform(host, HOST_SCHEMA), conform(device, DEVICE_SCHEMA)], self.log)
        return Trace(
            meta=Meta(path="planted.json", format="kineto", devices=devices, captured=captured),
            host=made.host,
            device=made.device,
            threads=empty(THREAD_SCHEMA),
            health=self.log.frame(),
            memory=conform(pl.DataFrame(self.memory), MEMORY_SCHEMA) if self.memory else None,
            counters=conform(pl.DataFrame(self.counters), COUNTER_SCHEMA) if self.counters else None,
            syncs=conform(pl.DataFrame(self.syncs), SYNC_SCHEMA) if self.syncs else None,
        )


def finding(trace: Trace, analysis: str, rule: str) -> Finding | None:
    """The rule's finding on this trace, through the analysis and the engine; None when it does not fire."""
    found = [f for f in run(get_analysis(analysis), trace).findings if f.id == rule]
    assert len(found) <= 1
    return found[0] if found else None
