"""Memory is taken from or given back to the driver inside the window, which PyTorch's cache should avoid.

At stake is the idle time that allocation causes (`analyses.idle_causes`). Calls that last `CONTEXT_CREATION_NS` create
the device's context; they belong to `cold_start`.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.launches import Launches
from tracekit.analyses.rules.calls import CONTEXT_CREATION_NS, calls_with_roles
from tracekit.analyses.rules.idle_time import caused_idle
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count, format_ns, format_share

__all__ = ["RULE"]

LEAST_SHARE: Final = 0.01
"""In a steady state the share is zero: after the first steps the caching allocator asks the driver for nothing."""


def evidence(scope: Scope, result: Launches) -> Evidence | None:
    """Fires when allocation calls keep the devices idle for `LEAST_SHARE` of the window."""
    if not result.calls.height:
        return None
    calls = calls_with_roles(scope, result).filter(
        (pl.col("role") == "allocation")
        & (pl.col("duration") < CONTEXT_CREATION_NS)
        & (pl.col("end") > scope.start)
        & (pl.col("start") < scope.end)
    )
    short = pl.col("span_ns").is_null() | (pl.col("span_ns") < CONTEXT_CREATION_NS)
    idle = caused_idle(scope, "allocation", wanted=short)
    at_stake = idle.ns
    if not calls.height or at_stake / scope.duration < LEAST_SHARE:
        return None
    names = (
        calls.group_by("name")
        .agg(pl.len(), pl.col("duration").sum())
        .sort("duration", "name", descending=[True, False])
    )
    listed = ", ".join(
        f"{name} {format_count(count)} × ({format_ns(time)})" for name, count, time in names.head(3).rows()
    )
    return Evidence(
        title=f"{format_count(calls.height)} driver allocations keep the device idle {format_share(at_stake / scope.duration)} of the time",
        text=f"{listed}; the device was idle for {format_ns(at_stake)} of it{idle.where}.",
        ns_at_stake=at_stake,
    )


RULE = Rule(
    id="allocation_calls",
    analysis="launches",
    evidence=evidence,
    runs="device",
    advice=Advice(
        "Profile after warm-up; if it stays, remove torch.cuda.empty_cache() from the loop, keep input "
        "shapes constant and set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        plain=(
            "Allocate before the loop and reuse the memory, or take it from a pool (cudaMallocAsync, or the "
            "pool of the library)."
        ),
        flags=("--warmup",),
    ),
    answers=frozenset({"host-bound"}),
)
