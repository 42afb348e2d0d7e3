"""A rule for runs without a device: calls that stand still in one step, since something else has the processors."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.analyses.steps import Steps
from tracekit.facts.units import NS_PER_MS, count_of, format_ns, format_share

__all__ = ["STALLED_CALLS"]

STALLED_CALLS_LEAST_STEPS: Final = 3
"""Of two steps, nobody can say which one is usual."""
LONGER: Final = 3
"""A call that takes this many times its usual time, and 1 ms more, does not vary: it stood still."""
STALL_NS: Final = NS_PER_MS
"""An operating system gives a processor away for some ms at a time."""
LEAST_OPERATORS: Final = 3
"""A stall of one operator may be its own; those of several have a cause in common."""


def stalled_calls(scope: Scope, result: Steps) -> Evidence | None:
    """Without a device: single calls of different operators take far longer than the same calls in the other steps.

    The rule compares the time of each stretch of an operator (its self time) with the median of the stretch that has the same
    place among those of its name in the other steps. No Python runs in such a stretch, so it stands still only if the
    operating system gives the processor to something else. Collectives do not count. At stake is what these calls take more.

    Fires when calls of `LEAST_OPERATORS` operators stall, for `WARNING_SHARE` of the window in all.
    """
    if result.table.height < STALLED_CALLS_LEAST_STEPS or scope.window != "steps":
        return None
    rows = scope.activities.filter(pl.col("class") != "communication").sort("start")
    step = np.searchsorted(result.table["span_start"].to_numpy(), rows["start"].to_numpy(), side="right")
    rows = rows.select("name", (pl.col("end") - pl.col("start")).alias("ns"), pl.Series("step", step))
    rows = rows.with_columns(pl.int_range(pl.len()).over("step", "name").alias("place"))
    same = ("name", "place")
    rows = rows.with_columns(
        pl.col("ns").median().over(same).alias("usual"), pl.len().over(same).alias("steps")
    )
    stalled = rows.filter(
        (pl.col("steps") >= STALLED_CALLS_LEAST_STEPS)
        & (pl.col("ns") > LONGER * pl.col("usual"))
        & (pl.col("ns") > pl.col("usual") + STALL_NS)
    )
    at_stake = round(float((stalled["ns"] - stalled["usual"]).sum()))
    if stalled["name"].n_unique() < LEAST_OPERATORS or at_stake < WARNING_SHARE * scope.duration:
        return None
    stalled = stalled.sort("ns")
    longest = stalled.row(-1, named=True)
    return Evidence(
        title=f"Single calls of operators stall, for {format_share(at_stake / scope.duration)} of the time",
        text=f"{count_of(stalled.height, 'call')} of {stalled['name'].n_unique()} operators take "
        f"{format_ns(stalled['ns'][0])} to {format_ns(longest['ns'])}, {format_ns(at_stake)} more in all than the same calls in "
        f"the other steps. The longest is one of {longest['name']}, which usually takes {format_ns(longest['usual'])} there.",
        ns_at_stake=bounded(at_stake, scope),
    )


STALLED_CALLS = Rule(
    id="stalled_calls",
    analysis="steps",
    evidence=stalled_calls,
    runs="processor",
    advice=Advice(
        "Something else probably had the cores meanwhile: other programs, or more threads and ranks than there are cores. Record again "
        "on a quiet machine, or give each rank cores of its own (taskset, torch.set_num_threads). Times of single operators "
        "and layers in this trace say little.",
        plain="Something else probably had the cores meanwhile. Record again on a quiet machine, or give the program cores of its own "
        "(taskset).",
    ),
    pattern="single calls that stall",
)
