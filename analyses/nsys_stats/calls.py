"""Calls on the host: the rows of `cuda_api_sum` and `osrt_sum`, and `cuda_api_trace`.

Chosen where NVIDIA's guide is silent: a call of the driver inside one of the runtime is a call of its own, as it is
in the profile. Names have no version suffix. What a call returned and a thread's priority are not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.analyses.nsys_stats.rows import clock_shift, stacked
from tracekit.analyses.nsys_stats.table import Rows
from tracekit.trace import OS_CALL_SCHEMA, Trace, empty

__all__ = ["api_calls", "cuda_api_trace", "os_calls"]


def api_calls(traces: Sequence[Trace]) -> Rows:
    """Calls of the CUDA (or HIP) API."""
    return Rows(_calls(traces, "name", "duration"))


def os_calls(traces: Sequence[Trace]) -> Rows:
    """Calls of the operating system's runtime library."""
    frames = [trace.os_calls if trace.os_calls is not None else empty(OS_CALL_SCHEMA) for trace in traces]
    return Rows(stacked([frame.select("name", "duration") for frame in frames]))


def cuda_api_trace(traces: Sequence[Trace]) -> Rows:
    """Every call of the CUDA (or HIP) API, by start."""
    calls = _calls(traces, "process_id", "thread_id", "name", "start", "duration", "correlation")
    threads = stacked([trace.threads.unique(["process_id", "thread_id"], keep="first") for trace in traces])
    named = calls.join(
        threads.rename({"name": "Thread Name"}),
        on=["part", "process_id", "thread_id"],
        how="left",
        maintain_order="left",
    )
    frame = named.select(
        pl.col("start").alias("Start (ns)"),
        pl.col("duration").alias("Duration (ns)"),
        pl.col("name").cast(pl.String).alias("Name"),
        pl.col("correlation").alias("CorrID"),
        pl.col("process_id").alias("Pid"),
        pl.col("thread_id").alias("Tid"),
        "Thread Name",
    )
    return Rows(frame.sort("Start (ns)", maintain_order=True))


def _calls(traces: Sequence[Trace], *columns: str) -> pl.DataFrame:
    """The calls of all traces: `part` and these columns of HOST_SCHEMA, times on the clock of the report."""
    frames = []
    for part, trace in enumerate(traces):
        rows = trace.host.filter(pl.col("kind") == "runtime").select(columns)
        if "start" in columns:
            rows = rows.with_columns(pl.col("start") + clock_shift(traces, part))
        frames.append(rows)
    return stacked(frames)
