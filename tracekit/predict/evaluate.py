"""How well models foretell rows that they were not fitted to, beside baselines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError, UsageError
from tracekit.predict.auto import AUTO, fit
from tracekit.predict.features import categories_of, column, device_names, several, varying
from tracekit.predict.members import CORRECTED, candidates
from tracekit.predict.protocols import folds_of
from tracekit.predict.support import DEVICE
from tracekit.predict.table import Floats, Runs

__all__ = ["BASELINES", "Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How far predictions were off.

    * `rows`: `model`, `fold`, `id`, `group`, `measured`, `predicted`, `low`, `high` (in the target's unit; the last two null for
      baselines), `ape` (%), `distance` (from what was measured: 0 inside, 1 for each doubling), `note`
    * `models`: `model`, `rows`, `unanswered` (rows that were too far outside), `mean_ape`, `median_ape` (%, over rows), `coverage`
      (%, of the intervals; null for baselines), `fit_s` (seconds that fitting took, all folds)
    * `groups`: `model`, `group`, `rows`, `mean_ape`, `median_ape`, `coverage`
    * `failed`: models that could not be fitted, and why
    * `spread`: the mean APE (%) of the rows left out from the median of their configuration, of those with repetitions: nothing can do much
      better there
    """

    split: str
    level: float
    rows: pl.DataFrame
    models: pl.DataFrame
    groups: pl.DataFrame
    failed: Mapping[str, str]
    spread: float


def evaluate(
    runs: Runs, split: str = "kfold", group: str | None = None, models: Sequence[str] | None = None
) -> Evaluation:
    """Fit each model to one side of each fold and predict the other.

    `group`: a column by which errors are listed as well; `models`: `auto` and what can be fitted, unless others are named.

    A fit sees the training rows only. Raises UsageError for a split, a group or a model that there is not, and InconclusiveError if no
    model could be fitted.
    """
    labels = _labels(runs, group or "")
    models = models or (AUTO, *(name for name in candidates(runs) if CORRECTED not in name))
    answers: list[pl.DataFrame] = []
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    level = 0.0
    for fold in folds_of(runs, split):
        train, test = runs.where(fold.train), runs.where(fold.test)
        for model in models:
            started = time.perf_counter()
            try:
                predictor = fit(train, model)
                answer = predictor.predict(test)
            except InconclusiveError as error:
                failed[model] = str(error)
                continue
            seconds[model] = seconds.get(model, 0.0) + time.perf_counter() - started
            level = predictor.intervals.level
            distance = predictor.support.places(test).distance
            answers.append(
                _answers(model, fold.name, test, labels.filter(pl.Series(fold.test)), answer, distance)
            )
        for name, baseline in BASELINES.items():
            started = time.perf_counter()
            said = baseline(train, test)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
            answers.append(
                _answers(name, fold.name, test, labels.filter(pl.Series(fold.test)), _bare(test, said))
            )
    if not seconds.keys() - BASELINES.keys():
        raise InconclusiveError("no model could be evaluated", remedy="; ".join(sorted(set(failed.values()))))
    rows = pl.concat(answers)
    return Evaluation(
        split=split,
        level=level,
        rows=rows,
        models=_summed(rows, "model").with_columns(
            fit_s=pl.col("model").replace_strict(seconds, return_dtype=pl.Float64)
        ),
        groups=_summed(rows, "model", "group") if group else _summed(rows.clear(), "model", "group"),
        failed=failed,
        spread=_spread(runs, rows),
    )


def _answers(
    model: str, fold: str, test: Runs, labels: pl.Series, answer: pl.DataFrame, distance: Floats | None = None
) -> pl.DataFrame:
    measured = pl.Series("measured", test.target)
    return answer.select(
        pl.lit(model).alias("model"),
        pl.lit(fold).alias("fold"),
        "id",
        labels.alias("group"),
        measured,
        "predicted",
        "low",
        "high",
        (100 * (pl.col("predicted") / measured - 1).abs()).alias("ape"),
        pl.Series("distance", np.full(test.height, np.nan) if distance is None else distance).fill_nan(None),
        "note",
    )


def _summed(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    inside = (pl.col("measured") >= pl.col("low")) & (pl.col("measured") <= pl.col("high"))
    return rows.group_by(*by, maintain_order=True).agg(
        pl.len().alias("rows"),
        pl.col("ape").null_count().alias("unanswered"),
        pl.mean("ape").alias("mean_ape"),
        pl.median("ape").alias("median_ape"),
        (100 * inside.cast(pl.Float64).mean()).alias("coverage"),
    )


def _spread(runs: Runs, rows: pl.DataFrame) -> float:
    middle = pl.median("target").over("configuration")
    each = runs.frame.select("id", (100 * (middle / pl.col("target") - 1).abs()).alias("off"))
    repeated = each.filter(
        runs.frame["configuration"].is_duplicated()
    )  # a single run does not show how runs differ
    found = repeated.join(rows.select("id").unique(), on="id", how="semi")["off"].mean()
    return float(found) if isinstance(found, float) else 0.0


def _labels(runs: Runs, group: str) -> pl.Series:
    if not group:
        return pl.Series([""] * runs.height, dtype=pl.String)
    roles = {name: role for role, name in runs.description.columns.items()}
    name = group if group in runs.frame.columns else roles.get(group, group)
    if name == DEVICE and any(devices := device_names(runs)):
        return pl.Series(devices)
    if name not in runs.frame.columns:
        raise UsageError(
            f"there is no column {group!r} to group by",
            remedy=f"choose one of {', '.join(runs.description.columns)}",
        )
    values = runs.frame[name]
    return (
        values
        if values.dtype == pl.String
        else pl.Series([f"{value:g}" if value is not None else "" for value in values])
    )


# -- baselines: what anyone would try first --


def _bare(test: Runs, said: Floats) -> pl.DataFrame:
    nothing = pl.lit(None, dtype=pl.Float64)
    return test.frame.select(
        "id",
        pl.Series("predicted", said),
        nothing.alias("low"),
        nothing.alias("high"),
        pl.lit("").alias("note"),
    )


def _mean(train: Runs, test: Runs) -> Floats:
    return np.full(test.height, np.exp(np.average(np.log(train.target), weights=train.weights)))


def _power_law(train: Runs, test: Runs) -> Floats:
    """The logarithm of the time is linear in those of the numbers, with a constant for each name."""

    def design(runs: Runs) -> Floats:
        numbers = [column(runs, name) for name in varying(train)]
        logarithms = [np.log(np.maximum(values, 1e-12)) for values in numbers]
        names = [categories_of(runs, role, sorted(set(train.names(role)))) for role in several(train)]
        return np.column_stack([np.ones(runs.height), *logarithms, *names])

    return np.exp(_least_squares(design(train), np.log(train.target), train.weights, design(test)))


def _amdahl(train: Runs, test: Runs) -> Floats:
    """A part that devices do not share, one that they do, and one that grows with them, for each iteration and each sample."""

    def design(runs: Runs) -> Floats:
        devices = runs.numbers("gpus", 1.0)
        steps = runs.numbers("iterations", 1.0)
        samples = steps * runs.numbers("batch", 1.0)
        return np.column_stack([np.ones(runs.height), steps, samples, samples / devices, steps * devices])

    from scipy.optimize import nnls  # noqa: PLC0415 - an extra

    share = np.sqrt(train.weights) / train.target
    terms = design(train)
    scale = np.abs(terms).max(axis=0)
    weights = nnls(terms / scale * share[:, None], np.sqrt(train.weights))[0]
    found: Floats = design(test) / scale @ weights
    return found


def _least_squares(terms: Floats, aim: Floats, weights: Floats, asked: Floats) -> Floats:
    share = np.sqrt(weights)
    found: Floats = asked @ np.linalg.lstsq(terms * share[:, None], aim * share, rcond=None)[0]
    return np.clip(found, aim.min() - 5, aim.max() + 5)


BASELINES: Final[dict[str, Callable[[Runs, Runs], Floats]]] = {
    "mean": _mean,
    "power law": _power_law,
    "Amdahl": _amdahl,
}
