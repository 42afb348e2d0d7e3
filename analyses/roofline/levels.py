"""Pieces of work against the ceilings of their device, and their sums at any level.

The least time of a piece is that at its roof: the longer of its FLOPs at the peak and its bytes at the bandwidth. It is memory-bound
if the bytes take longer, so if its intensity is below the ridge. A row of a level adds the least times of its pieces, not their
FLOPs and bytes under one roof: operators run one after the other, each under its own roof and in its own precision. So the
figures of all levels have the same sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from tracekit.facts.ceilings import Ceilings
from tracekit.trace import Schema

__all__ = ["BOUNDS", "LEVEL_SCHEMA", "level", "under_roofs"]

LEVEL_SCHEMA: Final[Schema] = {
    "calls": pl.Int64,  # activities; of operators, and without a device, calls of operators
    "device_ns": pl.Int64,  # of all activities of the row; null where times were not recorded
    "flops": pl.Int64,
    "source": pl.String,  # of the FLOPs: counter (ncu), counter, analytic, recorded (a copy), or several, joined by +
    "bytes": pl.Int64,  # read and written
    "bytes_source": pl.String,  # as of the FLOPs; also derived (a counter's rate × time)
    "precision": pl.String,  # in which most of the FLOPs are
    "unit": pl.String,  # matrix or vector, of the same
    "intensity": pl.Float64,  # FLOP per byte, of the pieces of which both are known
    "flops_per_s": pl.Float64,  # over flops_ns; null without FLOPs
    "bytes_per_s": pl.Float64,  # over bytes_ns
    "attainable_flops_per_s": pl.Float64,  # FLOPs over least_ns; null without FLOPs
    "efficiency": pl.Float64,  # least_ns over rated_ns
    "bound": pl.String,  # compute, memory, L2 or L1: what most of the least time is spent on
    "least_ns": pl.Int64,  # at the roof
    "wasted_ns": pl.Int64,  # the rest, of the pieces that took longer than that
    "faster_ns": pl.Int64,  # the time of the pieces that took less than that
    "flops_ns": pl.Int64,  # the time of the pieces whose FLOPs are known
    "bytes_ns": pl.Int64,  # … whose bytes are
    "rated_ns": pl.Int64,  # … whose FLOPs, bytes and ceilings are
    "rated_share": pl.Float64,  # of device_ns
    "bandwidth_efficiency": pl.Float64,  # bytes_per_s over the peak
    "l2_intensity": pl.Float64,  # FLOP per byte through L2, by counters
    "l1_intensity": pl.Float64,
}
"""The figures of a row of any level, null where they are not known. Times of pieces are counted at their longest kernel: the other
kernels of its operator have a `device_ns`, and no figures.
"""

BOUNDS: Final = {"compute": "compute_ns", "memory": "memory_ns", "L2": "l2_ns", "L1": "l1_ns"}
"""What may bound a piece, each with the column that says how long it alone would take."""


def under_roofs(rows: pl.DataFrame, ceilings: Mapping[int, Ceilings]) -> pl.DataFrame:
    """The pieces (`analyses.roofline.pieces`) with `least_ns` and their `bound`, null where a ceiling is not known.

    `ceilings` are those of each device by its number. Beside them `compute_ns`, `memory_ns`, `l2_ns` and `l1_ns`: how long each alone
    would take.
    """
    kinds = rows.select("device_id", "precision", "unit").unique()
    peaks = kinds.with_columns(
        pl.Series("peak", [_peak(ceilings.get(row[0]), *row[1:]) for row in kinds.rows()], dtype=pl.Float64),
        *(
            pl.Series(
                name,
                [_bandwidth(ceilings.get(row[0]), name, row[2]) for row in kinds.rows()],
                dtype=pl.Float64,
            )
            for name in ("DRAM", "L2", "L1")
        ),
    )
    timed = rows.join(
        peaks, on=["device_id", "precision", "unit"], how="left", nulls_equal=True, maintain_order="left"
    ).with_columns(
        pl.when(pl.col("flops") == 0)
        .then(0.0)
        .otherwise(pl.col("flops") / pl.col("peak") * 1e9)
        .alias("compute_ns"),
        (pl.col("bytes") / pl.col("DRAM") * 1e9).alias("memory_ns"),
        (pl.col("l2_bytes") / pl.col("L2") * 1e9).alias("l2_ns"),
        (pl.col("l1_bytes") / pl.col("L1") * 1e9).alias("l1_ns"),
    )
    known = pl.col("compute_ns").is_not_null() & pl.col("memory_ns").is_not_null()
    # Of what took no tick of the clock no rate is known.
    known &= (pl.col("piece_ns") > 0).fill_null(value=True)
    least = pl.max_horizontal(*BOUNDS.values())
    bound = pl.coalesce(pl.when(pl.col(time) == least).then(pl.lit(name)) for name, time in BOUNDS.items())
    return timed.with_columns(
        pl.when(known).then(least).round().cast(pl.Int64).alias("least_ns"),
        pl.when(known).then(bound).alias("bound"),
    )


def _peak(ceilings: Ceilings | None, precision: str | None, unit: str | None) -> float | None:
    if ceilings is None or precision is None:
        return None
    found = ceilings.peak(precision, unit or "vector")
    # A processor computes products in the lanes that do all else.
    return ceilings.peak(precision) if found is None and ceilings.threads is not None else found


def _bandwidth(ceilings: Ceilings | None, level: str, unit: str | None) -> float | None:
    return None if ceilings is None or unit == "link" else ceilings.bandwidth.get(level)


def level(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The pieces `under_roofs` by these keys: the keys and the columns of LEVEL_SCHEMA, the most wasted time first, then
    what is known without a roof.
    """
    sums = rows.group_by(keys).agg(_sums())
    most = (
        rows.filter(pl.col("flops") > 0)
        .group_by([*keys, "precision", "unit"])
        .agg(pl.col("flops").sum())
        .sort("flops", "precision", "unit", descending=[True, False, False], nulls_last=True)
    )
    most = most.unique(keys, keep="first", maintain_order=True).drop("flops")
    found = sums.join(most, on=keys, how="left", nulls_equal=True).with_columns(_rates())
    found = found.select(*keys, *(pl.col(name).cast(kind) for name, kind in LEVEL_SCHEMA.items()))
    texts = [name for name, kind in found.schema.items() if kind in (pl.Categorical, pl.Enum)]
    order = ["wasted_ns", "bytes_ns", "device_ns", "flops", *keys]
    falling = [True, True, True, True, *(False for _ in keys)]
    return found.with_columns(pl.col(texts).cast(pl.String)).sort(order, descending=falling, nulls_last=True)


def _sums() -> list[pl.Expr]:
    time, least = pl.col("piece_ns"), pl.col("least_ns")
    counted, moved = pl.col("flops").is_not_null(), pl.col("bytes").is_not_null()
    rated, both = least.is_not_null(), counted & moved
    longer = rated & (time >= least)
    return [
        pl.col("call").n_unique().cast(pl.Int64).alias("calls"),
        _some("duration").alias("device_ns"),
        _some("flops").alias("flops"),
        _joined("source"),
        _some("bytes").alias("bytes"),
        _joined("bytes_source"),
        _some("piece_ns", counted).alias("flops_ns"),
        _some("piece_ns", moved).alias("bytes_ns"),
        _some("piece_ns", rated).alias("rated_ns"),
        _some("least_ns", time.is_not_null()).alias("least_ns"),
        _some("flops", rated).alias("_rated_flops"),
        (time - least).filter(longer).sum().alias("_wasted"),
        time.filter(rated & (time < least)).sum().alias("_faster"),
        pl.col("memory_ns").filter(time > 0).sum().alias("_moving"),
        *(least.filter(pl.col("bound") == name).sum().alias(f"_{name}") for name in BOUNDS),
        *(
            _ratio("flops", name, both if name == "bytes" else counted).alias(title)
            for name, title in _INTENSITIES.items()
        ),
    ]


_INTENSITIES: Final = {"bytes": "intensity", "l2_bytes": "l2_intensity", "l1_bytes": "l1_intensity"}


def _rates() -> list[pl.Expr]:
    least = pl.col("least_ns")
    most = pl.max_horizontal(f"_{name}" for name in BOUNDS)
    bound = pl.coalesce(pl.when(pl.col(f"_{name}") == most).then(pl.lit(name)) for name in BOUNDS)
    rated = least.is_not_null()
    return [
        pl.when(pl.col("flops") > 0).then(_over("flops", pl.col("flops_ns"), 1e9)).alias("flops_per_s"),
        _over("bytes", pl.col("bytes_ns"), 1e9).alias("bytes_per_s"),
        pl.when(pl.col("_rated_flops") > 0)
        .then(_over("_rated_flops", least, 1e9))
        .alias("attainable_flops_per_s"),
        _over("least_ns", pl.col("rated_ns"), 1).alias("efficiency"),
        pl.when(rated & (most > 0)).then(bound).alias("bound"),
        pl.when(rated).then("_wasted").alias("wasted_ns"),
        pl.when(rated).then("_faster").alias("faster_ns"),
        # An operator's time stands at its longest activity; in odd traces others of it lie in another layer.
        _over("rated_ns", pl.col("device_ns"), 1).clip(upper_bound=1.0).alias("rated_share"),
        pl.when(pl.col("_moving") > 0)
        .then(_over("_moving", pl.col("bytes_ns"), 1))
        .alias("bandwidth_efficiency"),
    ]


def _some(name: str, of: pl.Expr | None = None) -> pl.Expr:
    """The sum of what is known; null if nothing is."""
    values = pl.col(name) if of is None else pl.col(name).filter(of)
    return pl.when(values.count() > 0).then(values.sum())


def _ratio(name: str, other: str, of: pl.Expr) -> pl.Expr:
    both = of & pl.col(other).is_not_null()
    divisor = pl.col(other).filter(both).sum()
    return pl.when(divisor > 0).then(pl.col(name).filter(both).sum() / divisor)


def _over(name: str, time: pl.Expr, times: float) -> pl.Expr:
    return pl.when(time > 0).then(pl.col(name) / time * times)


def _joined(name: str) -> pl.Expr:
    values = pl.col(name).drop_nulls().unique().sort()
    return pl.when(values.len() > 0).then(values.str.join("+")).alias(name)
