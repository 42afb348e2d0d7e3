"""For whom the ranks really wait: a rank that comes last because it had to wait for another one passes the blame on."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.trace import Schema

__all__ = ["BLAME", "blame_of", "delays_of"]

BLAME: Final[Schema] = {"match": pl.Int64, "origin": pl.Int64, "at": pl.Int64, "ns": pl.Int64}
_MOST_HOPS: Final = 100
"""So far a delay is followed; what is left then stays with the rank that was reached."""


def blame_of(calls: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Who caused the time `alone_ns` by which one rank was the last in each collective; columns of `BLAME`.

    A rank's own part of a delay is what it takes longer from its previous collective to this one than the middle of the other ranks. The rest
    it brought along from the previous collective, where it goes to the rank that came last, and so on. `origin` is the collective before which the
    delay arose, `at` the rank, `ns` the time. For each `match` the times sum to `alone_ns`.
    """
    rows = calls.sort("at", "start").select(
        "match",
        "at",
        pl.col("match").shift(1).over("at").alias("previous"),
        (pl.col("start") - pl.col("end").shift(1).over("at")).alias("own"),
    )
    last = collectives.select("match", pl.col("last").alias("at"), "alone_ns")
    others = rows.join(last.select("match", "at"), on=["match", "at"], how="anti")
    middle = others.group_by("match").agg(pl.col("own").median().alias("middle"))
    table = last.join(rows, on=["match", "at"]).join(middle, on="match", how="left")
    excess = (pl.col("own") - pl.col("middle")).clip(lower_bound=0).round().cast(pl.Int64)
    known = {
        match: (at, own, previous)
        for match, at, own, previous in table.select("match", "at", excess, "previous").rows()
    }
    made: list[tuple[int, int, int, int]] = []
    for match, alone in table.filter(pl.col("alone_ns") > 0).select("match", "alone_ns").sort("match").rows():
        left, here = alone, match
        for hop in range(_MOST_HOPS):
            at, own, previous = known[here]
            settles = own is None or previous is None or previous not in known or hop == _MOST_HOPS - 1
            part = left if settles else min(left, own)
            if part:
                made.append((match, here, at, part))
            left -= part
            if not left:
                break
            here = previous
    return pl.DataFrame(made, schema=BLAME, orient="row")


def delays_of(blame: pl.DataFrame) -> pl.DataFrame:
    """`origin`, `at`, `ns`: each delay once, however many collectives have to wait for it."""
    return blame.group_by("origin", "at").agg(pl.col("ns").max()).sort("origin", "at")
