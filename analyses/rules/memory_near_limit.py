"""Device memory is nearly full: the next larger batch fails, and the allocator begins to free and retry."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.memory import Memory
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_bytes, format_share

__all__ = ["RULE"]

NEAR: Final = 0.90
"""The context, libraries and fragmentation take several percent beside what the allocator holds."""
UNUSED: Final = 0.25
"""More of the reserved memory than this never in use means fragmentation."""


_ROOM: Final = (
    "To gain room: activation checkpointing (torch.utils.checkpoint), bf16 autocast, zero_grad(set_to_none=True), a "
    "smaller micro-batch, or sharded optimizer states."
)
_FLAGS: Final = ("--precision", "--checkpoint-activations", "--batch")
_FRAGMENTED: Final = Advice(
    "Reserved memory is far above what was in use: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. "
    + _ROOM,
    flags=_FLAGS,
)


def evidence(_scope: Scope, result: Memory) -> Evidence | None:
    """Fires when a device's peak or reserved memory reaches `NEAR` of its capacity."""
    if result.peaks is None:
        return None
    held = pl.max_horizontal("peak_bytes", "reserved_bytes")
    full = result.peaks.filter((pl.col("device_id") >= 0) & (pl.col("capacity_bytes") > 0)).with_columns(
        (held / pl.col("capacity_bytes")).alias("share")
    )
    full = full.filter(pl.col("share") >= NEAR).sort("share", "device_id", descending=[True, False])
    if not full.height:
        return None
    row = full.row(0, named=True)
    fragmented = (
        row["reserved_bytes"] is not None and row["peak_bytes"] < (1 - UNUSED) * row["reserved_bytes"]
    )
    return Evidence(
        title=f"Device {row['device_id']} holds {format_share(row['share'])} of its memory",
        text=f"Peak {format_bytes(row['peak_bytes'])} in use, {format_bytes(row['reserved_bytes'])} reserved, of "
        f"{format_bytes(row['capacity_bytes'])}.",
        severity="warning",
        advice=_FRAGMENTED if fragmented else None,
    )


RULE = Rule(
    id="memory_near_limit",
    analysis="memory",
    evidence=evidence,
    advice=Advice(
        _ROOM,
        plain=("Free or reuse buffers earlier, use smaller types, or work on smaller pieces at a time."),
        flags=_FLAGS,
    ),
)
