"""The activities of each stream, and what streams waited for on others.

What the trace records comes first. Where it has no events, or does not name their streams, the times tell; such links say that they are
inferred.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.graph.model import NEVER
from tracekit.analyses.idle.gaps import AT_ONCE_NS, KERNEL_GAP_NS, YOUNG_LAUNCH_NS, wait_events
from tracekit.analyses.scope import Scope
from tracekit.classes import dataclass
from tracekit.facts.launch_apis import STREAM_WAIT_CALL
from tracekit.groups import or_none
from tracekit.spans import BoolArray, Int64Array

__all__ = ["Lines", "StreamWaits", "between_streams"]

_LONGER: Final = 10
"""Of an activity that begins some µs after one of another stream, and waited this many times as long, it is no chance."""
_CALLS: Final = 8
"""So many calls before a launch may be the one that made its stream wait: libraries fork into several streams at once."""
_WHEN: Final = ("device_id", "stream_id", "start", "end", "duration", "step")
_WHAT: Final = ("activity_id", "name", "category", "class", "launch_id", "op_id")
_WHERE: Final = ("operator", "layer_id", "phase")


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """The activities of a scope by stream and start. `rows` has what they are and where they belong; of each the number of its stream
    (`line`), its start and end, its launch call (−1: none is known) and when that began (`called`; NEVER). `first` has the first row of
    each line, and the number of rows; `device` and `stream` are those of each line.
    """

    rows: pl.DataFrame
    line: Int64Array
    start: Int64Array
    end: Int64Array
    launch: Int64Array
    called: Int64Array
    first: Int64Array
    device: Int64Array
    stream: Int64Array
    issued: Int64Array
    """The latest `called` of a line up to each row: the order in which a stream takes its work."""
    free: Int64Array
    """When a line was free before each row; NEVER before its first."""

    @classmethod
    def of(cls, scope: Scope) -> Lines:
        """Those of a scope; none where no device was captured."""
        whole = scope.activities[[*_WHEN, *_WHAT]].hstack(attribution(scope).activities[list(_WHERE)])
        whole = whole.clear() if scope.on_cpu else whole
        rows = whole[
            np.lexsort([whole[name].to_numpy() for name in ("end", "start", "stream_id", "device_id")])
        ]
        device, stream = rows["device_id"].to_numpy(), or_none(rows["stream_id"])
        begins = np.append(True, (device[1:] != device[:-1]) | (stream[1:] != stream[:-1]))[: rows.height]
        first = np.flatnonzero(begins)
        launch = or_none(rows["launch_id"])
        calls = scope.trace.host["start"].to_numpy()
        called = np.where(launch >= 0, calls[launch], NEVER) if calls.size else np.full(launch.size, NEVER)
        issued = called.copy()
        bounds = np.append(first, rows.height)
        end = rows["end"].to_numpy()
        free = np.full(end.size, NEVER, dtype=np.int64)
        for low, high in pairwise(bounds.tolist()):
            issued[low:high] = np.maximum.accumulate(called[low:high])
            free[low + 1 : high] = np.maximum.accumulate(end[low:high])[:-1]
        return cls(
            rows[[name for name in rows.columns if name not in ("device_id", "stream_id")]],
            np.cumsum(begins) - 1,
            rows["start"].to_numpy(),
            end,
            launch,
            called,
            bounds,
            device[first],
            stream[first],
            issued,
            free,
        )

    def issued_before(self, line: int, times: Int64Array) -> Int64Array:
        """The last row of a line that was launched before or at each time; −1 for none."""
        low, high = int(self.first[line]), int(self.first[line + 1])
        row = low + np.searchsorted(self.issued[low:high], times, side="right") - 1
        return np.where((row >= low) & (self.issued[np.maximum(row, 0)] > NEVER), row, -1)

    def issued_after(self, line: int, times: Int64Array) -> Int64Array:
        """The first row of a line that was launched at each time or later; −1 for none."""
        low, high = int(self.first[line]), int(self.first[line + 1])
        row = low + np.searchsorted(self.issued[low:high], times, side="left")
        return np.where(row < high, row, -1)

    def lines_of(self, device: int | None, stream: int | None) -> list[int]:
        """The lines of a stream of a device; where one of them is not known, of all."""
        fits = np.ones(self.device.size, dtype=bool)
        if device is not None:
            fits &= self.device == device
        if stream is not None:
            fits &= self.stream == stream
        return np.flatnonzero(fits).tolist()


@dataclass(frozen=True, slots=True, eq=False)
class StreamWaits:
    """Pairs of rows of which `target` waits for the end of `source`, and whether the trace records each. `events`: it records waits between
    streams, or there is one stream; `nameless` counts the waits whose records do not name the other stream.
    """

    source: Int64Array
    target: Int64Array
    sure: BoolArray
    events: bool
    nameless: int


def between_streams(scope: Scope, stack: HostStack, lines: Lines) -> StreamWaits:
    """What streams waited for on others.

    Events in streams tell it. Where their records do not name the other stream, or there are none, the times tell it.
    """
    if lines.device.size < 2:
        return StreamWaits(_none(), _none(), np.zeros(0, dtype=bool), events=True, nameless=0)
    named, nameless = wait_events(scope.trace), wait_events(scope.trace, nameless=True)
    if not named.height and not nameless.height:
        source, target = _by_time(stack, lines)
        return StreamWaits(source, target, np.zeros(source.size, dtype=bool), events=False, nameless=0)
    sources, targets = [_none()], [_none()]
    for (device, stream, other), rows in named.group_by(
        "device_id", "stream_id", "wait_on_stream", maintain_order=True
    ):
        for mine in lines.lines_of(device, stream):
            for theirs in lines.lines_of(device, other):
                target = lines.issued_after(mine, rows["waited"].to_numpy())
                source = lines.issued_before(theirs, rows["recorded"].to_numpy())
                known = (target >= 0) & (source >= 0) & (mine != theirs)
                sources.append(source[known])
                targets.append(target[known])
    pairs = np.unique(np.column_stack([np.concatenate(sources), np.concatenate(targets)]), axis=0)
    waiting, asked = _waiting(lines, nameless)
    found, which = _told_by_calls(lines, waiting, asked, alone=True)
    return StreamWaits(
        np.append(pairs[:, 0], found),
        np.append(pairs[:, 1], waiting[which]),
        np.arange(len(pairs) + found.size) < len(pairs),
        events=True,
        nameless=nameless.height,
    )


def _waiting(lines: Lines, waits: pl.DataFrame) -> tuple[Int64Array, Int64Array]:
    """The first row of a stream after each of its waits, and when the last wait before it was called."""
    first, called = [_none()], [_none()]
    for (device, stream), rows in waits.group_by("device_id", "stream_id", maintain_order=True):
        for mine in lines.lines_of(device, stream):
            called.append(rows["waited"].to_numpy())
            first.append(lines.issued_after(mine, called[-1]))
    order = np.lexsort(np.stack([np.concatenate(called), np.concatenate(first)]))
    target, asked = np.concatenate(first)[order], np.concatenate(called)[order]
    last = np.append(target[1:] != target[:-1], True)[: target.size] & (target >= 0)
    return target[last], asked[last]


def _by_time(stack: HostStack, lines: Lines) -> tuple[Int64Array, Int64Array]:
    """By time: an activity that was launched in time and on a free stream waited for what had been launched on another stream when the host
    called a wait before it; else for that of another stream at whose end it started.
    """
    free = lines.free
    queued = (lines.called > NEVER) & (lines.start - lines.called > YOUNG_LAUNCH_NS)
    target = np.flatnonzero(queued & (lines.start - free > KERNEL_GAP_NS))
    found, waiting, left = _none(), _none(), np.ones(target.size, dtype=bool)
    for asked in _asked(stack, lines, target):
        called = np.flatnonzero((asked > NEVER) & left)
        source, which = _told_by_calls(lines, target[called], asked[called], alone=False)
        found, waiting = np.append(found, source), np.append(waiting, target[called[which]])
        left[called[which]] = False
    target = target[left]
    latest, best = np.full(target.size, NEVER, dtype=np.int64), np.full(target.size, -1, dtype=np.int64)
    for line in range(lines.device.size):
        low, high = int(lines.first[line]), int(lines.first[line + 1])
        order = low + np.argsort(lines.end[low:high], kind="stable")
        at = np.searchsorted(lines.end[order], lines.start[target], side="right") - 1
        source = order[np.maximum(at, 0)]
        done = np.where((at >= 0) & (lines.line[target] != line), lines.end[source], NEVER)
        done = np.where(lines.device[lines.line[target]] == lines.device[line], done, NEVER)
        delay = lines.start[target] - done
        near = (delay <= AT_ONCE_NS) | ((delay <= YOUNG_LAUNCH_NS) & (done - free[target] > _LONGER * delay))
        better = near & (done > latest)
        latest[better], best[better] = done[better], source[better]
    return np.append(found, best[best >= 0]), np.append(waiting, target[best >= 0])


def _asked(stack: HostStack, lines: Lines, target: Int64Array) -> Iterator[Int64Array]:
    """When the thread that launched each of these rows last made a stream wait, then the time before that, …; NEVER before the launch before
    it into the stream. Which stream a call made wait is not known: it may be that of another.
    """
    calls = np.flatnonzero(stack.named(STREAM_WAIT_CALL, "runtime"))
    order = np.lexsort((stack.start[calls], stack.thread[calls]))
    times, threads = stack.start[calls[order]], stack.thread[calls[order]]
    before = np.where(lines.line[target - 1] == lines.line[target], lines.issued[target - 1], NEVER)
    last, first = np.zeros(target.size, dtype=np.int64), np.zeros(target.size, dtype=np.int64)
    for code in np.unique(threads).tolist():
        low, high = np.searchsorted(threads, [code, code + 1])
        mine = stack.thread[lines.launch[target]] == code
        last[mine] = low + np.searchsorted(times[low:high], lines.called[target[mine]], side="right")
        first[mine] = low + np.searchsorted(times[low:high], before[mine], side="right")
    for back in range(1, _CALLS + 1):
        at = last - back
        if not (at >= first).any():
            return
        yield np.where(at >= first, times[np.maximum(at, 0)], NEVER)


def _told_by_calls(
    lines: Lines, target: Int64Array, asked: Int64Array, *, alone: bool
) -> tuple[Int64Array, Int64Array]:
    """What was last launched on another stream when a wait was called (`asked`), and the numbers of the first activities after waits that
    waited for it: of several what ended last, if the activity began soon after it. With `alone`, the wait is known to be that of this stream: then what one other
    stream did needs no times.
    """
    latest, best = np.full(target.size, NEVER, dtype=np.int64), np.full(target.size, -1, dtype=np.int64)
    streams = np.zeros(target.size, dtype=np.int64)
    for line in range(lines.device.size):
        source = lines.issued_before(line, asked)
        fits = (source >= 0) & (lines.line[target] != line) & (lines.end[source] <= lines.start[target])
        streams += fits
        better = fits & (lines.end[source] > latest)
        latest[better], best[better] = lines.end[source[better]], source[better]
    delay = lines.start[target] - latest
    waited = latest - np.maximum(lines.free[target], lines.called[target])
    near = (latest > lines.free[target]) & ((delay <= YOUNG_LAUNCH_NS) | (waited > _LONGER * delay))
    near = (near | (alone & (streams == 1))) & (best >= 0)
    return best[near], np.flatnonzero(near)


def _none() -> Int64Array:
    return np.zeros(0, dtype=np.int64)
