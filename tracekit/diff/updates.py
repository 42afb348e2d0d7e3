"""The optimizer's updates, of another optimizer or in another implementation (one tensor at a time, all together, fused): one change."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.facts.units import count_of, listed

__all__ = ["UPDATE", "exchanged", "updates"]

UPDATE: Final = "update"
"""How the work of updates is matched where the two sides run other operators in them."""
_SOME: Final = 0.1
"""Of the time of the updates on one side, in operators that only this side has: it updates otherwise. Optimizers share operators, so that
the other side may have none of its own.
"""
_NAMED: Final = 2


def updates() -> pl.Expr:
    """Which of `matching.rows_of` are work of updates: that of an optimizer, in operators."""
    return (
        (pl.col("phase") == "optimizer")
        & pl.col("kind").is_in(["compute", "memory"])
        & pl.col("operator").is_not_null()
    )


def exchanged(rows: pl.DataFrame) -> tuple[str | None, str | None] | None:
    """The operators that only the base, and only the new side runs in its updates, in words; None if both run much the same, or one side
    has no updates.
    """
    sums = rows.filter(updates()).group_by(pl.col("operator").cast(pl.String)).agg(
        pl.col("ns").filter("new").sum().alias("after"), pl.col("ns").filter(~pl.col("new")).sum().alias("before"),
    )  # fmt: skip
    own, shares = [], []
    for side, other in (("before", "after"), ("after", "before")):
        if not (whole := int(sums[side].sum())):
            return None
        alone = sums.filter(pl.col(side) > 0, pl.col(other) == 0).sort(side, "operator", descending=[True, False])  # fmt: skip
        shares.append(int(alone[side].sum()) / whole)
        own.append(_named(alone["operator"].to_list()))
    if max(shares) < _SOME:
        return None
    return own[0], own[1]


def _named(operators: list[str]) -> str | None:
    """`aten::mul, aten::div_ and 3 other operators`."""
    more = len(operators) - _NAMED
    if more > 1:
        operators = [*operators[:_NAMED], count_of(more, "other operator")]
    return listed(operators) if operators else None
