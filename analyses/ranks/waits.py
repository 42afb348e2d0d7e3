"""Collectives of a job: how long each takes once all ranks are there, who waits, and for whom."""

from __future__ import annotations

from dataclasses import field
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.ranks.align import Alignment
from tracekit.analyses.ranks.blame import blame_of, delays_of
from tracekit.analyses.ranks.blocked import blocked_by_others
from tracekit.analyses.ranks.matching import PAIRED
from tracekit.analyses.ranks.own_clock import together_since
from tracekit.classes import dataclass
from tracekit.facts.collectives import MESSAGES, SYNCHRONISING
from tracekit.spans import Int64Array
from tracekit.trace import Schema

__all__ = ["Waits", "waits_of"]


_NEEDED: Final = (
    "match", "at", "key", "name", "group", "group_size", "source", "destination", "step", "stream_id", "came", "start", "end", "duration_ns", "exposed_ns", "held_ns", "bytes",
    "bus_bytes",
)  # fmt: skip
_ALONE: Final[Schema] = dict.fromkeys(("at", "step", "blocked_ns"), pl.Int64)


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Times are ns on the clock of the job (`Alignment`)."""

    collectives: pl.DataFrame
    """One row per collective and per message (named `send`) by start: `match`, `name`, `group`, `group_size`, `step`, `ranks` (with a trace); `start` (of the first rank), `end`;
    `latency_ns`, the least duration of a rank, of a message from when both ranks are there until it is received; `skew_ns`, from the first
    start to the last; `last`, the place of the rank that came last, and `alone_ns`, by how much it came after the last one that was on time (`late_to`), as far as it
    blocked a rank, without the time in which an earlier collective waits for it as well; `bytes` and the bandwidths in the latency, `algorithm_gbps` and
    `bus_gbps`; `since`, the `match` of the collective after which its ranks last went on together (`ranks.own_clock.together_since`).
    """
    calls: pl.DataFrame
    """One row per call: `match`, `at`, `start`, `end`; `wait_ns`, from its own start to the last one, at most its duration, and `new_wait_ns`, the
    part of it in which no earlier call of the rank waits: calls of one rank may run at the same time. A sender or a root that was done before the last
    rank came did not wait. `blocked_ns` is for how long the wait, also that for a rank without a trace, kept the rank from computing, there or in later calls (`ranks.blocked`), no time twice.
    """
    ranks: pl.DataFrame
    """One row per rank with calls: `at`, `collectives`, `wait_ns`, the time in which any call waits, `last`, how often it came last, `caused_ns`, its delays
    (`ranks.blame.delays_of`), and `unseen_ns`: how much longer than the shortest of their kind those collectives took in which not all ranks
    have a trace, which points to a wait for a rank without one. A rank may have a trace alone of its groups; `collectives` is 0 then, and `wait_ns` null.
    """
    blame: pl.DataFrame
    """Whose delay it is that ranks came late to each collective: the columns of `ranks.blame.BLAME`."""
    alone: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_ALONE))
    """`at`, `step`, `blocked_ns` of the calls of groups of which only this rank has a trace; they are no collectives here."""


def waits_of(aligned: Alignment) -> Waits:
    """The waits of a job."""
    every = _with_waits(_with_unseen(aligned.calls.select(_NEEDED)))
    alone = pl.col("alone")
    calls = every.filter(~alone)
    collectives = _collectives(calls)
    collectives = collectives.with_columns(together_since(calls, collectives))
    late = late_to(calls)
    collectives = collectives.join(
        late.select("match", pl.col("late").alias("last"), "alone_ns"),
        on=["match", "last"],
        how="left",
        maintain_order="left",
    ).with_columns(pl.col("alone_ns").fill_null(0))
    blame = blame_of(every, _with_alone(collectives, every.filter(alone)), late, _begins(aligned, every))
    return Waits(
        collectives,
        calls[["match", "at", "start", "end", "wait_ns", "new_wait_ns", "blocked_ns"]],
        _by_rank(every, delays_of(blame, collectives)),
        blame,
        every.filter(alone).select(*_ALONE),
    )


def _with_unseen(calls: pl.DataFrame) -> pl.DataFrame:
    """The calls of collectives, with `unseen_ns`: what those with ranks of no trace take longer than the shortest of their name, size and number of ranks; 0 for others.

    Among them are those `alone`, of a group of which one rank alone has a trace, with a `match` of their own: a rank waits there, too.
    """
    traced = pl.col("at").n_unique().over("key")
    alone = (
        pl.col("match").is_null() & (traced == 1) & (pl.col("group_size") > 1) & ~pl.col("name").is_in(PAIRED)
    )
    calls = calls.with_columns(alone.fill_null(value=False).alias("alone"))
    calls = calls.filter(pl.col("match").is_not_null() | pl.col("alone"))
    own = pl.col("match").max().fill_null(0) + pl.col("alone").cum_sum()
    calls = calls.with_columns(pl.when("alone").then(own).otherwise("match").alias("match"))
    latency = pl.col("duration_ns").min().over("match")
    shortest = latency.min().over("name", "bytes", "group_size")
    absent = (pl.len().over("match") < pl.col("group_size")) & ~pl.col("name").is_in(PAIRED)
    return calls.with_columns(pl.when(absent).then(latency - shortest).otherwise(0).alias("unseen_ns"))


def _with_alone(collectives: pl.DataFrame, alone: pl.DataFrame) -> pl.DataFrame:
    """The collectives as `blame_of` needs them, with those calls of which one rank alone has a trace."""
    own = alone.select(
        "match", pl.col("at").alias("last"), "group", pl.lit(None, dtype=pl.Int64).alias("since")
    )
    return pl.concat([collectives.select("match", "last", "group", "since"), own])


def _by_rank(calls: pl.DataFrame, delays: pl.DataFrame) -> pl.DataFrame:
    """`Waits.ranks`."""
    shared = ~pl.col("alone")
    return (
        calls.group_by("at")
        .agg(
            shared.sum().cast(pl.Int64).alias("collectives"),
            # A rank that shares no collective with another one has no waits that are known.
            pl.when(shared.any()).then(pl.col("new_wait_ns").sum()).alias("wait_ns"),
            (pl.col("is_last") & shared).sum().cast(pl.Int64).alias("last"),
            pl.col("unseen_ns").sum(),
        )
        .join(delays.group_by("at").agg(pl.col("ns").sum().alias("caused_ns")), on="at", how="left")
        .with_columns(pl.col("caused_ns").fill_null(0))
        .select("at", "collectives", "wait_ns", "last", "caused_ns", "unseen_ns")
        .sort("at")
    )


def _begins(aligned: Alignment, calls: pl.DataFrame) -> Int64Array:
    """When the window of each rank begins; if that is not known, with the first call."""
    if aligned.begins:
        return np.array(aligned.begins, dtype=np.int64)
    ranks = int(calls["at"].to_numpy().max(initial=-1)) + 1
    return np.full(ranks, calls["start"].to_numpy().min(initial=0))


def _with_waits(calls: pl.DataFrame) -> pl.DataFrame:
    """With `ready`, `wait_ns`, `new_wait_ns`, `blocked_ns`, `behind` (the `row` of the call that it stood behind), `held` and `is_last`."""
    start, duration = pl.col("start"), pl.col("duration_ns")
    waits = pl.col("name").is_in(list(SYNCHRONISING)) | (pl.col("end") > pl.col("ready"))
    wait = pl.min_horizontal(pl.col("ready") - start, duration)
    calls = (
        calls.with_columns(start.max().over("match").alias("ready"))
        .with_columns(pl.when(waits).then(wait).otherwise(0).alias("wait_ns"))
        .with_columns(
            (start + pl.col("wait_ns")).alias("waited"),
            (2 * pl.col("exposed_ns") >= duration).fill_null(value=True).alias("held"),
            (start.rank("ordinal", descending=True).over("match") == 1).alias("is_last"),
        )
    )
    calls = _with_new_time(calls, "start", "waited", "at").rename({"new_ns": "new_wait_ns"})
    waits_in_all = pl.min_horizontal(pl.col("wait_ns") + pl.col("unseen_ns"), "duration_ns")
    blocked, behind = blocked_by_others(calls.with_columns(waits_in_all.alias("wait_ns")))
    return calls.with_columns(pl.Series("blocked_ns", blocked), pl.Series("behind", behind)).with_row_index(
        "row"
    )


def _with_new_time(rows: pl.DataFrame, begin: str, end: str, of: str) -> pl.DataFrame:
    """With `new_ns`: of the time from `begin` to `end` the part that no earlier row with the same `of` has; in all that is their union."""
    before = pl.col(end).cum_max().shift(1).over(of)
    new = pl.col(end) - pl.max_horizontal(pl.col(begin), before)
    return rows.sort(of, begin, "match").with_columns(new.clip(lower_bound=0).alias("new_ns"))


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
            *(pl.col(name).first() for name in ("group", "group_size", "step")),
            pl.len().cast(pl.Int64).alias("ranks"),
            start.min(),
            pl.col("end").max(),
            latency.alias("latency_ns"),
            (start.max() - start.min()).alias("skew_ns"),
            pl.col("at").filter("is_last").first().alias("last"),
            pl.col("bytes").max(),
            (pl.col("bytes").max() / latency).alias("algorithm_gbps"),
            (pl.col("bus_bytes").max() / latency).alias("bus_gbps"),
        )
        .with_columns(
            pl.when(pl.col("latency_ns") > 0).then(name).alias(name)
            for name in ("algorithm_gbps", "bus_gbps")
        )
    )
    return found.sort("start", "match")


def late_to(calls: pl.DataFrame) -> pl.DataFrame:
    """`match`, `late`, `alone_ns`: the ranks that came late to each collective, and by how much after the last one that was on time, as far as any rank is blocked,
    without the time in which another collective waits for the rank as well.

    Late is the last one, and of more than three ranks up to half of them, if they come after the others by more than those are apart.
    """
    blocked = pl.min_horizontal("blocked_ns", "wait_ns")  # without waits for ranks of no trace
    rows = calls.select("match", "at", "start", blocked.alias("blocked_ns"), "is_last").sort(
        "match", "start", "is_last", "at"
    )
    start, before = pl.col("start"), pl.col("start").shift(1).over("match")
    place, ranks = pl.int_range(pl.len()).over("match"), pl.len().over("match")
    apart = (start - before > before - start.first().over("match")) & (2 * place >= ranks)
    late = (apart.cast(pl.Int8).cum_max().over("match") == 1) | pl.col("is_last")
    rows = rows.with_columns(
        late.fill_null(value=False).alias("is_late"), pl.col("blocked_ns").max().over("match")
    )
    on_time = start.filter(~pl.col("is_late")).max().over("match")
    waited_from = pl.max_horizontal(on_time, start - pl.col("blocked_ns"))
    rows = rows.with_columns(waited_from.alias("from")).filter("is_late")
    new = _with_new_time(rows, "from", "start", "at").rename({"new_ns": "alone_ns", "at": "late"})
    return new.select("match", "late", "alone_ns")
