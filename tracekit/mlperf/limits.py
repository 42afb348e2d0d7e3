"""What each step to more chips gains, and what limits it.

What is lost against the growth of chips is split exactly: ln(chips) = ln(speed-up) + ln(epochs) + ln(evaluation) + ln(training), each the growth
of a factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import log
from typing import Final

import polars as pl

from tracekit.mlperf.cells import Cell, paired, series_of, sizes_of
from tracekit.mlperf.laws import step_laws
from tracekit.scaling.laws import HOPS, Fit
from tracekit.trace import Schema

__all__ = ["STEPS", "steps_table"]

_FELT: Final = 0.05
"""A loss that matters, in the logarithm of the efficiency."""
_TWICE_AS_FAR: Final = 2.0
"""A law that errs by more than so many times as much for sizes left out as another one is not their law."""
_ANY: Final = "evaluation-, batch- or communication-limited"
_SPARE: Final = 2
"""So many more sizes than parameters bear a law out."""

STEPS: Final[Schema] = {
    "series": pl.String, "from": pl.Int64, "to": pl.Int64, "chips": pl.Float64, "speedup": pl.Float64, "throughput": pl.Float64, "epochs": pl.Float64,
    "evaluation": pl.Float64, "training": pl.Float64, "limited_by": pl.String, "batch_from": pl.Int64, "batch_to": pl.Int64,
}  # fmt: skip
"""Columns of `steps_table`: from one size of a series to the next, the factors by which each grows. Of sizes with several batches each goes to and
comes from the nearest one: the same, else that by the smallest factor, and of those the nearest for each chip. `limited_by` is `none`, or one of
`epoch-limited`, `evaluation-limited`, `batch-limited`, `communication-limited`, `batch- or communication-limited`, and `evaluation-, batch- or
communication-limited` where the logs have evaluations, but neither blocks nor epochs beside them: then `evaluation` is null, and `training` holds it."""


def steps_table(cells: Sequence[Cell]) -> pl.DataFrame:
    """From each size of a series to the next one (`STEPS`)."""
    return pl.DataFrame([row for name, group in series_of(cells).items() for row in _steps(name, group)], schema=STEPS, orient="row")  # fmt: skip


def _steps(name: str, group: Sequence[Cell]) -> Iterator[dict[str, object]]:
    law = _law(group)
    for small, large in (pair for sizes in pairwise(sizes_of(group)) for pair in paired(*sizes)):
        epochs = (small.epochs, large.epochs)
        if (
            not (small.accelerators and large.accelerators and small.score_s and large.score_s)
            or None in epochs
        ):
            continue
        chips, speedup = large.accelerators / small.accelerators, small.score_s / large.score_s
        inflation = (epochs[1] or 1.0) / (epochs[0] or 1.0)
        evaluation = _evaluation(small, large)
        training = chips / (speedup * inflation * (evaluation or 1.0))
        why = _ANY if evaluation is None else _why(small, large, training, law)
        losses = {"epoch-limited": log(inflation), "evaluation-limited": log(evaluation or 1.0), why: log(training)}  # fmt: skip
        worst = max(losses, key=lambda loss: losses[loss])
        yield {
            "series": name, "from": small.accelerators, "to": large.accelerators, "chips": chips, "speedup": speedup,
            "throughput": speedup * inflation, "epochs": inflation, "evaluation": evaluation, "training": training,
            "limited_by": worst if losses[worst] > _FELT else "none",
            "batch_from": small.batch, "batch_to": large.batch,
        }  # fmt: skip


def _evaluation(small: Cell, large: Cell) -> float | None:
    """The growth of the time of an epoch by evaluations alone, against training with the start; None if the logs do not tell these apart."""
    if small.shares is None or large.shares is None:
        return None if small.mean("evaluations") or large.mean("evaluations") else 1.0
    return (1 - small.shares[1]) / (1 - large.shares[1])


def _why(small: Cell, large: Cell, training: float, law: Fit | None) -> str:
    """Why training per chip gets slower by this factor: as the law of the steps has it, by messages, or as what is fixed in a step weighs more
    with a smaller batch of a chip. Without one, by communication if the batch of a chip does not explain it: training per chip slows as much as that
    batch shrinks if all of a step is fixed.
    """
    if not (small.batch and large.batch and small.accelerators and large.accelerators):
        return "batch- or communication-limited"
    grown, chips = large.batch / small.batch, large.accelerators / small.accelerators
    if law is not None:
        alpha, each = 2 * law.values.get("alpha_ns", 0.0), chips / grown  # the cost of each sample
        hops = HOPS.get(law.law, float)  # without messages alpha is 0
        messages = alpha * (hops(large.accelerators) * each - hops(small.accelerators))
        fixed = law.values.get("fixed_ns", 0.0) * (each - 1)
        if max(messages, fixed) > 0:
            return "communication-limited" if messages > fixed else "batch-limited"
    explained = max(log(chips / grown), 0.0)
    by_messages = log(training) - explained > min(explained, _FELT)
    return "communication-limited" if by_messages else "batch-limited"


def _law(group: Sequence[Cell]) -> Fit | None:
    """The law that the steps of a series name. If they name none since the ones with the fewest parameters foretell sizes left out worse than
    another one does, by twice its error, that one, if it errs by little.
    """
    fits = step_laws(group)
    told = [fit for fit in fits if fit.error is not None and fit.points - fit.free >= _SPARE]
    if any(fit.best for fit in fits) or not told:
        return next((fit for fit in fits if fit.best), None)
    least, fewest = min(told, key=lambda fit: fit.error or 0.0), min(told, key=lambda fit: fit.free)
    errors = (least.error or 0.0, fewest.error or 0.0)
    return least if errors[0] <= _FELT and errors[1] > _TWICE_AS_FAR * errors[0] else None
