"""The last check of a report: no time, amount or count is negative, and no share is more than its whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from tracekit.analyses.result import Result
from tracekit.report.model import HealthItem

__all__ = ["impossible"]

_AMOUNT: Final = re.compile(r"(_ns|_bytes|^bytes|count|calls|gaps|activities|layers)$")
_SHARE: Final = re.compile(r"((^|_)share|utilisation|occupancy)$")
_ROUNDING: Final = 1e-9


def impossible(results: Mapping[str, Result]) -> Iterator[HealthItem]:
    """One item for each column of the results' tables that holds a figure which cannot be.

    Such a figure is a fault of tracekit: readers leave out what no recording can hold.
    """
    for analysis, result in results.items():
        for name, frame in result.tables().items():
            for column in _broken(frame):
                yield HealthItem(
                    "impossible_figure",
                    "error",
                    1,
                    "a figure cannot be, which is a fault of tracekit",
                    f"{analysis}.{name}.{column}",
                )


def _broken(frame: pl.DataFrame) -> Iterator[str]:
    for column in frame if frame.height else ():
        is_share = _SHARE.search(column.name) is not None
        if not column.dtype.is_numeric() or not (is_share or _AMOUNT.search(column.name)):
            continue
        least, most = _number(column.min()), _number(column.max())
        if least < -_ROUNDING or (is_share and most > 1 + _ROUNDING):
            yield column.name


def _number(value: object) -> float:
    """The value; 0, which can be, of a column that has none."""
    return value if isinstance(value, int | float) else 0
