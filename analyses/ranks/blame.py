"""For whom the ranks really wait: a rank that comes last because it had to wait for another one passes the blame on.

A rank's own clock stands still while waits for late ranks keep it from computing (`ranks.blocked`). What it takes longer by this clock than the others of the group, since they last went on together, is its own delay;
the rest it brought along from the call that blocked it longest since then, and there it goes to the rank that came last. A delay that
computation hides shows again in every collective until somebody is blocked by it: it counts where it first shows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.ranks.own_clock import Rows, longer_in_collectives, longer_in_messages
from tracekit.classes import dataclass
from tracekit.facts.collectives import MESSAGES
from tracekit.facts.units import NS_PER_US
from tracekit.spans import BoolArray, Int64Array
from tracekit.trace import Schema

__all__ = ["BLAME", "blame_of", "delays_of", "once"]

BLAME: Final[Schema] = {
    "match": pl.Int64,
    "late": pl.Int64,
    "origin": pl.Int64,
    "at": pl.Int64,
    "ns": pl.Int64,
    "longer_ns": pl.Int64,
}
_MOST_HOPS: Final = 100
"""So far a delay is followed."""
_SHOWS_NS: Final = NS_PER_US
"""On the way back, calls that show less are passed over."""


def blame_of(
    calls: pl.DataFrame, collectives: pl.DataFrame, late: pl.DataFrame, begins: Int64Array
) -> pl.DataFrame:
    """Who caused the time `alone_ns` by which ranks were `late` to each collective; columns of `BLAME`.

    `calls` are those of `ranks.waits`, one for each rank and match, among them those `alone`, of which no other rank has a trace: `match`, `at`, `name`, `step`, `bytes`, `source`, `destination`, `start`, `ready` (when the last rank came), `end`, `wait_ns`,
    `blocked_ns` (no time counts twice); `collectives` have `match`, `last`, and `since` of
    `ranks.own_clock.together_since`; `late` is that of `ranks.waits.late_to`. `begins` says when the window of each rank begins. `origin` is the collective before which the delay arose, `at` the rank,
    `ns` the time, `longer_ns` how much longer the rank took before `origin`. For each `match` and `late` rank the times sum to `alone_ns` at most: what no rank took longer, such as the time in which a pipeline
    fills, is nobody's delay.
    """
    calls = calls.sort("at", "ready", "start")
    rows = Rows(calls, collectives, begins)
    if not calls.height:
        return pl.DataFrame(schema=BLAME)
    message = calls["name"].is_in(MESSAGES).to_numpy()
    of_messages, received = longer_in_messages(calls, rows)
    queued = _behind(calls)
    longer = np.where(message, of_messages, longer_in_collectives(rows))
    longer = np.where(queued < 0, np.floor(np.maximum(np.nan_to_num(longer), 0)), 0).astype(np.int64)
    since = np.where(message & ~np.isnan(of_messages), received, rows.since_time)
    new, before = _first_shown(rows, longer, since)
    # A message that compares with none has what the rank's next collective shows of it.
    whole = ~(message | calls["alone"].to_numpy())
    ahead = np.where(np.isnan(of_messages) & (queued < 0), _next_collective(rows, message, whole), -1)
    origin = np.where(ahead < 0, np.arange(ahead.size), ahead)
    steps = _Steps(origin, new[origin], before, since, queued, calls["wait_ns"].to_numpy())
    return _followed(rows, collectives, late, steps)


def once(blame: pl.DataFrame) -> pl.DataFrame:
    """`match`, `origin`, `at`, `ns`, `longer_ns`: by each delay several ranks may be late to one collective."""
    return blame.group_by("match", "origin", "at").agg(pl.col("ns", "longer_ns").max())


def delays_of(blame: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """`origin`, `at`, `ns`: each delay once, however many groups have to wait for it.

    Ranks of one group may wait for a part of it in each of several collectives. What is more than the rank took longer before `origin` is due to what
    it took longer before that, since the ranks last went on together.
    """
    order = collectives.select("match", "group", "since", pl.int_range(pl.len()).alias("order"))
    in_group = (
        once(blame)
        .join(order[["match", "group"]], on="match")
        .group_by("origin", "at", "group")
        .agg(pl.col("ns").sum(), pl.col("longer_ns").first())
        .join(order[["match", "since", "order"]], left_on="origin", right_on="match")
        .sort("order", descending=True)
    )
    span = ["at", "group", "since"]
    over = (pl.col("ns") - pl.col("longer_ns")).cum_sum().over(span)
    passed = over - pl.min_horizontal(over.cum_min().over(span), 0)  # to the delay before this one
    in_group = in_group.with_columns(passed.alias("passed"))
    came = pl.col("passed").shift(1, fill_value=0).over(span)
    return (
        in_group.with_columns((pl.col("ns") + came - pl.col("passed")).alias("ns"))
        .group_by("origin", "at")
        .agg(pl.col("ns").max())
        .sort("origin", "at")
    )


def _next_collective(rows: Rows, message: BoolArray, collective: BoolArray) -> Int64Array:
    """For each message the row of the rank's next collective, if that compares what ranks did in a time around the message; else −1."""
    found = np.full(message.size, -1, dtype=np.int64)
    whole, parts = (np.flatnonzero(each) for each in (collective, message))
    if not whole.size:
        return found
    whole = whole[np.lexsort((rows.start[whole], rows.at[whole]))]
    keys = rows.key(rows.at[whole], rows.start[whole])
    following = whole[
        np.minimum(np.searchsorted(keys, rows.key(rows.at[parts], rows.start[parts])), whole.size - 1)
    ]
    same = (rows.at[following] == rows.at[parts]) & (rows.since_time[following] <= rows.start[parts])
    found[parts] = np.where(same, following, -1)
    return found


def _behind(calls: pl.DataFrame) -> Int64Array:
    """For each call that stood behind another one in its stream the row of that one: its start does not say when the rank was ready. −1 for others."""
    row, behind = calls["row"].to_numpy(), calls["behind"].to_numpy()
    place = np.empty(row.size, dtype=np.int64)
    place[row] = np.arange(row.size)
    return np.where(behind < 0, -1, place[behind])


def _first_shown(rows: Rows, longer: Int64Array, since: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Of each call what is new in how much longer the rank took: what its earlier calls after the time `since` have not shown.
    And the row of the rank's latest call before it that showed something new, −1 if there is none.
    """
    new = np.zeros_like(longer)
    order = np.lexsort((rows.start, rows.at))
    later = order[longer[order] > 0]
    first = np.searchsorted(
        rows.key(rows.at, rows.start)[later], rows.key(rows.at[later], since[later]), side="right"
    )
    told = [0]
    for before, ns in zip(first.tolist(), longer[later].tolist(), strict=True):
        told.append(max(told[-1], told[before] + ns))
    new[later] = np.diff(np.array(told, dtype=np.int64))
    shows = np.where(new[order] >= _SHOWS_NS, np.arange(order.size), -1)
    latest = np.concatenate([[-1], np.maximum.accumulate(shows)[:-1]])
    before = np.full(longer.size, -1, dtype=np.int64)
    before[order] = np.where((latest >= 0) & (rows.at[order[latest]] == rows.at[order]), order[latest], -1)
    return new, before


@dataclass(frozen=True, slots=True, eq=False)
class _Longest:
    """Which of a range of rows is blocked longest, in two steps for each question."""

    values: Int64Array
    levels: list[npt.NDArray[np.int32]]

    @staticmethod
    def of(values: Int64Array, most: int) -> _Longest:
        """Ready for ranges of so many rows at most."""
        levels, width = [np.arange(values.size, dtype=np.int32)], 1
        while 2 * width <= min(most, values.size):
            left, right = levels[-1][:-width], levels[-1][width:]
            levels.append(np.where(values[right] >= values[left], right, left))
            width *= 2
        return _Longest(values, levels)

    def within(self, first: Int64Array, until: Int64Array) -> Int64Array:
        """The row; −1 for no rows."""
        found = np.full(first.size, -1, dtype=np.int64)
        size = until - first
        for level, rows in enumerate(self.levels):
            mine = np.flatnonzero((size >= 1 << level) & (size < 2 << level))
            left, right = rows[first[mine]], rows[until[mine] - (1 << level)]
            found[mine] = np.where(self.values[right] >= self.values[left], right, left)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """What the way back needs of each call."""

    origin: Int64Array
    """The row of the call that shows what the rank did longer before it."""
    own: Int64Array
    """How much of that is new there."""
    before: Int64Array
    """The row of the rank's latest call before it that shows something new; −1 if there is none."""
    since: Int64Array
    """Since when the rank took longer."""
    queued: Int64Array
    """The row of the call of the rank that it stood behind; −1 if it did not."""
    waited: Int64Array


def _followed(rows: Rows, collectives: pl.DataFrame, late_ones: pl.DataFrame, steps: _Steps) -> pl.DataFrame:
    """The rows of `BLAME`; all late calls go back one call at a time."""
    match, last = (collectives[name].to_numpy() for name in ("match", "last"))
    last_row = np.full(match.size, -1, dtype=np.int64)
    came_last = rows.at == last[rows.match]
    last_row[rows.match[came_last]] = np.flatnonzero(came_last)
    longest = _Longest.of(rows.blocked, int(np.bincount(rows.at).max(initial=0)))
    calls = pl.DataFrame({"match": match[rows.match], "late": rows.at, "row": np.arange(rows.at.size)})
    asked = late_ones.filter(pl.col("alone_ns") > 0).join(calls, on=["match", "late"], maintain_order="left")
    of, whose = asked["match"].to_numpy(), asked["late"].to_numpy()
    begun = np.arange(asked.height)
    here, left = asked["row"].to_numpy(), asked["alone_ns"].to_numpy()
    late = here  # the call that was late, when it is an earlier one of its rank that shows why
    made = [np.zeros((0, len(BLAME)), dtype=np.int64)]
    for _ in range(_MOST_HOPS):
        if not here.size:
            break
        part = np.minimum(left, steps.own[here])
        origin = match[rows.match[steps.origin[here]]]
        told = [of[begun], whose[begun], origin, rows.at[here], part, steps.own[here]]
        made.append(np.stack(told, axis=1)[part > 0])
        left = left - part
        queued, before = steps.queued[late], steps.before[here]
        blocking = longest.within(*rows.range_of(rows.at[late], rows.since_time[late], rows.start[late]))
        hidden = (queued >= 0) & ((blocking < 0) | (steps.waited[queued] > rows.blocked[blocking]))
        cause = np.where(hidden, queued, blocking)
        # The part of it in which a rank without a trace is waited for leads to nobody.
        brought = np.minimum(
            steps.waited[cause], np.where(hidden, steps.waited[queued], rows.blocked[blocking])
        )
        shown = ~hidden & (before >= 0) & (rows.start[before] > steps.since[late])
        left = np.where(shown, left, np.minimum(left, brought))
        here = np.where(shown, before, last_row[rows.match[cause]])
        late = np.where(shown, late, here)
        on = (left > 0) & (shown | (cause >= 0)) & (here >= 0)
        begun, here, late, left = begun[on], here[on], late[on], left[on]
    return pl.DataFrame(np.concatenate(made), schema=BLAME, orient="row").sort("match", maintain_order=True)
