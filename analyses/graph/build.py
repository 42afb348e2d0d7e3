"""From a scope to its dependency graph: the vertices of threads and streams, and the lengths of the edges between them.

A replay of the graph as it is gives the recorded times, and its end is that of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.graph.lengths import Vertices, lengths
from tracekit.analyses.graph.links import CLOCKS_NS, Handovers, Messages, Waits, handovers, messages, waits
from tracekit.analyses.graph.model import LINKS, NEVER, Graph, Links, Weights, in_order
from tracekit.analyses.graph.streams import Lines, StreamWaits, between_streams
from tracekit.analyses.idle.span_causes import SpanCauses, span_causes
from tracekit.analyses.result import has_launch_calls, no_launches
from tracekit.analyses.scope import Scope
from tracekit.classes import dataclass
from tracekit.facts.units import count_of
from tracekit.readers import how_to_record
from tracekit.spans import Int64Array, distinct_rows

__all__ = ["Dependencies", "dependencies", "missing_of"]

_KIND: Final = {name: number for number, name in enumerate(LINKS)}


@dataclass(frozen=True, eq=False)
class Dependencies:
    """The graph of a scope and what its vertices are.

    `activity` is the row of `lines.rows` that starts at a vertex, `thread` the thread (a code of the host stack), −1 for none. `steps` are the vertices at the starts of the steps and at the end of the last one. The window
    runs from `begin` to the graph's end; `lost` counts the links that the clocks contradict. `usual` has edges whose lags are the usual
    ones of their kind instead of the recorded ones. `between` has the waits between streams. `began` are
    the vertices at which a thread begins what the main thread gave it, `sent` those at which it sends a message or begins to wait for one.
    """

    scope: Scope
    stack: HostStack
    lines: Lines
    graph: Graph
    activity: Int64Array
    thread: Int64Array
    steps: Int64Array
    begin: int
    lost: int
    usual: Weights
    between: StreamWaits
    began: Int64Array
    sent: Int64Array
    messages: Messages

    @cached_property
    def replayed(self) -> Int64Array:
        """When each vertex occurs in a replay of the graph as it is."""
        return self.graph.replay(self.graph.weights)

    @property
    def end(self) -> int:
        """The end of the window, in ns."""
        return int(self.graph.time[-1])

    @cached_property
    def causes(self) -> SpanCauses:
        """Why a device waits in each span of the host stack, and the user's code around it."""
        return span_causes(self.scope)

    @cached_property
    def operator(self) -> Int64Array:
        """The innermost operator around each span of the host stack; without a device also the range of a backend around its work; −1 for
        none.
        """
        stack, scope = self.stack, self.scope
        operators = stack.of_kind("op")
        if scope.on_cpu:
            operators[scope.activities["launch_id"].to_numpy()] = True
        return stack.nesting.nearest_ancestor(operators)

    def count(self, *kinds: str) -> int:
        """The number of links of these kinds."""
        return int(np.isin(self.graph.links.kind, [_KIND[kind] for kind in kinds]).sum())


def missing_of(members: Sequence[Dependencies]) -> list[str]:
    """The signals that the traces of these graphs lack, each a clause, with how to record them."""
    rows = []
    if unlinked := [one.scope for one in members if no_launches(one.scope) is not None]:
        linked = has_launch_calls(unlinked[0].trace)
        remedy = (
            "correlation ids are missing or match nothing; use the file as the profiler wrote it"
            if linked
            else how_to_record("launches", unlinked[0].trace.meta.format)
        )
        rows.append(f"which call launched which activity ({remedy})")
    unsure = [one for one in members if not one.between.events]
    if unsure:
        count = sum(one.count("inferred_wait") for one in unsure)
        found = (
            f"; {count_of(count, 'wait')} between them {'was' if count == 1 else 'were'} found by time"
            if count
            else ""
        )
        remedy = how_to_record("sync", unsure[0].scope.trace.meta.format)
        rows.append(f"which stream waited for which{found} ({remedy})")
    if count := sum(one.between.nameless for one in members):
        timed = sum(one.count("inferred_wait") for one in members if one.between.events)
        how = "it was" if timed == count else f"{timed} of them were"
        rows.append(
            f"which stream {count_of(count, 'wait')} of streams {'was' if count == 1 else 'were'} for, "
            f"since their records do not name it; {how} found by time"
        )
    if count := sum(one.count("inferred_synchronisation") for one in members):
        rows.append(f"what {count_of(count, 'synchronising call')} waited for, which was found by time")
    if count := sum(one.count("inferred_thread") for one in members):
        rows.append(f"what threads waited for in {count_of(count, 'place')}, which was found by time")
    if count := sum(one.lost for one in members):
        rows.append(
            f"what waited for what in {count_of(count, 'place')}, in which the clocks of host and device contradict the records"
        )
    return rows


def dependencies(scope: Scope) -> Dependencies:
    """The dependency graph of a scope.

    >>> import tracekit
    >>> from tracekit.analyses.scope import select
    >>> made = dependencies(select(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")))
    >>> int(made.replayed[-1]) == made.end == made.scope.end
    True
    """
    return scope.once(dependencies, lambda: _dependencies(scope))


def _dependencies(scope: Scope) -> Dependencies:
    model = attribution(scope).model
    stack, lines = model.stack, Lines.of(scope)
    main = _main(stack, model.phases.main, lines)
    begin = _begin(scope, lines)
    awaited = waits(scope, stack, lines, begin, scope.end)
    launching = np.unique(stack.thread[lines.launch[lines.launch >= 0]])
    handed = handovers(scope, stack, main, model.backward.engine_threads, launching, begin, scope.end)
    passed = messages(scope, stack, main, begin, scope.end)
    return _Builder(scope, stack, lines, main, begin, awaited, handed, passed).build()


def _main(stack: HostStack, mains: dict[int, int], lines: Lines) -> int:
    """The thread that runs the steps, or else most of the launches; −1 if there is none."""
    if mains:
        return next(iter(mains.values()))
    called = stack.thread[lines.launch[lines.launch >= 0]]
    return int(np.bincount(called).argmax()) if called.size else -1


def _begin(scope: Scope, lines: Lines) -> int:
    """When the graph begins: with the first step on the host; without steps with what was launched first."""
    if scope.window == "steps":
        return min(scope.start, int(scope.steps["start"][0]))
    called = lines.called[lines.called > NEVER]
    return min(scope.start, int(called.min())) if called.size else scope.start


_ARRIVES, _STANDS, _LEAVES = 0, 1, 2
"""The order of instants of a thread at one time: ends of waits, all others, begins of waits."""


@dataclass(slots=True, eq=False)
class _Instants:
    """Instants of threads in the order in which they are added; `settle` gives them their places."""

    thread: list[Int64Array] = field(default_factory=list)
    time: list[Int64Array] = field(default_factory=list)
    order: list[Int64Array] = field(default_factory=list)

    def add(self, thread: Int64Array, time: Int64Array, order: int) -> None:
        self.thread.append(thread)
        self.time.append(time)
        self.order.append(np.full(time.size, order, dtype=np.int64))

    def settle(self) -> tuple[Int64Array, Int64Array, list[Int64Array]]:
        """Threads and times in order, and the vertex of each instant, by the calls of `add`; the first vertex has number 1."""
        thread, time = np.concatenate(self.thread), np.concatenate(self.time)
        by = np.lexsort((np.concatenate(self.order), time, thread))
        vertex = np.empty(by.size, dtype=np.int64)
        vertex[by] = np.arange(1, by.size + 1)
        return thread[by], time[by], np.split(vertex, np.cumsum([part.size for part in self.time])[:-1])


@dataclass(eq=False)
class _Builder:
    """The vertices and edges of one scope."""

    scope: Scope
    stack: HostStack
    lines: Lines
    main: int
    begin: int
    awaited: Waits
    handed: Handovers
    passed: Messages
    _links: list[tuple[Int64Array, Int64Array, int, bool]] = field(default_factory=list)

    def build(self) -> Dependencies:
        lines = self.lines
        thread, time = self._threads()
        streams = 1 + time.size + np.arange(lines.start.size)
        end = 1 + time.size + lines.start.size
        self._of_streams(streams, end)
        lane = np.concatenate(
            [[-2], thread, lines.line + (thread.max(initial=0) + 1), [np.iinfo(np.int64).max]]
        )
        times = np.concatenate([[self.begin], time, lines.start, [self.scope.end]])
        firsts = 1 + np.flatnonzero(lane[1:] != lane[:-1])
        self._link(np.zeros(firsts.size, dtype=np.int64), firsts, "begin")
        return self._weighed(times, lane, thread)

    def _link(self, source: Int64Array, target: Int64Array, kind: str, *, after: bool = False) -> None:
        self._links.append((source, target, _KIND[kind], after))

    # -- vertices and links --------------------------------------------------------------------------

    def _threads(self) -> tuple[Int64Array, Int64Array]:
        """The threads and times of their vertices, in order. Also links threads to each other, and notes what is where."""
        stack, lines, awaited, handed = self.stack, self.lines, self.awaited, self.handed
        made = _Instants()
        calls, self.call = distinct_rows(lines.launch[lines.launch >= 0], stack.size)
        made.add(stack.thread[calls], stack.start[calls], _STANDS)
        used = np.unique(awaited.wait)
        place = np.full(awaited.thread.size, -1, dtype=np.int64)
        place[used] = np.arange(used.size)
        made.add(awaited.thread[used], awaited.start[used], _LEAVES)
        made.add(awaited.thread[used], awaited.end[used], _ARRIVES)
        main = np.full(handed.start.size, self.main)
        made.add(main, handed.start, _LEAVES)
        made.add(main, handed.end, _ARRIVES)
        made.add(np.full(handed.called.size, self.main), handed.called, _STANDS)
        made.add(handed.thread, handed.begin, _ARRIVES)
        made.add(handed.thread, handed.done, _LEAVES)
        steps, marks = self._marks()
        made.add(np.full(steps.size, self.main), steps, _STANDS)
        made.add(marks[0], marks[1], _STANDS)
        passed = self.passed
        made.add(np.full(passed.begin.size, self.main), passed.begin, _LEAVES)
        came = passed.end[passed.received]
        made.add(np.full(came.size, self.main), came, _ARRIVES)
        thread, time, vertices = made.settle()
        self.calls, _, self.returned, _, resumed, called, self.began, done, self.steps, ends, self.sent, _ = (
            vertices
        )
        self.waiting = place[awaited.wait]
        guessed = (handed.stretch < 0) & (not self.scope.on_cpu)
        self._link(called[~guessed], self.began[~guessed], "thread")
        self._link(called[guessed], self.began[guessed], "inferred_thread")
        for kind, which in (("thread", handed.sure), ("inferred_thread", ~handed.sure)):
            met = which & (handed.stretch >= 0)
            self._link(done[met], resumed[handed.stretch[met]], kind)
        self.ends = np.append(
            self.steps[-1:], ends
        )  # without a device, other threads may work after the last step
        self.served = np.concatenate([resumed, self.began])
        self.waits_end = np.concatenate([self.returned, self.served])
        return thread, time

    def _marks(self) -> tuple[Int64Array, tuple[Int64Array, Int64Array]]:
        """The edges of the steps on the main thread. And where no device was captured, the end of each thread with operators."""
        scope = self.scope
        steps = np.zeros(0, dtype=np.int64)
        if scope.window == "steps" and self.main >= 0:
            edges = [*scope.steps["start"].to_list(), *sorted(scope.steps["end"].to_list())[-1:]]
            steps = np.minimum(np.array(edges, dtype=np.int64), scope.end)
        if not scope.on_cpu:
            return steps, (steps[:0], steps[:0])
        work = scope.activities.select(
            pl.col("end").max().over("launch_id").alias("done"), "launch_id"
        ).unique("launch_id")
        thread = self.stack.thread[work["launch_id"].to_numpy()]
        codes = np.unique(thread)
        done = np.full(int(codes.max(initial=0)) + 1, NEVER, dtype=np.int64)
        np.maximum.at(done, thread, work["done"].to_numpy())
        return steps, (codes, np.minimum(done[codes], scope.end))

    def _of_streams(self, streams: Int64Array, end: int) -> None:
        """Links from calls to activities, between streams, from activities to calls, and to the end."""
        lines = self.lines
        launched = np.flatnonzero(lines.launch >= 0)
        self._link(self.calls[self.call], streams[launched], "launch")
        self.between = met = between_streams(self.scope, self.stack, lines)
        for kind, which in (("event", met.sure), ("inferred_wait", ~met.sure)):
            self._link(streams[met.source[which]], streams[met.target[which]], kind, after=True)
        sure, awaited = self.awaited.recorded, self.awaited
        for kind, which in (("synchronisation", sure), ("inferred_synchronisation", ~sure)):
            self._link(streams[awaited.source[which]], self.returned[self.waiting[which]], kind, after=True)
        # An activity that overlaps others may end last without being the last to start.
        bounds = pairwise(lines.first.tolist())
        last = streams[
            np.array([low + int(lines.end[low:high].argmax()) for low, high in bounds], dtype=np.int64)
        ]
        self._link(last, np.full(last.size, end), "end", after=True)
        self._link(self.ends, np.full(self.ends.size, end), "end")

    # -- lengths -------------------------------------------------------------------------------------

    def _weighed(self, time: Int64Array, lane: Int64Array, thread: Int64Array) -> Dependencies:
        """The graph, its edges as long as they were, or at least are."""
        lines = self.lines
        streams = slice(1 + thread.size, -1)
        duration, activity, threads = np.zeros_like(time), np.full_like(time, -1), np.full_like(time, -1)
        duration[streams], activity[streams] = lines.end - lines.start, np.arange(lines.start.size)
        threads[1 : 1 + thread.size] = thread
        source, target = (np.concatenate([row[side] for row in self._links]) for side in (0, 1))
        kind, after = (
            np.repeat([row[side] for row in self._links], [row[0].size for row in self._links])
            for side in (2, 3)
        )
        left = time[source] + np.where(after, duration[source], 0)
        late = np.isin(kind, [_KIND["synchronisation"], _KIND["inferred_synchronisation"]])
        possible = left <= time[target] + np.where(late, CLOCKS_NS, 0)
        possible |= (
            kind == _KIND["begin"]
        )  # a damaged time may lie before it, and every lane begins somewhere
        none = np.zeros(source.size, dtype=np.int64)
        links = Links(source, target, kind, none, after).keep(possible)
        pieces, links = in_order(_in_time(time, lane, links), lane, links)
        begun = self.scope.start if self.scope.start > self.begin else None
        vertices = Vertices(time, lane, duration, activity >= 0, self.waits_end, self.served, begun)
        work, lag, link_lag, usual = lengths(vertices, links)
        graph = Graph(time, lane, work, lag, duration, replace(links, lag=link_lag), pieces)
        lost = source.size - links.source.size
        return Dependencies(
            self.scope, self.stack, lines, graph, activity, threads, self.steps, self.begin, lost, usual, self.between, self.began, self.sent, self.passed
        )  # fmt: skip


def _in_time(time: Int64Array, lane: Int64Array, links: Links) -> Int64Array:
    """The times, those of sources that seem to start after their targets, since clocks differ, set right with all before on their lanes."""
    early = np.flatnonzero(links.after & (time[links.source] >= time[links.target]))
    if not early.size:
        return time
    times = time.copy()
    np.minimum.at(times, links.source[early], time[links.target[early]] - 1)
    for code in np.unique(lane[links.source[early]]).tolist():
        mine = np.flatnonzero(lane == code)
        times[mine] = np.minimum.accumulate(times[mine][::-1])[::-1]
    return times
