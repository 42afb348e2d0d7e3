"""The paths of spans that lie in one another, and the tree of them."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.limits import LONGEST_NAME
from tracekit.spans import Int64Array, Nesting, take

__all__ = ["nested_paths", "path_tree", "rows_of"]

_DEEPEST = 128
"""Ranges inside so many others count as the innermost that is still told apart, which bounds the paths."""


def path_tree(rows: list[tuple[str, str | None, str | None]]) -> pl.DataFrame:
    """A tree of paths from its rows: `path`, `parent`, `type`."""
    schema = {"path": pl.String, "parent": pl.String, "type": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def nested_paths(nesting: Nesting, names: pl.Series, separator: str) -> tuple[Int64Array, pl.DataFrame]:
    """For each span its row in the tree of all paths, and that tree; one round per level of nesting."""
    depth = nesting.depth()
    names = names.str.slice(0, LONGEST_NAME)
    told = names.unique(maintain_order=True)
    name = rows_of(names, told)
    # A path is a number until the end, and its text is made once: paths are far longer than names.
    number = np.full(depth.size, -1, dtype=np.int64)
    tree = path_tree([]).drop("type")
    for level in range(min(int(depth.max()) + 1, _DEEPEST)):
        rows = np.flatnonzero(depth == level)
        above = take(number, nesting.parent[rows])
        pairs = pl.DataFrame({"above": above, "name": name[rows]})
        new = _joined_paths(pairs.unique(maintain_order=True), tree["path"], told, separator)
        new = new.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("number") + tree.height)
        at = pairs.join(new, on=["above", "name"], how="left", maintain_order="left")["number"]
        number[rows] = np.where(at.is_not_null(), at.fill_null(-1).to_numpy(), above)
        tree = pl.concat([tree, new.select("path", "parent")])
    number = take(number, nesting.nearest_ancestor(depth < _DEEPEST))
    distinct = tree.unique("path", keep="last", maintain_order=True)
    row = rows_of(tree["path"], distinct["path"])[number]
    return row, distinct.with_columns(pl.lit(None, pl.String).alias("type"))


def _joined_paths(pairs: pl.DataFrame, paths: pl.Series, names: pl.Series, separator: str) -> pl.DataFrame:
    """`pairs` (`above`, a row of `paths` or −1, and `name`, one of `names`) with `parent` and `path`, where not too long."""
    outermost = pl.col("above") < 0
    length = pl.col("parent").str.len_chars() + pl.col("text").str.len_chars() + len(separator)
    texts = pairs.with_columns(
        paths.gather(pairs["above"].set(pairs["above"] < 0, None)).alias("parent"),
        names.gather(pairs["name"]).alias("text"),
    )
    path = pl.concat_str("parent", pl.lit(separator), "text")
    return texts.filter(outermost | (length <= LONGEST_NAME)).with_columns(
        pl.when(outermost).then("text").otherwise(path).alias("path")
    )


def rows_of(values: pl.Series, known: pl.Series) -> Int64Array:
    """The row in `known` of each value; −1 for one that is not in it."""
    rows = pl.DataFrame({"value": known, "row": np.arange(known.len())})
    joined = values.alias("value").to_frame().join(rows, on="value", how="left", maintain_order="left")
    found: Int64Array = joined["row"].fill_null(-1).to_numpy()
    return found
