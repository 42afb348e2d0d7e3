"""The device mostly waits for the host to launch the next kernel.

Host-bound launching shows as many short gaps in which nothing was queued. So only gaps below `LONG_GAP_NS` count
(a longer one is a cold start or something else that has its own rule), and on the stream with most gaps the mean queue
(Little's law: sum of launch-to-start delays over the time they span) must be below one. At stake is the idle time
of the device in such gaps that Python, operator dispatch, launch calls and their latency cause (`analyses.idle_causes`).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.causes import cause_name
from tracekit.analyses.rules.idle_time import caused_idle
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import NS_PER_MS, format_count, format_ns, format_share
from tracekit.trace import Trace

__all__ = ["RULE"]

LEAST_SHARE: Final = 0.10
"""Below a tenth of the window, faster launching changes little."""
QUEUE_EMPTY: Final = 1.0
"""With less than one activity waiting on average, the host is not ahead of the device."""
LONG_GAP_NS: Final = NS_PER_MS
"""Python and dispatch between two launches take tens of µs; 1 ms is something else."""
LEAST_GAPS: Final = 20
"""Fewer gaps are no pattern."""
LAUNCHING: Final = (
    *("python", "host_code", "operator_dispatch", "library_call"),
    *("launch_api", "launch_latency"),
)
"""The causes of idle time that faster or fewer launches would lessen."""


def evidence(scope: Scope, result: Idle) -> Evidence | None:
    """Fires when short waits for the host take `LEAST_SHARE` of the window and the queue runs empty."""
    trace = scope.trace
    if not result.streams.height or not scope.duration:
        return None
    stream = result.streams.sort("gaps", "busy_ns", descending=True).row(0, named=True)
    if stream["gaps"] < LEAST_GAPS:
        return None
    mine = (pl.col("device_id") == stream["device_id"]) & (pl.col("stream_id") == stream["stream_id"])
    short = pl.col("duration_ns").sum().over("gap_id") < LONG_GAP_NS
    idle = caused_idle(scope, *LAUNCHING, wanted=short)
    at_stake = idle.ns
    queue = _mean_queue(trace, scope.activities.filter(mine))
    if at_stake / scope.duration < LEAST_SHARE or queue is None or queue >= QUEUE_EMPTY:
        return None
    slowed = " Python stacks were recorded, which slows the host." if "stacks" in trace.meta.captured else ""
    return Evidence(
        title=f"The device waits {format_share(at_stake / scope.duration)} of the time for the host's launches",
        text=f"It was idle for {format_ns(at_stake)} in gaps below {format_ns(LONG_GAP_NS)}: {_split(scope, short)}"
        f"{idle.where}. Stream {stream['stream_id']} of device {stream['device_id']} had "
        f"{format_count(stream['gaps'])} gaps in all, with {queue:.2f} activities queued on average.{slowed}",
        ns_at_stake=at_stake,
    )


def _split(scope: Scope, short: pl.Expr) -> str:
    """The causes in words, largest first."""
    parts = [(caused_idle(scope, cause, wanted=short).ns, cause) for cause in LAUNCHING]
    return ", ".join(
        f"{cause_name(cause)} {format_ns(ns)}" for ns, cause in sorted(parts, reverse=True) if ns
    )


def _mean_queue(trace: Trace, activities: pl.DataFrame) -> float | None:
    calls = trace.host.select(pl.col("span_id").alias("launch_id"), pl.col("start").alias("call_start"))
    rows = activities.join(calls, on="launch_id", how="inner")
    if rows.height < 2:
        return None
    first, last = (
        rows.select(pl.min_horizontal(pl.col("call_start").min(), pl.col("start").min())).item(),
        rows["start"].max(),
    )
    span = int(str(last)) - int(first)
    waiting = int((rows["start"] - rows["call_start"]).clip(lower_bound=0).sum())
    return waiting / span if span > 0 else None


RULE = Rule(
    id="host_bound_launches",
    analysis="idle",
    evidence=evidence,
    runs="device",
    advice=Advice(
        'Launch less from Python: torch.compile(model, mode="reduce-overhead") or torch.cuda.CUDAGraph '
        "for static shapes, fused operators and optimizer (fused=True), a larger batch; remove "
        "synchronising calls such as .item() from the loop.",
        plain=(
            "Launch less: fuse small kernels, replay what repeats as a CUDA graph, give each launch more "
            "work, and remove synchronising calls from the loop."
        ),
        flags=("--compile", "--batch"),
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
)
