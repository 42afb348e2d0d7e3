"""Most of the device's idle time lies in a few long gaps, not in many short ones.

The expert rule `gpu_gaps` of Nsight Systems, for steps: NVIDIA's threshold, 500 ms, is longer than most steps, so a gap is
long here when it takes `LEAST_OF_STEP` of the mean step, or of the window where there are no steps. As there, the time
before the device's first activity and after its last is no gap, and what the profiler itself took is not counted. Each long gap
is one event with one cause, which a look at the timeline shows; the rules of short gaps (`host_bound_launches`,
`short_operators`) are about the others. Silent where synchronisation, data loading, allocation or compilation causes most of
it: these have rules of their own. Looks at the device on which long gaps take most.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.causes import cause_name, idle_causes
from tracekit.analyses.rules.idle_time import told_elsewhere
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.intervals import IntervalSet

__all__ = ["RULE"]

LEAST_OF_STEP: Final = 0.05
"""A twentieth of a step: too long for the launch of anything, and seldom enough to be looked at one by one."""
LEAST_OF_IDLE: Final = 0.5
"""With less than half of the idle time the long gaps are not what the device's idle time is made of."""

_PROFILER: Final = "profiler_overhead"


def evidence(scope: Scope, _result: Idle) -> Evidence | None:
    """Fires when long gaps take `WARNING_SHARE` of the window and `LEAST_OF_IDLE` of the device's idle time."""
    steps = max(scope.steps.height, 1) if scope.window == "steps" else 1
    least = LEAST_OF_STEP * scope.duration / steps
    gaps = _gaps(scope).filter(pl.col("ns") >= least)
    if not gaps.height:
        return None
    device, total = (
        gaps.group_by("device_id")
        .agg(pl.col("ns").sum())
        .sort("ns", "device_id", descending=[True, False])
        .row(0)
    )
    idle = scope.intervals(device).complement(scope.start, scope.end).measure
    if total < WARNING_SHARE * scope.duration or total < LEAST_OF_IDLE * idle:
        return None
    mine = gaps.filter(pl.col("device_id") == device).sort("ns", "start", descending=[True, False])
    if told_elsewhere(scope, device, IntervalSet.of(mine["start"].to_numpy(), mine["end"].to_numpy())):
        return None
    longest = mine.row(0, named=True)
    at_stake = bounded(total, scope)
    return Evidence(
        title=f"{_count(mine.height)} of the device {'takes' if mine.height == 1 else 'take'} {format_share(total / scope.duration)} of the time",
        text=f"Device {device} idles {format_ns(total)} in gaps of {format_ns(least)} or more, {format_share(total / idle)} of its idle "
        f"time{_cause(scope, mine)}. The longest, {format_ns(longest['ns'])}, begins {format_ns(longest['start'])} into the "
        f"trace{_step_at(scope, longest['start'])}.",
        ns_at_stake=at_stake,
    )


def _gaps(scope: Scope) -> pl.DataFrame:
    """Gaps between activities: `device_id`, `gap_id`, `start`, `end` and `ns`, the time in it that is not the profiler's."""
    pieces = idle_causes(scope).pieces
    own = pl.col("cause").cast(pl.String) != _PROFILER
    return (
        pieces.group_by("device_id", "gap_id")
        .agg(
            pl.col("start").min(),
            (pl.col("start") + pl.col("duration_ns")).max().alias("end"),
            pl.col("duration_ns").filter(own).sum().alias("ns"),
            pl.col("ended_by").first(),
        )
        .filter(pl.col("ended_by").is_not_null() & (pl.col("start") > scope.start))
    )


def _cause(scope: Scope, gaps: pl.DataFrame) -> str:
    """The cause of more than half of the time, if one is known."""
    pieces = idle_causes(scope).pieces.join(gaps, on=["device_id", "gap_id"], how="semi")
    sums = pieces.group_by(pl.col("cause").cast(pl.String)).agg(pl.col("duration_ns").sum())
    cause, ns = sums.sort("duration_ns", "cause").row(-1)
    known = cause not in ("not_captured", "unexplained", _PROFILER) and 2 * ns > sums["duration_ns"].sum()
    return f", mostly {cause_name(cause)}" if known else ""


def _step_at(scope: Scope, time: int) -> str:
    inside = scope.steps.filter((pl.col("start") <= time) & (pl.col("end") > time))
    return f", during {inside['name'][0]}" if inside.height else ""


def _count(gaps: int) -> str:
    return "One long gap" if gaps == 1 else f"{format_count(gaps)} long gaps"


RULE = Rule(
    id="long_gaps",
    analysis="idle",
    evidence=evidence,
    runs="device",
    advice=Advice(
        "Look at what the host does there: tracekit idle --causes lists the gaps with their cause and "
        "where the host was, tracekit view --html shows what runs around them.",
    ),
    restates=True,
)
