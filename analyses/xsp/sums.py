"""Sums of kernels over groups: what A10, A11, A12, A14 and A15 are made of."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.xsp.runs import XspRun
from tracekit.statistics import trimmed

__all__ = ["grouped", "union_by", "with_roofline"]

_TRAFFIC = ("dram_read_bytes", "dram_write_bytes", "dram_bytes")
_MEANS = ("kernels", "sum_ns", "flops", *_TRAFFIC, "occupancy")


def union_by(pieces: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """For each group (`keys` and `step`) the time `gpu_ns` in which at least one of its pieces runs, and then the
    trimmed mean over the steps.
    """
    ordered = pieces.sort("start", "end")
    groups = [*keys, "step"]
    before = pl.col("end").cum_max().shift(1).over(groups)
    fresh = (pl.col("end") - pl.max_horizontal("start", before.fill_null(pl.col("start")))).clip(
        lower_bound=0
    )
    steps = ordered.with_columns(fresh.alias("gpu_ns")).group_by(groups).agg(pl.col("gpu_ns").sum())
    return steps.group_by(keys).agg(trimmed("gpu_ns")) if keys else steps.select(trimmed("gpu_ns"))


def grouped(calls: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Per group the trimmed means over steps of the number of kernels, their summed time and their work.

    FLOPs are the sum of those that are known, null when none is. Bytes are null unless all kernels of the group tell
    theirs: a part of the traffic would pass for all of it. Occupancy is weighted by duration. `keys` may be empty.
    """
    is_kernel = pl.col("kind") == "kernel"
    steps = calls.group_by([*keys, "step"]).agg(
        pl.len().alias("kernels"),
        _known_sum("duration_ns").alias("sum_ns"),
        _known_sum("flops").alias("flops"),
        *(_whole_sum(name, is_kernel).alias(name) for name in _TRAFFIC),
        _weighted("occupancy").alias("occupancy"),
    )
    aggregates = [trimmed(name) for name in _MEANS]
    about = [
        *(_joined(name) for name in ("flops_source", "dram_source", "occupancy_source")),
        pl.col("precision").sort_by("flops", nulls_last=False).drop_nulls().last(),
        pl.col("order").min(),
    ]
    if not keys:
        return pl.concat([steps.select(aggregates), calls.select(about)], how="horizontal")
    told = calls.group_by(keys).agg(about)
    return steps.group_by(keys).agg(aggregates).join(told, on=keys, nulls_equal=True)


def with_roofline(rows: pl.DataFrame, run: XspRun, time: str) -> pl.DataFrame:
    """The rows with the columns of a roofline: `time` names the column of their duration.

    The precision is that of the operator with the most FLOPs, else that of the run. Null where FLOPs, bytes, or the
    device's peaks are not known.
    """
    precision = pl.coalesce("precision", pl.lit(run.precision, dtype=pl.String))
    rows = rows.with_columns(precision.alias("precision"))
    peaks = {name: run.peak_tflops(name) for name in ("fp32", "tf32", "bf16", "fp16")}
    peak = pl.col("precision").replace_strict(peaks, default=None, return_dtype=pl.Float64)
    bandwidth = pl.lit(run.bandwidth_gbps, dtype=pl.Float64)
    # What is shown as read and as written adds up to what is shown as moved.
    moved = pl.coalesce(pl.col("dram_read_bytes") + pl.col("dram_write_bytes"), "dram_bytes")
    intensity = pl.when(moved > 0).then(pl.col("flops") / moved)
    # FLOPs per ns are 10⁹ a second; so is intensity × bandwidth.
    return (
        rows.with_columns(
            moved.alias("dram_bytes"),
            intensity.alias("intensity"),
            pl.when(pl.col(time) > 0).then(pl.col("flops") / pl.col(time) / 1e3).alias("tflops"),
        )
        .with_columns(
            # min_horizontal would pass over the one that is null
            pl.when(peak.is_not_null())
            .then(pl.min_horizontal(peak, pl.col("intensity") * bandwidth / 1e3))
            .alias("attainable_tflops"),
            (pl.col("intensity") < peak * 1e3 / bandwidth).alias("memory_bound"),
        )
        .with_columns(
            pl.when(pl.col("memory_bound").is_not_null()).then("attainable_tflops").alias("attainable_tflops")
        )
    )


def _known_sum(name: str) -> pl.Expr:
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum())


def _whole_sum(name: str, of: pl.Expr) -> pl.Expr:
    values = pl.col(name).filter(of)
    return pl.when((values.null_count() == 0) & (values.len() > 0)).then(values.sum())


def _weighted(name: str) -> pl.Expr:
    known = pl.col(name).is_not_null()
    weight = pl.col("duration_ns").fill_null(1).filter(known)
    return pl.when(weight.sum() > 0).then((pl.col(name).filter(known) * weight).sum() / weight.sum())


def _joined(name: str) -> pl.Expr:
    told = pl.col(name).drop_nulls().unique().sort()
    return pl.when(told.len() > 0).then(told.str.join("+")).alias(name)
