"""How the steps of two sides differ, and how sure that is (DEFINITIONS §9). A side is one run or several of a program.

Which steps count is decided by one rule, `statistics.outliers`: more than 3.5 robust deviations, and 10 %, from the median of the run.
Outliers before the first step that is none are warm-up, unless they are more than a quarter of the run. The others are disturbances,
unless they are more than a tenth of the steps of a side, or so much more frequent on one side that chance would make them so in
one of a hundred comparisons: then they are how the program runs, and those of both sides count.

A side's figure is the mean of its runs' medians (or means), so that each run weighs the same. Neighbouring steps are alike: a run of n
steps holds n / τ independent ones, and the bootstrap draws as many, less one, by which the spread of what is drawn is that of
the estimate. If a side has several runs, each drawn run is moved by what runs differ beyond what their steps explain. Both ends of
the interval are moved away from the estimate by Student's factor, in logarithms, for few runs or few independent steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.facts.units import count_of
from tracekit.scaling.laws import t_quantile
from tracekit.statistics import outliers

__all__ = [
    "FEWEST_STEPS",
    "TOLERANCE",
    "Estimate",
    "Runs",
    "StepComparison",
    "StepFigures",
    "compare_times",
    "counted_steps",
]

Runs: TypeAlias = Sequence[Sequence[int] | npt.NDArray[np.int64]]
Floats: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

FEWEST_STEPS: Final = 5
"""Two sides of four steps that do not overlap at all are still no proof at 1 %."""
TOLERANCE: Final = 0.01
"""Two sides are the same if the interval of the ratio ends within this of 1."""
_DRAWS: Final = 2000
_FEWEST_DRAWS: Final = 200
_DRAWN: Final = 20_000_000
"""Of more steps than this there are fewer draws, so that long runs do not take long."""
_AT_ONCE: Final = 2_000_000
"""So many drawn steps are in memory at a time, and those of one draw."""
_TAIL: Final = 0.025
"""What lies beyond each end of a 95 % interval."""
_WARM_UP: Final = 0.25
_DISTURBED: Final = 0.1
_CHANCE: Final = 0.01
_EXACT: Final = 1000
"""Up to so many pairs of steps all orders are counted; of more the normal distribution is as good."""
_WIDE: Final = 1000
_FARTHEST: Final = 1000
"""Correlations of steps further apart do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """The steps of a side: `steps` count; `warm_up` and `outliers` are left out."""

    runs: int
    steps: int
    independent: float
    """So many independent steps tell as much."""
    warm_up: int
    outliers: int
    median: float
    """The mean of the medians of the runs, of the steps that count; NaN without any."""
    mean: float
    """The mean of their means."""
    kept: tuple[Flags, ...] = field(repr=False, compare=False)
    """Of each run, which steps count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The ratio of new to base, and whether new is larger."""

    ratio: float | None
    """None if base is 0."""
    low: float | None
    """With `high` the 95 % interval of the ratio; None if there is no ratio, or too few steps."""
    high: float | None
    p: float
    """Of the one-sided test: how often chance would make new look so much slower, or more, if it were not."""
    p_faster: float
    """So much faster. Of few steps both together are more than 1."""
    test: str
    """Its name; empty where nothing is tested, since all times are equal or the steps too few."""

    @property
    def unbounded(self) -> bool:
        """Whether the interval is so wide that its ends say nothing: of very few independent steps that differ much."""
        return self.low is not None and self.high is not None and self.low * _WIDE < 1 and self.high > _WIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """How the steps of two sides differ."""

    base: StepFigures
    new: StepFigures
    median: Estimate
    """Of the typical step: the headline."""
    mean: Estimate
    """Of the average step, in which also a change of a few steps shows."""
    verdict: str
    """`slower`, `faster`, `same` or `inconclusive`, by the interval of `median`."""
    method: str
    """How the interval was found."""
    notes: tuple[str, ...]
    """Sentences: which steps do not count, why outliers do, and what the interval does not hold."""

    @property
    def identical(self) -> bool:
        """Whether all times of both sides are equal."""
        return all(one.low == one.high == 1 for one in (self.median, self.mean))


def compare_times(
    base: Runs, new: Runs, *, paired: bool = False, step_times: tuple[Runs, Runs] | None = None
) -> StepComparison:
    """How the steps of two sides differ; a side is a list of runs, a run a list of times in ns in the order of its steps.

    Runs of the same place are pairs if `paired`, and the interval is then of what differs within pairs. With `step_times` the
    times are those of a part of the steps, and the times of the whole steps decide which of them count.

    >>> found = compare_times([[100, 101, 99, 100, 102, 98] * 5], [[110, 111, 109, 110, 112, 108] * 5])
    >>> found.verdict, found.median.ratio, found.base.steps, found.median.p < 0.01
    ('slower', 1.1, 30, True)
    """
    if paired and len(base) != len(new):
        raise ValueError(f"{len(base)} and {len(new)} runs cannot be paired")
    which, warm_up, left_out, notes = counted_steps(*(step_times or (base, new)))
    values = [
        [np.asarray(run, dtype=np.float64)[mask] for run, mask in zip(*side, strict=True) if mask.any()]
        for side in zip((base, new), which, strict=True)
    ]
    share = _independent_share([*values[0], *values[1]])
    sides = [_side(share, *side) for side in zip(values, which, warm_up, left_out, strict=True)]
    paired = paired and len(values[0]) == len(values[1]) > 1
    several = max(side.runs for side in sides) > 1
    if sides[0].steps and len(base) == len(new) and all(map(np.array_equal, base, new)):
        same = Estimate(ratio=1.0, low=1.0, high=1.0, p=1.0, p_faster=1.0, test="")
        found = [same, same]
    elif min(side.steps for side in sides) < FEWEST_STEPS:
        found = [_untested(sides[0].median, sides[1].median), _untested(sides[0].mean, sides[1].mean)]
    else:
        found = [_estimate(values, stat, share, paired) for stat in (np.median, np.mean)]
        if not several:
            found[0] = _ranked(found[0], values, share)
        if min(side.runs for side in sides) == 1:
            who = "A side" if several else "Each side"
            notes.append(f"{who} is one run, which does not show how much runs differ.")
    return StepComparison(
        base=sides[0],
        new=sides[1],
        median=found[0],
        mean=found[1],
        verdict=_verdict(found[0]),
        method=f"bootstrap over {'pairs of runs' if paired else 'runs'} and their steps"
        if several
        else "bootstrap over steps",
        notes=tuple(notes),
    )


def _verdict(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "inconclusive"
    if estimate.low >= 1 / (1 + TOLERANCE) and estimate.high <= 1 + TOLERANCE:
        return "same"
    return "slower" if estimate.low > 1 else "faster" if estimate.high < 1 else "inconclusive"


# -- which steps count ------------------------------------------------------------------------------


def counted_steps(base: Runs, new: Runs) -> tuple[list[list[Flags]], list[int], list[int], list[str]]:
    """Of both sides: which steps of each run count, how many are warm-up, how many outliers do not count; and notes on them."""
    far = [[np.array(outliers(run), dtype=np.bool_) for run in runs] for runs in (base, new)]
    first = [[_leading(flags) for flags in side] for side in far]
    rest = [
        np.concatenate([flags[start:] for flags, start in zip(*side, strict=True)] or [np.zeros(0, np.bool_)])
        for side in zip(far, first, strict=True)
    ]
    steps, hits = [side.size for side in rest], [int(side.sum()) for side in rest]
    often = any(hit > _DISTURBED * size for hit, size in zip(hits, steps, strict=True))
    keep = often or _chance(hits, steps) < _CHANCE
    which = [
        [(np.arange(flags.size) >= start) & (keep | ~flags) for flags, start in zip(*side, strict=True)]
        for side in zip(far, first, strict=True)
    ]
    warm_up, left_out = [sum(side) for side in first], [0 if keep else hit for hit in hits]
    dropped = [
        f"{count_of(number, what)} of {name}"
        for what, numbers in (("warm-up step", warm_up), ("outlier", left_out))
        for name, number in zip(("the base", "the new side"), numbers, strict=True)
        if number
    ]
    notes = [f"Not counted: {', '.join(dropped)}."] if dropped else []
    if keep and any(hits):
        why = "are too many to be disturbances" if often else "are more uneven than chance would make them"
        of = [f"{hit:,} of {count_of(size, 'step')}" for hit, size in zip(hits, steps, strict=True)]
        notes.append(
            f"Steps far from the median of their side are counted, since they {why}: {of[0]} of the base, {of[1]} of the new side."
        )
    return which, warm_up, left_out, notes


def _leading(flags: Flags) -> int:
    """How many outliers stand before the first step that is none; 0 if they are too many for a warm-up."""
    first = int(np.argmin(flags)) if flags.size else 0
    return first if first <= _WARM_UP * flags.size else 0


def _chance(hits: list[int], steps: list[int]) -> float:
    """How likely chance divides that many hits so unevenly among the steps of both sides, or more so (Fisher's exact test)."""
    total = sum(hits)
    least, most = max(0, total - steps[1]), min(total, steps[0])
    ways = [math.exp(_log_ways(steps[0], k) + _log_ways(steps[1], total - k) - _log_ways(sum(steps), total)) for k in range(least, most + 1)]  # fmt: skip
    at = hits[0] - least
    return min(1.0, 2 * min(sum(ways[: at + 1]), sum(ways[at:])))


def _log_ways(of: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose some of so many."""
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)


def _side(share: float, runs: list[Floats], kept: list[Flags], warm_up: int, left_out: int) -> StepFigures:
    steps = sum(run.size for run in runs)
    return StepFigures(
        runs=len(runs),
        steps=steps,
        independent=min(steps, max(len(runs), share * steps)),
        warm_up=warm_up,
        outliers=left_out,
        median=float(np.mean([np.median(run) for run in runs])) if runs else math.nan,
        mean=float(np.mean([np.mean(run) for run in runs])) if runs else math.nan,
        kept=tuple(kept),
    )


def _independent_share(runs: list[Floats]) -> float:
    """1 / τ, τ the autocorrelation time of the ranks of the steps in all runs together.

    That is 1 and twice the correlations of steps 1, 2, 3 … apart, up to the first two that sum to nothing (Geyer's rule). To each
    is added what its estimate lacks in a short run.
    """
    ranked = [_midranks(run) - (run.size + 1) / 2 for run in runs if run.size > 1]
    variance = sum(float(run @ run) for run in ranked)
    if not variance:
        return 1.0
    steps = sum(run.size for run in ranked)

    def correlation(apart: int) -> float:
        long = [run for run in ranked if run.size > apart]
        pairs = sum(run.size - apart for run in long)
        return sum(float(run[apart:] @ run[:-apart]) for run in long) / variance * steps / pairs

    lacking = len(ranked) / steps * (1 + 3 * max(0.0, correlation(1)))
    tau = 1.0
    for apart in range(1, min(_FARTHEST, max(run.size for run in ranked) // 2), 2):
        two = correlation(apart) + correlation(apart + 1) + 2 * lacking
        if two <= 0:
            break
        tau += 2 * two
    return 1 / tau


def _midranks(values: Floats) -> Floats:
    """1 for the least; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


# -- estimates --------------------------------------------------------------------------------------


def _untested(base: float, new: float) -> Estimate:
    return Estimate(ratio=new / base if base > 0 else None, low=None, high=None, p=1.0, p_faster=1.0, test="")


def _estimate(values: list[list[Floats]], stat: Any, share: float, paired: bool) -> Estimate:
    """The ratio of the sides' figures, its interval, and Student's test with the standard error of the bootstrap."""
    random = np.random.default_rng(0)
    figures = [np.array([stat(run) for run in runs]) for runs in values]
    steps = sum(run.size for runs in values for run in runs)
    draws = min(_DRAWS, max(_FEWEST_DRAWS, _DRAWN // steps))
    drawn = [np.stack([_drawn(run, stat, share, draws, random) for run in runs]) for runs in values]
    paired = paired and all(side.all() for side in figures)
    moves, freedom = _moves(figures, drawn, paired)
    for side in (1,) if paired else (0, 1):
        drawn[side] *= 1 + random.choice(moves, drawn[side].shape)
    test = f"Student's t test of the {'pairs' if paired else 'runs'}" if freedom else "Student's t test"
    freedom = max(1, freedom or int(share * steps) - 2)
    base, new = (float(side.mean()) for side in figures)
    means = [side.mean(axis=0) for side in drawn]
    error = float(np.std(means[1] - means[0]))
    p, faster = ((_tail(by / error, freedom) if error else float(by <= 0)) for by in (new - base, base - new))
    if not base:
        return Estimate(ratio=None, low=None, high=None, p=p, p_faster=faster, test=test)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.nan_to_num(means[1] / means[0], nan=1.0, posinf=math.inf)
    ratio, wider = new / base, t_quantile(freedom) / t_quantile(10**9)
    ends = np.quantile(ratios, [_TAIL, 1 - _TAIL], method="nearest")
    if ratio:
        # As a power: for ratios far from 1 the lower end would lie below 0 else, and the sides could not be exchanged.
        with np.errstate(over="ignore"):
            ends = (
                ratio * np.maximum(ends / ratio, 0) ** wider
            )  # runs that differ a thousandfold would draw times below 0
    return Estimate(
        ratio=ratio,
        low=min(ratio, float(ends[0])),
        high=max(ratio, float(ends[1])),
        p=p,
        p_faster=faster,
        test=test,
    )


def _drawn(run: Floats, stat: Any, share: float, draws: int, random: np.random.Generator) -> Floats:
    """The figure of a run, of as many steps drawn from it as are independent, less one; again and again."""
    size = max(1, round(share * run.size) - 1)
    parts = np.array_split(np.arange(draws), min(draws, draws * size // _AT_ONCE + 1))
    return np.concatenate(
        [stat(run[random.integers(0, run.size, (part.size, size))], axis=1) for part in parts]
    )


def _moves(figures: list[Floats], drawn: list[Floats], paired: bool) -> tuple[Floats, int]:
    """By what runs, or the ratios of pairs, differ beyond what their steps explain, relative to their mean; and the degrees of
    freedom, 0 if no side has several runs.
    """
    known = [side for side in (0, 1) if figures[side].size > 1 and figures[side].all()]
    if not known:
        return np.zeros(1), 0
    steps = [(drawn[side].std(axis=1) / figures[side]) ** 2 for side in known]
    groups = [figures[1] / figures[0]] if paired else [figures[side] for side in known]
    explained = float(np.mean(steps[0] + steps[1] if paired else np.concatenate(steps)))
    off = [group / group.mean() - 1 for group in groups]
    freedom = sum(group.size - 1 for group in groups)
    between = sum(float(each @ each) for each in off) / freedom
    beyond = math.sqrt(max(0.0, 1 - explained / between)) if between else 0.0
    return beyond * np.concatenate([each * math.sqrt(each.size / (each.size - 1)) for each in off]), freedom


def _ranked(estimate: Estimate, values: list[list[Floats]], share: float) -> Estimate:
    """The same estimate with the p value of the rank test of Mann and Whitney; where steps are alike, for as many as are independent."""
    base, new = (np.concatenate(runs) for runs in values)
    ranks = _midranks(np.concatenate([base, new]))
    test = "the rank test of Mann and Whitney"
    if share == 1:
        p, faster = (_rank_test(each, base.size) for each in (ranks, ranks.size + 1 - ranks))
        return replace(estimate, p=p, p_faster=faster, test=test)
    variance = float(np.var(ranks, ddof=1)) * (1 / base.size + 1 / new.size) / share
    ahead = float(ranks[base.size :].mean() - ranks[: base.size].mean())
    p = _tail(ahead / math.sqrt(variance), max(1, int(share * ranks.size) - 2))
    return replace(estimate, p=p, p_faster=1 - p, test=f"{test}, corrected for steps that are alike")


def _rank_test(ranks: Floats, of_base: int) -> float:
    """How often chance puts the new steps so far behind those of the base, the first in `ranks`, or farther."""
    of_new = ranks.size - of_base
    pairs, ahead = of_base * of_new, float(ranks[of_base:].sum()) - of_new * (of_new + 1) / 2
    if pairs <= _EXACT and np.unique(ranks).size == ranks.size:
        ways = _ways_ahead(of_base, of_new)
        return sum(ways[round(ahead) :]) / sum(ways)
    deviation = math.sqrt(float(np.var(ranks, ddof=1)) * pairs / ranks.size)
    return 0.5 * math.erfc((ahead - pairs / 2 - 0.5) / deviation / math.sqrt(2)) if deviation else 1.0


@cache
def _ways_ahead(one: int, other: int) -> tuple[int, ...]:
    """In how many orders of two groups 0, 1, 2 … pairs have the second group's member last: the coefficients of Gauss's binomial."""
    ways = [1] + [0] * (one * other)
    for size in range(1, one + 1):
        for at in range(len(ways) - 1, other + size - 1, -1):  # times 1 − x^(other + size)
            ways[at] -= ways[at - other - size]
        for at in range(size, len(ways)):  # by 1 − x^size
            ways[at] += ways[at - size]
    return tuple(ways)


def _tail(t: float, freedom: int) -> float:
    """The part of Student's distribution above t (Wallace's approximation; of few degrees of freedom a small tail is up to a quarter too large)."""
    z = math.sqrt(freedom * math.log1p(t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return 0.5 * math.erfc(math.copysign(z, t) / math.sqrt(2))
