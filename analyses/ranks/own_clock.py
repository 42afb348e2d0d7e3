"""How much longer a rank took than the others by its own clock, which stands still while it is blocked."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.facts.collectives import MESSAGES
from tracekit.groups import groups, or_none
from tracekit.spans import Int64Array

__all__ = ["Rows", "longer_in_collectives", "longer_in_messages", "together_since"]

_HELD: Final = 0.75
"""If so many of the ranks of a collective compute nothing during most of it, all go on together after it."""
_MOSTLY: Final = 0.9
"""The quantile that a rank mostly stays below."""

Floats = npt.NDArray[np.float64]


def together_since(calls: pl.DataFrame, collectives: pl.DataFrame) -> pl.Series:
    """For each collective the `match` of the latest one before it after which all its ranks went on together; null if there is none.

    That is one of a group that holds all its ranks, in which most of them and the last one to come computed nothing (`held`), and that was
    `ready` before the first of them came.
    """
    members: defaultdict[str, set[int]] = defaultdict(set)
    groups_of: defaultdict[int, set[str]] = defaultdict(set)
    for key, at in calls[["key", "at"]].unique().rows():
        members[key].add(at)
        groups_of[at].add(key)
    # A rank whose trace begins later, or ends, may have gone on with the others.
    recorded = calls.group_by("key", "at").agg(
        pl.col("ready").min().alias("from"), pl.col("ready").max().alias("to")
    )
    met = calls.filter(~pl.col("name").is_in(MESSAGES)).group_by("match").agg(
        pl.col("key", "ready").first(),
        pl.when(pl.col("held").filter("is_last").all()).then(pl.col("held").mean()).alias("held"),
        pl.len().cast(pl.Int64).alias("ranks"),
    )  # fmt: skip
    # Where groups were not recorded, not all ranks with calls of none take part.
    met = met.filter(pl.col("held") >= _HELD)
    there = (pl.col("from") <= pl.col("ready")) & (pl.col("ready") <= pl.col("to"))
    whole = (
        met[["match", "key", "ready"]]
        .join(recorded, on="key")
        .group_by("match")
        .agg(there.sum().alias("whole"))
    )
    met = met.join(whole, on="match").filter(pl.col("ranks") >= pl.col("whole"))
    synchronised = met.sort("ready", "match")
    keys = calls.group_by("match").agg(pl.col("key").first(), pl.col("at"), pl.col("name").first())
    rows = collectives[["match", "start"]].join(keys, on="match", how="left", maintain_order="left")
    found = np.full(rows.height, -1, dtype=np.int64)
    by_key = {key: one for (key,), one in synchronised.group_by("key", maintain_order=True)}
    # Of a message its two ranks are the group.
    of_pair = rows["name"].is_in(MESSAGES)
    kind = pl.struct(
        pl.when(of_pair).then(None).otherwise("key").alias("key"), pl.when(of_pair).then("at").alias("at")
    )
    for _, same in rows.with_row_index("row").group_by(kind):
        ranks = set(same["at"][0]) if of_pair[same["row"][0]] else members[same["key"][0]]
        around = [key for key in groups_of[min(ranks)] if ranks <= members[key] and key in by_key]
        if not around:
            continue
        earlier = pl.concat([by_key[key] for key in sorted(around)]).sort("ready", "match")
        at = np.searchsorted(earlier["ready"].to_numpy(), same["start"].to_numpy(), side="left") - 1
        found[same["row"].to_numpy()] = np.where(at < 0, -1, earlier["match"].to_numpy()[at])
    return pl.Series("since", found).set(pl.Series(found < 0), None)


class Rows:
    """The calls by rank and by when the last rank came, as arrays, with the ranks' own clocks."""

    def __init__(self, calls: pl.DataFrame, collectives: pl.DataFrame, begins: Int64Array) -> None:
        self.at, self.start, self.ready = (calls[name].to_numpy() for name in ("at", "start", "ready"))
        self.blocked = calls["blocked_ns"].to_numpy()
        # Each rank has keys from its first call to its last: clocks that nothing relates may be years apart.
        of_rank = groups(self.at)
        self._low, high = np.zeros_like(begins), np.zeros_like(begins)
        self._low[of_rank.keys[0]], high[of_rank.keys[0]] = (
            of_rank.least(self.start),
            of_rank.greatest(self.ready),
        )
        self._span = high - self._low + 2
        self._base = np.cumsum(self._span) - self._span
        self._keys = self.key(self.at, self.ready)
        self._passed = np.concatenate([[0], np.cumsum(self.blocked)])
        ranks = np.arange(begins.size + 1)
        self._first = np.searchsorted(self.at, ranks, side="left")
        place = {match: row for row, match in enumerate(collectives["match"].to_list())}
        self.match = np.array([place[match] for match in calls["match"].to_list()], dtype=np.int64)
        """The row of the collective of each call."""
        ready = np.zeros(collectives.height, dtype=np.int64)
        ready[self.match] = self.ready
        since = np.array([place.get(match, -1) for match in collectives["since"].to_list()], dtype=np.int64)[
            self.match
        ]
        self.since_time = np.where(since < 0, begins[self.at], ready[since])
        self.own_start = self.own(self.at, self.start)

    def key(self, at: Int64Array, time: Int64Array) -> Int64Array:
        """A number that orders by rank, then by time; what is before or after all calls of the rank has one number."""
        key: Int64Array = self._base[at] + np.clip(time - self._low[at] + 1, 0, self._span[at] - 1)
        return key

    def until(self, at: Int64Array, time: Int64Array, *, before: bool = False) -> Int64Array:
        """How many rows stand before those of the rank that are ready later than a time (`before`: at it or later)."""
        return np.searchsorted(self._keys, self.key(at, time), side="left" if before else "right")

    def own(self, at: Int64Array, time: Int64Array) -> Int64Array:
        """The time by the rank's own clock: without that in which it was blocked."""
        blocked: Int64Array = self._passed[self.until(at, time)] - self._passed[self._first[at]]
        return time - blocked

    def range_of(self, at: Int64Array, after: Int64Array, time: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The rows of the rank that were ready after one time and before another."""
        first = self.until(at, after)
        return first, np.maximum(self.until(at, time, before=True), first)


def _middle_of_others(group: Int64Array, values: Floats) -> Floats:
    """For each row the median of the values of the other rows of its group, without NaN; NaN if there are none."""
    found = np.full(values.size, np.nan)
    rows = np.flatnonzero(~np.isnan(values))
    rows = rows[np.lexsort((values[rows], group[rows]))]
    if not rows.size:
        return found
    begins = np.flatnonzero(np.append(True, np.diff(group[rows]) != 0))
    size = np.diff(np.append(begins, rows.size))
    first, others = np.repeat(begins, size), np.repeat(size, size) - 1
    place, ordered = np.arange(rows.size) - first, values[rows]
    halves = []
    for middle in ((others - 1) // 2, others // 2):
        at = np.minimum(first + middle + (middle >= place), rows.size - 1)
        halves.append(ordered[at])
    found[rows] = np.where(others > 0, (halves[0] + halves[1]) / 2, np.nan)
    return found


def longer_in_collectives(rows: Rows) -> Floats:
    """How much longer each rank took, by its own clock, than the middle of the others since they went on together."""
    own = (rows.own_start - rows.own(rows.at, rows.since_time)).astype(np.float64)
    return own - _middle_of_others(rows.match, own)


def longer_in_messages(calls: pl.DataFrame, rows: Rows) -> tuple[Floats, Int64Array]:
    """The same of sends that pass on what the rank received: since the n-th receive of the step in a direction, or the send before if that came
    later (a stage that others wait for has received more than it has begun), to the n-th send in it. Other ranks with
    messages of this size in this direction are those to compare with, each by what it mostly stays below: stages fill at other times. And since when it counts.
    """
    found, since = np.full(calls.height, np.nan), rows.start.copy()
    where = ["at", "step", "onward", "bytes"]
    table = pl.DataFrame(
        {
            "row": np.arange(calls.height), "at": rows.at, "own": rows.own_start, "ready": rows.ready,
            **{name: calls[name] for name in ("name", "step", "bytes", "start")},
            "onward": calls["destination"] > calls["source"],
        }
    ).filter(pl.col("name").is_in(MESSAGES)).sort("start")  # fmt: skip
    sends, receives = ((pl.col("name") == name).sum() for name in MESSAGES)
    table = table.filter((sends == receives).over(where)).with_columns(
        pl.int_range(pl.len()).over(*where, "name").alias("number")
    )
    received = table.filter(pl.col("name") == "recv").select(*where, "number", "ready")
    sent = table.filter(pl.col("name") == "send")
    sent = sent.with_columns(pl.col("start").shift(1).over("at").alias("sent_before"))
    both = sent.join(received, on=[*where, "number"], suffix="_before", nulls_equal=True)
    both = both.filter(pl.col("ready_before") <= pl.col("start"))
    both = both.with_columns(pl.max_horizontal("ready_before", "sent_before").alias("ready_before"))
    if not both.height:
        return found, since
    at = both["at"].to_numpy()
    own = pl.Series("own", both["own"].to_numpy() - rows.own(at, both["ready_before"].to_numpy()))
    both = both.with_columns(own.cast(pl.Float64))
    usual = both.group_by("onward", "bytes", "at", maintain_order=True).agg(pl.col("own").quantile(_MOSTLY))
    kind = groups(usual["onward"].to_numpy().astype(np.int64), or_none(usual["bytes"])).of
    middle = pl.Series("middle", _middle_of_others(kind, usual["own"].to_numpy()))
    both = both.join(usual.drop("own").with_columns(middle), on=["onward", "bytes", "at"], nulls_equal=True)
    found[both["row"].to_numpy()] = (both["own"] - both["middle"]).to_numpy()
    since[both["row"].to_numpy()] = both["ready_before"].to_numpy()
    return found, since
