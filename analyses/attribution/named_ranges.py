"""The ranges of a trace that a person named and that are layers, and the forward passes that FSDP's hooks mark."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack, one_begins_in
from tracekit.analyses.attribution.layer_ranges import counting
from tracekit.facts.stack_names import FSDP_FORWARD, NOT_A_LAYER, WRAPPER_PART
from tracekit.spans import BoolArray, Int64Array
from tracekit.trace import Trace

__all__ = ["fsdp_forwards", "named_ranges", "work_of"]


def named_ranges(
    trace: Trace, stack: HostStack, engine: Int64Array, steps: pl.DataFrame | None
) -> Int64Array:
    """Annotations that are not a tool's own and enclose work: on their thread, or at that time on the engine's."""
    candidate = stack.of_kind("annotation") & ~stack.named(NOT_A_LAYER, "annotation")
    if not candidate.any():
        return np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(candidate)
    if steps is not None and steps.height:
        spans = pl.DataFrame({"start": stack.start[rows], "end": stack.end[rows]}).with_row_index("row")
        others = spans.join(
            steps.select("start", "end"), on=["start", "end"], how="anti", maintain_order="left"
        )
        rows = rows[others["row"].to_numpy()]
    chosen = trace.layer_ranges
    if chosen is not None:
        rows = rows[counting(stack.frame["name", "domain"][rows], chosen)]
    if not rows.size:
        return rows
    work = work_of(trace, stack)
    before = np.concatenate([[0], np.cumsum(work)])
    last = rows + _spans_below(stack, rows)
    encloses = before[last] > before[rows + 1]
    away = np.flatnonzero(work & np.isin(stack.thread, engine))
    spans = pl.DataFrame({"process": stack.process[rows], "start": stack.start[rows], "end": stack.end[rows]})
    encloses |= one_begins_in(spans, stack.process[away], stack.start[away])
    kept: Int64Array = rows[encloses]
    if chosen is not None and chosen.depth is not None and kept.size:
        kept = kept[stack.nesting_of(kept).depth() < chosen.depth]
    return kept


def work_of(trace: Trace, stack: HostStack) -> BoolArray:
    """Host spans that are work: operators and launches."""
    work = stack.of_kind("op")
    work[trace.device["launch_id"].drop_nulls().unique().to_numpy()] = True
    return work


def _spans_below(stack: HostStack, rows: Int64Array) -> Int64Array:
    """How many rows from each span on start before it ends, on its thread; itself included."""
    bounds = np.searchsorted(stack.thread, stack.thread[rows], side="right")
    found = np.empty(rows.size, dtype=np.int64)
    codes, first = np.unique(stack.thread[rows], return_index=True)  # spans are sorted by thread
    for code, mine in zip(codes.tolist(), np.split(np.arange(rows.size), first[1:]), strict=True):
        low, high = np.searchsorted(stack.thread, [code, code + 1])
        found[mine] = low + np.searchsorted(stack.start[low:high], stack.end[rows[mine]], side="left")
    return np.maximum(np.minimum(found, bounds) - rows, 1)


def fsdp_forwards(stack: HostStack) -> tuple[Int64Array, Int64Array, Int64Array, pl.Series] | None:
    """The stretch between a module's pre-forward hook and its post-forward hook: threads, starts, ends, names."""
    hooks = np.flatnonzero(stack.named(FSDP_FORWARD, "annotation", "op"))
    if not hooks.size:
        return None
    frame = pl.DataFrame(
        {
            "name": stack.frame["name"][hooks].cast(pl.String),
            "thread": stack.thread[hooks],
            "start": stack.start[hooks],
            "end": stack.end[hooks],
        }
    ).with_columns(
        pl.col("name").str.extract(FSDP_FORWARD, 1).alias("side"),
        pl.col("name")
        .str.extract(FSDP_FORWARD, 2)
        .str.replace_all(WRAPPER_PART, "")
        .str.strip_chars(".")
        .replace("", "FSDP")
        .fill_null("FSDP")
        .alias("layer"),
    )
    frame = frame.with_columns(pl.int_range(pl.len()).over("thread", "layer", "side").alias("turn"))
    pre, post = (frame.filter(pl.col("side") == side) for side in ("pre", "post"))
    pairs = pre.join(post, on=["thread", "layer", "turn"], suffix="_post").filter(
        pl.col("start_post") >= pl.col("end")
    )
    if not pairs.height:
        return None
    ends = pairs["start_post"].to_numpy()
    return pairs["thread"].to_numpy(), pairs["end"].to_numpy(), ends, pairs["layer"]
