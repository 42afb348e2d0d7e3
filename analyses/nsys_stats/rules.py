"""The rules of `nsys analyze`: `cuda_memcpy_async`, `cuda_memcpy_sync`, `cuda_memset_sync`, `cuda_api_sync`, `gpu_gaps`,
`gpu_time_util`.

As NVIDIA's guide has it:

* `cuda_memcpy_async`: asynchronous copies from or to pageable memory, which become synchronous.
* `cuda_memcpy_sync`: copies by calls that block the host, but none of 64 KB or less from host to device.
* `cuda_memset_sync`: synchronous fills of pinned host memory or of unified memory.
* `cuda_api_sync`: `cudaDeviceSynchronize` and `cudaStreamSynchronize`.
* `gpu_gaps`: when a device is idle for at least 500 ms (`--gap`), between the first and the last work of a process on it. A gap
  ends where the profiler itself gets in the way, and begins anew behind it.
* `gpu_time_util`: the same time in 30 equal chunks (`--chunks`), those used below 50 % (`--threshold`); neighbours are one row.
  Work that runs at once adds up, and the profiler's overhead counts as use.

Of each at most 50 rows (`--rows`), the longest first.

Chosen where it is silent: 64 KB is 65,536 bytes. A copy from device to device is none that blocks the host. HIP's calls count
like CUDA's. Regions of `gpu_time_util` are ordered by utilisation, the least first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.analyses.nsys_stats.calls import api_calls
from tracekit.analyses.nsys_stats.gaps import device_work, gaps_of, regions_of
from tracekit.analyses.nsys_stats.rows import api_names, copy_kinds, device_rows, renamed
from tracekit.analyses.nsys_stats.table import Options, Rows, megabytes
from tracekit.facts.units import NS_PER_MS, format_count
from tracekit.trace import Trace

__all__ = [
    "cuda_api_sync",
    "cuda_memcpy_async",
    "cuda_memcpy_sync",
    "cuda_memset_sync",
    "gpu_gaps",
    "gpu_time_util",
]

_SMALL_COPY_BYTES: Final = 64 * 1024
_ASYNC: Final = "Async"
_WAITS: Final = r"^(cuda|hip)(Device|Stream)Synchronize(_\w+)?$"
_BLOCKING_FILLS: Final = ("Pinned", "Managed", "Managed Static", "Unified")
_COLUMNS: Final = {
    "duration": "Duration (ns)",
    "start": "Start (ns)",
    "process_id": "PID",
    "device_id": "Device ID",
    "context_id": "Context ID",
    "stream_id": "Stream ID",
}


def cuda_memcpy_async(traces: Sequence[Trace], options: Options) -> Rows:
    """Asynchronous copies from or to pageable memory, the longest first."""
    pageable = (pl.col("Src Kind") == "Pageable") | (pl.col("Dst Kind") == "Pageable")
    return _moved(traces, options, "memcpy", pl.col("API Name").str.contains(_ASYNC) & pageable)


def cuda_memcpy_sync(traces: Sequence[Trace], options: Options) -> Rows:
    """Copies that block the host, the longest first."""
    direction = pl.col("text").str.extract(r"([A-Z]to[A-Z])")
    small = (direction == "HtoD") & (pl.col("bytes") <= _SMALL_COPY_BYTES)
    blocking = ~pl.col("API Name").str.contains(_ASYNC) & pl.col("API Name").str.contains("Memcpy")
    wanted = blocking & ~small.fill_null(value=False) & (direction != "DtoD").fill_null(value=True)
    return _moved(traces, options, "memcpy", wanted)


def cuda_memset_sync(traces: Sequence[Trace], options: Options) -> Rows:
    """Synchronous fills of pinned or unified memory, the longest first."""
    call = pl.col("API Name")
    blocking = ~call.str.contains(_ASYNC) & call.str.contains("(?i)memset")
    return _moved(traces, options, "memset", blocking & pl.col("Memory Kind").is_in(_BLOCKING_FILLS))


def cuda_api_sync(traces: Sequence[Trace], options: Options) -> Rows:
    """Calls that wait for a device or a stream, the longest first."""
    calls = api_calls(traces, "process_id", "thread_id", "name", "start", "duration")
    names = calls["name"].unique().to_frame()
    waits = names.filter(pl.col("name").cast(pl.String).str.contains(_WAITS))
    frame = calls.join(waits, on="name", how="semi").select(
        pl.col("duration").alias("Duration (ns)"),
        pl.col("start").alias("Start (ns)"),
        pl.col("process_id").alias("PID"),
        pl.col("thread_id").alias("TID"),
        pl.col("name").cast(pl.String).alias("API Name"),
    )
    return _longest(frame, options)


def gpu_gaps(traces: Sequence[Trace], options: Options) -> Rows:
    """When each device is idle for at least `options.gap_ms`, the longest first."""
    rows: list[tuple[int, int, int | None, int, int | None]] = []
    for work in device_work(traces):
        gaps = gaps_of(work, options.gap_ms * NS_PER_MS)
        place = (work.process_id, work.device_id, work.context_id)
        rows += [(end - start, start, *place) for start, end in gaps.pairs()]
    names = ("Duration (ns)", "Start (ns)", "PID", "Device ID", "Context ID")
    frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")
    return _numbered(_longest(frame, options))


def gpu_time_util(traces: Sequence[Trace], options: Options) -> Rows:
    """When each device is used less than `options.threshold` %, the least used first."""
    frames = []
    for work in device_work(traces):
        regions = regions_of(work, options.chunks, options.threshold)
        length = pl.col("end") - pl.col("start")
        place = {"PID": work.process_id, "Device ID": work.device_id, "Context ID": work.context_id}
        frames.append(
            regions.select(
                (100 * pl.col("used") / length).alias("In-Use (%)"),
                length.alias("Duration (ns)"),
                pl.col("start").alias("Start (ns)"),
                *(pl.lit(value, pl.Int64).alias(name) for name, value in place.items()),
            )
        )
    frame = pl.concat(frames) if frames else pl.DataFrame(schema={"In-Use (%)": pl.Float64})
    if frame.height:
        frame = frame.sort("In-Use (%)", "Duration (ns)", "Start (ns)", descending=[False, True, False])
    return _numbered(_first(frame, options))


def _moved(traces: Sequence[Trace], options: Options, kind: str, wanted: pl.Expr) -> Rows:
    columns = (*_COLUMNS, "name", "bytes", "launch_id")
    rows = device_rows(traces, *columns, kinds=(kind,))
    source, target = copy_kinds()
    source_name = "Src Kind" if kind == "memcpy" else "Memory Kind"
    frame = rows.with_columns(
        renamed(rows["name"], pl.col("text")).alias("text"),
        renamed(rows["name"], source).alias(source_name),
        renamed(rows["name"], target).alias("Dst Kind"),
        megabytes("bytes").alias("Bytes (MB)"),
        api_names(traces, rows).alias("API Name"),
    )
    unknown = frame["API Name"].null_count()
    found = _longest(frame.filter(wanted).rename(_COLUMNS), options)
    note = f"of {format_count(unknown)} no call is recorded" if unknown else None
    return Rows(found.frame, "; ".join(filter(None, (note, found.note))) or None)


def _longest(frame: pl.DataFrame, options: Options) -> Rows:
    return _first(
        frame.sort("Duration (ns)", "Start (ns)", descending=[True, False], maintain_order=True), options
    )


def _first(frame: pl.DataFrame, options: Options) -> Rows:
    if not options.rows or frame.height <= options.rows:
        return Rows(frame)
    return Rows(frame.head(options.rows), f"the first {options.rows} of {format_count(frame.height)} rows")


def _numbered(found: Rows) -> Rows:
    rows = found.frame.with_columns(pl.int_range(1, 1 + pl.len(), dtype=pl.Int64).alias("Row#"))
    return Rows(rows, found.note)
