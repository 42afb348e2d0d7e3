"""Which calls of several ranks are one collective: never by position alone.

Where the profiler recorded the number of each call in its process group, that number tells. Else those calls of a group are
one collective that bear one name, move equally many bytes (where all ranks do), and run at the same time: no rank leaves a
collective before the last one has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.ranks.summary import Summary
from tracekit.spans import Int64Array

__all__ = ["UNEVEN", "all_calls", "by_sequence", "by_step", "by_time", "missing_calls"]

_WHOLE_JOB: Final = "all ranks"
"""Stands for the group of calls of which none was recorded."""
UNEVEN: Final = ("all_to_all", "send_recv", "send", "recv", "gather", "scatter")
"""Calls in which each rank may move another number of bytes."""
_LEAST_RANKS: Final = 2


def all_calls(summaries: Sequence[Summary]) -> pl.DataFrame:
    """The calls of all ranks: those of `Summary.calls` with `at`, the place of the summary, `key`, which tells groups apart, and `size`, the
    bytes that all ranks of the collective must share.
    """
    calls = pl.concat(
        [one.calls.with_columns(pl.lit(at, dtype=pl.Int64).alias("at")) for at, one in enumerate(summaries)]
    )
    key = pl.concat_str("group", "group_ranks", separator=" ", ignore_nulls=True)
    known = pl.col("group").is_not_null() | pl.col("group_ranks").is_not_null()
    return calls.with_columns(
        pl.when(known).then(key).otherwise(pl.lit(_WHOLE_JOB)).alias("key"),
        pl.when(~pl.col("name").is_in(UNEVEN)).then("bytes").alias("size"),
    ).sort("at", "start", maintain_order=True)


def by_sequence(calls: pl.DataFrame) -> pl.Series:
    """The number of the collective of each call by its recorded number in the group; null without, or if no other rank has it."""
    collective = ["key", "sequence", "name", "number"]
    rows = calls.with_columns(pl.int_range(pl.len()).over("at", "key", "sequence", "name").alias("number"))
    known = pl.col("sequence").is_not_null() & pl.col("group").is_not_null()
    return _numbered(rows, collective, known)


def by_step(calls: pl.DataFrame) -> pl.Series:
    """The same by the order in a step, group, name and size, in which all ranks have equally many; good enough to compare clocks."""
    place = ["key", "step", "name", "size"]
    rows = calls.with_columns(
        pl.int_range(pl.len()).over("at", *place).alias("number"), pl.len().over("at", *place).alias("own")
    )
    sure = pl.col("step").is_not_null() & ~pl.col("name").is_in(UNEVEN)
    equal = pl.col("own").min().over(place) == pl.col("own").max().over(place)
    return _numbered(rows, [*place, "number"], sure & equal)


def _numbered(rows: pl.DataFrame, collective: list[str], known: pl.Expr) -> pl.Series:
    ranks = pl.col("at").n_unique().over(collective)
    number = pl.struct(collective).rank("dense").cast(pl.Int64)
    return rows.select(pl.when(known & (ranks >= _LEAST_RANKS)).then(number).alias("match")).to_series()


def by_time(calls: pl.DataFrame, shift: Int64Array) -> pl.Series:
    """The same by the time on the clock of the job (`shift` for each rank): calls of a group, a name and a size that overlap, one of each
    rank. Each call joins the others that ended last before or with it.
    """
    begin = pl.Series("start", calls["start"].to_numpy() + shift[calls["at"].to_numpy()])
    rows = (
        calls.select("at", pl.struct("key", "name", "size").rank("dense").alias("kind"), "duration_ns")
        .with_columns(begin)
        .with_row_index("row")
        .sort("kind", "start", maintain_order=True)
    )
    if rows.is_empty():
        return pl.Series("match", [], dtype=pl.Int64)
    number = np.empty(rows.height, dtype=np.int64)
    number[rows["row"].to_numpy()] = _collective_of(rows)
    counts = np.bincount(number)
    return pl.Series("match", number).set(pl.Series(counts[number] < _LEAST_RANKS), None)


def _collective_of(rows: pl.DataFrame) -> Int64Array:
    """The number of the collective of each call; `rows` are by kind and start. A collective ends before the first call of another kind,
    the second call of a rank, and the first call that starts after one of its calls ended.
    """
    kind, count = rows["kind"].to_numpy().astype(np.int64), rows.height
    place = np.arange(count)
    other_kind = np.searchsorted(kind, kind, side="right")
    before = (
        rows.select("kind", "at")
        .with_columns(pl.Series("place", place))
        .select(pl.col("place").shift(1).over("kind", "at"))
    )
    again = np.searchsorted(
        np.maximum.accumulate(before.to_series().fill_null(-1).to_numpy()), place, side="left"
    )
    # Times as their places among all times: the products with the kinds then fit into 64 bits.
    times = (
        pl.concat([rows["start"], rows["start"] + rows["duration_ns"]])
        .rank("dense")
        .to_numpy()
        .astype(np.int64)
    )
    whole = kind * (2 * count + 1)
    later = np.searchsorted(whole + times[:count], whole + times[count:], side="right")
    too_late = np.minimum.accumulate(later[::-1])[::-1]
    following = np.minimum(np.minimum(other_kind, again), too_late).tolist()
    first = np.zeros(count, dtype=np.int64)
    at = 0
    while at < count:
        first[at] = 1
        at = following[at]
    return np.cumsum(first) - 1


def missing_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """`key`, `name`, `match`, `at`: a rank that has no call of a collective of its group, though it has earlier and later ones.

    `calls` are those with a match, their times on the clock of the job.
    """
    spans = calls.group_by("key", "at").agg(
        pl.col("start").min().alias("first"), pl.col("end").max().alias("last")
    )
    collectives = calls.group_by("match").agg(
        pl.col("key").first(), pl.col("name").first(), pl.col("start").max().alias("from"), pl.col("end").min().alias("to"), "at"
    )  # fmt: skip
    members = pl.col("at_right")
    pairs = collectives.join(spans.rename({"at": "at_right"}), on="key", how="inner")
    absent = pairs.filter(
        ~pl.col("at").list.contains(members)
        & (pl.col("first") < pl.col("from"))
        & (pl.col("last") > pl.col("to"))
    )
    return absent.select("key", "name", "match", members.alias("at")).sort("match", "at")
