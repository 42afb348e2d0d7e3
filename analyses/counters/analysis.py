"""What hardware counters and counter tracks measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.analyses.result import NotCaptured, Result, TableView
from tracekit.analyses.scope import Scope, once
from tracekit.facts.units import format_count
from tracekit.readers import how_to_record
from tracekit.trace import Trace

__all__ = ["TABLES", "Counters", "counters"]

TABLES: Final = {
    "series": TableView("Counters", "series samples total mean min max", main=True),
    "by_name": TableView(
        "Counters by kernel or track",
        "name series samples total mean min max",
        short="name series samples total mean",
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Counters(Result):
    """Samples and measured ranges of counters, in the units of each. Both tables are None when no counter was recorded."""

    series: pl.DataFrame | None
    """Per counter `series` the number of `samples` and `total`, `mean`, `min`, `max`."""
    by_name: pl.DataFrame | None
    """The same per `name` (the track, or the kernel that a measured range covers) and `series`."""


def counters(scope: Scope | Trace) -> Counters:
    """Counter samples and measured ranges of the whole file.

    >>> import tracekit
    >>> counters(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).series is None
    True
    """
    return once(scope, _counters)


def _counters(scope: Scope) -> Counters:
    trace = scope.trace
    rows = trace.counters
    if rows is None or not rows.height:
        return Counters(
            answer="No counter was recorded.",
            not_captured=NotCaptured("no counters", how_to_record("counters", trace.meta.format)),
            series=None,
            by_name=None,
        )
    text = rows.with_columns(pl.col("name", "series").cast(pl.String))
    series = text.group_by("series").agg(*_summary()).sort("series")
    of_range = text["duration"].is_not_null()
    where = " and ".join(
        f"{before}{format_count(count)} {what}{'' if count == 1 else 's'}"
        for before, what, chosen in (("", "track", ~of_range), ("kernels of ", "name", of_range))
        if (count := text.filter(chosen)["name"].n_unique())
    )
    measured = rows["activity_id"].drop_nulls().n_unique()
    ncu = (
        f" Nsight Compute measured {format_count(measured)} {'kernel' if measured == 1 else 'kernels'} of the trace."
        if measured
        else ""
    )
    return Counters(
        answer=f"{format_count(series.height)} {'counter' if series.height == 1 else 'counters'} on {where}.{ncu}",
        series=series,
        by_name=text.group_by("name", "series").agg(*_summary()).sort("name", "series"),
    )


def _summary() -> list[pl.Expr]:
    value = pl.col("value")
    return [
        pl.len().cast(pl.Int64).alias("samples"),
        value.sum().alias("total"),
        value.mean().alias("mean"),
        value.min().alias("min"),
        value.max().alias("max"),
    ]
