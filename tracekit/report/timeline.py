"""One step as shapes to draw: spans of every thread, activities of every stream, launches, and idle gaps.

Plain columns of numbers, so that fifty thousand shapes stay small: per lane `starts` (each relative to the one
before it), `durations`, `depths`, and numbers of `names` and `kinds`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.facts.units import format_count
from tracekit.intervals import IntervalSet
from tracekit.report.model import Step, Window
from tracekit.report.text import clean
from tracekit.spans import nest
from tracekit.trace import Trace, one_of

__all__ = ["MAX_SHAPES", "timeline"]

MAX_SHAPES: Final = 50_000
"""More would make the page slow to load and to move; the shortest shapes are left out first."""

_HOST_KINDS: Final = ("step", "annotation", "module", "op", "runtime", "sync")
_IDLE: Final = "idle"
_COLUMNS: Final = ["lane", "start", "end", "name", "kind", "link", "span_id", "rank"]

Frame = pl.DataFrame


def timeline(trace: Trace, window: Window, *, limit: int = MAX_SHAPES) -> dict[str, Any] | None:
    """The shapes of one step, or of the whole window when it has no steps; None when there is nothing to draw.

    The step is the one of median length. Keys: `title`, `note` (what was left out, or an empty text), `origin_ns`,
    `span_ns`, `names`, `kinds`, and `lanes`, each with its `label`, `group` (host, device or idle) and columns.
    `links` of a lane hold, for each device activity, the global number of the shape that launched it, or −1.
    Shapes are numbered through all lanes in order. Times are ns from `origin_ns`.
    """
    step = _middle(window.steps)
    low, high = (step.start_ns, step.end_ns) if step else _extent(trace, window)
    device = _device(trace, low, high)
    high = max([high, *device.select(pl.col("end").max()).to_series().drop_nulls().to_list()])
    host = _host(trace, low, high)
    every = pl.concat([host, device, _idle(device)])
    if not every.height or high <= low:
        return None
    shown = every
    if every.height > limit:
        shown = every.with_columns((pl.col("end") - pl.col("start")).alias("length"))
        shown = shown.sort("rank", "length", descending=[False, True]).head(limit).drop("length")
    note = _note(every.height, shown.height, trace)
    return {
        "title": step.name if step else "the whole window",
        "note": note,
        "origin_ns": low,
        "span_ns": high - low,
        **_packed(shown, trace, low),
    }


def _middle(steps: tuple[Step, ...]) -> Step | None:
    ordered = sorted(steps, key=lambda step: step.end_ns - step.start_ns)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def _extent(trace: Trace, window: Window) -> tuple[int, int]:
    """The window, and the host spans that launched its activities."""
    if not trace.has_device:
        return window.start_ns, window.end_ns
    launches = trace.device["launch_id"].drop_nulls()
    starts = trace.host["start"].gather(launches)
    return min([window.start_ns, *starts.to_list()]), window.end_ns


def _device(trace: Trace, low: int, high: int) -> Frame:
    """Activities that were launched in the time, or without a known launch started in it."""
    calls = trace.host.select(pl.col("span_id").alias("launch_id"), pl.col("start").alias("launched"))
    rows = trace.device.join(calls, on="launch_id", how="left", maintain_order="left")
    at = pl.coalesce("launched", "start")
    rows = rows.filter((at >= low) & (at < high) & (pl.col("device_id").is_not_null()))
    return rows.select(
        pl.format("device {}, stream {}", "device_id", "stream_id").alias("lane"),
        "start",
        (pl.col("start") + pl.col("duration")).alias("end"),
        pl.col("name").cast(pl.String),
        pl.col("category").cast(pl.String).alias("kind"),
        pl.col("launch_id").alias("link"),
        pl.lit(None, dtype=pl.Int64).alias("span_id"),
        pl.lit(0, dtype=pl.Int32).alias("rank"),
    )


def _host(trace: Trace, low: int, high: int) -> Frame:
    """Spans that touch the time, cut to it. Python frames are left out: they are too many to be read."""
    end = pl.col("start") + pl.col("duration")
    rows = trace.host.filter(one_of("kind", *_HOST_KINDS) & (pl.col("start") < high) & (end > low))
    return rows.select(
        pl.format("thread {} of process {}", "thread_id", "process_id").alias("lane"),
        pl.col("start").clip(lower_bound=low),
        end.clip(upper_bound=high).alias("end"),
        pl.col("name").cast(pl.String),
        pl.col("kind").cast(pl.String),
        pl.lit(None, dtype=pl.Int64).alias("link"),
        "span_id",
        pl.lit(1, dtype=pl.Int32).alias("rank"),
    )


def _idle(device: Frame) -> Frame:
    """The gaps of each device between its first and its last activity."""
    frames = [device.clear()]
    owner = device["lane"].str.extract(r"^(device -?\d+)")
    for name in owner.unique().sort().to_list():
        rows = device.filter(owner == name)
        starts, ends = rows["start"].to_numpy(), rows["end"].to_numpy()
        gaps = IntervalSet.window(int(starts.min()), int(ends.max())) - IntervalSet.of(starts, ends)
        frames.append(
            pl.DataFrame(
                {
                    "lane": [f"{name}, idle"] * gaps.starts.size,
                    "start": gaps.starts,
                    "end": gaps.ends,
                    "name": [_IDLE] * gaps.starts.size,
                    "kind": [_IDLE] * gaps.starts.size,
                    "link": pl.Series([None] * gaps.starts.size, dtype=pl.Int64),
                    "span_id": pl.Series([None] * gaps.starts.size, dtype=pl.Int64),
                    "rank": pl.Series([2] * gaps.starts.size, dtype=pl.Int32),
                },
                schema=device.schema,
            )
        )
    return pl.concat(frames)


def _note(found: int, shown: int, trace: Trace) -> str:
    words = []
    if shown < found:
        words.append(
            f"{format_count(shown)} of {format_count(found)} shapes are drawn; the shortest spans of the host are left out."
        )
    if "stacks" in trace.meta.captured:
        words.append("Python frames are left out.")
    return " ".join(words)


def _packed(shapes: Frame, trace: Trace, origin: int) -> dict[str, Any]:
    shapes = shapes.with_columns(_group().alias("group"))
    order = {"host": 0, "idle": 1, "device": 2}
    busiest = shapes.group_by("lane", "group").agg((pl.col("end") - pl.col("start")).sum().alias("time"))
    lanes = sorted(
        busiest.rows(), key=lambda row: (order[row[1]], -row[2] if row[1] == "host" else 0, row[0])
    )
    ranks = {lane: number for number, (lane, _, _) in enumerate(lanes)}
    shapes = shapes.with_columns(pl.col("lane").replace_strict(ranks, return_dtype=pl.Int64).alias("order"))
    shapes = shapes.with_columns((pl.col("start") - pl.col("end")).alias("negative")).sort(
        "order", "start", "negative"
    )
    names, kinds = shapes["name"].unique(maintain_order=True), shapes["kind"].unique(maintain_order=True)
    # an activity points to the place at which its launch call is drawn
    place = shapes.with_row_index("place").filter(pl.col("span_id").is_not_null()).select("span_id", "place")
    shapes = shapes.join(place, left_on="link", right_on="span_id", how="left", maintain_order="left")
    shapes = shapes.with_columns(pl.Series("depth", _depths(shapes)))
    number = {
        "name": {name: index for index, name in enumerate(names.to_list())},
        "kind": {kind: index for index, kind in enumerate(kinds.to_list())},
    }
    shapes = shapes.with_columns(
        pl.col(column).replace_strict(table, return_dtype=pl.Int64) for column, table in number.items()
    )
    threads = _thread_names(trace)
    packed = [
        _lane(threads.get(lane, lane), group, rows, origin)
        for (lane, group, _), rows in zip(
            lanes, shapes.partition_by("order", maintain_order=True), strict=True
        )
    ]
    return {"names": [clean(name) for name in names.to_list()], "kinds": kinds.to_list(), "lanes": packed}


def _group() -> pl.Expr:
    return (
        pl.when(pl.col("kind") == _IDLE)
        .then(pl.lit("idle"))
        .when(pl.col("lane").str.starts_with("thread"))
        .then(pl.lit("host"))
        .otherwise(pl.lit("device"))
    )


def _depths(shapes: Frame) -> npt.NDArray[np.int64]:
    """How deep each shape lies in its lane; activities that overlap partly share a line."""
    lane = shapes["order"].to_numpy()
    return nest(lane, shapes["start"].to_numpy(), shapes["end"].to_numpy()).depth()


def _lane(label: str, group: str, rows: Frame, origin: int) -> dict[str, Any]:
    starts = rows["start"].to_numpy() - origin
    lane: dict[str, Any] = {
        "label": label,
        "group": group,
        "starts": np.diff(starts, prepend=0).tolist(),
        "durations": (rows["end"] - rows["start"]).to_list(),
        "names": rows["name"].to_list(),
        "kinds": rows["kind"].to_list(),
        "depths": rows["depth"].to_list(),
    }
    if group == "device":
        lane["links"] = rows["place"].cast(pl.Int64).fill_null(-1).to_list()
    return lane


def _thread_names(trace: Trace) -> dict[str, str]:
    """What the profile calls each thread; a lane's key is otherwise its numbers."""
    return {
        f"thread {thread} of process {process}": clean(name) if name else f"thread {thread}"
        for process, thread, name in trace.threads.select("process_id", "thread_id", "name").rows()
    }
