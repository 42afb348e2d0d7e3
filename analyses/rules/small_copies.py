"""Many small copies between host and device, each of which costs a launch and a transfer's latency."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.memory import Memory
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_bytes, format_count, format_ns

__all__ = ["RULE"]

SMALL_BYTES: Final = 64 * 1024
"""At some 10 GB/s this many bytes take as long as the copy takes to start, about 6 µs."""
LEAST_COPIES_PER_STEP: Final = 20
"""A batch is a handful of tensors; twenty small copies a step are tensors copied one by one."""


def evidence(scope: Scope, result: Memory) -> Evidence | None:
    """Fires when a step makes `LEAST_COPIES_PER_STEP` small copies (without steps: the window does)."""
    rows = result.copies.filter(
        (pl.col("kind") == "memcpy")
        & pl.col("direction").is_in(["HtoD", "DtoH"])
        & (pl.col("bytes") / pl.col("count") < SMALL_BYTES)
    )
    count, total, moved = int(rows["count"].sum()), int(rows["total_ns"].sum()), int(rows["bytes"].sum())
    steps = scope.steps.height if scope.window == "steps" else 1
    if not steps or count / steps < LEAST_COPIES_PER_STEP:
        return None
    at_stake = bounded(total, scope)
    per = f"{count / steps:.0f} a step" if scope.window == "steps" else "in the window"
    return Evidence(
        title=f"{format_count(count)} small copies between host and device, {per}",
        text=f"{format_bytes(moved)} in {format_ns(total)}, {format_bytes(moved / count)} a copy on average.",
        ns_at_stake=at_stake,
    )


RULE = Rule(
    id="small_copies",
    analysis="memory",
    evidence=evidence,
    runs="device",
    advice=Advice(
        "Create tensors on the device (device=… instead of .to()), pack small inputs into one tensor and "
        "copy it once, and keep indices and masks on the device.",
        plain=("Create data on the device, and pack small inputs into one buffer that is copied once."),
    ),
    answers=frozenset({"memory-copy-bound"}),
)
