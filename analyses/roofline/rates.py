"""Rates of work beside the rows of other analyses: kernels, operators, layers."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.roofline.analysis import roofline_levels
from tracekit.analyses.roofline.levels import BOUND_OF_SUMS, BOUNDS, FIGURES, LEVEL_SCHEMA, with_parts
from tracekit.analyses.roofline.rated import rated_pieces
from tracekit.analyses.scope import Scope, once
from tracekit.spans import Int64Array
from tracekit.trees import rolled_up

__all__ = ["RATES", "tree_rates", "with_rates"]

RATES: Final = "flops_per_s intensity bound"
"""The columns that these functions add (`levels.LEVEL_SCHEMA`), null where they are not known."""

_COLUMNS: Final = RATES.split()


def with_rates(table: pl.DataFrame, scope: Scope, of: str, keys: list[str]) -> pl.DataFrame:
    """The table, whose rows have these keys, with the rates of their work; `of` is one of the `roofline_levels`."""
    found = once(scope, roofline_levels)[of]
    return table.join(found[[*keys, *_COLUMNS]], on=keys, how="left", nulls_equal=True, maintain_order="left")


_COUNTS: Final = ["duration", "flops", "flops_ns", "flops with bytes", "bytes with flops"]
_LEAST: Final = [f"{name}-bound ns" for name in BOUNDS]
_SUMS: Final = [*_COUNTS, *_LEAST]
_MOST_PS: Final = 1 << 60
_RATES: Final = [
    {**FIGURES, "bound": BOUND_OF_SUMS}[name].cast(LEVEL_SCHEMA[name]).alias(name) for name in _COLUMNS
]


def tree_rates(scope: Scope, parent: Int64Array, depth: Int64Array) -> dict[str, pl.Series]:
    """The rates of each layer with the layers inside it; the last row is for work in no layer.

    `parent` (a row, −1 for a root) and `depth` have an entry for each row of the tree.
    """
    rows = with_parts(rated_pieces(scope), _SUMS)
    own = rows.group_by(pl.col("layer_id").fill_null(parent.size - 1)).agg(
        pl.col(_COUNTS).sum(),
        # In ps, since small work needs less than 1 ns, and only which is the largest matters.
        (pl.col(_LEAST).sum() * 1000).clip(upper_bound=_MOST_PS).round().cast(pl.Int64),
    )
    sums = np.zeros((parent.size, len(_SUMS)), dtype=np.int64)
    sums[own["layer_id"].to_numpy()] = own[_SUMS].to_numpy()
    whole = pl.DataFrame(rolled_up(sums, parent, depth), schema=_SUMS)
    return whole.select(_RATES).to_dict()
