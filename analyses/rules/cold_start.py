"""The window holds first-time work: context creation, lazy loading of kernels, autotuning.

It shows as a launch or other API call of a ms or more while no device works (a launch that waits for room in a full
queue is as long, but then the device works), and as an allocation call that creates the context. At stake is the
idle time of the devices in those calls; it is not a cost of the steady state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracekit.analyses.rules.calls import CONTEXT_CREATION_NS, LONG_CALL_NS, calls_with_roles
from tracekit.analyses.rules.severity import all_idle
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.findings import Finding, Severity
from tracekit.intervals import IntervalSet
from tracekit.readers import flag_for

if TYPE_CHECKING:
    from tracekit.analyses.launches import Launches
    from tracekit.analyses.scope import Scope
    from tracekit.trace import Trace

__all__ = ["LEAST_SHARE", "check"]

LEAST_SHARE: Final = 0.05
"""A twentieth of the window is enough to falsify the other figures."""

_COPY: Final = r"(?i)mem(cpy|set)"


def check(trace: Trace, scope: Scope, result: Launches) -> Finding | None:
    """Fires when first-time calls keep the devices idle for `LEAST_SHARE` of the window."""
    if scope.on_cpu or not scope.duration or not result.calls.height:
        return None
    first_time = (
        pl.col("role").is_in(["launch", "other"])
        & ~pl.col("name").str.contains(_COPY)
        & (pl.col("duration") >= LONG_CALL_NS)
    ) | ((pl.col("role") == "allocation") & (pl.col("duration") >= CONTEXT_CREATION_NS))
    idle = all_idle(scope)
    calls = calls_with_roles(scope, result).filter(first_time)
    calls = calls.with_columns(
        pl.Series("idle", idle.coverage(calls["start"].to_numpy(), calls["end"].to_numpy()))
    )
    calls = calls.filter(pl.col("idle") > 0).sort("idle", "name", descending=[True, False])
    at_stake = (IntervalSet.of(calls["start"].to_numpy(), calls["end"].to_numpy()) & idle).measure
    if at_stake / scope.duration < LEAST_SHARE:
        return None
    severity: Severity = "warning"  # the run itself may be fine; the profile is what must change
    return Finding(
        id="cold_start",
        severity=severity,
        title=f"First-time work takes {format_share(at_stake / scope.duration)} of the time",
        evidence=(
            f"{format_count(calls.height)} API call{'s' if calls.height != 1 else ''} of {format_ns(LONG_CALL_NS)} or more "
            f"left the device idle for {format_ns(at_stake)}; the longest is {calls['name'][0]} with {format_ns(calls['duration'][0])}."
        ),
        advice=(
            "Profile the steady state: run some steps before recording, "
            f"{flag_for('warm-up', trace.meta.format)}."
        ),
        ns_at_stake=at_stake,
    )
