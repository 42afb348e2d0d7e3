"""What waited for what: calls for the device, threads for other threads.

What the trace records comes first. Where it has no streams and events of waits, the times tell; such links say that they are inferred.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.calls import ON_PROCESSORS, calls_of
from tracekit.analyses.graph.model import NEVER
from tracekit.analyses.graph.streams import Lines
from tracekit.analyses.idle.span_causes import awaited_copies
from tracekit.analyses.scope import Scope
from tracekit.classes import dataclass
from tracekit.facts.units import NS_PER_US
from tracekit.spans import BoolArray, Int64Array

__all__ = ["CLOCKS_NS", "Handovers", "Messages", "Waits", "handovers", "messages", "waits"]

CLOCKS_NS: Final = 20 * NS_PER_US
"""The clocks of host and device differ by less: a call may seem to return so long before the end of what it waited for."""
_RESUMES: Final = 4
"""Of a thread that goes on some µs after a collective, and waited this many times as long, it is no chance."""
_WAKES_NS: Final = 100 * NS_PER_US
"""It takes a thread less to go on."""
_READS_NS: Final = 1_000 * NS_PER_US
"""After a message a program may do more in Python before its next operator."""
_HELPER: Final = 0.1
"""A thread that is in calls for a smaller part of the time is no thread of work of its own."""
_ALL_STREAMS: Final = r"(Device|Ctx|Thread)Synchronize|urQueueFinish|zeCommandQueueSynchronize"
"""Calls that wait for everything on a device."""
_EVENT, _STREAM, _CONTEXT = "Event Sync", "Stream Sync", "Context Sync"


# -- calls that wait for the device -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    """Stretches in which threads waited for activities: thread (a code of the host stack), start and end in ns, and for each pair of a
    wait and what it waited for their rows, and whether the trace records that.
    """

    thread: Int64Array
    start: Int64Array
    end: Int64Array
    wait: Int64Array
    source: Int64Array
    recorded: BoolArray


def waits(scope: Scope, stack: HostStack, lines: Lines, low: int, high: int) -> Waits:
    """The calls between two times that waited for activities: synchronisations, and copies that return when they are done."""
    copies, _ = awaited_copies(scope.trace, stack)
    is_copy = np.zeros(stack.size, dtype=bool)
    is_copy[copies] = True
    spans = is_copy | stack.awaits_device()
    spans &= (stack.start >= low) & (stack.end <= high)
    rows = np.flatnonzero(spans)
    outermost = stack.nesting.nearest_ancestor(spans, include_self=False)[rows] < 0
    rows = rows[outermost & ~_overlaps(stack, rows)]
    own = np.flatnonzero(np.isin(lines.launch, rows) & (lines.launch >= 0))
    place = np.full(stack.size, -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    found = [(place[lines.launch[own]], own, np.ones(own.size, dtype=bool))]
    recorded = _recorded(scope, stack, lines, rows)
    found.append(recorded)
    known = np.zeros(rows.size, dtype=bool)
    known[found[0][0]] = True
    known[recorded[0]] = True
    found.append(_inferred(stack, lines, rows, np.flatnonzero(~known)))
    wait, source, sure = (np.concatenate(column) for column in zip(*found, strict=True))
    return Waits(stack.thread[rows], stack.start[rows], stack.end[rows], wait, source, sure)


def _overlaps(stack: HostStack, rows: Int64Array) -> BoolArray:
    """Which of these spans begin before one before them on their thread has ended."""
    mask = np.zeros(rows.size, dtype=bool)
    for code in np.unique(stack.thread[rows]).tolist():
        mine = np.flatnonzero(stack.thread[rows] == code)
        ended = np.maximum.accumulate(stack.end[rows[mine]])
        mask[mine[1:]] = stack.start[rows[mine[1:]]] < ended[:-1]
    return mask


def _recorded(
    scope: Scope, stack: HostStack, lines: Lines, rows: Int64Array
) -> tuple[Int64Array, Int64Array, BoolArray]:
    """By the records of what calls waited for: waits (numbers among `rows`) and rows of lines."""
    syncs = scope.trace.syncs
    if syncs is None or not rows.size:
        return _none(), _none(), np.zeros(0, dtype=bool)
    calls = stack.frame[["span_id", "correlation", "start"]].filter(pl.col("correlation").is_not_null())
    waiting = pl.DataFrame({"span_id": rows, "wait": np.arange(rows.size)}).join(calls, on="span_id")
    recorders = calls.select(
        pl.col("correlation").alias("wait_on_correlation"), pl.col("start").alias("recorded")
    )
    found = (
        syncs[["name", "device_id", "stream_id", "correlation", "wait_on_stream", "wait_on_correlation"]]
        .with_columns(pl.col("name").cast(pl.String))
        .join(waiting, on="correlation")
        .join(recorders.unique("wait_on_correlation", keep="last"), on="wait_on_correlation", how="left")
    )
    by_event = (
        (pl.col("name") == _EVENT) & pl.col("wait_on_stream").is_not_null() & pl.col("recorded").is_not_null()
    )
    by_stream = (pl.col("name") == _STREAM) & pl.col("stream_id").is_not_null()
    found = found.filter(by_event | by_stream | (pl.col("name") == _CONTEXT)).with_columns(
        pl.when(by_event).then("wait_on_stream").when(by_stream).then("stream_id").alias("of"),
        pl.when(by_event).then("recorded").otherwise("start").alias("until"),
    )
    wait, source = [_none()], [_none()]
    for (device, stream), mine in found.group_by("device_id", "of", maintain_order=True):
        for line in lines.lines_of(device, stream):
            row = lines.issued_before(line, mine["until"].to_numpy())
            wait.append(mine["wait"].to_numpy()[row >= 0])
            source.append(row[row >= 0])
    waits_, sources = np.concatenate(wait), np.concatenate(source)
    return waits_, sources, np.ones(waits_.size, dtype=bool)


def _inferred(
    stack: HostStack, lines: Lines, rows: Int64Array, which: Int64Array
) -> tuple[Int64Array, Int64Array, BoolArray]:
    """By time: calls for the whole device waited for all streams, others for what ended last before they returned."""
    spans = rows[which]
    all_streams = stack.named(_ALL_STREAMS)[spans]
    latest, best = np.full(which.size, NEVER, dtype=np.int64), np.full(which.size, -1, dtype=np.int64)
    wait, source = [_none()], [_none()]
    for line in range(lines.device.size):
        row = lines.issued_before(line, stack.start[spans])
        done = np.where(row >= 0, lines.end[row], NEVER)
        fits = (row >= 0) & (done <= stack.end[spans] + CLOCKS_NS)
        every = fits & all_streams
        wait.append(which[every])
        source.append(row[every])
        better = fits & ~all_streams & (done > latest)
        latest[better], best[better] = done[better], row[better]
    sure = np.ones(sum(part.size for part in wait), dtype=bool)
    one = best >= 0
    return (
        np.concatenate([*wait, which[one]]),
        np.concatenate([*source, best[one]]),
        np.append(sure, np.full(int(one.sum()), lines.device.size == 1)),
    )


# -- threads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Handovers:
    """Work that the main thread gave to other threads: of each piece the thread (a code), when it was given (`called`), when it began
    and was done, the number of the stretch in which the main thread waited for it (−1: in none), and whether the trace says that it
    did. `start` and `end` are those of the stretches.
    """

    thread: Int64Array
    called: Int64Array
    begin: Int64Array
    done: Int64Array
    stretch: Int64Array
    sure: BoolArray
    start: Int64Array
    end: Int64Array

    def and_(self, other: Handovers) -> Handovers:
        """Both, those of the other last."""
        later = np.where(other.stretch >= 0, other.stretch + self.start.size, -1)
        names = ("thread", "called", "begin", "done", "stretch", "sure", "start", "end")
        return Handovers(
            *(
                np.concatenate([getattr(self, name), later if name == "stretch" else getattr(other, name)])
                for name in names
            )
        )


def handovers(
    scope: Scope, stack: HostStack, main: int, engine: Int64Array, launching: Int64Array, low: int, high: int
) -> Handovers:
    """What the threads of the autograd engine, of a backend for processors, and those that launch some work did for the main thread between
    two times.
    """
    bounds, begins = _bounds(stack, main, low, high)
    made = _engine(stack, main, engine, bounds)
    if scope.on_cpu:
        return made.and_(_backend(scope, stack, main, bounds, begins))
    helpers = np.setdiff1d(launching, np.append(made.thread, main))
    return made.and_(_helpers(stack, helpers, bounds))


def _bounds(stack: HostStack, main: int, low: int, high: int) -> tuple[Int64Array, BoolArray]:
    """When operators and calls of the main thread begin and end between two times, in order, and which of these are begins."""
    touching = (stack.end > low) & (stack.start < high) & (stack.thread == main)
    of_main = np.flatnonzero(touching & stack.of_kind("op", "runtime", "sync"))
    bounds = np.concatenate([[low, high], stack.start[of_main], stack.end[of_main]])
    begins = np.arange(bounds.size) - 2 < of_main.size
    order = np.argsort(bounds, kind="stable")
    return bounds[order], begins[order]


def _resumes(
    bounds: Int64Array, begins: BoolArray, done: Int64Array, within: int
) -> tuple[Int64Array, BoolArray, BoolArray]:
    """The next bound after each of these times; whether the main thread goes on there within so many ns, between two operators; and whether it
    waited that long before that it is no chance.
    """
    after = np.minimum(np.searchsorted(bounds, done, side="left"), bounds.size - 1)
    before = np.maximum(after - 1, 0)
    soon = (bounds[after] - done <= within) & begins[after] & ~begins[before]
    return after, soon, done - bounds[before] > _RESUMES * (bounds[after] - done)


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Messages of the main thread that a backend for processors carries: the range of each, the `start` and `end` of its call, and `begin`, when the
    thread sends it, or begins to wait for it. A receive that the thread does not wait for is none.
    """

    span: Int64Array
    start: Int64Array
    end: Int64Array
    begin: Int64Array
    received: BoolArray


def messages(scope: Scope, stack: HostStack, main: int, low: int, high: int) -> Messages:
    """The messages of the main thread between two times; that it waited for one is found by time, as for collectives."""
    rows = np.flatnonzero(stack.named(_OF_MESSAGES, "annotation", "op") & (stack.thread == main))
    calls = calls_of(scope).table.select("name", "start", "end").unique(["name", "end"], keep="none")
    named = stack.frame["name"].gather(rows).cast(pl.String).str.strip_prefix("gloo:")
    found = pl.DataFrame({"name": named, "end": stack.end[rows], "row": rows}).join(
        calls.filter((pl.col("start") >= low) & (pl.col("end") <= high)),
        on=["name", "end"],
        maintain_order="left",
    )
    span, start, end = (found[name].to_numpy() for name in ("row", "start", "end"))
    received = (found["name"] == "recv").to_numpy()
    bounds, begins = _bounds(stack, main, low, high)
    after, soon, long = _resumes(bounds, begins, end, _READS_NS)
    # Only the operator that queued it ends while it runs: the thread did nothing else, whatever it does then.
    alone = after - np.searchsorted(bounds, start, side="right") == 1
    begin = np.where(received, np.maximum(start, bounds[np.maximum(after - 1, 0)]), start)
    kept = ~received | alone | (soon & long)
    return Messages(span[kept], start[kept], end[kept], begin[kept], received[kept])


_OF_MESSAGES: Final = r"^gloo:(send|recv)$"


def _engine(stack: HostStack, main: int, engine: Int64Array, bounds: Int64Array) -> Handovers:
    """The main thread lets the engine work between two calls or operators of its own."""
    roots = np.flatnonzero(
        (stack.nesting.parent < 0)
        & np.isin(stack.thread, engine[engine != main])
        & (stack.start >= bounds[0])
        & (stack.end <= bounds[-1])
        & (stack.end > stack.start)
    )
    quiet = np.searchsorted(bounds, stack.start[roots], side="right")
    inside = quiet == np.searchsorted(bounds, stack.end[roots], side="left")
    roots, quiet = roots[inside], quiet[inside]
    work = pl.DataFrame(
        {"quiet": quiet, "thread": stack.thread[roots], "start": stack.start[roots], "end": stack.end[roots]}
    )
    parts = (
        work.group_by("quiet", "thread")
        .agg(pl.col("start").min().alias("begin"), pl.col("end").max().alias("done"))
        .sort("quiet", "thread")
    )
    stretches = parts.group_by("quiet", maintain_order=True).agg(pl.col("begin").min(), pl.col("done").max())
    number = np.searchsorted(stretches["quiet"].to_numpy(), parts["quiet"].to_numpy())
    start = stretches["begin"].to_numpy()
    thread, begin, done = (parts[name].to_numpy() for name in ("thread", "begin", "done"))
    sure = np.ones(number.size, dtype=bool)
    return Handovers(thread, start[number], begin, done, number, sure, start, stretches["done"].to_numpy())


def _backend(scope: Scope, stack: HostStack, main: int, bounds: Int64Array, begins: BoolArray) -> Handovers:
    """An operator of the main thread queues each collective. That the thread waited for it is found by time: between two operators, of
    which the second begins right after the collective has ended.
    """
    calls = calls_of(scope)
    queued = pl.DataFrame(
        {"start": calls.table["start"], "end": calls.table["end"], "span": calls.launch_span}
    )
    spans = stack.named(ON_PROCESSORS, "annotation", "op") & (stack.thread != main)
    rows = np.flatnonzero(spans & (stack.start >= bounds[0]) & (stack.end <= bounds[-1]))
    rows = rows[
        (stack.nesting.nearest_ancestor(spans, include_self=False)[rows] < 0) & ~_overlaps(stack, rows)
    ]
    found = pl.DataFrame({"start": stack.start[rows], "end": stack.end[rows], "row": rows}).join(
        queued.filter(pl.col("span") >= 0).unique(["start", "end"]),
        on=["start", "end"],
        maintain_order="left",
    )
    rows, op = found["row"].to_numpy(), found["span"].to_numpy()
    mine = stack.thread[op] == main
    rows, op = rows[mine & (stack.start[op] >= bounds[0])], op[mine & (stack.start[op] >= bounds[0])]
    done = stack.end[rows]
    after, soon, long = _resumes(bounds, begins, done, _WAKES_NS)
    waited = soon & long
    quiet, number = np.unique(after[waited], return_inverse=True)
    stretch = np.full(rows.size, -1, dtype=np.int64)
    stretch[waited] = number
    end = np.full(quiet.size, NEVER, dtype=np.int64)
    np.maximum.at(end, number, done[waited])
    sure = np.zeros(rows.size, dtype=bool)
    return Handovers(
        stack.thread[rows], stack.start[op], stack.start[rows], done, stretch, sure, bounds[quiet - 1], end
    )


def _helpers(stack: HostStack, threads: Int64Array, bounds: Int64Array) -> Handovers:
    """What those threads do that are in calls for a small part of the time: while the main thread works, they wait, by all appearances for
    it.
    """
    roots = np.flatnonzero(
        (stack.nesting.parent < 0)
        & np.isin(stack.thread, threads)
        & (stack.start >= bounds[0])
        & (stack.end <= bounds[-1])
    )
    busy = np.bincount(stack.thread[roots], (stack.end - stack.start)[roots], minlength=1)
    roots = roots[busy[stack.thread[roots]] < _HELPER * (bounds[-1] - bounds[0])]
    roots = roots[np.lexsort((stack.start[roots], stack.thread[roots]))]
    # A call of the main thread gives the work away as it begins. If that does nothing between two calls, the time is the thread's own.
    at = np.searchsorted(bounds, stack.start[roots], side="right") - 1
    other = (stack.thread[roots[1:]] != stack.thread[roots[:-1]]) | (at[1:] != at[:-1])
    first = np.append(True, other)[: roots.size]
    roots, at = roots[first], at[first]
    begin, nobody = stack.start[roots], np.full(roots.size, -1, dtype=np.int64)
    empty = _none()
    sure = np.zeros(roots.size, dtype=bool)
    return Handovers(stack.thread[roots], bounds[at], begin, stack.end[roots], nobody, sure, empty, empty)


def _none() -> Int64Array:
    return np.zeros(0, dtype=np.int64)
