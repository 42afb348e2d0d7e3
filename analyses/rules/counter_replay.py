"""Hardware counters were measured kernel by kernel, which serialises and replays them: times are not the run's."""

from __future__ import annotations

from tracekit.analyses.counters import Counters
from tracekit.analyses.counters.join import replayed
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count

__all__ = ["RULE"]


def evidence(scope: Scope, _result: Counters) -> Evidence | None:
    """Fires when counters were measured over ranges (CUPTI's range profiler), not sampled."""
    trace = scope.trace
    ranges = replayed(trace.counters)
    if ranges is None:
        return None
    measured = ranges.select("name", "start").n_unique()
    return Evidence(
        title=f"Counters of {format_count(measured)} kernels were measured by replaying them",
        text=f"{format_count(ranges.height)} counter values over ranges of single kernels; each kernel runs alone and as often "
        "as its counters need passes.",
    )


RULE = Rule(
    id="counter_replay",
    analysis="counters",
    evidence=evidence,
    advice=Advice(
        "Read the counters here, and take times, overlap and idle from a second profile without "
        "profiler_metrics in experimental_config.",
    ),
)
