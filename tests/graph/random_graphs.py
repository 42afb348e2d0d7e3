"""Random dependency graphs, and what a replay of them gives, worked out vertex by vertex."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from tracekit.analyses.graph.model import LINKS, Graph, Links, Weights, in_order

LAUNCH, EVENT = LINKS.index("launch"), LINKS.index("event")


def random_graph(seed: int) -> Graph:
    """Threads and streams with launches, and links of other kinds in any direction that time allows."""
    rng = random.Random(seed)
    threads, streams = rng.randint(1, 3), rng.randint(0, 3)
    coarse = rng.choice([1, 5, 20])  # small numbers make ties
    lanes = [[0]]
    lanes.extend(
        sorted(rng.randint(0, 100 // coarse) * coarse for _ in range(rng.randint(1, 8)))
        for _ in range(threads + streams)
    )
    lanes.append([100])
    time = np.array([at for lane in lanes for at in lane], dtype=np.int64)
    lane = np.array([number for number, each in enumerate(lanes) for _ in each], dtype=np.int64)
    last = time.size - 1
    rows: set[tuple[int, int, int]] = set()
    for number in range(1, threads + streams + 1):
        vertices = np.flatnonzero(lane == number)
        rows.add((0, int(vertices[0]), EVENT))
        if rng.random() < 0.7 or number == 1:
            rows.add((int(vertices[-1]), last, EVENT))
    for target in range(1, last):
        if lane[target] > threads and rng.random() < 0.8:
            calls = [v for v in range(1, last) if lane[v] <= threads and time[v] <= time[target]]
            if calls:
                rows.add((rng.choice(calls), target, LAUNCH))
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            earlier = [v for v in range(1, last) if lane[v] != lane[target] and time[v] <= time[target]]
            if earlier:
                rows.add((rng.choice(earlier), target, EVENT))
    source, target, kind = (np.array(column) for column in zip(*sorted(rows), strict=True))
    some = np.array([rng.randint(0, 12) for _ in rows])
    after = np.array([rng.random() < 0.5 for _ in rows])
    pieces, links = in_order(time, lane, Links(source, target, kind, some, after))
    chained = np.append(False, lane[1:] == lane[:-1])

    def column(most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([rng.randint(0, most) for _ in range(time.size)])

    work, lag = column(15) * chained, column(5) * chained
    return Graph(time, lane, work, lag, column(15), links, pieces)


def slow_replay(graph: Graph, weights: Weights) -> list[int]:
    """The longest way to each vertex, by its definition."""
    into = incoming(graph, weights)

    @cache
    def at(vertex: int) -> int:
        return 0 if vertex == 0 else max(at(source) + length for source, length in into[vertex])

    return [at(vertex) for vertex in range(graph.time.size)]


def incoming(graph: Graph, weights: Weights) -> list[list[tuple[int, int]]]:
    """Of each vertex the edges that lead into it: source and length."""
    links = graph.links
    into: list[list[tuple[int, int]]] = [[] for _ in range(graph.time.size)]
    for vertex in range(1, graph.time.size):
        if graph.lane[vertex] == graph.lane[vertex - 1]:
            into[vertex].append((vertex - 1, int(weights.chain[vertex])))
    for row in range(links.source.size):
        into[links.target[row]].append((int(links.source[row]), int(weights.link[row])))
    return into


def slow_latest(graph: Graph, weights: Weights, end: int) -> list[int | None]:
    """The latest time of each vertex, by its definition; None where the end does not depend on it."""
    into, last = incoming(graph, weights), graph.time.size - 1

    @cache
    def at(vertex: int) -> int | None:
        if vertex == last:
            return end
        outs = [
            bound - length
            for target in range(last + 1)
            for source, length in into[target]
            if source == vertex and (bound := at(target)) is not None
        ]
        return min(outs, default=None)

    return [at(vertex) for vertex in range(last + 1)]
