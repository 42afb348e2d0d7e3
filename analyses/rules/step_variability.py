"""Step times vary, or single steps take much longer than the others.

At stake: by how much the slow outliers exceed the median step, summed; without outliers the same over all steps that
are slower than the median.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, by_share
from tracekit.analyses.scope import Scope
from tracekit.analyses.steps import Steps
from tracekit.facts.units import format_ns, format_share

__all__ = ["RULE"]

LEAST_STEPS: Final = 4
"""Of three steps nobody can say which one is the odd one."""
MOST_VARIATION: Final = 0.10
"""A quiet machine repeats a step within a few percent."""


def evidence(scope: Scope, result: Steps) -> Evidence | None:
    """Fires with `LEAST_STEPS` steps or more when one is slow beyond the others, or all vary by `MOST_VARIATION`."""
    if result.table.height < LEAST_STEPS or result.median_ns is None:
        return None
    slow = result.table.filter(pl.col("outlier") & (pl.col("time_ns") > result.median_ns))
    varied = result.variation is not None and result.variation > MOST_VARIATION
    if not slow.height and not varied:
        return None
    chosen = slow if slow.height else result.table
    at_stake = bounded(int((chosen["time_ns"] - result.median_ns).clip(lower_bound=0).sum()), scope)
    listed = ", ".join(
        f"{name} {format_ns(time)}"
        for name, time in slow.sort("time_ns", descending=True).select("name", "time_ns").head(3).rows()
    )
    return Evidence(
        title=f"Step times vary by {format_share(result.variation)}"
        + (f", {slow.height} of {result.table.height} steps are slow" if slow.height else ""),
        text=f"Median {format_ns(result.median_ns)}, 95th percentile {format_ns(result.p95_ns)}"
        + (f"; slowest: {listed}." if listed else "."),
        ns_at_stake=at_stake,
        severity=by_share(at_stake, int(result.table["time_ns"].sum())),
    )


RULE = Rule(
    id="step_variability",
    analysis="steps",
    evidence=evidence,
    advice=Advice(
        "Compare a slow step with a median one (--step): data loading, evaluation, checkpoints, logging, "
        "garbage collection and changing input shapes (recompilation, cudnn.benchmark) are the usual "
        "causes; pad or bucket inputs.",
        plain=(
            "Compare a slow step with a median one (--step): input and output, logging, allocation, other "
            "processes on the machine and inputs of changing size are the usual causes."
        ),
    ),
)
