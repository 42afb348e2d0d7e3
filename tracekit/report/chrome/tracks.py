"""Tracks of layers, of idle time and of the critical path as events of the Chrome trace format, one JSON text each."""

from __future__ import annotations

import msgspec
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.layers.tracks import layer_tracks
from tracekit.analyses.scope import Scope, select
from tracekit.facts.capture_names import ENRICHED_CATEGORY
from tracekit.facts.idle_names import CAUSES, cause_name
from tracekit.limits import LONGEST_NAME
from tracekit.report.chrome.path import arrows, path_bars
from tracekit.trace import Trace

__all__ = ["FIRST_MARK", "micros", "tracks"]

FIRST_MARK = f'{{"ph":"M","cat":"{ENRICHED_CATEGORY}"'
"""How the first event begins; so a file that has the tracks is known."""

_FIRST_THREAD = 900_000_000
"""Tracks are threads of processes; the numbers of real ones are smaller, where a system has no namespaces of its own."""


def tracks(trace: Trace) -> tuple[list[str], dict[str, int]]:
    """The events, each as JSON, with the threads' names first; and how many bars of layers, pieces of idle time and bars and arrows of the
    critical path.
    """
    scope = select(trace, window="trace")
    layers = _layers(scope)
    idle = layers.clear() if scope.on_cpu else _idle(scope)
    path, links = path_bars(trace), arrows(trace)
    bars = pl.concat([layers, idle, path])
    threads = bars[["pid", "label", "sort"]].unique(maintain_order=True)
    threads = threads.with_columns(pl.Series("tid", _free_threads(trace, threads.height), dtype=pl.Int64))
    bars = bars.join(threads, on=["pid", "label", "sort"], how="left", maintain_order="left")
    lines = [*_names(threads), *_events(bars, trace.meta.origin_ns), *links]
    counts = {"layer bars": layers.height, "pieces of idle time": idle.height}
    return lines, counts | {"bars of the critical path": path.height, "arrows": len(links) // 2}


def _free_threads(trace: Trace, count: int) -> list[int]:
    used = set(trace.host["thread_id"].unique()) | set(trace.threads["thread_id"].unique())
    used |= set(trace.device["stream_id"].drop_nulls().unique())
    numbers = (
        number for number in range(_FIRST_THREAD, _FIRST_THREAD + count + len(used)) if number not in used
    )
    return [next(numbers) for _ in range(count)]


def _layers(scope: Scope) -> pl.DataFrame:
    attributed = attribution(scope)
    bars = layer_tracks(scope, attributed)
    table = attributed.layers[["layer_id", "path", "type", "name"]]
    several = (pl.struct("process_id", "thread_id").n_unique().over("phase") > 1) & (
        pl.col("thread_id").n_unique().over("process_id", "phase") > 1
    )
    phase = pl.format("layers ({})", pl.col("phase").cast(pl.String))
    host = bars.host.with_columns(
        pl.col("process_id").alias("pid"),
        pl.when(several).then(pl.format("{}, thread {}", phase, "thread_id")).otherwise(phase).alias("label"),
        (pl.col("phase").to_physical().cast(pl.Int64) - 100).alias("sort"),
    )
    device = bars.device.with_columns(
        pl.col("device_id").alias("pid"),
        pl.format("layers, stream {}", pl.col("stream_id").fill_null(-1)).alias("label"),
        pl.col("stream_id").fill_null(-1).alias("sort"),
    )
    frames = [
        frame.join(table, on="layer_id", how="left", maintain_order="left").select(
            *("pid", "label", "sort", "start", "duration", "name"),
            pl.struct("path", "type", pl.col("phase").cast(pl.String), "work_ns")
            .struct.json_encode()
            .alias("args"),
        )
        for frame in (host, device)
    ]
    return pl.concat(frames).filter(pl.col("pid").is_not_null())


def _idle(scope: Scope) -> pl.DataFrame:
    result = idle_causes(scope)
    name = pl.col("name").cast(pl.String).str.slice(0, LONGEST_NAME).alias("host")
    paths = result.layers.select("layer_id", pl.col("path").alias("layer"))
    rows = (
        result.pieces.sort("device_id", "start", maintain_order=True)
        .join(scope.trace.host.select("span_id", name), on="span_id", how="left", maintain_order="left")
        .join(paths, on="layer_id", how="left", maintain_order="left")
    )
    names = {cause: cause_name(cause) for cause in CAUSES}
    cause, phase, *places = (pl.col(of).cast(pl.String) for of in ("cause", "phase", "frame", "dependency"))
    details = pl.struct(cause, "host", "layer", phase, *places)
    return rows.select(
        pl.col("device_id").alias("pid"),
        pl.lit("idle, by cause").alias("label"),
        pl.lit(-1, pl.Int64).alias("sort"),
        "start",
        pl.col("duration_ns").alias("duration"),
        cause.replace_strict(names, return_dtype=pl.String).alias("name"),
        details.struct.json_encode().alias("args"),
    )


def _names(threads: pl.DataFrame) -> list[str]:
    return [
        f'{FIRST_MARK},"name":"{what}","pid":{pid},"tid":{tid},"args":{msgspec.json.encode(args).decode()}}}'
        for pid, label, sort, tid in threads[["pid", "label", "sort", "tid"]].iter_rows()
        for what, args in (("thread_name", {"name": label}), ("thread_sort_index", {"sort_index": sort}))
    ]


def _events(bars: pl.DataFrame, origin: int) -> list[str]:
    """Complete events, times in µs with three digits: exact to the ns."""
    distinct = bars["name"].unique()
    encoded = [msgspec.json.encode(name).decode() for name in distinct]
    names = pl.DataFrame(
        {"name": distinct, "encoded": encoded}, schema={"name": pl.String, "encoded": pl.String}
    )
    rows = bars.join(names, on="name", how="left", maintain_order="left").with_columns(
        pl.col("start") + origin
    )
    event = pl.concat_str(
        pl.lit(f'{{"ph":"X","cat":"{ENRICHED_CATEGORY}","name":'),
        "encoded",
        pl.format(
            ',"pid":{},"tid":{},"ts":{},"dur":{},"args":', "pid", "tid", micros("start"), micros("duration")
        ),
        "args",
        pl.lit("}"),
    )
    return rows.select(event).to_series().to_list()


def micros(column: str) -> pl.Expr:
    """A time in ns as the text of a number of µs, exact."""
    size = pl.col(column).abs()
    sign = pl.when(pl.col(column) < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.format("{}{}.{}", sign, size // 1000, (size % 1000).cast(pl.String).str.zfill(3))
