"""The change of the step time by each dimension: exact sums of both sides, and what they are per step."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.diff.layers import Nodes
from tracekit.diff.model import AMOUNTS, MATCHED, Side

__all__ = ["by_dimension", "calls_of_host", "shares_matched"]

_COLUMNS: Final = {
    "phase": ("phase",),
    "type": ("type",),
    "operator": ("operator",),
    "category": ("kind", "category"),
    "name": ("kind", "name"),
}
_SIDES: Final = (("base", False), ("new", True))
_SUMS: Final = ("base_sum", "new_sum", "base_calls", "new_calls", "base_idle_ns", "new_idle_ns")


def by_dimension(rows: pl.DataFrame, nodes: Nodes, base: Side, new: Side) -> dict[str, pl.DataFrame]:
    """The frames of `Diff.by` from the rows of `matching.rows_of`."""
    timed = rows.filter(pl.col("kind") != "call").with_columns(_of_sides())
    frames = {name: _summed(timed, columns, base, new) for name, columns in _COLUMNS.items()}
    collectives = timed.filter(pl.col("kind") == "communication")
    frames["communication"] = _summed(collectives, ("operator", "name"), base, new)
    frames["idle"] = _summed(timed.filter(pl.col("kind") == "idle"), ("category", "name"), base, new)
    frames["layer"] = _by_layer(timed, nodes, base, new)
    return frames


def _amounts(grouped: pl.DataFrame, base: Side, new: Side) -> pl.DataFrame:
    """The columns `AMOUNTS` after the others."""
    keys = [name for name in grouped.columns if name not in AMOUNTS]
    change = float(new.mean - base.mean)
    made = grouped.with_columns(
        *(pl.col(f"{name}_sum") / side.denominator for name, side in (("base", base), ("new", new))),
        *(
            (pl.col(f"{name}_{column}") / side.denominator).alias(f"{name}_{column}")
            for name, side in (("base", base), ("new", new))
            for column in ("calls", "idle_ns")
        ),
    ).rename({"base_sum": "base_ns", "new_sum": "new_ns"})
    sums = grouped.select("base_sum", "new_sum")
    delta = pl.Series("delta_ns", _differences(sums, base, new), dtype=pl.Float64)
    made = pl.concat([made, sums], how="horizontal").with_columns(
        delta, (delta / change if change else pl.lit(None, pl.Float64)).alias("share")
    )
    return made.select(*keys, *(pl.col(name).cast(kind) for name, kind in AMOUNTS.items()))


def _differences(sums: pl.DataFrame, base: Side, new: Side) -> list[float]:
    """What each row takes longer, rounded once."""
    both = base.denominator * new.denominator
    return [(n * base.denominator - b * new.denominator) / both for b, n in sums.rows()]


def _of_sides() -> list[pl.Expr]:
    """What each row has of `_SUMS`: it is of one side."""
    idle = pl.col("kind") == "idle"
    return [
        pl.when((pl.col("new") == side) & wanted).then(column).otherwise(0).alias(f"{name}_{told}")
        for column, told, wanted in (("ns", "sum", True), ("calls", "calls", True), ("ns", "idle_ns", idle))
        for name, side in _SIDES
    ]


def _summed(rows: pl.DataFrame, columns: tuple[str, ...], base: Side, new: Side) -> pl.DataFrame:
    grouped = rows.group_by(columns).agg(pl.col(_SUMS).sum()).with_columns(pl.col(columns).cast(pl.String))
    made = _amounts(grouped, base, new)
    return made.sort(pl.col("delta_ns").abs(), *columns, descending=[True, *(False for _ in columns)])


def _by_layer(rows: pl.DataFrame, nodes: Nodes, base: Side, new: Side) -> pl.DataFrame:
    sums = rows.group_by(pl.col("node").alias("layer_id")).agg(pl.col(_SUMS).sum())
    tree = nodes.frame.join(sums, on="layer_id", how="left", maintain_order="left")
    outside = sums.filter(pl.col("layer_id").is_null())
    if outside.height:
        nowhere = {"layer_id": nodes.frame.height, "depth": 0, "status": "none"}
        row = pl.DataFrame([nowhere], schema_overrides=nodes.frame.schema).hstack(outside.drop("layer_id"))
        tree = pl.concat([tree, row], how="diagonal")
    told = [name for name in sums.columns if name != "layer_id"]
    made = _amounts(tree.with_columns(pl.col(told).fill_null(0)), base, new)
    whole = {column: tree[column].fill_null(0).to_list() for column in ("base_sum", "new_sum")}
    above = tree["parent_layer_id"].to_list()
    for at in range(tree.height - 1, -1, -1):  # a layer comes after the one around it
        if above[at] is not None:
            for sums_of in whole.values():
                sums_of[above[at]] += sums_of[at]
    frame = pl.DataFrame(whole)
    return made.with_columns(
        (frame["base_sum"] / base.denominator).alias("tree_base_ns"),
        (frame["new_sum"] / new.denominator).alias("tree_new_ns"),
        pl.Series("tree_delta_ns", _differences(frame, base, new), dtype=pl.Float64),
    )


def calls_of_host(rows: pl.DataFrame, nodes: Nodes, base: Side, new: Side) -> pl.DataFrame:
    """The frame `Diff.calls`."""
    keys = ("category", "name", "operator", "node")
    sides = {"base": base, "new": new}
    made = (
        rows.filter(pl.col("kind") == "call")
        .group_by(keys)
        .agg(
            (pl.col(column).filter(pl.col("new") == side).sum() / sides[name].denominator).alias(
                f"{name}_{told}"
            )
            for column, told in (("calls", "calls"), ("duration_ns", "ns"))
            for name, side in _SIDES
        )
        .with_columns(
            (pl.col("new_ns") - pl.col("base_ns")).alias("delta_ns"),
            pl.col("category", "name", "operator").cast(pl.String),
        )
    )
    paths = nodes.frame.select(pl.col("layer_id").alias("node"), pl.col("path").alias("layer"))
    made = made.join(paths, on="node", how="left", maintain_order="left")
    columns = (
        "category",
        "name",
        "operator",
        "layer",
        "base_calls",
        "new_calls",
        "base_ns",
        "new_ns",
        "delta_ns",
    )
    return made.select(columns).sort(
        (pl.col("new_calls") - pl.col("base_calls")).abs(), "category", "name", "operator", "layer",
        descending=[True, False, False, False, False],
    )  # fmt: skip


def shares_matched(rows: pl.DataFrame, base: Side, new: Side) -> pl.DataFrame:
    """The frame `Diff.matched` from rows with `how` they were matched."""
    work = rows.filter(pl.col("kind") != "idle")
    made = work.group_by("how", maintain_order=True).agg(
        (pl.col("ns").filter(pl.col("new") == at).sum() / side.denominator).alias(f"{name}_ns")
        for (name, at), side in zip(_SIDES, (base, new), strict=True)
    )
    whole = [pl.col(f"{name}_ns") / pl.col(f"{name}_ns").sum() for name, _ in _SIDES]
    made = made.with_columns(
        (share.fill_nan(0.0)).alias(f"{name}_share") for share, (name, _) in zip(whole, _SIDES, strict=True)
    )
    return made.select(pl.col(name).cast(kind) for name, kind in MATCHED.items()).sort("how")
