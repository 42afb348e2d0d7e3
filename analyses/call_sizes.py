"""What a call of communication moves, as nccl-tests count it (its document `PERFORMANCE`; DEFINITIONS §8)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import polars as pl

from tracekit.analyses.flops import MOST, ODD_INPUTS, Inputs, json_list
from tracekit.facts.collectives import ELEMENT_BYTES, bus_factor

__all__ = ["elements_in", "elements_of", "with_sizes"]

_CUT: Final = "...]"
"""So PyTorch ends a list of more than 30 numbers."""


@lru_cache(maxsize=4096)
def elements_of(shapes: str | None) -> int | None:
    """The number of elements of the first tensors in the shapes of a range; None if there are none."""
    return elements_in(next((each for each in json_list(shapes) if each), None))


def elements_in(first: object) -> int | None:
    """The number of elements of a shape, or of several in a list; None if it is no shape, or larger than any machine holds.

    >>> elements_in([2, 3]), elements_in([[2, 3], [4]]), elements_in([[2], 3]), elements_in([2**40, 2**40])
    (6, 10, None, None)
    """
    if not isinstance(first, list) or not first:
        return None
    inputs = Inputs(first if isinstance(first[0], list) else [first], [], [])
    try:
        elements = sum(inputs.elements(place) for place in range(len(inputs.shapes)))
    except ODD_INPUTS:
        return None
    return elements if elements <= MOST else None


def with_sizes(rows: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """The calls (columns of `calls.CALLS`, and their splits) of this rank with `bytes` and `bus_bytes`."""
    item = pl.col("dtype").cast(pl.String).replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    gathered = pl.coalesce("elements_out", pl.col("elements_in") * pl.col("group_size"))
    elements = pl.when(pl.col("name").is_in(["all_gather", "gather"])).then(gathered).otherwise("elements_in")
    moves = pl.col("name") != "barrier"
    rows = rows.with_columns(
        pl.when(moves & (elements > 0)).then(elements * item).alias("bytes"), item.alias("item")
    )
    needed = (
        "name",
        "group_size",
        "bytes",
        "group_ranks",
        "split_in",
        "split_out",
        "elements_in",
        "elements_out",
        "item",
    )
    # Few are told apart.
    every = rows[list(needed)].rows()
    known = {row: _carried(dict(zip(needed, row, strict=True)), rank) for row in set(every)}
    carried = [known[row] for row in every]
    return rows.with_columns(pl.Series("bus_bytes", carried, dtype=pl.Float64))


def _carried(row: dict[str, object], rank: int | None) -> float | None:
    """The bytes that the links carry for this rank in a call; None if its size or its group is unknown."""
    size, ranks = row["bytes"], row["group_size"]
    if not isinstance(size, int) or not isinstance(ranks, int):
        return None
    if row["name"] == "all_to_all" and any(
        str(row[f"split_{way}"] or "").endswith(_CUT) for way in ("in", "out")
    ):
        return None  # what stays on this rank is not told
    uneven = (
        [
            _to_others(row[f"split_{way}"], row[f"elements_{way}"], row["group_ranks"], rank)
            for way in ("in", "out")
        ]
        if row["name"] == "all_to_all"
        else []
    )
    known = [elements for elements in uneven if elements is not None]
    if known:
        return max(known) * row["item"]  # type: ignore[operator]
    factor = bus_factor(str(row["name"]), ranks)
    return None if factor is None else size * factor


def _to_others(split: object, elements: object, group: object, rank: int | None) -> float | None:
    """The elements that do not stay on this rank, by the parts into which it splits them (rows, each of the same size)."""
    parts, members = json_list(split), json_list(group)  # type: ignore[arg-type]
    if not parts or rank not in members or len(parts) != len(members) or not isinstance(elements, int):
        return None
    whole = sum(parts)
    return elements * (whole - parts[members.index(rank)]) / whole if whole else 0.0
