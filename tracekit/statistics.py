"""Statistics that several analyses share (DEFINITIONS §9)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

__all__ = ["duration_aggregates", "outliers", "trimmed", "trimmed_mean"]

_TRIM_SHARE = 0.2
_MAD_TO_SIGMA = 1.4826


def trimmed_mean(values: Sequence[float] | npt.NDArray[np.int64]) -> float | None:
    """The mean without the lowest and the highest 20 %; the median of three, the mean of fewer; None of none.

    >>> trimmed_mean([1, 2, 3, 4, 100]), trimmed_mean([1, 5, 100]), trimmed_mean([1, 2])
    (3.0, 5.0, 1.5)
    """
    data = np.sort(np.asarray(values, dtype=np.float64))
    if data.size == 0:
        return None
    if data.size < 3:
        return float(data.mean())
    if data.size == 3:
        return float(data[1])
    cut = int(_TRIM_SHARE * data.size)
    return float(data[cut : data.size - cut].mean())


def trimmed(column: str) -> pl.Expr:
    """The same mean of a column's values in a group, null ones left out; null of none.

    >>> frame = pl.DataFrame({"run": [1, 1, 1, 2, 2], "ns": [1, 5, 100, 1, 2]})
    >>> frame.group_by("run").agg(trimmed("ns")).sort("run")["ns"].to_list()
    [5.0, 1.5]
    """
    values = pl.col(column).drop_nulls().cast(pl.Float64).sort()
    count = pl.col(column).count().cast(pl.Int64)
    cut = pl.when(count == 3).then(1).otherwise(count // 5)
    return values.slice(cut, count - 2 * cut).mean()


def outliers(
    values: Sequence[float] | npt.NDArray[np.int64], *, sigmas: float = 3.5, least: float = 0.1
) -> list[bool]:
    """Which values lie more than `sigmas` robust deviations, and at least the share `least`, from the median.

    Fewer than four values have no outlier. The robust deviation is 1.4826 times the median absolute deviation.

    >>> outliers([10, 11, 10, 9, 40])
    [False, False, False, False, True]
    """
    data = np.asarray(values, dtype=np.float64)
    if data.size < 4:
        return [False] * data.size
    median = float(np.median(data))
    distance = np.abs(data - median)
    limit = max(sigmas * _MAD_TO_SIGMA * float(np.median(distance)), least * median)
    flags: list[bool] = (distance > limit).tolist()
    return flags


def duration_aggregates(column: str = "duration") -> list[pl.Expr]:
    """The columns `count`, `total_ns`, `mean_ns`, `median_ns`, `p95_ns`, `min_ns`, `max_ns`, `std_ns` of a group.

    Quantiles are interpolated linearly; the standard deviation is the sample's (n − 1), null for one value.
    """
    value = pl.col(column)
    return [
        pl.len().cast(pl.Int64).alias("count"),
        value.sum().alias("total_ns"),
        value.mean().alias("mean_ns"),
        value.median().alias("median_ns"),
        value.quantile(0.95, interpolation="linear").alias("p95_ns"),
        value.min().alias("min_ns"),
        value.max().alias("max_ns"),
        value.std().alias("std_ns"),
    ]
