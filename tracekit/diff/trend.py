"""Figures over many runs of a program, and the runs with which the step time changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace
from itertools import pairwise
from math import comb, exp, log
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.diff import gate
from tracekit.diff.runs import Run
from tracekit.digest import NO_STEP, Digest, Facts
from tracekit.errors import InconclusiveError
from tracekit.names import told_apart

__all__ = ["FEWEST", "LevelChange", "Levels", "Order", "Trend", "levels_of", "median_interval", "step_times", "trend_of"]  # fmt: skip

Order = Literal["recorded", "changed", "name", "given"]
Floats = npt.NDArray[np.float64]

FEWEST: Final = 6
"""Of fewer runs the noise between them is not known well enough to tell a change from it."""
_PENALTY: Final = 16.0
"""By so many variances of the noise, and 2 / runs more, a change must lessen the sum of squares. With normal noise, of flat series of 30
runs 1 % then have one, of those of 6 runs 3 %; of jumps by five standard deviations in 30 runs 98 % are found within one run."""
_LENIENT: Final = 9.0
_SHORTEST: Final = 2
_LONE: Final = 3.0
"""A run that lies so many standard deviations of a difference beyond both runs beside it is alone."""
_LEAST_NOISE: Final = 0.002
_INNER: Final = (0.8, 0.5586)
"""This share of the differences, the smallest, and their mean for a normal distribution: a change makes a large one."""
_NO_LOWER: Final = 0.7
_SIDES: Final = 1.96
_MOST_CATEGORIES: Final = 6
_MOST_CAUSES: Final = 3
_LEAST_PART: Final = 0.1
"""What is a smaller part of a change is not named."""


# -- change points ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Levels:
    """What levels the times of runs have."""

    noise: float | None
    """The standard deviation between runs of one level, relative to the time; None of too few runs."""
    starts: tuple[int, ...]
    """The places of the runs with which a new level begins."""
    lone: tuple[int, ...] = ()
    """The places of runs that differ from both beside them; they count for no level."""

    def members(self, size: int) -> list[list[int]]:
        """The places of the runs of each level, of so many runs."""
        edges = (0, *self.starts, size)
        return [[at for at in range(*pair) if at not in self.lone] for pair in pairwise(edges)]


def levels_of(times: Sequence[float]) -> Levels:
    """The levels of these times in their order, at least two runs each.

    Of all ways to cut the series the one is taken for which the squares of the distances to the mean of each piece (of the logarithms of
    the times, in variances of the noise), plus a penalty of 16 a cut (more of few runs), sum to the least. The noise is that between neighbours.

    >>> levels_of([100, 101, 100, 99, 100, 110, 111, 110, 109, 110]).starts
    (5,)
    """
    if len(times) < FEWEST:
        return Levels(None, ())
    logs = np.log(np.asarray(times, dtype=np.float64))
    lone = _lone(logs, _neighbour_noise(logs))
    kept = np.setdiff1d(np.arange(logs.size), lone)
    noise = _neighbour_noise(logs[kept])
    noise = min(noise, max(_residual_noise(logs[kept], noise), _NO_LOWER * noise))
    noise = max(noise, _LEAST_NOISE)
    starts = _cuts(logs[kept] / noise, _PENALTY * (1 + 2 / logs.size))
    return Levels(noise, tuple(int(kept[at]) for at in starts), tuple(map(int, lone)))


def _neighbour_noise(logs: Floats) -> float:
    share, mean = _INNER
    apart = np.sort(np.abs(np.diff(logs))) / 2**0.5
    return max(float(apart[: max(1, int(np.ceil(share * apart.size)))].mean()) / mean, _LEAST_NOISE)


def _residual_noise(logs: Floats, noise: float) -> float:
    """That around the levels which a lenient penalty gives: less than that of neighbours, if there are many changes."""
    edges = [0, *_cuts(logs / noise, _LENIENT), logs.size]
    rest = sum(
        float(((piece := logs[a:b]) - piece.mean()) @ (piece - piece.mean())) for a, b in pairwise(edges)
    )
    return float((rest / max(1, logs.size - len(edges) + 1)) ** 0.5)


def _lone(logs: Floats, noise: float) -> npt.NDArray[np.int64]:
    padded = np.concatenate([logs[[2]], logs, logs[[-3]]])
    left, right = padded[1:-1] - padded[:-2], padded[1:-1] - padded[2:]
    least = np.minimum(np.abs(left), np.abs(right))
    return np.flatnonzero((left * right > 0) & (least > _LONE * 2**0.5 * noise))


def _cuts(values: Floats, penalty: float) -> list[int]:
    """Where the best pieces begin, without the first (optimal partitioning)."""
    size = values.size
    sums, squares = (np.concatenate([[0.0], np.cumsum(each)]) for each in (values, values**2))
    best, before = np.full(size + 1, np.inf), np.zeros(size + 1, dtype=np.int64)
    best[0] = -penalty
    for end in range(_SHORTEST, size + 1):
        starts = np.arange(end - _SHORTEST + 1)
        within = (
            squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        )  # of each piece
        costs = best[starts] + penalty + within
        before[end] = costs.argmin()
        best[end] = costs[before[end]]
    cuts, at = [], size
    while (at := int(before[at])) > 0:
        cuts.append(at)
    return cuts[::-1]


# -- figures of runs ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LevelChange:
    """That the step time has another level from a run on."""

    at: int
    """The place of that run."""
    ratio: float
    """The time after it over that before."""
    low: float
    high: float
    """Where the ratio lies in 95 % of cases, by the noise between runs."""
    parts: tuple[tuple[str, float], ...]
    """What changed most along with it, in ns of a step: idle causes as `idle CAUSE`, and kernel categories."""
    told: tuple[tuple[str, str, str], ...]
    """What is known to differ between this run and the one before it: what, before, after."""


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """Runs of a program in their order."""

    runs: tuple[Run, ...]
    order: Order
    plain: bool
    """Whether times are without the profiler; else they are those of the recorded steps."""
    table: pl.DataFrame
    """One row per run: `run`, `when_ns` (UTC; null if the order is by no time), `steps`, `step_ns` (median), `step_low_ns`, `step_high_ns`, `throughput_per_s`, `idle_share`,
    `communication_share` (exposed), `peak_memory_bytes`, `level_ns`, `lone`."""
    categories: pl.DataFrame
    """`run`, and for each of the categories with the most time its mean in a step."""
    levels: Levels
    changes: tuple[LevelChange, ...]
    left_out: tuple[tuple[str, str], ...] = field(default=())
    """Runs without steps and of another program, each with why."""


def trend_of(runs: Sequence[Run], *, by_name: bool = False) -> Trend:
    """The figures of these runs, in order of the time at which they were recorded.

    If that is not known of all, when their files were changed counts, and else the order in which they are given. Runs of another
    workload than most, and runs without steps, are left out. Raises InconclusiveError if none is left.

    >>> from tracekit.diff.sides import read_sides
    >>> (side,) = read_sides([["sample_traces/cnn_cpu"]])
    >>> trend_of(side.runs).table["steps"].to_list()
    [3]
    """
    names = told_apart([run.name for run in runs])
    kept, left_out = _comparable([run if run.name == name else replace(run, name=name) for run, name in zip(runs, names, strict=True)])  # fmt: skip
    if not kept:
        raise InconclusiveError("no run has steps", remedy="name the ranges that are steps with --step REGEX")
    order, times = _order(kept, by_name=by_name)
    ranked = sorted(zip(times, kept, strict=True), key=lambda pair: pair[0])
    kept = [run for _, run in ranked]
    plain = all(run.digests[0].facts.undisturbed_ns for run in kept)
    rows = [_figures(run, plain=plain) for run in kept]
    middles = [row["step_ns"] for row in rows]
    levels = levels_of(middles)
    members = levels.members(len(kept))
    means = [round(exp(float(np.log([middles[at] for at in own]).mean())), 1) for own in members]
    of_run = [sum(at >= start for start in levels.starts) for at in range(len(kept))]
    timed = order in ("recorded", "changed")
    whens = [at if timed else None for at, _ in ranked]
    table = pl.DataFrame(rows, _FIGURES, orient="row").with_columns(
        pl.Series("when_ns", whens, dtype=pl.Int64),
        pl.Series("level_ns", [means[each] for each in of_run], dtype=pl.Float64),
        pl.Series("lone", [at in levels.lone for at in range(len(kept))], dtype=pl.Boolean),
    )
    parts = [_parts(run) for run in kept]
    changes = tuple(_change(level, members, means, levels, parts, kept) for level in range(1, len(members)))
    return Trend(tuple(kept), order, plain, table, _categories(kept, parts), levels, changes, tuple(left_out))


_FIGURES: Final = {
    "run": pl.String, "when_ns": pl.Int64, "steps": pl.Int64, "step_ns": pl.Float64, "step_low_ns": pl.Int64, "step_high_ns": pl.Int64,
    "throughput_per_s": pl.Float64, "idle_share": pl.Float64, "communication_share": pl.Float64, "peak_memory_bytes": pl.Int64,
}  # fmt: skip


def step_times(run: Run, *, plain: bool) -> list[int]:
    """The times of the steps of a run in ns, each that of its slowest rank: without the profiler, or as recorded. Empty if there are none."""
    if plain:
        return list(run.digests[0].facts.undisturbed_ns)
    ranks = [one for one in run.digests if one.has_steps]
    return gate.step_times(ranks).tolist() if ranks else []


def median_interval(times: Sequence[int]) -> tuple[int, int] | None:
    """Where the median lies in at least 95 % of cases, by the binomial distribution; None of fewer than six times.

    >>> median_interval([1, 2, 3, 4, 5, 6]), median_interval([1, 2, 3])
    ((1, 6), None)
    """
    size, ordered = len(times), sorted(times)
    below, outside = -1, 0.0
    while 2 * (outside + comb(size, below + 1) / 2**size) <= 0.05:
        below += 1
        outside += comb(size, below) / 2**size
    return (ordered[below], ordered[size - 1 - below]) if below >= 0 else None


def _figures(run: Run, *, plain: bool) -> dict[str, Any]:
    times = step_times(run, plain=plain)
    middle, interval = float(np.median(times)), median_interval(times)
    facts = run.digests[0].facts
    kinds: Counter[str] = Counter()
    for one in run.digests:
        rows = one.values.join(one.leaves, on="leaf")
        kinds.update(dict(rows.group_by(pl.col("kind").cast(pl.String)).agg(pl.col("ns").sum()).rows()))
    whole = sum(kinds.values())
    peaks = [peak for one in run.digests if (peak := one.facts.peak_memory_bytes) is not None]
    return {
        "run": run.name,
        "steps": len(times),
        "step_ns": middle,
        "step_low_ns": None if interval is None else interval[0],
        "step_high_ns": None if interval is None else interval[1],
        "throughput_per_s": facts.samples_per_step * 1e9 / middle
        if facts.samples_per_step and middle
        else None,
        "idle_share": kinds["idle"] / whole if whole else None,
        "communication_share": kinds["communication"] / whole if whole else None,
        "peak_memory_bytes": max(peaks, default=None),
    }


def _parts(run: Run) -> dict[str, float]:
    """The mean of a step in ns, by category; of several ranks and devices the mean."""
    parts: Counter[str] = Counter()
    for one in run.digests:
        label = pl.when(pl.col("kind") == "idle").then("idle " + pl.col("category")).otherwise("category")
        rows = one.values.join(one.leaves.with_columns(label.alias("part")), on="leaf")
        sums = rows.group_by("part", maintain_order=True).agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)
        share = one.facts.devices * _count(one) * len(run.digests)
        parts.update({str(part): ns / share for part, ns in sums.rows()})
    return dict(parts)


def _count(one: Digest) -> int:
    return int((one.steps["step"] != NO_STEP).sum()) or 1


def _categories(runs: Sequence[Run], parts: Sequence[dict[str, float]]) -> pl.DataFrame:
    totals: Counter[str] = Counter()
    for own in parts:
        totals.update(own)
    names = [name for name, _ in totals.most_common(_MOST_CATEGORIES)]
    columns = {f"{name}_ns": [own.get(name, 0.0) for own in parts] for name in names}
    return pl.DataFrame({"run": [run.name for run in runs], **columns})


# -- which runs, in which order -----------------------------------------------------------------------


def _comparable(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[str, str]]]:
    left_out = [(run.name, "no steps; --step REGEX names the ranges that are its steps") for run in runs if not step_times(run, plain=False)]  # fmt: skip
    timed = [run for run in runs if step_times(run, plain=False)]
    names = Counter(name for run in timed if (name := run.digests[0].facts.workload))
    most = names.most_common(1)[0][0] if names else ""
    others = [run for run in timed if run.digests[0].facts.workload not in ("", most)]
    left_out += [(run.name, f"it is a run of {run.digests[0].facts.workload}, not {most}") for run in others]
    return [run for run in timed if run not in others], left_out


def _order(runs: Sequence[Run], *, by_name: bool) -> tuple[Order, list[Any]]:
    """What orders the runs, and the key of each."""
    if by_name:  # run 10 comes behind run 9
        pieces = [re.split(r"(\d+)", run.name) for run in runs]
        return "name", [
            [(int(each), "") if each.isdecimal() else (0, each) for each in own] for own in pieces
        ]
    if None not in (recorded := [run.recorded_ns for run in runs]):
        return "recorded", recorded
    if None not in (changed := [run.changed_ns for run in runs]):
        return "changed", changed
    return "given", list(range(len(runs)))


# -- what changed -------------------------------------------------------------------------------------


def _change(
    level: int,
    members: Sequence[Sequence[int]],
    means: Sequence[float],
    levels: Levels,
    parts: Sequence[dict[str, float]],
    runs: Sequence[Run],
) -> LevelChange:
    old, new, at = members[level - 1], members[level], levels.starts[level - 1]
    ratio = means[level] / means[level - 1]
    error = exp(_SIDES * (levels.noise or 0.0) * (1 / len(old) + 1 / len(new)) ** 0.5)
    names = sorted({name for each in (*old, *new) for name in parts[each]})
    by = {
        name: sum(parts[each].get(name, 0.0) for each in new) / len(new)
        - sum(parts[each].get(name, 0.0) for each in old) / len(old)
        for name in names
    }
    least = _LEAST_PART * abs(means[level] - means[level - 1])
    along = [each for each in by.items() if each[1] * log(ratio) > 0 and abs(each[1]) >= least]
    along.sort(key=lambda each: -abs(each[1]))
    told = _told(runs[at - 1].digests[0].facts, runs[at].digests[0].facts)
    return LevelChange(at, ratio, ratio / error, ratio * error, tuple(along[:_MOST_CAUSES]), told)


def _told(old: Facts, new: Facts) -> tuple[tuple[str, str, str], ...]:
    before, after = (
        {"device": one.device, "devices": one.devices, **one.settings, **one.versions} for one in (old, new)
    )
    return tuple(
        (name, str(before[name]), str(value))
        for name, value in after.items()
        if name in before and before[name] != value
    )
