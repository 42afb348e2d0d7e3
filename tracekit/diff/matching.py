"""Cells: the smallest parts of both sides that are compared with each other.

If an operator has fewer calls with some shapes on the new side, and as many more with others, these calls have other shapes: such parts
of the leaves of both sides are matched. Else a leaf is matched with the one that agrees in all texts. Of what is left, leaves are matched that agree in less and less: another
kernel for the same operator and inputs, other types, other shapes, another operator that runs the same kernel, other work of the
same category in the same layer; in no layer, only where devices have other kernels for it and no operator tells it apart; at last what else a
layer does, if it is a real part of its work on both sides (`replaced`). Leaves of one side that agree in what is asked for are one cell. What still is left is only on its side. Where an optimizer's updates run other
operators (`updates.exchanged`), they are one cell before all this. Idle time of an operator whose place another one took is matched with that of the other one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final, TypeAlias

import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.inputs import PRODUCTS, alike, inputs_of
from tracekit.diff.layers import Nodes
from tracekit.diff.pool import Pool
from tracekit.diff.replaced import LAYER, real_parts
from tracekit.diff.updates import UPDATE, exchanged, updates

__all__ = ["TEXTS", "Comparable", "cells_of", "reshaped", "rows_of"]

TEXTS: Final = ("kind", "category", "name", "operator", "shapes", "dtypes", "type", "phase")
_PLACE: Final = ("kind", "node", "phase")
_PAIR: Final = ("pair",)
_SAME: Final = ("category", "name", "operator", "shapes", "dtypes", *_PLACE)
_LEVELS: Final = (
    (UPDATE, (UPDATE,)),
    ("shape", _PAIR),
    ("same", _SAME),
    ("kernel", ("operator", "shapes", "dtypes", *_PLACE)),
    ("dtype", ("operator", "shapes", *_PLACE)),
    ("shape", ("operator", "dtypes", "name", *_PLACE)),
    ("shape", ("operator", *_PLACE)),
    ("operator", ("name", "category", *_PLACE)),
    ("category", ("category", *_PLACE)),
    (LAYER, _PLACE),
)
_MORE: Final = 0.02
"""By this part the calls with some shapes have to be more or fewer: one at the edge of a step may be in the step before."""
_MOST_SHAPES: Final = 64
"""Of an operator in one place; of more on a side, no shape stands for one other."""
_NOTHING: Final = 1e-9


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
            _with_inputs(side.leaves).select(
                pl.lit(bool(at)).alias("new"),
                "leaf",
                *(pl.col(name).cast(pl.Categorical) for name in TEXTS),
                node.alias("node"),
                *(["pair"] if "pair" in side.leaves.columns else []),
                "ns",
                "calls",
                "duration_ns",
            )
        )
    return pl.concat(parts)


def _with_inputs(leaves: pl.DataFrame) -> pl.DataFrame:
    """The leaves with the shapes and types of their inputs as `inputs_of` tells them."""
    columns = ["operator", "shapes", "dtypes"]
    told = leaves.select(columns).unique(maintain_order=True).filter(pl.col("operator").is_in(PRODUCTS), pl.col("shapes").is_not_null())  # fmt: skip
    found = [(*row, *inputs_of(*row)) for row in told.rows()]
    other = [row for row in found if row[1:3] != row[3:]]
    if not other:
        return leaves
    schema = dict.fromkeys([*columns, "of_shapes", "of_dtypes"], pl.String)
    known = pl.DataFrame(other, schema, orient="row")
    joined = leaves.join(known, on=columns, how="left", nulls_equal=True, maintain_order="left")
    mine = pl.col("of_shapes").is_not_null()
    return joined.with_columns(
        pl.when(mine).then(f"of_{name}").otherwise(name).alias(name) for name in columns[1:]
    ).drop("of_shapes", "of_dtypes")


def cells_of(rows: pl.DataFrame, comparable: Comparable) -> pl.DataFrame:
    """The `cell` of each row and `how` it was matched (`none`: only on its side); calls of the host are in none."""
    keyed = _keyed(rows, comparable)
    idle = pl.col("kind") == "idle"
    found = _matched_work(keyed.filter(~idle), comparable)
    renamed = _renamed(keyed.filter(idle), keyed.join(pl.concat(found), on="row"))
    found.append(_of_both(renamed, _SAME, found))
    left = keyed.join(pl.concat(found), on="row", how="anti")
    alone = left.group_by("new", *_SAME, maintain_order=True).agg("row").select("row")
    found.append(_numbered(alone, found).with_columns(pl.lit("none").alias("how")))
    return rows.with_row_index("row").join(pl.concat(found), on="row").drop("row").cast({"cell": pl.Int64})


def _keyed(rows: pl.DataFrame, comparable: Comparable) -> pl.DataFrame:
    """What the rows that are in cells have to agree in, as far as both sides have it."""
    other_updates = updates() & (exchanged(rows) is not None)
    work = pl.col("kind") != "idle"
    return rows.with_row_index("row").filter(pl.col("kind") != "call").select(
        "row",
        "new",
        "category",
        pl.when(work | comparable.names).then("name").alias("name"),
        "operator",
        *(pl.when(work & comparable.shapes).then(name).alias(name) for name in ("shapes", "dtypes")),
        pl.when(pl.col("kind").is_in(["compute", "memory"]) & (not comparable.kinds)).then(pl.lit("compute")).otherwise(pl.col("kind").cast(pl.String)).alias("kind"),
        pl.when(comparable.layers).then("node").alias("node"),
        "phase",
        "pair",
        pl.when(other_updates).then(1).alias(UPDATE),
        "ns",
    )  # fmt: skip


def _matched_work(left: pl.DataFrame, comparable: Comparable) -> list[pl.DataFrame]:
    """The `cell` of the rows that have a counterpart, and `how` they have it, of one level after the other."""
    every, found = left, list[pl.DataFrame]()
    for how, keys in _LEVELS:
        groups = left
        if keys in (_PAIR, (UPDATE,)):
            groups = groups.filter(pl.col(keys[0]).is_not_null())
        elif how == "category":
            elsewhere = pl.col("operator").is_null() & (not comparable.names)
            groups = groups.filter(pl.col("node").is_not_null() | elsewhere)
        elif how == LAYER:
            groups = real_parts(groups, every)
        elif keys != _SAME and "operator" in keys:  # without an operator nothing tells what was called
            groups = groups.filter(pl.col("operator").is_not_null())
        found.append(_of_both(groups, keys, found, how))
        left = left.join(found[-1], on="row", how="anti")
    return found


def _of_both(
    rows: pl.DataFrame, keys: tuple[str, ...], found: list[pl.DataFrame], how: str = "same"
) -> pl.DataFrame:
    """New cells of the rows that agree with some of the other side in these keys."""
    both = (pl.col("new").min() != pl.col("new").max()).alias("both")
    made = rows.group_by(keys, maintain_order=True).agg("row", both).filter("both").select("row")
    return _numbered(made, found).with_columns(pl.lit(how).alias("how"))


def _numbered(made: pl.DataFrame, found: list[pl.DataFrame]) -> pl.DataFrame:
    """The rows of new cells with their numbers, which follow those that were found."""
    count = sum(each["cell"].n_unique() for each in found)
    return made.with_row_index("cell", offset=count).explode("row").select("row", "cell")


def _renamed(idle: pl.DataFrame, matched: pl.DataFrame) -> pl.DataFrame:
    """Idle rows with the operator of the new side in place of one of the base, all of whose work in a layer and phase is matched with its work."""
    work = matched.filter(pl.col("kind") != "idle")
    of_new = work.filter("new").group_by("cell").agg(pl.col("operator").unique().alias("of_new"))
    place = ("operator", "node", "phase")
    pairs = work.filter(~pl.col("new")).join(of_new, on="cell").explode("of_new")
    pairs = pairs.group_by(place).agg(pl.col("of_new").unique())
    pairs = pairs.filter(pl.col("of_new").list.len() == 1, pl.col("operator").is_not_null())
    told = idle.join(pairs.explode("of_new"), on=place, how="left", nulls_equal=True, maintain_order="left")
    return told.with_columns(
        pl.when("new").then("operator").otherwise(pl.coalesce("of_new", "operator")).alias("operator")
    )


# -- calls with other shapes ------------------------------------------------------------------------

_Part: TypeAlias = tuple[int, int, float]
"""A leaf, the number of the pair that a part of it is in, and how large a part."""


def reshaped(rows: pl.DataFrame, base: Pool, new: Pool) -> tuple[Pool, Pool]:
    """Both sides with the parts of leaves whose calls have other shapes on the other side as leaves of their own, of one `pair`."""
    keys = ("kind", "operator", "dtypes", "node", "phase")
    known = rows.filter(~pl.col("kind").is_in(["idle", "call"]), pl.col("operator", "shapes").is_not_null())
    if exchanged(rows) is not None:
        known = known.filter(~updates())
    more = pl.col("new") - pl.col("base")
    told = _by_shapes(known, keys, base, new).filter(more.abs() > _MORE * pl.max_horizontal("new", "base"))
    told = told.filter(*(each.any().over(keys) for each in (more < 0, more > 0)))
    parts: tuple[list[_Part], list[_Part]] = [], []
    count = 0
    for _, group in told.group_by(keys, maintain_order=True):
        lost, gained = (group.filter(each).rows(named=True) for each in (more < 0, more > 0))
        if max(len(lost), len(gained)) > _MOST_SHAPES:
            continue
        for before, after, *calls in _exchanged(lost, gained):
            for at, (name, shapes) in enumerate((("base", before), ("new", after))):
                cut = zip(shapes[f"{name}_leaf"], shapes[f"{name}_part"], strict=True)
                parts[at].extend((leaf, count, calls[at] * part) for leaf, part in cut)
            count += 1
    return _divided(base, parts[0]), _divided(new, parts[1])


def _by_shapes(known: pl.DataFrame, keys: tuple[str, ...], base: Pool, new: Pool) -> pl.DataFrame:
    """How many calls per step each side has with some shapes, and which part of each leaf one call less on the other side is."""
    per_step = pl.when("new").then(new.side.denominator).otherwise(base.side.denominator)
    sums = {at: pl.col("calls").filter(pl.col("new") == at).sum() for at in (False, True)}
    own, other = (pl.when(pl.col("new") == at).then("of_new").otherwise("of_base") for at in (True, False))
    fewer = ((own - other).clip(0) * pl.col("calls") / own).fill_nan(
        0
    )  # of the kernels that an operator runs, those that are fewer
    leaves = (
        known.with_columns(pl.col("calls") / per_step)
        .with_columns(
            sums[at].over(*keys, "shapes", "name").alias(name)
            for at, name in ((False, "of_base"), (True, "of_new"))
        )
        .with_columns(fewer.alias("fewer"))
        .with_columns(
            (pl.col("fewer") / pl.col("calls") / pl.col("fewer").sum().over(*keys, "shapes", "new")).alias(
                "part"
            )
        )
    )
    sides = [(name, pl.col("new") == at) for name, at in (("base", False), ("new", True))]
    return leaves.group_by(*keys, "shapes", maintain_order=True).agg(
        *(pl.col("calls").filter(side).sum().alias(name) for name, side in sides),
        *(
            pl.col(column).filter(side & (pl.col("fewer") > 0)).alias(f"{name}_{column}")
            for name, side in sides
            for column in ("leaf", "part")
        ),
    )


def _exchanged(
    lost: Sequence[dict[str, Any]], gained: Sequence[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any], float, float]]:
    """Which shapes stand for which, those first that are most alike, and how many calls of either."""
    left = [one["base"] - one["new"] for one in lost], [one["new"] - one["base"] for one in gained]
    tried = [
        (-common, i, j)
        for (i, one), (j, other) in product(enumerate(lost), enumerate(gained))
        if (common := alike(one["shapes"], other["shapes"])) is not None
    ]
    pairs = []
    for _, i, j in sorted(tried):
        calls = min(left[0][i], left[1][j])
        if calls > _NOTHING:
            pairs.append((i, j, [calls, calls]))
            left[0][i], left[1][j] = left[0][i] - calls, left[1][j] - calls
    for i, j, calls_of in pairs:  # of other shapes, there may be more calls, too
        for at, own, others in ((0, i, left[1]), (1, j, left[0])):
            if lost[i]["new"] == gained[j]["base"] == 0 and max(others) < _NOTHING:
                calls_of[at] += left[at][own]
                left[at][own] = 0.0
        yield lost[i], gained[j], *calls_of


def _divided(side: Pool, parts: Sequence[_Part]) -> Pool:
    """The side with each part of a leaf as a leaf, and what is left of it."""
    if not parts:
        return replace(side, leaves=side.leaves.with_columns(pl.lit(None, pl.Int64).alias("pair")))
    ends: dict[int, list[tuple[float, int | None]]] = defaultdict(list)
    for leaf, pair, part in parts:
        ends[leaf].append((part + (ends[leaf][-1][0] if ends[leaf] else 0.0), pair))
    for own in ends.values():
        if own[-1][0] > 1 - _NOTHING:
            own[-1] = (1.0, own[-1][1])
        else:
            own.append((1.0, None))
    rows = [(leaf, *end) for leaf in range(side.leaves.height) for end in ends.get(leaf, [(1.0, None)])]
    schema = {"whole": pl.Int64, "high": pl.Float64, "pair": pl.Int64}
    made = pl.DataFrame(rows, schema, orient="row").with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("leaf"),
        pl.col("high").shift(1).over("whole").fill_null(0.0).alias("low"),
    )

    def of_part(*names: str) -> list[pl.Expr]:
        cut = [[(pl.col(name) * pl.col(end)).round() for end in ("high", "low")] for name in names]
        return [(high - low).cast(pl.Int64) for high, low in cut]

    values = side.values.rename({"leaf": "whole"}).join(made, on="whole", maintain_order="left")
    values = values.select("at", "leaf", *of_part("ns"))
    weighted = values.select("leaf", values["ns"] * side.weights[values["at"].to_numpy()])
    sums = weighted.group_by("leaf").agg(pl.col("ns").sum())
    leaves = made.join(side.leaves.rename({"leaf": "whole"}).drop("ns"), on="whole", maintain_order="left")
    leaves = leaves.with_columns(*of_part("calls", "duration_ns")).join(
        sums, on="leaf", how="left", maintain_order="left"
    )
    return replace(
        side,
        leaves=leaves.drop("whole", "low", "high").with_columns(pl.col("ns").fill_null(0)),
        values=values,
    )
