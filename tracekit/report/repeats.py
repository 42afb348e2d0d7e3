"""A tree of layers in which layers that repeat are one row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import polars as pl

from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import format_count
from tracekit.report.model import Table
from tracekit.trees import parent_rows

__all__ = ["repeats_as_one", "with_repeats"]

_SUMS: Final = (
    *("device_ns", "share", "device_own_ns", "calls", "host_ns", "idle_caused_ns"),
    *("tree_base_ns", "tree_new_ns", "tree_delta_ns"),
    *(f"{phase}_ns" for phase in PHASES),
)


def with_repeats(table: Table) -> list[Table]:
    """The table; before a tree with the largest layers first, if some repeat, the one in which these are one row."""
    merged = repeats_as_one(table) if table.tree is not None and table.tree.largest_first else None
    return [table] if merged is None else [merged, replace(table, title="Tree of every layer")]


def repeats_as_one(table: Table) -> Table | None:
    """The tree with the layers of a repeated kind as one row, whose figures are their sums; None if no layer repeats.

    Siblings repeat if they have one type and names that differ in a number only, as in the patterns of layers.
    """
    frame = table.frame
    if "source" not in frame.columns:  # what names its layers so is not known
        return None
    stems = frame.select(_stem()).to_series().to_list()
    above = parent_rows(frame).tolist()
    groups: dict[tuple[int, str, str | None], int] = {}
    group_of: list[int] = []
    for stem, parent, kind in zip(stems, above, frame["type"].to_list(), strict=True):
        key = (group_of[parent] if parent >= 0 else -1, stem, kind)
        group_of.append(groups.setdefault(key, len(groups)))
    if len(groups) == frame.height:
        return None
    sums = [name for name in _SUMS if name in frame.columns]
    grouped = (
        frame.with_columns(
            layer_id=pl.Series(group_of, dtype=pl.Int64), stem=pl.Series(stems, dtype=pl.String)
        )
        .group_by("layer_id", maintain_order=True)
        .agg(
            pl.len().alias("layers"),
            pl.col("name", "type", "path", "depth", "stem", "parent_layer_id").first(),
            *(pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name) for name in sums),
        )
    )
    parents = [group for group, _, _ in groups]
    rows = _named(grouped.rows(named=True), parents)
    made = grouped.with_columns(
        parent_layer_id=pl.Series([None if at < 0 else at for at in parents], dtype=pl.Int64),
        name=pl.Series([name for name, _ in rows], dtype=pl.String),
        path=pl.Series([path for _, path in rows], dtype=pl.String),
        # The name of a row of numbered layers is their class.
        type=pl.when(pl.col("layers") > 1, pl.col("stem") == "*").then(None).otherwise(pl.col("type")),
    )
    columns = tuple(column for column in table.columns if column.name in made.columns)
    return replace(
        table,
        frame=made.select(column.name for column in columns),
        columns=columns,
        title="Tree of layers, repeated ones as one",
        total_rows=made.height,
    )


def _stem() -> pl.Expr:
    """The name with `*` for the number that tells repeated layers apart; in a capture only a whole name is one."""
    name, source = pl.col("name").cast(pl.String), pl.col("source").cast(pl.String)
    numbered = name.str.replace(r"(^|[_ #:.\-])\d+$", "${1}*")
    plain = name.str.replace(r"^\d+$", "*")
    of_model = source.is_in(["module", "range", "compiled", "interval"])
    return pl.when(of_model).then(numbered).when(source == "capture").then(plain).otherwise(name)


def _named(rows: list[dict[str, Any]], parents: list[int]) -> list[tuple[str, str]]:
    """Name and path of each row: those of the layer, or of the pattern that its layers have in common."""
    firsts = [str(row["path"]) for row in rows]
    named: list[tuple[str, str]] = []
    for row, parent in zip(rows, parents, strict=True):
        stem = row["stem"] if row["layers"] > 1 else row["name"]
        path = str(row["path"])
        above = firsts[parent] if parent >= 0 else ""
        if (
            path.startswith(above)
            and path.endswith(row["name"])
            and len(path) >= len(above) + len(row["name"])
        ):
            between = path[len(above) : len(path) - len(row["name"])]
            path = (named[parent][1] if parent >= 0 else "") + between + stem
        shown = stem
        if stem == "*":
            shown = row["type"] or (f"{rows[parent]['name']}.*" if parent >= 0 else stem)
        named.append((f"{format_count(row['layers'])} × {shown}" if row["layers"] > 1 else shown, path))
    return named
