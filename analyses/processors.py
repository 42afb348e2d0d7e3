"""Operator self time as activities, for traces without a device."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.classify import categorise
from tracekit.facts.idle_names import COMPILING_SPAN, NODE_CALL, NOT_AN_OPERATOR
from tracekit.facts.kernel_rules import OPTIMIZER_UPDATE
from tracekit.facts.units import NS_PER_US
from tracekit.groups import kept
from tracekit.name_table import NameTable
from tracekit.spans import Nesting, kept_nesting, nesting_of
from tracekit.trace import DEVICE_SCHEMA, Trace, one_of

__all__ = ["CPU_DEVICE", "cpu_activities", "slowed_by_recording"]

CPU_DEVICE = -1
"""The device number under which the host's processors appear."""

HOOK_NS = 250 * NS_PER_US
"""A node of autograd takes some µs itself. What it takes longer is a hook: Python, or a wait for a collective."""
_QUEUES = r"^_?c10d(_functional(_autograd)?)?::"
_ON_GLOO = r"^gloo:"

FELT = 1.2
"""Steps on a quiet machine differ by less than a fifth."""


def cpu_activities(trace: Trace) -> pl.DataFrame:
    """Rows like those of `trace.device`: each is a stretch of one thread in which one operator was the innermost.

    `stream_id` is the thread, `launch_id` the operator's own span; an operator that calls others has several
    rows, and their durations sum to its self time. Time in which it only waits for a collective is communication, and that of
    hooks is left out. Collectives of the CPU backend (`gloo:…`) are included. What runs while code is compiled is not: such operators only trace, on tensors without data.
    """
    host = trace.host
    name = pl.col("name").cast(pl.String)
    compiling = _compiling(host) & host["kind"].is_in(["op", "annotation"])
    is_operator = (pl.col("kind") == "op") & ~name.str.contains(NOT_AN_OPERATOR)
    is_work = is_operator | ((pl.col("kind") == "annotation") & name.str.contains(_ON_GLOO))
    counts = (is_work | pl.col("compiling")) & (pl.col("duration") > 0)
    work = host.with_columns(compiling.alias("compiling")).filter(counts)
    if not work.height:
        return pl.DataFrame(schema=DEVICE_SCHEMA)
    # The backward pass is compiled inside its operator, when it first runs: that time is not the operator's.
    nesting = nesting_of(work)
    pieces = _without_waits(work, nesting, _self_pieces(nesting))
    pieces = pieces.filter(~work["compiling"].gather(pieces["row"]))
    spans = work.rename({"span_id": "launch_id"}).drop("start", "duration", "compiling")
    numbered = spans.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    rows = pieces.join(numbered, on="row", how="left", maintain_order="left")
    stepping = host.filter(one_of("kind", "op", "annotation") & name.str.contains(OPTIMIZER_UPDATE))
    in_optimizer = _within(rows, stepping)
    category = categorise(pl.Series(["op"] * rows.height), rows["name"], rows["name"], in_optimizer)
    category = category.set(rows["waits"], "communication")
    made = rows.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("activity_id"),
        "process_id",
        pl.lit("op").alias("kind"),
        category.alias("category"),
        "name",
        pl.lit(CPU_DEVICE).alias("device_id"),
        pl.col("thread_id").alias("stream_id"),
        "start",
        "duration",
        "launch_id",
        pl.col("launch_id").alias("op_id"),
        "external_id",
    )
    return made.select(
        (pl.col(key) if key in made.columns else pl.lit(None)).cast(dtype).alias(key)
        for key, dtype in DEVICE_SCHEMA.items()
    )


def slowed_by_recording(trace: Trace) -> float:
    """How many times as long a recorded step takes; 1 where that was not measured, or is so little that it may be chance."""
    overhead = None if trace.manifest is None else trace.manifest.overhead()
    return overhead if overhead is not None and overhead >= FELT else 1.0


def _compiling(host: pl.DataFrame) -> pl.Series:
    """Which spans trace or compile code, or lie in one that does."""
    stack = kept_nesting(host)
    names = NameTable(host["name"])
    marks = names.matching(COMPILING_SPAN) & host["kind"].is_in(["op", "annotation"]).to_numpy()
    if not marks.any():
        return pl.Series(np.zeros(host.height, dtype=bool))
    return pl.Series(stack.nearest_ancestor(marks) >= 0)


def _self_pieces(nesting: Nesting) -> pl.DataFrame:
    """Cut each thread at every start and end; a piece belongs to the innermost operator open in it."""
    threads = np.concatenate([nesting.thread, nesting.thread])
    times = np.concatenate([nesting.start, nesting.end])
    order = np.lexsort((times, threads))
    threads, times = threads[order], times[order]
    owner = nesting.innermost_at(threads, times)
    nxt = np.append(times[1:], 0)
    same = np.append(threads[1:] == threads[:-1], np.False_)
    keep = same & (nxt > times) & (owner >= 0)
    return pl.DataFrame({"row": owner[keep], "start": times[keep], "duration": (nxt - times)[keep]})


def _without_waits(work: pl.DataFrame, nesting: Nesting, pieces: pl.DataFrame) -> pl.DataFrame:
    """The pieces without the hooks of autograd's nodes, with `waits`: an operator that queued a collective before, as Python's own do,
    waits for it; such a piece is cut where the last collective in it ends.
    """
    names = NameTable(work["name"])
    in_hook = names.matching(NODE_CALL)[pieces["row"].to_numpy()] & (pieces["duration"] >= HOOK_NS).to_numpy()
    pieces = kept(pieces, ~in_hook)
    ended = np.sort(nesting.end[names.matching(_ON_GLOO)])
    if not ended.size:
        return pieces.with_columns(waits=pl.lit(value=False))
    around = np.where(names.matching(_QUEUES), nesting.parent, -1)
    queued = np.full(work.height, np.iinfo(np.int64).max)
    np.minimum.at(queued, around[around >= 0], nesting.start[around >= 0])
    row, start, duration = (pieces[name].to_numpy() for name in ("row", "start", "duration"))
    last = np.searchsorted(ended, start + duration, side="right") - 1
    may = (last >= 0) & (queued[row] < start)
    waited = np.where(may, np.maximum(ended[last] - start, 0), 0)
    cut = {
        "row": np.repeat(row, 2),
        "start": np.column_stack([start, start + waited]).ravel(),
        "duration": np.column_stack([waited, duration - waited]).ravel(),
        "waits": np.tile([True, False], len(row)),
    }
    return pl.DataFrame(cut).filter(pl.col("duration") > 0)


def _within(rows: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Whether each row lies in a range on its own thread; ranges of one name do not nest."""
    if not ranges.height:
        return pl.Series([False] * rows.height)
    known = ranges.select(
        "process_id", "thread_id", "start", (pl.col("start") + pl.col("duration")).alias("until")
    )
    left = rows[["process_id", "thread_id", "start"]].with_row_index()
    joined = left.sort("start").join_asof(
        known.sort("start"),
        on="start",
        by=["process_id", "thread_id"],
        strategy="backward",
        check_sortedness=False,
    )
    return joined.sort("index").select((pl.col("start") < pl.col("until")).fill_null(value=False)).to_series()
