"""A dependency graph in columns: its replay, its slack and its longest path, exact in ns, without a loop over vertices.

A vertex is an instant of a lane: of a host thread a call, the end of a wait, a step's edge; of a stream the start of an activity.
The vertices of a lane lie together, in their order. Two kinds of edges lead into a vertex: the *chain* from the vertex before it on
its lane (`work`, in which the lane is busy, and `lag`), and *links* from other lanes. A vertex occurs when the last of its edges
allows it. Vertex 0 is the begin of the graph, alone on its lane; the last one is its end, also alone.

Every lane is one of two kinds: streams take launches, of which there are as many as activities; threads take only a few links, each
the end of a wait. So the vertices fall into few *pieces*: only the first vertex of a piece waits for links other than launches, and
links other than launches leave only its last. What happens within a piece is a running maximum of a column. Between them, the begin
and the end of each piece follow from those of few others, in one loop over the pieces.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from tracekit.classes import dataclass
from tracekit.spans import BoolArray, Int64Array

__all__ = ["INFERRED", "LINKS", "NEVER", "Graph", "Links", "Path", "Pieces", "Weights", "in_order"]

NEVER: Final = -(1 << 60)
"""The weight of a link that is taken out, and a time before all others."""

LINKS: Final = (
    "launch",
    "event",
    "inferred_wait",
    "synchronisation",
    "inferred_synchronisation",
    "thread",
    "inferred_thread",
    "collective",
    "begin",
    "end",
)
"""The kinds of links. Those that are inferred rest on times, since the trace does not record them."""

INFERRED: Final = tuple(number for number, kind in enumerate(LINKS) if kind.startswith("inferred"))
_LAUNCH = LINKS.index("launch")


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """Edges between lanes, in the order of their targets: vertices, the kind (a number into LINKS), the `lag` in ns, and whether the
    link leaves at the end of the activity that starts at its source (`after`).
    """

    source: Int64Array
    target: Int64Array
    kind: Int64Array
    lag: Int64Array
    after: BoolArray

    def keep(self, wanted: BoolArray | Int64Array) -> Links:
        """The links that are wanted: a truth value for each, or their numbers in a new order."""
        return Links(*(getattr(self, name)[wanted] for name in ("source", "target", "kind", "lag", "after")))


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """The lengths of all edges in ns: of the `chain` into each vertex, and of each link."""

    chain: Int64Array
    link: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Stretches of lanes: `first` and `last` vertex of each, the piece `of` each vertex, the `feeder`, whose launches it takes (−1: none),
    and the `order` in which they can be replayed.
    """

    first: Int64Array
    last: Int64Array
    of: Int64Array
    feeder: Int64Array
    order: Int64Array


def in_order(time: Int64Array, lane: Int64Array, links: Links) -> tuple[Pieces, Links]:
    """The pieces of lanes with these vertices and links, and the links that agree with an order in time.

    Of links that form a cycle, as only a bad clock gives, one is left out.
    """
    links = links.keep(np.argsort(links.target, kind="stable"))
    pieces = _pieces(time, lane, links)
    forward = _forward(pieces, links)
    if not forward.all():  # what happens at one time may have another order
        pieces = replace(pieces, order=_sorted_by_links(pieces, lane, links))
        forward = _forward(pieces, links)
    return pieces, links.keep(forward)


def _forward(pieces: Pieces, links: Links) -> BoolArray:
    """Which links lead to a later piece."""
    place = np.empty(pieces.order.size, dtype=np.int64)
    place[pieces.order] = np.arange(pieces.order.size)
    forward: BoolArray = place[pieces.of[links.source]] < place[pieces.of[links.target]]
    return forward


def _sorted_by_links(pieces: Pieces, lane: Int64Array, links: Links) -> Int64Array:
    """The pieces in an order in which all links lead forward, but for those of cycles; of several the first in time comes first."""
    follows = 1 + np.flatnonzero(np.diff(lane[pieces.first]) == 0)
    source = np.concatenate([pieces.of[links.source], follows - 1])
    target = np.concatenate([pieces.of[links.target], follows])
    source, target = np.unique(np.stack([source, target]), axis=1)
    waiting = np.bincount(target, minlength=pieces.order.size).tolist()
    after: list[list[int]] = [[] for _ in waiting]
    for one, other in zip(source.tolist(), target.tolist(), strict=True):
        after[one].append(other)
    place = np.empty(pieces.order.size, dtype=np.int64)
    place[pieces.order] = np.arange(pieces.order.size)
    rank, by_rank = place.tolist(), pieces.order.tolist()
    ready = [rank[piece] for piece, count in enumerate(waiting) if not count]
    heapify(ready)
    done, oldest = [False] * len(waiting), 0
    order: list[int] = []
    while len(order) < len(waiting):
        if not ready:  # a cycle: its first piece in time does not wait any longer
            while done[by_rank[oldest]]:
                oldest += 1
            heappush(ready, oldest)
        piece = by_rank[heappop(ready)]
        if done[piece]:
            continue
        done[piece] = True
        order.append(piece)
        for other in after[piece]:
            waiting[other] -= 1
            if not waiting[other]:
                heappush(ready, rank[other])
    return np.array(order, dtype=np.int64)


def _pieces(time: Int64Array, lane: Int64Array, links: Links) -> Pieces:
    """The pieces of lanes with these vertices and links, which are in the order of their targets."""
    n = time.size
    cut = np.append(True, lane[1:] != lane[:-1])
    other = links.kind != _LAUNCH
    cut[links.target[other]] = True
    after = links.source[other] + 1
    cut[after[after < n]] = True
    fed = links.target[~other]
    if fed.size:
        feeder = np.full(n, -1, dtype=np.int64)
        feeder[fed] = np.cumsum(cut)[links.source[~other]]
        # The feeder of a vertex without a launch is that of the vertex before it.
        known = np.maximum.accumulate(np.where((feeder >= 0) | cut, np.arange(n), 0))
        feeder = feeder[known]
        changed = np.append(False, feeder[1:] != feeder[:-1])
        cut |= changed & np.isin(lane, lane[fed])
    first = np.flatnonzero(cut)
    last = np.append(first[1:], n) - 1
    of = np.cumsum(cut) - 1
    feeding = np.full(first.size, -1, dtype=np.int64)
    feeding[of[fed]] = of[links.source[~other]]
    rank = np.isin(lane[first], lane[fed]).astype(np.int64)
    rank[-1] = 2  # the end comes last
    order = np.lexsort((np.arange(first.size), time[last], rank, time[first]))
    return Pieces(first, last, of, feeding, order)


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """A chain of edges from the begin to the end: for each its vertices, and its link (−1: along the lane)."""

    source: Int64Array
    target: Int64Array
    link: Int64Array


@dataclass(frozen=True, eq=False)
class Graph:
    """Vertices with their recorded `time` in ns and `lane`, the edges, and what is at the vertices.

    `work` and `lag` are of the chain into each vertex. `duration` is that of the activity that starts at a vertex (0: none starts
    there).
    """

    time: Int64Array
    lane: Int64Array
    work: Int64Array
    lag: Int64Array
    duration: Int64Array
    links: Links
    pieces: Pieces

    @cached_property
    def weights(self) -> Weights:
        """The recorded lengths."""
        return self.weigh(self.work, self.duration)

    def weigh(self, work: Int64Array, duration: Int64Array) -> Weights:
        """The lengths with other work on the lanes, and other durations of activities."""
        links = self.links
        return Weights(work + self.lag, links.lag + np.where(links.after, duration[links.source], 0))

    # -- replay --------------------------------------------------------------------------------------

    def replay(self, weights: Weights) -> Int64Array:
        """When each vertex occurs, in ns, if edges have these lengths."""
        run, links = np.cumsum(weights.chain), self.links
        _, ends = self._piece_times(run, weights)
        arrival = np.full(self.time.size, NEVER, dtype=np.int64)
        arrival[0] = self.time[0]
        few = self._few
        np.maximum.at(arrival, links.target[few], ends[self.pieces.of[links.source[few]]] + weights.link[few])
        times = np.empty_like(arrival)
        self._running_maximum(arrival, run, times, fed=False)
        launch = self._launches
        at = links.target[launch]
        arrival[at] = np.maximum(arrival[at], times[links.source[launch]] + weights.link[launch])
        self._running_maximum(arrival, run, times, fed=True)
        return times

    def latest(self, weights: Weights, times: Int64Array) -> Int64Array:
        """When each vertex may occur at the latest, in ns, so that the end is not later; a large number where the end does not depend on it."""
        run, links, of = np.cumsum(weights.chain), self.links, self.pieces.of
        begins = self._piece_latest(run, weights, int(times[-1]))
        bound = np.full(self.time.size, -NEVER, dtype=np.int64)
        bound[-1] = times[-1]
        few = self._few
        np.minimum.at(bound, links.source[few], begins[of[links.target[few]]] - weights.link[few])
        latest = np.empty_like(bound)
        self._running_minimum(bound, run, latest, fed=True)
        launch = self._launches
        np.minimum.at(bound, links.source[launch], latest[links.target[launch]] - weights.link[launch])
        self._running_minimum(bound, run, latest, fed=False)
        return latest

    @cached_property
    def _launches(self) -> Int64Array:
        return np.flatnonzero(self.links.kind == _LAUNCH)

    @cached_property
    def _few(self) -> Int64Array:
        return np.flatnonzero(self.links.kind != _LAUNCH)

    @cached_property
    def _lanes(self) -> list[tuple[int, int, bool]]:
        """First vertex, end, and whether it takes launches, of each lane."""
        begins = np.flatnonzero(np.append(True, self.lane[1:] != self.lane[:-1]))
        fed = np.zeros(self.time.size, dtype=bool)
        fed[self.links.target[self._launches]] = True
        taking = np.logical_or.reduceat(fed, begins)
        return list(
            zip(begins.tolist(), [*begins[1:].tolist(), self.time.size], taking.tolist(), strict=True)
        )

    def _running_maximum(self, arrival: Int64Array, run: Int64Array, times: Int64Array, *, fed: bool) -> None:
        for low, high, takes in self._lanes:
            if takes == fed:
                along = run[low:high]
                times[low:high] = np.maximum.accumulate(arrival[low:high] - along) + along

    def _running_minimum(self, bound: Int64Array, run: Int64Array, latest: Int64Array, *, fed: bool) -> None:
        for low, high, takes in self._lanes:
            if takes == fed:
                along = run[low:high]
                latest[low:high] = np.minimum.accumulate((bound[low:high] - along)[::-1])[::-1] + along

    def _reach(self, run: Int64Array, weights: Weights) -> Int64Array:
        """The longest way from the begin of each piece's feeder to the end of the piece; NEVER without a feeder."""
        pieces, links, launch = self.pieces, self.links, self._launches
        source, target = links.source[launch], links.target[launch]
        piece = pieces.of[target]
        begun = run[source] - run[pieces.first[pieces.of[source]]]
        way = begun + weights.link[launch] + run[pieces.last[piece]] - run[target]
        reach = np.full(pieces.first.size, NEVER, dtype=np.int64)
        if launch.size:
            groups = np.flatnonzero(np.append(True, piece[1:] != piece[:-1]))
            reach[piece[groups]] = np.maximum.reduceat(way, groups)
        return reach

    def _piece_links(self, *, out: bool) -> list[list[tuple[int, int]]]:
        """Of each piece the links other than launches that lead into it, or out of it: the other piece and the link."""
        of, few = self.pieces.of, self._few
        lists: list[list[tuple[int, int]]] = [[] for _ in range(self.pieces.first.size)]
        here, there = (
            (self.links.source, self.links.target) if out else (self.links.target, self.links.source)
        )
        for mine, other, link in zip(
            of[here[few]].tolist(), of[there[few]].tolist(), few.tolist(), strict=True
        ):
            lists[mine].append((other, link))
        return lists

    @cached_property
    def _into(self) -> list[list[tuple[int, int]]]:
        return self._piece_links(out=False)

    @cached_property
    def _out_of(self) -> list[list[tuple[int, int]]]:
        return self._piece_links(out=True)

    def _follows(self) -> list[bool]:
        """Whether each piece continues the lane of the piece before it."""
        lane = self.lane[self.pieces.first]
        return [False, *(lane[1:] == lane[:-1]).tolist()]

    def _piece_times(self, run: Int64Array, weights: Weights) -> tuple[Int64Array, Int64Array]:
        """When each piece begins and ends, in ns. The begin of a piece with a feeder leaves out its launch."""
        pieces = self.pieces
        step = weights.chain[pieces.first].tolist()
        inside = (run[pieces.last] - run[pieces.first]).tolist()
        reach, feeder = self._reach(run, weights).tolist(), pieces.feeder.tolist()
        link, into, follows = weights.link.tolist(), self._into, self._follows()
        begin, end = [NEVER] * len(step), [NEVER] * len(step)
        for piece in pieces.order.tolist():
            at = end[piece - 1] + step[piece] if follows[piece] else NEVER
            for other, which in into[piece]:
                at = max(at, end[other] + link[which])
            if piece == 0:
                at = int(self.time[0])
            begin[piece] = at
            at += inside[piece]
            if feeder[piece] >= 0:
                at = max(at, begin[feeder[piece]] + reach[piece])
            end[piece] = at
        return np.array(begin, dtype=np.int64), np.array(end, dtype=np.int64)

    def _piece_latest(self, run: Int64Array, weights: Weights, last: int) -> Int64Array:
        """When each piece may begin at the latest, so that the graph ends at `last`."""
        pieces = self.pieces
        step = weights.chain[pieces.first].tolist()
        inside = (run[pieces.last] - run[pieces.first]).tolist()
        reach, feeder = self._reach(run, weights).tolist(), pieces.feeder.tolist()
        link, out_of, follows = weights.link.tolist(), self._out_of, self._follows()
        begin, fed_by = [-NEVER] * len(step), [-NEVER] * len(step)
        for piece in reversed(pieces.order.tolist()):
            at = -NEVER
            if piece + 1 < len(step) and follows[piece + 1]:
                at = begin[piece + 1] - step[piece + 1]
            for other, which in out_of[piece]:
                at = min(at, begin[other] - link[which])
            if piece == len(step) - 1:
                at = last
            if feeder[piece] >= 0:
                fed_by[feeder[piece]] = min(fed_by[feeder[piece]], at - reach[piece])
            begin[piece] = min(at - inside[piece], fed_by[piece])
        return np.array(begin, dtype=np.int64)

    # -- the longest path ----------------------------------------------------------------------------

    def path(self, weights: Weights, times: Int64Array) -> Path:
        """The chain of edges that determines when the graph ends. Of ways of one length it takes the one along the lane, else the
        link that comes first.
        """
        n, links = self.time.size, self.links
        along = np.append(False, self.lane[1:] == self.lane[:-1])
        along &= np.append(False, times[:-1] + weights.chain[1:] == times[1:])
        via = np.full(n, -1, dtype=np.int64)
        tight = np.flatnonzero(times[links.source] + weights.link == times[links.target])[::-1]
        via[links.target[tight]] = tight
        begins = np.maximum.accumulate(np.where(along, 0, np.arange(n)))
        # From the end back: runs along lanes, and the links by which the path came to them.
        first, last, used = [int(begins[-1])], [n - 1], []
        while first[-1] > 0:
            used.append(int(via[first[-1]]))
            last.append(int(links.source[used[-1]]))
            first.append(int(begins[last[-1]]))
        low, high = np.array(first[::-1]), np.array(last[::-1])
        after = np.cumsum(high - low + 1)
        vertex = np.arange(after[-1]) + np.repeat(high + 1 - after, high - low + 1)
        link = np.full(vertex.size - 1, -1, dtype=np.int64)
        link[after[:-1] - 1] = used[::-1]
        return Path(vertex[:-1], vertex[1:], link)
