"""The maximal idle gaps of each device, the activity that ended each, and the activity on a device that it waited for."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.scope import Scope
from tracekit.facts.units import NS_PER_US
from tracekit.groups import (
    any_known,
    are_known,
    at_rows,
    codes_of,
    distinct,
    falling,
    groups,
    in_order,
    kept,
    none_to_null,
    or_none,
    runs,
)
from tracekit.spans import greatest_before, ranges, take
from tracekit.trace import SYNC_SCHEMA, Schema, Trace, empty

__all__ = [
    "AT_ONCE_NS",
    "KERNEL_GAP_NS",
    "STREAM_WAIT",
    "YOUNG_LAUNCH_NS",
    "device_gaps",
    "stream_waits",
    "wait_events",
    "waits_for",
]

KERNEL_GAP_NS = 5 * NS_PER_US
"""A shorter gap before an activity that was launched in time is the time that the device takes to start it."""

STREAM_WAIT: Final = "Stream Wait Event"
"""What records of a stream's wait for an event are called."""
_LATEST = np.iinfo(np.int64).max
YOUNG_LAUNCH_NS = 10 * NS_PER_US
"""A launch takes about this long to reach an idle device; until then it explains the wait."""
AT_ONCE_NS = 1_500
"""An activity begins within about a microsecond after the event that it waited for."""


def device_gaps(scope: Scope) -> pl.DataFrame:
    """One row per maximal gap: `gap_id`, `device_id`, `start`, `end`, and of the activity that ends it `ended_by`,
    `stream_id`, `launch_id`, `launched` and `returned` (begin and end of its launch call).

    Of several activities that end a gap at one time it is the one that was launched first. At the end of the window
    there is none: `ended_by` is null, and since the host launched nothing until then, `launched` is the window's end,
    and `launch_id` the device's last launch, whose thread tells what the host did; null if no launch is recorded.
    """
    return scope.once(device_gaps, lambda: _device_gaps(scope))


def _device_gaps(scope: Scope) -> pl.DataFrame:
    rows, host = scope.overlapping, scope.trace.host
    device, start = rows["device_id"].to_numpy(), rows["start"].to_numpy()
    lasts, ids, launch = (
        rows["duration"].to_numpy() > 0,
        rows["activity_id"].to_numpy(),
        or_none(rows["launch_id"]),
    )
    called = np.where(launch >= 0, take(host["start"].to_numpy(), launch), _LATEST)
    parts = []
    for number in scope.device_ids:
        gaps = scope.intervals(number).complement(scope.start, scope.end)
        mine = np.flatnonzero((device == number) & lasts)
        gap = np.searchsorted(gaps.ends, start[mine])
        ends = (
            gaps.ends[np.minimum(gap, len(gaps) - 1)] == start[mine]
            if gaps
            else np.zeros(mine.size, dtype=bool)
        )
        mine, gap = mine[ends], gap[ends]
        order = falling(gap, called[mine], ids[mine])
        first = np.full(len(gaps), -1, dtype=np.int64)
        found = groups(gap[order])
        first[found.keys[0]] = mine[order][found.first]
        launched = np.flatnonzero((device == number) & (launch >= 0))
        latest = called[launched] == called[launched].max(initial=-_LATEST)
        parts.append(
            (
                np.full(len(gaps), number),
                gaps.starts,
                gaps.ends,
                first,
                np.full(len(gaps), launch[launched][latest].max(initial=-1)),
            )
        )
    number_, starts, ends_, first, last = (
        np.concatenate([np.zeros(0, dtype=np.int64), *(part[at] for part in parts)]) for at in range(5)
    )
    at_end = (first < 0) & (last >= 0)
    by = np.where(at_end, last, take(launch, first))
    begins = take(host["start"].to_numpy(), by)
    times = {"launched": begins, "returned": begins + take(host["duration"].to_numpy(), by)}
    ended = none_to_null(first)
    return pl.DataFrame(
        {
            "gap_id": np.arange(starts.size),
            "device_id": number_,
            "start": starts,
            "end": ends_,
            "ended_by": at_rows(rows["activity_id"], ended),
            "stream_id": at_rows(rows["stream_id"], ended),
            "launch_id": none_to_null(by),
            **{
                name: pl.Series(np.where(at_end, ends_, time)).set(pl.Series(by < 0), None)
                for name, time in times.items()
            },
        }
    )


def _launched(trace: Trace, launch: pl.Series) -> list[pl.Series]:
    """`launched` and `returned`: begin and end of each launch call (a row of the host frame), null for none."""
    begin = at_rows(trace.host["start"], launch)
    return [begin.alias("launched"), (begin + at_rows(trace.host["duration"], launch)).alias("returned")]


def waits_for(scope: Scope, gaps: pl.DataFrame) -> pl.DataFrame:
    """For each gap (rows of `device_gaps` whose activity was launched in time) the activity that its end waited for.

    `gap_id` and `source` (activity_id), only where there is one: an activity of another stream or device that an
    event in the stream made it wait for (`cuda_sync` rows), that ended after the stream's own last activity and at
    most `KERNEL_GAP_NS` before the gap's end, unless its own launch, not 10 µs old
    then, explains the wait as well. Without such rows in the file: the activity of another stream with
    whose end the gap began, when the one that ended the gap had been launched 10 µs, and its stream free
    `KERNEL_GAP_NS`, before or longer.
    """
    rows = _ready(scope, gaps)
    if scope.trace.syncs is not None and any_known(scope.trace.syncs["wait_on_stream"]):
        return _by_events(scope, rows)
    return _by_time(scope, rows)


def stream_waits(scope: Scope, activities: pl.DataFrame) -> pl.DataFrame:
    """For each of these activities (rows of the scope) the activity of another stream at whose end it started.

    `activity_id`, `ready` and `start` (ns; from when on it waited, and until when), and `source` (activity_id). It waited
    if it had been launched 10 µs before, and its stream was free. That it waited for the source, an event in its stream
    shows where the trace has such events (`waits_for`); else that it starts within 1.5 µs after the end of the source.
    """
    activities = kept(activities, are_known(activities["launch_id"]))
    if not activities.height:
        return empty(_STREAM_WAITS)
    rows = activities.select(
        pl.col("activity_id").alias("gap_id"),
        pl.col("activity_id").alias("ended_by"),
        "device_id",
        "stream_id",
        "launch_id",
        pl.col("start").alias("end"),
        at_rows(scope.trace.host["start"], activities["launch_id"]).alias("launched"),
    )
    ready = pl.max_horizontal(pl.col("launched") + YOUNG_LAUNCH_NS, "free")
    rows = _ready(scope, rows).with_columns(ready.alias("ready"))
    rows = kept(rows, rows["ready"] < rows["end"])
    if not rows.height:
        return empty(_STREAM_WAITS)
    events = scope.trace.syncs is not None and any_known(scope.trace.syncs["wait_on_stream"])
    sources = _by_events(scope, rows) if events else _at_once(scope, rows)
    waited = rows.select(pl.col("gap_id").alias("activity_id"), "ready", pl.col("end").alias("start"))
    return waited.join(sources.rename({"gap_id": "activity_id"}), on="activity_id", how="inner")


_STREAM_WAITS: Final[Schema] = dict.fromkeys(("activity_id", "ready", "start", "source"), pl.Int64)


def _at_once(scope: Scope, rows: pl.DataFrame) -> pl.DataFrame:
    """`gap_id` and `source`: the activity of another stream of the device that ended last, at most 1.5 µs before `end`."""
    ended = scope.overlapping[["device_id", "end", "stream_id", "activity_id"]]
    ended = ended[falling(ended["end"].to_numpy(), ended["activity_id"].to_numpy())]
    ended = ended.rename({"end": "done", "stream_id": "on", "activity_id": "source"})
    parts = []
    for stream in distinct(rows["stream_id"]):
        mine = kept(rows, rows["stream_id"] == stream).sort("end")
        parts.append(
            mine.join_asof(
                kept(ended, ended["on"] != stream),
                left_on="end",
                right_on="done",
                by="device_id",
                strategy="backward",
                tolerance=AT_ONCE_NS,
                check_sortedness=False,
            )
        )
    found = pl.concat(parts) if parts else rows.with_columns(pl.lit(None, dtype=pl.Int64).alias("source"))
    return kept(found[["gap_id", "source"]], are_known(found["source"]))


def _ready(scope: Scope, gaps: pl.DataFrame) -> pl.DataFrame:
    """The gaps with `free` and `before`: the end and the launch of the stream's own last activity."""
    free, before = scope.once(_lines, lambda: _lines(scope.trace))
    return gaps.hstack([at_rows(free, gaps["ended_by"]), at_rows(before, gaps["ended_by"])])


def _lines(trace: Trace) -> tuple[pl.Series, pl.Series]:
    """For each activity of the devices `free` and `before`: the end and the launch of its stream's last activity before it."""
    columns = ["activity_id", "device_id", "stream_id", "start", "duration", "launch_id"]
    line = in_order(trace.device[columns], "device_id", "stream_id", "start", "duration")
    first, launch = (
        runs(*(or_none(line[name]) for name in ("device_id", "stream_id"))),
        or_none(line["launch_id"]),
    )
    ends = line["start"].to_numpy() + line["duration"].to_numpy()
    calls = np.where(launch >= 0, take(trace.host["start"].to_numpy(), launch), -_LATEST)
    alone = np.zeros(line.height, dtype=bool)
    alone[first] = True
    unlaunched = alone.copy()
    unlaunched[1:] |= launch[:-1] < 0
    place = np.empty(line.height, dtype=np.int64)
    place[line["activity_id"].to_numpy()] = np.arange(line.height)
    free, before = (
        pl.Series(name, greatest_before(times, first, -_LATEST)[place]).set(pl.Series(none[place]), None)
        for name, times, none in (("free", ends, alone), ("before", calls, unlaunched))
    )
    return free, before


def _by_events(scope: Scope, gaps: pl.DataFrame) -> pl.DataFrame:
    waits = wait_events(scope.trace)
    pairs = _waits_of(gaps, waits) if gaps.height and waits.height else gaps.clear()
    if not pairs.height:
        return pl.DataFrame(schema={"gap_id": pl.Int64, "source": pl.Int64})
    sources = _sources(scope.trace)
    devices = sources[["source_device"]].unique()
    candidates = (
        pairs.join(devices, how="cross")
        .filter(
            (pl.col("source_device") != pl.col("device_id"))
            | (pl.col("wait_on_stream") != pl.col("stream_id"))
        )
        .sort("recorded")
        .join_asof(
            sources,
            left_on="recorded",
            right_on="call",
            by=["source_device", "wait_on_stream"],
            strategy="backward",
            check_sortedness=False,
        )
        .filter(pl.col("source").is_not_null())
    )
    explains = (
        (pl.col("done") > pl.col("free").fill_null(pl.col("done") - 1))
        & (pl.col("done") <= pl.col("end"))
        & (pl.col("end") - pl.col("done") < KERNEL_GAP_NS)
        & (
            (pl.col("done") - pl.col("launched") >= YOUNG_LAUNCH_NS)
            | (pl.col("end") - pl.col("done") < AT_ONCE_NS)
        )
    )
    return (
        candidates.filter(explains)
        .sort("gap_id", "done", "source")
        .unique("gap_id", keep="last", maintain_order=True)
        .select("gap_id", "source")
    )


def _sources(trace: Trace) -> pl.DataFrame:
    """Activities that others may wait for: `source`, `source_device`, `wait_on_stream`, when each was `done`, and launched
    (`call`), in the order of that.
    """
    return (
        trace.device.select(
            pl.col("activity_id").alias("source"),
            pl.col("device_id").alias("source_device"),
            pl.col("stream_id").alias("wait_on_stream"),
            (pl.col("start") + pl.col("duration")).alias("done"),
        )
        .with_columns(_launched(trace, trace.device["launch_id"])[0].alias("call"))
        # Work without a launch record was launched after what runs before it on its stream.
        .sort("source_device", "wait_on_stream", "done", maintain_order=True)
        .with_columns(
            pl.col("call")
            .cum_max()
            .forward_fill()
            .over("source_device", "wait_on_stream")
            .fill_null(-_LATEST)
        )
        .sort("call", maintain_order=True)
    )


def wait_events(trace: Trace, *, nameless: bool = False) -> pl.DataFrame:
    """Waits of streams for events: `device_id`, `stream_id`, `wait_on_stream`, `waited` and `recorded` (host times). Those whose records
    do not name the stream waited for are left out; `nameless` gives these alone.
    """
    syncs = trace.syncs if trace.syncs is not None else pl.DataFrame(schema=SYNC_SCHEMA)
    named = (syncs["wait_on_stream"] >= 0).fill_null(value=False)
    if nameless:
        named = ~named & (syncs["name"].cast(pl.String) == STREAM_WAIT)
    syncs = kept(syncs, named & (syncs["stream_id"] >= 0))
    if not syncs.height:
        return empty(_WAITS)
    rows = (
        syncs[["device_id", "stream_id", "wait_on_stream", "correlation", "wait_on_correlation", "start"]]
        .with_row_index("wait")
        .join(_owners(trace), on=["device_id", "stream_id"], how="left")
    )
    calls = trace.host[["process_id", "correlation", "start"]].rename({"start": "at"})
    calls = kept(calls, (trace.host["kind"] == "runtime").to_numpy() & are_known(calls["correlation"]))
    waited = _called(rows, calls, "correlation", "waited_at")
    recorded = _called(rows, calls, "wait_on_correlation", "recorded_at")
    return (
        rows.join(waited, on="wait", how="left")
        .join(recorded, on="wait", how="left")
        .select(
            "device_id",
            "stream_id",
            "wait_on_stream",
            pl.coalesce("waited_at", "start").alias("waited"),
            pl.coalesce("recorded_at", "waited_at", "start").alias("recorded"),
        )
        .sort("device_id", "stream_id", "waited")
    )


_WAITS: Final[Schema] = dict.fromkeys(
    ("device_id", "stream_id", "wait_on_stream", "waited", "recorded"), pl.Int64
)


def _owners(trace: Trace) -> pl.DataFrame:
    """`device_id`, `stream_id` and `owner`, the process that launched into the stream; null where several did."""
    launched = trace.device[["device_id", "stream_id", "process_id"]].drop_nulls()
    owner = pl.when(pl.col("process_id").n_unique() == 1).then(pl.col("process_id").first())
    return launched.group_by("device_id", "stream_id").agg(owner.alias("owner"))


def _called(rows: pl.DataFrame, calls: pl.DataFrame, key: str, at: str) -> pl.DataFrame:
    """`wait` and (as `at`) the start of the call that each row names under `key`.

    A correlation id belongs to a process, which the rows do not name: of several calls it is that of the process
    that owns the stream, and then the latest before the row.
    """
    own = (pl.col("process_id") == pl.col("owner")).fill_null(value=False)
    return (
        rows.select("wait", "owner", "start", pl.col(key).alias("correlation"))
        .join(calls, on="correlation", how="inner")
        .sort(own, pl.col("at") <= pl.col("start"), "at")
        .unique("wait", keep="last", maintain_order=True)
        .select("wait", pl.col("at").alias(at))
    )


def _waits_of(gaps: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Each gap with every wait that its stream was given between the last two launches into it."""
    rows = gaps[["gap_id", "device_id", "stream_id", "end", "launched", "free", "before"]]
    streams = waits[["device_id", "stream_id"]].unique()
    rows = rows.join(streams, on=["device_id", "stream_id"], how="semi").sort("device_id", "stream_id")
    parts = []
    for (device, stream), mine in rows.group_by("device_id", "stream_id", maintain_order=True):
        own = kept(waits, (waits["device_id"] == device) & (waits["stream_id"] == stream))
        at = own["waited"].to_numpy()
        low = np.searchsorted(at, or_none(mine["before"], -_LATEST), side="left")
        high = np.searchsorted(at, mine["launched"].to_numpy(), side="right")
        which, wait = ranges(low, np.maximum(high - low, 0))
        parts.append(pl.concat([mine[which], own[["wait_on_stream", "recorded"]][wait]], how="horizontal"))
    return pl.concat(parts) if parts else rows.clear()


def _by_time(scope: Scope, gaps: pl.DataFrame) -> pl.DataFrame:
    ready = pl.max_horizontal(pl.col("launched") + YOUNG_LAUNCH_NS, pl.col("free") + KERNEL_GAP_NS)
    gaps = gaps.filter(ready <= pl.col("start"), pl.col("end") - pl.col("start") < KERNEL_GAP_NS)
    if not gaps.height:
        return pl.DataFrame(schema={"gap_id": pl.Int64, "source": pl.Int64})
    ended = scope.overlapping["device_id", "end", "stream_id", "activity_id"]
    # Of millions of activities few end where such a gap begins.
    order, begins = np.argsort(ended["end"].to_numpy(), kind="stable"), codes_of(gaps["start"].to_numpy())[1]
    low, high = (
        np.searchsorted(ended["end"].to_numpy(), begins, side=side, sorter=order)
        for side in ("left", "right")
    )
    ended = ended[order[ranges(low, high - low)[1]]]
    last = (
        ended.sort("device_id", "end", "activity_id")
        .unique(["device_id", "end"], keep="first", maintain_order=True)
        .rename({"end": "start", "stream_id": "on", "activity_id": "source"})
    )
    return (
        gaps.join(last, on=["device_id", "start"], how="inner")
        .filter(pl.col("on") != pl.col("stream_id"))
        .select("gap_id", "source")
    )
