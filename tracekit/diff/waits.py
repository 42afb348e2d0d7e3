"""Idle time that goes with more or fewer calls in which the host waits for the device: that in them, and that until it is ahead again."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.cells import Cells
from tracekit.diff.layers import Nodes
from tracekit.facts.idle_names import VALUE_OPERATOR
from tracekit.groups import or_none

__all__ = ["Waits", "waits_of"]

Array: TypeAlias = npt.NDArray[Any]

_LOADING: Final = "data_loading"
_AFTER: Final = (
    "synchronisation",
    "operator_dispatch",
    "library_call",
    "python",
    "host_code",
    "launch_api",
    "launch_latency",
    _LOADING,
)
"""Why a device that has done all its work waits for the host."""
_FEWER: Final = 0.02
"""Per step; a smaller change of the number of calls is none."""
_AROUND_NS: Final = 20_000
"""What a call that waits costs beside itself: the operators around it, the copy of a value."""
_PART: Final = 0.1
"""Of a change: a smaller part is not told apart."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How many more calls per step wait for the device, and how long the calls that only one side has take: the lead that the host
    loses in them, so the most that the device can be idle after them.
    """

    more: float = 0.0
    most_ns: float = 0.0
    places: frozenset[tuple[str | None, int]] = frozenset()
    """The operators and layers of these calls; −1 for no layer."""
    loading_ns: float | None = None
    """By how much the host loads data for longer, also where no device waits for it; None if a side does not tell."""

    @property
    def matter(self) -> bool:
        """Whether there are more or fewer."""
        return abs(self.more) >= _FEWER

    def parts(self, cells: Cells, left: Array) -> Array:
        """Of each cell the part, 0 to 1, of what is `left` of its change (0 for what is no idle time) that goes with these calls. It is 0 of all
        if nearly all of it is in such calls, which the usual groups name better.
        """
        none = np.zeros(left.size)
        if not self.matter:
            return none
        causes = cells.frame["category"].cast(pl.String)
        after = causes.is_in(_AFTER).fill_null(value=False).to_numpy() & (left != 0)
        loading = after & (causes == _LOADING).fill_null(value=False).to_numpy()
        calling = after & (causes == "synchronisation").fill_null(value=False).to_numpy()
        theirs = calling | (after & self._operators(cells))
        part = np.where(loading, 1.0 - self._of_loader(float(left[loading].sum())), after)
        sign, most = 1 if self.more > 0 else -1, self.most_ns + _AROUND_NS * abs(self.more)
        for surer in (theirs | loading, theirs):
            if sign * float((left * part)[~theirs].sum()) > most:  # the host also does more
                part = np.where(surer, part, 0.0)
        within, delta = (sign * float((left * part)[which].sum()) for which in (calling, after))
        return part if 0 < within < (1 - _PART) * delta else none

    def _of_loader(self, change: float) -> float:
        """The part of a change of the idle time in loading that the loader itself made. The rest was hidden until now, or is from now on."""
        if self.loading_ns is None or not change:
            return 1.0
        part = self.loading_ns / change
        return 0.0 if part < _PART else 1.0 if part > 1 - _PART else part

    def _operators(self, cells: Cells) -> Array:
        """The cells of operators that wait, in the layers in which more or fewer of them do."""
        operators, nodes = cells.frame["operator"].cast(pl.String), or_none(cells.frame["node"])
        pairs = zip(operators, nodes.tolist(), strict=True)
        called = np.array([pair in self.places and pair[0] is not None for pair in pairs])
        of_value = operators.str.contains(VALUE_OPERATOR).fill_null(value=False).to_numpy()
        return np.asarray(called | (of_value & np.isin(nodes, [node for _, node in self.places])))


def waits_of(calls: pl.DataFrame, nodes: Nodes, *, same_kind: bool) -> Waits:
    """The change in waiting calls, from the frame `Diff.calls`. `same_kind`: both sides ran on devices, so that loading compares."""
    rows = calls.filter(pl.col("category") == "synchronisation", pl.col("new_calls") != pl.col("base_calls"))
    layers = nodes.frame.select(pl.col("path").alias("layer"), "layer_id")
    places = rows.join(layers, on="layer", how="left").select("operator", pl.col("layer_id").fill_null(-1))
    before, after = calls.filter(pl.col("category") == _LOADING).select("base_ns", "new_ns").sum().row(0)
    return Waits(
        more=float((rows["new_calls"] - rows["base_calls"]).sum()),
        most_ns=float(rows.select(pl.max_horizontal("base_ns", "new_ns")).to_series().sum()),
        places=frozenset(places.rows()),
        loading_ns=after - before if same_kind and before and after else None,
    )
