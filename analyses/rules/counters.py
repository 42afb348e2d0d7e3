"""Rules about hardware counters and Nsight Compute's metrics."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.counters import Counters
from tracekit.analyses.counters.analysis import linked, replayed
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count

__all__ = ["COUNTER_REPLAY", "NCU_COVERAGE"]

# -- counter_replay ---------------------------------------------------------------------------------


def counter_replay(scope: Scope, _result: Counters) -> Evidence | None:
    """Hardware counters were measured kernel by kernel, which serialises and replays them: times are not the run's.

    Fires when counters were measured over ranges (CUPTI's range profiler), not sampled.
    """
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


COUNTER_REPLAY = Rule(
    id="counter_replay",
    analysis="counters",
    evidence=counter_replay,
    advice=Advice(
        "Read the counters here, and take times, overlap and idle from a second profile without "
        "profiler_metrics in experimental_config."
    ),
)


# -- ncu_coverage -----------------------------------------------------------------------------------


def ncu_coverage(scope: Scope, _result: Counters) -> Evidence | None:
    """Nsight Compute's table is not of this program, or not of this part of it: its kernels are not those of the trace.

    Fires when kernels that Nsight Compute measured are not in the trace, or no launch of them can be told apart.
    """
    trace = scope.trace
    counts = dict(trace.health.select("kind", "count").rows())
    absent, unclear = counts.get("ncu_unmatched", 0), counts.get("ncu_ambiguous", 0)
    if not absent + unclear:
        return None
    found = linked(trace).height
    kernels = trace.device.filter(pl.col("kind") == "kernel").height
    examples = dict(trace.health.select("kind", "example").rows())
    reasons = []
    if absent:
        reasons.append(
            f"{format_count(absent)} with a name, grid and block that the trace does not have "
            f"(such as {examples['ncu_unmatched']})"
        )
    if unclear:
        reasons.append(
            f"{format_count(unclear)} of kernels that ran another number of times in the trace and differ in their work "
            f"(such as {examples['ncu_ambiguous']})"
        )
    launches = (
        "1 launch that fits"
        if absent + unclear == 1
        else f"{format_count(absent + unclear)} launches that fit"
    )
    return Evidence(
        title=f"Nsight Compute measured {launches} no kernel of the trace",
        text=f"{'; '.join(reasons)}. {format_count(found)} of {format_count(kernels)} kernels of the trace have metrics.",
        severity="info" if found else "warning",
    )


NCU_COVERAGE = Rule(
    id="ncu_coverage",
    analysis="counters",
    evidence=ncu_coverage,
    advice=Advice(
        "Record trace and metrics with the same program, inputs and batch; let ncu measure a whole step, "
        "or all of them (--launch-skip and --launch-count at the bounds of a step, or --nvtx "
        "--nvtx-include)."
    ),
)
