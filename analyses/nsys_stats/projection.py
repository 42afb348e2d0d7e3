"""Reports that project ranges onto the device: `nvtx_gpu_proj_sum`, `nvtx_gpu_proj_trace`, `nvtx_kern_sum`.

In NVIDIA's guide, device work is *in* a range if the call that launched it lies in the range, on the same process and
thread; work lies in every range around its launch. The projected range goes from the first start to the last end of that
work. The time of ranges inside is not subtracted, so sums can exceed the time of the trace. Only ranges with device work
have a row, and only if they begin and end on one thread.

Work that another thread launches therefore counts for the ranges of that thread: PyTorch's backward pass runs on a
separate thread and is in no range of the forward pass. `tracekit layers` attributes it to the layers.

The guide does not define some details. Here device work is kernels, copies, fills and whole CUDA graphs; all kernels of a
graph belong to the call that launched it. A start/end range has level 0 and no children. In `nvtx_kern_sum` a kernel counts
once in a row (`Kern Inst`), even if ranges of one name are nested; each of these ranges counts (`NVTX Inst`). It uses ranges
up to level 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.nsys_stats.projected import (
    Launched,
    Slices,
    launched,
    pairs_of,
    slice_extremes,
    slices_of,
)
from tracekit.analyses.nsys_stats.ranges import DEEPEST_STACK, nested, range_name, range_stacks, unnested
from tracekit.analyses.nsys_stats.rows import Rows, spread, stacked
from tracekit.facts.units import format_count
from tracekit.groups import at_rows
from tracekit.spans import Int64Array
from tracekit.trace import Trace

__all__ = ["nvtx_gpu_proj_sum", "nvtx_gpu_proj_trace", "nvtx_kern_sum"]

_PAIRS: Final = 4_000_000
"""The most pairs of a range and a kernel that are held at once; the ranges of one name stay together."""


def nvtx_gpu_proj_trace(traces: Sequence[Trace]) -> Rows:
    """Every range with device work."""
    frames = [
        pl.concat([_projected(trace, ranges, stacks=True) for ranges in styles])
        for trace, styles in _styles(traces)
    ]
    return Rows(stacked(traces, frames).with_columns(range_name().alias("Name")), _without_launch(traces))


def nvtx_gpu_proj_sum(traces: Sequence[Trace]) -> Rows:
    """Projected ranges by style and name."""
    rows = pl.concat([_projected(trace, ranges) for trace, styles in _styles(traces) for ranges in styles])
    operations = pl.col("NumGPUOps")
    frame = rows.group_by("Style", "domain", "name").agg(
        pl.col("projected").sum().alias("Total Proj Time (ns)"),
        pl.col("duration").sum().alias("Total Range Time (ns)"),
        pl.len().alias("Range Instances"),
        *spread("projected", "Proj "),
        operations.sum().alias("Total GPU Ops"),
        operations.mean().alias("Avg GPU Ops"),
        pl.col("Lvl").mean().alias("Avg Range Lvl"),
        pl.col("NumChild").mean().alias("Avg Num Child"),
    )
    return Rows(frame.with_columns(range_name()), _without_launch(traces))


def nvtx_kern_sum(traces: Sequence[Trace]) -> Rows:
    """Kernels by the ranges that launched them."""
    frames, deep = [], 0
    for trace, styles in _styles(traces):
        work = launched(trace, "kernel")
        for ranges in styles:
            deep += int((ranges["Lvl"] > DEEPEST_STACK).sum())
            frames += [_by_kernel(*batch, work) for batch in _batches(ranges, slices_of(ranges, work))]
    below = f"{format_count(deep)} ranges below level {DEEPEST_STACK} are left out" if deep else None
    note = "; ".join(filter(None, (_without_launch(traces), below))) or None
    kernel = pl.col("kernel").cast(pl.String).alias("Kernel Name")
    return Rows(pl.concat(frames).with_columns(range_name(), kernel), note)


def _styles(traces: Sequence[Trace]) -> Iterator[tuple[Trace, tuple[pl.DataFrame, pl.DataFrame]]]:
    """Each trace with its push/pop ranges and its start/end ranges."""
    return zip(traces, zip(nested(traces), unnested(traces, one_thread=True), strict=True), strict=True)


def _projected(trace: Trace, ranges: pl.DataFrame, *, stacks: bool = False) -> pl.DataFrame:
    """The ranges with device work: their columns, the times of the work, and with `stacks` the ranges around each."""
    work = launched(trace)
    slices = slices_of(ranges, work)
    rows = np.flatnonzero(slices.high > slices.low)
    own = Slices(slices.low[rows], slices.high[rows])
    start = work.rows["start"].to_numpy()
    begin = slice_extremes(start, own, np.minimum)
    finish = slice_extremes(start + work.rows["duration"].to_numpy(), own, np.maximum)
    return ranges[rows].with_columns(
        pl.Series("projected_start", begin),
        pl.Series("projected", finish - begin),
        pl.Series("NumGPUOps", own.high - own.low),
        *([at_rows(range_stacks(ranges), rows).alias("RangeStack")] if stacks else []),
    )


def _batches(ranges: pl.DataFrame, slices: Slices) -> Iterator[tuple[pl.DataFrame, Slices]]:
    """The ranges with work, sorted by name and thread and cut into parts of some `_PAIRS` pairs, with their slices; at
    least one part, which may be empty.
    """
    keys = ["domain", "name", "process_id", "thread_id"]
    frame = ranges.select(*keys, "Style", "Lvl").with_columns(
        pl.Series("low", slices.low), pl.Series("high", slices.high)
    )
    frame = frame.filter((pl.col("high") > pl.col("low")) & (pl.col("Lvl") <= DEEPEST_STACK)).drop("Lvl")
    numbers = frame.select(keys).unique(maintain_order=True).with_row_index("key")
    frame = frame.join(numbers, on=keys, how="left", maintain_order="left", nulls_equal=True)
    frame = frame.sort("key", "low", maintain_order=True)
    key = frame["key"].to_numpy()
    before = np.cumsum((frame["high"] - frame["low"]).to_numpy())
    borders = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    full = (before[np.maximum(borders - 1, 0)] * (borders > 0)) // _PAIRS if key.size else borders
    cuts = [*borders[np.append(True, full[1:] != full[:-1])].tolist(), frame.height]
    for begin, stop in pairwise(cuts):
        part = frame[begin:stop]
        yield part.drop("low", "high"), Slices(part["low"].to_numpy(), part["high"].to_numpy())


def _by_kernel(ranges: pl.DataFrame, slices: Slices, work: Launched) -> pl.DataFrame:
    owner, row = pairs_of(slices)
    keys = ranges["key"].to_numpy()
    pairs = pl.DataFrame({"key": keys[owner], "range": owner, "row": row}).with_columns(
        at_rows(work.rows["name"], row).alias("kernel")
    )
    inside = pairs.group_by("key", "kernel").agg(pl.col("range").n_unique().alias("NVTX Inst"))
    if _overlap(keys, slices):
        pairs = pairs.unique(["key", "row"], keep="any")
    kernels = (
        pairs.with_columns(at_rows(work.rows["duration"], pairs["row"]))
        .group_by("key", "kernel")
        .agg(pl.len().alias("Kern Inst"), pl.col("duration").sum().alias("Total Time (ns)"), *spread())
    )
    names = ranges.unique("key", keep="first")
    return inside.join(kernels, on=["key", "kernel"]).join(names, on="key").drop("key")


def _overlap(keys: Int64Array, slices: Slices) -> bool:
    """True if ranges of one key, sorted by their slices, share work."""
    same = keys[1:] == keys[:-1]
    return bool((same & (slices.low[1:] < slices.high[:-1])).any())


def _without_launch(traces: Sequence[Trace]) -> str | None:
    lacking = sum(trace.device["launch_id"].null_count() for trace in traces)
    if not lacking:
        return None
    total = sum(trace.device.height for trace in traces)
    return f"{format_count(lacking)} of {format_count(total)} activities have no recorded launch and are in no range"
