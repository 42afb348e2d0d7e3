"""Collectives of a job: how long each takes once all ranks are there, who waits, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.analyses.ranks.align import Alignment
from tracekit.analyses.ranks.blame import blame_of, delays_of
from tracekit.facts.collectives import MESSAGES, SYNCHRONISING

__all__ = ["Waits", "waits_of"]


_NEEDED: Final = (
    "match", "at", "name", "group", "group_size", "step", "start", "end", "duration_ns", "bytes", "bus_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Times are ns on the clock of the job (`Alignment`)."""

    collectives: pl.DataFrame
    """One row per collective and per message (named `send`) by start: `match`, `name`, `group`, `step`, `ranks`; `start` (of the first rank), `end`;
    `latency_ns`, the least duration of a rank, of a message from when both ranks are there until it is received; `skew_ns`, from the first
    start to the last; `last`, the place of the rank that came last, and `alone_ns`, by how much it came after the one before it as far as a rank
    waited for it, without the time in which an earlier collective waits for it as well; `bytes` and the bandwidths in the latency, `algorithm_gbps` and
    `bus_gbps`.
    """
    calls: pl.DataFrame
    """One row per call: `match`, `at`, `start`, `end`; `wait_ns`, from its own start to the last one, at most its duration, and `new_wait_ns`, the
    part of it in which no earlier call of the rank waits: calls of one rank may run at the same time. A sender or a root that was done before the last
    rank came did not wait.
    """
    ranks: pl.DataFrame
    """One row per rank with calls: `at`, `collectives`, `wait_ns`, the time in which any call waits, `last`, how often it came last, `caused_ns`, its delays
    (`ranks.blame.delays_of`), and `unseen_ns`: how much longer than the shortest of their kind those collectives took in which not all ranks
    have a trace, which points to a wait for a rank without one.
    """
    blame: pl.DataFrame
    """Whose delay the time `alone_ns` of each collective is: the columns of `ranks.blame.BLAME`."""


def waits_of(aligned: Alignment) -> Waits:
    """The waits of a job."""
    calls = aligned.calls.select(_NEEDED).filter(pl.col("match").is_not_null())
    start = pl.col("start")
    last = start.max().over("match")
    waits = pl.col("name").is_in(list(SYNCHRONISING)) | (pl.col("end") > last)
    calls = calls.with_columns(
        pl.when(waits)
        .then(pl.min_horizontal(last - start, pl.col("duration_ns")))
        .otherwise(0)
        .alias("wait_ns"),
        (start.rank("ordinal", descending=True).over("match") == 1).alias("is_last"),
    )
    calls = _with_new_time(
        calls.with_columns((start + pl.col("wait_ns")).alias("waited")), "start", "waited", "at"
    ).rename({"new_ns": "new_wait_ns"})
    collectives = _collectives(calls)
    blame = blame_of(calls, collectives)
    delays = delays_of(blame)
    ranks = (
        calls.group_by("at")
        .agg(
            pl.len().cast(pl.Int64).alias("collectives"),
            pl.col("new_wait_ns").sum().alias("wait_ns"),
            pl.col("is_last").sum().cast(pl.Int64).alias("last"),
        )
        .join(delays.group_by("at").agg(pl.col("ns").sum().alias("caused_ns")), on="at", how="left")
        .join(_unseen(calls), on="at", how="left")
        .with_columns(pl.col("caused_ns", "unseen_ns").fill_null(0))
        .sort("at")
    )
    return Waits(collectives, calls[["match", "at", "start", "end", "wait_ns", "new_wait_ns"]], ranks, blame)


def _with_new_time(rows: pl.DataFrame, begin: str, end: str, of: str) -> pl.DataFrame:
    """With `new_ns`: of the time from `begin` to `end` the part that no earlier row with the same `of` has; in all that is their union."""
    before = pl.col(end).cum_max().shift(1).over(of)
    new = pl.col(end) - pl.max_horizontal(pl.col(begin), before)
    return rows.sort(of, begin, "match").with_columns(new.clip(lower_bound=0).alias("new_ns"))


def _unseen(calls: pl.DataFrame) -> pl.DataFrame:
    """`at`, `unseen_ns`: what collectives with ranks of no trace take longer than the shortest of their name and size."""
    alike = ["name", "bytes", "group_size"]
    latency = pl.col("duration_ns").min()
    each = calls.with_columns(latency.over("match").alias("latency"), pl.len().over("match").alias("ranks"))
    each = each.with_columns((pl.col("latency") - pl.col("latency").min().over(alike)).alias("longer"))
    return (
        each.filter(pl.col("ranks") < pl.col("group_size"))
        .group_by("at")
        .agg(pl.col("longer").sum().alias("unseen_ns"))
    )


def _collectives(calls: pl.DataFrame) -> pl.DataFrame:
    start = pl.col("start")
    is_message = pl.col("name").is_in(MESSAGES).first()
    both = (pl.col("end").filter(name="recv").first() - start.max()).clip(lower_bound=0)
    latency = pl.when(is_message).then(both).otherwise(pl.col("duration_ns").min())
    found = (
        calls.group_by("match")
        .agg(
            # The two calls of a message are one row.
            pl.when(is_message).then(pl.lit(MESSAGES[0])).otherwise(pl.col("name").first()).alias("name"),
            *(pl.col(name).first() for name in ("group", "step")),
            pl.len().cast(pl.Int64).alias("ranks"),
            start.min(),
            pl.col("end").max(),
            latency.alias("latency_ns"),
            (start.max() - start.min()).alias("skew_ns"),
            pl.col("at").filter("is_last").first().alias("last"),
            start.filter(~pl.col("is_last")).max().alias("before_last"),
            start.max().alias("last_start"),
            pl.col("wait_ns").max(),
            pl.col("bytes").max(),
            (pl.col("bytes").max() / latency).alias("algorithm_gbps"),
            (pl.col("bus_bytes").max() / latency).alias("bus_gbps"),
        )
        .with_columns(
            pl.when(pl.col("latency_ns") > 0).then(name).alias(name)
            for name in ("algorithm_gbps", "bus_gbps")
        )
    )
    waited_from = pl.max_horizontal("before_last", pl.col("last_start") - pl.col("wait_ns"))
    found = _with_new_time(
        found.with_columns(waited_from.alias("before_last")), "before_last", "last_start", "last"
    ).rename({"new_ns": "alone_ns"})
    return found.drop("before_last", "last_start", "wait_ns").sort("start", "match")
