"""In which calls of communication one rank waited for another: collectives, and messages from one rank to another.

Of an all-reduce, an all-gather, a reduce-scatter, an all-to-all and a barrier every rank waits for all. In a broadcast and a scatter
the others wait for the root, in a reduce and a gather the root for the others, if the trace tells the root. A receive waits for its
send, if the trace tells both ranks of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.calls import calls_of
from tracekit.analyses.flops import json_list
from tracekit.analyses.graph.build import Dependencies
from tracekit.analyses.graph.model import NEVER
from tracekit.classes import dataclass
from tracekit.facts.collectives import CLOCKS_NS, MESSAGES, SYNCHRONISING, collective_name
from tracekit.groups import none_to_null
from tracekit.spans import BoolArray, Int64Array, take

if TYPE_CHECKING:
    from tracekit.analyses.ranks import Alignment

__all__ = ["RankWaits", "meetings"]

_FROM_ROOT: Final = ("broadcast", "scatter")
_TO_ROOT: Final = ("reduce", "gather")
_ROOTED: Final = r"^c10d::(broadcast|scatter|reduce|gather)_$"
_ROOT_INPUT: Final = {"broadcast": 2, "scatter": 3, "reduce": 3, "gather": 3}
"""The place of the root's number in the group among the inputs of these operators."""
_MOST_DIGITS: Final = 9


@dataclass(frozen=True, slots=True, eq=False)
class RankWaits:
    """The linked calls of a rank: the vertex at which each starts, its number, how long it took, and waited of that, in ns; whether the
    other ranks wait for it (`gives`), and it for others (`takes`); and whether its time is that of an activity (else it is work on the
    chain to the next vertex).
    """

    vertex: Int64Array
    match: Int64Array
    took: Int64Array
    waited: Int64Array
    gives: BoolArray
    takes: BoolArray
    on_stream: bool

    def share(self, took: Int64Array) -> Int64Array:
        """What of other durations is the wait, in ns."""
        part: Int64Array = np.rint(took * (self.waited / np.maximum(self.took, 1))).astype(np.int64)
        return part


def meetings(
    made: Sequence[Dependencies], aligned: Alignment, shift: Sequence[int]
) -> tuple[list[RankWaits], int, int]:
    """The calls of each rank that link it to others, in numbers from 0; how many there are of all ranks, and how many that link none."""
    calls = aligned.calls
    alone = calls.filter(pl.col("match").is_null() & pl.col("name").is_in(MESSAGES)).height
    calls = calls.filter(pl.col("match").is_not_null() & (pl.len().over("match") > 1))
    rows = pl.concat(
        [_vertices(one, at, calls, by) for at, (one, by) in enumerate(zip(made, shift, strict=True))]
    )
    calls = calls.join(rows, on=["at", "start", "end"], how="left", maintain_order="left")
    calls = calls.with_columns(_roots(calls, made))
    is_root, name = pl.col("at") == pl.col("root"), pl.col("name")
    all_meet, told = name.is_in(list(SYNCHRONISING)), pl.col("root").is_not_null()
    gives = all_meet | (name.is_in(_FROM_ROOT) & is_root) | name.is_in(_TO_ROOT) | (name == "send")
    takes = (
        all_meet | (name.is_in(_FROM_ROOT) & ~is_root) | (name.is_in(_TO_ROOT) & is_root) | (name == "recv")
    )
    calls = calls.with_columns(
        (all_meet | told | name.is_in(MESSAGES)).alias("known"),
        gives.fill_null(value=False).alias("gives"),
        takes.fill_null(value=False).alias("takes"),
    )
    came = pl.col("start").filter("gives").max().over("match")
    moves = (
        pl.when("takes").then(pl.min_horizontal(pl.max_horizontal(came, "since"), "end")).otherwise("since")
    )
    fits = (
        pl.col("known")
        & pl.col("vertex").is_not_null()
        & (~pl.col("takes") | (came - pl.col("end") <= CLOCKS_NS))
        & (moves <= pl.col("next"))
    )
    calls = calls.with_columns(moves.alias("moves"), fits.all().over("match").alias("fits"))
    linked = calls.filter("fits").with_columns(
        (pl.col("match").rank("dense") - 1).cast(pl.Int64).alias("number")
    )
    waits = []
    for at, one in enumerate(made):
        mine = linked.filter(pl.col("at") == at).sort("vertex")
        vertex, number, since, end, moved, gave, took = (
            mine[key].to_numpy() for key in ("vertex", "number", "since", "end", "moves", "gives", "takes")
        )
        waits.append(RankWaits(vertex, number, end - since, moved - since, gave, took, not one.scope.on_cpu))
    alike, every = linked["match"].n_unique(), calls["match"].n_unique()
    return waits, alike, every - alike + alone


def _vertices(made: Dependencies, at: int, calls: pl.DataFrame, shift: int) -> pl.DataFrame:
    """`at`, `start`, `end` of calls of one activity or one range of gloo, their `vertex`, its time `since`, when the `next` one of its lane is, and the number of the `root` in the
    group (null: not known); each at one place only.
    """
    graph = made.graph
    if made.scope.on_cpu:
        vertex = np.append(made.began, made.sent)
        start, end = graph.time[vertex], graph.time[np.minimum(vertex + 1, graph.time.size - 1)]
        ours = slice(made.began.size, None)
        start[ours], end[ours] = made.messages.start, made.messages.end
    else:
        vertex = np.flatnonzero(made.activity >= 0)
        start, end = graph.time[vertex], graph.time[vertex] + graph.duration[vertex]
    follows = graph.lane[vertex + 1] == graph.lane[vertex]
    after = np.where(follows, graph.time[vertex + 1], -NEVER)
    rows = pl.DataFrame({"start": start, "end": end, "since": graph.time[vertex], "next": after}).select(
        pl.all() + shift, pl.Series("vertex", vertex)
    )
    one = (pl.col("kernels") <= 1) | made.scope.on_cpu  # a range of gloo is one, whatever runs in it
    mine = calls.filter((pl.col("at") == at) & one)[["at", "start", "end"]]
    found = mine.join(rows, on=["start", "end"], how="inner", maintain_order="left")
    found = found.filter(pl.len().over("start", "end") == 1)
    return found.join(_numbers_of_roots(made, shift), on=["start", "end"], how="left", maintain_order="left")


def _numbers_of_roots(made: Dependencies, shift: int) -> pl.DataFrame:
    """`start` and `end` of calls with a root, and its `number` in the group, as the operator that made the call was given it."""
    made_calls, stack = calls_of(made.scope), attribution(made.scope).model.stack
    around = stack.nesting.nearest_ancestor(stack.named(_ROOTED, "op"))
    op = none_to_null(take(around, made_calls.launch_span))
    told = made_calls.table.select(
        pl.col("start", "end") + shift,
        "name",
        stack.frame["name"].gather(op).cast(pl.String).alias("op"),
        stack.frame["concrete_inputs"].gather(op).cast(pl.String).alias("inputs"),
    ).unique(["start", "end"], keep="none")
    numbers = [_number_of_root(*texts) for texts in told[["name", "op", "inputs"]].rows()]
    return told.select("start", "end", pl.Series("number", numbers, dtype=pl.Int64))


def _number_of_root(name: str, op: str | None, inputs: str | None) -> int | None:
    if op is None or collective_name(op) != name or name not in _ROOT_INPUT:
        return None
    values, place = json_list(inputs), _ROOT_INPUT[name]
    text = str(values[place]) if len(values) > place else ""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _roots(calls: pl.DataFrame, made: Sequence[Dependencies]) -> pl.Series:
    """The place of the root of each call among the ranks; null where it is not known. A number in a group is a rank if the group's ranks
    were recorded, or if all ranks of the job are in the call.
    """
    ranks = [one.scope.trace.meta.rank for one in made]
    size = made[0].scope.trace.meta.world_size or len(made)
    place = {rank: at for at, rank in enumerate(ranks) if rank is not None}
    told = calls.select("match", "group_ranks", "number", pl.len().over("match").alias("came"))
    found = []
    for _, members, number, came in told.rows():
        group = json_list(members) or (range(size) if came == size else [])
        known = number is not None and number < len(group)
        found.append(place.get(group[number]) if known else None)
    roots = told.select("match", pl.Series("root", found, dtype=pl.Int64))
    one = pl.col("root").drop_nulls().n_unique().over("match") == 1
    return roots.select(pl.when(one).then(pl.col("root").max().over("match")).alias("root")).to_series()
