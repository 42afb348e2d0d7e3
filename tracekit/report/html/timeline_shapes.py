"""What a timeline draws, as one frame: layers, threads, streams and idle time of a window, in detail where it counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import Attribution, attribution
from tracekit.analyses.graph.build import dependencies
from tracekit.analyses.graph.joint import alone
from tracekit.analyses.graph.parts import bars_of, part_name, parts_of
from tracekit.analyses.idle.pieces import idle_pieces
from tracekit.analyses.layers.tracks import layer_tracks
from tracekit.analyses.scope import Scope, select
from tracekit.classes import dataclass
from tracekit.facts.idle_names import CAUSES, cause_name
from tracekit.groups import at_rows
from tracekit.names import clean
from tracekit.report.html.texts import bounded
from tracekit.report.html.timeline_detail import Detail
from tracekit.trace import Trace, one_of

__all__ = ["GROUPS", "Shapes", "shapes_of"]

GROUPS: Final = ("path", "idle", "streams", "layers", "threads", "python")
"""What lanes are of, from the top down; lanes of a group can be hidden together."""

_G: Final = {name: number for number, name in enumerate(GROUPS)}
_HOST_KINDS: Final = ("step", "annotation", "module", "op", "runtime", "sync")

SHAPE_SCHEMA: Final = {
    "group": pl.Int32,
    "lane": pl.String,
    "key": pl.Int64,  # order of the lanes of a group; equal ones by name
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.String,
    "kind": pl.String,
    "rank": pl.Int32,  # what is left out first, when there is too much: the highest
    "span_id": pl.Int64,
    "activity_id": pl.Int64,
    "link_span": pl.Int64,  # of an activity its launch call, of idle time what the host did meanwhile
    "link_activity": pl.Int64,  # of idle time the activity that ended it
    "layer_id": pl.Int64,
    "phase": pl.Int64,
    "method": pl.Int64,
    "note": pl.String,  # more about the cause of idle time, or what `timeline_detail.SUMMARY` says
}


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """`frame` has the columns of SHAPE_SCHEMA, times in ns from the trace's origin; `layers` is attribution's table."""

    frame: pl.DataFrame
    layers: pl.DataFrame
    low: int
    high: int


def shapes_of(trace: Trace, window: tuple[int, int], detail: Detail, *, path: bool = False) -> Shapes:
    """What touches the time that `detail` spans, cut to it, and the idle time of the `window` (ns from the trace's origin); with `path`
    also the critical path, if the steps have that window.
    """
    low, high = detail.low, detail.high
    scope = _windowed(select(trace, window="trace"), window, detail)
    attributed = attribution(scope)
    frames = [_conformed(frame) for frame in _layers(scope, attributed, detail)]
    frames.append(_conformed(_idle(scope, detail)))
    if path:
        frames.append(_conformed(_path(trace, window, detail)))
    if trace.has_device:
        frames.append(_conformed(_device(trace, attributed, detail)))
    # Where these are too many, nothing of lower rank is drawn: it need not become shapes.
    frames = [detail.longest(pl.concat(frames))]
    for python in (False, True):
        rest = replace(detail, most=detail.most - sum(frame.height for frame in frames))
        frames.append(_conformed(_host(trace, attributed, rest, python=python)))
    cut = pl.concat(frames).with_columns(pl.col("start", "end").clip(low, high))
    return Shapes(cut, attributed.layers, low, high)


def _windowed(scope: Scope, window: tuple[int, int], detail: Detail) -> Scope:
    """The scope of what is drawn. Its idle time is that of the window, as in the report, before the first activity too."""
    start, end = window
    rows = scope.overlapping
    drawn, inside = (_within(rows, *span) for span in ((detail.low, detail.high), (start, end)))
    return replace(scope, start=start, end=end, activities=drawn, overlapping=inside, _made={})


def _within(rows: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """The rows that touch this time; the frame itself, not a copy, when it is all of them."""
    wanted = (rows["end"] > low) & (rows["start"] < high)
    return rows if wanted.all() else rows.filter(wanted)


def _conformed(frame: pl.DataFrame) -> pl.DataFrame:
    missing = [
        pl.lit(None, kind).alias(name) for name, kind in SHAPE_SCHEMA.items() if name not in frame.columns
    ]
    return frame.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in SHAPE_SCHEMA.items())


def _layers(scope: Scope, attributed: Attribution, detail: Detail) -> list[pl.DataFrame]:
    tracks = layer_tracks(scope, attributed)
    names = attributed.layers.select("layer_id", pl.col("name"))
    threads = tracks.host.group_by("phase").agg(
        pl.struct("process_id", "thread_id").n_unique().alias("threads")
    )
    thread = pl.when(pl.col("threads") > 1).then(pl.format(" ({})", "thread_id")).otherwise(pl.lit(""))
    host = tracks.host.join(threads, on="phase").with_columns(
        pl.format("layers: {}{}", pl.col("phase").cast(pl.String), thread).alias("lane"),
        pl.col("phase").to_physical().cast(pl.Int64).alias("key"),
        pl.lit(_G["layers"]).alias("group"),
    )
    device = tracks.device.with_columns(
        pl.format("{}: layers", _stream()).alias("lane"), _device_key(2), pl.lit(_G["streams"]).alias("group")
    )
    tracks_ = [
        each.with_columns((pl.col("start") + pl.col("duration")).alias("end")) for each in (host, device)
    ]
    return [
        detail.thinned(frame, "lane")
        .join(names, on="layer_id", maintain_order="left")
        .with_columns(
            pl.lit("layer").alias("kind"),
            pl.lit(0).alias("rank"),
            pl.col("phase").to_physical().cast(pl.Int64),
        )
        for frame in tracks_
    ]


def _stream() -> pl.Expr:
    return pl.format(
        "device {}, stream {}", pl.col("device_id").fill_null(-1), pl.col("stream_id").fill_null(-1)
    )


def _device_key(part: int) -> pl.Expr:
    """The order of a device's lanes: its streams, each with its layers below it."""
    stream = pl.col("stream_id").fill_null(-1).clip(-1, 1 << 40)
    return (pl.col("device_id").fill_null(-1) * (1 << 50) + stream * 4 + part).alias("key")


def _host(trace: Trace, attributed: Attribution, detail: Detail, *, python: bool) -> pl.DataFrame:
    kinds = ("python",) if python else _HOST_KINDS
    spans = trace.host.select(
        *("process_id", "thread_id", "start", "span_id", "kind"),
        (pl.col("start") + pl.col("duration")).alias("end"),
    )
    spans = spans.filter(one_of("kind", *kinds))
    if python:  # the frames around all of it say nothing, and fill what is seen first
        spans = spans.filter(~((pl.col("start") <= detail.low) & (pl.col("end") >= detail.high)))
    rows = detail.thinned(spans, "process_id", "thread_id")
    rows = rows.with_columns(at_rows(trace.host["name"], rows["span_id"]))
    places = attributed.model.places(rows["span_id"].to_numpy())
    rows = rows.with_columns(
        pl.Series("layer_id", places.layer),
        pl.Series("phase", places.phase),
        pl.Series("method", places.method),
    )
    return (
        rows.join(_threads(trace), on=["process_id", "thread_id"], how="left", maintain_order="left")
        .with_columns(pl.len().over("process_id", "thread_id").alias("size"))
        .select(
            pl.lit(_G["python" if python else "threads"]).alias("group"),
            pl.format("Python · {}", "label").alias("lane") if python else pl.col("label").alias("lane"),
            -pl.col("size").cast(pl.Int64).alias("key"),
            "start",
            "end",
            pl.col("name").cast(pl.String),
            pl.col("kind").cast(pl.String),
            pl.lit(2 if python else 1).alias("rank"),
            "span_id",
            pl.when(pl.col("layer_id") >= 0).then("layer_id").alias("layer_id"),
            "phase",
            "method",
            "note",
        )
    )


def _threads(trace: Trace) -> pl.DataFrame:
    """`process_id`, `thread_id` and `label`: what the profile calls a thread, with its number where that is not unique."""
    named = (
        trace.host[["process_id", "thread_id"]]
        .unique()
        .join(trace.threads, on=["process_id", "thread_id"], how="left")
    )
    labels = [
        clean(bounded(name)) if name else f"thread {thread} of process {process}"
        for process, thread, name in named[["process_id", "thread_id", "name"]].iter_rows()
    ]
    named = named.with_columns(pl.Series("label", labels, dtype=pl.String))
    shared = pl.len().over("label") > 1
    label = pl.when(shared).then(pl.format("{} (thread {}, process {})", "label", "thread_id", "process_id"))
    return named.select("process_id", "thread_id", label.otherwise("label").alias("label"))


def _joined(pieces: pl.DataFrame) -> pl.DataFrame:
    """`device_id`, `start` and `end` of the pieces, where those side by side of one cause and place are one.

    `row` is the first piece of each and `longest` the longest.
    """
    same = ("gap_id", "cause", "layer_id", "phase", "frame", "dependency")
    new = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift()) for name in same)
    row = np.flatnonzero(pieces.select(new).to_series().to_numpy())
    longest, end = row, np.zeros(0, dtype=np.int64)
    if row.size:
        length = pieces["duration_ns"].to_numpy()
        end = np.maximum.reduceat(pieces["start"].to_numpy() + length, row)
        most = np.repeat(np.maximum.reduceat(length, row), np.diff(row, append=length.size))
        candidates = np.flatnonzero(length == most)
        longest = candidates[np.searchsorted(candidates, row)]
    columns = {"end": end, "row": row, "longest": longest}
    return pieces[["device_id", "start"]][row].with_columns(pl.Series(n, c) for n, c in columns.items())


def _idle(scope: Scope, detail: Detail) -> pl.DataFrame:
    every = idle_pieces(scope)
    rows = detail.thinned(_joined(every), "device_id")
    columns = every[["cause", "layer_id", "phase", "frame", "dependency", "ended_by"]][rows["row"]]
    pieces = pl.concat([rows, columns], how="horizontal")
    names = {cause: cause_name(cause) for cause in CAUSES}
    lane = (
        pl.lit("no operator runs, by cause")
        if scope.on_cpu
        else pl.format("device {}: idle, by cause", "device_id")
    )
    cause = pl.col("cause").cast(pl.String).replace_strict(names, return_dtype=pl.String)
    return pieces.select(
        pl.lit(_G["idle"]).alias("group"),
        lane.alias("lane"),
        pl.col("device_id").alias("key"),
        "start",
        "end",
        cause.alias("name"),
        pl.format("idle: {}", cause).alias("kind"),
        pl.lit(0).alias("rank"),
        at_rows(every["span_id"], rows["longest"]).alias("link_span"),
        pl.lit(None).alias("link_activity") if scope.on_cpu else pl.col("ended_by").alias("link_activity"),
        "layer_id",
        pl.col("phase").to_physical().cast(pl.Int64),
        pl.coalesce("note", pl.format("waited for {}", "dependency"), pl.format("in {}", "frame")).alias(
            "note"
        ),
    )


def _path(trace: Trace, window: tuple[int, int], detail: Detail) -> pl.DataFrame:
    scopes = (select(trace), select(trace, window="trace"))
    scope = next((one for one in scopes if (one.start, one.end) == window), None)
    if scope is None:
        return pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    bars = bars_of(parts_of(alone(dependencies(scope)))).with_columns(
        (pl.col("start") + pl.col("duration_ns")).alias("end"), pl.lit(0).alias("lane")
    )
    rows = detail.thinned(bars, "lane")
    names = {one: part_name(one) for one in bars["part"].unique()}
    name = pl.col("part").replace_strict(names, return_dtype=pl.String)
    works = pl.col("resource").is_in(["device", "processor"])
    return rows.select(
        pl.lit(_G["path"]).alias("group"),
        pl.lit("critical path").alias("lane"),
        pl.lit(0).alias("key"),
        "start",
        "end",
        name.alias("name"),
        pl.when(works).then("part").otherwise(pl.format("idle: {}", name)).alias("kind"),
        pl.lit(0).alias("rank"),
        pl.col("span_id").alias("link_span"),
        pl.coalesce("note", pl.format("of {}", "layer")).alias("note"),
    )


def _device(trace: Trace, attributed: Attribution, detail: Detail) -> pl.DataFrame:
    places = attributed.activities.select(
        "activity_id",
        "layer_id",
        pl.col("phase").to_physical().cast(pl.Int64),
        pl.col("method").to_physical().cast(pl.Int64),
    )
    rows = trace.device.select(
        *("activity_id", "device_id", "stream_id", "start", "name", "category", "launch_id"),
        (pl.col("start") + pl.col("duration")).alias("end"),
    )
    rows = detail.thinned(rows, "device_id", "stream_id")
    rows = rows.join(places, on="activity_id", how="left", maintain_order="left")
    return rows.with_columns(
        pl.lit(_G["streams"]).alias("group"),
        _stream().alias("lane"),
        _device_key(1),
        pl.col("name").cast(pl.String),
        pl.col("category").cast(pl.String).alias("kind"),
        pl.lit(0).alias("rank"),
        pl.col("launch_id").alias("link_span"),
    )
