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
    numeric = [name for name, dtype in frame.schema.items() if dtype.is_numeric()]
    checked = [name for name in numeric if _AMOUNT.search(name) or _SHARE.search(name)]
    if not checked or not frame.height:
        return
    ends = frame.select(pl.col(checked).min(), pl.col(checked).max().name.suffix(" max")).row(0)
    for name, low, high in zip(checked, ends, ends[len(checked) :], strict=False):
        if low is not None and (low < -_ROUNDING or (_SHARE.search(name) and high > 1 + _ROUNDING)):
            yield name
