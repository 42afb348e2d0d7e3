"""Which calls hold most of some times: the innermost frames of Python code and API calls around host spans."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.facts.idle_names import FORWARDING_FRAME, PYTHON_FILE
from tracekit.spans import BoolArray, Int64Array, take
from tracekit.trees import has_same_above

__all__ = ["Calls"]

_PATIENCE: Final = 64
"""Levels of nesting that are walked at once; the few spans of real programs that lie deeper come one by one."""
_MOSTLY: Final = 0.5
_PART: Final = 0.15
"""Where no call holds more than half, those from this part on are named."""
_NEARLY_ALL: Final = 0.9
_EVERYTHING: Final = 0.95
"""A call that is open for longer than this part of the window says nothing about one part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Functions:
    """Some functions, by number: their outermost calls `rows`, the time that each holds, the `number` of its function, and how deep the
    calls of each function lie on average.
    """

    rows: Int64Array
    held: Int64Array
    number: Int64Array
    depth: npt.NDArray[np.float64]

    def text(self, stack: HostStack, number: int) -> str:
        """The name of the function's call that holds most."""
        mine = self.number == number
        return str(stack.frame["name"][int(self.rows[mine][self.held[mine].argmax()])])

    def mask(self, number: int, size: int) -> BoolArray:
        """Which host spans are outermost calls of the function."""
        mask = np.zeros(size, dtype=bool)
        mask[self.rows[self.number == number]] = True
        return mask


@dataclass(frozen=True, slots=True, eq=False)
class _Open:
    """The calls that are open at some times of `total` ns: their `rows`, the time in each, and the number of its function."""

    rows: Int64Array
    held: Int64Array
    function: npt.NDArray[np.uint32]
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Frames of Python code and API calls around host spans, by the stack of a trace."""

    stack: HostStack
    named: BoolArray
    """Which spans are API calls, or frames that do more than lead to others."""
    function: npt.NDArray[np.uint32]
    """The number of each span's function."""
    window: int
    """Its length in ns."""

    @classmethod
    def of(cls, stack: HostStack, window: int) -> Calls:
        """The calls of a stack in a window of this length (ns)."""
        frames = stack.named(PYTHON_FILE, "python") & ~stack.named(FORWARDING_FRAME, "python")
        names = stack.frame["name"]
        distinct = names.unique().drop_nulls()
        codes = distinct.to_physical().to_numpy()
        numbers = np.zeros(int(codes.max(initial=0)) + 1, dtype=np.uint32)
        numbers[codes] = distinct.cast(pl.String).str.replace(r"\(\d+\): ", ": ").rank("dense").to_numpy()
        function = numbers[names.to_physical().fill_null(0).to_numpy()]
        return cls(stack, frames | stack.of_kind("runtime"), function, window)

    def innermost(self, spans: Int64Array, ns: Int64Array) -> str | None:
        """The innermost frame or API call that holds more than half of these times.

        `spans` are the innermost host spans at these times, of `ns` each (−1 for none). All calls of one function are one;
        a generator has a line for each place where it goes on. A call that is open for nearly the whole window is not named.
        None if there is no such call.
        """
        return self._innermost(self._open_at(spans, ns))

    def most(self, spans: Int64Array, ns: Int64Array) -> tuple[str | None, list[tuple[str, int]]]:
        """What `innermost` gives; if that is None, few calls, none inside another, that together hold more than half of these times:
        each with its time in ns, largest first.

        Each holds a large part itself. It is the innermost one that holds nearly all of what the calls around it hold. Empty
        if there are no such calls.
        """
        opened = self._open_at(spans, ns)
        one = self._innermost(opened)
        return one, [] if one is not None else self._several(spans, ns, opened)

    def _innermost(self, opened: _Open) -> str | None:
        likely = self._likely(opened, _MOSTLY)
        return None if likely is None else likely.text(self.stack, int(np.argmax(likely.depth)))

    def _several(self, spans: Int64Array, ns: Int64Array, opened: _Open) -> list[tuple[str, int]]:
        total = opened.total
        likely = self._likely(opened, _PART)
        if likely is None:
            return []
        taken = np.zeros(self.stack.size, dtype=bool)
        parts: list[tuple[str, int]] = []
        for each in np.argsort(likely.depth, kind="stable").tolist():
            mine = likely.mask(each, self.stack.size)
            around = self.stack.nesting.nearest_ancestor(taken)
            if (around[mine] >= 0).all():
                continue
            within = self.stack.nesting.nearest_ancestor(mine)
            if (within[taken] >= 0).any():
                continue
            inside = (take(around, spans) < 0) & (take(within, spans) >= 0)
            held = int(ns[inside].sum())
            if held <= _PART * total:
                continue
            taken |= mine
            chain = self._likely(self._open_at(spans[inside], ns[inside]), _NEARLY_ALL)
            best, number = (likely, each) if chain is None else (chain, int(np.argmax(chain.depth)))
            parts.append((best.text(self.stack, number), int(best.held[best.number == number].sum())))
        parts.sort(key=lambda part: -part[1])
        return parts if sum(held for _, held in parts) > _MOSTLY * total else []

    def _open_at(self, spans: Int64Array, ns: Int64Array) -> _Open:
        rows, inclusive = self._inclusive(spans, ns)
        wanted = self.named[rows]
        rows, inclusive = rows[wanted], inclusive[wanted]
        return _Open(rows, inclusive, self.function[rows], int(ns.sum()))

    def _likely(self, opened: _Open, part: float) -> _Functions | None:
        """The functions whose calls hold more than this part of the times and are not open for nearly the whole window; None without any."""
        least = part * opened.total
        rows, inclusive = opened.rows, opened.held
        names, back = np.unique(opened.function, return_inverse=True)
        likely = (np.bincount(back, weights=inclusive, minlength=names.size) > least)[back]
        rows, inclusive, back = rows[likely], inclusive[likely], back[likely]
        outer = self._outermost(rows, back)
        rows, inclusive, back = rows[outer], inclusive[outer], back[outer]
        held = np.bincount(back, weights=inclusive, minlength=names.size)
        length = np.bincount(back, weights=(self.stack.end - self.stack.start)[rows], minlength=names.size)
        levels = self.stack.frame["depth"][rows].to_numpy()
        depth = np.bincount(back, weights=levels * inclusive, minlength=names.size)
        named = np.flatnonzero((held > least) & (length < _EVERYTHING * self.window))
        if not named.size:
            return None
        number = np.full(names.size, -1, dtype=np.int64)
        number[named] = np.arange(named.size)
        kept = number[back] >= 0
        return _Functions(rows[kept], inclusive[kept], number[back][kept], depth[named] / held[named])

    def _outermost(self, rows: Int64Array, name: Int64Array) -> BoolArray:
        """Which of these spans lie in no other of them with the same name."""
        codes = np.full(self.stack.size, -1, dtype=np.int64)
        codes[rows] = name
        inside = np.zeros(rows.size, dtype=bool)
        above = self.stack.nesting.parent[rows]
        for _ in range(_PATIENCE):
            if not (above >= 0).any():
                return ~inside
            inside |= (above >= 0) & (codes[np.maximum(above, 0)] == name)
            above = np.where(above >= 0, self.stack.nesting.parent[np.maximum(above, 0)], -1)
        return ~has_same_above(self.stack.nesting.parent, codes)[rows]

    def _inclusive(self, spans: Int64Array, ns: Int64Array) -> tuple[Int64Array, Int64Array]:
        """These spans and all around them, and the time of each, in ns."""
        inside = spans >= 0
        at, back = np.unique(spans[inside], return_inverse=True)
        time = np.bincount(back, weights=ns[inside], minlength=at.size)
        levels: list[tuple[Int64Array, npt.NDArray[Any]]] = []
        while at.size:
            if len(levels) == _PATIENCE:
                levels.append(self._up_to_roots(at, time))
                break
            levels.append((at, time))
            above = self.stack.nesting.parent[at]
            at, back = np.unique(above[above >= 0], return_inverse=True)
            time = np.bincount(back, weights=time[above >= 0], minlength=at.size)
        rows, back = np.unique(
            np.concatenate([[], *(rows for rows, _ in levels)]).astype(np.int64), return_inverse=True
        )
        sums = np.bincount(
            back, weights=np.concatenate([[], *(each for _, each in levels)]), minlength=rows.size
        )
        return rows, sums.astype(np.int64)

    def _up_to_roots(self, spans: Int64Array, time: npt.NDArray[Any]) -> tuple[Int64Array, npt.NDArray[Any]]:
        """The same of spans deep down, one after the other: a span's row comes after the row of what is around it."""
        held = dict(zip(spans.tolist(), time.tolist(), strict=True))
        waiting = [-row for row in held]
        heapify(waiting)
        while waiting:
            row = -heappop(waiting)
            above = int(self.stack.nesting.parent[row])
            if above >= 0 and above not in held:
                heappush(waiting, -above)
            if above >= 0:
                held[above] = held.get(above, 0) + held[row]
        return np.array(list(held), dtype=np.int64), np.array(list(held.values()))
