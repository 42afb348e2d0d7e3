"""The work of kernels by name, as Nsight Compute measured it, over the time that they take in the trace."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.counters.join import linked
from tracekit.analyses.scope import Scope

__all__ = ["measured_kernels"]


def measured_kernels(scope: Scope) -> pl.DataFrame | None:
    """One row per `name` of the kernels of the scope to which metrics were joined, by their time; None when there are none.

    `count` kernels have the name, `measured` of them metrics; `total_ns` is the time of these in the trace. `flops` and
    `dram_bytes` are sums over these, null unless all of them tell theirs; `dram_source` says how the bytes are
    known. `intensity` is FLOPs over bytes, `tflops` and `bandwidth_gbps` are over `total_ns`, `occupancy` is
    weighted by duration.
    """
    found = linked(scope.trace)
    if not found.height or scope.on_cpu:
        return None
    rows = (
        scope.activities.filter(pl.col("kind") == "kernel")
        .select("activity_id", pl.col("name").cast(pl.String), "duration")
        .join(found.with_columns(pl.lit(value=True).alias("joined")), on="activity_id", how="left")
    )
    is_joined = pl.col("joined").is_not_null()
    grouped = rows.group_by("name").agg(
        pl.len().cast(pl.Int64).alias("count"),
        is_joined.sum().cast(pl.Int64).alias("measured"),
        pl.col("duration").filter(is_joined).sum().alias("total_ns"),
        _whole("flops", is_joined),
        _whole("dram_bytes", is_joined),
        pl.col("dram_source").drop_nulls().unique().sort().str.join("+").alias("dram_source"),
        _weighted(is_joined),
    )
    busy, moved = pl.col("total_ns") > 0, pl.col("dram_bytes") > 0
    return (
        grouped.filter(pl.col("measured") > 0)
        .select(
            *("name", "count", "measured", "total_ns", "flops", "dram_bytes"),
            pl.when(pl.col("dram_bytes").is_not_null()).then("dram_source").alias("dram_source"),
            pl.when(moved).then(pl.col("flops") / pl.col("dram_bytes")).alias("intensity"),
            # FLOPs a nanosecond are 10⁹ a second; so are bytes.
            pl.when(busy).then(pl.col("flops") / pl.col("total_ns") / 1e3).alias("tflops"),
            pl.when(busy).then(pl.col("dram_bytes") / pl.col("total_ns")).alias("bandwidth_gbps"),
            "occupancy",
        )
        .sort("total_ns", "name", descending=[True, False])
    )


def _whole(name: str, of: pl.Expr) -> pl.Expr:
    values = pl.col(name).filter(of)
    return pl.when(values.null_count() == 0).then(values.sum()).alias(name)


def _weighted(of: pl.Expr) -> pl.Expr:
    known = of & pl.col("occupancy").is_not_null()
    value, weight = pl.col("occupancy").filter(known), pl.col("duration").filter(known)
    return pl.when(weight.sum() > 0).then((value * weight).sum() / weight.sum()).alias("occupancy")
