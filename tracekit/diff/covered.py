"""Whether a change is of all that its subject names, of what other changes leave of it, or of some of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.diff.cells import Cells
from tracekit.diff.explain import Found
from tracekit.diff.model import ChangeKind

__all__ = ["PARTS", "Covered"]

Array: TypeAlias = npt.NDArray[Any]

PARTS: Final[dict[ChangeKind, str]] = {
    "slower": "time",
    "faster": "time",
    "more_calls": "calls",
    "fewer_calls": "calls",
}
"""Changes of which several may be of what has one name, and what they are changes in."""
_NEARLY: Final = 0.95
_MOST: Final = 0.5
_PLACES: Final = ("layer ", "layers of ", "the ")
"""What work is in; else a text names the work itself."""


@dataclass(frozen=True, slots=True)
class Covered:
    """The time of a change, of all that its subject names, and of what of this no change tells."""

    mine_ns: float
    whole_ns: float
    untold_ns: float
    twin: bool
    """Whether another change has the same subject."""

    @staticmethod
    def of(cells: Cells, found: Found, every: Sequence[Found], named: Array) -> Covered:
        """That of a change among all; `named` is a mask of cells."""
        size = np.maximum(cells.base, cells.new)
        left, twin = named.copy(), False
        left[found.cells] = False
        untold = left.copy()
        for each in every:
            if each is not found and each.kind != "idle":
                untold[each.cells] = False
                alike = PARTS.get(each.kind, "") == PARTS.get(found.kind)
                alike &= (each.by, each.node) == (found.by, found.node)
                twin |= alike and bool(left[each.cells].any())
        mine = named.copy()
        mine[left] = False
        return Covered(float(size[mine].sum()), float(size[named].sum()), float(size[untold].sum()), twin)

    @property
    def _all_told(self) -> bool:
        return self.untold_ns <= (1 - _NEARLY) * self.whole_ns and not self.twin

    def named(self, text: str, by: set[str]) -> str:
        """The subject of the change, which is named by these columns: `other work in layer fc`, `some calls of aten::mm`."""
        if self.mine_ns >= _NEARLY * self.whole_ns:
            return text
        which = "other" if self._all_told else "some"
        if by & {"operator", "name"}:
            return f"{which} calls of {text}"
        return f"{which} work in {text}" if text.startswith(_PLACES) else f"{which} {text}"

    @property
    def work(self) -> str:
        """The subject of a change of work that has nothing in common."""
        if self.mine_ns >= _NEARLY * self.whole_ns:
            return "all work"
        if self._all_told:
            return "all other work"
        left = self.mine_ns + self.untold_ns
        return "most other work" if self.mine_ns >= _MOST * left and not self.twin else "some work"
