"""Which kernels take the device's time: by name, by category, by shape (DEFINITIONS §2).

Durations are summed, so overlapping work on several streams counts each time. In a trace without a device, the rows are
operators and the durations are their self times.

If metrics of Nsight Compute were joined to kernels (`analyses.counters.ncu`), rates are their work over the time of the
kernels in this trace.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.arithmetic import arithmetic
from tracekit.analyses.attribution import UNATTRIBUTED, attribution
from tracekit.analyses.counters.analysis import measured_kernels
from tracekit.analyses.result import AGGREGATES, NotCaptured, Result, TableView
from tracekit.analyses.roofline.rates import RATES, with_rates
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.facts.units import format_ns, format_share
from tracekit.groups import at_rows, or_none
from tracekit.names import category_name
from tracekit.readers import how_to_record
from tracekit.statistics import duration_aggregates
from tracekit.trace import Trace

__all__ = ["TABLES", "Kernels", "kernels"]

TABLES: Final = {
    "by_name": TableView(
        "By name",
        f"name category kind {AGGREGATES} share {RATES}",
        short="name category count total_ns share flops_per_s bound",
        main=True,
    ),
    "by_category": TableView(
        "By category",
        f"category {AGGREGATES} share",
        short="category count total_ns share mean_ns",
        main=True,
    ),
    "by_operator": TableView(
        "By operator", f"operator {AGGREGATES} share", short="operator count total_ns share mean_ns"
    ),
    "by_layer": TableView(
        "By layer and name",
        f"layer name category {AGGREGATES} share",
        short="layer name count total_ns share",
    ),
    "by_shape": TableView(
        "By operator and shape",
        f"operator shapes dtypes {AGGREGATES} share",
        short="operator shapes count total_ns share",
    ),
    "measured": TableView(
        "Measured by Nsight Compute",
        (
            "name count measured total_ns flops dram_bytes dram_source intensity tflops "
            "bandwidth_gbps occupancy"
        ),
        short="name measured total_ns intensity tflops bandwidth_gbps occupancy",
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Kernels(Result):
    """The activities in groups, largest first. Every table has `count`, `total_ns`, `mean_ns`, `median_ns`, `p95_ns`, `min_ns`, `max_ns`, `std_ns`
    and `share` of the summed device time.
    """

    by_name: pl.DataFrame
    """By `name`, `category` and `kind`, with the rates of their work (`analyses.roofline.rates`)."""
    by_category: pl.DataFrame
    """By `category`."""
    by_operator: pl.DataFrame
    """By `operator`, the innermost around the launch."""
    by_layer: pl.DataFrame | None
    """By `layer` (the path, or `unattributed`), `name` and `category`; None when no layer is known."""
    by_shape: pl.DataFrame | None
    """By `operator`, `shapes` and `dtypes`; None when shapes were not recorded."""
    measured: pl.DataFrame | None
    """A row per `name` of the kernels that Nsight Compute measured (columns of `measured_kernels`); None when no such metrics were joined."""
    total_ns: int
    """The sum of all durations."""
    flops_per_step: float | None = None
    """The floating-point operations of a step; None without steps, or if they were not captured."""
    achieved_tflops: float | None = None
    """10¹² FLOPs a second of the window."""
    flops_source: str | None = None
    """`counter`, `analytic` (from shapes) or `manifest`; None if they were not captured."""
    flops_share: float | None = None
    """The share of the device time whose FLOPs are known; without a device, of the operators' time in which they have work."""
    flops_utilisation: float | None = None
    """Of the peak of the device for the precision, by the FLOPs of matrix products, 0 to 1; None if it is not known."""


def kernels(scope: Scope | Trace) -> Kernels:
    """Kernels, copies and fills of the scope, aggregated.

    >>> import tracekit
    >>> result = kernels(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> int(result.by_name["total_ns"].sum()) == int(result.by_category["total_ns"].sum()) == result.total_ns
    True
    """
    return once(scope, _kernels)


def _kernels(scope: Scope) -> Kernels:
    trace = scope.trace
    rows = _with_operators(_per_call(scope, _layer_paths(scope)), trace)
    total = int(rows["duration"].sum())
    by_category = _table(rows, ["category"], total)
    work = arithmetic(scope)
    answer = _answer(by_category, total, on_cpu=scope.on_cpu)
    told = (
        work.figures != ""
    )  # else they are next to nothing of what was computed, as of a trace without shapes
    return Kernels(
        answer=f"{answer} {work.sentence}" if rows.height else answer,
        by_name=with_rates(_table(rows, _NAMED, total), scope, "kernels", _NAMED),
        by_category=by_category,
        by_operator=_table(rows, ["operator"], total),
        by_layer=_table(rows, ["layer", "name", "category"], total) if _any_layer(scope) else None,
        by_shape=_table(rows.filter(pl.col("shapes").is_not_null()), ["operator", "shapes", "dtypes"], total)
        if "shapes" in trace.meta.captured
        else None,
        measured=measured_kernels(scope),
        total_ns=total,
        flops_per_step=work.flops_per_step if told else None,
        achieved_tflops=work.tflops if told else None,
        flops_source=work.source if told else None,
        flops_share=work.covered if told else None,
        flops_utilisation=work.utilisation,
        not_captured=None
        if rows.height
        else NotCaptured(
            "no device activity and no operators", how_to_record("everything", trace.meta.format)
        ),
    )


_NAMED: Final = ["name", "category", "kind"]


def _layer_paths(scope: Scope) -> pl.Series:
    """The path of each activity's layer."""
    known = attribution(scope)
    paths = pl.Series("layer", [*known.layers["path"].to_list(), UNATTRIBUTED], dtype=pl.Categorical)
    return at_rows(paths, or_none(known.activities["layer_id"], known.layers.height))


def _any_layer(scope: Scope) -> bool:
    return bool(attribution(scope).model.layers.methods)


def _per_call(scope: Scope, layer: pl.Series) -> pl.DataFrame:
    """One row per activity; on the CPU one per operator call, with its self time."""
    columns = ["activity_id", "name", "category", "kind", "op_id", "duration"]
    rows = scope.activities[columns].hstack([layer])
    if not scope.on_cpu:
        return rows
    return rows.group_by("op_id", maintain_order=True).agg(
        pl.col("activity_id", "name", "category", "kind", "layer").first(), pl.col("duration").sum()
    )


def _with_operators(rows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    columns = {"operator": "name", "shapes": "shapes", "dtypes": "dtypes"}
    return rows.hstack([at_rows(trace.host[of], rows["op_id"]).alias(name) for name, of in columns.items()])


def _table(rows: pl.DataFrame, keys: list[str], total: int) -> pl.DataFrame:
    # Names stay encoded until they are few: as text, half a million of them take more than all else.
    grouped = rows.group_by(keys).agg(*duration_aggregates())
    share = pl.Series("share", grouped["total_ns"] / total if total else [None] * grouped.height, pl.Float64)
    columns = [grouped[name].cast(pl.String) if name in keys else grouped[name] for name in grouped.columns]
    return pl.DataFrame([*columns, share]).sort(
        ["total_ns", *keys], descending=[True, *[False] * len(keys)], nulls_last=True
    )


def _answer(by_category: pl.DataFrame, total: int, *, on_cpu: bool) -> str:
    if not by_category.height:
        return "Nothing ran."
    rows = by_category[["category", "share"]].head(3).rows()
    named = [f"{category_name(name)} {format_share(share)}" for name, share in rows]
    what = "The self time of operators is" if on_cpu else "Device activities take"
    if len(named) == 1:
        return f"{what} {format_ns(total)}, all of it {category_name(rows[0][0])}."
    return f"{what} {format_ns(total)}. The largest categories: {', '.join(named)}."
