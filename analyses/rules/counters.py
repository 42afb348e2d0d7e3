"""Rules about hardware counters and Nsight Compute's metrics."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.counters import Counters
from tracekit.analyses.counters.analysis import linked, replayed
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import count_of, format_count

__all__ = ["COUNTER_REPLAY", "NCU_COVERAGE"]

# -- counter_replay ---------------------------------------------------------------------------------


def counter_replay(scope: Scope, _result: Counters) -> Evidence | None:
    """The profiler measured hardware counters kernel by kernel. It ran each kernel alone and repeated it, so the times are
    not those of the program.

    Fires when counters were measured over ranges (CUPTI's range profiler) and not sampled.
    """
    trace = scope.trace
    ranges = replayed(trace.counters)
    if ranges is None:
        return None
    measured = ranges.select("name", "start").n_unique()
    return Evidence(
        title=f"The profiler replayed {format_count(measured)} kernels to measure their counters",
        text=f"The trace has {format_count(ranges.height)} counter values of single kernels. Each kernel ran alone, once for "
        "each pass that its counters need.",
    )


COUNTER_REPLAY = Rule(
    id="counter_replay",
    analysis="counters",
    evidence=counter_replay,
    advice=Advice(
        "Use only the counters of this profile. Take times, overlap and idle time from a second profile, without "
        "profiler_metrics in experimental_config."
    ),
)


# -- ncu_coverage -----------------------------------------------------------------------------------


def ncu_coverage(scope: Scope, _result: Counters) -> Evidence | None:
    """Kernels in the table of Nsight Compute do not match the trace: it may come from another program, or another part of it.

    Fires when kernels that Nsight Compute measured are not in the trace, or their launches cannot be told apart.
    """
    trace = scope.trace
    counts = dict(trace.health.select("kind", "count").rows())
    absent, unclear = counts.get("ncu_unmatched", 0), counts.get("ncu_ambiguous", 0)
    if not absent + unclear:
        return None
    with_metrics = linked(trace).height
    kernels = trace.device.filter(pl.col("kind") == "kernel").height
    examples = dict(trace.health.select("kind", "example").rows())
    reasons = []
    if absent:
        reasons.append(
            f"{count_of(absent, 'has', 'have')} a name, grid and block that the trace does not "
            f"have (such as {examples['ncu_unmatched']})"
        )
    if unclear:
        reasons.append(
            f"{count_of(unclear, 'belongs', 'belong')} to kernels whose launches differ in their "
            f"work and are not as many as in the trace (such as {examples['ncu_ambiguous']})"
        )
    launches = (
        "1 launch that matches"
        if absent + unclear == 1
        else f"{format_count(absent + unclear)} launches that match"
    )
    return Evidence(
        title=f"Nsight Compute measured {launches} no kernel of the trace",
        text=f"{'; '.join(reasons)}. {format_count(with_metrics)} of {format_count(kernels)} kernels of the trace have metrics.",
        severity="info" if with_metrics else "warning",
    )


NCU_COVERAGE = Rule(
    id="ncu_coverage",
    analysis="counters",
    evidence=ncu_coverage,
    advice=Advice(
        "Record trace and metrics with the same program, inputs and batch. Let ncu measure one whole step or all steps "
        "(--launch-skip and --launch-count at the bounds of a step, or --nvtx --nvtx-include)."
    ),
)
