"""The rows of a report, and the statistics that most reports hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

__all__ = ["Rows", "Statistics", "megabytes", "share_of_total", "spread", "summed"]

_BYTES_PER_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a report.

    * `frame`: them, with at least the columns of the report, or those that it sums up
    * `note`: what is not in it, if anything
    """

    frame: pl.DataFrame
    note: str | None = None


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


def summed(rows: pl.DataFrame, by: Mapping[str, pl.Expr], count: str) -> pl.DataFrame:
    """Time, number (under the heading `count`) and spread of the rows' durations by these headings, the most time first.

    >>> rows = pl.DataFrame({"name": ["a", "b", "a"], "duration": [1, 2, 5]})
    >>> summed(rows, {"Name": pl.col("name")}, "Count").select("Name", "Total Time (ns)", "Count").rows()
    [('a', 6, 2), ('b', 2, 1)]
    """
    # Names are made into text once they are few.
    keys = list(dict.fromkeys(root for text in by.values() for root in text.meta.root_names()))
    groups = rows.group_by(keys).agg(
        pl.col("duration").sum().alias("Total Time (ns)"), pl.len().alias(count), *spread()
    )
    order = ["Total Time (ns)", *by]
    descending = [True, *(False for _ in by)]
    named = groups.with_columns(text.alias(heading) for heading, text in by.items())
    return named.sort(order, descending=descending, nulls_last=True).with_columns(share_of_total())
