"""Activities of the device: the rows of `cuda_gpu_kern_sum`, `cuda_gpu_kern_gb_sum`, `cuda_gpu_mem_time_sum` and
`cuda_gpu_sum`, `cuda_gpu_mem_size_sum`, `cuda_gpu_trace`, and the copies and fills for the rules.

NVIDIA's guide does not define some details. Here kernels without a recorded launch count. If only whole CUDA graphs
were traced, they are rows of `cuda_gpu_sum` (category `CUDA_GRAPH`) and of `cuda_gpu_trace`, so that no device time is
lost, but they are not kernels. Fills are memory operations. A copy of unknown size counts in time, not in size.
Static shared memory is the recorded sum minus the recorded dynamic shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.analyses.nsys_stats.rows import (
    BYTES_PER_MB,
    Rows,
    copy_kinds,
    device_rows,
    extents,
    megabytes,
    operation,
    renamed,
    spread,
)
from tracekit.facts.units import NS_PER_S, format_count
from tracekit.groups import at_rows
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

_CATEGORIES: Final = {
    "kernel": "CUDA_KERNEL",
    "memcpy": "MEMORY_OPER",
    "memset": "MEMORY_OPER",
    "graph": "CUDA_GRAPH",
}


def kernels(traces: Sequence[Trace]) -> Rows:
    """Kernels."""
    return Rows(device_rows(traces, "kernel"))


def moves(traces: Sequence[Trace]) -> Rows:
    """Copies by direction, and fills."""
    rows = device_rows(traces, "memcpy", "memset")
    return Rows(rows.with_columns(renamed(rows["name"], operation()).alias("Operation")))


def activities(traces: Sequence[Trace]) -> Rows:
    """Kernels by name, copies by direction, and fills."""
    rows = device_rows(traces)
    category = pl.col("kind").cast(pl.String).replace_strict(_CATEGORIES).alias("Category")
    return Rows(rows.with_columns(category, _operations(rows).alias("Operation")))


def cuda_gpu_mem_size_sum(traces: Sequence[Trace]) -> Rows:
    """Copies by direction, and fills: sum, count and spread of their sizes in MB (10⁶ bytes)."""
    rows = moves(traces).frame
    sized = rows.filter(pl.col("bytes").is_not_null())
    frame = (
        sized.group_by("Operation")
        .agg(pl.col("bytes").sum().alias("Total (MB)"), pl.len().alias("Count"), *spread("bytes", unit="MB"))
        .with_columns(
            *map(megabytes, ("Total (MB)", "Min (MB)", "Max (MB)")),
            pl.col("Avg (MB)", "Med (MB)", "StdDev (MB)") / BYTES_PER_MB,
        )
    )
    unknown = rows.height - sized.height
    return Rows(frame, f"{format_count(unknown)} of unknown size are left out" if unknown else None)


def cuda_gpu_trace(traces: Sequence[Trace]) -> Rows:
    """Every kernel, copy and fill. A fill has its memory in `SrcMemKd`."""
    rows = device_rows(traces)
    source, target = copy_kinds()
    rate = pl.col("bytes") / BYTES_PER_MB * NS_PER_S / pl.col("duration")
    frame = rows.with_columns(
        (pl.col("shared_memory") - pl.col("dynamic_shared_memory")).alias("static_shared_memory")
    ).with_columns(
        *extents(rows["grid"], "Grd"),
        *extents(rows["block"], "Blk"),
        megabytes("static_shared_memory").alias("StcSMem (MB)"),
        megabytes("dynamic_shared_memory").alias("DymSMem (MB)"),
        megabytes("bytes").alias("Bytes (MB)"),
        pl.when(pl.col("duration") > 0).then(rate).alias("Throughput (MB/s)"),
        pl.when(_moves()).then(renamed(rows["name"], source)).alias("SrcMemKd"),
        pl.when(_moves()).then(renamed(rows["name"], target)).alias("DstMemKd"),
        _device_names(traces, rows).alias("Device"),
        _operations(rows).alias("Name"),
    )
    return Rows(frame)


def copies_with_calls(traces: Sequence[Trace]) -> Rows:
    """Every copy, with the `direction`, `bytes`, and the name of the call that launched it."""
    return _with_calls(traces, "memcpy", "Src Kind")


def fills_with_calls(traces: Sequence[Trace]) -> Rows:
    """Every fill, with the name of the call that launched it."""
    return _with_calls(traces, "memset", "Memory Kind")


def _with_calls(traces: Sequence[Trace], kind: str, memory: str) -> Rows:
    rows = device_rows(traces, kind)
    source, target = copy_kinds()
    frame = rows.with_columns(
        renamed(rows["name"], pl.col("text").str.extract(r"([A-Z]to[A-Z])")).alias("direction"),
        renamed(rows["name"], source).alias(memory),
        renamed(rows["name"], target).alias("Dst Kind"),
        megabytes("bytes").alias("Bytes (MB)"),
        _api_names(traces, rows).alias("api_name"),
    )
    unknown = frame["api_name"].null_count()
    return Rows(frame, f"of {format_count(unknown)} no call is recorded" if unknown else None)


def _moves() -> pl.Expr:
    return pl.col("kind").cast(pl.String).is_in(["memcpy", "memset"])


def _operations(rows: pl.DataFrame) -> pl.Series:
    """NVIDIA's name of a copy or fill, and the recorded name of any other activity."""
    own = renamed(rows["name"], pl.col("text"))
    return rows.select(pl.when(_moves()).then(renamed(rows["name"], operation())).otherwise(own)).to_series()


def _api_names(traces: Sequence[Trace], rows: pl.DataFrame) -> pl.Series:
    """The name of the call that launched each row; null if it is unknown."""
    parts = []
    for part, trace in enumerate(traces):
        launches, names = rows.filter(pl.col("part") == part)["launch_id"], trace.host["name"]
        parts.append(at_rows(names, launches) if names.len() else names.clear(launches.len()))
    return pl.concat(parts).cast(pl.String)


def _device_names(traces: Sequence[Trace], rows: pl.DataFrame) -> pl.Series:
    """`NVIDIA H100 (0)`; only the number if the trace does not name the device."""
    devices = [
        (part, device.device_id, f"{device.name} ({device.device_id})".strip())
        for part, trace in enumerate(traces)
        for device in trace.meta.devices
    ]
    schema = {"part": pl.Int32, "device_id": pl.Int64, "text": pl.String}
    key = ["part", "device_id"]
    names = pl.DataFrame(devices, schema=schema, orient="row").unique(key, keep="first", maintain_order=True)
    joined = rows.select(key).join(names, on=key, how="left", maintain_order="left")
    return joined.select(pl.coalesce("text", pl.format("({})", "device_id"))).to_series()
