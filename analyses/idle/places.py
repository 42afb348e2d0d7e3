"""Where in the program the host was while a device waited: the innermost call that holds more than half of the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

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
        named = stack.named(PYTHON_FILE, "python") & ~stack.named(FORWARDING_FRAME, "python")
        return cls(stack, named, window)

    def innermost(self, spans: Int64Array, ns: Int64Array) -> str | None:
        """The innermost frame that holds more than half of these times.

        `spans` are the innermost host spans at these times, of `ns` each (−1 for none). Calls of one line by one line
        are one, also in different steps. A frame that is open for nearly the whole window is not named. None if there
        is no such frame.
        """
        least = _MOSTLY * int(ns.sum())
        rows, inclusive = self._inclusive(spans, ns)
        parent = self.stack.nesting.parent[rows]
        codes = self.stack.frame["name"].to_physical().to_numpy()[rows]
        level = np.flatnonzero(parent < 0)
        held = None
        while level.size:
            names, back = np.unique(codes[level], return_inverse=True)
            sums = np.bincount(back, weights=inclusive[level], minlength=names.size)
            if sums.max() <= least:
                break
            level = level[back == sums.argmax()]
            mine = rows[level]
            length = int((self.stack.end[mine] - self.stack.start[mine]).sum())
            if self.named[mine].all() and length < _EVERYTHING * self.window:
                held = int(mine[0])
            level = np.flatnonzero(np.isin(parent, mine))
        return None if held is None else str(self.stack.frame["name"][held])

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
