"""The tree of layers in groups: all layers of a class, or those whose paths differ only in numbers."""

from __future__ import annotations

import polars as pl

from tracekit.facts.stack_names import PHASES
from tracekit.trees import has_same_above, parent_rows

__all__ = ["by_group", "pattern_of", "shares"]

_INCLUSIVE = (
    "device_ns",
    *(f"{name}_ns" for name in PHASES),
    "recomputed_ns",
    "host_ns",
)
_NUMBER = r"(^|[./])\d+([./]|$)"
_NUMBERED = r"(^|[_ #:\-])\d+([./]|$)"
"""A part of a path that is a number, and one that ends in one: what tells repeated layers apart."""


def pattern_of(tree: pl.DataFrame) -> pl.Series:
    """The path of each row with `*` for the numbers that tell repeated layers apart.

    Of a capture those are the parts that are numbers; in other paths also the numbers at the end of a part.
    """
    path = pl.col("path")
    # Twice, since two neighbours share the character between them.
    plain = path.str.replace_all(_NUMBER, "$1*$2").str.replace_all(_NUMBER, "$1*$2")
    ended = plain.str.replace_all(_NUMBERED, "$1*$2").str.replace_all(_NUMBERED, "$1*$2")
    of_model = pl.col("source").is_in(["module", "range", "compiled", "interval"])
    captured = pl.col("source") == "capture"
    return tree.select(
        pl.when(of_model).then(ended).when(captured).then(plain).otherwise(path).alias("pattern")
    )["pattern"]


def by_group(tree: pl.DataFrame, key: str, total: int) -> pl.DataFrame:
    """The rows by `key`: `layers`, `calls`, `device_ns` with its phases, `device_own_ns`, host times, the idle time that they caused, `share` (inclusive)
    and `own_share`; the most own time first. Inclusive times leave out layers inside another of their group, whose
    time that one has already.
    """
    group = tree.select(pl.col(key).rank("dense").cast(pl.Int64).fill_null(0)).to_series().to_numpy()
    outer = pl.Series("outer", ~has_same_above(parent_rows(tree), group))
    inclusive = [pl.col(name).filter("outer").sum().alias(name) for name in _INCLUSIVE]
    sums = (
        tree.with_columns(outer)
        .group_by(key)
        .agg(
            pl.len().cast(pl.Int64).alias("layers"),
            _sum_or_null("calls"),
            *inclusive[:1],
            pl.col("device_own_ns").sum(),
            *inclusive[1:-1],
            _sum_or_null("host_ns", pl.col("outer")),
            _sum_or_null("host_self_ns"),
            _sum_or_null("idle_caused_own_ns"),
        )
    )
    mean = (pl.col("device_ns") / pl.col("layers")).alias("mean_ns")
    return sums.with_columns(mean, *shares(total)).sort(
        ["device_own_ns", "device_ns", key], descending=[True, True, False], nulls_last=True
    )


def shares(total: int) -> list[pl.Expr]:
    """`share` and `own_share` of the summed device time; null when that is 0."""
    nothing = pl.lit(None, dtype=pl.Float64)
    return [
        (pl.col(time) / total if total else nothing).alias(name)
        for name, time in (("share", "device_ns"), ("own_share", "device_own_ns"))
    ]


def _sum_or_null(column: str, wanted: pl.Expr | None = None) -> pl.Expr:
    values = pl.col(column) if wanted is None else pl.col(column).filter(wanted)
    return pl.when(values.is_not_null().any()).then(values.sum()).alias(column)
