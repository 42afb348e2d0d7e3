"""One table with what it lacks, what can be asked of it, and the statistics that most of them hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

__all__ = ["Options", "Rows", "Statistics", "StatsTable", "megabytes", "share_of_total", "spread"]

_BYTES_PER_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the rules may be told; the defaults are NVIDIA's.

    `rows`: most rows of a rule's table, 0 for all. `gap_ms`: shortest gap of `gpu_gaps`. `threshold`: greatest
    utilisation that `gpu_time_util` lists, in %, and `chunks` the equal parts that it looks at.
    """

    rows: int = 50
    gap_ms: float = 500.0
    threshold: float = 50.0
    chunks: int = 30


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a report found: its `frame`, with at least its columns, and a `note` on what is not in it, if anything."""

    frame: pl.DataFrame
    note: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StatsTable:
    """The `frame` of the report `name`, with the columns of its catalogue entry, and the `answer` in one sentence.

    `not_captured` says what was not recorded and how to record it; the frame then has no rows.
    """

    name: str
    frame: pl.DataFrame
    answer: str
    not_captured: str | None = None


Statistics = list[pl.Expr]


def spread(column: str = "duration", prefix: str = "", unit: str = "ns") -> Statistics:
    """Mean, median, least, greatest and standard deviation of a group's values, under NVIDIA's headings.

    The deviation is the sample's (n - 1), and 0 of a single value, as `nsys stats` prints it; null without a value.

    >>> frame = pl.DataFrame({"duration": [576_465, 577_585]})
    >>> [round(value, 1) for value in frame.select(spread()).row(0)]
    [577025.0, 577025.0, 576465, 577585, 792.0]
    """
    value = pl.col(column)
    deviation = pl.when(value.count() == 1).then(0.0).otherwise(value.std())
    return [
        value.mean().alias(f"{prefix}Avg ({unit})"),
        value.median().alias(f"{prefix}Med ({unit})"),
        value.min().alias(f"{prefix}Min ({unit})"),
        value.max().alias(f"{prefix}Max ({unit})"),
        deviation.alias(f"{prefix}StdDev ({unit})"),
    ]


def share_of_total(column: str = "Total Time (ns)") -> pl.Expr:
    """Each row's part of the column's sum in %; null when the sum is 0.

    >>> pl.DataFrame({"Total Time (ns)": [30, 10]}).select(share_of_total())["Time (%)"].to_list()
    [75.0, 25.0]
    """
    value, total = pl.col(column), pl.col(column).sum()
    return pl.when(total > 0).then(100 * value / total).alias("Time (%)")


def megabytes(column: str) -> pl.Expr:
    """A column of whole bytes in MB of 10⁶ bytes, to the byte.

    >>> pl.DataFrame({"bytes": [4_194_304]}).select(megabytes("bytes"))["bytes"].to_list()
    [4.194304]
    """
    return (pl.col(column) / _BYTES_PER_MB).round(6)
