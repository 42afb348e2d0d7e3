"""A rule about kernels that leave multiprocessors without work, because they have fewer blocks."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.kernels import costliest, worth_faster
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded_by_host, longest, of_time
from tracekit.analyses.scope import Scope
from tracekit.facts.units import count_of, format_ns, format_share

__all__ = ["FEW_BLOCKS"]

FEW_BLOCKS_LEAST_SHARE: Final = 0.05
"""Of the summed device time, what multiprocessors without a block could do."""
LEAST_NS: Final = 10_000
"""Shorter kernels end before more blocks would help."""

_BATCH_NORM: Final = r"(?i)batch_?norm|\bbn_(fw|bw)_|BatchNorm(Fwd|Bwd)"
_OF_BATCH_NORM: Final = Advice(
    "Use model.to(memory_format=torch.channels_last), and the same for the input batch: in the layout NCHW batch norm starts one "
    "block for each channel, in NHWC its kernels divide the pixels as well.",
    flags=("--channels-last",),
)


def few_blocks(scope: Scope, result: Kernels) -> Evidence | None:
    """Kernels have fewer blocks than the device has multiprocessors, so that some of these have nothing to do.

    Kernels below `LEAST_NS` do not count, nor those of collectives, which take few blocks on purpose, nor those beside which
    another kernel runs on the device. At stake is the part of their time that the other multiprocessors could take over:
    (1 − blocks / multiprocessors) of it.

    Fires when this is `FEW_BLOCKS_LEAST_SHARE` of the summed device time, and as much of the window as `no_tensor_cores` asks.
    """
    processors = {one.device_id: one.sm_count for one in scope.trace.meta.devices if one.sm_count}
    if not processors or not result.total_ns:
        return None
    rows = _alone(scope.activities.filter(pl.col("kind") == "kernel"))
    of_device = pl.col("device_id").replace_strict(processors, default=None, return_dtype=pl.Int64)
    rows = rows.with_columns(of_device.alias("processors")).filter(
        pl.col("blocks").is_between(1, pl.col("processors") - 1)
        & (pl.col("duration") >= LEAST_NS)
        & (pl.col("category") != "communication")
    )
    rows = rows.with_columns(
        (pl.col("duration") * (1 - pl.col("blocks") / pl.col("processors"))).cast(pl.Int64).alias("unused")
    )
    unused, total = int(rows["unused"].sum()), int(rows["duration"].sum())
    at_stake = bounded_by_host(unused, scope)
    if unused < FEW_BLOCKS_LEAST_SHARE * result.total_ns or not worth_faster(at_stake, scope):
        return None
    names = rows.group_by(pl.col("name").cast(pl.String)).agg(pl.col("unused").sum().alias("total_ns"))
    of_batch_norm = int(names.filter(pl.col("name").str.contains(_BATCH_NORM))["total_ns"].sum())
    each = rows["blocks"].to_numpy()
    fewest, most = int(each.min()), int(each.max())
    blocks = count_of(most, "block") if fewest == most else f"{fewest:,} to {most:,} blocks"
    counts = sorted(set(rows["processors"]))
    there = f"{counts[0]:,} multiprocessors" if len(counts) == 1 else "multiprocessors of their devices"
    return Evidence(
        title=f"Kernels with fewer blocks than the device has multiprocessors take {of_time(total, scope)}",
        text=f"{count_of(rows.height, 'kernel')} of {LEAST_NS // 1000} µs or more, with {blocks} for {there}, "
        f"{'takes' if rows.height == 1 else 'take'} {format_ns(total)}, in which {format_share(unused / total)} of the multiprocessors have no block on average. "
        f"{costliest(names)} leaves the most unused.",
        ns_at_stake=at_stake,
        advice=_OF_BATCH_NORM if 2 * of_batch_norm > unused else None,
        stretches=longest(rows, by="unused"),
    )


def _alone(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels beside which no other one runs on their device."""
    kernels = kernels.sort("device_id", "start")
    device = kernels["device_id"].to_numpy()
    start, duration = kernels["start"].to_numpy(), kernels["duration"].to_numpy()
    alone = np.ones(kernels.height, dtype=bool)
    for one in np.unique(device):
        of = np.flatnonzero(device == one)
        ends = np.maximum.accumulate(start[of] + duration[of])
        meets_next = start[of][1:] < ends[:-1]
        alone[of[1:]] &= ~meets_next
        alone[of[:-1]] &= ~meets_next
    return kernels.filter(pl.Series(alone))


FEW_BLOCKS = Rule(
    id="few_blocks",
    analysis="kernels",
    evidence=few_blocks,
    runs="device",
    advice=Advice(
        "Give each launch more work, as a larger batch does, or run these kernels beside others on a stream of their own.",
        plain="Divide the work among more blocks, or run these kernels beside others on a stream of their own.",
        flags=("--batch",),
    ),
)
