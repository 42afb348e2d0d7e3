"""Where in the program the host was while a device waited: the innermost call that holds more than half of the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.facts.idle_names import FORWARDING_FRAME, PYTHON_FILE
from tracekit.spans import BoolArray, Int64Array

__all__ = ["Calls"]

_MOSTLY: Final = 0.5
_EVERYTHING: Final = 0.95
"""A call that is open for longer than this part of the window says nothing about one part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Frames of Python code around host spans, by the stack of a trace."""

    stack: HostStack
    named: BoolArray
    """Which spans are frames that do more than lead to others."""
    window: int
    """Its length in ns."""

    @classmethod
    def of(cls, stack: HostStack, window: int) -> Calls:
        """The calls of a stack in a window of this length (ns)."""
        frames = stack.named(PYTHON_FILE, "python") & ~stack.named(FORWARDING_FRAME, "python")
        return cls(stack, frames | stack.of_kind("runtime"), window)

    def innermost(self, spans: Int64Array, ns: Int64Array) -> str | None:
        """The innermost frame or API call that holds more than half of these times.

        `spans` are the innermost host spans at these times, of `ns` each (−1 for none). All calls of one function are one;
        a generator has a line for each place where it goes on. A call that is open for nearly the whole window is not named.
        None if there is no such call.
        """
        least = _MOSTLY * int(ns.sum())
        rows, inclusive = self._inclusive(spans, ns)
        wanted = self.named[rows]
        rows, inclusive = rows[wanted], inclusive[wanted]
        names, back = np.unique(self._functions(rows), return_inverse=True)
        likely = (np.bincount(back, weights=inclusive, minlength=names.size) > least)[back]
        rows, inclusive, back = rows[likely], inclusive[likely], back[likely]
        outer = self._outermost(rows, back)
        rows, inclusive, back = rows[outer], inclusive[outer], back[outer]
        held = np.bincount(back, weights=inclusive, minlength=names.size)
        length = np.bincount(back, weights=(self.stack.end - self.stack.start)[rows], minlength=names.size)
        depth = np.bincount(back, weights=self.stack.nesting.depth()[rows] * inclusive, minlength=names.size)
        named = np.flatnonzero((held > least) & (length < _EVERYTHING * self.window))
        if not named.size:
            return None
        mine = back == named[np.argmax(depth[named] / held[named])]
        return str(self.stack.frame["name"][int(rows[mine][inclusive[mine].argmax()])])

    def _functions(self, rows: Int64Array) -> Int64Array:
        """A number for the function of each of these spans."""
        name = self.stack.frame["name"][rows].to_frame("name")
        function = (
            pl.col("name").cast(pl.String).str.replace(r"\(\d+\): ", ": ").rank("dense").alias("function")
        )
        distinct = name.unique().with_columns(function)
        joined = name.join(distinct, on="name", how="left", maintain_order="left")
        return joined["function"].cast(pl.Int64).to_numpy()

    def _outermost(self, rows: Int64Array, name: Int64Array) -> BoolArray:
        """Which of these spans lie in no other of them with the same name."""
        codes = np.full(self.stack.size, -1, dtype=np.int64)
        codes[rows] = name
        inside = np.zeros(rows.size, dtype=bool)
        above = self.stack.nesting.parent[rows]
        while (above >= 0).any():
            inside |= (above >= 0) & (codes[np.maximum(above, 0)] == name)
            above = np.where(above >= 0, self.stack.nesting.parent[np.maximum(above, 0)], -1)
        return ~inside

    def _inclusive(self, spans: Int64Array, ns: Int64Array) -> tuple[Int64Array, Int64Array]:
        """These spans and all around them, and the time of each, in ns."""
        inside = spans >= 0
        at, back = np.unique(spans[inside], return_inverse=True)
        time = np.bincount(back, weights=ns[inside], minlength=at.size)
        levels = []
        while at.size:
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
