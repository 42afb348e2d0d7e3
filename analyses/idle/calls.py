"""Which calls hold most of some times: the innermost frames of Python code and API calls around host spans."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.facts.idle_names import FORWARDING_FRAME, PYTHON_FILE
from tracekit.groups import at_rows
from tracekit.spans import BoolArray, Int64Array, take

__all__ = ["Calls"]

_MOSTLY: Final = 0.5
_PART: Final = 0.15
"""Where no call holds more than half, those from this part on are named."""
_NEARLY_ALL: Final = 0.9
_EVERYTHING: Final = 0.95
"""A function that is open for longer than this part of the window says nothing about one part of it, unless the time is its own, or nearly all of
the time in its several calls is meant."""
_LINE: Final = re.compile(r"\(\d+\): ")


class _Functions(msgspec.Struct, frozen=True, eq=False):
    """Some functions, by number: their outermost calls (`calls`, as of a `Calls`), the time that each holds, the `number` of its
    function, and how deep the calls of each function lie on average.
    """

    calls: Int64Array
    held: Int64Array
    number: Int64Array
    depth: npt.NDArray[np.float64]

    def of(self, number: int) -> tuple[Int64Array, Int64Array]:
        """The calls of the function, and the time that each holds."""
        mine = self.number == number
        return self.calls[mine], self.held[mine]


class Calls(msgspec.Struct, frozen=True, eq=False):
    """Frames of Python code and API calls around some host spans. The rows are these spans and all around them, so that what
    lies in one is a range of rows.
    """

    given: Int64Array
    """The row of each of the spans for which they were made; −1 for none."""
    after: Int64Array
    """For each row the one after all that lie in it."""
    calls: Int64Array
    """The outermost calls of each function, as rows: API calls, and frames that do more than lead to others."""
    function: Int64Array
    """The number of each call's function. All calls of one function are one; a generator has a line for each place where it goes
    on."""
    depth: Int64Array
    """How many spans lie around each call."""
    length: Int64Array
    """How long each call is, in ns."""
    caller: Int64Array
    """The innermost of the calls around each row that is Python code; −1 for none, and for ranges, operators and API calls."""
    names: pl.Series
    """The name of each call."""
    window: int
    """Its length in ns."""

    @classmethod
    def of(cls, stack: HostStack, spans: Int64Array, window: int) -> Calls:
        """The calls around these host spans (−1 for none) in a window of this length (ns)."""
        rows = stack.nesting.with_ancestors(spans[spans >= 0])
        nesting = stack.nesting
        frames = stack.named(PYTHON_FILE, "python") & ~stack.named(FORWARDING_FRAME, "python")
        calls = np.flatnonzero((frames | stack.of_kind("runtime"))[rows])
        before = np.zeros(stack.size + 1, dtype=np.int64)
        before[rows + 1] = 1
        np.cumsum(before, out=before)
        after = before[nesting.after[rows]]
        names = at_rows(stack.frame["name"], rows[calls])
        function = _functions(names)
        outer = np.flatnonzero(_outermost(calls, after[calls], function))
        calls, span = calls[outer], rows[calls[outer]]
        wanted = np.zeros(stack.size, dtype=bool)
        wanted[span] = True
        caller = take(nesting.nearest_ancestor(wanted), rows)
        code = (caller >= 0) & stack.of_kind("python")[rows]
        return cls(
            given=take(before, spans),
            after=after,
            calls=calls,
            function=function[outer],
            depth=stack.frame["depth"].to_numpy()[span].astype(np.int64),
            length=nesting.end[span] - nesting.start[span],
            caller=take(np.cumsum(wanted) - 1, np.where(code, caller, -1)),
            names=at_rows(names, outer),
            window=window,
        )

    def innermost(self, rows: Int64Array, ns: Int64Array) -> str | None:
        """The innermost frame or API call that holds more than half of these times.

        `rows` are the innermost host spans at these times, of `ns` each (−1 for none). A function that is open for nearly the whole
        window is named only if that much time is its own, or if these times fill its several calls: it encloses nothing else then. None
        if there is no such call.
        """
        caller = take(self.caller, rows)
        own = np.bincount(caller + 1, weights=ns, minlength=self.calls.size + 1)[1:].astype(np.int64)
        likely = self._likely(self._held(rows, ns), _MOSTLY * int(ns.sum()), own)
        return None if likely is None else self._text(likely, int(np.argmax(likely.depth)))

    def most(self, rows: Int64Array, ns: Int64Array) -> tuple[str | None, list[tuple[str, int]]]:
        """What `innermost` gives; if that is None, few calls, none inside another, that together hold more than half of these times:
        each with its time in ns, largest first.

        Each holds a large part itself. It is the innermost one that holds nearly all of what the calls around it hold. Empty
        if there are no such calls.
        """
        one = self.innermost(rows, ns)
        return one, [] if one is not None else self._several(rows, ns, self._held(rows, ns), int(ns.sum()))

    def _several(
        self, rows: Int64Array, ns: Int64Array, held: Int64Array, total: int
    ) -> list[tuple[str, int]]:
        likely = self._likely(held, _PART * total)
        if likely is None:
            return []
        taken: Int64Array = np.zeros(0, dtype=np.int64)
        parts: list[tuple[str, int]] = []
        for each in np.argsort(likely.depth, kind="stable").tolist():
            mine = self.calls[likely.of(each)[0]]
            around, within = self._inside(taken), self._inside(mine)
            if around[mine].all() or within[taken].any():
                continue
            inside = np.flatnonzero(rows >= 0)
            inside = inside[~around[rows[inside]] & within[rows[inside]]]
            part = int(ns[inside].sum())
            if part <= _PART * total:
                continue
            taken = np.concatenate([taken, mine])
            chain = self._likely(self._held(rows[inside], ns[inside]), _NEARLY_ALL * part)
            best, number = (likely, each) if chain is None else (chain, int(np.argmax(chain.depth)))
            parts.append((self._text(best, number), int(best.of(number)[1].sum())))
        parts.sort(key=lambda part: -part[1])
        return parts if sum(held for _, held in parts) > _MOSTLY * total else []

    def _text(self, functions: _Functions, number: int) -> str:
        """The name of the function's call that holds most."""
        calls, held = functions.of(number)
        return str(self.names[int(calls[held.argmax()])])

    def _inside(self, rows: Int64Array) -> BoolArray:
        """Which rows lie in one of these, or are one of them."""
        steps = np.bincount(rows, minlength=self.after.size + 1)
        steps -= np.bincount(self.after[rows], minlength=self.after.size + 1)
        inside: BoolArray = np.cumsum(steps[:-1]) > 0
        return inside

    def _held(self, rows: Int64Array, ns: Int64Array) -> Int64Array:
        """The time in each call, in ns."""
        within = rows >= 0
        time = np.zeros(self.after.size + 1, dtype=np.int64)
        np.add.at(time, rows[within] + 1, ns[within])
        until = np.cumsum(time)
        held: Int64Array = until[self.after[self.calls]] - until[self.calls]
        return held

    def _likely(self, held: Int64Array, least: float, own: Int64Array | None = None) -> _Functions | None:
        """The functions whose calls hold more than this time and are not open for nearly the whole window; None without any.

        With the `own` time of each call, outside the calls in it, also those that are, if they have so much of their own, or if this
        time fills several calls.
        """
        calls = np.flatnonzero(held)
        function, held = self.function[calls], held[calls]
        of_function = np.bincount(function, weights=held)
        length = np.bincount(function, weights=self.length[calls])
        depth = np.bincount(function, weights=self.depth[calls] * held)
        part = length < _EVERYTHING * self.window
        if own is not None:
            part |= np.bincount(function, weights=own[calls]) > least
            part |= (np.bincount(function) > 1) & (of_function > _NEARLY_ALL * length)
        named = np.flatnonzero((of_function > least) & part)
        if not named.size:
            return None
        number = np.full(of_function.size, -1, dtype=np.int64)
        number[named] = np.arange(named.size)
        kept = number[function] >= 0
        return _Functions(calls[kept], held[kept], number[function][kept], depth[named] / of_function[named])


def _functions(names: pl.Series) -> Int64Array:
    """A number for each name of a call, in the order of the names; frames that differ only in their line have one."""
    codes, first, back = np.unique(
        names.to_physical().fill_null(-1).to_numpy(), return_index=True, return_inverse=True
    )
    texts = [_LINE.sub(": ", text or "", count=1) for text in at_rows(names, first).cast(pl.String)]
    number = {text: index for index, text in enumerate(sorted(set(texts)))}
    return np.array([number[text] for text in texts], dtype=np.int64)[back] if codes.size else codes


def _outermost(calls: Int64Array, after: Int64Array, function: Int64Array) -> BoolArray:
    """Which of these calls lie in no other one of the same function."""
    order = np.argsort(function, kind="stable")
    apart = function[order] * (int(after.max(initial=0)) + 1)
    reach = np.maximum.accumulate(apart + after[order])
    inside = np.zeros(calls.size, dtype=bool)
    inside[order[1:]] = reach[:-1] > (apart + calls[order])[1:]
    return ~inside
