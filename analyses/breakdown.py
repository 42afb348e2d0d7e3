r"""Where the device's time went: compute, exposed communication, exposed memory, idle (DEFINITIONS §3).

C, X, M are the unions of the compute, communication and memory intervals of one device in the window W:
compute = |C|, exposed communication = |X \ C|, exposed memory = |M \ C \ X|, idle = |W \ (C ∪ X ∪ M)|.
The four sum to |W| exactly. HTA's `non_compute` is exposed communication plus exposed memory; torch-tb-profiler's
GPU utilisation counts kernels only, over the time of all steps.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from tracekit.analyses.counters.analysis import how_to_record_device
from tracekit.analyses.result import NotCaptured, Result, TableView
from tracekit.analyses.scope import Scope, once, step_spans
from tracekit.classes import dataclass
from tracekit.facts.units import format_ns, format_share
from tracekit.groups import are_known, kept
from tracekit.intervals import IntervalSet
from tracekit.readers import how_to_record
from tracekit.trace import Trace

__all__ = ["TABLES", "Breakdown", "breakdown"]

_WORTH_SAYING = 0.0005
"""A share that would be printed as 0.0 % is left to the table."""

DEVICE_COLUMNS = {
    "device_id": pl.Int64,
    "name": pl.String,
    "window_ns": pl.Int64,
    "busy_ns": pl.Int64,
    "compute_ns": pl.Int64,
    "communication_ns": pl.Int64,
    "memory_ns": pl.Int64,
    "exposed_communication_ns": pl.Int64,
    "exposed_memory_ns": pl.Int64,
    "overlap_ns": pl.Int64,
    "idle_ns": pl.Int64,
    "utilisation": pl.Float64,
    "kernel_utilisation": pl.Float64,
    "sm_efficiency": pl.Float64,
    "occupancy": pl.Float64,
}

TABLES: Final = {
    "devices": TableView(
        "Time per device",
        " ".join(DEVICE_COLUMNS),
        short="device_id window_ns compute_ns exposed_communication_ns exposed_memory_ns idle_ns",
        processor_title="Time of the processors",
        main=True,
    )
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Breakdown(Result):
    """Where each device spent the window."""

    devices: pl.DataFrame
    """One row per device; `*_ns` are integer ns, `utilisation` is busy over window. `kernel_utilisation` (torch-tb-profiler's
    GPU utilisation) and `sm_efficiency` (min(blocks / SMs, 1), duration-weighted) are over the time of all steps, or over
    the window without steps; `occupancy` is the duration-weighted mean of the estimate over kernel time. The last
    three are null when the profile lacks what they need."""


def breakdown(scope: Scope | Trace) -> Breakdown:
    """The temporal breakdown of each device.

    >>> import tracekit
    >>> result = breakdown(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> row = result.devices.row(0, named=True)
    >>> parts = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    >>> sum(row[p] for p in parts) == row["window_ns"]
    True
    """
    return once(scope, _breakdown)


def _breakdown(scope: Scope) -> Breakdown:
    rows = [_device_row(scope, device) for device in scope.device_ids]
    devices = pl.DataFrame(rows, schema=DEVICE_COLUMNS, orient="row")
    return Breakdown(answer=_answer(devices, scope), devices=devices, not_captured=_not_captured(scope))


def _device_row(scope: Scope, device: int) -> dict[str, object]:
    compute = scope.intervals(device, "compute")
    communication = scope.intervals(device, "communication")
    memory = scope.intervals(device, "memory")
    kernels = compute | communication
    busy = kernels | memory
    exposed_communication = communication - compute
    over = _time_of_steps(scope)
    info = next((d for d in scope.trace.meta.devices if d.device_id == device), None)
    return {
        "device_id": device,
        "name": "host processors" if scope.on_cpu else (info.name if info else ""),
        "window_ns": scope.duration,
        "busy_ns": busy.measure,
        "compute_ns": compute.measure,
        "communication_ns": communication.measure,
        "memory_ns": memory.measure,
        "exposed_communication_ns": exposed_communication.measure,
        "exposed_memory_ns": (memory - kernels).measure,
        "overlap_ns": communication.measure - exposed_communication.measure,
        "idle_ns": scope.duration - busy.measure,
        "utilisation": _ratio(busy.measure, scope.duration),
        "kernel_utilisation": _ratio((kernels & over).measure, over.measure),
        "sm_efficiency": _sm_efficiency(scope, device, info.sm_count if info else None, over.measure),
        "occupancy": _occupancy(scope, device),
    }


def _time_of_steps(scope: Scope) -> IntervalSet:
    if scope.window == "trace":
        return IntervalSet.window(scope.start, scope.end)
    spans = step_spans(scope)
    return IntervalSet.of(spans["span_start"].to_numpy(), spans["span_end"].to_numpy())


def _kernels(scope: Scope, device: int) -> pl.DataFrame:
    rows = scope.activities[["device_id", "kind", "start", "end", "duration", "blocks", "occupancy"]]
    return kept(rows, (rows["device_id"] == device) & (rows["kind"] == "kernel"))


def _sm_efficiency(scope: Scope, device: int, sm_count: int | None, over: int) -> float | None:
    """Each instant counts with the best-filled kernel that runs in it, as torch-tb-profiler does."""
    if sm_count is None or not over:
        return None
    kernels = _kernels(scope, device)
    kernels = kept(kernels, are_known(kernels["blocks"]))
    if not kernels.height:
        return None
    fill = np.minimum(kernels["blocks"].to_numpy() / sm_count, 1.0)
    start, end = kernels["start"].to_numpy(), kernels["end"].to_numpy()
    covered, weighted = IntervalSet.of([], []), 0.0
    if IntervalSet.of(start, end).measure == int((end - start).sum()):
        return float((fill * (end - start)).sum()) / over
    for level in np.unique(fill)[::-1].tolist():
        grown = covered | IntervalSet.of(start[fill == level], end[fill == level])
        weighted += level * (grown.measure - covered.measure)
        covered = grown
    return weighted / over


def _occupancy(scope: Scope, device: int) -> float | None:
    kernels = _kernels(scope, device)
    kernels = kept(kernels, are_known(kernels["occupancy"]))
    time = int(kernels["duration"].sum())
    return float((kernels["occupancy"] * kernels["duration"]).sum()) / time if time else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _answer(devices: pl.DataFrame, scope: Scope) -> str:
    if not devices.height:
        return "The trace holds no device activity and no operator."
    return "; ".join(_sentence(row, scope) for row in devices.iter_rows(named=True)) + "."


def _sentence(row: dict[str, Any], scope: Scope) -> str:
    """The utilisation of one device, split if it did more than compute."""
    who = "The processors were" if scope.on_cpu else f"Device {row['device_id']} was"
    text = f"{who} busy {format_share(row['utilisation'])} of {format_ns(row['window_ns'])}"
    exposed = {"communicating": row["exposed_communication_ns"], "copying": row["exposed_memory_ns"]}
    exposed = {what: ns for what, ns in exposed.items() if ns >= _WORTH_SAYING * row["window_ns"]}
    if not any(exposed.values()):
        return text
    shares = [f"{format_share(_ratio(row['compute_ns'], row['window_ns']))} computing"]
    shares += [
        f"{format_share(_ratio(ns, row['window_ns']))} only {what}" for what, ns in exposed.items() if ns
    ]
    return f"{text}: {', '.join(shares)}"


def _not_captured(scope: Scope) -> NotCaptured | None:
    if not scope.on_cpu:
        return None
    if not scope.activities.height:
        return NotCaptured(
            "no device activity and no operators", how_to_record("everything", scope.trace.meta.format)
        )
    return NotCaptured(
        "no device activity", how_to_record_device(scope.trace), "the self time of operators takes its place"
    )
