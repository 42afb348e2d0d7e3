"""Which kernels take the device's time: by name, by category, by shape (DEFINITIONS §2).

Durations are summed, so work that overlaps on several streams counts each time. On a trace without a device the
rows are operators and the durations are their self times.

Where Nsight Compute's metrics were joined to kernels (`analyses.ncu_join`), their work stands over the time that they take in
this trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracekit.analyses.attribution import UNATTRIBUTED, attribution
from tracekit.analyses.counters.measured_kernels import measured_kernels
from tracekit.analyses.result import Result
from tracekit.analyses.rules import evaluate
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.statistics import duration_aggregates
from tracekit.facts.category_names import category_name
from tracekit.facts.units import format_ns, format_share
from tracekit.readers import how_to_record
from tracekit.trace import Trace

__all__ = ["Kernels", "kernels"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Kernels(Result):
    """`by_name`, `by_category`, `by_operator`, `by_shape`: `count`, `total_ns`, `mean_ns`, `median_ns`, `p95_ns`,
    `min_ns`, `max_ns`, `std_ns` and `share` of the summed device time, largest first.

    `by_name` has the columns `name`, `category`, `kind`; `by_operator` has `operator` (the innermost around the
    launch); `by_layer` has `layer` (the path, or `unattributed`) beside `name` and `category` and is None when no layer
    is known; `by_shape` adds `shapes` and `dtypes` and is None when shapes were not recorded. `total_ns` is the sum
    of all durations. `measured` has a row per `name` of the kernels that Nsight Compute measured (columns of
    `measured_kernels`); None when no such metrics were joined.
    """

    by_name: pl.DataFrame
    by_category: pl.DataFrame
    by_operator: pl.DataFrame
    by_layer: pl.DataFrame | None
    by_shape: pl.DataFrame | None
    measured: pl.DataFrame | None
    total_ns: int


def kernels(trace: Trace, *, scope: Scope | None = None) -> Kernels:
    """Kernels, copies and fills of the scope, aggregated.

    >>> import tracekit
    >>> result = kernels(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> int(result.by_name["total_ns"].sum()) == int(result.by_category["total_ns"].sum()) == result.total_ns
    True
    """
    scope = scope or select(trace)
    rows = _with_operators(_per_call(scope, _layer_paths(trace, scope)), trace)
    total = int(rows["duration"].sum())
    by_category = _table(rows, ["category"], total)
    shapes = rows.filter(pl.col("shapes").is_not_null())
    result = Kernels(
        answer=_answer(by_category, total, on_cpu=scope.on_cpu),
        by_name=_table(rows, ["name", "category", "kind"], total),
        by_category=by_category,
        by_operator=_table(rows, ["operator"], total),
        by_layer=_table(rows, ["layer", "name", "category"], total) if _any_layer(trace, scope) else None,
        by_shape=_table(shapes, ["operator", "shapes", "dtypes"], total)
        if "shapes" in trace.meta.captured
        else None,
        measured=measured_kernels(scope),
        total_ns=total,
        not_captured=None
        if rows.height
        else f"no device activity and no operators; {how_to_record('everything', trace.meta.format)}",
    )
    return evaluate("kernels", trace, scope, result)


def _layer_paths(trace: Trace, scope: Scope) -> pl.Series:
    """The path of each activity's layer."""
    known = attribution(trace, scope=scope)
    paths = known.layers["path"].cast(pl.Categorical())
    found = paths.gather(known.activities["layer_id"])
    return found.fill_null(UNATTRIBUTED).alias("layer")


def _any_layer(trace: Trace, scope: Scope) -> bool:
    return bool(attribution(trace, scope=scope).model.layers.methods)


def _per_call(scope: Scope, layer: pl.Series) -> pl.DataFrame:
    """One row per activity; on the CPU one per operator call, with its self time."""
    columns = ["activity_id", "name", "category", "kind", "op_id", "duration"]
    rows = scope.activities.select(columns).with_columns(layer)
    if not scope.on_cpu:
        return rows
    return rows.group_by("op_id", maintain_order=True).agg(
        pl.col("activity_id", "name", "category", "kind", "layer").first(), pl.col("duration").sum()
    )


def _with_operators(rows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    ops = trace.host.select(
        pl.col("span_id").alias("op_id"), pl.col("name").alias("operator"), "shapes", "dtypes"
    )
    return rows.join(ops, on="op_id", how="left", maintain_order="left")


def _table(rows: pl.DataFrame, keys: list[str], total: int) -> pl.DataFrame:
    # Names stay encoded until they are few: as text, half a million of them take more than all else.
    grouped = rows.group_by(keys).agg(*duration_aggregates()).with_columns(pl.col(keys).cast(pl.String))
    share = (pl.col("total_ns") / total) if total else pl.lit(None, dtype=pl.Float64)
    return grouped.with_columns(share.alias("share")).sort(
        ["total_ns", *keys], descending=[True, *[False] * len(keys)], nulls_last=True
    )


def _answer(by_category: pl.DataFrame, total: int, *, on_cpu: bool) -> str:
    if not by_category.height:
        return "Nothing ran."
    rows = by_category.select("category", "share").head(3).rows()
    named = [f"{category_name(name)} {format_share(share)}" for name, share in rows]
    what = "operators' self time" if on_cpu else "device activities"
    return f"{format_ns(total)} of {what}: {', '.join(named)}."
