"""The clocks of the ranks: how far apart they are, since all ranks leave a synchronising collective together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.ranks.summary import Summary
from tracekit.facts.collectives import SYNCHRONISING
from tracekit.spans import Int64Array
from tracekit.trace import Schema

__all__ = ["CLOCKS", "clocks_of", "origins"]

CLOCKS: Final[Schema] = {
    "at": pl.Int64,
    "shift_ns": pl.Int64,
    "offset_ns": pl.Int64,
    "uncertainty_ns": pl.Int64,
    "calls": pl.Int64,
}
_YEARS: Final = 10**17
_MANY: Final = 20
"""From so many collectives on, the outermost tenth says nothing of a clock."""

_Row = tuple[int, int, int | None, int | None, int]
_Edge = tuple[int, int, int, int, int]


def origins(summaries: Sequence[Summary]) -> Int64Array:
    """The origin of each trace in ns after that of the first: in UTC if all say it, else on the clock of the files.

    Origins that are years apart are those of no clock that the ranks share; all are 0 then.
    """
    utc = [one.facts.origin_utc_ns for one in summaries]
    known = [value for value in utc if value is not None]
    for values in (known if len(known) == len(utc) else [], [one.facts.origin_ns for one in summaries]):
        apart = [value - values[0] for value in values]
        if apart and max(map(abs, apart)) < _YEARS:
            return np.array(apart, dtype=np.int64)
    return np.zeros(len(summaries), dtype=np.int64)


def clocks_of(calls: pl.DataFrame, match: pl.Series, origin: Int64Array) -> pl.DataFrame:
    """One row per rank with the columns of `CLOCKS`.

    `shift_ns` is what to add to a time of its trace to get the time of the job, whose zero is the origin of the first trace.
    `offset_ns` is the part of it that collectives show beyond the origins of the traces, against the first rank that it shares collectives
    with, directly or through other ranks; null if there is none. Half of the differences lie within `uncertainty_ns` of it (with less than
    20 collectives, all); an offset within that is 0, as between the clocks of one machine. `calls` are the collectives it rests on.
    """
    usable = match.is_not_null() & calls["name"].is_in(list(SYNCHRONISING))
    rows = calls.select("at", "end").with_columns(match.alias("match")).filter(usable)
    rows = rows.with_columns((pl.col("end") + pl.Series(origin[rows["at"].to_numpy()])).alias("end"))
    edges = _pairs(rows)
    made: list[_Row] = [(at, int(start), None, None, 0) for at, start in enumerate(origin.tolist())]
    if edges:
        made[edges[0][0]] = (*made[edges[0][0]][:2], 0, 0, edges[0][4])
    return pl.DataFrame(_walked(made, edges), schema=CLOCKS, orient="row")


def _walked(rows: list[_Row], edges: list[_Edge]) -> list[_Row]:
    """The clocks of all ranks that pairs connect with a rank whose clock is known, along the pairs that agree best.

    A part of the job that is connected with no other has a first rank of its own.
    """
    open_edges = list(edges)
    while open_edges:
        edge = next(
            (one for one in open_edges if (rows[one[0]][2] is None) != (rows[one[1]][2] is None)), None
        )
        if edge is None:
            open_edges = [one for one in open_edges if rows[one[0]][2] is None]
            if open_edges:
                at = open_edges[0][0]
                rows[at] = (*rows[at][:2], 0, 0, open_edges[0][4])
            continue
        first, second, ahead, unsure, calls = edge
        known, new, sign = (first, second, -1) if rows[second][2] is None else (second, first, 1)
        step = 0 if abs(ahead) <= unsure else sign * ahead
        offset, before = rows[known][2] or 0, rows[known][3] or 0
        at, shift = rows[new][:2]
        rows[new] = (at, shift + offset + step, offset + step, before + unsure, calls)
    return rows


def _pairs(rows: pl.DataFrame) -> list[_Edge]:
    """(first, second, ns by which the second's clock is ahead, uncertainty, collectives) of neighbours in the collectives, the surest first."""
    neighbours = (
        rows.sort("match", "at")
        .with_columns(
            pl.col("at").shift(-1).over("match").alias("second"),
            (pl.col("end").shift(-1).over("match") - pl.col("end")).alias("ahead"),
        )
        .drop_nulls("second")
    )
    ahead = pl.col("ahead")
    width = (
        pl.when(pl.len() < _MANY)
        .then(ahead.max() - ahead.min())
        .otherwise(ahead.quantile(0.95) - ahead.quantile(0.05))
    )
    pairs = neighbours.group_by(pl.col("at").alias("first"), "second").agg(
        ahead.median().round().cast(pl.Int64),
        width.ceil().cast(pl.Int64).alias("uncertainty"),
        pl.len().cast(pl.Int64).alias("calls"),
    )
    return pairs.sort(
        "uncertainty", "calls", "first", "second", descending=[False, True, False, False]
    ).rows()
