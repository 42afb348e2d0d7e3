"""Hardware counters were measured kernel by kernel, which serialises and replays them: times are not the run's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.analyses.counters.join import replayed
from tracekit.facts.units import format_count
from tracekit.findings import Finding

if TYPE_CHECKING:
    from tracekit.analyses.counters import Counters
    from tracekit.analyses.scope import Scope
    from tracekit.trace import Trace

__all__ = ["check"]


def check(trace: Trace, _scope: Scope, _result: Counters) -> Finding | None:
    """Fires when counters were measured over ranges (CUPTI's range profiler), not sampled."""
    ranges = replayed(trace.counters)
    if ranges is None:
        return None
    measured = ranges.select("name", "start").n_unique()
    return Finding(
        id="counter_replay",
        severity="info",
        title=f"Counters of {format_count(measured)} kernels were measured by replaying them",
        evidence=(
            f"{format_count(ranges.height)} counter values over ranges of single kernels; each kernel runs alone and as often "
            "as its counters need passes."
        ),
        advice=(
            "Read the counters here, and take times, overlap and idle from a second profile without "
            "profiler_metrics in experimental_config."
        ),
        ns_at_stake=None,
    )
