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
_SPARE: Final = 2
"""So many more sizes than parameters bear a law out."""

STEPS: Final[Schema] = {
    "series": pl.String, "from": pl.Int64, "to": pl.Int64, "chips": pl.Float64, "speedup": pl.Float64, "throughput": pl.Float64, "epochs": pl.Float64,
    "evaluation": pl.Float64, "training": pl.Float64, "limited_by": pl.String, "batch_from": pl.Int64, "batch_to": pl.Int64,
}  # fmt: skip
"""Columns of `steps_table`: from one size of a series to the next, the factors by which each grows. Of sizes with several batches each goes to and
comes from the nearest one: the same, else that by the smallest factor, and of those the nearest for each chip. `limited_by` is `none`, or one of
`epoch-limited`, `evaluation-limited`, `batch-limited`, `communication-limited` and `batch- or communication-limited`."""


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
        shares = (small.shares or (1.0, 0.0, 0.0), large.shares or (1.0, 0.0, 0.0))
        # The time of an epoch, shared into training with the start, and evaluation alone.
        evaluation = (1 - shares[0][1]) / (1 - shares[1][1])
        training = chips / (speedup * inflation * evaluation)
        losses = {"epoch-limited": log(inflation), "evaluation-limited": log(evaluation), _why(small, large, training, law): log(training)}  # fmt: skip
        worst = max(losses, key=lambda loss: losses[loss])
        yield {
            "series": name, "from": small.accelerators, "to": large.accelerators, "chips": chips, "speedup": speedup,
            "throughput": speedup * inflation, "epochs": inflation, "evaluation": evaluation, "training": training,
            "limited_by": worst if losses[worst] > _FELT else "none",
            "batch_from": small.batch, "batch_to": large.batch,
        }  # fmt: skip


def _why(small: Cell, large: Cell, training: float, law: Fit | None) -> str:
    """Why training per chip gets slower by this factor: as the law of the steps has it, by messages, or as what is fixed in a step weighs more
    with a smaller batch of a chip. Without one, by communication if the batch grows with the chips, or steps get longer with less work of a chip.
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
    by_messages = grown >= chips**0.5 or log(training * grown / chips) > _FELT
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
