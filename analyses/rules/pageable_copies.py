"""Copies between device and pageable host memory, which the driver stages through a pinned buffer.

At stake: their time less what the same bytes take at the bandwidth that pinned copies of the same direction reach
in this trace; unknown when there are none to compare with.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.memory import Memory
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_bytes, format_count, format_ns, format_share

__all__ = ["RULE"]

LEAST_SHARE: Final = 0.01
"""A hundredth of the window: a loss or a label read back now and then stays far below."""
LEAST_BYTES_PER_COPY: Final = 64 * 1024
"""The bandwidth of smaller copies says how long a copy takes to start, not how fast it runs."""


def evidence(scope: Scope, result: Memory) -> Evidence | None:
    """Fires when pageable copies from or to the host take `LEAST_SHARE` of the window."""
    between = result.copies.filter(pl.col("direction").is_in(["HtoD", "DtoH"]) & (pl.col("kind") == "memcpy"))
    pageable = between.filter(pl.col("host_memory") == "pageable")
    total = int(pageable["total_ns"].sum())
    if total / scope.duration < LEAST_SHARE:
        return None
    at_stake = _at_stake(pageable, between.filter(pl.col("host_memory") == "pinned"))
    at_stake = None if at_stake is None else bounded(at_stake, scope)
    # A label read back beside a batch's copy is not worth a mention.
    listed = "; ".join(
        f"{row['direction']}: {format_count(row['count'])} cop{'y' if row['count'] == 1 else 'ies'}, {format_bytes(row['bytes'])} in {format_ns(row['total_ns'])}"
        + (f" ({row['bandwidth_gbps']:.1f} GB/s)" if row["bandwidth_gbps"] is not None else "")
        for row in pageable.filter(pl.col("total_ns") >= 0.1 * total).iter_rows(named=True)
    )
    return Evidence(
        title=f"Copies from or to pageable memory take {format_share(total / scope.duration)} of the time",
        text=f"{listed}.",
        ns_at_stake=at_stake,
    )


def _at_stake(pageable: pl.DataFrame, pinned: pl.DataFrame) -> int | None:
    """None when a direction has no pinned copies that are large enough to compare with."""
    known = pinned.filter(
        pl.col("bandwidth_gbps").is_not_null() & (pl.col("bytes") / pl.col("count") >= LEAST_BYTES_PER_COPY)
    )
    fastest = known.group_by("direction").agg(pl.col("bandwidth_gbps").max().alias("pinned_gbps"))
    joined = pageable.join(fastest, on="direction", how="inner").filter(pl.col("bytes").is_not_null())
    if not joined.height:
        return None
    saved = joined.select(
        (pl.col("total_ns") - pl.col("bytes") / pl.col("pinned_gbps")).clip(lower_bound=0).sum()
    ).item()
    return int(saved)


RULE = Rule(
    id="pageable_copies",
    analysis="memory",
    evidence=evidence,
    runs="device",
    advice=Advice(
        "Use pinned memory: DataLoader(pin_memory=True) or tensor.pin_memory(), and .to(device, "
        "non_blocking=True), so that copies run at full speed and beside computation.",
        plain=(
            "Allocate the host's side with cudaMallocHost (or cudaHostRegister; in Python the library's "
            "pinned memory) and copy with asynchronous calls on a stream of their own, so that copies run at "
            "full speed and beside computation."
        ),
        flags=("--pin-memory",),
    ),
    answers=frozenset({"memory-copy-bound"}),
)
