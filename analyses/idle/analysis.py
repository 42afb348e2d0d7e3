"""Why each device was idle, by cause, and what each stream waited for, with HTA's split (DEFINITIONS §4).

The causes are those of `analyses.idle.causes`. Per stream: the gap between consecutive activities a, b on one stream is
start(b) − end(a), if that is positive. It is `host_wait` if b was launched after the end of a. Otherwise it is
`kernel_wait` if the gap is below the threshold (30 µs in HTA's code, 30 ns in its documentation), else `other`. The
first activity of a stream has no gap. If activities overlap, a is the one that ended last before b began. A gap before
an activity without a recorded launch is `unknown`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.idle.causes import IdleTables, idle_causes
from tracekit.analyses.idle.tables import longest_rows
from tracekit.analyses.result import TableView, no_launches
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.facts.units import NS_PER_US
from tracekit.groups import Groups, in_order, or_none, runs
from tracekit.spans import Int64Array, greatest_before, take
from tracekit.trace import Trace

__all__ = ["KERNEL_WAIT_NS", "TABLES", "Idle", "idle"]

KERNEL_WAIT_NS = 30 * NS_PER_US
"""Shorter gaps between queued activities are the time to start a kernel."""

CATEGORIES = ("host_wait", "kernel_wait", "other", "unknown")


def _by(column: str, what: str, *, opened: bool = False) -> TableView:
    return TableView(
        f"Idle time by {what}",
        f"{column} cause total_ns share{' open_share' if opened else ''}",
        titles={"share": "of idle time", "open_share": "open, of the window"},
        processor_title=f"Time outside operators by {what}",
    )


TABLES: Final = {
    "by_cause": TableView(
        "Idle time by cause",
        "device_id cause total_ns share gaps call",
        titles={"share": "of the window", "call": "mostly in"},
        processor_title="Time outside operators by cause",
        main=True,
    ),
    "by_call": TableView(
        "Idle time by call, where no single call holds most of it",
        "device_id cause call total_ns share",
        titles={"share": "of the cause"},
        processor_title="Time outside operators by call, where no single call holds most of it",
    ),
    "by_layer": _by("layer", "layer"),
    "by_operator": _by("operator", "operator"),
    "by_frame": _by("frame", "line of your code", opened=True),
    "by_range": TableView(
        "Idle time by your own ranges",
        "range cause total_ns share open_share",
        titles={"share": "of idle time", "open_share": "open, of the window"},
    ),
    "by_os_call": TableView(
        "Idle time outside recorded calls, by operating-system call",
        "os_call total_ns share calls",
        titles={"os_call": "OS call", "share": "of this time"},
    ),
    "by_function": TableView(
        "Idle time outside recorded calls, by sampled function", "function samples share"
    ),
    "device_gaps": TableView(
        "Longest gaps of a whole device, with their causes",
        (
            "device_id stream_id start duration_ns cause cause_ns operator layer frame call range "
            "dependency name activity_id"
        ),
        short="start duration_ns cause operator layer range call",
        titles={"duration_ns": "gap", "name": "ended by", "cause_ns": "of this cause"},
        processor_title="Longest stretches without an operator, with their causes",
    ),
    "streams": TableView(
        "Waiting per stream",
        ("device_id stream_id idle_ns host_wait_ns kernel_wait_ns other_ns unknown_ns gaps busy_ns"),
        short="device_id stream_id busy_ns idle_ns host_wait_ns kernel_wait_ns other_ns",
        processor_title="Waiting per thread",
    ),
    "gaps": TableView(
        "Longest gaps and the activities that ended them",
        "device_id stream_id start duration_ns category name activity_id",
        short="name stream_id start duration_ns category",
        titles={"duration_ns": "gap", "name": "ended by", "category": "reason"},
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Idle(IdleTables):
    """Why each device was idle, and what each stream waited for."""

    device_gaps: pl.DataFrame
    """The longest gaps of whole devices, as `IdleCauses.gaps`."""
    streams: pl.DataFrame
    """Per device and stream `idle_ns` and its parts `host_wait_ns`, `kernel_wait_ns`, `other_ns`, `unknown_ns`, which sum to
    it, the number of `gaps` and the stream's `busy_ns` (a sum of durations)."""
    gaps: pl.DataFrame
    """The longest gaps of streams: `start`, `duration_ns`, and the activity that ended each (`name`, `activity_id`,
    `category`).
    """
    device_idle_ns: int
    """The idle time of all devices."""
    idle_ns: int
    """The idle time of all streams. It can exceed the window, because a stream that waits while another works counts
    too.
    """
    host_wait_ns: int | None
    """The part of `idle_ns` in which streams waited for the host; None if no launch was captured."""


def idle(scope: Scope | Trace) -> Idle:
    """Idle time per stream and its split.

    >>> import tracekit
    >>> result = idle(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> parts = result.streams[["host_wait_ns", "kernel_wait_ns", "other_ns", "unknown_ns"]]
    >>> int(parts.sum_horizontal().sum()) == result.idle_ns
    True
    """
    return once(scope, _idle)


def _idle(scope: Scope) -> Idle:
    causes = idle_causes(scope)
    gaps = _gaps(scope)
    streams = _streams(gaps)
    total, unknown = int(streams["idle_ns"].sum()), int(streams["unknown_ns"].sum())
    host = None if total and unknown == total else int(streams["host_wait_ns"].sum())
    return Idle(
        answer=causes.answer,
        **{field.name: getattr(causes, field.name) for field in fields(IdleTables) if field.name in TABLES},
        device_gaps=causes.gaps,
        streams=streams,
        gaps=_longest(gaps),
        device_idle_ns=causes.idle_ns,
        idle_ns=total,
        host_wait_ns=host,
        not_captured=_not_captured(scope),
    )


class _Gaps(msgspec.Struct, frozen=True, eq=False):
    """The gaps of each stream. `rows` are the activities by stream and time, `stream` the number of each one's stream; `ended` are
    those that ended a gap, and beside them stand begin and length in ns of the gap, and its reason as a number into CATEGORIES.
    """

    rows: pl.DataFrame
    stream: Groups
    ended: Int64Array
    start: Int64Array
    length: Int64Array
    category: Int64Array


def _streams(gaps: _Gaps) -> pl.DataFrame:
    """The table of that name."""
    of, ended = gaps.stream, Groups(gaps.stream.of[gaps.ended], gaps.stream.keys)
    waits = {
        f"{name}_ns": ended.sums(gaps.length * (gaps.category == number))
        for number, name in enumerate(CATEGORIES)
    }
    return gaps.rows[list(_STREAM)][of.keys[0]].with_columns(
        idle_ns=ended.sums(gaps.length),
        **waits,
        gaps=ended.counts,
        busy_ns=of.sums(gaps.rows["duration"].to_numpy()),
    )


_STREAM: Final = ("device_id", "stream_id")


def _longest(gaps: _Gaps) -> pl.DataFrame:
    few = longest_rows(gaps.length, gaps.start)
    rows = gaps.rows[gaps.ended[few]]
    return pl.DataFrame(
        {
            "device_id": rows["device_id"],
            "stream_id": rows["stream_id"],
            "start": gaps.start[few],
            "duration_ns": gaps.length[few],
            "category": [CATEGORIES[number] for number in gaps.category[few]],
            "name": rows["name"].cast(pl.String),
            "activity_id": rows["activity_id"],
        },
        schema_overrides={"category": pl.String},
    )


def _gaps(scope: Scope) -> _Gaps:
    """The gaps of each stream, with the activity that ended each."""
    columns = [*_STREAM, "start", "end", "duration", "name", "activity_id", "launch_id"]
    rows = in_order(scope.activities[columns], *_STREAM, "start", "end")
    first = runs(*(or_none(rows[name]) for name in _STREAM))
    start, stream = rows["start"].to_numpy(), np.zeros(rows.height, dtype=np.int64)
    stream[first] = 1
    free = greatest_before(rows["end"].to_numpy(), first, np.iinfo(np.int64).max)
    ended = np.flatnonzero(start > free)
    start, free, launch = start[ended], free[ended], or_none(rows["launch_id"])[ended]
    late = (launch >= 0) & (take(scope.trace.host["start"].to_numpy(), launch) > free)
    category = np.select(
        [late | scope.on_cpu, launch < 0, start - free < KERNEL_WAIT_NS],
        [CATEGORIES.index(name) for name in ("host_wait", "unknown", "kernel_wait")],
        CATEGORIES.index("other"),
    )
    return _Gaps(rows, Groups(np.cumsum(stream) - 1, (first,)), ended, free, start - free, category)


def _not_captured(scope: Scope) -> str | None:
    if scope.on_cpu:
        return "no device activity; the tables show gaps between operators"
    return no_launches(scope, "so the kinds of waits are unknown")
