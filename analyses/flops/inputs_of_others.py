"""Inputs of a call that its own record does not tell, and that of a call around it, inside it or in its backward pass does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.flops.calls import INPUTS
from tracekit.analyses.flops.work import Operator
from tracekit.spans import Nesting

__all__ = ["with_inputs_of_others"]


def with_inputs_of_others(
    rows: pl.DataFrame, host: pl.DataFrame, nesting: Nesting, known: Mapping[str, Operator]
) -> pl.DataFrame:
    """The calls (`span_id`, `name` and the columns of INPUTS), with the inputs that their models take from others (`Operator`)."""
    rows = _of_caller(rows, host, nesting, known)
    rows = _of_backward(rows, host, nesting, known)
    return _of_called(rows, host, nesting, known)


def _of_caller(
    rows: pl.DataFrame, host: pl.DataFrame, nesting: Nesting, known: Mapping[str, Operator]
) -> pl.DataFrame:
    """The calls, with the inputs of the operator directly around where the model takes those; without it the call is left out."""
    lenders = {name: operator.inputs_of for name, operator in known.items() if operator.inputs_of}
    name = pl.col("name")
    if not lenders:
        return rows
    borrowing = rows.filter(name.is_in(list(lenders)))
    if not borrowing.height:
        return rows
    parents = nesting.parent[borrowing["span_id"].to_numpy()]
    around = host[np.maximum(parents, 0)].select(name.alias("around"), *INPUTS).cast(pl.String)
    expected = name.replace_strict(lenders, default=None, return_dtype=pl.String)
    lent = borrowing[["span_id", "name"]].hstack(around).filter(pl.Series(parents >= 0))
    lent = lent.filter(pl.col("around") == expected)
    return pl.concat([rows.filter(~name.is_in(list(lenders))), lent.select(rows.columns)])


def _of_backward(
    rows: pl.DataFrame, host: pl.DataFrame, nesting: Nesting, known: Mapping[str, Operator]
) -> pl.DataFrame:
    """The calls without scalar arguments, with the inputs of their backward where the model takes those.

    A backward node has the sequence number of the call, and the operator directly inside it has the inputs.
    """
    lenders = {name: operator.backward for name, operator in known.items() if operator.backward}
    if not lenders:
        return rows
    bare = rows.filter(pl.col("name").is_in(list(lenders)) & pl.col("concrete_inputs").is_null())
    if not bare.height:
        return rows
    sequence = host["sequence"]
    inside = host.filter(pl.col("name").cast(pl.String).is_in(list(lenders.values())))
    nodes = nesting.parent[inside["span_id"].to_numpy()]
    lent = inside.select(pl.col("name").alias("lender"), *INPUTS).cast(pl.String)
    lent = lent.with_columns(sequence[np.maximum(nodes, 0)].alias("sequence")).filter(pl.Series(nodes >= 0))
    lent = lent.drop_nulls("sequence").unique("sequence", keep="none")
    taken = bare.select(
        "span_id",
        "name",
        pl.col("name").replace_strict(lenders, return_dtype=pl.String).alias("lender"),
        sequence[bare["span_id"].to_numpy()].alias("sequence"),
    ).join(lent, on=["sequence", "lender"])
    return pl.concat([rows.join(taken, on="span_id", how="anti"), taken.select(rows.columns)])


_JOINED: Final = "inside "


def _of_called(
    rows: pl.DataFrame, host: pl.DataFrame, nesting: Nesting, known: Mapping[str, Operator]
) -> pl.DataFrame:
    """The calls, with the inputs of those directly inside them behind their own where the model takes those."""
    lenders = {name: list(operator.inside) for name, operator in known.items() if operator.inside}
    if not lenders:
        return rows
    name = pl.col("name").cast(pl.String)
    borrowing = rows.filter(name.is_in(list(lenders)))
    if not borrowing.height:
        return rows
    names = sorted({inner for inside in lenders.values() for inner in inside})
    called = host.filter(name.is_in(names) & pl.col("shapes").is_not_null())
    called = called.select(
        pl.Series("caller", nesting.parent[called["span_id"].to_numpy()], pl.Int64),
        name.alias("inner"),
        *(pl.col(column).cast(pl.String) for column in INPUTS),
    )
    wanted = pl.DataFrame(
        [(outer, inner) for outer, inside in lenders.items() for inner in inside],
        schema={"name": pl.String, "inner": pl.String},
        orient="row",
    )
    called = called.join(
        borrowing.select(pl.col("span_id").cast(pl.Int64).alias("caller"), "name"), on="caller"
    )
    called = called.join(wanted, on=["name", "inner"], how="semi", maintain_order="left")
    # Lists as texts: without their brackets they are joined to one.
    items = [
        pl.when(pl.col(column).is_not_null().all())
        .then(pl.col(column).str.strip_prefix("[").str.strip_suffix("]").str.join(","))
        .alias(f"{_JOINED}{column}")
        for column in INPUTS
    ]
    behind = called.group_by(pl.col("caller").cast(rows["span_id"].dtype).alias("span_id")).agg(items)
    both = [
        pl.when(pl.col(f"{_JOINED}{column}").is_null())
        .then(column)
        .otherwise(pl.col(column).str.strip_suffix("]") + "," + pl.col(f"{_JOINED}{column}") + "]")
        .alias(column)
        for column in INPUTS
    ]
    joined = rows.join(behind, on="span_id", how="left", maintain_order="left")
    return joined.with_columns(both)[rows.columns]
