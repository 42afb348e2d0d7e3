"""What the columns of the analyses are called, and in which unit they are.

Only names stand here, no figures. A column that is not declared is shown all the same: its title and its unit come from
its name (`*_ns`, `*_bytes`, `*_gbps`, `*share`).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.report.model import Column, Unit

__all__ = ["column_of", "unit_of"]

_UNITS: Final[dict[str, Unit]] = {
    "device_id": "device",
    "stream_id": "id",
    "thread_id": "id",
    "activity_id": "id",
    "step": "id",
    "start": "time",
    "time": "time",
    "span_start": "time",
    "peak_time": "time",
    "allocated": "bytes",
    "reserved": "bytes",
    "bytes": "bytes",
    "share": "ratio",
    "overlap": "ratio",
    "utilisation": "ratio",
    "kernel_utilisation": "ratio",
    "sm_efficiency": "ratio",
    "occupancy": "ratio",
    "variation": "ratio",
    "flops_utilisation": "ratio",
    "overhead": "number",
    "phase": "text",
    "method": "text",
    "layer": "text",
    "path": "text",
    "parent": "text",
    "type": "text",
    "source": "text",
    "pattern": "text",
    "level": "text",
    "ranks": "count",
    "throughput_per_s": "number",
    "achieved_tflops": "number",
    "flops_per_step": "number",
    "name": "text",
    "category": "text",
    "kind": "text",
    "operator": "text",
    "frame": "text",
    "range": "text",
    "os_call": "text",
    "function": "text",
    "cause": "text",
    "dependency": "text",
    "shapes": "text",
    "dtypes": "text",
    "measure": "text",
    "part": "text",
    "role": "text",
    "direction": "text",
    "host_memory": "text",
    "series": "text",
    "dram_source": "text",
    "flops": "number",
    "intensity": "number",
    "tflops": "number",
    "outlier": "flag",
    "relative": "flag",
    "total": "number",
    "mean": "number",
    "min": "number",
    "max": "number",
    "mean_length": "number",
}
_SUFFIXES: Final[tuple[tuple[str, Unit], ...]] = (
    ("_ns", "ns"),
    ("_bytes", "bytes"),
    ("_gbps", "gbps"),
    ("_share", "ratio"),
    ("_ratio", "ratio"),
    ("_id", "id"),
)
_TITLES: Final[dict[str, str]] = {
    "device_id": "device",
    "stream_id": "stream",
    "duration_ns": "own range",
    "time_ns": "step time",
    "exposed_communication_ns": "exposed comm.",
    "communication_ns": "communication",
    "exposed_memory_ns": "exposed copies",
    "memory_ns": "copies",
    "overlap_ns": "comm. overlapped",
    "kernel_utilisation": "kernel util.",
    "sm_efficiency": "SM efficiency",
    "launch_bound_share": "launch-bound",
    "bandwidth_gbps": "bandwidth",
    "trimmed_mean_ns": "trimmed mean",
    "mean_device_ns": "mean on device",
    "mean_call_ns": "mean launch call",
    "mean_delay_ns": "mean delay",
    "std_ns": "std dev.",
    "p95_ns": "p95",
    "host_memory": "host memory",
    "device_ns": "on device",
    "device_own_ns": "own on device",
    "own_share": "own share",
    "host_ns": "on host",
    "host_self_ns": "own on host",
    "union_ns": "any running",
    "class_compute_ns": "computing",
    "class_communication_ns": "communicating",
    "class_memory_ns": "copying",
}


def unit_of(name: str, dtype: pl.DataType | None = None) -> Unit:
    """The unit of a column, by its name first and by its type second.

    >>> unit_of("total_ns"), unit_of("largest_bytes"), unit_of("mean", pl.Float64()), unit_of("count", pl.Int64())
    ('ns', 'bytes', 'number', 'count')
    """
    if name in _UNITS:
        return _UNITS[name]
    for suffix, unit in _SUFFIXES:
        if name.endswith(suffix):
            return unit
    if dtype is None or dtype.is_integer():
        return "count"
    if dtype == pl.Boolean:
        return "flag"
    return "number" if dtype.is_numeric() else "text"


def column_of(name: str, dtype: pl.DataType | None = None) -> Column:
    """The column with its unit and the title that a reader sees.

    >>> column_of("host_wait_ns").title
    'host wait'
    """
    plain = name
    for suffix in ("_ns", "_bytes", "_gbps"):
        plain = plain.removesuffix(suffix)
    return Column(name, _TITLES.get(name, plain.replace("_", " ")), unit_of(name, dtype))
