"""For whom the ranks really wait: a rank that comes last because it had to wait for another one passes the blame on."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.facts.collectives import MESSAGES
from tracekit.groups import or_none
from tracekit.trace import Schema

__all__ = ["BLAME", "blame_of", "delays_of"]

BLAME: Final[Schema] = {"match": pl.Int64, "origin": pl.Int64, "at": pl.Int64, "ns": pl.Int64}
_MOST_HOPS: Final = 100
"""So far a delay is followed; what is left then stays with the rank that was reached."""


def blame_of(calls: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Who caused the time `alone_ns` by which one rank was the last in each collective; columns of `BLAME`.

    A rank's own part of a delay is what it takes longer from its previous collective to this one than the middle of the other ranks. After a
    message, the time counts from when it had to wait no longer, since it may work while the message is on its way. The rest
    it brought along from the previous collective, where it goes to the rank that came last, and so on. `origin` is the collective before which the
    delay arose, `at` the rank, `ns` the time. For each `match` the times sum to `alone_ns`.
    """
    since_end, since_message = (
        pl.col("start") - done.shift(1).over("at")
        for done in (pl.col("end"), pl.col("start") + pl.col("wait_ns"))
    )
    after_message = pl.col("name").is_in(MESSAGES).shift(1).over("at")
    rows = calls.sort("at", "start").select(
        "match",
        "at",
        pl.col("match").shift(1).over("at").alias("previous"),
        pl.when(after_message).then(since_message.clip(lower_bound=0)).otherwise(since_end).alias("own"),
    )
    last = collectives.select("match", pl.col("last").alias("at"), "alone_ns")
    others = rows.join(last[["match", "at"]], on=["match", "at"], how="anti")
    middle = others.group_by("match").agg(pl.col("own").median().alias("middle"))
    table = last.join(rows, on=["match", "at"]).join(middle, on="match", how="left").sort("match")
    excess = (pl.col("own") - pl.col("middle")).clip(lower_bound=0).round().cast(pl.Int64)
    return _followed(table.select("match", "at", "alone_ns", excess.alias("own"), "previous"))


def _followed(table: pl.DataFrame) -> pl.DataFrame:
    """The rows of `BLAME`; all collectives go back one collective at a time."""
    match, late = table["match"].to_numpy(), table["at"].to_numpy()
    own = or_none(table["own"], 0)
    places = table[["match"]].with_row_index("place")
    back = table.select(pl.col("previous").alias("match")).join(
        places, on="match", how="left", maintain_order="left"
    )
    previous = back["place"].cast(pl.Int64).fill_null(-1).to_numpy()
    settles = (previous < 0) | table["own"].is_null().to_numpy()
    begun = np.flatnonzero(or_none(table["alone_ns"], 0) > 0)
    here, left = begun, or_none(table["alone_ns"], 0)[begun]
    made = []
    for hop in range(_MOST_HOPS):
        if not len(here):
            break
        last_one = hop == _MOST_HOPS - 1
        part = left if last_one else np.where(settles[here], left, np.minimum(left, own[here]))
        made.append(np.stack([match[begun], match[here], late[here], part], axis=1)[part > 0])
        left = left - part
        on = left > 0
        begun, here, left = begun[on], previous[here[on]], left[on]
    rows = np.concatenate(made) if made else np.zeros((0, len(BLAME)), dtype=np.int64)
    return pl.DataFrame(rows.astype(np.int64), schema=BLAME, orient="row").sort("match", maintain_order=True)


def delays_of(blame: pl.DataFrame) -> pl.DataFrame:
    """`origin`, `at`, `ns`: each delay once, however many collectives have to wait for it."""
    return blame.group_by("origin", "at").agg(pl.col("ns").max()).sort("origin", "at")
