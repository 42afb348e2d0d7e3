"""What is copied, how fast, and how full the memory is.

Achieved bandwidth is bytes over duration in decimal GB/s. Copies of unknown size count for the time, but not for the
bandwidth. The allocator's timeline exists if the profile was recorded with `profile_memory=True`.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.result import Result, TableView
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.facts.units import format_bytes, format_ns
from tracekit.groups import any_known, are_known, kept
from tracekit.readers import how_to_record
from tracekit.trace import Schema, Trace, empty

__all__ = ["TABLES", "Memory", "copies_of", "memory"]

_DIRECTION = r"(HtoD|DtoH|DtoD|PtoP|HtoH|HtoA|AtoH|AtoD|DtoA|AtoA)"

_LEAST_ON_HOST: Final = 1_000_000
"""Bytes. Beside a device, fewer on the host are those of single values."""

TABLES: Final = {
    "copies": TableView(
        "Copies and fills",
        "device_id kind direction host_memory count total_ns bytes largest_bytes bandwidth_gbps",
        short="device_id kind direction host_memory count total_ns bytes bandwidth_gbps",
        main=True,
    ),
    "peaks": TableView(
        "Peaks of the allocator",
        "device_id peak_bytes peak_time reserved_bytes allocations frees relative capacity_bytes",
        short="device_id peak_bytes reserved_bytes capacity_bytes allocations frees",
        main=True,
    ),
    "timeline": TableView(
        "Allocated memory over time", "device_id time allocated reserved relative", short="", series=True
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Memory(Result):
    """Copies, and the allocator's memory. `peaks` and `timeline` are None when the allocator was not profiled."""

    copies: pl.DataFrame
    """Per `device_id`, `kind` (memcpy, memset), `direction` and `host_memory` (pageable, pinned or null) the `count`, `total_ns`,
    `bytes`, `largest_bytes` and achieved `bandwidth_gbps`."""
    peaks: pl.DataFrame | None
    """Per device (−1 is host memory) `peak_bytes`, `peak_time` (ns), `reserved_bytes`, `capacity_bytes`, `allocations`,
    `frees`."""
    timeline: pl.DataFrame | None
    """`device_id`, `time`, `allocated`, `reserved` in bytes. When a file does not give totals, it starts at 0 at its first
    event and `relative` is true."""


def memory(scope: Scope | Trace) -> Memory:
    """Copies by direction, and the allocator's timeline and peak.

    >>> import tracekit
    >>> memory(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).peaks["device_id"].to_list()
    [-1]
    """
    return once(scope, _memory)


def _memory(scope: Scope) -> Memory:
    trace = scope.trace
    copies = copies_of(scope.activities)
    timeline = _timeline(trace)
    peaks = None if timeline is None else _peaks(timeline, trace)
    lacking = None
    if timeline is None and "memory" in trace.meta.captured:
        lacking = "no allocator events, though the profiler was to record them"
    elif timeline is None:
        lacking = f"no allocator events; {how_to_record('memory', trace.meta.format)}"
    return Memory(
        answer=_answer(copies, peaks, set(trace.device["device_id"].unique().to_list())),
        copies=copies,
        peaks=peaks,
        timeline=None
        if timeline is None
        else timeline[["device_id", "time", "allocated", "reserved", "relative"]],
        not_captured=lacking,
    )


def copies_of(activities: pl.DataFrame) -> pl.DataFrame:
    """The copies and fills among these activities, as `Memory.copies` has them."""
    kind = activities["kind"]
    rows = activities[["device_id", "kind", "name", "duration", "bytes"]]
    rows = kept(rows, (kind == "memcpy") | (kind == "memset"))
    if not rows.height:
        return empty(_COPIES)
    name = pl.col("name").cast(pl.String)
    lower = name.str.to_lowercase()
    known = pl.col("bytes").is_not_null()
    return (
        rows.with_columns(
            pl.col("kind").cast(pl.String),
            name.str.extract(_DIRECTION).alias("direction"),
            pl.when(lower.str.contains("pageable"))
            .then(pl.lit("pageable"))
            .when(lower.str.contains("pinned"))
            .then(pl.lit("pinned"))
            .alias("host_memory"),
        )
        .group_by("device_id", "kind", "direction", "host_memory")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("duration").sum().alias("total_ns"),
            pl.when(known.any()).then(pl.col("bytes").sum()).alias("bytes"),
            pl.col("bytes").max().alias("largest_bytes"),
            # bytes per ns is GB per s
            (pl.col("bytes").sum() / pl.col("duration").filter(known).sum()).alias("bandwidth_gbps"),
        )
        .with_columns(
            pl.when(pl.col("bytes").is_not_null() & pl.col("bandwidth_gbps").is_finite())
            .then("bandwidth_gbps")
            .alias("bandwidth_gbps")
        )
        .sort(pl.col("total_ns") * -1, "kind", "direction", "host_memory", "device_id")
    )


_COPIES: Final[Schema] = {
    "device_id": pl.Int64,
    **dict.fromkeys(("kind", "direction", "host_memory"), pl.String),
    **dict.fromkeys(("count", "total_ns", "bytes", "largest_bytes"), pl.Int64),
    "bandwidth_gbps": pl.Float64,
}


def _timeline(trace: Trace) -> pl.DataFrame | None:
    events = trace.memory
    if events is None or not events.height:
        return None
    running = pl.col("bytes").cum_sum()
    # What was freed was held: the least start with which no total is negative.
    held = (running - pl.min_horizontal(running.min(), 0)).over("device_id")
    return kept(events, are_known(events["bytes"])).select(
        "device_id",
        pl.col("start").alias("time"),
        "bytes",
        pl.coalesce("allocated", held).alias("allocated"),
        "reserved",
        pl.col("allocated").is_null().all().over("device_id").alias("relative"),
    )


def _peaks(timeline: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    capacity = pl.DataFrame(
        [(d.device_id, d.memory_bytes) for d in trace.meta.devices],
        schema={"device_id": pl.Int64, "capacity_bytes": pl.Int64},
        orient="row",
    )
    before = pl.when("relative").then(pl.col("allocated") - pl.col("bytes"))
    most = pl.max_horizontal("allocated", before)
    return (
        timeline.group_by("device_id")
        .agg(
            most.max().alias("peak_bytes"),
            pl.col("time").gather(most.arg_max()).first().alias("peak_time"),
            pl.col("reserved").max().alias("reserved_bytes"),
            (pl.col("bytes") > 0).sum().cast(pl.Int64).alias("allocations"),
            (pl.col("bytes") < 0).sum().cast(pl.Int64).alias("frees"),
            pl.col("relative").first(),
        )
        .join(capacity, on="device_id", how="left")
        .sort("device_id")
    )


def _answer(copies: pl.DataFrame, peaks: pl.DataFrame | None, devices: set[int]) -> str:
    parts = []
    if copies.height:
        took = format_ns(int(copies["total_ns"].sum()))
        parts.append(
            f"copies and fills moved {format_bytes(int(copies['bytes'].sum()))} in {took}"
            if any_known(copies["bytes"])
            else f"copies and fills took {took}; their bytes were not recorded"
        )
    else:
        parts.append("there were no copies on a device")
    for row in peaks.iter_rows(named=True) if peaks is not None else []:
        number = row["device_id"]
        if number < 0 and devices and row["peak_bytes"] < _LEAST_ON_HOST:
            continue
        # ROCm's profiler counts devices otherwise than the allocator of PyTorch.
        whose = "" if number in devices or not devices else "the allocator's "
        # Of the host, PyTorch counts only what it allocates while it records: no weights, no state of the optimizer.
        where = "memory allocated on the host while recording" if number < 0 else f"{whose}device {number}"
        more = "or more" if row["relative"] else ""
        parts.append(f"{where} peaked at {format_bytes(row['peak_bytes'])} {more}".rstrip())
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
