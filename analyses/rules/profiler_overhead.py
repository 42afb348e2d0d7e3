"""The profiler itself takes time: its own spans (buffer flushes and requests, instrumentation) in the window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracekit.analyses.rules.severity import by_share
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.findings import Finding
from tracekit.intervals import IntervalSet
from tracekit.readers import flag_for

if TYPE_CHECKING:
    from tracekit.analyses.launches import Launches
    from tracekit.analyses.scope import Scope
    from tracekit.trace import Trace

__all__ = ["LEAST_SHARE", "check"]

LEAST_SHARE: Final = 0.02
"""A profile always costs something; from one part in fifty on it shows in the other figures."""


def check(trace: Trace, scope: Scope, _result: Launches) -> Finding | None:
    """Fires when the profiler's own spans cover `LEAST_SHARE` of the window."""
    rows = trace.host.filter(pl.col("kind") == "overhead").with_columns(
        pl.col("name").cast(pl.String), (pl.col("start") + pl.col("duration")).alias("end")
    )
    rows = rows.filter((pl.col("end") > scope.start) & (pl.col("start") < scope.end))
    taken = (
        IntervalSet.of(rows["start"].to_numpy(), rows["end"].to_numpy()).clip(scope.start, scope.end).measure
    )
    if not scope.duration or taken / scope.duration < LEAST_SHARE:
        return None
    most = (
        rows.group_by("name").agg(pl.col("duration").sum()).sort("duration", "name", descending=[True, False])
    )
    return Finding(
        id="profiler_overhead",
        severity=by_share(taken, scope.duration),
        title=f"The profiler itself takes {format_share(taken / scope.duration)} of the time",
        evidence=(
            f"{format_ns(taken)} in {format_count(rows.height)} spans of the profiler, most of it in {most['name'][0]} "
            f"({format_ns(most['duration'][0])}). Without a profiler the run is faster than this trace shows."
        ),
        advice=(
            f"Record less: {flag_for('less', trace.meta.format)}, and judge speed by a run without profiler."
        ),
        ns_at_stake=taken,
    )
