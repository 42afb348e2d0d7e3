"""Why each device was idle: every ns of idle time has one cause, one layer and one operator (DEFINITIONS §4).

For each maximal gap [g, h) of a device, let b be the activity that ends it. If b was launched after g, the host was
late. The part of the gap before the launch is split by the innermost span of the launching thread, and the rest, from
launch to start, is launch latency. If b was launched before g, it waited for another stream (dependency), or the gap is
below the threshold (kernel gap), or it is unexplained. Without a recorded launch, and after the device's last activity,
the cause is not captured. Time outside all spans is Python, also on threads of the autograd engine, or host code if the
trace shows no Python. While a thread of the autograd engine has nothing to run, the main thread counts, which has yet to call it.

Without a device, the time in which no operator runs replaces the idle time, and the thread that runs the steps replaces
the launching thread.
"""

from __future__ import annotations

import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.idle.calls import Calls
from tracekit.analyses.idle.gaps import device_gaps
from tracekit.analyses.idle.host_code import by_function, by_os_call, host_code, sampled_most
from tracekit.analyses.idle.pieces import PIECE_COLUMNS, idle_pieces
from tracekit.analyses.idle.tables import (
    by_cause,
    grouped,
    longest_gaps,
    open_frames,
    open_ranges,
    with_names,
    with_open_share,
)
from tracekit.analyses.result import Result, no_launches
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.facts.idle_names import cause_name
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.groups import any_known, or_none
from tracekit.trace import Trace

__all__ = ["IdleCauses", "IdleTables", "idle_causes"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IdleTables(Result):
    """The idle time of whole devices by cause: the time in which none of a device's streams worked."""

    by_cause: pl.DataFrame
    """`device_id`, `cause`, `total_ns`, `share` (of the device's window), `gaps`, and `call`, the innermost frame of Python code
    or API call that holds more than half of this time (null: none)."""
    by_call: pl.DataFrame | None
    """For causes without such a call, the few calls that hold more than half of the time together: `device_id`, `cause`, `call`,
    `total_ns`, `share` (of the cause's time on the device). None if there are none."""
    by_layer: pl.DataFrame
    """`layer` (null: in none) and `cause`, over all devices, with `total_ns` and `share` of the idle time."""
    by_operator: pl.DataFrame | None
    """The same by `operator`; None without a device."""
    by_frame: pl.DataFrame | None
    """The same by `frame` of the user's Python code, with `open_share`, the part of the window in which the frame was open. None if
    no frame is known."""
    by_range: pl.DataFrame | None
    """The same by `range`, the innermost user range, with or without launches in it, with `open_share`; numbers in names are `#`.
    None if no range is open.
    """
    by_os_call: pl.DataFrame | None
    """The time of the causes `python` and `host_code` by the open call of the operating system: `os_call` (null: none),
    `total_ns`, `share` of that time, `calls`. None if the profile has no such calls.
    """
    by_function: pl.DataFrame | None
    """The samples of that time by `function` (the innermost; null without a symbol): `samples`, `share`. None if the
    profile has no samples.
    """


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class IdleCauses(IdleTables):
    """The idle time of every device cut into pieces that have one cause each."""

    pieces: pl.DataFrame
    """`device_id`, `gap_id`, `start`, `duration_ns`, `cause`, `span_id` (the host span that made the device wait; null for
    none), `ended_by` (activity_id; null at the end of the window), `layer_id` (of `layers`), `op_id` (host.span_id of the
    innermost operator), `phase`, `frame` (the innermost frame of the user's own Python code, `file.py(line): function`; null
    where no stacks were recorded or none of the user's is open) and `dependency` (what was waited for). Times in ns. The
    pieces of a device sum to its `idle_ns` in `breakdown`."""
    gaps: pl.DataFrame
    """Each gap with its length `duration_ns`, its main `cause`, the `cause_ns` of that, the `operator`, `layer`, `frame`, `range`
    and `dependency` of the largest piece of that cause, the innermost `call` that holds more than half of the gap (of the ten
    longest), and the activity that ended it (`name`, `stream_id`, `activity_id`; null
    at the end of the window); longest first."""
    layers: pl.DataFrame
    """The layer table of the attribution."""
    idle_ns: int
    """The idle time of all devices."""


def idle_causes(scope: Scope | Trace) -> IdleCauses:
    """Idle time of the devices in the scope by cause.

    >>> import tracekit
    >>> result = idle_causes(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> int(result.pieces["duration_ns"].sum()) == result.idle_ns == int(result.by_cause["total_ns"].sum())
    True
    """
    return once(scope, _idle_causes)


def _idle_causes(scope: Scope) -> IdleCauses:
    trace = scope.trace
    owners = attribution(scope)
    gaps = device_gaps(scope)
    pieces = idle_pieces(scope)
    named = with_names(trace, owners, pieces)
    waits = host_code(trace, pieces)
    calls_ = Calls.of(owners.model.stack, or_none(pieces["span_id"]), scope.duration)
    sums, parts = by_cause(scope, pieces, calls_)
    ranges, frames = open_ranges(named), open_frames(owners.model.stack, named)
    calls, functions = by_os_call(trace, waits), by_function(trace, waits)
    scope.forget(device_gaps)  # as many as the activities, and not needed again
    return IdleCauses(
        answer=_answer(scope, sums, named) + _during(calls, functions),
        not_captured=_not_captured(scope, gaps),
        pieces=pieces,
        by_cause=sums,
        by_call=parts,
        by_layer=grouped(named, "layer"),
        by_operator=None if scope.on_cpu else grouped(named, "operator"),
        by_frame=with_open_share(scope, grouped(named, "frame"), frames) if frames.height else None,
        by_range=with_open_share(scope, grouped(named, "range", ranges), ranges) if ranges.height else None,
        by_os_call=calls,
        by_function=functions,
        gaps=longest_gaps(scope, gaps, named, calls_),
        layers=owners.layers,
        idle_ns=int(sums["total_ns"].sum()),
    )


# -- in words --------------------------------------------------------------------------------------


def _answer(scope: Scope, by_cause: pl.DataFrame, pieces: pl.DataFrame) -> str:
    total = int(by_cause["total_ns"].sum())
    if not total:
        return "An operator ran at all times." if scope.on_cpu else "No device was idle."
    sums = (
        by_cause.group_by(pl.col("cause").cast(PIECE_COLUMNS["cause"]))
        .agg(pl.col("total_ns").sum())
        .sort("total_ns", "cause", descending=[True, False])
    )
    parts = [
        f"{cause_name(cause)} {format_share(ns / total)}{_library(pieces, ns) if cause == 'library_call' else ''}"
        for cause, ns in sums.head(3).rows()
    ]
    who = (
        "No operator ran for"
        if scope.on_cpu
        else "The devices were idle for"
        if len(scope.device_ids) > 1
        else "The device was idle for"
    )
    return f"{who} {format_ns(total)}: {', '.join(parts)}."


def _library(pieces: pl.DataFrame, total: int) -> str:
    """The library function with half or more of the `total` time of library calls, in ns; empty if there is none."""
    calls = pieces.filter(pl.col("cause") == "library_call")
    calls = calls.group_by(pl.col("operator").cast(pl.String)).agg(pl.col("duration_ns").sum())
    name, ns = calls.sort("duration_ns", "operator", descending=[True, False]).row(0)
    return f" (most in {name})" if name is not None and 2 * ns >= total else ""


def _during(calls: pl.DataFrame | None, functions: pl.DataFrame | None) -> str:
    """What the host ran outside recorded calls; empty if the trace does not show it."""
    named = None if calls is None else calls.drop_nulls("os_call")
    clauses = []
    if named is not None and named.height:
        clauses.append(
            f"the host spent {format_share(float(named['share'].sum()))} of the time in operating-system calls, "
            f"most of it in {named['os_call'][0]}"
        )
    sampled = sampled_most(functions)
    if sampled is not None:
        function, share, count = sampled
        clauses.append(f"{format_share(share)} of {format_count(count)} samples show {function}")
    return f" Outside recorded calls, {', and '.join(clauses)}." if clauses else ""


def _not_captured(scope: Scope, gaps: pl.DataFrame) -> str | None:
    if scope.on_cpu:
        return "no device activity; the time in which no operator runs takes the place of idle time"
    if gaps.height and not any_known(gaps["launched"]):
        return no_launches(scope, "so the causes of idle time are unknown")
    return None
