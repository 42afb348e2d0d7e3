"""Speed-up and efficiency of runs against the one on the fewest ranks, and what the lost part is lost to (DEFINITIONS §11).

The cost of a sample is the time of all ranks in a step over the samples of it. Each part of the ranks' time has its part of this cost,
so the growth of the parts is the growth of the cost, and over the cost it is the efficiency that is lost: exactly, in fractions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from statistics import median
from typing import Final, Literal

import numpy as np
import polars as pl

from tracekit.classes import dataclass
from tracekit.scaling.laws import Fit, fit_messages, fit_steps
from tracekit.scaling.runs import PARTS, Run
from tracekit.trace import Schema

__all__ = ["BatchLimit", "Kind", "Scaling", "losses_of", "scaling_of"]

Kind = Literal["strong", "weak", "mixed", "unknown"]

_SHRINKS: Final = 0.5
"""A rank's compute time that shrinks by less than this power of its batch no longer follows it."""
_FELT: Final = Fraction(1, 50)
"""Compute that grows by less than this part of the step is not worth a word."""
LEAST_COUNTS: Final = 2
LEAST_STEPS: Final = 3
"""Of fewer steps the median has no interval."""
_DRAWS: Final = 1000

RUNS: Final[Schema] = {
    "run": pl.String, "ranks": pl.Int64, "traced_ranks": pl.Int64, "samples": pl.Int64, "batch_per_rank": pl.Float64,
    "step_ns": pl.Float64, "steps": pl.Int64, "throughput_per_s": pl.Float64,
    "speedup": pl.Float64, "efficiency": pl.Float64, "efficiency_low": pl.Float64, "efficiency_high": pl.Float64, "lost_share": pl.Float64,
    **{f"{part}_loss_share": pl.Float64 for part in PARTS},
}  # fmt: skip
LOSSES: Final[Schema] = {
    "run": pl.String, "ranks": pl.Int64, "part": pl.String, "cause": pl.String,
    "per_sample_ns": pl.Float64, "loss_share": pl.Float64,
}  # fmt: skip

Parts = dict[tuple[str, str], Fraction]


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """From `ranks` on the batch of a rank shrinks (`before` to `after`) without its compute time: of that, `left` (1 is all) remains."""

    ranks: int
    before: float
    after: float
    left: float


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """How runs of one program compare."""

    runs: tuple[Run, ...]
    kind: Kind
    plain: bool
    """Whether the step times are those without the profiler, which all runs then have."""
    table: pl.DataFrame
    """One row per run (`RUNS`), by ranks. `step_ns` is the median; `efficiency` = `speedup` × fewest ranks / ranks, and `lost_share`, what is lost of it, is
    the sum of the `*_loss_share`; null without batches. From `efficiency_low` to `efficiency_high` it lies in 95 % of cases by the steps' scatter, null with fewer than 3 steps. The run on the fewest ranks is the measure; of several their mean.
    """
    losses: pl.DataFrame
    """One row per run and part of the ranks' time (`LOSSES`), idle time by cause; a negative loss is a gain."""
    batch_limit: BatchLimit | None
    steps: tuple[Fit, ...]
    """What the step times follow (`laws.fit_steps`), the best first; empty if there are too few runs."""
    messages: tuple[Fit, ...]
    """What the collectives' times follow (`laws.fit_messages`)."""


def scaling_of(runs: Sequence[Run], *, without_batch: Literal["strong", "weak"] | None = None) -> Scaling:
    """The comparison of these runs of one program; those without steps count for nothing.

    If a batch is not recorded, `without_batch` says which one is the same in all runs: that of all ranks together (strong) or
    of each (weak). Without it such runs have step times only.
    """
    timed = [run for run in runs if run.step_times]
    plain = all(run.plain_times for run in timed)
    if plain:
        timed = [replace(run, step_times=run.plain_times) for run in timed]
    assumed = without_batch is not None and any(run.samples is None for run in timed)
    if assumed:
        timed = [replace(run, samples=1 if without_batch == "strong" else run.ranks) for run in timed]
    sized = [run for run in timed if run.samples and run.shares]
    first = [run for run in sized if run.ranks == min(one.ranks for one in sized)]
    base = _mean_of([_cost_of(run) for run in first])
    ends = _intervals(sized, first)
    rows = [
        _row(run) | (_compared(run, base, first[0].ranks) | ends[run.name] if run in sized else {})
        for run in timed
    ]
    if assumed:  # the batches are known as multiples of one another only
        rows = [row | {"samples": None, "batch_per_rank": None, "throughput_per_s": None} for row in rows]
    messages = [run.messages for run in timed]
    return Scaling(
        tuple(timed),
        _kind(sized),
        plain,
        pl.DataFrame(rows, schema=RUNS, orient="row"),
        pl.DataFrame([row for run in sized for row in _lost(run, base)], schema=LOSSES, orient="row"),
        _batch_limit(sized),
        fit_steps([(run.ranks, float(_batch(run)), float(_step_of(run))) for run in sized]),
        fit_messages(pl.concat(messages)) if messages else (),
    )


def losses_of(base: Parts, cost: Parts) -> Parts:
    """What each part loses of the efficiency of a run that costs `cost` where it should cost `base`; their sum is 1 − efficiency.

    >>> losses_of({("compute", ""): Fraction(3)}, {("compute", ""): Fraction(3), ("waits", ""): Fraction(1)})
    {('compute', ''): Fraction(0, 1), ('waits', ''): Fraction(1, 4)}
    """
    whole = sum(cost.values())
    return {
        part: (cost.get(part, Fraction()) - base.get(part, Fraction())) / whole
        for part in dict.fromkeys([*cost, *base])
    }


def _step_of(run: Run) -> Fraction:
    return Fraction(median(run.step_times))


def _batch(run: Run) -> Fraction:
    """The batch of a rank."""
    return Fraction(run.samples or 0, run.ranks)


def _cost_of(run: Run) -> Parts:
    """The ranks' time for a sample, in ns by part."""
    whole = _step_of(run) / _batch(run)
    return {part: share * whole for part, share in run.shares.items()}


def _mean_of(costs: Sequence[Parts]) -> Parts:
    sums: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for cost in costs:
        for part, ns in cost.items():
            sums[part] += ns / len(costs)
    return dict(sums)


def _row(run: Run) -> dict[str, object]:
    steps = {"step_ns": float(_step_of(run)), "steps": len(run.step_times)}
    return {"run": run.name, "ranks": run.ranks, "traced_ranks": run.traced, **steps}


def _compared(run: Run, base: Parts, least: int) -> dict[str, object]:
    cost = _cost_of(run)
    efficiency = sum(base.values(), Fraction()) / sum(cost.values(), Fraction())
    lost: defaultdict[str, Fraction] = defaultdict(Fraction)
    for (part, _), loss in losses_of(base, cost).items():
        lost[part] += loss
    return {
        "samples": run.samples,
        "batch_per_rank": float(_batch(run)),
        "throughput_per_s": float((run.samples or 0) / _step_of(run) * 10**9),
        "speedup": float(efficiency * run.ranks / least),
        "efficiency": float(efficiency),
        "lost_share": float(1 - efficiency),
        **{f"{part}_loss_share": float(lost[part]) for part in PARTS},
    }


def _intervals(runs: Sequence[Run], first: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Where the efficiency of each run lies in 95 % of cases: medians of steps that are drawn again and again, with a seed."""
    if any(len(run.step_times) < LEAST_STEPS for run in runs):
        return {run.name: {} for run in runs}
    draw = np.random.default_rng(0)
    shape = {run.name: (_DRAWS, len(run.step_times)) for run in runs}
    costs = {
        run.name: np.median(draw.choice(run.step_times, shape[run.name]), axis=1) / float(_batch(run))
        for run in runs
    }
    ends = {
        name: np.quantile(np.mean([costs[one.name] for one in first], axis=0) / cost, (0.025, 0.975))
        for name, cost in costs.items()
    }
    return {
        name: {"efficiency_low": float(low), "efficiency_high": float(high)}
        for name, (low, high) in ends.items()
    }


def _lost(run: Run, base: Parts) -> list[dict[str, object]]:
    cost = _cost_of(run)
    lost = losses_of(base, cost)
    return [
        {"run": run.name, "ranks": run.ranks, "part": part, "cause": cause or None,
         "per_sample_ns": float(cost.get((part, cause), 0)), "loss_share": float(lost[part, cause])}
        for part, cause in sorted(lost, key=lambda key: (-lost[key], key))
    ]  # fmt: skip


def _kind(runs: Sequence[Run]) -> Kind:
    if len({run.ranks for run in runs}) < LEAST_COUNTS:
        return "unknown"
    if len({run.samples for run in runs}) == 1:
        return "strong"
    return "weak" if len({_batch(run) for run in runs}) == 1 else "mixed"


def _batch_limit(runs: Sequence[Run]) -> BatchLimit | None:
    """The first step from one number of ranks to the next at which compute no longer shrinks with the batch of a rank."""
    first = sorted({run.ranks: run for run in reversed(runs)}.values(), key=lambda run: run.ranks)
    for one, other in pairwise(first):
        before, after = _batch(one), _batch(other)
        times = [run.shares.get(("compute", ""), 0) * _step_of(run) for run in (one, other)]
        if after < before and all(times):
            left = float(times[1] / times[0])
            grown = times[1] / after - times[0] / before
            felt = grown * after >= _FELT * _step_of(other)
            if felt and left > float(after / before) ** _SHRINKS:
                return BatchLimit(other.ranks, float(before), float(after), left)
    return None
