"""What hardware counters of one launch say of its work: FLOPs, DRAM traffic, occupancy.

* FLOPs: additions and multiplications, and fused multiply-adds twice, of fp64, fp32 and fp16 in the ordinary units (all
  nine must be there), and the floating-point operations of the tensor cores. Where tensor cores worked, or the
  kernel's name tells them, and their operations were not counted, FLOPs are not captured.
* DRAM bytes: read and written where both were counted, else their sum where it was, else the rate over the time of
  the measured launch, which is `derived`.
* The precision (fp64, fp32, fp16; of tensor cores that of the factors) and the unit (`matrix`, `vector`) of most of the FLOPs.
* L2 and L1 bytes: what passes through the caches.
* Occupancy: the warps that are active on average over the most that fit, while the multiprocessor is active.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.facts import gpu_metrics as names
from tracekit.facts.kernel_rules import ORDINARY_INSTRUCTIONS, TENSOR_CORE
from tracekit.trace import Schema

__all__ = ["COUNTED", "DERIVED", "WORK_SCHEMA", "work_of"]

COUNTED: Final = "counter"
DERIVED: Final = "derived"

WORK_SCHEMA: Final[Schema] = {
    "flops": pl.Int64,
    "dram_read_bytes": pl.Int64,
    "dram_write_bytes": pl.Int64,
    "dram_bytes": pl.Int64,
    "dram_source": pl.String,
    "l2_bytes": pl.Int64,
    "l1_bytes": pl.Int64,
    "flops_precision": pl.String,
    "flops_unit": pl.String,
    "occupancy": pl.Float64,
}
"""What the counters of a launch tell; null where they were not recorded."""

_MOST: Final = 2.0**53
"""More of anything is damage: sums must fit 64 bits."""


def work_of(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The columns of WORK_SCHEMA, one row per group of `keys` in order of appearance.

    `rows` have `keys` (one of them `name`, the kernel), `series` (text) and `value` in base units, shares in percent. Of
    a series that comes twice in a group the first counts.

    >>> rows = pl.DataFrame({"name": ["k", "k"], "series": ["dram__bytes_read.sum", "dram__bytes_write.sum"], "value": [3.0, 4.0]})
    >>> work_of(rows, ["name"]).select("dram_bytes", "dram_source", "flops").row(0)
    (7, 'counter', None)
    """
    once = rows.unique([*keys, "series"], keep="first", maintain_order=True)
    sums = once.group_by(keys, maintain_order=True).agg(*_sums())
    name = pl.col("name").cast(pl.String)
    tensor_name = name.str.contains(f"(?i){TENSOR_CORE}") & ~name.str.contains(ORDINARY_INSTRUCTIONS)
    unseen = (pl.col("_tensor") | tensor_name) & ~(pl.col("_tensor_flops") > 0).fill_null(value=False)
    total = pl.col("_flops") + pl.col("_tensor_flops").fill_null(0)
    both = pl.col("_read") + pl.col("_written")
    moved = pl.coalesce(both, "_moved")
    derived = pl.col("_rate") * pl.col("_ns") / 1e9
    made = sums.with_columns(
        _whole(pl.when(~unseen).then(total)).alias("flops"),
        *_most(),
        _whole(pl.col("_read")).alias("dram_read_bytes"),
        _whole(pl.col("_written")).alias("dram_write_bytes"),
        _whole(pl.coalesce(moved, derived)).alias("dram_bytes"),
        pl.when(moved.is_not_null())
        .then(pl.lit(COUNTED))
        .when(derived.is_not_null())
        .then(pl.lit(DERIVED))
        .alias("dram_source"),
        _whole(pl.col("_l2")).alias("l2_bytes"),
        _whole(pl.col("_l1")).alias("l1_bytes"),
        (pl.col("_occupancy") / 100).alias("occupancy"),
    )
    return made.select(*keys, *(pl.col(name).cast(kind) for name, kind in WORK_SCHEMA.items()))


def _most() -> list[pl.Expr]:
    """The precision and the unit of most of the FLOPs; null without any."""
    most = pl.max_horizontal(f"_{name}_{unit}" for name, unit in names.FLOPS_OF)
    found = [pl.when((most > 0) & (pl.col(f"_{name}_{unit}") == most)) for name, unit in names.FLOPS_OF]
    parts = zip(("flops_precision", "flops_unit"), zip(*names.FLOPS_OF, strict=True), strict=True)
    return [
        pl.coalesce(case.then(pl.lit(text)) for case, text in zip(found, texts, strict=True)).alias(title)
        for title, texts in parts
    ]


def _sums() -> list[pl.Expr]:
    series, value = pl.col("series"), pl.col("value")
    on_tensor = series.str.contains(names.TENSOR_FLOPS)
    part = series.str.contains("_sparsity_")
    wholes = value.filter(on_tensor & ~part)
    return [
        # The same instructions are counted per multiprocessor and per part of one.
        pl.coalesce(_instructions("smsp__"), _instructions("sm__")).alias("_flops"),
        (value.filter(series.str.contains(names.TENSOR_INSTRUCTION)).sum() > 0).alias("_tensor"),
        pl.when(wholes.len() > 0)
        .then(wholes.sum())
        .when(value.filter(on_tensor).len() > 0)
        .then(value.filter(on_tensor).sum())
        .alias("_tensor_flops"),
        _first(*names.READ_BYTES).alias("_read"),
        _first(*names.WRITTEN_BYTES).alias("_written"),
        _first(names.BYTES).alias("_moved"),
        _first(names.BYTES_PER_SECOND).alias("_rate"),
        *(
            (value * _weight()).filter(series.str.contains(counters)).sum().alias(f"_{name}_{unit}")
            for (name, unit), counters in names.FLOPS_OF.items()
        ),
        _first(names.L2_BYTES).alias("_l2"),
        _first(names.L1_BYTES).alias("_l1"),
        _first(*names.DURATIONS).alias("_ns"),
        _first(names.OCCUPANCY).alias("_occupancy"),
    ]


def _instructions(unit: str) -> pl.Expr:
    series, value = pl.col("series"), pl.col("value")
    counted = series.str.starts_with(unit) & series.str.contains(names.FLOP_INSTRUCTION)
    complete = value.filter(counted).len() == names.FLOP_KINDS
    return pl.when(complete).then((value * _weight()).filter(counted).sum())


def _weight() -> pl.Expr:
    """The operations of an instruction."""
    return pl.when(pl.col("series").str.contains("fma_pred_on")).then(2.0).otherwise(1.0)


def _first(*series: str) -> pl.Expr:
    return pl.coalesce(*(pl.col("value").filter(pl.col("series") == name).first() for name in series))


def _whole(value: pl.Expr) -> pl.Expr:
    return pl.when((value >= 0) & (value <= _MOST)).then(value).round().cast(pl.Int64, strict=False)
