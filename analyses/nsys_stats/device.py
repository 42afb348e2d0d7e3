"""What runs on the device: the rows of `cuda_gpu_kern_sum`, `cuda_gpu_kern_gb_sum`, `cuda_gpu_mem_time_sum` and
`cuda_gpu_sum`, `cuda_gpu_mem_size_sum`, `cuda_gpu_trace`, and the copies and fills that rules look at.

Chosen where NVIDIA's guide is silent: kernels whose launch was not recorded count. Where only whole CUDA graphs were
traced, these are rows of `cuda_gpu_sum` (category `CUDA_GRAPH`) and of `cuda_gpu_trace`, so that no device time is
lost; they are no kernels. Fills are among the memory operations. A copy of unknown size counts in time, not in size.
Static shared memory is what is known in sum less what is known as dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.analyses.nsys_stats.rows import api_names, copy_kinds, device_rows, extents, operation, renamed
from tracekit.analyses.nsys_stats.table import Rows, megabytes, spread
from tracekit.facts.units import format_count
from tracekit.trace import Trace

__all__ = [
    "activities",
    "copies_with_calls",
    "cuda_gpu_mem_size_sum",
    "cuda_gpu_trace",
    "fills_with_calls",
    "kernels",
    "moves",
]

_MEMORY: Final = ("memcpy", "memset")
_PLACES: Final = {
    "duration": "Duration (ns)",
    "start": "Start (ns)",
    "process_id": "PID",
    "device_id": "Device ID",
    "context_id": "Context ID",
    "stream_id": "Stream ID",
}
_BYTES_PER_MB: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_CATEGORIES: Final = {
    "kernel": "CUDA_KERNEL",
    "memcpy": "MEMORY_OPER",
    "memset": "MEMORY_OPER",
    "graph": "CUDA_GRAPH",
}


def kernels(traces: Sequence[Trace]) -> Rows:
    """Kernels."""
    return Rows(device_rows(traces, "name", "grid", "block", "duration", kinds=("kernel",)))


def moves(traces: Sequence[Trace]) -> Rows:
    """Copies by direction, and fills."""
    rows = device_rows(traces, "name", "duration", kinds=_MEMORY)
    return Rows(rows.with_columns(renamed(rows["name"], operation()).alias("Operation")))


def activities(traces: Sequence[Trace]) -> Rows:
    """Kernels by name, copies by direction, and fills."""
    rows = device_rows(traces, "kind", "name", "duration")
    own = (pl.col("kind") == "kernel") | (pl.col("kind") == "graph")
    names = pl.when(own).then(renamed(rows["name"], pl.col("text")))
    return Rows(
        rows.with_columns(
            pl.col("kind").cast(pl.String).replace_strict(_CATEGORIES).alias("Category"),
            names.otherwise(renamed(rows["name"], operation())).alias("Operation"),
        )
    )


def cuda_gpu_mem_size_sum(traces: Sequence[Trace]) -> Rows:
    """Copies by direction, and fills: sum, count and spread of their sizes in MB (10⁶ bytes)."""
    rows = device_rows(traces, "name", "bytes", kinds=_MEMORY)
    sized = rows.filter(pl.col("bytes").is_not_null())
    size = sized.select(renamed(sized["name"], operation()).alias("Operation"), "bytes")
    frame = (
        size.group_by("Operation")
        .agg(pl.col("bytes").sum().alias("Total (MB)"), pl.len().alias("Count"), *spread("bytes", unit="MB"))
        .with_columns(
            *map(megabytes, ("Total (MB)", "Min (MB)", "Max (MB)")),
            pl.col("Avg (MB)", "Med (MB)", "StdDev (MB)") / _BYTES_PER_MB,
        )
    )
    unknown = rows.height - sized.height
    note = f"{format_count(unknown)} of unknown size are left out" if unknown else None
    return Rows(frame.sort("Total (MB)", "Operation", descending=[True, False]), note)


def cuda_gpu_trace(traces: Sequence[Trace]) -> Rows:
    """Every kernel, copy and fill, by start. A fill has its memory in `SrcMemKd`."""
    rows = device_rows(
        traces,
        *("kind", "name", "start", "duration", "correlation", "device_id", "context_id", "stream_id"),
        *("bytes", "grid", "block", "registers", "shared_memory", "dynamic_shared_memory"),
    )
    moved = pl.col("kind").cast(pl.String).is_in(_MEMORY)
    source, target = copy_kinds()
    grid, block = extents(rows["grid"]), extents(rows["block"])
    rows = rows.with_columns((pl.col("shared_memory") - pl.col("dynamic_shared_memory")).alias("static"))
    frame = rows.with_columns(
        *(part.alias(f"Grd{axis}") for part, axis in zip(grid, "XYZ", strict=True)),
        *(part.alias(f"Blk{axis}") for part, axis in zip(block, "XYZ", strict=True)),
        megabytes("static").alias("StcSMem (MB)"),
        megabytes("dynamic_shared_memory").alias("DymSMem (MB)"),
        megabytes("bytes").alias("Bytes (MB)"),
        pl.when(pl.col("duration") > 0)
        .then(pl.col("bytes") / _BYTES_PER_MB * _NS_PER_S / pl.col("duration"))
        .alias("Throughput (MB/s)"),
        pl.when(moved).then(renamed(rows["name"], source)).alias("SrcMemKd"),
        pl.when(moved).then(renamed(rows["name"], target)).alias("DstMemKd"),
        _device_names(traces, rows).alias("Device"),
        pl.when(moved)
        .then(renamed(rows["name"], operation()))
        .otherwise(renamed(rows["name"], pl.col("text")))
        .alias("Name"),
    ).rename(
        {
            "start": "Start (ns)",
            "duration": "Duration (ns)",
            "correlation": "CorrId",
            "registers": "Reg/Trd",
            "context_id": "Ctx",
            "stream_id": "Strm",
        }
    )
    return Rows(frame.sort("Start (ns)", "part", maintain_order=True))


def copies_with_calls(traces: Sequence[Trace]) -> Rows:
    """Every copy, with the `direction`, `bytes`, and the name of the call that launched it."""
    return _with_calls(traces, "memcpy", "Src Kind")


def fills_with_calls(traces: Sequence[Trace]) -> Rows:
    """Every fill, with the name of the call that launched it."""
    return _with_calls(traces, "memset", "Memory Kind")


def _with_calls(traces: Sequence[Trace], kind: str, memory: str) -> Rows:
    rows = device_rows(traces, *_PLACES, "name", "bytes", "launch_id", kinds=(kind,))
    source, target = copy_kinds()
    frame = rows.with_columns(
        renamed(rows["name"], pl.col("text").str.extract(r"([A-Z]to[A-Z])")).alias("direction"),
        renamed(rows["name"], source).alias(memory),
        renamed(rows["name"], target).alias("Dst Kind"),
        megabytes("bytes").alias("Bytes (MB)"),
        api_names(traces, rows).alias("API Name"),
    )
    unknown = frame["API Name"].null_count()
    note = f"of {format_count(unknown)} no call is recorded" if unknown else None
    return Rows(frame.rename(_PLACES), note)


def _device_names(traces: Sequence[Trace], rows: pl.DataFrame) -> pl.Series:
    """`NVIDIA H100 (0)`; the number alone of a device whose name the trace does not tell."""
    devices = [
        (part, device.device_id, f"{device.name} ({device.device_id})".strip())
        for part, trace in enumerate(traces)
        for device in trace.meta.devices
    ]
    names = pl.DataFrame(
        devices, schema={"part": pl.Int32, "device_id": pl.Int64, "text": pl.String}, orient="row"
    ).unique(["part", "device_id"], keep="first", maintain_order=True)
    joined = rows.select("part", "device_id").join(
        names, on=["part", "device_id"], how="left", maintain_order="left"
    )
    return joined.select(pl.coalesce("text", pl.format("({})", "device_id"))).to_series()
