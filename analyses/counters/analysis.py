"""What hardware counters and counter tracks measured."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracekit.analyses.result import Result
from tracekit.analyses.rules import evaluate
from tracekit.analyses.scope import Scope, select
from tracekit.facts.units import format_count
from tracekit.readers import how_to_record
from tracekit.trace import Trace

__all__ = ["Counters", "counters"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Counters(Result):
    """`series`: per counter `series` the number of `samples` and `total`, `mean`, `min`, `max`.

    `by_name`: the same per `name` (the track, or the kernel that a measured range covers) and `series`. Values are
    in the counter's own unit. Both are None when no counter was recorded.
    """

    series: pl.DataFrame | None
    by_name: pl.DataFrame | None


def counters(trace: Trace, *, scope: Scope | None = None) -> Counters:
    """Counter samples and measured ranges of the whole file.

    >>> import tracekit
    >>> counters(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).series is None
    True
    """
    scope = scope or select(trace)
    rows = trace.counters
    if rows is None or not rows.height:
        result = Counters(
            answer="No counter was recorded.",
            not_captured=f"no counters; {how_to_record('counters', trace.meta.format)}",
            series=None,
            by_name=None,
        )
        return evaluate("counters", trace, scope, result)
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
    result = Counters(
        answer=f"{format_count(series.height)} {'counter' if series.height == 1 else 'counters'} on {where}.{ncu}",
        series=series,
        by_name=text.group_by("name", "series").agg(*_summary()).sort("name", "series"),
    )
    return evaluate("counters", trace, scope, result)


def _summary() -> list[pl.Expr]:
    value = pl.col("value")
    return [
        pl.len().cast(pl.Int64).alias("samples"),
        value.sum().alias("total"),
        value.mean().alias("mean"),
        value.min().alias("min"),
        value.max().alias("max"),
    ]
