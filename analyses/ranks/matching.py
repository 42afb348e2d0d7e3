"""Which calls of several ranks are one collective: never by position alone.

Where the profiler recorded the number of each call in its process group, that number tells. Else those calls of a group are
one collective that bear one name, move equally many bytes (where all ranks do), and run at the same time: no rank leaves a
collective before the last one has come. A message is a send and its receive: messages between two ranks keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.ranks.summary import NO_STEP, Summary
from tracekit.facts.collectives import CLOCKS_NS, MESSAGES, SYNCHRONISING
from tracekit.groups import any_known, groups, none_to_null, or_none, text_codes
from tracekit.spans import BoolArray, Int64Array

__all__ = [
    "PAIRED",
    "UNEVEN",
    "UNKNOWN_GROUP",
    "all_calls",
    "at_one_time",
    "by_sequence",
    "by_step",
    "by_time",
    "in_groups",
    "last_step",
    "messages",
    "missing_calls",
]

UNKNOWN_GROUP: Final = "not recorded"
"""Stands for the group of calls of which none was recorded."""
_WHOLE_JOB: Final = "all ranks"
UNEVEN: Final = ("all_to_all", "send_recv", "send", "recv", "gather", "scatter")
"""Calls in which each rank may move another number of bytes."""
PAIRED: Final = (*MESSAGES, "send_recv")
"""Calls of two ranks, whatever the size of their group."""
_LEAST_RANKS: Final = 2
_INT64: Final = 2**63


def all_calls(summaries: Sequence[Summary]) -> pl.DataFrame:
    """The calls of all ranks: those of `Summary.calls` with `at`, the place of the summary, `key`, which tells groups apart, and `size`, the
    bytes that all ranks of the collective must share. `kind` numbers what has one key, name and size, `place` what is in one step too.
    """
    last = last_step(summaries)
    calls = pl.concat(
        [
            _until(one.calls, last).with_columns(pl.lit(at, dtype=pl.Int64).alias("at"))
            for at, one in enumerate(summaries)
        ]
    )
    key = pl.concat_str("group", "group_ranks", separator=" ", ignore_nulls=True)
    known = pl.col("group").is_not_null() | pl.col("group_ranks").is_not_null()
    calls = calls.with_columns(
        pl.when(known)
        .then(key)
        .when(pl.col("group_size").is_not_null())  # of the only group
        .then(pl.lit(_WHOLE_JOB))
        .otherwise(pl.lit(UNKNOWN_GROUP))
        .alias("key"),
        pl.when(~pl.col("name").is_in(UNEVEN)).then("bytes").alias("size"),
    )
    kind = _codes(calls, "key", "name", "size")
    return calls.with_columns(kind, _codes(calls.with_columns(kind), "kind", "step").alias("place"))


def _codes(calls: pl.DataFrame, *names: str) -> pl.Series:
    """The number of what is equal in these columns, null included, called `kind`."""
    codes = [
        text_codes(calls[name])[0] if calls[name].dtype == pl.String else or_none(calls[name])
        for name in names
    ]
    return pl.Series("kind", groups(*codes).of)


def last_step(summaries: Sequence[Summary]) -> int | None:
    """The last step whose calls all ranks sent; None if all calls were sent, or of some rank not even those of one step."""
    cut = [one.facts.last_step for one in summaries if one.cut]
    known = [step for step in cut if step is not None]
    return min(known, default=None) if len(known) == len(cut) else None


def _until(calls: pl.DataFrame, last: int | None) -> pl.DataFrame:
    later = pl.Series(dtype=pl.Int64) if last is None else (calls["step"] > last).arg_true()
    return calls.head(later[0]) if later.len() else calls


def by_sequence(calls: pl.DataFrame) -> pl.Series:
    """The number of the collective of each call by its recorded number in the group; null without, or if no other rank has it."""
    # The numbers of messages count those of one rank, which may be with several others.
    known = pl.col("sequence").is_not_null() & pl.col("group").is_not_null() & ~pl.col("name").is_in(MESSAGES)
    if not any_known(calls["sequence"]):
        return pl.Series("match", [None], dtype=pl.Int64).new_from_index(0, calls.height)
    place = _codes(calls, "key", "sequence", "name").to_numpy()
    return _in_order(calls, place, calls.select(known).to_series().to_numpy())


def by_step(calls: pl.DataFrame) -> pl.Series:
    """The same by the order in a step, group, name and size, in which all ranks have equally many; good enough to compare clocks."""
    sure = pl.col("step").is_not_null() & ~pl.col("name").is_in(UNEVEN)
    place = calls["place"].to_numpy()
    of_rank = groups(calls["at"].to_numpy(), place)
    of_place = groups(of_rank.keys[1])
    equal = of_place.least(of_rank.counts) == of_place.greatest(of_rank.counts)
    known = calls.select(sure).to_series().to_numpy() & equal[place]
    return _in_order(calls, place, known)


def at_one_time(calls: pl.DataFrame, match: pl.Series, shift: Int64Array) -> pl.Series:
    """Of a match by the order in steps what the clocks of the job (`shift` for each rank) prove: all synchronising collectives of a step, group, name
    and size run at one time on all their ranks.

    The times alone do not tell apart collectives of one size that overlap.
    """
    by = pl.Series(shift[calls["at"].to_numpy()])
    rows = calls.select(
        _codes(calls, "key", "step").alias("together"),
        "place",
        pl.col("name").is_in(list(SYNCHRONISING)).alias("meets"),
        pl.col("start") + by,
        pl.col("end") + by,
        match.alias("match"),
    )
    meet = (pl.col("start").max() <= pl.col("end").min()).over("match").fill_null(value=False)
    meets = pl.col("meets")
    # A sender or a root may be gone before others come; what it exchanges stands in the order of the collectives that synchronise.
    others = (meets.any() & (meet | ~meets).all()).over("together")
    agree = pl.when(meets).then(meet).otherwise(others)
    return rows.select(pl.when(agree.all().over("place")).then("match")).to_series()


def in_groups(calls: pl.DataFrame, match: pl.Series, summaries: Sequence[Summary]) -> pl.Series:
    """The matches of calls whose group was not recorded, as far as the groups that the files list allow them: a set of calls of other ranks is
    divided into the groups inside it, if these hold each rank once, else its calls match none.
    """
    ranks = [one.facts.rank for one in summaries]
    listed = {frozenset(group) & frozenset(ranks) for one in summaries for group in one.facts.groups}
    rows = calls.select("at", (pl.col("key") == UNKNOWN_GROUP).alias("unknown"), match.alias("match"))
    rows = rows.with_row_index("row").filter("unknown", pl.col("match").is_not_null())
    if None in ranks or not all(one.facts.groups for one in summaries) or not rows.height:
        return match
    numbers = match.to_list()
    base = max(number for number in numbers if number is not None) + 1
    for _, of_match in rows.group_by("match", maintain_order=True):
        members = {ranks[at]: row for row, at in of_match[["row", "at"]].rows()}
        if frozenset(members) in listed:
            continue
        for row in members.values():
            numbers[row] = None
        parts = [group for group in listed if len(group) > 1 and group < frozenset(members)]
        once = sum(map(len, parts)) == len(members) == len(frozenset().union(*parts))
        for group in parts if once else ():
            for rank in group:
                numbers[members[rank]] = base
            base += 1
    return pl.Series("match", numbers, dtype=pl.Int64)


def messages(calls: pl.DataFrame, shift: Int64Array, *, timed: bool = True) -> pl.Series:
    """The number of the message of each send and each receive, whose ranks were recorded; null for all else.

    The n-th send from one rank to another in a step is the n-th receive, if both have equally many there, all pairs are of one size, and none is
    received before it was sent (by the clocks of the job, `shift` for each rank; not looked at unless `timed`). A trace without steps counts as one.
    """
    known = calls["name"].is_in(MESSAGES) & calls["source"].is_not_null() & calls["destination"].is_not_null()
    none = pl.Series("match", [None] * calls.height, dtype=pl.Int64)
    if not known.any():
        return none
    pair = ["key", "source", "destination", "step"]
    two = [*pair, "number"]
    rows = calls.filter(known)
    by = pl.Series(shift[rows["at"].to_numpy()])
    rows = rows.with_columns(pl.col("start", "end") + by, pl.col("step").fill_null(NO_STEP)).with_columns(
        pl.int_range(pl.len()).over(*pair, "name").alias("number")
    )
    sent, received = pl.col("start").filter(name="send").min(), pl.col("end").filter(name="recv").max()
    fits = (
        (pl.len().over(two) == len(MESSAGES))
        & (pl.col("name").n_unique().over(two) == len(MESSAGES))
        & (pl.col("bytes").n_unique().over(two) == 1)
        & ((received.over(two) + CLOCKS_NS >= sent.over(two)).fill_null(value=False) | (not timed))
    )
    number = pl.struct(two).rank("dense").cast(pl.Int64)
    match = rows.select(pl.when(fits.all().over(pair)).then(number)).to_series()
    return none.scatter(known.arg_true(), match)


def _in_order(calls: pl.DataFrame, place: Int64Array, known: BoolArray) -> pl.Series:
    """The number of the collective of each call, null where it is not known: the n-th calls of the ranks in a place are one."""
    of_rank = groups(calls["at"].to_numpy(), place)
    order = np.argsort(of_rank.of, kind="stable")
    number = np.empty(order.size, dtype=np.int64)
    number[order] = np.arange(order.size) - np.repeat(
        np.cumsum(of_rank.counts) - of_rank.counts, of_rank.counts
    )
    found = groups(place, number)
    known = known & (found.counts >= _LEAST_RANKS)[found.of]
    return none_to_null(np.where(known, found.of, -1)).alias("match")


def by_time(calls: pl.DataFrame, shift: Int64Array) -> pl.Series:
    """The same by the time on the clock of the job (`shift` for each rank): calls of a group, a name and a size that overlap, one of each
    rank. Each call joins those that end next to it, since ranks leave together but come when they like.
    """
    if calls.is_empty():
        return pl.Series("match", [], dtype=pl.Int64)
    kind = calls["kind"].to_numpy()
    at = calls["at"].to_numpy()
    start = calls["start"].to_numpy() + shift[at]
    number = _collective_of(kind, at, start, start + calls["duration_ns"].to_numpy())
    counts = np.bincount(number)
    return pl.Series("match", number).set(pl.Series(counts[number] < _LEAST_RANKS), None)


def _collective_of(kind: Int64Array, at: Int64Array, start: Int64Array, end: Int64Array) -> Int64Array:
    """The number of the collective of each call. By kind and end, a collective ends before the first call of another kind, the second call
    of a rank, and the first call that starts after one of its calls ended.
    """
    start, end = start - start.min(), end - start.min()
    span = int(max(start.max(), end.max())) + 1
    if span * (int(kind.max()) + 1) >= _INT64:  # origins that lie far apart: their order says as much
        times = pl.Series(np.concatenate([start, end])).rank("dense").to_numpy().astype(np.int64)
        start, end, span = times[: len(start)], times[len(start) :], len(times) + 1
    begun, ended = kind * span + start, kind * span + end
    order = np.argsort(ended, kind="stable")
    begun, ended, kind, at = begun[order], ended[order], kind[order], at[order]
    place = np.arange(len(kind))
    other_kind = np.searchsorted(kind, kind, side="right")
    by_rank = np.argsort(kind * (int(at.max()) + 1) + at, kind="stable")
    same = (np.diff(kind[by_rank]) == 0) & (np.diff(at[by_rank]) == 0)
    before = np.full(len(kind), -1)
    before[by_rank[1:][same]] = by_rank[:-1][same]
    again = np.searchsorted(np.maximum.accumulate(before), place, side="left")
    too_late = np.searchsorted(np.maximum.accumulate(begun), ended, side="right")
    following = np.minimum(np.minimum(other_kind, again), too_late).tolist()
    first = np.zeros(len(kind), dtype=np.int64)
    here = 0
    while here < len(kind):
        first[here] = 1
        here = following[here]
    number = np.empty(len(kind), dtype=np.int64)
    number[order] = np.cumsum(first) - 1
    return number


def missing_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """`key`, `name`, `match`, `at`: a rank that has no call of a collective of its group, though it has earlier and later ones.

    `calls` are on the clock of the job. Of a call that is part of no collective (`match` is null), a rank lacks the other side if it has
    no such call without a collective itself. Sends and receives are not of the whole group; and where groups were not recorded, a rank may be in
    another one.
    """
    # A sender or a root may be gone before others come, so only recorded numbers tell that one lacks the call.
    told = pl.col("name").is_in(list(SYNCHRONISING)) | pl.col("sequence").is_not_null()
    of_group = told & ~pl.col("name").is_in(PAIRED) & (pl.col("key") != UNKNOWN_GROUP)
    calls = calls.filter(of_group).with_columns(
        pl.col("match").fill_null(-1 - pl.int_range(pl.len())).alias("set")
    )
    spans = calls.group_by("key", "at").agg(
        pl.col("start").min().alias("first"), pl.col("end").max().alias("last")
    )
    collectives = calls.group_by("set").agg(
        pl.col("key", "name", "size", "match").first(), pl.col("start").max().alias("from"), pl.col("end").min().alias("to"), "at"
    )  # fmt: skip
    whole = spans.group_by("key").len("ranks")
    collectives = collectives.join(whole, on="key").filter(pl.col("at").list.len() < pl.col("ranks"))
    pairs = collectives.join(spans.rename({"at": "rank"}), on="key").filter(
        ~pl.col("at").list.contains(pl.col("rank"))
        & (pl.col("first") < pl.col("from"))
        & (pl.col("last") > pl.col("to"))
    )
    alone = calls.filter(pl.col("match").is_null()).select("key", "name", "size", pl.col("at").alias("rank"))
    unsure = pairs.filter(pl.col("match").is_null())
    unsure = unsure.join(alone, on=["key", "name", "size", "rank"], how="semi", nulls_equal=True)
    absent = pairs.join(unsure, on=["set", "rank"], how="anti")
    return absent.select("key", "name", "match", pl.col("rank").alias("at")).sort("match", "at")
