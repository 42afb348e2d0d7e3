"""Rates of work beside the rows of other analyses: kernels, operators, layers."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.roofline.analysis import rated_pieces, roofline
from tracekit.analyses.roofline.levels import BOUNDS, LEVEL_SCHEMA, level
from tracekit.analyses.scope import Scope
from tracekit.spans import Int64Array
from tracekit.trees import rolled_up

__all__ = ["RATES", "tree_rates", "with_rates"]

RATES: Final = "flops_per_s intensity bound"
"""The columns that these functions add (`levels.LEVEL_SCHEMA`), null where they are not known."""

_COLUMNS: Final = RATES.split()
_BY_SHAPE: Final = ["operator", "shapes", "dtypes"]


def with_rates(table: pl.DataFrame, scope: Scope, of: str, keys: list[str]) -> pl.DataFrame:
    """The table, whose rows have these keys, with the rates of their work; `of` is a level of `roofline`, or `shapes`: operators with
    the shapes and types of their inputs.
    """
    found = _by_shape(scope) if of == "shapes" else getattr(roofline(scope), of)
    return table.join(
        found.select(*keys, *_COLUMNS), on=keys, how="left", nulls_equal=True, maintain_order="left"
    )


def _by_shape(scope: Scope) -> pl.DataFrame:
    rows = rated_pieces(scope)
    inputs = scope.trace.host.select("shapes", "dtypes")
    return level(rows.with_columns(inputs[name].gather(rows["op_id"]) for name in inputs.columns), _BY_SHAPE)


_SUMS: Final = ("flops", "flops_ns", "both_flops", "both_bytes", *BOUNDS)


def tree_rates(scope: Scope, parent: Int64Array, depth: Int64Array) -> dict[str, pl.Series]:
    """The rates of each layer with the layers inside it; the last row is for work in no layer.

    `parent` (a row, −1 for a root) and `depth` have an entry for each row of the tree.
    """
    rows = rated_pieces(scope)
    counted = pl.col("flops").is_not_null()
    both = counted & pl.col("bytes").is_not_null()
    own = rows.group_by(pl.col("layer_id").fill_null(parent.size - 1)).agg(
        pl.col("flops").sum(),
        pl.col("piece_ns").filter(counted).sum().alias("flops_ns"),
        pl.col("flops").filter(both).sum().alias("both_flops"),
        pl.col("bytes").filter(both).sum().alias("both_bytes"),
        *(pl.col("least_ns").filter(pl.col("bound") == name).sum().alias(name) for name in BOUNDS),
    )
    sums = np.zeros((parent.size, len(_SUMS)), dtype=np.int64)
    sums[own["layer_id"].to_numpy()] = own.select(_SUMS).to_numpy()
    whole = pl.DataFrame(rolled_up(sums, parent, depth), schema=list(_SUMS))
    most = pl.max_horizontal(*BOUNDS)
    rates = {
        "flops_per_s": pl.when((pl.col("flops") > 0) & (pl.col("flops_ns") > 0)).then(
            pl.col("flops") / pl.col("flops_ns") * 1e9
        ),
        "intensity": pl.when(pl.col("both_bytes") > 0).then(pl.col("both_flops") / pl.col("both_bytes")),
        "bound": pl.when(most > 0).then(
            pl.coalesce(pl.when(pl.col(name) == most).then(pl.lit(name)) for name in BOUNDS)
        ),
    }
    found = whole.select(rates[name].cast(LEVEL_SCHEMA[name]).alias(name) for name in _COLUMNS)
    return {name: found[name] for name in _COLUMNS}
