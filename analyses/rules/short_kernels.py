"""Most kernels are so short that launching them takes longer than running them.

At stake: for each short kernel the time by which its launch call exceeds it, counted only where no device worked
just before it, so that launches hidden behind running kernels cost nothing. Kernels of a CUDA graph share one call
and are left out, and so are launch calls of `LONG_CALL_NS` or more, which `cold_start` explains.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.launches import Launches
from tracekit.analyses.rules.calls import LONG_CALL_NS
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, all_idle
from tracekit.analyses.scope import Scope
from tracekit.facts.launch_apis import GRAPH_LAUNCH
from tracekit.facts.units import NS_PER_US, format_count, format_ns, format_share
from tracekit.intervals import IntervalSet

__all__ = ["RULE"]

SHORT_NS: Final = 10 * NS_PER_US
"""A launch call takes 5 to 10 µs of host time; below this a kernel cannot hide its own launch (DEFINITIONS §6)."""
LEAST_COUNT: Final = 20
"""Fewer short kernels are no pattern."""
SHORT_SHARE: Final = 0.50
"""From half of all kernels on, short kernels are the pattern and not the tail."""
LEAST_STAKE: Final = 0.01
"""Where the host runs ahead, short kernels cost next to nothing; below 1 % of the window they are no finding."""


def evidence(scope: Scope, result: Launches) -> Evidence | None:
    """Fires when half of the kernels are short and their launches cost device time."""
    trace = scope.trace
    if result.short_share is None or result.short_share < SHORT_SHARE or result.short < LEAST_COUNT:
        return None
    calls = (
        trace.host.filter(pl.col("kind") == "runtime")
        .filter(~pl.col("name").cast(pl.String).str.contains(GRAPH_LAUNCH))
        .filter(pl.col("duration") < LONG_CALL_NS)
        .select(pl.col("span_id").alias("launch_id"), pl.col("duration").alias("call"))
    )
    short = scope.activities.filter((pl.col("kind") == "kernel") & (pl.col("duration") < SHORT_NS)).join(
        calls, on="launch_id", how="inner"
    )
    excess = (short["call"] - short["duration"]).clip(lower_bound=0)
    before = IntervalSet.of((short["start"] - excess).to_numpy(), short["start"].to_numpy())
    at_stake = (before & all_idle(scope)).measure
    if not scope.duration or at_stake / scope.duration < LEAST_STAKE:
        return None
    most = result.by_name.filter(pl.col("mean_device_ns") < SHORT_NS).head(1)
    example = (
        f"; the most frequent is {_plain(most['name'][0])} ({format_count(most['count'][0])} times)"
        if most.height
        else ""
    )
    return Evidence(
        title=f"{format_share(result.short_share)} of the kernels take less than {format_ns(SHORT_NS)}",
        text=f"{format_count(result.short)} kernels take less than {format_ns(SHORT_NS)}; "
        f"{format_share(result.launch_bound_share)} of all activities are shorter than their launch call"
        f"{example}; {format_ns(at_stake)} of launching was not hidden.",
        ns_at_stake=at_stake,
    )


def _plain(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:79]}…"


RULE = Rule(
    id="short_kernels",
    analysis="launches",
    evidence=evidence,
    advice=Advice(
        "Fuse them: torch.compile for chains of elementwise operators, foreach or fused optimizers "
        "(torch.optim.AdamW(..., fused=True)), or replay the step as a CUDA graph; a larger batch "
        "lengthens each kernel.",
        plain=(
            "Fuse them, give each more work, or replay what repeats as a CUDA graph, which launches all of "
            "its kernels at once."
        ),
        flags=("--compile", "--batch"),
    ),
    answers=frozenset({"launch/short-kernel-bound"}),
)
