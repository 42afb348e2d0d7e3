"""What the steps of a series consist of, by laws fitted to its sizes, and what techniques of the largest system would change.

The laws are those of `tracekit.scaling`: compute that follows the batch of a chip, what is fixed, and messages around a ring, along a tree or on a
2-D torus. Where the samples of an epoch are not logged, the time of a step is known up to a factor only, so all parts are shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import polars as pl

from tracekit.classes import dataclass
from tracekit.mlperf.cells import Cell, ends_of, series_of, sizes_of
from tracekit.scaling.laws import HOPS, Fit, fit_steps
from tracekit.trace import Schema

__all__ = ["LAWS", "TECHNIQUES", "efficiency_parts", "laws_table", "step_laws", "techniques_table"]

LAWS: Final[Schema] = {
    "series": pl.String, "law": pl.String, "sizes": pl.Int64, "compute_share": pl.Float64, "fixed_share": pl.Float64, "messages_share": pl.Float64,
    "residual": pl.Float64, "error": pl.Float64, "best": pl.Boolean,
}  # fmt: skip
"""Columns of `laws_table`. The shares are those of a step on the most chips; `residual` is the root of the mean square of the relative errors, `error` their mean
for each size when the law is fitted to the others, null where those are too few."""
TECHNIQUES: Final[Schema] = {
    "series": pl.String, "accelerators": pl.Int64, "technique": pl.String, "score_min": pl.Float64, "predicted_min": pl.Float64, "gain": pl.Float64,
    "at_most": pl.Boolean, "assumption": pl.String,
}  # fmt: skip
"""Columns of `techniques_table`: on the most chips of a series the score, and what it would be; null where the results do not tell. `at_most`: it is a bound."""
_CLOSE: Final = 0.05
"""Laws from which the sizes lie further say nothing about them."""
_FEWEST: Final = 3
"""Sizes; of two, no law can be wrong."""
_SMALL_BATCH: Final = 4
"""Samples of a chip below which it may pay to give a sample to two chips."""


@dataclass(frozen=True, slots=True)
class _Size:
    chips: int
    batch: float
    """Of a chip."""
    step: float
    """Training time of a step, up to a factor of the series."""


def step_laws(group: Sequence[Cell]) -> tuple[Fit, ...]:
    """The laws that the steps of a series' sizes fit, the best first; none if there are too few."""
    sizes = [size for cell in group if (size := _size(cell)) is not None]
    if len({size.chips for size in sizes}) < _FEWEST:
        return ()
    return fit_steps([(size.chips, size.batch, size.step) for size in sizes])


def _size(cell: Cell) -> _Size | None:
    epochs, shares = cell.epochs, cell.shares
    if not cell.accelerators or not cell.batch or not epochs or not cell.score_s or shares is None:
        return None
    return _Size(
        cell.accelerators, cell.batch / cell.accelerators, cell.score_s * shares[0] * cell.batch / epochs
    )


def laws_table(cells: Sequence[Cell]) -> pl.DataFrame:
    """One row per series and law that its sizes tell (`LAWS`)."""
    rows = []
    for name, group in series_of(cells).items():
        for fit in step_laws(group):
            compute, fixed, messages = _parts(fit, group)
            rows.append(
                (name, fit.law, fit.points, compute, fixed, messages, fit.residual, fit.error, fit.best)
            )
    return pl.DataFrame(rows, schema=LAWS, orient="row")


def _parts(fit: Fit, group: Sequence[Cell], law: str | None = None) -> tuple[float, float, float]:
    """Compute, what is fixed and messages in a step on the most chips, as shares of it; messages as another law has them."""
    sizes = [size for cell in group if (size := _size(cell)) is not None]
    most, least = sizes[-1], min(sizes, key=lambda size: size.chips)
    compute = fit.values.get("compute_ns", 0.0) * most.batch / least.batch
    fixed, alpha = fit.values.get("fixed_ns", 0.0), fit.values.get("alpha_ns", 0.0)
    own = alpha * 2 * HOPS[fit.law](most.chips) if alpha else 0.0
    messages = alpha * 2 * HOPS[law](most.chips) if alpha and law else own
    whole = compute + fixed + own
    return compute / whole, fixed / whole, messages / whole


# -- techniques ------------------------------------------------------------------------------------


def techniques_table(cells: Sequence[Cell]) -> pl.DataFrame:
    """What techniques of training on pods would gain on the most chips of each series with several sizes (`TECHNIQUES`)."""
    rows = []
    for name, group in series_of(cells).items():
        (_, most), several = ends_of(group), len(sizes_of(group)) > 1
        score = most.score_s
        if several and score and most.shares is not None:
            for technique, predicted, at_most, assumption in _techniques(group, most, score):
                gain = None if predicted is None else 1 - predicted / score
                minutes = None if predicted is None else predicted / 60
                rows.append(
                    (name, most.accelerators, technique, score / 60, minutes, gain, at_most, assumption)
                )
    return pl.DataFrame(rows, schema=TECHNIQUES, orient="row")


def _techniques(
    group: Sequence[Cell], most: Cell, score: float
) -> Iterator[tuple[str, float | None, bool, str]]:
    training, evaluation, _ = most.shares or (1.0, 0.0, 0.0)
    lengths = [end - begin for run in most.succeeded for begin, end in run.evaluation_s]
    last = min(float(np.mean(lengths)) if lengths else 0.0, evaluation * score)
    if lengths:
        yield (
            "evaluation beside training", score - evaluation * score + last, False,
            "Evaluations run while training goes on; the run waits for the last one only.",
        )  # fmt: skip
    fits = [fit for fit in step_laws(group) if fit.residual <= _CLOSE]
    steps, chips = training * score, most.accelerators or 1
    ring = next((fit for fit in fits if fit.law == "ring" and fit.values.get("alpha_ns")), None)
    if ring is not None:
        saved = _parts(ring, group)[2] - _parts(ring, group, "torus")[2]
        yield (
            "2-D gradient summation", score - steps * saved, not ring.best,
            "Messages go around a ring of all chips, and would go along both sides of a square grid, each as fast as before.",
        )  # fmt: skip
    fixed = max((_parts(fit, group)[1] for fit in fits), default=0.0)
    if fixed:
        yield (
            "weight-update sharding", score - steps * fixed * (1 - 1 / chips), True,
            "All that is fixed in a step is the weight update; each chip would update its part of the weights and send it to the others.",
        )  # fmt: skip
    compute = max((_parts(fit, group)[0] for fit in fits), default=0.0)
    if compute and most.batch and most.batch <= _SMALL_BATCH * chips:
        yield (
            "spatial partitioning", score - steps * compute / 2, True,
            "Two chips would share each sample, with twice the chips; the borders that they exchange (halos) cost nothing.",
        )  # fmt: skip


# -- where efficiency goes -------------------------------------------------------------------------


def efficiency_parts(group: Sequence[Cell]) -> list[tuple[int, dict[str, float]]]:
    """Of each size of a series, at its fastest batch, the efficiency against the smallest, and what is lost of it to more epochs, evaluation, the start and slower training.

    Each is the growth of its chip-seconds; a part that shrinks counts as no loss, and the others are lessened alike, so that all sum to 1.
    """
    fastest = [min(size, key=lambda cell: cell.score_s or float("inf")) for size in sizes_of(group)]
    least, found = ends_of(group)[0], []
    for cell in (least, *fastest[1:]):
        if (
            cell.score_s
            and least.score_s
            and cell.accelerators
            and least.accelerators
            and cell.shares
            and least.shares
        ):
            grown = cell.accelerators / least.accelerators
            efficiency = min(least.score_s / cell.score_s / grown, 1.0)
            costs = {
                name: max(here * cell.score_s * grown - there * least.score_s, 0.0)
                for name, here, there in _costs(cell, least)
            }
            whole = sum(costs.values()) or 1.0
            lost = {name: (1 - efficiency) * cost / whole for name, cost in costs.items()}
            found.append((cell.accelerators, {"efficiency": efficiency, **lost}))
    return found


def _costs(cell: Cell, least: Cell) -> Iterator[tuple[str, float, float]]:
    """Of the parts of a run their shares, in this cell and in the smallest; training in as many epochs as there, and its other epochs."""
    here, there = cell.shares or (1.0, 0.0, 0.0), least.shares or (1.0, 0.0, 0.0)
    before, now = least.epochs, cell.epochs
    if before and now:
        yield "slower training", here[0] * before / now, there[0]
        yield "more epochs", here[0] * (1 - before / now), 0.0
    else:
        yield "slower training or more epochs", here[0], there[0]
    yield "evaluation", here[1], there[1]
    yield "start", here[2], there[2]
