"""Nsight Compute's table is not of this program, or not of this part of it: its kernels are not those of the trace."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.counters import Counters
from tracekit.analyses.counters.join import linked
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count

__all__ = ["RULE"]


def evidence(scope: Scope, _result: Counters) -> Evidence | None:
    """Fires when kernels that Nsight Compute measured are not in the trace, or no launch of them can be told apart."""
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


RULE = Rule(
    id="ncu_coverage",
    analysis="counters",
    evidence=evidence,
    advice=Advice(
        "Record trace and metrics with the same program, inputs and batch; let ncu measure a whole step, "
        "or all of them (--launch-skip and --launch-count at the bounds of a step, or --nvtx "
        "--nvtx-include).",
    ),
)
