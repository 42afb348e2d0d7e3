"""Rules about hardware counters and Nsight Compute's metrics."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.counters import Counters
from tracekit.analyses.counters.analysis import linked, replayed
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded_by_host, longest
from tracekit.analyses.scope import Scope
from tracekit.facts.units import count_of, format_count, format_ns, format_share

__all__ = ["CLOCK_DROP", "COUNTER_REPLAY", "NCU_COVERAGE"]

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
    measured = ranges[["name", "start"]].n_unique()
    return Evidence(
        title=f"The profiler replayed {format_count(measured)} kernels to measure their counters",
        text=f"The trace has {format_count(ranges.height)} counter values for single kernels. Each kernel ran alone, once for "
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


# -- clock_drop -------------------------------------------------------------------------------------

CLOCK_DROP_LEAST_SHARE: Final = 0.05
"""Less than a twentieth of the window is within the clock's ordinary changes."""
LOW_CLOCK: Final = 0.95
"""A clock within 5 % of its highest varies with the load of the moment."""
HIGH_QUANTILE: Final = 0.95
"""The highest clock, without single samples that lie above the others."""
LEAST_OF_KERNEL: Final = 3
"""A kernel that ran fewer times at the high clock has no typical duration there."""

_CLOCK: Final = r"(?i)^(GPC|SM|GR|Graphics)\b.*\bclock\b.*\[MHz\]"


def clock_drop(scope: Scope, _result: Counters) -> Evidence | None:
    """The clock of the device falls while it works, and the same kernels take longer then.

    The clock is that of Nsight Systems' GPU metrics, sampled. A kernel has the clock of the last sample before its end. At stake
    is what kernels at a low clock (`LOW_CLOCK` of the highest) take more than the median of the same kernel, with the same grid
    and block, at a high clock.

    Fires when that is `CLOCK_DROP_LEAST_SHARE` of the window.
    """
    rows = _clocked(scope)
    if rows is None:
        return None
    high = float(str(rows["clock"].quantile(HIGH_QUANTILE)))
    same = ["device_id", "name", "grid", "block"]
    at_high = pl.col("clock") >= LOW_CLOCK * high
    usual = (
        rows.filter(at_high)
        .group_by(same)
        .agg(pl.col("duration").median().alias("usual"), pl.len().alias("times"))
    )
    slow = rows.filter(~at_high).join(usual, on=same, how="inner", nulls_equal=True)
    slow = slow.filter(pl.col("times") >= LEAST_OF_KERNEL)
    each = slow.group_by(same).agg((pl.col("duration") - pl.col("usual")).sum().alias("longer"))
    longer = int(float(str(each["longer"].clip(lower_bound=0).sum())))
    at_stake = bounded_by_host(longer, scope)
    if not slow.height or at_stake < CLOCK_DROP_LEAST_SHARE * scope.duration:
        return None
    ratio = float(slow["duration"].sum()) / float(slow["usual"].sum())
    low = float(str(slow["clock"].median()))
    return Evidence(
        title=f"The device's clock drops; kernels then take {ratio:.2f} times as long, which costs "
        f"{format_share(at_stake / scope.duration)} of the time",
        text=f"The busy device's clock reaches {high:,.0f} MHz, but only {low:,.0f} MHz (median) during "
        f"{format_count(slow.height)} kernels that take {format_ns(int(slow['duration'].sum()))}. The same kernels take "
        f"{format_ns(longer)} less at the high clock.",
        ns_at_stake=at_stake,
        stretches=longest(
            slow.with_columns((pl.col("duration") - pl.col("usual")).alias("longer")), by="longer"
        ),
    )


def _clocked(scope: Scope) -> pl.DataFrame | None:
    """The kernels of the scope with the `clock` in MHz while they ran; None if it was not sampled for their device."""
    counters = scope.trace.counters
    if counters is None:
        return None
    clocks = counters.filter(
        pl.col("duration").is_null() & pl.col("series").cast(pl.String).str.contains(_CLOCK)
    )
    if clocks["series"].n_unique() != 1 or clocks["name"].n_unique() != 1 or len(scope.device_ids) != 1:
        return None
    samples = clocks.select(pl.col("start").alias("sampled"), pl.col("value").alias("clock")).sort("sampled")
    kernels = scope.activities.filter(pl.col("kind") == "kernel").sort("end")
    joined = kernels.join_asof(samples, left_on="end", right_on="sampled", strategy="backward")
    joined = joined.filter(pl.col("clock") > 0)
    return joined if joined.height else None


CLOCK_DROP = Rule(
    id="clock_drop",
    analysis="counters",
    evidence=clock_drop,
    runs="device",
    advice=Advice(
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER shows whether heat or the power limit lowers the clock. Improve the "
        "cooling, or raise the limit (nvidia-smi -pl). For comparable measurements, lock the clock (nvidia-smi -lgc)."
    ),
    explains=frozenset({"step_variability", "kernels_slow_down"}),
)


# -- ncu_coverage -----------------------------------------------------------------------------------


def ncu_coverage(scope: Scope, _result: Counters) -> Evidence | None:
    """Kernels in the table of Nsight Compute do not match the trace: it may come from another program, or another part of it.

    Fires when kernels that Nsight Compute measured are not in the trace, or their launches cannot be told apart.
    """
    trace = scope.trace
    counts = dict(trace.health[["kind", "count"]].rows())
    absent, unclear = counts.get("ncu_unmatched", 0), counts.get("ncu_ambiguous", 0)
    if not absent + unclear:
        return None
    with_metrics = linked(trace).height
    kernels = trace.device.filter(pl.col("kind") == "kernel").height
    examples = dict(trace.health[["kind", "example"]].rows())
    reasons = []
    if absent:
        reasons.append(
            f"{count_of(absent, 'has', 'have')} a name, grid and block that the trace does not "
            f"have (such as {examples['ncu_unmatched']})"
        )
    if unclear:
        reasons.append(
            f"{count_of(unclear, 'belongs', 'belong')} to kernels whose launches differ in their work and whose number differs "
            f"from the trace (such as {examples['ncu_ambiguous']})"
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
        "Record the trace and the metrics with the same program, inputs and batch. Let ncu measure one whole step or all steps "
        "(--launch-skip and --launch-count at step boundaries, or --nvtx --nvtx-include)."
    ),
)
