"""Rules about calls that belong to the recording, not to the program: first-time work, and the profiler itself."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.launches import Launches
from tracekit.analyses.rules.idle_time import CONTEXT_CREATION_NS, LONG_CALL_NS, calls_with_roles
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, all_idle, longest
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import DRIVER_WORK, MODULE_LOADING
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.groups import distinct, kept, with_series
from tracekit.intervals import IntervalSet

__all__ = ["COLD_START", "PROFILER_OVERHEAD"]

# -- cold_start -------------------------------------------------------------------------------------

COLD_START_LEAST_SHARE: Final = 0.05
"""A twentieth of the window is enough to distort the other figures."""

_COPY: Final = r"(?i)mem(cpy|set)"
_MEASURED: Final = r"(?i)\b(measured?|timed)\b"
"""What programs call ranges of the passes after warm-up."""


def cold_start(scope: Scope, result: Launches) -> Evidence | None:
    """The window holds first-time work: context creation, lazy loading of kernels, autotuning.

    First-time work is a launch or other API call that takes 1 ms or more while no device works, or an allocation call that
    creates the context. (A launch that waits for room in a full queue takes as long, but then the device works.) At stake
    is the idle time of the devices in those calls, which is not a cost of the steady state.

    Fires when first-time calls keep the devices idle for `COLD_START_LEAST_SHARE` of the window.
    """
    if not result.calls.height:
        return None
    first_time = (
        pl.col("role").is_in(["launch", "other"])
        & ~pl.col("name").str.contains(_COPY)
        & (pl.col("duration") >= LONG_CALL_NS)
    ) | ((pl.col("role") == "allocation") & (pl.col("duration") >= CONTEXT_CREATION_NS))
    idle = all_idle(scope)
    calls = calls_with_roles(scope, result)
    calls = kept(calls, calls["duration"] >= LONG_CALL_NS)
    if not calls.height:
        return None
    calls = with_series(calls, calls["name"].cast(pl.String)).filter(first_time)
    taken = idle.coverage(calls["start"].to_numpy(), calls["end"].to_numpy())
    calls = kept(with_series(calls, pl.Series("idle", taken, dtype=pl.Int64)), taken > 0)
    calls = calls.sort("idle", "name", descending=[True, False])
    at_stake = (IntervalSet.of(calls["start"].to_numpy(), calls["end"].to_numpy()) & idle).measure
    if at_stake / scope.duration < COLD_START_LEAST_SHARE:
        return None
    return Evidence(
        title=f"First-time work takes {format_share(at_stake / scope.duration)} of the time",
        text=f"{count_of(calls.height, 'API call')} of {format_ns(LONG_CALL_NS)} or more "
        f"left the device idle for {format_ns(at_stake)}. {calls['name'][0]} left it idle longest; the call takes "
        f"{format_ns(calls['duration'][0])}.",
        ns_at_stake=at_stake,
        severity="warning",  # the run itself may be fine: only the profile must change
        advice=_of_ranges(scope),
        stretches=longest(calls, by="idle"),
    )


def _of_ranges(scope: Scope) -> Advice | None:
    """Advice that names the ranges which the program itself calls measured; None if there are none, or steps are selected."""
    host = scope.trace.host
    names = distinct(host["name"].filter(host["kind"] == "annotation")).cast(pl.String)
    words = names.str.extract(_MEASURED).drop_nulls().unique().sort()
    if scope.window == "steps" or not words.len():
        return None
    text = f"{COLD_START.advice.text}\nTo look only at what this program measured, report the trace with --step {words[0]}."
    return Advice(text, flags=COLD_START.advice.flags)


COLD_START = Rule(
    id="cold_start",
    analysis="launches",
    evidence=cold_start,
    runs="device",
    advice=Advice("Warm up: run some steps before you record, with {warm-up}.", flags=("--warmup",)),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
)


# -- profiler_overhead ------------------------------------------------------------------------------

PROFILER_OVERHEAD_LEAST_SHARE: Final = 0.02
"""Recording always costs time; from one part in fifty on, it distorts the other figures."""


def profiler_overhead(scope: Scope, _result: Launches) -> Evidence | None:
    """The profiler itself takes time: it has spans of its own (buffer flushes and requests, instrumentation) in the window.

    What the driver does while it is profiled (loading of modules, a full command buffer) is listed among these spans but
    is not the profiler's.

    Fires when the profiler's own spans cover `PROFILER_OVERHEAD_LEAST_SHARE` of the window.
    """
    rows = kept(scope.trace.host, scope.trace.host["kind"] == "overhead")
    if not rows.height:
        return None
    rows = rows.with_columns(
        pl.col("name").cast(pl.String), (pl.col("start") + pl.col("duration")).alias("end")
    )
    rows = rows.filter(~pl.col("name").str.contains(f"{MODULE_LOADING}|{DRIVER_WORK}"))
    rows = kept(rows, (rows["end"] > scope.start) & (rows["start"] < scope.end))
    taken = (
        IntervalSet.of(rows["start"].to_numpy(), rows["end"].to_numpy()).clip(scope.start, scope.end).measure
    )
    if not scope.duration or taken / scope.duration < PROFILER_OVERHEAD_LEAST_SHARE:
        return None
    most = (
        rows.group_by("name").agg(pl.col("duration").sum()).sort("duration", "name", descending=[True, False])
    )
    return Evidence(
        title=f"The profiler itself takes {format_share(taken / scope.duration)} of the time",
        text=f"{count_of(rows.height, 'profiler span')} took {format_ns(taken)}. "
        f"{most['name'][0]} took the most, {format_ns(most['duration'][0])}.",
        ns_at_stake=taken,
        stretches=longest(rows),
    )


PROFILER_OVERHEAD = Rule(
    id="profiler_overhead",
    analysis="launches",
    evidence=profiler_overhead,
    advice=Advice("Record less: {less}. Measure speed in a run without a profiler.", flags=("--warmup",)),
)
