"""The parts of a run's time that a verdict weighs: they sum to its basis exactly.

Of a run on a device it is the busiest device's time: the categories of computation, exposed communication, exposed copies,
and idle time by what ended it. Without a device it is the processors': operators, data loading and what lies outside both. That parts sum to their whole, here and in the analyses, is a law of
conservation; one that does not hold is a fault of tracekit, never of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.counters.analysis import replayed
from tracekit.analyses.idle import idle
from tracekit.analyses.kernels import kernels
from tracekit.analyses.result import has_launch_calls
from tracekit.analyses.scope import Scope, once
from tracekit.analyses.steps import DATA_LOADER, steps
from tracekit.facts.units import count_of
from tracekit.intervals import IntervalSet
from tracekit.trace import Trace, one_of

__all__ = [
    "CounterRun",
    "DeviceParts",
    "Law",
    "NothingRan",
    "ProcessorParts",
    "RunParts",
    "conservation",
    "run_parts",
    "selected_compute",
]

LEAD_IN_SHARE: Final = 0.05
"""From this share on, the host's work before the first device activity counts as part of the steps."""


@dataclass(frozen=True, slots=True)
class CounterRun:
    """A run in which kernels were replayed to measure counters, so that times mean nothing."""

    kernels: int
    """How many were measured."""
    basis: int
    """The window, in ns."""


@dataclass(frozen=True, slots=True)
class NothingRan:
    """A trace in which no device and no operator did anything."""

    ranges: bool
    """Named ranges were recorded."""
    modules: bool
    """Ranges of layers were."""
    level: str
    """The level of the capture that recorded it; empty where that is not known."""


@dataclass(frozen=True, slots=True)
class ProcessorParts:
    """Times in ns of a run without a device. `operators + other_operators + loading + outside = basis`."""

    basis: int
    """The window."""
    operators: int
    """Any operator of the selected steps ran."""
    other_operators: int
    """Only operators of other steps ran."""
    loading: int
    """Data was loaded, and no operator ran."""
    outside: int
    """The rest."""
    overhead: float | None
    """How many times as long a recorded step takes; None where that was not measured."""

    @property
    def idle(self) -> int:
        """The time in which no operator ran."""
        return self.loading + self.outside


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """Times in ns of the busiest device. `compute + communication + memory + idle = basis`; the five waits sum to `idle`."""

    who: str
    """The device as a sentence begins with it."""
    device_id: int
    basis: int
    """The window, or the window with the lead-in before it."""
    basis_name: str
    compute: int
    other_compute: int
    """The part of `compute` in which only work ran that does not belong to the selected steps."""
    communication: int
    memory: int
    data_loading: int
    host_wait: int
    queued_wait: int
    unknown_wait: int
    lead_in: int
    """From the start of the first step to the first device activity, where that is a twentieth of the whole or more; else 0."""
    lead_in_host: int
    """What of the lead-in did not pass in the data loader."""
    causes_known: bool
    """Some activity has a launch."""
    launch_calls: bool
    """Calls that launch work were recorded, linked or not."""
    has_steps: bool
    devices: int
    streams: int
    """Of this device."""
    window: int
    """The window alone."""

    @property
    def busy(self) -> int:
        """The time in which the device did anything, in ns."""
        return self.compute + self.communication + self.memory

    @property
    def idle(self) -> int:
        """The rest of the basis, in ns."""
        return self.basis - self.busy


RunParts = DeviceParts | ProcessorParts | CounterRun | NothingRan


def run_parts(of: Scope | Trace) -> RunParts:
    """The parts of the time of a scope, by the kind of run.

    >>> import tracekit
    >>> parts = run_parts(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> parts.operators + parts.other_operators + parts.loading + parts.outside == parts.basis
    True
    """
    return once(of, _run_parts)


def _run_parts(scope: Scope) -> RunParts:
    ranges = replayed(scope.trace.counters)
    if ranges is not None:
        return CounterRun(ranges.select("name", "start").n_unique(), scope.duration)
    if not scope.overlapping.height or scope.duration <= 0:
        return _nothing(scope.trace)
    return _processor_parts(scope) if scope.on_cpu else _device_parts(scope)


def _nothing(trace: Trace) -> NothingRan:
    runs = [] if trace.manifest is None else trace.manifest.runs
    name = Path(trace.meta.path).name
    return NothingRan(
        ranges=bool(trace.host.filter(one_of("kind", "module", "annotation")).height),
        modules=bool((trace.host["kind"] == "module").any()),
        level=next((run.level for run in runs if run.trace == name), ""),
    )


# -- without a device --------------------------------------------------------------------------------


def _processor_parts(scope: Scope) -> ProcessorParts:
    rows = scope.activities
    selected = IntervalSet.of(rows["start"].to_numpy(), rows["end"].to_numpy()).measure
    busy = scope.intervals().measure
    not_running = scope.duration - busy
    causes = idle(scope).by_cause
    loading = int(causes.filter(pl.col("cause") == "data_loading")["total_ns"].sum())
    loading = min(loading, not_running)
    manifest = scope.trace.manifest
    return ProcessorParts(
        basis=scope.duration,
        operators=selected,
        other_operators=busy - selected,
        loading=loading,
        outside=not_running - loading,
        overhead=None if manifest is None else manifest.overhead(),
    )


# -- with a device -----------------------------------------------------------------------------------


def _device_parts(scope: Scope) -> DeviceParts:
    devices = breakdown(scope).devices
    row = devices.sort("busy_ns", descending=True).row(0, named=True)
    device = int(row["device_id"])
    marked = scope.steps if scope.window == "steps" else scope.steps.clear()
    before = max(0, scope.start - int(marked["start"][0])) if marked.height else 0
    lead_in = before if before >= LEAD_IN_SHARE * (before + scope.duration) else 0
    host, queued, unknown = _waits(scope, device)
    # What is idle before the first or after the last activity of this device has no activity that ends it.
    unknown += int(row["idle_ns"]) - host - queued - unknown
    host += lead_in
    loading = min(_data_loading(scope, 0 if lead_in else before), host)
    loaded_first = _loading_before(scope, lead_in) if lead_in and loading else 0
    return DeviceParts(
        who="The device" if devices.height == 1 else f"Device {device}",
        device_id=device,
        basis=scope.duration + lead_in,
        basis_name=_basis_name(marked.height, lead_in),
        compute=int(row["compute_ns"]),
        other_compute=int(row["compute_ns"]) - selected_compute(scope, device),
        communication=int(row["exposed_communication_ns"]),
        memory=int(row["exposed_memory_ns"]),
        data_loading=loading,
        host_wait=host - loading,
        queued_wait=queued,
        unknown_wait=unknown,
        lead_in=lead_in,
        lead_in_host=min(lead_in - loaded_first, host - loading),
        causes_known=bool(scope.activities["launch_id"].is_not_null().any()),
        launch_calls=has_launch_calls(scope.trace),
        has_steps=marked.height > 0,
        devices=devices.height,
        streams=scope.overlapping.filter(pl.col("device_id") == device)["stream_id"].n_unique(),
        window=scope.duration,
    )


def selected_compute(scope: Scope, device: int | None = None) -> int:
    """The time in which computation of the selected steps ran, in ns; `device` None for all."""
    if scope.activities.height == scope.overlapping.height:
        return scope.intervals(device, "compute").measure
    rows = scope.activities.filter(pl.col("class") == "compute")
    if device is not None:
        rows = rows.filter(pl.col("device_id") == device)
    return IntervalSet.of(rows["start"].to_numpy(), rows["end"].to_numpy()).measure


def _loading_before(scope: Scope, lead_in: int) -> int:
    """The time of the data loader in the lead-in, in ns."""
    spans = scope.trace.host.filter(pl.col("name").cast(pl.String).str.contains(DATA_LOADER))
    low = scope.start - lead_in
    starts, ends = spans["start"].to_numpy(), (spans["start"] + spans["duration"]).to_numpy()
    return IntervalSet.of(starts.clip(low, scope.start), ends.clip(low, scope.start)).measure


def _basis_name(count: int, lead_in: int) -> str:
    if not count:
        return "the window"
    what = count_of(count, "step")
    return what if lead_in else f"the window of {what}"


def _waits(scope: Scope, device: int) -> tuple[int, int, int]:
    """The device's idle gaps by what ended each: launched late by the host, launched before, launch unknown.

    A stream that waits while another works is not idle time of the device, so the gaps per stream cannot tell.
    """
    host = scope.trace.host.select(pl.col("span_id").alias("launch_id"), pl.col("start").alias("launched"))
    rows = (
        scope.overlapping.filter(pl.col("device_id") == device)
        .select("start", "end", "launch_id")
        .sort("start")
    )
    gaps = (
        rows.with_columns(pl.col("end").cum_max().shift(1).alias("free"))
        .filter(
            (pl.col("start") > pl.col("free"))
            & (pl.col("free") >= scope.start)
            & (pl.col("start") <= scope.end)
        )
        .join(host, on="launch_id", how="left")
    )
    length = pl.col("start") - pl.col("free")
    late, unknown = pl.col("launched") > pl.col("free"), pl.col("launched").is_null()
    row = gaps.select(
        length.filter(late).sum().alias("host"),
        length.filter(~late & ~unknown).sum().alias("queued"),
        length.filter(unknown).sum().alias("unknown"),
    ).row(0)
    return int(row[0]), int(row[1]), int(row[2])


def _data_loading(scope: Scope, before: int) -> int:
    """Time of the steps in which only the data loader ran, in ns, less what passed `before` the window."""
    loading = steps(scope).table["data_loader_ns"]
    return int(loading.sum()) - min(before, int(loading[0])) if loading.len() else 0


# -- laws of conservation ---------------------------------------------------------------------------
#
# The laws of conservation: parts of a time sum to it exactly, in ns (DEFINITIONS §3 to §5).
#
# A law that does not hold is a fault of tracekit, never of the trace.

_PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
_WAITS = ("host_wait_ns", "kernel_wait_ns", "other_ns", "unknown_ns")


@dataclass(frozen=True, slots=True)
class Law:
    """A law, and whether a scope obeys it."""

    law: str
    holds: bool


def conservation(of: Scope | Trace) -> tuple[Law, ...]:
    """Whether the parts of every window sum to it.

    >>> import tracekit
    >>> all(law.holds for law in conservation(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")))
    True
    """
    return once(of, _conservation)


def _conservation(scope: Scope) -> tuple[Law, ...]:
    devices, streams, table = breakdown(scope).devices, idle(scope).streams, kernels(scope)
    by_name, by_category = (int(frame["total_ns"].sum()) for frame in (table.by_name, table.by_category))
    return (
        Law(
            "compute + exposed communication + exposed memory + idle = window, on every device",
            _sums(devices, _PARTS, "window_ns"),
        ),
        Law("idle by category = idle, on every stream", _sums(streams, _WAITS, "idle_ns")),
        Law(
            "kernels by name = kernels by category = device time",
            by_name == by_category == int(scope.activities["duration"].sum()),
        ),
    )


def _sums(frame: pl.DataFrame, parts: tuple[str, ...], whole: str) -> bool:
    return bool((frame.select(parts).sum_horizontal() == frame[whole]).all())
