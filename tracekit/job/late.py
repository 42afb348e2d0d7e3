"""Which ranks the others wait for: one, several at the same times, or all of them in turn; and collectives that are slow although all ranks are there."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl

from tracekit.analyses.ranks.blame import once
from tracekit.classes import dataclass
from tracekit.facts.collectives import MESSAGES
from tracekit.spans import Int64Array

if TYPE_CHECKING:
    from tracekit.analyses.ranks import Waits

__all__ = ["FELT", "Late", "Slow", "late_of", "slow_of"]

FELT: Final = 0.02
"""A delay of less than this part of the window is not worth a name."""
_PLAIN: Final = 0.05
"""One of so much is told however it comes; of a smaller one the steps must agree."""
_ERRORS: Final = 4
"""So many standard errors of the mean over steps a small delay is above 0: the largest of several equal ranks may be two or three."""
_AS_LONG: Final = 0.4
"""A rank that others wait for so long, in parts of the longest wait, is late as well."""
_ALIKE: Final = 0.5
"""So much of two delays arises at one time if they come at the same times."""
_OF_GROUP: Final = 0.2
"""A rank is late to a group if so much of its delays is there."""
_STANDS_OUT: Final = 3
"""Times the wait for the (lower) middle of the ranks; of two ranks, twice that for the other."""
_TOGETHER: Final = 0.1
"""Delays of so much of the window together are told although no rank stands out."""
_ALONE: Final = 4
"""A small delay is plain, too, if it is so many times that of any rank that is late at other times."""
_SLOWER: Final = 2.0
"""Times the lower quartile of the latencies of equal collectives."""
_LEAST_EQUAL: Final = 4
_PAIR: Final = 2


@dataclass(frozen=True, slots=True)
class Late:
    """The ranks that others wait for, by their places in `Job.table`, that with the longest wait first."""

    ranks: tuple[int, ...]
    """Those whose delays arise at the same times as those of the first."""
    apart: bool
    """Whether each of them is late to groups of its own."""
    others: tuple[int, ...]
    """Those that others wait for about as long, at other times."""
    turns: bool
    """Whether no rank stands out: the others are waited for about as long."""


def late_of(table: pl.DataFrame, waits: Waits, window: int) -> Late | None:
    """Who is late, by `caused_ns` of the ranks (of `Job.table`) and their steps; None if nobody is, so that it matters in this window (ns).

    A delay of less than 5 % of the window must show in the steps (be four standard errors of its mean over them above 0), or be four times as long as those
    at other times. Ranks take turns if together they cause 10 % of the window, and none of them three times what the lower middle of them does (of two, twice what the other does).
    """
    caused = dict(table.select("at", pl.col("caused_ns").fill_null(0)).rows())
    order = sorted(caused, key=lambda at: (-caused[at], at))
    worst, most = order[0], caused[order[0]]
    middle = sorted(caused.values())[(len(caused) - 1) // 2]
    times = _STANDS_OUT if len(caused) > _PAIR else _PAIR
    if most < times * middle and sum(caused.values()) >= max(_TOGETHER * window, 1):
        return Late((worst,), apart=False, others=(), turns=True)
    if most < max(FELT * window, 1):
        return None
    steps, groups = _shares(waits)
    as_long = [at for at in order if caused[at] >= _AS_LONG * most]
    alike = [] if len(caused) <= _PAIR else _at_the_same_times(worst, as_long, waits)
    next_most = max((ns for at, ns in caused.items() if at != worst and at not in alike), default=0)
    plain = most >= _PLAIN * window or most >= _ALONE * next_most
    if not plain and not _shows(steps.get(worst, {}), waits):
        return None
    ranks = tuple(dict.fromkeys([worst, *alike]))
    seen = [groups.get(at, set()) for at in ranks]
    apart = len(ranks) > 1 and all(
        not one & other for place, one in enumerate(seen) for other in seen[:place]
    )
    return Late(ranks, apart, tuple(at for at in as_long if at not in ranks), turns=False)


def _shares(waits: Waits) -> tuple[dict[int, dict[int, int]], dict[int, set[str]]]:
    """Of each rank its delays by step (ns; −1 stands for none), and the groups in which a good part of them is."""
    rows = once(waits.blame).join(
        waits.collectives.select("match", pl.col("step").fill_null(-1), "group"), on="match"
    )
    steps: dict[int, dict[int, int]] = {}
    for at, step, ns in rows.group_by("at", "step").agg(pl.col("ns").sum()).rows():
        steps.setdefault(at, {})[step] = ns
    groups: dict[int, set[str]] = {}
    of_group = rows.group_by("at", pl.col("group").fill_null("")).agg(pl.col("ns").sum())
    for at, group, ns in of_group.rows():
        if ns >= _OF_GROUP * sum(steps[at].values()):
            groups.setdefault(at, set()).add(group)
    return steps, groups


def _shows(steps: dict[int, int], waits: Waits) -> bool:
    count = waits.collectives["step"].n_unique()
    if count < 3:
        return True
    times = [*steps.values(), *[0] * (count - len(steps))]
    mean = sum(times) / count
    variance = sum((each - mean) ** 2 for each in times) / (count - 1)
    return mean >= _ERRORS * sqrt(variance / count)


def _at_the_same_times(worst: int, ranks: list[int], waits: Waits) -> list[int]:
    """Those of the ranks whose delays arise while those of the worst one do.

    A delay arises between when the ranks last went on together and when the last one comes. Delays of one such time lie beside each other; those of
    others add up, also within a step.
    """
    delays = _delays(waits)
    spans = {at: delays.filter(pl.col("at") == at) for at in ranks}
    return [
        at
        for at in ranks
        if min(_common(spans[worst], spans[at]), _common(spans[at], spans[worst])) >= _ALIKE
    ]


def _delays(waits: Waits) -> pl.DataFrame:
    """`at`, `ns`, `low`, `high`: the delays, and between which times each arose."""
    high = pl.col("start") + pl.col("skew_ns")
    met = waits.collectives.select("match", "since", "step", "start", high.alias("high"))
    together = met.select(pl.col("match").alias("since"), pl.col("high").alias("low"))
    first = pl.col("start").min().over(pl.col("step").fill_null(-1))
    low = pl.min_horizontal(pl.coalesce("low", first), pl.col("high") - 1)
    met = met.join(together, on="since", how="left").select("match", low.alias("low"), "high")
    rows = once(waits.blame).group_by("at", pl.col("origin").alias("match")).agg(pl.col("ns").sum())
    return rows.join(met, on="match").select("at", "ns", "low", "high")


def _common(one: pl.DataFrame, other: pl.DataFrame) -> float:
    """How much of the delays of one rank arises while those of the other one do, from 0 to 1."""
    mine, theirs = (max(int(each["ns"].sum()), 1) for each in (one, other))
    begun = _before(other, "low", one["high"].to_numpy(), side="left")
    over = _before(other, "high", one["low"].to_numpy(), side="right")
    return float(np.minimum(one["ns"].to_numpy() / mine, (begun - over) / theirs).sum())


def _before(
    delays: pl.DataFrame, edge: str, times: Int64Array, *, side: Literal["left", "right"]
) -> Int64Array:
    """The sum of the delays of which one edge lies before each of the times (`right`: or at it)."""
    ordered = delays.sort(edge)
    sums = np.concatenate([[0], np.cumsum(ordered["ns"].to_numpy())])
    found: Int64Array = sums[np.searchsorted(ordered[edge].to_numpy(), times, side=side)]
    return found


@dataclass(frozen=True, slots=True)
class Slow:
    """Equal collectives of which some take several times as long as the others once all ranks are there."""

    name: str
    bytes: int | None
    calls: int
    slow: int
    usual_ns: int
    """The lower quartile of their latencies."""
    slow_ns: int
    """The middle of the slow ones."""
    lost_ns: int
    """What the slow ones take beyond the usual."""
    match: int
    """One of the slow ones."""
    one_group: bool
    """Whether all slow ones are of one of several groups."""


def slow_of(waits: Waits, window: int) -> Slow | None:
    """Those that lose most by it; None if none loses a part of the window (ns) that matters."""
    complete = pl.col("group_size").is_null() | (pl.col("ranks") == pl.col("group_size"))
    rows = waits.collectives.filter(~pl.col("name").is_in(MESSAGES), complete, pl.col("latency_ns") > 0)
    kind = ["name", "bytes", "ranks"]  # of all groups: one whose links are slow has no fast calls of its own
    usual = pl.col("latency_ns").quantile(0.25, "lower").over(kind)
    rows = rows.with_columns(usual.alias("usual"), pl.len().over(kind).alias("count"))
    rows = rows.filter(pl.col("count") >= _LEAST_EQUAL).with_columns(
        (pl.col("latency_ns") >= _SLOWER * pl.col("usual")).alias("is_slow")
    )
    slow = pl.col("is_slow")
    found = (
        rows.group_by("name", "bytes")
        .agg(
            pl.len().cast(pl.Int64),
            slow.sum().cast(pl.Int64),
            pl.col("usual").median().cast(pl.Int64),
            pl.col("latency_ns").filter(slow).median().cast(pl.Int64).alias("slow_ns"),
            (pl.col("latency_ns") - pl.col("usual")).filter(slow).sum().alias("lost"),
            pl.col("match").filter(slow).first(),
            ((pl.col("group").filter(slow).n_unique() == 1) & (pl.col("group").n_unique() > 1)).alias(
                "one_group"
            ),
        )
        .filter(pl.col("lost") >= max(FELT * window, 1))
        .sort("lost", "name", descending=[True, False])
    )
    return Slow(*found.row(0)) if found.height else None
