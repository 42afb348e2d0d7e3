"""The window holds first-time work: context creation, lazy loading of kernels, autotuning.

It shows as a launch or other API call of a ms or more while no device works (a launch that waits for room in a full
queue is as long, but then the device works), and as an allocation call that creates the context. At stake is the
idle time of the devices in those calls; it is not a cost of the steady state.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.launches import Launches
from tracekit.analyses.rules.calls import CONTEXT_CREATION_NS, LONG_CALL_NS, calls_with_roles
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, all_idle
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.intervals import IntervalSet

__all__ = ["RULE"]

LEAST_SHARE: Final = 0.05
"""A twentieth of the window is enough to falsify the other figures."""

_COPY: Final = r"(?i)mem(cpy|set)"


def evidence(scope: Scope, result: Launches) -> Evidence | None:
    """Fires when first-time calls keep the devices idle for `LEAST_SHARE` of the window."""
    if not result.calls.height:
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
    return Evidence(
        title=f"First-time work takes {format_share(at_stake / scope.duration)} of the time",
        text=f"{format_count(calls.height)} API call{'s' if calls.height != 1 else ''} of {format_ns(LONG_CALL_NS)} or more "
        f"left the device idle for {format_ns(at_stake)}; the longest is {calls['name'][0]} with {format_ns(calls['duration'][0])}.",
        ns_at_stake=at_stake,
        severity="warning",  # the run itself may be fine; the profile is what must change,
    )


RULE = Rule(
    id="cold_start",
    analysis="launches",
    evidence=evidence,
    runs="device",
    advice=Advice(
        "Profile the steady state: run some steps before recording, {warm-up}.",
        flags=("--warmup",),
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
)
