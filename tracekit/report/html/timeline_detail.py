"""How much of a timeline is drawn: all of some stretches, and of the rest what is wide enough to be seen."""

from __future__ import annotations

from dataclasses import field
from typing import Final

import polars as pl

from tracekit.classes import dataclass

__all__ = ["SUMMARY", "Detail"]

SUMMARY: Final = "the longest of several short ones in a row, which take {} % of the time here"
"""The note of a shape that stands for a run of shapes too short to be seen."""
_TENTHS: Final = 10

_WIDE: Final = 1000
"""A shape of a thousandth of the whole is about a pixel wide when all is in sight."""
_BUCKETS: Final = 200
"""No run is longer than this part of the whole, so that a run is as coloured as its place."""
_NEAR: Final = 100
"""Beside evidence, a shape of a hundredth of it is some pixels wide."""


@dataclass(frozen=True, slots=True)
class Detail:
    """From `low` to `high` is drawn; all of what touches `full`, or the whole if that is None, and more `beside` evidence.

    Times are ns from the trace's origin.
    """

    low: int
    high: int
    full: tuple[int, int] | None = None
    beside: tuple[tuple[int, int], ...] = ()
    most: int = 200_000
    cut: list[int] = field(default_factory=list)
    """How many rows `thinned` left out because it had more than the `most` longest, each time that it did."""

    def thinned(self, rows: pl.DataFrame, *lane: str) -> pl.DataFrame:
        """The rows (`start` and `end` in ns) to draw, with a `note`, null but for those that stand for several.

        What is too short is left out. Of a run of such rows in a lane, the longest stays, and reaches from the start of the
        first to the end of the last. A run ends where a longer row begins or ends, and after a two-hundredth of the whole.
        """
        start, end = pl.col("start"), pl.col("end")
        rows = rows.filter((start < self.high) & ((end > self.low) | (start >= self.low)))
        rows = rows.with_columns(pl.lit(None, pl.String).alias("note"))
        if self.full is None or not rows.height:
            return self.longest(rows)
        length = end - start
        kept = (end > self.full[0]) & (start < self.full[1])
        kept |= length >= (self.high - self.low) / _WIDE
        for low, high in self.beside:
            kept |= (end >= low) & (start <= high) & (length >= (high - low) / _NEAR)
        chosen = rows.select(kept.alias("kept")).to_series()
        rest = rows.filter(~chosen)
        if not rest.height:
            return self.longest(rows)
        kept_ = rows.filter(chosen)
        del rows
        return self.longest(pl.concat([kept_, self._runs(rest, kept_, lane)]))

    def longest(self, rows: pl.DataFrame) -> pl.DataFrame:
        """At most `most` of the rows, in their order: no page draws more, and each takes much more room as a shape."""
        if rows.height <= self.most:
            return rows
        self.cut.append(rows.height - self.most)
        length = rows.select(
            pl.col("end").clip(self.low, self.high) - pl.col("start").clip(self.low, self.high)
        )
        order = length.to_series().arg_sort(descending=True)
        return rows[order.head(self.most).sort()]

    def _runs(self, rest: pl.DataFrame, kept: pl.DataFrame, lane: tuple[str, ...]) -> pl.DataFrame:
        """One row for each run of the rest."""
        start, end = pl.col("start"), pl.col("end")
        edges = pl.concat([kept.select(*lane, start.alias("at")), kept.select(*lane, end.alias("at"))])
        marks = pl.concat(
            [
                edges.with_columns(
                    pl.lit(None, pl.UInt32).alias("row"), pl.lit(None, pl.Int64).alias("until")
                ),
                rest.select(
                    *lane,
                    start.alias("at"),
                    pl.int_range(pl.len(), dtype=pl.UInt32).alias("row"),
                    end.alias("until"),
                ),
            ]
        ).sort(*lane, "at", "row", nulls_last=False)
        marks = marks.with_columns(pl.col("row").is_null().cum_sum().alias("part")).drop_nulls("row")
        tolerance = (self.high - self.low) // _WIDE
        reached = pl.col("until").cum_max().shift().over(*lane, "part")
        bucket = pl.col("at") // max((self.high - self.low) // _BUCKETS, 1)
        apart = (pl.col("at") - reached > tolerance).fill_null(value=True) | (bucket != bucket.shift())
        # Rows may lie inside each other; a moment counts once.
        alone = (pl.col("until") - pl.max_horizontal("at", reached)).clip(0)
        marks = marks.with_columns(apart.cum_sum().alias("run"), alone.alias("alone"))
        longest = (pl.col("until") - pl.col("at")).arg_max()
        runs = marks.group_by("run", maintain_order=True).agg(
            pl.col("at").min(),
            pl.col("until").max(),
            pl.col("row").gather(longest).first(),
            pl.len().alias("count"),
            pl.col("alone").sum().alias("taken"),
        )
        whole = (runs["until"] - runs["at"]).clip(1)
        # In tens, so that there are few notes; never none.
        tens = (_TENTHS * runs["taken"] / whole).round().clip(1, _TENTHS).cast(pl.Int64) * (100 // _TENTHS)
        notes = {each: SUMMARY.format(each) for each in range(0, 101, 100 // _TENTHS)}
        note = (
            pl.when(runs["count"] > 1).then(tens.replace_strict(notes, return_dtype=pl.String)).alias("note")
        )
        return rest[runs["row"]].with_columns(runs["at"].alias("start"), runs["until"].alias("end"), note)
