"""Cells: the smallest parts of both sides that are compared with each other.

A leaf is matched with the one that agrees in all texts. Of what is left, leaves are matched that agree in less and less: another
kernel for the same operator and inputs, other types, other shapes, another operator that runs the same kernel, other work of the
same category in the same layer; in no layer, only where devices have other kernels for it and no operator tells it apart. Leaves of
one side that agree in what is asked for are one cell. What still is left is only on its side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.diff.layers import Nodes
from tracekit.diff.pool import Pool

__all__ = ["TEXTS", "Comparable", "cells_of", "rows_of"]

TEXTS: Final = ("kind", "category", "name", "operator", "shapes", "dtypes", "type", "phase")
_PLACE: Final = ("kind", "node", "phase")
_LEVELS: Final = (
    ("same", ("category", "name", "operator", "shapes", "dtypes", *_PLACE)),
    ("kernel", ("operator", "shapes", "dtypes", *_PLACE)),
    ("dtype", ("operator", "shapes", *_PLACE)),
    ("shape", ("operator", "dtypes", "name", *_PLACE)),
    ("shape", ("operator", *_PLACE)),
    ("operator", ("name", "category", *_PLACE)),
    ("category", ("category", *_PLACE)),
)


@dataclass(frozen=True, slots=True)
class Comparable:
    """What both sides have, so that it can be compared."""

    layers: bool
    shapes: bool
    names: bool
    """Most kernels have the same names on both sides."""
    kinds: bool
    """Both ran on devices, or both on processors."""


def rows_of(base: Pool, new: Pool, nodes: Nodes) -> pl.DataFrame:
    """The leaves of both sides below each other: `new` (false: of the base), `leaf`, the texts, the `node`, the sums."""
    parts = []
    for at, (side, numbers) in enumerate(((base, nodes.base), (new, nodes.new))):
        node = side.leaves["layer"].replace_strict(
            list(numbers), list(numbers.values()), default=None, return_dtype=pl.Int64
        )
        parts.append(
            side.leaves.select(
                pl.lit(bool(at)).alias("new"),
                "leaf",
                *(pl.col(name).cast(pl.Categorical) for name in TEXTS),
                node.alias("node"),
                "ns",
                "calls",
                "duration_ns",
            )
        )
    return pl.concat(parts)


def cells_of(rows: pl.DataFrame, comparable: Comparable) -> pl.DataFrame:
    """The `cell` of each row and `how` it was matched (`none`: only on its side); calls of the host are in none."""
    work = pl.col("kind") != "idle"
    keyed = rows.with_row_index("row").filter(pl.col("kind") != "call").select(
        "row",
        "new",
        "category",
        pl.when(work | comparable.names).then("name").alias("name"),
        "operator",
        *(pl.when(work & comparable.shapes).then(name).alias(name) for name in ("shapes", "dtypes")),
        pl.when(pl.col("kind").is_in(["compute", "memory"]) & (not comparable.kinds)).then(pl.lit("compute")).otherwise(pl.col("kind").cast(pl.String)).alias("kind"),
        pl.when(comparable.layers).then("node").alias("node"),
        "phase",
    )  # fmt: skip
    found, count = [], 0
    for level, (how, keys) in enumerate(_LEVELS):
        groups = keyed.filter(pl.col("kind") != "idle") if level else keyed
        if how == "category":
            elsewhere = pl.col("operator").is_null() & (not comparable.names)
            groups = groups.filter(pl.col("node").is_not_null() | elsewhere)
        elif level and "operator" in keys:  # without an operator nothing tells what was called
            groups = groups.filter(pl.col("operator").is_not_null())
        made = groups.group_by(keys, maintain_order=True).agg(
            "row", (pl.col("new").min() != pl.col("new").max()).alias("both")
        )
        made = made.filter("both").select("row").with_row_index("cell", offset=count)
        count += made.height
        found.append(made.explode("row").select("row", "cell", pl.lit(how).alias("how")))
        keyed = keyed.join(found[-1], on="row", how="anti")
    alone = (
        keyed.group_by("new", *_LEVELS[0][1], maintain_order=True)
        .agg("row")
        .select("row")
        .with_row_index("cell", offset=count)
    )
    found.append(alone.explode("row").select("row", "cell", pl.lit("none").alias("how")))
    return rows.with_row_index("row").join(pl.concat(found), on="row").drop("row").cast({"cell": pl.Int64})
