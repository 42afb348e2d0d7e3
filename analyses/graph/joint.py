"""The graphs of the ranks of a job as one: a collective moves its data when the last rank has come, so that ranks wait for each other.

Each matched collective gets a vertex on the lane of every rank, at which the data begins to move; what lies before is a wait. A
vertex on a lane of its own, at which all have come that others wait for, links them. Times are those of the job's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from tracekit.analyses.graph.build import Dependencies, dependencies, missing_of
from tracekit.analyses.graph.meetings import RankWaits, meetings
from tracekit.analyses.graph.model import INFERRED, LINKS, NEVER, Graph, Links, Weights, in_order
from tracekit.analyses.scope import Scope
from tracekit.classes import dataclass
from tracekit.errors import UsageError
from tracekit.facts.units import count_of
from tracekit.spans import Int64Array

__all__ = ["Joint", "Lengths", "alone", "joint_graph"]

_KIND: Final = {name: number for number, name in enumerate(LINKS)}


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """The lengths of a rank's edges with its changes: all edges, the work on the chains, and the durations of activities, in ns."""

    weights: Weights
    work: Int64Array
    duration: Int64Array


@dataclass(frozen=True, eq=False)
class Joint:
    """The graph of one rank, or of all together.

    `members` are the graphs of the ranks and `shift` what to add to their times, in ns; `where` has the vertex of this graph for each of a
    member's. `member` is the member of each vertex (−1: none). `activity` and `thread` are as in
    the members. `begin` is that of the window. `alike` counts the collectives that link ranks, `other` those that do not, though
    several ranks were in them.
    """

    members: tuple[Dependencies, ...]
    shift: tuple[int, ...]
    graph: Graph
    where: tuple[Int64Array, ...]
    member: Int64Array
    activity: Int64Array
    thread: Int64Array
    begin: int
    alike: int = 0
    other: int = 0
    waits: tuple[RankWaits, ...] = ()
    origin: Int64Array | None = None
    """For each link its place among the links of all members, then those between them; None for one member."""

    @property
    def end(self) -> int:
        """The end of the window, in ns."""
        return int(self.graph.time[-1])

    @property
    def window(self) -> int:
        """The length of the window, in ns."""
        return self.end - self.begin

    @property
    def ranks(self) -> list[int]:
        """The rank of each member; its place where none is known."""
        known = [made.scope.trace.meta.rank for made in self.members]
        return [place if rank is None else rank for place, rank in enumerate(known)]

    @property
    def steps(self) -> int:
        """The number of steps in the window; 0 without any, and where ranks have other numbers of them."""
        scopes = [made.scope for made in self.members]
        (steps, *others) = {one.steps.height if one.window == "steps" else 0 for one in scopes}
        return 0 if others else steps

    @property
    def between(self) -> int:
        """The number of links between threads, streams and ranks."""
        kinds = LINKS[: LINKS.index("begin")]
        return sum(one.count(*kinds) for one in self.members) + sum(one.vertex.size for one in self.waits)

    @property
    def inferred(self) -> int:
        """The number of links that rest on times."""
        kinds = [LINKS[kind] for kind in INFERRED]
        return sum(one.count(*kinds) for one in self.members)

    @cached_property
    def lengths(self) -> Lengths:
        """The recorded lengths."""
        if self.origin is None:
            graph = self.graph
            return Lengths(graph.weights, graph.work, graph.duration)
        return self.of(
            [Lengths(one.graph.weights, one.graph.work, one.graph.duration) for one in self.members]
        )

    @cached_property
    def usual(self) -> Weights:
        """The lengths with usual lags."""
        if self.origin is None:
            return self.members[0].usual
        return self.of(
            [Lengths(one.usual, one.graph.work, one.graph.duration) for one in self.members]
        ).weights

    @cached_property
    def replayed(self) -> Int64Array:
        """When each vertex occurs in a replay of the graph as it is."""
        if self.origin is None:
            return self.members[0].replayed
        return self.graph.replay(self.lengths.weights)

    @cached_property
    def slack(self) -> Int64Array:
        """By how much each vertex may be later, in ns, without a later end; −1 where the end does not depend on it."""
        latest = self.graph.latest(self.lengths.weights, self.replayed)
        return np.where(latest < -NEVER // 2, latest - self.replayed, -1)

    @property
    def missing(self) -> str | None:
        """The signals that the traces lack."""
        rows = missing_of(self.members)
        if self.other:
            rows.append(
                f"which rank waited for which in {count_of(self.other, 'call')} of communication, since the trace does not say so or their times "
                "contradict it"
            )
        return "; ".join(rows) or None

    def of(self, each: Sequence[Lengths]) -> Lengths:
        """The lengths of this graph from those of its members. A collective that takes no time any more waits for no rank."""
        if self.origin is None:
            return each[0]
        size = self.graph.time.size
        chain, work, duration = (np.zeros(size, dtype=np.int64) for _ in range(3))
        link, gone = [], []
        for made, where, waits, given in zip(self.members, self.where, self.waits, each, strict=True):
            lengths, ran, links = given.weights, given.duration.copy(), made.graph.links
            chain[where], work[where] = lengths.chain, given.work
            at, after = waits.vertex, waits.vertex + 1
            took = ran[at] if waits.on_stream else given.work[after]
            wait = waits.share(took)
            follows = made.graph.lane[after] == made.graph.lane[at]
            chain[where[after[follows]]] -= wait[follows]
            work[where[after[follows]]] -= wait[follows]
            ran[at] -= wait if waits.on_stream else 0
            duration[where] = ran
            duration[where[at] + 1], duration[where[at]] = ran[at], 0
            carried = np.zeros(made.graph.time.size, dtype=np.int64)
            carried[at] = wait if waits.on_stream else 0
            link.append(lengths.link - np.where(links.after, carried[links.source], 0))
            gone.append(((took <= 0) & (waits.took > 0))[waits.takes])
        late = np.where(np.concatenate(gone), NEVER, self._late)
        others = np.zeros(sum(int(one.gives.sum()) + 1 for one in self.waits), dtype=np.int64)
        rest = np.concatenate([self._between, late, others])
        lengths = Weights(chain, np.concatenate([*link, rest])[self.origin])
        return Lengths(lengths, work, duration)

    @cached_property
    def _between(self) -> Int64Array:
        """When the graph of each member begins, after this one."""
        begins = np.array([self.graph.time[where[0]] for where in self.where])
        return begins - int(self.graph.time[0])

    @cached_property
    def _late(self) -> Int64Array:
        """Of each wait for other ranks how much earlier than their coming it seems to end, since clocks differ."""
        time, first = self.graph.time, self.graph.time.size - 1 - self.alike
        late = [
            time[where[one.vertex] + 1] - time[first + one.match]
            for where, one in zip(self.where, self.waits, strict=True)
        ]
        takes = np.concatenate([one.takes for one in self.waits])
        seems: Int64Array = np.minimum(np.concatenate(late)[takes], 0)
        return seems


def alone(made: Dependencies) -> Joint:
    """The graph of one trace."""
    graph = made.graph
    same = np.arange(graph.time.size)
    member = np.zeros(graph.time.size, dtype=np.int64)
    return Joint((made,), (0,), graph, (same,), member, made.activity, made.thread, made.scope.start)


def joint_graph(scopes: Sequence[Scope]) -> Joint:
    """The graph of the ranks of a job; of one scope its own.

    Raises UsageError if no collective links them.

    >>> from pathlib import Path
    >>> import tracekit
    >>> from tracekit.analyses.scope import select
    >>> files = sorted(Path("sample_traces/bert_cpu_ddp").glob("*.gz"))
    >>> joint = joint_graph([select(tracekit.read(file)) for file in files])
    >>> joint.alike, joint.end == int(joint.replayed[-1])
    (6, True)
    """
    if len(scopes) == 1:
        return scopes[0].once(joint_graph, lambda: alone(dependencies(scopes[0])))
    return scopes[0].once(tuple(map(id, scopes)), lambda: _of_job(scopes))


def _of_job(scopes: Sequence[Scope]) -> Joint:
    from tracekit.analyses.ranks import align, summary_of  # noqa: PLC0415 - every report would load what only jobs need

    made = [dependencies(scope) for scope in scopes]
    aligned = align([summary_of(scope) for scope in scopes])
    shift = aligned.clocks["shift_ns"].to_list()
    waits, alike, other = meetings(made, aligned, shift)
    if not alike:
        raise UsageError(
            "communication between ranks was found, but not when a rank waited in it"
            if other
            else "no collective and no message between ranks was found in these traces",
            remedy="give the traces of one job that were recorded at one time",
        )
    return _joined(made, shift, waits, alike, other)


def _joined(
    made: Sequence[Dependencies], shift: Sequence[int], waits: Sequence[RankWaits], alike: int, other: int
) -> Joint:
    graphs = [one.graph for one in made]
    where, at = [], 1
    for graph, one in zip(graphs, waits, strict=True):
        added = np.zeros(graph.time.size, dtype=np.int64)
        added[one.vertex + 1] = 1
        where.append(at + np.arange(graph.time.size) + np.cumsum(added))
        at += graph.time.size + one.vertex.size
    size = at + alike + 1
    time, member, activity, thread = (np.full(size, -1, dtype=np.int64) for _ in range(4))
    duration, new = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=bool)
    came = np.full(alike, NEVER, dtype=np.int64)
    for number, (mine, to, meets, by) in enumerate(zip(made, where, waits, shift, strict=True)):
        graph = mine.graph
        time[to], member[to] = graph.time + by, number
        activity[to], thread[to], duration[to] = mine.activity, mine.thread, graph.duration
        new[to] = np.append(True, graph.lane[1:] != graph.lane[:-1])
        start, moves = to[meets.vertex], to[meets.vertex] + 1
        time[moves], member[moves] = time[start] + meets.waited, number
        thread[moves] = thread[start]
        activity[moves], activity[start] = activity[start], -1
        if meets.on_stream:
            duration[moves], duration[start] = meets.took - meets.waited, 0
        np.maximum.at(came, meets.match[meets.gives], time[start[meets.gives]])
    time[at : at + alike] = came
    time[0], time[-1] = min(int(time[to[0]]) for to in where), max(int(time[to[-1]]) for to in where)
    new[[0, *range(at, size)]] = True
    links = _links(graphs, where, waits, at, size)
    lane = np.cumsum(new)
    pieces, links = in_order(time, lane, links)
    origin = links.lag
    none = np.zeros(size, dtype=np.int64)
    graph = Graph(time, lane, none, none, duration, links, pieces)
    begin = min(one.scope.start + by for one, by in zip(made, shift, strict=True))
    return Joint(
        tuple(made), tuple(shift), graph, tuple(where), member, activity, thread, begin, alike, other, tuple(waits), origin
    )  # fmt: skip


def _links(
    graphs: Sequence[Graph], where: Sequence[Int64Array], waits: Sequence[RankWaits], hub: int, size: int
) -> Links:
    """The links of all members, to their begins, from where all have come to the ranks that wait for it, from the starts of those that they
    wait for, and to the end; the lag of each is its place. What leaves a collective at its end leaves the vertex at which it moved.
    """
    rows = []
    for graph, to, one in zip(graphs, where, waits, strict=True):
        moved = np.zeros(to.size, dtype=np.int64)
        moved[one.vertex] = 1
        links = graph.links
        source = to[links.source] + np.where(links.after, moved[links.source], 0)
        rows.append((source, to[links.target], links.kind, links.after))
    hubs, starts, takes, gives = (
        np.concatenate(each)
        for each in zip(
            *(
                (hub + one.match, to[one.vertex], one.takes, one.gives)
                for to, one in zip(where, waits, strict=True)
            ),
            strict=True,
        )
    )
    first, last = (np.array([to[place] for to in where]) for place in (0, -1))
    for source, target, kind in (
        (np.zeros(first.size, dtype=np.int64), first, "begin"),
        (hubs[takes], starts[takes] + 1, "collective"),
        (starts[gives], hubs[gives], "collective"),
        (last, np.full(last.size, size - 1), "end"),
    ):
        rows.append((source, target, np.full(source.size, _KIND[kind]), np.zeros(source.size, dtype=bool)))
    source, target, kinds, after = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Links(source, target, kinds, np.arange(source.size), after)
