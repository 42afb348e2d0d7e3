"""Two ranks side by side before one collective: what the late one spent longer on since the collective before, and what came first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.analyses.ranks.align import Alignment
from tracekit.analyses.ranks.mates import Mates, in_layer
from tracekit.analyses.ranks.summary import Summary
from tracekit.analyses.ranks.waits import Waits
from tracekit.classes import dataclass
from tracekit.facts.collectives import MESSAGES
from tracekit.trace import Schema

__all__ = ["Beside", "beside", "worst_beside"]

_NOISE: Final = 0.1
"""What differs by a smaller part of the delay is noise."""
_LARGE: Final = 0.5
"""What differs by this part of the largest difference, in all its places together, is no side effect."""
_TELLS: Final = 0.25
"""And it is told if it is this part of the delay: of a rank that is slower at everything, no single thing tells why."""
_ONE_PLACE: Final = 0.5
"""Idle time of one cause is that of a place if so much of the difference is there."""
_EXPLAINS: Final = 0.25
"""A difference explains a delay if it is at least this part of it."""
_MOST_TRIED: Final = 8
"""So many of a rank's delays, the longest first, are looked at until one can be explained."""
_MOST_COMPARED: Final = 32
_ITEM: Final = ("kind", "what", "where")
_ITEMS: Final[Schema] = {
    "kind": pl.String,
    "what": pl.String,
    "where": pl.String,
    "first": pl.Int64,
    "late_ns": pl.Int64,
    "fast_ns": pl.Int64,
    "longer_ns": pl.Int64,
}


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """A late and a fast rank (their places) between when all ranks of the collective `match` last went on together, else their last common
    collective, and this one.
    """

    match: int
    late: int
    fast: int
    longer_ns: int
    """How much longer the late rank took between the two collectives."""
    items: pl.DataFrame
    """What the ranks did there, with the columns `kind`, `what`, `where` of `Summary.work`, `first` (on the clock of the job, of the late rank if it did it),
    `late_ns`, `fast_ns` and their difference `longer_ns`, in order of time.
    """
    first: int | None
    """The row of `items` that first differs by a tenth of `longer_ns`, of those whose `what` differs by a quarter of it, and by at least half as much as that which differs
    most; None if nothing does, or if something before it differs half as much.
    """


def beside(
    summaries: Sequence[Summary], aligned: Alignment, waits: Waits, match: int, late: int, fast: int
) -> Beside:
    """The two ranks, which both took part in the collective `match`, before it."""
    same = Mates(summaries).same(late, fast)
    rows = _numbered(aligned)
    (start, call), (fast_start, fast_call) = (_of(rows, match, at) for at in (late, fast))
    before = _common(rows, late, call).join(_common(rows, fast, fast_call), on="match", suffix="_fast")
    # What is asked for ahead begins at other times than the work before it, so only a collective that holds all up divides the work.
    together = waits.collectives.filter(pl.col("match") == match, ~pl.col("name").is_in(MESSAGES))["since"]
    if together.len():
        before = before.clear() if together[0] is None else before.filter(pl.col("match") == together[0])
    shared = before.sort("call").tail(1)[["call", "call_fast", "end", "end_fast"]].rows()
    # Without an earlier one, both from the begin of their windows.
    since, fast_since, end, fast_end = shared[0] if shared else (-1, -1, 0, 0)
    longer = (start - end) - (fast_start - fast_end)
    shift = aligned.clocks["shift_ns"].to_list()
    late_work = _between(summaries[late], since, call, shift[late])
    fast_work = _between(summaries[fast], fast_since, fast_call, shift[fast])
    fast_work = fast_work.filter(pl.col("first") < fast_start)
    # What the late rank has done before the collective, the fast one may compute while it waits there.
    meanwhile = _between(summaries[fast], fast_call, None, shift[fast]).filter(pl.col("first") < start)
    meanwhile = meanwhile.join(late_work, on=_ITEM, how="semi", nulls_equal=True)
    meanwhile = meanwhile.join(fast_work, on=_ITEM, how="anti", nulls_equal=True)
    items = _items(late_work, pl.concat([fast_work, meanwhile]))
    # Layers that only one of them has take no longer there, as in another stage of a pipeline.
    items = (items if same else items.filter(~in_layer())).with_row_index()
    # A layer has two passes; idle time of one cause in other places is another matter.
    place = pl.when(pl.col("kind") == "idle").then("where")
    whole = pl.col("longer_ns").sum().over("kind", "what", place)
    least = pl.max_horizontal(_LARGE * whole.max(), _TELLS * longer)
    differs = items.filter(longer > 0, pl.col("longer_ns") >= _NOISE * longer, whole >= least)["index"]
    # Of a rank that is slower at all that it does, that which happens to differ most is not the first.
    if (
        differs.len()
        and (items["longer_ns"].head(differs[0]) >= _LARGE * items["longer_ns"][differs[0]]).any()
    ):
        differs = differs.clear()
    return Beside(match, late, fast, longer, items.drop("index"), differs[0] if differs.len() else None)


def worst_beside(
    summaries: Sequence[Summary], aligned: Alignment, waits: Waits, late: int, fast: int | None = None
) -> Beside | None:
    """The late rank before the collective that it delayed longest, beside the rank that was fastest there, if their difference explains
    the delay and both do the same work (`ranks.mates`), else before the next one; or beside `fast`, before the longest delay of a collective of both. None if there is none.
    """
    rows = _numbered(aligned)
    # Times behind the last call whose work is there would be missing, not short.
    shown = summaries[late].work["call"].max()
    both = rows.filter(pl.col("at") == (late if fast is None else fast))[["match"]]
    delays = (
        waits.blame.filter(pl.col("at") == late)
        .group_by(pl.col("origin").alias("match"))
        .agg(pl.col("ns").max())
        .join(rows.filter(pl.col("at") == late)[["match", "call"]], on="match")
        .join(both, on="match", how="semi")
        .filter(pl.col("call") <= (-1 if shown is None else shown))
        .sort("ns", "match", descending=[True, False])
        .head(_MOST_TRIED)
    )
    mates, unlike = Mates(summaries), None
    for match, ns in delays[["match", "ns"]].rows():
        other = _fastest(rows, match, late, mates) if fast is None else fast
        if other is None:
            continue
        one = beside(summaries, aligned, waits, match, late, other)
        if fast is not None:
            return one
        if one.longer_ns >= _EXPLAINS * ns:
            if mates.same(late, other):
                return one
            unlike = unlike or one
    return unlike if unlike is not None and unlike.first is not None else None


def _numbered(aligned: Alignment) -> pl.DataFrame:
    """The matched calls with `call`, their place in the rank's summary; a call that stood behind another one starts when the rank came to it."""
    calls = aligned.calls.select("match", "at", pl.min_horizontal("came", "start").alias("start"), "end")
    return calls.with_columns(pl.int_range(pl.len()).over("at").alias("call")).drop_nulls("match")


def _of(rows: pl.DataFrame, match: int, at: int) -> tuple[int, int]:
    start, call = rows.filter((pl.col("match") == match) & (pl.col("at") == at))[["start", "call"]].row(0)
    return start, call


def _common(rows: pl.DataFrame, at: int, call: int) -> pl.DataFrame:
    return rows.filter((pl.col("at") == at) & (pl.col("call") < call))[["match", "call", "end"]]


def _fastest(rows: pl.DataFrame, match: int, late: int, mates: Mates) -> int | None:
    """The rank of the collective that took least from the last collective that it shares with the late one; of those that do the same work, if there are any, that share the latest,
    and of the many that come first.
    """
    members = rows.filter(pl.col("match") == match).select(
        "at", pl.col("start").alias("came"), pl.col("call").alias("until")
    )
    until = members.filter(pl.col("at") == late)["until"][0]
    others = members.filter(pl.col("at") != late).sort("came", "at").head(_MOST_COMPARED)
    mine = rows.filter((pl.col("at") == late) & (pl.col("call") < until))
    shared = rows.join(others, on="at").join(mine.select("match", pl.col("call").alias("shared")), on="match")
    own = (
        shared.filter(pl.col("call") < pl.col("until"))
        .sort("shared")
        .group_by("at")
        .last()
        .select("at", "shared", (pl.col("came") - pl.col("end")).alias("own"))
        .sort("shared", "own", "at", descending=[True, False, False])
    )
    ranked = own["at"].to_list() or others["at"].to_list()
    return next((one for one in ranked if mates.same(late, one)), ranked[0] if ranked else None)


def _between(summary: Summary, after: int, until: int | None, shift: int) -> pl.DataFrame:
    """The work after the start of one call and before that of another, if there is one."""
    rows = summary.work.filter(pl.col("call") > after)
    rows = rows if until is None else rows.filter(pl.col("call") <= until)
    return rows.group_by(_ITEM).agg(pl.col("first").min() + shift, pl.col("ns").sum())


def _items(late: pl.DataFrame, fast: pl.DataFrame) -> pl.DataFrame:
    both = late.rename({"ns": "late_ns"}).join(
        fast.rename({"ns": "fast_ns"}), on=_ITEM, how="full", coalesce=True, nulls_equal=True, suffix="_fast"
    )
    longer = pl.col("late_ns") - pl.col("fast_ns")
    both = both.with_columns(pl.col("late_ns", "fast_ns").fill_null(0), pl.coalesce("first", "first_fast"))
    alike = ["kind", "what"]
    scattered = (pl.col("kind") == "idle") & (
        longer.abs().max().over(alike) < _ONE_PLACE * longer.sum().over(alike).abs()
    )
    return (
        both.with_columns(pl.when(~scattered).then("where").alias("where"))
        .group_by(_ITEM)
        .agg(pl.col("first").min(), pl.col("late_ns", "fast_ns").sum())
        .with_columns(longer.alias("longer_ns"))
        .sort("first", *_ITEM)
        .select(pl.col(name).cast(dtype) for name, dtype in _ITEMS.items())
    )
