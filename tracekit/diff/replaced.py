"""Layers in which other operators do the work: a fused one in place of several, say.

What no other rule matched of a layer's work in a phase is compared as a whole where both sides have such work, and it is a real part of what the layer does
on either: beside one small operator that is gone, a new one is new.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.facts.units import listed
from tracekit.names import shorten_name

__all__ = ["LAYER", "names_replaced", "real_parts"]

LAYER: Final = "layer"
"""`how` such work is matched."""
_REAL: Final = 0.1
"""Of a layer's own work in a phase."""
_UPDATES: Final = ("optimizer", "data", "communication")
"""Phases whose work is that of no layer, whatever it stands in."""
_MOST_NAMED: Final = 3
_LONGEST: Final = 60


def real_parts(left: pl.DataFrame, every: pl.DataFrame) -> pl.DataFrame:
    """Of rows that are not matched those that stand for each other by their layer; `every` are all rows. Both have the column `ns`."""
    place = ("kind", "node", "phase")
    mine = pl.col("node").is_not_null() & (pl.col("kind") == "compute") & ~pl.col("phase").is_in(_UPDATES)
    of_side = [
        frame.filter(mine).group_by(*place, "new").agg(pl.col("ns").sum().cast(pl.Float64))
        for frame in (left, every)
    ]
    shares = of_side[0].join(of_side[1], on=(*place, "new"), suffix="_whole")
    real = shares.filter(pl.col("ns") >= _REAL * pl.col("ns_whole"), pl.col("ns") > 0)
    both = real.group_by(place).len().filter(pl.col("len") == 2)
    return left.join(both, on=place, how="semi", maintain_order="left")


def names_replaced(rows: pl.DataFrame) -> pl.DataFrame:
    """`cell`, and what did its layer's work on both sides, `base_work` and `new_work`, the longest first: in the forward pass, if the other
    operators are there too.
    """
    known = rows.filter(pl.col("how") == LAYER).select(
        "cell",
        "node",
        "new",
        "ns",
        pl.coalesce(pl.col("operator", "name").cast(pl.String)).fill_null("other work").alias("text"),
        (pl.col("phase") != "forward").fill_null(value=True).alias("later"),
    )
    told = known.filter(pl.col("later") == pl.col("later").min().over("node"))
    texts = told.group_by("node", "new").agg(pl.col("text").unique().sort())
    # Layers in which the same stands for the same name it in one order.
    alike = texts.group_by("node").agg(pl.struct("new", "text").sort_by("new").alias("alike"))
    sums = told.join(alike, on="node").group_by("alike", "new", "text").agg("node", pl.col("ns").sum())
    longest = (
        sums.sort("ns", "text", descending=[True, False])
        .explode("node")
        .unique(["node", "new", "text"], maintain_order=True)
    )
    named = longest.group_by("node", "new", maintain_order=True).agg("text")
    words = {(node, new): _words(names) for node, new, names in named.rows()}
    cells = known.select("cell", "node").unique(maintain_order=True).rows()
    made = [(cell, words[node, False], words[node, True]) for cell, node in cells]
    schema = {"cell": pl.Int64, "base_work": pl.String, "new_work": pl.String}
    return pl.DataFrame(made, schema, orient="row")


def _words(names: list[str]) -> str:
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return listed([*(shorten_name(name, _LONGEST) for name in names[:_MOST_NAMED]), *more])
