"""The changes that `what_if` knows. Each says in words what it is, and applies itself to a draft."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import polars as pl

from tracekit.analyses.calls import calls_of
from tracekit.analyses.idle.span_causes import CAUSE_NUMBER
from tracekit.analyses.optimizer import in_place_calls, updates_groups, usual_passes
from tracekit.analyses.roofline.levels import under_roofs
from tracekit.analyses.roofline.other_device import There, ceilings_there
from tracekit.analyses.roofline.pieces import pieces
from tracekit.analyses.roofline.rated import device_ceilings
from tracekit.analyses.traits import traits
from tracekit.analyses.what_if.draft import Draft
from tracekit.classes import dataclass
from tracekit.errors import UsageError
from tracekit.facts.ceilings import Ceilings, chosen_device
from tracekit.facts.units import NS_PER_US, format_ns
from tracekit.spans import BoolArray

__all__ = [
    "Bandwidth",
    "Change",
    "FasterHost",
    "Fuse",
    "NoLoaderWait",
    "OtherDevice",
    "OverlapCommunication",
    "Remove",
    "RemoveSync",
    "Scale",
    "ShardOptimizer",
]

_MOST: Final = 1_000
"""The largest factor of a change: times that are so many times as long still fit an Int64."""
_FUSED_TENSORS: Final = 36
"""So many parameters a kernel of a fused optimizer updates, with a gradient and two moments each."""
_FUSED_WORDS: Final = 7 / 4
"""Of Adam, a fused optimizer reads 4 tensors and writes 3, where its costliest operator reads 3 and writes 1."""
_PARAMETER_NS: Final = (2 * NS_PER_US, 4 * NS_PER_US, 8 * NS_PER_US)
"""What it takes the host to collect a parameter and its states for one call."""
_LATENCY_NS: Final = 20 * NS_PER_US
"""About what an all-reduce of a few bytes takes among the boards of a machine."""
_UNLIKE: Final = 2
"""From here on the largest message is so many times the smallest that their times show a latency."""
_CALL_NS: Final = (20 * NS_PER_US, 50 * NS_PER_US, 100 * NS_PER_US)
"""What such a call takes the host."""
_OUTSIDE: Final = tuple(CAUSE_NUMBER[name] for name in ("python", "host_code"))
"""The causes of code in no operator or call."""


class Change(Protocol):
    """A change of the program, its machine or its job."""

    @property
    def label(self) -> str:
        """What it is, as its flag is written."""

    def apply(self, draft: Draft) -> None:
        """Change the lengths of a draft. Raises UsageError if it fits nothing there."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What the selector fits takes `factor` times as long."""

    selector: str
    factor: float

    def __post_init__(self) -> None:
        if not 0 <= self.factor <= _MOST:
            raise UsageError(
                f"{self.factor:g} is not a factor",
                remedy="use one from 0 to 1000, such as 0.5 for twice as fast",
            )

    @property
    def label(self) -> str:
        """`--scale layer:encoder=0.5`."""
        return f"--scale {self.selector}={self.factor:g}"

    def apply(self, draft: Draft) -> None:
        """Scale activities; without a device, and for causes, the code of threads."""
        found = draft.select(self.selector)
        draft.scale_rows(found.rows, self.factor)
        if draft.made.scope.on_cpu or self.selector.startswith(("cause:", "rank:")):
            draft.scale_pieces(found.pieces, self.factor)
        elif draft.made.count("launch"):
            draft.assume("The host takes as long as before to launch scaled work.")
        else:
            draft.assume(
                "No launches are known, so the host and the device are assumed not to wait for each other."
            )


@dataclass(frozen=True, slots=True)
class Remove:
    """What the selector fits is gone, with the code that launches it."""

    selector: str

    @property
    def label(self) -> str:
        """`--remove op:aten::dropout`."""
        return f"--remove {self.selector}"

    def apply(self, draft: Draft) -> None:
        """Take away activities and the code of threads, and what this code waits for."""
        found = draft.select(self.selector)
        draft.remove_rows(found.rows)
        draft.scale_pieces(found.pieces, 0.0)
        draft.take_out(draft.waits_in(found.pieces))
        draft.assume("What comes after removed work takes as long as before.")


@dataclass(frozen=True, slots=True)
class RemoveSync:
    """The host does not wait for the device."""

    label: str = "--remove-sync"

    def apply(self, draft: Draft) -> None:
        """Free all calls that wait for activities, and take away their own time."""
        draft.need_launches(self.label)
        draft.take_out(draft.links_of("synchronisation", "inferred_synchronisation"))
        draft.waits_for_device = False
        waiting = draft.host.cause == CAUSE_NUMBER["synchronisation"]
        _some(waiting, "no call waits for the device in the window", self.label, draft.off)
        draft.scale_pieces(waiting, 0.0)
        draft.assume("No code needs the values that the host waited for before the end of the window.")


@dataclass(frozen=True, slots=True)
class NoLoaderWait:
    """Every batch is there when the loop asks for it."""

    label: str = "--no-loader-wait"

    def apply(self, draft: Draft) -> None:
        """Take away the time in the data loader."""
        draft.need_launches(self.label)
        loading = draft.host.cause == CAUSE_NUMBER["data_loading"]
        _some(loading, "no time goes to data loading in the window", self.label)
        draft.scale_pieces(loading & (draft.host.category < 0) | loading & draft.made.scope.on_cpu, 0.0)
        draft.assume("Loader processes have processors of their own and keep up with the loop.")


@dataclass(frozen=True, slots=True)
class FasterHost:
    """The code of the host runs `factor` times as fast."""

    factor: float

    def __post_init__(self) -> None:
        _positive(self.factor)

    @property
    def label(self) -> str:
        """`--faster-host 2x`."""
        return f"--faster-host {self.factor:g}x"

    def apply(self, draft: Draft) -> None:
        """Scale the code of all threads."""
        draft.need_launches(self.label)
        draft.scale_pieces(np.ones(draft.left.size, dtype=bool), 1 / self.factor)
        draft.assume("All host code speeds up alike, including launch calls and reads of data.")


@dataclass(frozen=True, slots=True)
class Fuse:
    """The optimizer updates all parameters in one call (`fused=True`)."""

    label: str = "--fuse optimizer"

    def apply(self, draft: Draft) -> None:
        """Shrink the optimizer's work to one pass over its data, and its code to one call a step."""
        scope, spread = draft.made.scope, draft.spread + 1
        if "fused_optimizer" in traits(scope):
            raise UsageError("the optimizer is fused already", remedy="leave --fuse out")
        found = draft.of_phase("optimizer")
        _some(found.rows, "no optimizer runs in the window", self.label, found.pieces)
        (once, every), calls = usual_passes(scope), max(scope.steps.height, 1)
        # What lies in the cache when the costliest operator runs, a fused one has to fetch, as the first ones do.
        least = min(once * _FUSED_WORDS, every)
        data = (once, (least + every) / 2, every)[spread]
        # As recorded: beside other changes, in whatever order, each keeps its factor.
        took, outside = draft.host.end - draft.host.start, np.isin(draft.host.cause, _OUTSIDE)
        code = float(took[found.pieces].sum())
        left: float = calls * _CALL_NS[spread] + in_place_calls(scope) * _PARAMETER_NS[spread]
        if updates_groups(scope):  # collecting the parameters is the same for a fused one
            left += float(took[found.pieces & outside].sum())
        if scope.on_cpu:
            left += data
        else:
            work = float(draft.made.lines.rows["duration"].filter(pl.Series(found.rows)).sum())
            passes = min(1.0, data / work) if work and once else 1.0
            draft.scale_rows(found.rows, passes)
            kernels = max(int(found.rows.sum()), 1)
            few = passes if updates_groups(scope) else in_place_calls(scope) / _FUSED_TENSORS / kernels
            draft.scale_gaps(found.rows, min(1.0, few))
            if not once:
                draft.assume(
                    "The device takes as long as before: the trace does not show what one pass over the data takes."
                )
        draft.scale_pieces(found.pieces, min(1.0, left / code) if code else 1.0)
        draft.assume(
            "A fused optimizer takes the mean of what all its in-place operators take and of 1.75 passes of the costliest one; at least one "
            "pass of that one, at most all of them."
        )


@dataclass(frozen=True, slots=True)
class OtherDevice:
    """The work runs on another device of the catalogue."""

    name: str

    @property
    def label(self) -> str:
        """`--device H200`."""
        return f"--device {self.name}"

    def apply(self, draft: Draft) -> None:
        """Scale each activity by its least times at the roofs of both devices."""
        scope = draft.made.scope
        chosen_device(self.name)  # a name that there is not is the first thing to say
        if scope.on_cpu:
            raise UsageError(
                "no device was captured, so there are no kernels to run on another one",
                remedy="leave --device out",
            )
        old = device_ceilings(scope)
        if not old:
            raise UsageError(
                "the ceilings of the trace's own device are not known", remedy="run tracekit machine on it"
            )
        there = ceilings_there(scope, self.name)
        factors = _by_roofs(draft, old, there)
        draft.scale_rows(np.ones(factors.size, dtype=bool), factors)
        draft.assume(
            f"Kernels come as close to the roofs of {there.ceilings.device} as to those of the recorded device. At the other end of the range only "
            "their time at the roof changes; kernels without known work change between the ratios of peaks and of bandwidths."
        )
        if there.told:
            draft.assume(f"{there.told[0].upper()}{there.told[1:]}.")
        draft.assume("Communication, copies over links and the host take as long as before.")


def _by_roofs(
    draft: Draft, old: dict[int, Ceilings], there: There
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How many times as long each activity of `lines.rows` takes."""
    figures, new = pieces(draft.made.scope), there.ceilings
    before, after = under_roofs(figures, old), under_roofs(figures, dict.fromkeys(old, new))
    known = pl.DataFrame(
        {
            "activity_id": figures["call"],
            "old": before["least_ns"],
            "new": after["least_ns"],
            "ns": figures["piece_ns"],
            "other unit": figures.select(there.lacks()).to_series(),
        }
    ).filter((pl.col("old") > 0) & pl.col("new").is_not_null())
    rows = draft.rows.join(known, on="activity_id", how="left", maintain_order="left")
    some = next(iter(old.values()))
    seen = figures.filter(pl.col("flops") > 0)[["precision", "unit"]].drop_nulls().unique().rows()
    rates = [
        (some.bandwidth.get("DRAM"), new.bandwidth.get("DRAM")),
        *((some.peak(*one), new.peak(*one)) for one in seen),
    ]
    ratios = [mine / theirs for mine, theirs in rates if mine and theirs]
    low, high = (min(ratios), max(ratios)) if ratios else (1.0, 1.0)
    unknown = (low, (low * high) ** 0.5, high)[draft.spread + 1]
    ratio = pl.col("new") / pl.col("old")
    # Of what a kernel takes beyond its roof nothing tells whether it changes as well.
    least_changed = 1 - (pl.col("old") - pl.col("new")) / pl.max_horizontal("ns", "old")
    ends = {-1: pl.min_horizontal(ratio, least_changed), 1: pl.max_horizontal(ratio, least_changed)}
    between = (ratio * pl.min_horizontal(ratio, pl.col("new") / pl.max_horizontal("ns", "old"))).sqrt()
    expected = ends.get(draft.spread, pl.when("other unit").then(between).otherwise(ratio))
    linked = (pl.col("class") == "communication") | pl.col("name").cast(pl.String).str.contains(
        "(?i)HtoD|DtoH|Host"
    )
    factor = pl.when(linked).then(1.0).otherwise(pl.coalesce(expected, unknown))
    return rows.select(factor.cast(pl.Float64)).to_series().to_numpy()


@dataclass(frozen=True, slots=True)
class OverlapCommunication:
    """Nothing but the end of the window waits for communication."""

    label: str = "--overlap-comm"

    def apply(self, draft: Draft) -> None:
        """Take out the links that leave communication; where it shares a stream with other work, its time as well."""
        made, rows = draft.made, _communication(draft)
        _some(rows, "the window has no communication on a device", self.label)
        at = np.flatnonzero(made.activity >= 0)
        talks = np.zeros(made.activity.size, dtype=bool)
        talks[at] = rows[made.activity[at]]
        links = made.graph.links
        draft.take_out(talks[links.source] & links.after & ~draft.links_of("end"))
        shared = np.isin(made.lines.line, np.unique(made.lines.line[~rows]))
        draft.scale_rows(rows & shared, 0.0)
        draft.assume(
            "Communication slows no computation beside it, and no work of the window needs its result."
        )


@dataclass(frozen=True, slots=True)
class ShardOptimizer:
    """Each of `ranks` ranks updates its part of the parameters."""

    ranks: int

    def __post_init__(self) -> None:
        _positive(self.ranks)

    @property
    def label(self) -> str:
        """`--shard-optimizer 8`."""
        return f"--shard-optimizer {self.ranks}"

    def apply(self, draft: Draft) -> None:
        """Divide the optimizer's work and code."""
        found = draft.of_phase("optimizer")
        _some(found.rows, "no optimizer runs in the window", self.label, found.pieces)
        draft.scale_rows(found.rows, 1 / self.ranks)
        draft.scale_gaps(found.rows, 1 / self.ranks)
        draft.scale_pieces(found.pieces, 1 / self.ranks)
        if (draft.made.scope.activities["class"] == "communication").any():
            draft.assume(
                "The all-reduce of gradients becomes a reduce-scatter and an all-gather of weights, which move as much."
            )
        else:
            draft.assume(
                "The window has no communication; what ranks need to exchange gradients and weights comes on top."
            )


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Links between ranks move `factor` times as much in a time."""

    factor: float

    def __post_init__(self) -> None:
        _positive(self.factor)

    @property
    def label(self) -> str:
        """`--bandwidth 2x`."""
        return f"--bandwidth {self.factor:g}x"

    def apply(self, draft: Draft) -> None:
        """Scale what collectives take beyond their latency."""
        rows = _communication(draft)
        _some(rows, "the window has no communication on a device", self.label)
        took = draft.moving()
        shortest = float(took[rows].min())
        latency, why = _latency(draft, shortest)
        latency = (0.0, latency, shortest)[draft.spread + 1]
        factors = np.where(
            took > 0, (latency + np.maximum(took - latency, 0) / self.factor) / np.maximum(took, 1), 1
        )
        draft.scale_rows(rows, factors)
        others = "" if draft.waits else " Waits for other ranks count as data."
        draft.assume(f"A collective takes a latency, {why}, and a time for its data.{others}")


def _latency(draft: Draft, shortest: float) -> tuple[float, str]:
    """What collectives take however little they send, in ns, and where that is from: their shortest calls of the smallest and of the largest size."""
    calls = calls_of(draft.made.scope).table
    sizes = (
        calls.filter(pl.col("device_id") >= 0, pl.col("bus_bytes") > 0, pl.col("duration_ns") > 0)
        .group_by("bus_bytes")
        .agg(pl.col("duration_ns").min())
        .sort("bus_bytes")
        .rows()
    )
    if not sizes:
        return shortest, "that of the shortest one"
    (least, brief), (most, long) = sizes[0], sizes[-1]
    if most < _UNLIKE * least or long <= brief:
        latency = min(shortest, _LATENCY_NS)
        why = (
            "their sizes do not differ enough"
            if most < _UNLIKE * least
            else "the largest do not take long enough"
        )
        return latency, (
            f"for which {format_ns(int(latency))} is assumed, since {why} to show it (0 to {format_ns(int(shortest))})"
        )
    latency = min(max(brief - least * (long - brief) / (most - least), 0.0), shortest)
    return latency, f"{format_ns(int(latency))} as their times by size show"


def _communication(draft: Draft) -> BoolArray:
    rows: BoolArray = (draft.rows["class"] == "communication").to_numpy()
    return rows


def _some(mask: BoolArray, fault: str, label: str, other: BoolArray | None = None) -> None:
    """Raises UsageError if a change fits nothing."""
    if not np.any(mask) and (other is None or not other.any()):
        raise UsageError(fault, remedy=f"leave {label.partition(' ')[0]} out")


def _positive(factor: float) -> None:
    if not 1 / _MOST <= factor <= _MOST:
        raise UsageError(f"{factor:g} is not a factor", remedy="use one from 0.001 to 1000, such as 2x")
