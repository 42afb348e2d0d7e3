"""The part of a large trace that tracekit reads: as many whole steps around its middle as fit, with all work that they launched."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.facts.launch_apis import GRAPH_COPY
from tracekit.facts.step_names import STEP_PREFIX
from tracekit.groups import or_none
from tracekit.health import HealthLog
from tracekit.readers.common.store import FrameStore
from tracekit.trace import Excerpt

__all__ = ["take_excerpt"]

_TOLERANCE: Final = 3
"""If a sample of the starts says that a window is small enough, it may hold up to this many times the allowed rows."""

Times = npt.NDArray[np.int64]


def take_excerpt(store: FrameStore, path: Path, health: HealthLog) -> Excerpt | None:
    """Narrow an overflowed store to a window in time that holds about `most_rows` rows, and describe it; None for any other store.

    The store keeps host spans that touch the window, device activities that were launched in it or that run before the last
    of these ends, and the launches of all of them. For graphs that these activities replay, it also keeps the nodes and the
    host spans in which they were made, at any time. Times are as in the file. Raises UsageError, about the file `path`,
    if no window is small enough.
    """
    most_rows, total = store.most_rows, store.rows
    sample = store.sample.sorted() if most_rows is not None and store.overflowed else None
    if most_rows is None or sample is None or not sample.size:
        return None  # without a time, there is no part to choose
    starts, ends = _steps(store)
    low, high, steps = _window(starts, ends, sample, most_rows / total)
    launched = _launched_in(store, low, high)
    last = _last_end(store, launched, high)
    touching = (pl.col("start") < last) & (pl.col("start") + pl.col("duration").fill_null(0) > low)
    wanted = _correlations(store, touching | _is_in("correlation", launched))
    inside = (pl.col("start") >= low) & (pl.col("start") < high)
    crossing = (pl.col("start") < high) & (pl.col("start") + pl.col("duration").fill_null(0) > low)
    captures = _captures(store, touching | _is_in("correlation", launched), crossing | inside, most_rows)
    flow = (pl.col("time") >= low) & (pl.col("time") < high)
    kept = store.keep_only(
        {
            "host": lambda part: crossing | inside | _calls(part, wanted) | captures.enclosing(part),
            "device": lambda _: touching | _is_in("correlation", launched),
            "collectives": lambda _: crossing | inside,
            "kernel_collectives": lambda _: touching,
            "syncs": lambda _: touching,
            "memory": lambda _: inside,
            "counters": lambda _: inside,
            "flow_starts": lambda _: flow,
            "flow_ends": lambda _: flow,
            "ranges": lambda _: _spanning(low, high),
            "os_calls": lambda _: crossing | inside,
            "samples": lambda _: inside,
            "graph_nodes": lambda _: inside | _is_in("graph_node", captures.nodes),
        },
        _TOLERANCE * most_rows,
        path,
    )
    health.count("excerpt", total - kept, f"{kept} rows were kept")
    return Excerpt(
        start=low, end=high, rows=kept, total_rows=total, steps=steps, total_steps=len(np.unique(starts))
    )


def _steps(store: FrameStore) -> tuple[Times, Times]:
    """Starts and ends of the profiler's steps in order."""
    parts = [
        part.filter(pl.col("name").cast(pl.String).str.starts_with(STEP_PREFIX)).select(
            "start", (pl.col("start") + pl.col("duration")).alias("end")
        )
        for part in store.parts("host", ["name", "start", "duration"])
    ]
    if not parts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    steps = pl.concat(parts).drop_nulls().unique("start").sort("start")
    return steps["start"].to_numpy(), steps["end"].to_numpy()


def _window(starts: Times, ends: Times, sample: Times, share: float) -> tuple[int, int, int]:
    """Start and end of a window with this share of the rows, and its number of whole steps; 0 if it cuts a step."""
    count = min(starts.size, max(1, int(share * starts.size)))
    while count:
        first = (starts.size - count) // 2
        low, high = int(starts[first]), int(ends[first : first + count].max())
        inside = np.searchsorted(sample, high) - np.searchsorted(sample, low)
        if inside <= share * sample.size:
            return low, high, count
        count = count * 19 // 20  # there may be a million steps
    middle, half = sample.size // 2, max(1, int(share * sample.size / 2))
    low = int(sample[max(0, middle - half)])
    return low, max(low + 1, int(sample[min(sample.size - 1, middle + half)])), 0


def _launched_in(store: FrameStore, low: int, high: int) -> pl.Series:
    """The correlation ids of the host calls that start in the window."""
    ids = [
        part.filter((pl.col("start") >= low) & (pl.col("start") < high) & _is_known("correlation"))
        for part in store.parts("host", ["start", "correlation"])
        if "correlation" in part.columns
    ]
    return _unique(ids)


def _last_end(store: FrameStore, launched: pl.Series, least: int) -> int:
    ends = [
        part.filter(_is_in("correlation", launched))
        .select(pl.col("start") + pl.col("duration"))["start"]
        .max()
        for part in store.parts("device", ["start", "duration", "correlation"])
    ]
    return max([least, *(end for end in ends if isinstance(end, int))])


def _correlations(store: FrameStore, wanted: pl.Expr) -> pl.Series:
    columns = ["start", "duration", "correlation"]
    return _unique(
        [part.filter(wanted & _is_known("correlation")) for part in store.parts("device", columns)]
    )


@dataclass(frozen=True, slots=True)
class _Captures:
    """Replayed graph nodes, the times at which they were created, in order, and the threads that created them."""

    nodes: pl.Series
    times: Times
    threads: pl.Series

    def enclosing(self, part: pl.DataFrame) -> pl.Expr:
        """The host spans in which a node was made: spans that name a layer, and calls that only copy nodes."""
        if not self.times.size or "thread_id" not in part.columns:
            return pl.lit(value=False)
        start = or_none(part["start"], 0)
        end = start + or_none(part["duration"], 0)
        has_node = np.searchsorted(self.times, end, "right") > np.searchsorted(self.times, start, "left")
        kind, name = pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String)
        telling = ~kind.is_in(["step", "runtime"]) | name.str.contains(GRAPH_COPY)
        return (
            pl.lit(pl.Series(has_node))
            & pl.col("start").is_not_null()
            & telling
            & _is_in("thread_id", self.threads)
        )


_NONE: Final = _Captures(
    pl.Series("graph_node", [], dtype=pl.Int64),
    np.empty(0, dtype=np.int64),
    pl.Series("thread_id", [], dtype=pl.Int64),
)


def _captures(store: FrameStore, replayed: pl.Expr, kept: pl.Expr, most_rows: int) -> _Captures:
    """The creation of the nodes whose replays are kept; of no nodes if that would add half of the allowed rows."""
    columns = ["start", "duration", "correlation", "graph_node"]
    used = [
        part.filter(replayed).select("graph_node").drop_nulls().unique()
        for part in store.parts("device", columns)
        if "graph_node" in part.columns
    ]
    nodes = pl.concat(used)["graph_node"].unique() if used else pl.Series("graph_node", [], dtype=pl.Int64)
    parts = [part.filter(_is_in("graph_node", nodes)) for part in store.parts("graph_nodes")] if used else []
    rows = pl.concat(parts).drop_nulls(["start", "thread_id"]) if parts else pl.DataFrame()
    if not rows.height:
        return _NONE
    captures = _Captures(nodes, rows["start"].sort().to_numpy(), rows["thread_id"].unique())
    spans = ["start", "duration", "thread_id", "kind", "name"]
    added = sum(
        part.select((captures.enclosing(part) & ~kept).sum()).item() for part in store.parts("host", spans)
    )
    return captures if added + rows.height <= most_rows // 2 else _NONE


def _spanning(low: int, high: int) -> pl.Expr:
    """Ranges that touch the window; a range without an end touches it if it starts in it."""
    end = pl.col("start") + pl.col("duration").fill_null(0)
    return (pl.col("start") < high) & (
        (end > low) | (pl.col("duration").is_null() & (pl.col("start") >= low))
    )


def _calls(part: pl.DataFrame, wanted: pl.Series) -> pl.Expr:
    return _is_in("correlation", wanted) if "correlation" in part.columns else pl.lit(value=False)


def _unique(parts: list[pl.DataFrame]) -> pl.Series:
    if not parts:
        return pl.Series("correlation", [], dtype=pl.Int64)
    return pl.concat([part.select("correlation") for part in parts])["correlation"].unique()


def _is_known(column: str) -> pl.Expr:
    return pl.col(column).is_not_null() & (pl.col(column) != 0)


def _is_in(column: str, values: pl.Series) -> pl.Expr:
    return pl.col(column).is_in(values.implode()).fill_null(value=False)
