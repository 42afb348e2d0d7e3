"""Rules about copies and memory."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.memory import Memory
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import PAGEABLE_COPY
from tracekit.facts.units import count_of, format_bytes, format_count, format_ns, format_share
from tracekit.intervals import IntervalSet

__all__ = ["MEMORY_NEAR_LIMIT", "PAGEABLE_COPIES", "SMALL_COPIES"]

# -- pageable_copies --------------------------------------------------------------------------------

LEAST_SHARE: Final = 0.01
"""A hundredth of the window: if a program reads a loss or a label now and then, the copies take far less."""
LEAST_BYTES_PER_COPY: Final = 64 * 1024
"""The bandwidth of smaller copies says how long a copy takes to start, not how fast it runs."""


def pageable_copies(scope: Scope, result: Memory) -> Evidence | None:
    """Copies go between the device and pageable host memory, so the driver stages them through a pinned buffer.

    At stake is the time in which nothing but these copies ran: pinned copies could run beside computation. If pinned copies
    of the same direction show how fast they are, it is at most the time that these would save.

    Fires when pageable copies from or to the host take `LEAST_SHARE` of the window.
    """
    between = result.copies.filter(pl.col("direction").is_in(["HtoD", "DtoH"]) & (pl.col("kind") == "memcpy"))
    pageable = between.filter(pl.col("host_memory") == "pageable")
    total = int(pageable["total_ns"].sum())
    if total / scope.duration < LEAST_SHARE:
        return None
    at_stake = _at_stake(pageable, between.filter(pl.col("host_memory") == "pinned"))
    exposed = _exposed(scope)
    at_stake = exposed if at_stake is None else min(at_stake, exposed)
    # The copy of a label beside the copy of a batch is not worth a mention.
    listed = "; ".join(
        f"{row['direction']}: {count_of(row['count'], 'copy moves', 'copies move')} {format_bytes(row['bytes'])} in {format_ns(row['total_ns'])}"
        + (f" ({row['bandwidth_gbps']:.1f} GB/s)" if row["bandwidth_gbps"] is not None else "")
        for row in pageable.filter(pl.col("total_ns") >= 0.1 * total).iter_rows(named=True)
    )
    return Evidence(
        title=f"Copies from or to pageable memory take {format_share(total / scope.duration)} of the time",
        text=f"{listed}.",
        ns_at_stake=at_stake,
    )


def _exposed(scope: Scope) -> int:
    """The time in ns in which a device only copies from or to pageable memory."""
    names = pl.col("name").cast(pl.String).str.contains(PAGEABLE_COPY)
    total = 0
    for device in scope.device_ids:
        mine = scope.activities.filter((pl.col("device_id") == device) & (pl.col("kind") == "memcpy") & names)
        copies = IntervalSet.of(mine["start"].to_numpy(), mine["end"].to_numpy()).clip(scope.start, scope.end)
        total = max(total, (copies - scope.intervals(device, "compute", "communication")).measure)
    return total


def _at_stake(pageable: pl.DataFrame, pinned: pl.DataFrame) -> int | None:
    """None when a direction has no pinned copies that are large enough to compare with."""
    comparable = pinned.filter(
        pl.col("bandwidth_gbps").is_not_null() & (pl.col("bytes") / pl.col("count") >= LEAST_BYTES_PER_COPY)
    )
    fastest = comparable.group_by("direction").agg(pl.col("bandwidth_gbps").max().alias("pinned_gbps"))
    joined = pageable.join(fastest, on="direction", how="inner").filter(pl.col("bytes").is_not_null())
    if not joined.height:
        return None
    saved = joined.select(
        (pl.col("total_ns") - pl.col("bytes") / pl.col("pinned_gbps")).clip(lower_bound=0).sum()
    ).item()
    return int(saved)


PAGEABLE_COPIES = Rule(
    id="pageable_copies",
    analysis="memory",
    evidence=pageable_copies,
    runs="device",
    advice=Advice(
        "[loader] Use pinned memory (DataLoader(pin_memory=True)) and .to(device, non_blocking=True).\n"
        "[!loader] Use pinned memory (tensor.pin_memory()) and .to(device, non_blocking=True).\n"
        "Copies then run at full speed and overlap computation.",
        plain=(
            "[!python] Allocate host memory with cudaMallocHost, or register it with cudaHostRegister.\n"
            "[python] Use pinned memory of the library (cudaMallocHost).\n"
            "Copy with asynchronous calls on a separate stream. Copies then run at full speed and overlap computation."
        ),
        flags=("--pin-memory",),
    ),
    answers=frozenset({"memory-copy-bound"}),
)


# -- small_copies -----------------------------------------------------------------------------------

SMALL_BYTES: Final = 64 * 1024
"""At some 10 GB/s, this many bytes take about 6 µs, as long as the start of a copy."""
LEAST_COPIES_PER_STEP: Final = 20
"""A batch has only a few tensors, so twenty small copies a step are avoidable."""


def small_copies(scope: Scope, result: Memory) -> Evidence | None:
    """There are many small copies between host and device, and each costs a launch and the latency of a transfer.

    Fires when a step makes `LEAST_COPIES_PER_STEP` small copies (without steps: the window does).
    """
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
        title=f"There are {format_count(count)} small copies between host and device, {per}",
        text=f"They move {format_bytes(moved)} in {format_ns(total)}, {format_bytes(moved / count)} a copy on average.",
        ns_at_stake=at_stake,
    )


SMALL_COPIES = Rule(
    id="small_copies",
    analysis="memory",
    evidence=small_copies,
    runs="device",
    advice=Advice(
        "Create tensors on the device (device=… instead of .to()), pack small inputs into one tensor that you copy "
        "once, and keep indices and masks on the device.",
        plain=("Create data on the device, and pack small inputs into one buffer that you copy once."),
    ),
    answers=frozenset({"memory-copy-bound"}),
)


# -- memory_near_limit ------------------------------------------------------------------------------

NEAR: Final = 0.90
"""The context, libraries and fragmentation take several percent in addition to the allocator's memory."""
UNUSED: Final = 0.25
"""If a larger part of the reserved memory was never in use, memory is fragmented."""


_ROOM: Final = (
    "To free memory, use activation checkpointing (torch.utils.checkpoint), bf16 autocast, zero_grad(set_to_none=True), a "
    "smaller micro-batch, or sharded optimizer states."
)
_FLAGS: Final = ("--precision", "--checkpoint-activations", "--batch")
_FRAGMENTED: Final = Advice(
    "Much reserved memory was never in use: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. " + _ROOM,
    flags=_FLAGS,
)


def memory_near_limit(_scope: Scope, result: Memory) -> Evidence | None:
    """Device memory is nearly full: a larger batch may not fit, and the allocator may have to free memory and retry.

    Fires when a device's peak or reserved memory reaches `NEAR` of its capacity.
    """
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
    reserved = "" if row["reserved_bytes"] is None else f" and {format_bytes(row['reserved_bytes'])} reserved"
    return Evidence(
        title=f"The memory of device {row['device_id']} was up to {format_share(row['share'])} full",
        text=f"Of {format_bytes(row['capacity_bytes'])}, at most {format_bytes(row['peak_bytes'])} were in use{reserved}.",
        severity="warning",
        advice=_FRAGMENTED if fragmented else None,
    )


MEMORY_NEAR_LIMIT = Rule(
    id="memory_near_limit",
    analysis="memory",
    evidence=memory_near_limit,
    advice=Advice(
        _ROOM,
        plain=("Free or reuse buffers earlier, use smaller types, or process smaller pieces at a time."),
        flags=_FLAGS,
    ),
)
