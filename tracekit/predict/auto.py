"""The default way to predict: models compared on questions like those that will be asked, and joined by what they showed there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.errors import InconclusiveError
from tracekit.predict.conformal import Intervals, intervals_of
from tracekit.predict.describe import Description
from tracekit.predict.features import sampled
from tracekit.predict.members import _MODELS, candidates, fit_members, interpolates
from tracekit.predict.model import Fitted, Term, model_of
from tracekit.predict.questions import questions
from tracekit.predict.support import FARTHEST, INSIDE, Places, Support, support_of
from tracekit.predict.table import Floats, Runs

__all__ = ["AUTO", "Predictor", "fit"]

AUTO: Final = "auto"
OUTSIDE: Final = "outside"
"""Weights for kinds of question that the training rows could not ask."""
_MOST_CONFIGURATIONS: Final = 1500
_LEAST_CONFIGURATIONS: Final = 3
_SHARPNESS: Final = 4.0
_LEAST_WEIGHT: Final = 0.1
_MOSTLY: Final = 0.5
_WORST: Final = 2.0
"""An error counts at most as this (of a logarithm), so that one absurd answer does not hide the others."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """Fitted models with all that is needed to answer: no row of the data they were fitted to."""

    description: Description
    members: Mapping[str, Fitted]
    weights: Mapping[str, Mapping[str, float]]
    """By kind of question, the weight of each member; `outside` is for kinds that were not asked."""
    errors: Mapping[str, Mapping[str, float]]
    """By kind of question, the mean absolute error of each candidate when it was asked, of logarithms."""
    intervals: Intervals
    support: Support
    rows: int
    configurations: int

    def predict(self, runs: Runs) -> pl.DataFrame:
        """A row for each row: `id`, `predicted`, `low`, `high` (in the target's unit; the interval's level is `intervals.level`) and
        `note`, which says along which axes the row is outside what was measured. A row that is too far outside has no prediction.

        Raises InconclusiveError if all rows are too far outside, UsageError for a column that a model needs and the table lacks.
        """
        places = self.support.places(runs)
        if runs.height and places.refused.all():
            raise InconclusiveError(
                f"no row can be predicted: {places.note[0]}",
                remedy=f"measure closer to it; nothing is said beyond {FARTHEST:g} times what was measured",
            )
        logarithm = self._logarithms(runs, places)
        half = self.intervals.half_widths(places)
        frame = pl.DataFrame(
            {
                "id": runs.frame["id"],
                "predicted": np.exp(logarithm),
                "low": np.exp(logarithm - half),
                "high": np.exp(logarithm + half),
                "note": pl.Series(places.note.tolist(), dtype=pl.String),
            }
        )
        kept = pl.lit(pl.Series(~places.refused))
        return frame.with_columns(
            *(pl.when(kept).then(pl.col(name)) for name in ("predicted", "low", "high")),
            pl.when(kept).then(pl.col("note")).otherwise(pl.lit("too far outside: ") + pl.col("note")),
        )

    def parts(self, runs: Runs) -> dict[str, Floats]:
        """What the predicted times consist of, in the target's unit, by the name of each part: the shares that those members tell which
        have parts, of the whole prediction. Empty if none has.
        """
        places = self.support.places(runs)
        whole = np.exp(self._logarithms(runs, places))
        shares: dict[str, Floats] = {}
        weights = np.zeros(runs.height)
        for name, member in self.members.items():
            weight = self._weights(places, name)
            if not weight.any() or not (parts := member.parts(runs)):
                continue
            total = member.predict(runs)
            weights += weight
            for part, values in parts.items():
                shares[part] = shares.get(part, np.zeros(runs.height)) + weight * values / total
        if not shares:
            return {}
        untold = weights <= 0
        found = {part: whole * share / np.where(untold, 1, weights) for part, share in shares.items()}
        return {**found, "not told apart": np.where(untold, whole, 0)} if untold.any() else found

    def explain(self) -> list[tuple[str, Sequence[Term]]]:
        """The parameters of each member, by its name; the member with the most weight inside the range first."""
        inside = self.weights.get(INSIDE, {})
        names = sorted(self.members, key=lambda name: -inside.get(name, 0))
        return [(name, self.members[name].explain()) for name in names]

    def _weights(self, places: Places, name: str) -> Floats:
        otherwise = self.weights[OUTSIDE]
        return np.array([self.weights.get(kind, otherwise).get(name, 0.0) for kind in places.kind])

    def _logarithms(self, runs: Runs, places: Places) -> Floats:
        found = np.zeros(runs.height)
        for name, member in self.members.items():
            weight = self._weights(places, name)
            if weight.any():
                found += weight * np.log(member.predict(runs))
        return found


def fit(runs: Runs, model: str = AUTO) -> Predictor:
    """Fit a model, or all that can be fitted (`auto`), to the rows of a table with a target.

    The members, their weights and the intervals come from these rows alone. Raises UsageError for a model that there is not,
    InconclusiveError for rows that say nothing or no model can be fitted to.
    """
    _check(runs)
    with _one_thread():
        return _fitted(runs, model)


def _one_thread() -> AbstractContextManager[object]:
    """Linear algebra on one thread: sums are then in one order, and what is fitted does not depend on the number of cores."""
    try:
        from threadpoolctl import threadpool_limits  # noqa: PLC0415 - comes with scikit-learn
    except ImportError:
        return nullcontext()
    found: AbstractContextManager[object] = threadpool_limits(1)
    return found


def _fitted(runs: Runs, model: str) -> Predictor:
    if model != AUTO:
        _can(runs, model)
    names = candidates(runs, model)
    if not names:
        why = "; ".join(f"{name}: {model_of(name).lacks(runs)}" for name in _MODELS)
        raise InconclusiveError("no model can be fitted to these rows", remedy=why)
    asked = _Asked.of(sampled(runs, _MOST_CONFIGURATIONS), names)
    errors = asked.errors()
    weights = _chosen(errors, names)
    used = [name for name in names if any(each.get(name, 0) > 0 for each in weights.values())]
    members = fit_members(used, runs)
    return Predictor(
        description=runs.description,
        members=members,
        weights=weights,
        errors=errors,
        intervals=asked.intervals(weights),
        support=support_of(runs),
        rows=runs.height,
        configurations=runs.frame["configuration"].n_unique(),
    )


def _check(runs: Runs) -> None:
    count = runs.frame["configuration"].n_unique()
    if count < _LEAST_CONFIGURATIONS:
        said = "one configuration" if count == 1 else f"{count} configurations"
        raise InconclusiveError(f"the table has {said}", remedy=f"measure at least {_LEAST_CONFIGURATIONS}")
    if np.ptp(runs.target) == 0:
        raise InconclusiveError(
            f"all times are the same ({runs.target[0]:g})", remedy="there is nothing to learn from them"
        )


def _can(runs: Runs, model: str) -> None:
    if lacks := model_of(model).lacks(runs):
        raise InconclusiveError(f"{model} cannot be fitted to these rows", remedy=lacks)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What each candidate answered where the answer was known and had not been shown to it."""

    fold: npt.NDArray[np.int64]
    weights: Floats
    places: Places
    residuals: Mapping[str, Floats]
    """Logarithms of measured over predicted; NaN where the candidate could not be fitted."""

    @staticmethod
    def of(runs: Runs, names: Sequence[str]) -> _Asked:
        """Ask all of them all questions."""
        numbers, weights, places = [], [], []
        residuals: dict[str, list[Floats]] = {name: [] for name in names}
        for number, fold in enumerate(questions(runs)):
            train, test = runs.where(fold.train), runs.where(fold.test)
            place = support_of(train).places(test)
            between = float((place.kind == INSIDE).mean()) > _MOSTLY
            members = fit_members([name for name in names if between or not interpolates(name)], train)
            for name in names:
                said = members[name].predict(test) if name in members else np.full(test.height, np.nan)
                residuals[name].append(np.log(test.target / said))
            numbers.append(np.full(test.height, number))
            weights.append(test.weights)
            places.append(place)
        return _Asked(
            np.concatenate(numbers),
            np.concatenate(weights),
            Places(*(np.concatenate([getattr(each, part) for each in places]) for part in Places.__slots__)),
            {name: np.concatenate(each) for name, each in residuals.items()},
        )

    def errors(self) -> dict[str, dict[str, float]]:
        """By kind of question the mean over the folds of each candidate's error; `outside`: the mean over the kinds outside."""
        found: dict[str, dict[str, float]] = {}
        for kind in dict.fromkeys(self.places.kind):
            rows = self.places.kind == kind
            found[kind] = {name: self._error(left, rows) for name, left in self.residuals.items()}
        outside = [each for kind, each in found.items() if kind != INSIDE]
        if outside:
            found[OUTSIDE] = {
                name: float(np.mean([each[name] for each in outside])) for name in self.residuals
            }
        return found

    def _error(self, left: Floats, rows: npt.NDArray[np.bool_]) -> float:
        means = []
        for number in np.unique(self.fold[rows]):
            those = rows & (self.fold == number)
            size = np.nan_to_num(np.abs(np.expm1(-left[those])), nan=_WORST, posinf=_WORST)
            means.append(np.average(np.minimum(size, _WORST), weights=self.weights[those]))
        return float(np.mean(means))

    def intervals(self, weights: Mapping[str, Mapping[str, float]]) -> Intervals:
        """Intervals from what the members, joined with these weights, leave."""
        joined = np.zeros(self.fold.size)
        for name, left in self.residuals.items():
            share = np.array(
                [weights.get(kind, weights[OUTSIDE]).get(name, 0.0) for kind in self.places.kind]
            )
            joined += np.where(share > 0, share * np.nan_to_num(left), 0)
        return intervals_of(joined, self.weights, self.places)


def _chosen(errors: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """By kind of question, the weights with which the members are joined: the smaller the error, the larger, by its fourth power."""
    found = {kind: _weighted(each) for kind, each in errors.items()}
    if OUTSIDE not in found:  # nothing tells: the first that can be fitted extrapolates best
        found[OUTSIDE] = {names[0]: 1.0}
    if INSIDE not in found:
        found[INSIDE] = found[OUTSIDE]
    return found


def _weighted(errors: Mapping[str, float]) -> dict[str, float]:
    names = list(errors)
    size = np.maximum([errors[name] for name in names], 1e-4)
    share = (size.min() / size) ** _SHARPNESS
    share = np.where(share / share.sum() < _LEAST_WEIGHT, 0, share)
    return {name: float(each) for name, each in zip(names, share / share.sum(), strict=True) if each > 0}
