"""Where rows lie relative to those that were measured: inside, beyond them along an axis, or of a name that was never seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.names import clean
from tracekit.predict.describe import CATEGORIES, NUMBERS
from tracekit.predict.features import device_names
from tracekit.predict.table import Floats, Runs

__all__ = ["DEVICE", "FARTHEST", "FOLLOWS", "INSIDE", "Places", "Support", "support_of"]

INSIDE: Final = "inside"
"""The kind of a row that lies beyond the measured ones along no axis."""
DEVICE: Final = "device"
FARTHEST: Final = 64.0
"""A row more times than this beyond the measured ones is refused."""
FOLLOWS: Final = ("iterations",)
"""Axes along which time is a straight line. They never refuse a row, and make it a question of their own only if no other axis does; one
doubling beyond is as far as any other.
"""
_OF_DEVICE: Final = ("peak_gflops", "bandwidth_gb_s")
"""Axes that a row is beyond only on a device that was never seen, which is a question of its own."""
_MOST_NAMES: Final = 10_000
_MOST_DEVICES: Final = 12
_SAME: Final = 1.0 + 1e-9

_ORDER: Final = (
    *(name for name in CATEGORIES if name != "machine"),
    "machine",
    *(name for name in NUMBERS if name not in FOLLOWS),
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where rows lie.

    * `kind`: `inside`, or the axis along which the row is a question of extrapolation (the first, if there are several)
    * `axes`: by axis, how far beyond it is along this one: 0 inside, 1 for each doubling beyond the measured range, and for a name that
      was never seen
    * `note`: in words, along which axes it is outside; empty inside
    * `refused`: too far for an answer
    """

    kind: npt.NDArray[np.object_]
    axes: Mapping[str, Floats]
    note: npt.NDArray[np.object_]
    refused: npt.NDArray[np.bool_]

    @property
    def distance(self) -> Floats:
        """How far beyond each row is along all axes together."""
        return sum(self.axes.values(), np.zeros(self.kind.size))

    def where(self, rows: npt.NDArray[np.bool_]) -> Places:
        """Those of some rows."""
        axes = {axis: distance[rows] for axis, distance in self.axes.items()}
        return Places(self.kind[rows], axes, self.note[rows], self.refused[rows])

    @staticmethod
    def joined(several: Sequence[Places]) -> Places:
        """Those of several tables, one after another."""
        names = dict.fromkeys(axis for each in several for axis in each.axes)
        axes = {
            axis: np.concatenate([each.axes.get(axis, np.zeros(each.kind.size)) for each in several])
            for axis in names
        }
        kind, note, refused = (
            np.concatenate([getattr(each, part) for each in several]) for part in ("kind", "note", "refused")
        )
        return Places(kind, axes, note, refused)


@dataclass(frozen=True, slots=True)
class Support:
    """What was measured: the range of each column of numbers, and the names in each column of names."""

    numbers: Mapping[str, tuple[float, float]]
    names: Mapping[str, frozenset[str]]

    @property
    def constant(self) -> list[str]:
        """The axes along which all measured rows are at one place, or have one name."""
        ends = self.numbers.items()
        names = [axis for axis, seen in self.names.items() if len(seen) == 1]
        return names + [axis for axis, (low, high) in ends if low == high and axis not in _OF_DEVICE]

    def only(self, roles: Collection[str]) -> Support:
        """That of these columns."""
        numbers = {axis: ends for axis, ends in self.numbers.items() if axis in roles}
        return Support(numbers, {axis: seen for axis, seen in self.names.items() if axis in roles})

    def places(self, runs: Runs) -> Places:
        """Where these rows lie."""
        height = runs.height
        kind = np.full(height, INSIDE, dtype=object)
        rank = np.full(height, len(_ORDER) + 1)
        axes: dict[str, Floats] = {}
        follows: dict[str, Floats] = {}
        refused = np.zeros(height, dtype=bool)
        notes: list[list[str]] = [[] for _ in range(height)]
        for axis, factor, say in self._axes(runs):
            outside = factor > _SAME
            place = _ORDER.index(axis) if axis in _ORDER else len(_ORDER)
            if axis in FOLLOWS:
                follows[axis] = factor
            else:
                refused |= factor > FARTHEST
            if axis not in FOLLOWS and not (axis in _OF_DEVICE and DEVICE in self.names):
                first = outside & (place < rank)
                kind[first], rank[first] = axis, place
                axes[axis] = np.where(outside, np.log2(factor), 0.0)
            for row in np.flatnonzero(outside):
                notes[row].append(say(int(row)))
        if "machine" in axes and DEVICE in axes:  # a new device stands in a new machine: that is one question
            axes["machine"][axes[DEVICE] > 0] = 0.0
        for axis, factor in follows.items():
            alone = (kind == INSIDE) & (factor > _SAME)
            kind[alone] = axis
            axes[axis] = np.where(alone, np.minimum(np.log2(factor), 1.0), 0.0)
        return Places(kind, axes, np.array(["; ".join(each) for each in notes], dtype=object), refused)

    def _axes(self, runs: Runs) -> list[tuple[str, Floats, Any]]:
        """By axis how many times beyond the measured ones each row is (1 inside, 2 for a new name), and what to say of a row."""
        found: list[tuple[str, Floats, Any]] = []
        for axis, seen in self.names.items():
            names = device_names(runs) if axis == DEVICE else runs.names(axis)
            if any(names):
                factor = np.array([1.0 if name in seen else 2.0 for name in names])
                found.append((axis, factor, _said_of_name(axis, names)))
        for axis, (lowest, highest) in self.numbers.items():
            values = runs.numbers(axis)
            factor = np.nan_to_num(_beyond(values, lowest, highest), nan=1.0)
            found.append((axis, factor, _said_of_number(axis, values, lowest, highest)))
        return found

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "numbers": {axis: list(ends) for axis, ends in self.numbers.items()},
            "names": {axis: sorted(seen) for axis, seen in self.names.items()},
        }

    @staticmethod
    def restore(state: Mapping[str, Any]) -> Support:
        """The support of a state. Raises ValueError, KeyError, TypeError or AttributeError for one that is none."""
        numbers = {str(axis): (float(low), float(high)) for axis, (low, high) in state["numbers"].items()}
        return Support(
            numbers, {str(axis): frozenset(map(str, seen)) for axis, seen in state["names"].items()}
        )


def support_of(runs: Runs) -> Support:
    """What these rows cover."""
    asked = (*NUMBERS, *runs.description.features)
    numbers = [name for name in asked if name in runs.frame.columns and not runs.frame[name].null_count()]
    names = {
        role: frozenset(runs.names(role)) for role in CATEGORIES if role in runs.roles and role != DEVICE
    }
    if len(devices := frozenset(device_names(runs))) <= _MOST_DEVICES and devices != {""}:
        names[DEVICE] = devices
    return Support(
        {name: (float(runs.numbers(name).min()), float(runs.numbers(name).max())) for name in numbers},
        {role: seen for role, seen in names.items() if len(seen) <= _MOST_NAMES},
    )


def _beyond(values: Floats, lowest: float, highest: float) -> Floats:
    if lowest > 0:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.maximum(
                1.0, np.maximum(values / highest, np.where(values > 0, lowest / values, np.inf))
            )
    span = highest - lowest or abs(highest) or 1.0
    return 1.0 + np.maximum(0.0, np.maximum(values - highest, lowest - values)) / span


def _said_of_name(axis: str, names: list[str]) -> Any:
    return lambda row: f"{axis} {clean(names[row])} was never measured"


def _said_of_number(axis: str, values: Floats, lowest: float, highest: float) -> Any:
    def say(row: int) -> str:
        value = values[row]
        which, end = ("largest", highest) if value > highest else ("smallest", lowest)
        factor = value / end if end > 0 and value > 0 else np.nan
        if not factor > 0:
            return f"{axis} {value:g} is outside what was measured ({lowest:g} to {highest:g})"
        times = f"{factor:.3g} times" if factor > 1 else f"1/{1 / factor:.3g} of"
        return f"{axis} {value:g} is {times} the {which} that was measured ({end:g})"

    return say
