"""How complete a trace is: which records its file lost, and what that leaves uncertain.

The health of a trace lists defects of the file. Here they are weighed against what the window holds, for sentences about how
sure a figure is. A file is *broken* if records of unknown kind and number are missing: it ends too early, its profiler
dropped records, or 5 % of the launches have no activity. It is *thin* if somebody left records out: most operators that the
profiler numbered are missing. In both, idle time may be work whose record is missing.
"""

from __future__ import annotations

from typing import Final

import msgspec
import polars as pl

from tracekit.analyses.scope import Scope, once
from tracekit.missing import ABSURD_NS, LOST_SHARE, NumberedOperators, launch_calls, numbered_operators
from tracekit.trace import Trace

__all__ = ["BREAKS", "Completeness", "completeness"]

BREAKS: Final = ("truncated_file", "damaged_gzip", "oversized_event")
"""Defects after which nothing of the file was read."""

_UNREAD: Final = ("malformed_event", "event_without_time", "absurd_time")
_MENDED: Final = ("missing_duration", "negative_duration")
_UNANSWERED: Final = frozenset({"no_kernel", "lost_activity", "launch_without_activity"})
"""Without a defect of these kinds every launch has an activity, or was replayed to measure counters."""

_MANY: Final = 0.05
"""If more events than this part could not be read, what is missing can be anything."""


class Completeness(msgspec.Struct, frozen=True):
    """What is missing, as numbers of events unless said otherwise; 0 where nothing shows a loss."""

    events: int
    """Events of the file that were read."""
    breaks: str
    """The kind of defect at which reading stopped; empty if the file was read to its end."""
    unread: int
    """Events that could not be read, or whose time is missing or impossible."""
    mended: int
    """Events whose duration is missing or negative, and counts as 0 ns."""
    absurd: int
    """Device activities that are longer than 1 s."""
    absurd_share: float
    """Their part of the sum of all activities in the window."""
    early: int
    """Activities that start before their launch, since the clocks of host and device disagree."""
    mended_work: int
    """Activities of a device among them."""
    dropped: int
    """Records that the profiler says it dropped."""
    merged: bool
    """The file holds the traces of several ranks, as of `tracekit merge`."""
    stopped: bool
    """The profiler stopped early."""
    endless: int
    """Calls that last longer than all the rest of the trace."""
    unnamed: int
    """Rows without a name, because the file lacks their text."""
    collected: int
    """Events that the profiler collected and the file does not hold."""
    launches: int
    """Calls in the window that launch kernels, if any call of the trace has no activity; else 0."""
    unanswered: int
    """Those without an activity."""
    operators: NumberedOperators
    activities: int
    """Of all devices, in the whole trace."""
    device_names: tuple[str, ...]
    """The devices that the file describes."""
    empty_steps: int
    """The steps, if none of them launched anything, so that the window is the whole trace; else 0."""

    @property
    def lost_host(self) -> bool:
        """Whether records of the host may be missing, in a number that matters."""
        return (
            bool(self.breaks)
            or self.collected > 0
            or self.unread > _MANY * max(self.events, 1)
            or self.operators.thin
        )

    @property
    def broken(self) -> bool:
        """Whether records of unknown kind, or of a device, are missing or have no duration."""
        return (
            (self.lost_host and not self.operators.thin)
            or self.dropped > 0
            or self.stopped
            or self.mended_work > _MANY * self.activities
            or self.lost_work
        )

    @property
    def lost_work(self) -> bool:
        """Whether launches of the window have no activity, in a number that matters."""
        return self.unanswered > 0 and self.unanswered >= LOST_SHARE * self.launches

    @property
    def nameless(self) -> bool:
        """Whether so many rows lack their name that calls, kernels and ranges cannot be told apart."""
        return self.unnamed > _MANY * max(self.events, 1)

    @property
    def sure(self) -> bool:
        """Whether the trace can show what a device or the host waited for."""
        return not self.broken and not self.operators.thin and not self.nameless


def completeness(of: Scope | Trace) -> Completeness:
    """What the file of a trace lacks, weighed for a scope.

    >>> import tracekit
    >>> completeness(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).sure
    True
    """
    return once(of, _completeness)


def _completeness(scope: Scope) -> Completeness:
    trace = scope.trace
    counts: dict[str, int] = dict(trace.health[["kind", "count"]].rows())
    launches, answered = _launches(scope) if counts.keys() & _UNANSWERED else (0, 0)
    return Completeness(
        events=trace.meta.event_count,
        breaks=next((kind for kind in BREAKS if kind in counts), ""),
        unread=sum(counts.get(kind, 0) for kind in _UNREAD),
        mended=sum(counts.get(kind, 0) for kind in _MENDED),
        mended_work=int((trace.device["duration"] == 0).sum()) if counts.keys() & {*_MENDED} else 0,
        absurd=counts.get("absurd_duration", 0),
        absurd_share=_absurd_share(scope),
        early=counts.get("activity_before_launch", 0),
        dropped=counts.get("dropped_records", 0),
        merged="merged_ranks" in counts,
        stopped="stopped_early" in counts,
        endless=counts.get("endless_call", 0),
        unnamed=counts.get("unnamed", 0),
        collected=counts.get("fewer_events", 0),
        launches=launches,
        unanswered=launches - answered,
        operators=numbered_operators(trace.host)
        if "missing_operators" in counts
        else NumberedOperators(0, 0),
        activities=trace.device.height,
        empty_steps=_empty_steps(scope),
        device_names=tuple(dict.fromkeys(device.name for device in trace.meta.devices if device.name)),
    )


def _empty_steps(scope: Scope) -> int:
    of_steps = scope.activities.height - scope.activities["step"].null_count()
    return scope.steps.height if scope.window == "trace" and scope.activities.height and not of_steps else 0


def _absurd_share(scope: Scope) -> float:
    duration = scope.activities["duration"]
    total = int(duration.sum())
    return int(duration.filter(duration > ABSURD_NS).sum()) / total if total else 0.0


def _launches(scope: Scope) -> tuple[int, int]:
    """How many calls of the window launch kernels, and how many of them have an activity."""
    calls = launch_calls(scope.trace.host, scope.trace.device)
    if scope.duration > 0:
        calls = calls.filter((pl.col("start") >= scope.start) & (pl.col("start") < scope.end))
    return calls.height, int(calls["answered"].sum())
