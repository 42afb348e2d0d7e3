"""A rule about memory that is nearly full."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.memory import Memory
from tracekit.analyses.rules.idle_time import caused_idle
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, by_share
from tracekit.analyses.scope import Scope
from tracekit.facts.launch_apis import RETURNED_MEMORY
from tracekit.facts.units import format_bytes, format_ns, format_share, times
from tracekit.groups import kept

__all__ = ["MEMORY_NEAR_LIMIT"]

# -- memory_near_limit ------------------------------------------------------------------------------
NEAR: Final = 0.90
"""The context, libraries and fragmentation take several percent in addition to the allocator's memory."""
UNUSED: Final = 0.25
"""If a larger part of the reserved memory was never in use, memory is fragmented."""


_ROOM: Final = (
    "To free memory, use a smaller micro-batch.\n"
    "[training !recomputation] Activation checkpointing (torch.utils.checkpoint) keeps fewer results for the backward pass.\n"
    "[!low_precision !fp16_only] bf16 autocast makes activations smaller.\n"
    "[!low_precision fp16_only] fp16 autocast makes activations smaller.\n"
    "[ddp !fsdp] Sharding (FSDP) divides parameters, gradients and optimizer states among ranks."
)
_FLAGS: Final = ("--precision", "--checkpoint-activations", "--batch")
_FRAGMENTED: Final = Advice(
    "Much of the reserved memory was never in use: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.\n"
    + _ROOM,
    flags=_FLAGS,
)


def memory_near_limit(scope: Scope, result: Memory) -> Evidence | None:
    """Device memory is nearly full: a larger batch may not fit, and the allocator may have to free memory and retry.

    If calls in the window give memory back to the driver (`cudaFree`), the idle time that allocation causes is at stake.

    Fires when a device's peak or reserved memory reaches `NEAR` of its capacity.
    """
    if result.peaks is None:
        return None
    held = pl.max_horizontal("peak_bytes", "reserved_bytes")
    full = kept(result.peaks, (result.peaks["device_id"] >= 0) & (result.peaks["capacity_bytes"] > 0))
    if not full.height:
        return None
    full = full.with_columns((held / pl.col("capacity_bytes")).alias("share"))
    full = kept(full, full["share"] >= NEAR)
    if not full.height:
        return None
    full = full.sort("share", "device_id", descending=[True, False])
    row = full.row(0, named=True)
    fragmented = (
        row["reserved_bytes"] is not None and row["peak_bytes"] < (1 - UNUSED) * row["reserved_bytes"]
    )
    reserved = "" if row["reserved_bytes"] is None else f" and {format_bytes(row['reserved_bytes'])} reserved"
    freed = _freed(scope)
    idle = caused_idle(scope, "allocation") if freed else None
    retries = (
        f" In the window, memory was given back to the driver {times(freed)}; allocation keeps the device idle for {format_ns(idle.ns)}."
        if idle
        else ""
    )
    return Evidence(
        title=f"The memory of device {row['device_id']} was up to {format_share(row['share'])} full",
        text=f"Of {format_bytes(row['capacity_bytes'])}, at most {format_bytes(row['peak_bytes'])} were in use{reserved}.{retries}",
        ns_at_stake=idle.ns if idle and idle.ns else None,
        severity="critical" if idle and by_share(idle.ns, scope.duration) == "critical" else "warning",
        advice=_FRAGMENTED if fragmented else None,
        stretches=idle.stretches if idle else (),
    )


def _freed(scope: Scope) -> int:
    """How many calls in the window gave device memory back to the driver."""
    names = scope.host("runtime", columns=["name"])["name"].cast(pl.String)
    return int(names.str.contains(RETURNED_MEMORY).sum())


MEMORY_NEAR_LIMIT = Rule(
    id="memory_near_limit",
    analysis="memory",
    evidence=memory_near_limit,
    advice=Advice(
        _ROOM,
        plain=("Free or reuse buffers earlier, use smaller types, or process smaller pieces at a time."),
        flags=_FLAGS,
    ),
    answers=frozenset({"host-bound"}),
    explains=frozenset({"allocation_calls"}),
)
