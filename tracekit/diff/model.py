"""What a comparison of two sides says: the change of the step time, by dimension and as a ranked list of changes.

A side is one or several profiled processes, pooled: every process weighs the same, however many steps it has, every kept step of it too, and the time
of a step with several devices is the mean over them. So the mean step time of a side is `time_ns / weight`, and everything in the frames sums to it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal

import polars as pl

from tracekit.classes import dataclass
from tracekit.digest import Facts
from tracekit.trace import Schema

__all__ = [
    "AMOUNTS",
    "DIMENSIONS",
    "LAYERS",
    "MATCHED",
    "SIDE_STEPS",
    "ChangeKind",
    "Contribution",
    "Diff",
    "Side",
]

ChangeKind = Literal[
    "added",  # work that only the new side has
    "removed",  # work that only the base has
    "moved",  # a layer of another path; its delta is 0: what its work takes longer is a change of its own
    "kernel",  # another kernel for the same operator and inputs
    "dtype",  # inputs of other types
    "shape",  # inputs of other shapes; of an operator of which only some calls have them, of so many
    "more_calls",
    "fewer_calls",
    "slower",  # each call takes longer
    "faster",
    "idle",  # the device waits longer or shorter
]

DIMENSIONS: Final = ("phase", "layer", "type", "operator", "category", "name", "communication", "idle")
"""The names of the frames of `Diff.by`; each but `communication` and `idle` holds all of the step time."""

SIDE_STEPS: Final[Schema] = {
    "run": pl.Int64,  # the row of `Side.facts`
    "step": pl.Int64,
    "name": pl.String,
    "time_ns": pl.Int64,
    "kept": pl.Boolean,  # False: warm-up or outlier, in no figure
}

AMOUNTS: Final[Schema] = {
    "base_sum": pl.Int64,  # exact: summed over kept steps, times `Side.unit` over the devices and the weight of the process
    "new_sum": pl.Int64,
    "base_ns": pl.Float64,  # per step: base_sum / base.denominator
    "new_ns": pl.Float64,
    "delta_ns": pl.Float64,
    "share": pl.Float64,  # of the total change; null if that is 0
    "base_calls": pl.Float64,  # kernels and copies, calls of operators without a device, gaps, or calls of the host; per step (and device)
    "new_calls": pl.Float64,
    "base_idle_ns": pl.Float64,  # of base_ns: idle time that this place caused
    "new_idle_ns": pl.Float64,
}
"""The last columns of every frame of `Diff.by`. `base_sum` and `new_sum` of a partition sum to those of the whole exactly."""

LAYERS: Final[Schema] = {
    "layer_id": pl.Int64,  # the row number
    "parent_layer_id": pl.Int64,
    "depth": pl.Int64,
    "name": pl.String,
    "path": pl.String,  # of the new side, of a removed layer that of the base
    "base_path": pl.String,  # null for an added layer
    "new_path": pl.String,  # null for a removed layer
    "type": pl.String,
    "status": pl.Enum(
        ("matched", "moved", "added", "removed", "none")
    ),  # none: work in no layer, or layers that cannot be compared
    "matched_by": pl.Enum(("path", "suffix", "order", "content")),  # null if not matched
}
"""The first columns of `Diff.by["layer"]`, in order of the tree. Its `AMOUNTS` are of the layer alone; `tree_base_ns`, `tree_new_ns` and
`tree_delta_ns` hold the layers below it too."""

MATCHED: Final[Schema] = {
    "how": pl.Enum(("same", "kernel", "dtype", "shape", "operator", "category", "layer", "update", "none")),
    "base_ns": pl.Float64,
    "new_ns": pl.Float64,
    "base_share": pl.Float64,  # of the device's work of a step
    "new_share": pl.Float64,
}
"""How work of both sides was matched: all texts agree (`same`), the kernel, the types or the shapes differ; only the place and the
operator's category agree (`category`), only the kernel's name and the place (`operator`), only the layer and the phase (`layer`), only that both update parameters (`update`); or not at all."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side: its processes, its steps, and their mean time."""

    name: str
    facts: tuple[Facts, ...]
    """One of each process: run or rank."""
    steps: pl.DataFrame
    """`SIDE_STEPS`, in order of run and time."""
    has_steps: bool
    time_ns: int
    """Summed over the kept steps of all processes, times the weight of each; of windows, if `Diff.per` says so."""
    count: int
    """Kept steps; or windows."""
    weight: int
    """Summed over them, that of their process."""
    unit: int
    """The least common multiple of the numbers of devices."""

    @property
    def denominator(self) -> int:
        """What a sum of ns is divided by to give ns per step."""
        return max(1, self.unit * self.weight)

    @property
    def mean(self) -> Fraction:
        """The mean step time in ns, exactly."""
        return Fraction(self.time_ns, max(1, self.weight))

    @property
    def mean_ns(self) -> float:
        """The mean step time in ns."""
        return float(self.mean)


@dataclass(frozen=True, slots=True)
class Contribution:
    """One part of the change of the step time, disjoint from the others."""

    kind: ChangeKind
    delta: Fraction
    """ns per step, exactly; 0 for a moved layer."""
    title: str
    """One line of plain English, with the amount; names in it are clean but not escaped."""
    place: dict[str, str]
    """What its work has in common, of `phase`, `layer`, `type`, `operator`, `category`, `name`, `shapes`, `dtypes`; for idle time
    `cause` and the call as `name`. As on the new side; of removed work as on the base."""
    before: str | None = None
    """What stood in the place of the kernel, types, shapes, or path that `after` names."""
    after: str | None = None
    layers: int = 0
    """In how many layers the work lies."""
    base_ns: float = 0.0
    new_ns: float = 0.0
    base_calls: float = 0.0
    new_calls: float = 0.0
    noise_ns: float | None = None
    """The standard error of `delta` as the spread of the steps gives it; of sides with several runs that of the runs, times Student's factor for
    so few. None with fewer than two steps on a side.
    """
    sure: bool = True
    """False: large, but the spread of the steps explains it too."""

    @property
    def delta_ns(self) -> float:
        """The change per step in ns: above 0 the new side takes longer."""
        return float(self.delta)


@dataclass(frozen=True, slots=True, eq=False)
class Diff:
    """Base against new."""

    base: Side
    new: Side
    per: Literal["step", "window"]
    """What times are of: `window` if a side has no steps, then a window stands for a step everywhere."""
    notes: tuple[str, ...]
    """Sentences: what the sides differ in, what can be compared and what not."""
    by: dict[str, pl.DataFrame]
    """By each of `DIMENSIONS`, largest change first; every frame ends in `AMOUNTS`. Leading columns: `layer`: `LAYERS` (in the order of
    the tree), `phase`, `type`, `operator`: one of that name (null: none; operators of both sides under the new side's name),
    `category`: `kind` and `category` (of idle time the cause), `name`: `kind` and `name` of the kernel, or of the call that made the
    device wait, `communication`: `operator` and `name` (exposed time of collectives), `idle`: `category` (the cause), `name` (the
    call)."""
    calls: pl.DataFrame
    """Calls of the host that wait, allocate or load code or data: `category`, `name`, `operator`, `layer`, then `base_calls`, `new_calls`,
    `base_ns`, `new_ns`, `delta_ns` per step (their own durations, which are no part of the step time's sum)."""
    matched: pl.DataFrame
    """`MATCHED`."""
    changes: tuple[Contribution, ...]
    """Those that are sure, largest first; then those that are not."""
    rest: Fraction
    """What no change explains, ns per step: noise, or many small changes. Changes and rest sum to `change` exactly."""

    @property
    def change(self) -> Fraction:
        """New minus base, ns per step, exactly."""
        return self.new.mean - self.base.mean

    @property
    def change_ns(self) -> float:
        """New minus base, ns per step."""
        return float(self.change)
