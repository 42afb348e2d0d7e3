"""Many small copies between host and device, each of which costs a launch and a transfer's latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from tracekit.analyses.rules.severity import bounded, by_share
from tracekit.facts.units import format_bytes, format_count, format_ns
from tracekit.findings import Finding

if TYPE_CHECKING:
    from tracekit.analyses.memory import Memory
    from tracekit.analyses.scope import Scope
    from tracekit.trace import Trace

__all__ = ["LEAST_COPIES_PER_STEP", "SMALL_BYTES", "check"]

SMALL_BYTES: Final = 64 * 1024
"""At some 10 GB/s this many bytes take as long as the copy takes to start, about 6 µs."""
LEAST_COPIES_PER_STEP: Final = 20
"""A batch is a handful of tensors; twenty small copies a step are tensors copied one by one."""


def check(_trace: Trace, scope: Scope, result: Memory) -> Finding | None:
    """Fires when a step makes `LEAST_COPIES_PER_STEP` small copies (without steps: the window does)."""
    rows = result.copies.filter(
        (pl.col("kind") == "memcpy")
        & pl.col("direction").is_in(["HtoD", "DtoH"])
        & (pl.col("bytes") / pl.col("count") < SMALL_BYTES)
    )
    count, total, moved = int(rows["count"].sum()), int(rows["total_ns"].sum()), int(rows["bytes"].sum())
    steps = scope.steps.height if scope.window == "steps" else 1
    if scope.on_cpu or not steps or count / steps < LEAST_COPIES_PER_STEP:
        return None
    at_stake = bounded(total, scope)
    per = f"{count / steps:.0f} a step" if scope.window == "steps" else "in the window"
    return Finding(
        id="small_copies",
        severity=by_share(at_stake, scope.duration),
        title=f"{format_count(count)} small copies between host and device, {per}",
        evidence=f"{format_bytes(moved)} in {format_ns(total)}, {format_bytes(moved / count)} a copy on average.",
        advice=(
            "Create tensors on the device (device=… instead of .to()), pack small inputs into one tensor and copy it "
            "once, and keep indices and masks on the device."
        ),
        ns_at_stake=at_stake,
    )
