"""The clocks of the ranks: how far apart they are, since all ranks leave a synchronising collective together."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.ranks.summary import Summary
from tracekit.facts.collectives import SYNCHRONISING
from tracekit.spans import Int64Array
from tracekit.trace import Schema

__all__ = ["CLOCKS", "clocks_of", "in_utc", "origins", "with_messages"]

CLOCKS: Final[Schema] = {
    "at": pl.Int64,
    "shift_ns": pl.Int64,
    "offset_ns": pl.Int64,
    "uncertainty_ns": pl.Int64,
    "calls": pl.Int64,
    "first": pl.Int64,
}
_YEARS: Final = 10**17
_FAR: Final = 8
"""So many times the median deviation from the middle, and more than `_CLOSE_NS`, is an outlier, if at most `_MOST_FAR` are."""
_MOST_FAR: Final = 0.2
_CLOSE_NS: Final = 1_000
_MANY: Final = 20
"""From so many collectives on, the outermost tenth says nothing of a clock."""

_Pair = tuple[int, int, int, int, int]


def in_utc(summaries: Sequence[Summary]) -> bool:
    """Whether all traces say when they began, and their clocks are not years apart."""
    return _near([one.facts.origin_utc_ns for one in summaries])


def origins(summaries: Sequence[Summary]) -> Int64Array:
    """The origin of each trace in ns after that of the first: in UTC if all say it, else on the clock of the files.

    Origins that are years apart are those of no clock that the ranks share; all are 0 then.
    """
    files = [one.facts.origin_ns for one in summaries]
    values = [one.facts.origin_utc_ns or 0 for one in summaries] if in_utc(summaries) else files
    apart = [value - values[0] for value in values] if _near(values) else [0] * len(values)
    return np.array(apart, dtype=np.int64)


def _near(values: Sequence[int | None]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and len(known) == len(values) and max(known) - min(known) < _YEARS


def clocks_of(calls: pl.DataFrame, match: pl.Series, origin: Int64Array) -> pl.DataFrame:
    """One row per rank with the columns of `CLOCKS`.

    `shift_ns` is what to add to a time of its trace to get the time of the job, whose zero is the origin of the first trace.
    `offset_ns` is the part of it that collectives show beyond the origins of the traces, against the first rank that it shares collectives
    with, directly or through other ranks; null if there is none. The ranks leave collectives within `uncertainty_ns` of each other by
    these clocks (from 20 collectives on, nine tenths of them), so that a drift is in it; on the way through other ranks it adds up. Where
    the middle of the differences is less than half of their range, the offset is 0, as between the clocks of one machine. `calls` are the
    collectives it rests on, `first` is the rank against which it is: ranks with other ones are not related.
    """
    usable = match.is_not_null() & calls["name"].is_in(list(SYNCHRONISING))
    rows = calls[["at", "end"]].with_columns(match.alias("match")).filter(usable)
    rows = rows.with_columns((pl.col("end") + pl.Series(origin[rows["at"].to_numpy()])).alias("end"))
    offsets = _offsets(_pairs(rows))
    made = [
        (at, int(start) + offsets.get(at, (0,))[0], *offsets.get(at, (None, None, 0, None)))
        for at, start in enumerate(origin.tolist())
    ]
    return pl.DataFrame(made, schema=CLOCKS, orient="row")


def with_messages(clocks: pl.DataFrame, calls: pl.DataFrame, match: pl.Series) -> pl.DataFrame:
    """The clocks, with those related that only messages connect (`match` are their numbers): a message is received after it was sent, so messages both ways leave a range for
    the offset. It is the middle of the range, or 0 if the range holds it.
    """
    first = clocks.select(pl.coalesce("first", "at")).to_series().to_numpy()
    shift = clocks["shift_ns"].to_numpy()
    at = calls["at"].to_numpy()
    rows = calls.select(
        "name",
        match.alias("match"),
        pl.Series("part", first[at]),
        *(pl.col(name) + pl.Series(shift[at]) for name in ("start", "end")),
    ).drop_nulls("match")
    both = rows.filter(pl.col("name") == "send").join(
        rows.filter(pl.col("name") == "recv"), on="match", suffix="_there"
    )
    between = (
        both.filter(pl.col("part") != pl.col("part_there"))
        .group_by("part", "part_there")
        .agg((pl.col("start") - pl.col("end_there")).max().alias("least"))
    )
    least = {(one, other): ns for one, other, ns in between.rows()}
    pairs = []
    for (one, other), low in sorted(least.items()):
        high = -least.get((other, one), low)
        if one < other and (other, one) in least and low <= high:
            ahead = 0 if low <= 0 <= high else -(low + high) // 2
            pairs.append((one, other, ahead, max(abs(low + ahead), abs(high + ahead)), 0))
    found = _offsets(pairs)
    moved = [(*found[part][:2], found[part][3]) if part in found else (0, 0, None) for part in first.tolist()]
    more = pl.DataFrame(moved, {"more": pl.Int64, "unsure": pl.Int64, "related": pl.Int64}, orient="row")
    known = pl.col("related").is_not_null()
    return clocks.hstack(more).with_columns(
        pl.col("shift_ns") + pl.col("more"),
        pl.when(known)
        .then(pl.col("offset_ns").fill_null(0) + pl.col("more"))
        .otherwise("offset_ns")
        .alias("offset_ns"),
        pl.when(known)
        .then(pl.col("uncertainty_ns").fill_null(0) + pl.col("unsure"))
        .otherwise("uncertainty_ns")
        .alias("uncertainty_ns"),
        pl.when(known).then("related").otherwise("first").alias("first"),
    )[list(CLOCKS)]


def _offsets(pairs: Sequence[_Pair]) -> dict[int, tuple[int, int, int, int]]:
    """By rank its offset, the uncertainty of it, the collectives it rests on, and the first rank that pairs connect it with, against which
    it is, along the way with the least uncertainty.
    """
    near: dict[int, list[tuple[int, int, int, int]]] = {}
    for first, second, ahead, unsure, calls in pairs:
        near.setdefault(first, []).append((second, -ahead, unsure, calls))
        near.setdefault(second, []).append((first, ahead, unsure, calls))
    made: dict[int, tuple[int, int, int, int]] = {}
    for start in sorted(near):
        calls = max(one[3] for one in near[start])
        # By uncertainty, then by the number of pairs on the way, then by rank.
        ways = [(0, 0, start, 0, calls)]
        while ways:
            unsure, pairs_before, at, offset, calls = heappop(ways)
            if at in made:
                continue
            made[at] = (offset, unsure, calls, start)
            for other, step, more, shared in near[at]:
                if other not in made:
                    heappush(ways, (unsure + more, pairs_before + 1, other, offset + step, shared))
    return made


def _pairs(rows: pl.DataFrame) -> list[_Pair]:
    """(first, second, ns by which the second's clock is ahead, uncertainty, collectives): the first rank of each collective with every other."""
    firsts = rows.sort("at").group_by("match", maintain_order=True).first()
    both = rows.rename({"at": "second"}).join(firsts, on="match", suffix="_first")
    both = both.filter(pl.col("second") != pl.col("at")).with_columns(
        (pl.col("end") - pl.col("end_first")).alias("ahead")
    )
    pair, ahead, few = ["at", "second"], pl.col("ahead"), pl.len() < _MANY
    off = (ahead - ahead.median().over(pair)).abs()
    far = off > pl.max_horizontal(_FAR * off.median().over(pair), _CLOSE_NS)
    # A rank that is held up as it leaves one collective says nothing of its clock.
    both = both.filter(~far | (far.mean().over(pair) > _MOST_FAR))
    pairs = both.group_by(pl.col("at").alias("first"), "second").agg(
        ahead.median().round().cast(pl.Int64).alias("middle"),
        pl.when(few).then(ahead.min()).otherwise(ahead.quantile(0.05)).floor().cast(pl.Int64).alias("low"),
        pl.when(few).then(ahead.max()).otherwise(ahead.quantile(0.95)).ceil().cast(pl.Int64).alias("high"),
        pl.len().cast(pl.Int64).alias("calls"),
    )
    # The middle of few may itself lie anywhere between them.
    middle, low, high = pl.col("middle"), pl.col("low"), pl.col("high")
    none = 2 * middle.abs() <= high - low
    pairs = pairs.select(
        "first",
        "second",
        pl.when(none).then(0).otherwise(middle).alias("ahead"),
        pl.when(none)
        .then(pl.max_horizontal(low.abs(), high.abs()))
        .when(pl.col("calls") < _MANY)
        .then(high - low)
        .otherwise(pl.max_horizontal(middle - low, high - middle))
        .alias("uncertainty"),
        "calls",
    )
    return pairs.sort("first", "second").rows()
