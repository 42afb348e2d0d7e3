"""Does the host launch work fast enough: delays, queues, short kernels (DEFINITIONS §6).

Launch delay = device start − launch start. Queue delay = device start − launch end, if positive. A kernel is short
below 10 µs. An activity is launch-bound if it is shorter than its share of the launch call, whose duration all
activities of the call share equally (such as the kernels of a CUDA graph). The queue of a stream holds the activities
that were launched and have not started.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.counters.analysis import how_to_record_device
from tracekit.analyses.result import AGGREGATES, NotCaptured, Result, TableView, no_launches
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.facts.launch_apis import ALLOCATION, LAUNCH, SYNCHRONISATION
from tracekit.facts.units import NS_PER_US, count_of, format_ns, format_share
from tracekit.groups import Groups, at_rows, falling, in_order, kept, or_none, runs, text_codes
from tracekit.spans import BoolArray, Int64Array, greatest_before, take
from tracekit.statistics import duration_aggregates
from tracekit.trace import Trace

__all__ = ["SHORT_NS", "TABLES", "Launches", "launches"]

SHORT_NS = 10 * NS_PER_US
_HOST_LATE = 0.5
"""From here on most work begins when the host gets to it, not when the device is free."""

_FELT: Final = 0.2
"""From this share of the window on, the idle time before late launches counts against them, however few they are."""

_LITTLE: Final = 0.01
"""Below this share of the window late launches cost nothing."""

_MEASURES = ("launch_delay", "queue_delay", "launch_call", "device_time")

TABLES: Final = {
    "delays": TableView(
        "Delays",
        f"measure {AGGREGATES}",
        short="measure count median_ns mean_ns p95_ns max_ns",
        hidden="total_ns",
    ),
    "by_name": TableView(
        "Launches by name",
        "name count mean_device_ns mean_call_ns mean_delay_ns launch_bound_share",
        main=True,
    ),
    "queues": TableView("Queue length per stream", "device_id stream_id mean_length max_length"),
    "queue": TableView("Queue length over time", "device_id stream_id time length", short="", series=True),
    "calls": TableView("Host API calls", f"name role {AGGREGATES}", short="name role count total_ns mean_ns"),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Launches(Result):
    """How the host launches work, and when the device starts it."""

    delays: pl.DataFrame
    """One row each for `launch_delay`, `queue_delay`, `launch_call` and `device_time` with the usual duration columns in ns."""
    by_name: pl.DataFrame
    """Per activity name the count, mean device time, mean launch call, mean launch delay and the share that is launch-bound."""
    queues: pl.DataFrame
    """Per device and stream the mean (over time) and greatest queue length."""
    queue: pl.DataFrame
    """The length over time (`device_id`, `stream_id`, `time`, `length`), one row a change."""
    calls: pl.DataFrame
    """Host API calls by name with `role`: launch, synchronisation, allocation, other."""
    activities: int
    """Device activities with a known launch."""
    short: int
    """Kernels below 10 µs, with and without a known launch."""
    short_share: float | None
    """Their share of all kernels; None without kernels."""
    launch_bound_share: float | None
    """The share of linked activities that is launch-bound; None when no launch is known."""
    host_late_share: float | None
    """The share of linked activities whose launch began only after their stream had run dry; the others were queued in time."""


def launches(scope: Scope | Trace) -> Launches:
    """Launch statistics of the scope.

    >>> import tracekit
    >>> launches(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).activities
    0
    """
    return once(scope, _launches)


def _launches(scope: Scope) -> Launches:
    rows = _linked(scope)
    count = rows.start.size
    bound = int(rows.bound.sum())
    kernels = scope.activities["duration"].filter(scope.activities["kind"] == "kernel")
    short = int((kernels < SHORT_NS).sum())
    short_share = short / kernels.len() if kernels.len() else None
    queue, queues = _queue(rows)
    late = float(rows.late.sum()) / count if count else None
    return Launches(
        answer=_answer(rows, bound, short_share, late, _idle_before_late(scope)),
        not_captured=_not_captured(scope, count),
        delays=_delays(rows),
        by_name=_by_name(rows),
        queues=queues,
        queue=queue,
        calls=_calls(scope, rows),
        activities=count,
        short=short,
        short_share=short_share,
        launch_bound_share=bound / count if count else None,
        host_late_share=late,
    )


class _Linked(msgspec.Struct, frozen=True, eq=False):
    """Activities with a launch call, by stream (`first` has the first row of each) and time. Times in ns; a delay of −1 is not known."""

    streams: pl.DataFrame
    first: Int64Array
    name: pl.Series
    start: Int64Array
    launch: Int64Array
    call_start: Int64Array
    device_time: Int64Array
    launch_call: Int64Array
    launch_delay: Int64Array
    queue_delay: Int64Array
    bound: BoolArray
    late: BoolArray


def _linked(scope: Scope) -> _Linked:
    """Activities with a launch call, and the delays of each."""
    host = scope.trace.host
    rows = scope.activities[["device_id", "stream_id", "start", "end", "launch_id", "name", "duration"]]
    rows = kept(rows, at_rows(host["kind"], rows["launch_id"]) == "runtime")
    rows = in_order(rows, "device_id", "stream_id", "start", "end")
    launch, start, length, end = (or_none(rows[name]) for name in ("launch_id", "start", "duration", "end"))
    called, took = (take(host[name].to_numpy(), launch) for name in ("start", "duration"))
    first = runs(*(or_none(rows[name]) for name in ("device_id", "stream_id")))
    dry = greatest_before(end, first, np.iinfo(np.int64).min)
    delay = start - called
    return _Linked(
        streams=rows[["device_id", "stream_id"]],
        first=first,
        name=rows["name"],
        start=start,
        launch=launch,
        call_start=called,
        device_time=length,
        launch_call=took,
        # Where the clocks of host and device disagree (`activity_before_launch`), the delay is unknown.
        launch_delay=np.maximum(delay, -1),
        queue_delay=np.maximum(delay - took, 0),
        # exact in integers: duration < call / n
        bound=length * np.bincount(launch)[launch] < took,
        late=called > dry,
    )


def _idle_before_late(scope: Scope) -> float:
    """The share of the window in which a device was idle and what ended that was launched only meanwhile; the mean of the devices."""
    device, start, end, launch = (
        or_none(scope.activities[name]) for name in ("device_id", "start", "end", "launch_id")
    )
    order = falling(device, start, end)
    device, start, end, launch = device[order], start[order], end[order], launch[order]
    first = runs(device)
    whole = scope.duration * first.size
    if whole <= 0:
        return 0.0
    dry = greatest_before(end, first, scope.start)
    late = (launch >= 0) & (take(scope.trace.host["start"].to_numpy(), launch) > dry) & (start > dry)
    return int((start - dry)[late].sum()) / whole


def _delays(rows: _Linked) -> pl.DataFrame:
    # A queue delay exists only where it is positive; zero means that the device was already on it. A delay may be unknown.
    parts = []
    for measure in _MEASURES:
        times = getattr(rows, measure)
        chosen = pl.DataFrame({measure: times[times > (0 if measure == "queue_delay" else -1)]})
        parts.append(chosen.select(pl.lit(measure).alias("measure"), *duration_aggregates(measure)))
    return pl.concat(parts)


def _by_name(rows: _Linked) -> pl.DataFrame:
    code, names = text_codes(rows.name)
    of = Groups(code, (np.arange(len(names)),))
    known, bound = (
        np.bincount(code[which], minlength=len(names)) for which in (rows.launch_delay >= 0, rows.bound)
    )
    delays = of.sums(np.maximum(rows.launch_delay, 0))
    table = pl.DataFrame(
        {
            "name": pl.Series(names, dtype=pl.String),
            "count": of.counts,
            "mean_device_ns": of.sums(rows.device_time) / of.counts,
            "mean_call_ns": of.sums(rows.launch_call) / of.counts,
            "mean_delay_ns": pl.Series(delays / np.maximum(known, 1)).set(pl.Series(known == 0), None),
            "launch_bound_share": bound / of.counts,
        }
    )
    return table.sort("count", "name", descending=[True, False])


def _queue(rows: _Linked) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables `queue` and `queues`."""
    started, called = rows.start, np.minimum(rows.call_start, rows.start)
    times, lengths, ever = [started[:0]], [started[:0]], list[int]()
    for begin, end in pairwise([*rows.first.tolist(), started.size]):
        both = np.concatenate([called[begin:end], started[begin:end]])
        order = np.argsort(both, kind="stable")  # what is nearly in order is sorted fastest by merging
        time, length = both[order], np.cumsum(np.where(order < end - begin, 1, -1))
        last = np.append(time[1:] != time[:-1], True)
        time, length = time[last], length[last]
        changed = np.diff(length, prepend=0) != 0  # changes at one time are one change
        if not changed.any():  # nothing ever waited
            continue
        ever.append(begin)
        times.append(time[changed])
        lengths.append(length[changed])
    # Means over time: each length counts as long as it lasted.
    lasted = [np.diff(time) for time in times[1:]]
    waited = [int((length[:-1] * last).sum()) for length, last in zip(lengths[1:], lasted, strict=True)]
    whole = [int(last.sum()) for last in lasted]
    streams = np.array(ever, dtype=np.int64)
    queues = rows.streams[streams].with_columns(
        mean_length=pl.Series(waited, dtype=pl.Int64) / pl.Series(whole, dtype=pl.Int64),
        max_length=pl.Series([int(length.max()) for length in lengths[1:]], dtype=pl.Int64),
    )
    of = np.repeat(streams, np.array([time.size for time in times[1:]], dtype=np.int64))
    queue = rows.streams[of].with_columns(time=np.concatenate(times), length=np.concatenate(lengths))
    return queue, queues


def _calls(scope: Scope, linked: _Linked) -> pl.DataFrame:
    rows = scope.host("runtime", columns=["name", "start", "duration"])
    if scope.window == "trace" and linked.start.size:
        # Calls that were over before the first launch of the window set the process up; they are not its cost.
        first = int(linked.call_start.min())
        rows = kept(rows, rows["start"] + rows["duration"] > first)
    name = pl.col("name").cast(pl.String)
    role = (
        pl.when(name.str.contains(SYNCHRONISATION))
        .then(pl.lit("synchronisation"))
        .when(name.str.contains(LAUNCH))
        .then(pl.lit("launch"))
        .when(name.str.contains(ALLOCATION))
        .then(pl.lit("allocation"))
        .otherwise(pl.lit("other"))
    )
    grouped = rows.group_by("name").agg(*duration_aggregates())
    return grouped.with_columns(name, role.alias("role")).sort("total_ns", "name", descending=[True, False])


def _answer(rows: _Linked, bound: int, short_share: float | None, late: float | None, idle: float) -> str:
    count = rows.start.size
    if not count or late is None:
        return "No launch of device work was recorded."
    calls = int(np.count_nonzero(np.bincount(rows.launch)))
    verdict = (
        f"{'The device waits for the host: ' if idle >= _LITTLE else ''}{format_share(late)} of the activities were launched only after "
        "their stream had run dry"
        if late >= _HOST_LATE
        else f"Most launches are early enough: {format_share(1 - late)} of the activities were queued before their stream ran dry"
    )
    if late >= _HOST_LATE and idle < _LITTLE:
        verdict += f", but the device was idle for less than {format_share(_LITTLE)} of the time before them"
    elif late < _HOST_LATE and idle >= _FELT:
        verdict += f". Before the others, the device was idle for {format_share(idle)} of the time"
    return (
        f"{verdict}. {count_of(calls, 'call')} launched {count_of(count, 'activity', 'activities')}. "
        f"{format_share(bound / count)} are shorter than their launch call, and "
        f"{format_share(short_share)} of the kernels take less than {format_ns(SHORT_NS)}."
    )


def _not_captured(scope: Scope, count: int) -> NotCaptured | str | None:
    if scope.on_cpu:
        return NotCaptured("no device activity", how_to_record_device(scope.trace))
    return None if count else no_launches(scope)
