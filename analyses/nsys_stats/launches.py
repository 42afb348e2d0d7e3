"""Reports of how kernels are launched: `cuda_kern_exec_sum`, `cuda_kern_exec_trace`.

As NVIDIA's guide has it: the *API time* is that of the call that launches the kernel; the *queue time* runs from the
end of the call to the start of the kernel, and is none where the kernel began before the call returned; the *kernel
time* is that on the device; the *total time* runs from the start of the call to its end or the kernel's, whichever is
later. Statistics of queue times are of the positive ones, which `QCount` counts.

Chosen where it is silent: each kernel of a CUDA graph has the launch of the graph. Rows are ordered by their total
time; those of the trace by the start of the call. A kernel whose launch was not recorded has no row.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.analyses.nsys_stats.rows import clock_shift, renamed, shape_text, stacked
from tracekit.analyses.nsys_stats.table import Rows, spread
from tracekit.facts.units import format_count
from tracekit.trace import Trace

__all__ = ["cuda_kern_exec_sum", "cuda_kern_exec_trace"]

_PHASES = {"T": "total", "A": "api", "Q": "queue", "K": "duration"}


def cuda_kern_exec_sum(traces: Sequence[Trace]) -> Rows:
    """Launch, queue and kernel times by process, thread, device, call and kernel."""
    rows = _executions(traces)
    queue = pl.col("queue")
    keys = ["part", "process_id", "thread_id", "device_id", "api_name", "name"]
    frame = rows.group_by(keys).agg(
        pl.len().alias("Count"),
        queue.count().alias("QCount"),
        pl.col("total").sum(),
        *(one for prefix, column in _PHASES.items() for one in spread(column, prefix)),
    )
    named = frame.select(
        pl.exclude(*keys),
        "part",
        pl.col("process_id").alias("PID"),
        pl.col("thread_id").alias("TID"),
        pl.col("device_id").alias("DevId"),
        pl.col("api_name").cast(pl.String).alias("API Name"),
        pl.col("name").cast(pl.String).alias("Kernel Name"),
    )
    order = ["total", "part", "PID", "TID", "DevId", "API Name", "Kernel Name"]
    return Rows(named.sort(order, descending=[True, *(False for _ in order[1:])]), _left_out(traces, rows))


def cuda_kern_exec_trace(traces: Sequence[Trace]) -> Rows:
    """Every kernel with its launch, by the start of the call."""
    rows = _executions(traces)
    frame = rows.select(
        pl.col("api_start").alias("API Start (ns)"),
        pl.col("api").alias("API Dur (ns)"),
        pl.when(pl.col("queue").is_not_null())
        .then(pl.col("api_start") + pl.col("api"))
        .alias("Queue Start (ns)"),
        pl.col("queue").alias("Queue Dur (ns)"),
        pl.col("start").alias("Kernel Start (ns)"),
        pl.col("duration").alias("Kernel Dur (ns)"),
        pl.col("total").alias("Total Dur (ns)"),
        pl.col("process_id").alias("PID"),
        pl.col("thread_id").alias("TID"),
        pl.col("device_id").alias("DevId"),
        pl.col("api_name").cast(pl.String).alias("API Function"),
        renamed(rows["grid"], shape_text(pl.col("text"))).alias("GridXYZ"),
        renamed(rows["block"], shape_text(pl.col("text"))).alias("BlockXYZ"),
        pl.col("name").cast(pl.String).alias("Kernel Name"),
    )
    frame = frame.sort("API Start (ns)", "Kernel Start (ns)", maintain_order=True)
    return Rows(frame, _left_out(traces, rows))


def _executions(traces: Sequence[Trace]) -> pl.DataFrame:
    """Each kernel with a launch: its own columns, those of the call (`api_*`), and the `queue` and `total` times."""
    frames = []
    for part, trace in enumerate(traces):
        rows = trace.device.filter((pl.col("kind") == "kernel") & pl.col("launch_id").is_not_null()).select(
            "name", "device_id", "start", "duration", "grid", "block", "launch_id"
        )
        launch, host = rows["launch_id"], trace.host
        shift = clock_shift(traces, part)
        frames.append(
            rows.select(
                pl.exclude("launch_id", "start"),
                pl.col("start") + shift,
                host["process_id"].gather(launch),
                host["thread_id"].gather(launch),
                host["name"].gather(launch).alias("api_name"),
                (host["start"].gather(launch) + shift).alias("api_start"),
                host["duration"].gather(launch).alias("api"),
            )
        )
    called = pl.col("api_start") + pl.col("api")
    waited = pl.col("start") - called
    ended = pl.col("start") + pl.col("duration")
    return stacked(frames).with_columns(
        pl.when(waited > 0).then(waited).alias("queue"),
        (pl.max_horizontal(called, ended) - pl.col("api_start")).alias("total"),
    )


def _left_out(traces: Sequence[Trace], rows: pl.DataFrame) -> str | None:
    kernels = sum(int((trace.device["kind"] == "kernel").sum()) for trace in traces)
    lacking = kernels - rows.height
    if not lacking:
        return None
    return (
        f"{format_count(lacking)} of {format_count(kernels)} kernels have no recorded launch and are left out"
    )
