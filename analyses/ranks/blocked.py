"""How long late ranks keep a rank from computing.

A rank that comes to a collective before the others may go on computing, and its later calls stand behind this one in their stream. So what it lacks
shows when it has nothing left to compute, maybe in a later call. Each call of a stream is therefore followed twice: as it was, and as if every call had begun when the
rank came to it and the stream was free, and had taken what it takes once all ranks are there. By how much later it ends than that, as far as the rank computes nothing
meanwhile, late ranks kept it from computing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np
import polars as pl

from tracekit.facts.units import NS_PER_US
from tracekit.groups import groups, or_none
from tracekit.spans import Int64Array

__all__ = ["blocked_by_others"]

_SOON_NS: Final = 5 * NS_PER_US
"""What stands behind another call in a stream begins so soon after it."""
_NEVER: Final = -(1 << 62)


def blocked_by_others(calls: pl.DataFrame) -> tuple[Int64Array, Int64Array]:
    """Of each call how long its wait kept the rank from computing, no time twice; and the row of the call of its stream that it stood behind, −1 if
    it did not.

    `calls` have `at`, `key`, `stream_id`, `came`, `start`, `end`, `wait_ns` and `held_ns` (null where that is not known: nothing is computed then).
    """
    blocked, behind = np.zeros(calls.height, dtype=np.int64), np.full(calls.height, -1, dtype=np.int64)
    end, wait, at = (calls[name].to_numpy() for name in ("end", "wait_ns", "at"))
    start, came = calls["start"].to_numpy(), or_none(calls["came"], _NEVER)
    held = or_none(calls["held_ns"], -1)
    held = np.where(held < 0, end - start, held)
    stream = groups(at, or_none(calls["key"].rank("dense")), or_none(calls["stream_id"])).of
    columns = (at, stream, np.minimum(came, start), start, end, wait, held)
    order = np.lexsort((start, end, at))
    rank, one = -1, _Rank()
    for row, (place, line, *times) in zip(
        order.tolist(), zip(*(column[order].tolist() for column in columns), strict=True), strict=True
    ):
        if place != rank:
            rank, one = place, _Rank()
        behind[row] = one.call(row, line, *times)
        for culprit, ns in one.paid:
            blocked[culprit] += ns
    return blocked, behind


class _Stream:
    """A stream as if no rank were late: when it is free, and by which calls it is late in truth."""

    __slots__ = ("end", "free", "late", "row")

    def __init__(self) -> None:
        self.row, self.end, self.free = -1, _NEVER, 0
        self.late: list[list[int]] = []
        """Calls and by how much they made it late, the first first."""


class _Sum:
    """A time that adds up, by when its parts end."""

    __slots__ = ("_ends", "_sums")

    def __init__(self) -> None:
        self._ends, self._sums = [_NEVER], [0]

    def add(self, end: int, ns: int) -> None:
        """A part that ends no sooner than those before it."""
        if ns > 0:
            self._ends.append(end)
            self._sums.append(self._sums[-1] + ns)

    def after(self, time: int) -> int:
        """The parts that end later than this."""
        return self._sums[-1] - self._sums[bisect_right(self._ends, time) - 1]

    @property
    def total(self) -> int:
        """All of them."""
        return self._sums[-1]


class _Rank:
    """The calls of a rank, in the order of their ends. Where late ranks kept it from computing, all that it does afterwards is later by as much."""

    __slots__ = ("_blocked", "_idle", "_streams", "paid")

    def __init__(self) -> None:
        self._streams: dict[int, _Stream] = {}
        self._blocked, self._idle = _Sum(), _Sum()
        self.paid: list[tuple[int, int]] = []

    def call(self, row: int, line: int, came: int, start: int, end: int, wait: int, held: int) -> int:
        """The row of the call that this one stood behind; `paid` are the calls whose waits keep the rank from computing here, with the times."""
        stream = self._streams.setdefault(line, _Stream())
        queued = start - stream.end <= _SOON_NS
        if not queued:
            came, stream.late = start, []
        ideal = came + self._blocked.after(came)
        if queued:
            ideal = max(ideal, stream.free + self._blocked.total)
        ideal += end - start - wait
        _lengthen(stream.late, row, max(end - ideal, 0), wait)
        # Another call that ended sooner has a part of the time in which nothing is computed.
        idle = held - self._idle.after(start)
        self._idle.add(end, idle)
        stood = stream.row if queued and came < stream.end else -1
        stream.row, stream.end, stream.free = row, end, ideal - self._blocked.total
        self.paid = _pay(stream.late, min(idle, end - ideal))
        self._blocked.add(end, sum(ns for _, ns in self.paid))
        return stood


def _lengthen(late: list[list[int]], row: int, total: int, wait: int) -> None:
    """A stream is late by this time in all: by the wait of the call itself, whatever was before it, and by what calls before it made it late;
    of those the last ones have made up for what is left over.
    """
    own = min(total, wait)
    surplus = own - total + sum(ns for _, ns in late)
    while surplus > 0:
        part = min(late[-1][1], surplus)
        late[-1][1] -= part
        surplus -= part
        if not late[-1][1]:
            late.pop()
    # What no wait explains, such as the time until a stream begins with its next call, nobody made.
    if own:
        late.append([row, own])


def _pay(late: list[list[int]], total: int) -> list[tuple[int, int]]:
    """The first calls by which the stream is late, for this time in all, which they no longer are."""
    paid = []
    while total > 0 and late:
        part = min(late[0][1], total)
        paid.append((late[0][0], part))
        late[0][1] -= part
        total -= part
        if not late[0][1]:
            late.pop(0)
    return paid
