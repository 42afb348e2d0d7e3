"""Calls on the host, and how they launch kernels: `cuda_api_sum`, `osrt_sum`, `cuda_api_trace`, `cuda_kern_exec_sum` and
`cuda_kern_exec_trace`.

NVIDIA's guide defines these times. The *API time* is the duration of the call that launches the kernel. The *queue
time* runs from the end of the call to the start of the kernel; there is none if the kernel began before the call
returned. The *kernel time* is the time on the device. The *total time* runs from the start of the call to the end of
the call or of the kernel, the later one. Statistics of queue times cover the positive ones, which `QCount` counts.

The guide does not define some details. Here a driver call inside a runtime call is a separate call, as in the profile.
Names have no version suffix. Return values of calls and priorities of threads are not read. Each kernel of a CUDA
graph has the launch of the graph. Rows of the summary are sorted by total time, those of the trace by the start of the
call. A kernel without a recorded launch has no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.analyses.nsys_stats.rows import Rows, renamed, shape_text, spread, stacked
from tracekit.facts.units import format_count
from tracekit.trace import OS_CALL_SCHEMA, Trace, empty

__all__ = ["api_calls", "cuda_api_trace", "cuda_kern_exec_sum", "cuda_kern_exec_trace", "os_calls"]

_PHASES: Final = {"T": "total", "A": "api", "Q": "queue", "K": "duration"}


def api_calls(traces: Sequence[Trace]) -> Rows:
    """Calls of the CUDA (or HIP) API."""
    calls = (trace.host.filter(pl.col("kind") == "runtime") for trace in traces)
    columns = ("process_id", "thread_id", "name", "start", "duration", "correlation")
    return Rows(stacked(traces, (frame.select(columns) for frame in calls)))


def os_calls(traces: Sequence[Trace]) -> Rows:
    """Calls of the operating system's runtime library."""
    frames = (trace.os_calls if trace.os_calls is not None else empty(OS_CALL_SCHEMA) for trace in traces)
    return Rows(stacked(traces, frames))


def cuda_api_trace(traces: Sequence[Trace]) -> Rows:
    """Every call of the CUDA (or HIP) API, with the name of its thread."""
    thread = ["process_id", "thread_id"]
    names = stacked(traces, (trace.threads.unique(thread, keep="first") for trace in traces))
    frame = api_calls(traces).frame.join(
        names.rename({"name": "Thread Name"}), on=["part", *thread], how="left", maintain_order="left"
    )
    return Rows(frame.with_columns(pl.col("name").alias("api_name")))


def cuda_kern_exec_sum(traces: Sequence[Trace]) -> Rows:
    """Launch, queue and kernel times by process, thread, device, call and kernel."""
    rows = stacked(traces, map(_executions, traces))
    keys = ["part", "process_id", "thread_id", "device_id", "api_name", "name"]
    frame = rows.group_by(keys).agg(
        pl.len().alias("Count"),
        pl.col("queue").count().alias("QCount"),
        pl.col("total").sum(),
        *(one for prefix, column in _PHASES.items() for one in spread(column, prefix)),
    )
    return Rows(frame, _without_launch(traces, rows))


def cuda_kern_exec_trace(traces: Sequence[Trace]) -> Rows:
    """Every kernel with its launch."""
    rows = stacked(traces, map(_executions, traces))
    returned = pl.col("api_start") + pl.col("api")
    frame = rows.with_columns(
        pl.when(pl.col("queue").is_not_null()).then(returned).alias("Queue Start (ns)"),
        renamed(rows["grid"], shape_text(pl.col("text"))).alias("GridXYZ"),
        renamed(rows["block"], shape_text(pl.col("text"))).alias("BlockXYZ"),
    )
    return Rows(frame, _without_launch(traces, rows))


def _executions(trace: Trace) -> pl.DataFrame:
    """Each kernel with a launch: its own columns, the columns of the call (`api_*`), and the `queue` and `total` times."""
    rows = trace.device.filter((pl.col("kind") == "kernel") & pl.col("launch_id").is_not_null())
    launches = trace.host.select(
        *("process_id", "thread_id"),
        pl.col("name").alias("api_name"),
        pl.col("start").alias("api_start"),
        pl.col("duration").alias("api"),
    )[rows["launch_id"]]
    returned = pl.col("api_start") + pl.col("api")
    waited, ended = pl.col("start") - returned, pl.col("start") + pl.col("duration")
    return (
        rows[["name", "device_id", "start", "duration", "grid", "block"]]
        .with_columns(launches.get_columns())
        .with_columns(
            pl.when(waited > 0).then(waited).alias("queue"),
            (pl.max_horizontal(returned, ended) - pl.col("api_start")).alias("total"),
        )
    )


def _without_launch(traces: Sequence[Trace], rows: pl.DataFrame) -> str | None:
    kernels = sum(int((trace.device["kind"] == "kernel").sum()) for trace in traces)
    lacking = kernels - rows.height
    if not lacking:
        return None
    return (
        f"{format_count(lacking)} of {format_count(kernels)} kernels have no recorded launch and are left out"
    )
