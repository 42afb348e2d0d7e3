"""The parts of a run's time that a verdict weighs: they sum to its basis exactly.

Of a run on a device it is the busiest device's time: the categories of computation, exposed communication, exposed copies,
and idle time by what ended it. Without a device it is the processors': operators, data loading and what lies outside both. That parts sum to their whole, here and in the analyses, is a law of
conservation; one that does not hold is a fault of tracekit, never of the trace.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.counters.analysis import replayed
from tracekit.analyses.idle import idle
from tracekit.analyses.kernels import kernels
from tracekit.analyses.processors import slowed_by_recording
from tracekit.analyses.recording import is_slowed, unrecorded_ns
from tracekit.analyses.result import has_launch_calls
from tracekit.analyses.scope import Scope, once
from tracekit.analyses.stalls import code_stalls
from tracekit.analyses.steps import steps
from tracekit.facts.idle_names import QUEUED
from tracekit.facts.units import count_of
from tracekit.groups import any_known, kept
from tracekit.intervals import IntervalSet
from tracekit.trace import Trace

__all__ = [
    "CounterRun",
    "DeviceParts",
    "Law",
    "NothingRan",
    "ProcessorParts",
    "RunParts",
    "conservation",
    "loader_ns",
    "run_parts",
    "selected_compute",
]

_WAIT_OF: Final = {
    "data_loading": "loading",
    **dict.fromkeys(QUEUED, "queued"),
    "not_captured": "unknown",
}
"""What the device waited for, by the cause of its idle time; all other causes are the host's."""


class CounterRun(msgspec.Struct, frozen=True):
    """A run in which kernels were replayed to measure counters, so that times mean nothing."""

    kernels: int
    """How many were measured."""
    basis: int
    """The window, in ns."""


class NothingRan(msgspec.Struct, frozen=True):
    """A trace in which no device and no operator did anything."""

    ranges: bool
    """Named ranges were recorded."""
    modules: bool
    """Ranges of layers were."""
    level: str
    """The level of the capture that recorded it; empty where that is not known."""
    elsewhere: int = 0
    """Activities of a device, or operators, outside the window."""


class ProcessorParts(msgspec.Struct, frozen=True):
    """Times in ns of a run without a device. `operators + other_operators + loading + outside + recording + stalled = basis`."""

    basis: int
    """The window."""
    operators: int
    """Any operator of the selected steps ran."""
    communication: int
    """The part of `operators` in which they only communicated."""
    other_operators: int
    """Only operators of other steps ran."""
    loading: int
    """Data was loaded, and no operator ran."""
    loader: int
    """Data was loaded, with the operators of the loader."""
    outside: int
    """The rest, at most as long as it takes without recording."""
    recording: int
    """What the recording adds to that at least; 0 where it was not measured."""
    stalled: int
    """Code between operators stood still (`analyses.stalls`)."""
    slowed: float
    """How many times as long a recorded step takes; 1 where that was not measured."""
    calls: int
    """Calls of operators in the selected steps."""

    @property
    def idle(self) -> int:
        """The time in which no operator ran."""
        return self.loading + self.outside + self.recording + self.stalled


class DeviceParts(msgspec.Struct, frozen=True):
    """Times in ns of the busiest device. `compute + communication + memory + idle = basis`; the four waits and `recording` sum to `idle`."""

    who: str
    """The device as a sentence begins with it."""
    device_id: int
    basis: int
    """The window."""
    basis_name: str
    compute: int
    other_compute: int
    """The part of `compute` in which only work ran that does not belong to the selected steps."""
    communication: int
    memory: int
    set_up: int
    """The part of `memory` in which only copies of the set-up ran."""
    data_loading: int
    host_wait: int
    """Without what the recording adds."""
    recording: int
    """What the recording adds to the wait for the host: it slows the host, and no kernel. 0 where it was not measured."""
    queued_wait: int
    unknown_wait: int
    before: int
    """What the device worked before the window on work from before the recording."""
    lead_in: int
    """What of the window had passed before the device's first activity."""
    causes_known: bool
    """Some activity has a launch."""
    launch_calls: bool
    """Calls that launch work were recorded, linked or not."""
    devices: int
    streams: int
    """Of this device."""
    activities: int
    """Kernels, copies and fills of the selected steps on all devices."""

    @property
    def busy(self) -> int:
        """The time in which the device did anything, in ns."""
        return self.compute + self.communication + self.memory

    @property
    def idle(self) -> int:
        """The rest of the basis, in ns."""
        return self.basis - self.busy

    @property
    def plain(self) -> int:
        """The basis without what the recording adds, in ns."""
        return self.basis - self.recording

    def program_ns(self, waited_ns: int) -> int:
        """A part of the recorded wait for the host without what the recording adds to it: its share of `host_wait`, in ns."""
        return round(waited_ns * self.host_wait / max(self.host_wait + self.recording, 1))


RunParts = DeviceParts | ProcessorParts | CounterRun | NothingRan


def run_parts(of: Scope | Trace) -> RunParts:
    """The parts of the time of a scope, by the kind of run.

    >>> import tracekit
    >>> parts = run_parts(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> parts.operators + parts.other_operators + parts.idle == parts.basis
    True
    """
    return once(of, _run_parts)


def _run_parts(scope: Scope) -> RunParts:
    ranges = replayed(scope.trace.counters)
    if ranges is not None:
        return CounterRun(ranges[["name", "start"]].n_unique(), scope.duration)
    if not scope.overlapping.height or scope.duration <= 0:
        return _nothing(scope.trace)
    return _processor_parts(scope) if scope.on_cpu else _device_parts(scope)


def _nothing(trace: Trace) -> NothingRan:
    runs = [] if trace.manifest is None else trace.manifest.runs
    name = Path(trace.meta.path).name
    operators = int((trace.host["kind"] == "op").sum())
    return NothingRan(
        ranges=bool(trace.host["kind"].is_in(["module", "annotation"]).any()),
        modules=bool((trace.host["kind"] == "module").any()),
        level=next((run.level for run in runs if run.trace == name), ""),
        elsewhere=trace.device.height or operators,
    )


# -- without a device --------------------------------------------------------------------------------


def _processor_parts(scope: Scope) -> ProcessorParts:
    rows = scope.activities
    ran, talked, computed = (
        IntervalSet.of(each["start"].to_numpy(), each["end"].to_numpy())
        for each in (rows, *(kept(rows, rows["class"] == one) for one in ("communication", "compute")))
    )
    selected = ran.measure
    busy = scope.intervals().measure
    not_running = scope.duration - busy
    loading = min(_waits_for_loader(scope), not_running)
    stalled = min(code_stalls(scope), not_running - loading)
    slowed = slowed_by_recording(scope.trace)
    # Recording slows the code between operators more than the operators, so without it this code takes that part at most.
    outside = round((not_running - loading - stalled) / slowed)
    return ProcessorParts(
        basis=scope.duration,
        operators=selected,
        communication=(talked - computed).measure,
        other_operators=busy - selected,
        loading=loading,
        loader=loader_ns(scope),
        outside=outside,
        recording=not_running - loading - stalled - outside,
        stalled=stalled,
        slowed=slowed,
        calls=rows["launch_id"].n_unique(),
    )


def _waits_for_loader(scope: Scope) -> int:
    causes = idle(scope).by_cause
    return int(kept(causes, causes["cause"] == "data_loading")["total_ns"].sum())


def loader_ns(scope: Scope) -> int:
    """Without a device: the time of the data loader, with the operators in it (the composition of `analyses.steps`), in ns."""
    parts = steps(scope).composition
    ran = kept(parts, parts["part"] == "data_loader")
    return min(max(_waits_for_loader(scope), int(ran["total_ns"].sum())), scope.duration)


# -- with a device -----------------------------------------------------------------------------------


def _device_parts(scope: Scope) -> DeviceParts:
    devices = breakdown(scope).devices
    row = max(devices.iter_rows(named=True), key=lambda one: one["busy_ns"])
    device = int(row["device_id"])
    marked = scope.steps if scope.window == "steps" else scope.steps.clear()
    waits = _waits(scope, device)
    earlier = kept(scope.earlier, scope.earlier["device_id"] == device)
    worked = scope.intervals(device)
    plain = unrecorded_ns(scope) or scope.duration
    recording = min(waits["host"], scope.duration - plain) if is_slowed(scope) else 0
    return DeviceParts(
        who="The device" if devices.height == 1 else f"Device {device}",
        device_id=device,
        basis=scope.duration,
        basis_name=_basis_name(marked.height),
        compute=int(row["compute_ns"]),
        other_compute=int(row["compute_ns"]) - selected_compute(scope, device),
        communication=int(row["exposed_communication_ns"]),
        memory=int(row["exposed_memory_ns"]),
        set_up=_set_up(scope, device),
        data_loading=waits["loading"],
        host_wait=waits["host"] - recording,
        recording=recording,
        queued_wait=waits["queued"],
        unknown_wait=waits["unknown"],
        before=IntervalSet.of(earlier["start"].to_numpy(), earlier["end"].to_numpy()).measure,
        lead_in=int(worked.starts[0]) - scope.start if worked.measure else 0,
        causes_known=any_known(scope.activities["launch_id"]),
        launch_calls=has_launch_calls(scope.trace),
        devices=devices.height,
        streams=scope.overlapping["stream_id"].filter(scope.overlapping["device_id"] == device).n_unique(),
        activities=scope.activities.height,
    )


def _set_up(scope: Scope, device: int) -> int:
    """The time in which a device only made copies of the set-up, in ns."""
    places = attribution(scope).activities
    rows, all_rows = (
        each[["activity_id", "device_id", "start", "end"]] for each in (scope.activities, scope.overlapping)
    )
    rows = kept(rows, (places["phase"] == "set_up") & (rows["device_id"] == device))
    if not rows.height:
        return 0
    of_others = ~np.isin(all_rows["activity_id"].to_numpy(), rows["activity_id"].to_numpy())
    others = kept(all_rows, of_others & (all_rows["device_id"] == device).to_numpy())
    own, beside = (
        IntervalSet.of(each["start"].to_numpy(), each["end"].to_numpy()) for each in (rows, others)
    )
    return (own - beside).clip(scope.start, scope.end).measure


def selected_compute(scope: Scope, device: int | None = None) -> int:
    """The time in which computation of the selected steps ran, in ns; `device` None for all."""
    if scope.activities.height == scope.overlapping.height:
        return scope.intervals(device, "compute").measure
    rows = scope.activities[["class", "device_id", "start", "end"]]
    rows = kept(rows, rows["class"] == "compute")
    if device is not None:
        rows = kept(rows, rows["device_id"] == device)
    worked = IntervalSet.of(rows["start"].to_numpy(), rows["end"].to_numpy())
    return worked.clip(scope.start, scope.end).measure


def _basis_name(count: int) -> str:
    return f"the window of {count_of(count, 'step')}" if count else "the window"


def _waits(scope: Scope, device: int) -> dict[str, int]:
    """The device's idle time by the kind of wait (`_WAIT_OF`), in ns."""
    causes = idle(scope).by_cause
    causes = kept(causes, causes["device_id"] == device)
    waits = dict.fromkeys(("loading", "host", "queued", "unknown"), 0)
    for cause, ns in causes[["cause", "total_ns"]].rows():
        waits[_WAIT_OF.get(cause, "host")] += ns
    return waits


# -- laws of conservation ---------------------------------------------------------------------------
#
# The laws of conservation: parts of a time sum to it exactly, in ns (DEFINITIONS §3 to §5).
#
# A law that does not hold is a fault of tracekit, never of the trace.

_PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
_WAITS = ("host_wait_ns", "kernel_wait_ns", "other_ns", "unknown_ns")


class Law(msgspec.Struct, frozen=True):
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
    return all(sum(row[:-1]) == row[-1] for row in frame[[*parts, whole]].iter_rows())
