"""A rule about kernels that leave multiprocessors without work, because they have fewer blocks."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.kernels import Kernels
from tracekit.analyses.roofline.rated import rated_pieces
from tracekit.analyses.rules.kernels import costliest, worth_faster
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded_by_host, longest, of_time
from tracekit.analyses.scope import Scope
from tracekit.facts.launch_apis import STREAM_WAIT_CALL
from tracekit.facts.units import count_of, format_ns, format_share, listed
from tracekit.intervals import EMPTY, IntervalSet

__all__ = ["FEW_BLOCKS"]

FEW_BLOCKS_LEAST_SHARE: Final = 0.05
"""Of the summed device time, what multiprocessors without a block could do."""
LEAST_NS: Final = 10_000
"""Shorter kernels end before more blocks would help."""

STREAM_PART: Final = 0.1
"""A stream with less of the time of these kernels holds them by chance."""
LEAST_TURNS: Final = 20
"""Parts of a program that run on streams of their own, one after the other, take fewer turns."""
MOST_NAMED: Final = 4
"""The numbers of more streams are no help."""

_BATCH_NORM: Final = r"(?i)batch_?norm|\bbn_(fw|bw)_|BatchNorm(Fwd|Bwd)"
_OF_BATCH_NORM: Final = Advice(
    "Use model.to(memory_format=torch.channels_last), and the same for the input batch: in the NCHW layout, batch norm starts "
    "one block per channel; in NHWC, its kernels divide the pixels as well.",
    flags=("--channels-last",),
)


def few_blocks(scope: Scope, result: Kernels) -> Evidence | None:
    """Kernels have fewer blocks than the device has multiprocessors, so that some of these have nothing to do.

    Kernels below `LEAST_NS` do not count, nor those of collectives, which take few blocks on purpose, nor those beside which
    another kernel runs on the device. Where several streams hold them in turns (`LEAST_TURNS`), the advice is about what keeps these
    from overlapping. At stake is the part of their time that the other multiprocessors could take over:
    (1 − blocks / multiprocessors) of it, and no more than what a kernel takes beyond its least time at the roof of the device.

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
    idle = int(rows["unused"].sum())
    if idle < FEW_BLOCKS_LEAST_SHARE * result.total_ns:
        return None
    rows = _with_room(rows, scope)
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
        f"{'takes' if rows.height == 1 else 'take'} {format_ns(total)}; on average, {format_share(idle / total)} of the "
        f"multiprocessors have no block meanwhile. {costliest(names)} leaves the most unused.",
        ns_at_stake=at_stake,
        advice=_OF_BATCH_NORM if 2 * of_batch_norm > unused else _of_streams(scope, rows),
        stretches=longest(rows, by="unused"),
    )


def _with_room(rows: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """`unused` is no more than a kernel takes beyond its least time, where that is known: no block makes it faster than its roof."""
    least = rated_pieces(scope).select(
        pl.col("call").alias("activity_id"), (1 - pl.col("least_ns") / pl.col("piece_ns")).alias("room")
    )
    rows = rows.join(least, on="activity_id", how="left", maintain_order="left")
    room = (pl.col("duration") * pl.col("room").clip(0, 1)).cast(pl.Int64)
    return rows.with_columns(pl.min_horizontal("unused", room).alias("unused"))


def _of_streams(scope: Scope, rows: pl.DataFrame) -> Advice | None:
    """The advice if these kernels are on several streams of a device already, of which never two work at the same time."""
    sums = rows.group_by("device_id", "stream_id").agg(pl.col("duration").sum())
    of_device = sums.group_by("device_id").agg(pl.col("duration").sum()).sort("duration", "device_id")
    device = int(of_device["device_id"][-1])
    mine, sums = rows.filter(device_id=device).sort("start"), sums.filter(device_id=device)
    large = sums.filter(pl.col("duration") >= STREAM_PART * pl.col("duration").sum())
    streams = large["stream_id"].sort().to_list()
    turns = int((mine["stream_id"].diff().fill_null(0) != 0).sum())
    if len(streams) < 2 or turns < LEAST_TURNS or _overlap(scope, device, streams):
        return None
    calls = scope.host("runtime", columns=["name"])["name"].cast(pl.String)
    waits = calls.filter(calls.str.contains(STREAM_WAIT_CALL))
    how = "see what keeps their kernels from running concurrently."
    if 2 * waits.len() >= turns:
        named = f"{count_of(waits.len(), 'call')} of {waits[0]}"
        how = f"remove the waits of one stream for another that no data dependency requires ({named})."
    few = f"Streams {listed([str(stream) for stream in streams])}"
    never = f"{few if len(streams) <= MOST_NAMED else count_of(len(streams), 'stream')} take turns and never overlap"
    return Advice(f"{never}: {how}\n{_MORE_WORK}", flags=_FLAGS)


def _overlap(scope: Scope, device: int, streams: list[int]) -> bool:
    """Whether kernels of two of these streams run at the same time."""
    kernels = scope.activities.filter((pl.col("kind") == "kernel") & (pl.col("device_id") == device))
    some = EMPTY
    for stream in streams:
        of = kernels.filter(stream_id=stream)
        work = IntervalSet.of(of["start"].to_numpy(), of["end"].to_numpy())
        if (some & work).measure:
            return True
        some |= work
    return False


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


_MORE_WORK: Final = "Otherwise, give each launch more work, as a larger batch does."
_FLAGS: Final = ("--batch",)

FEW_BLOCKS = Rule(
    id="few_blocks",
    analysis="kernels",
    evidence=few_blocks,
    runs="device",
    advice=Advice(
        "Give each launch more work, as a larger batch does, or run these kernels alongside others on a separate stream.",
        plain="Divide the work among more blocks, or run these kernels alongside others on a separate stream.",
        flags=_FLAGS,
    ),
)
