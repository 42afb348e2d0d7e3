"""Which ranks do the same work, so that what one takes longer for can be told: the stages of a pipeline have layers of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.analyses.ranks.summary import Summary
from tracekit.facts.stack_names import NO_LAYERS

__all__ = ["Mates", "in_layer"]

_SAME: Final = 0.5
"""Ranks do the same work if so much of the time in layers of one of them is in layers that the other one has."""
_MOST_ASKED: Final = 128
"""Of so many ranks of other groups the layers are looked up."""


def in_layer() -> pl.Expr:
    """Whether a row of `Summary.work` is in a layer of the model."""
    return (pl.col("kind") == "layer") & ~pl.col("what").is_in(list(NO_LAYERS))


class Mates:
    """The layers of the ranks, each looked up once."""

    def __init__(self, summaries: Sequence[Summary]) -> None:
        self._summaries = summaries
        self._layers: dict[int, dict[str, int]] = {}

    def same(self, one: int, other: int) -> bool:
        """Whether two ranks do the same work, as far as layers tell. One of them may have more of it, such as a layer that only it runs."""
        mine, theirs = self._of(one), self._of(other)
        return _covered(mine, theirs) or _covered(theirs, mine)

    def of(self, at: int, ranks: Sequence[int], near: Sequence[int]) -> list[int]:
        """Those of the ranks that do the same work as this one; if none does, those of the `near` ones."""
        found = [one for one in ranks if self.same(at, one)]
        return found or [one for one in near[:_MOST_ASKED] if self.same(at, one)]

    def _of(self, at: int) -> dict[str, int]:
        if at not in self._layers:
            work = self._summaries[at].work.filter(in_layer())
            self._layers[at] = dict(work.group_by("what").agg(pl.col("ns").sum()).rows())
        return self._layers[at]


def _covered(mine: dict[str, int], theirs: dict[str, int]) -> bool:
    return sum(ns for what, ns in mine.items() if what in theirs) >= _SAME * sum(mine.values())
