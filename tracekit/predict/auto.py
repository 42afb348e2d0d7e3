"""The default way to predict: models compared on questions like those that will be asked, and joined by what they showed there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError, UsageError
from tracekit.facts.units import count_of, listed
from tracekit.predict.conformal import Intervals, intervals_of
from tracekit.predict.describe import WORK, Description
from tracekit.predict.features import sampled
from tracekit.predict.gaps import gaps, refusals
from tracekit.predict.members import candidates, fit_members, interpolates
from tracekit.predict.model import MODELS, Doubts, Fitted, Heeds, Term, model_of
from tracekit.predict.questions import of_two, questions
from tracekit.predict.support import FARTHEST, INSIDE, Places, Support, support_of
from tracekit.predict.table import Floats, Runs

__all__ = ["AUTO", "Predictor", "fit"]

AUTO: Final = "auto"
OUTSIDE: Final = "outside"
"""Weights for kinds of question that the training rows could not ask."""
_MOST_CONFIGURATIONS: Final = 800
_LEAST_CONFIGURATIONS: Final = 3
_SHARPNESS: Final = 4.0
_CLEARLY: Final = 0.5
"""An error less than this share of another's is clearly smaller: what happens to fit one step beyond may be absurd at the next."""
_LEAST_WEIGHT: Final = 0.1
_MOSTLY: Final = 0.5
_WORST: Final = 2.0
"""An error counts at most as this (of a logarithm), so that one absurd answer does not hide the others."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """Fitted models with all that is needed to answer: no row of the data they were fitted to."""

    description: Description
    models: Mapping[str, Fitted]
    weights: Mapping[str, Mapping[str, float]]
    """By kind of question, the weight of each member; `outside` is for kinds that were not asked."""
    errors: Mapping[str, Mapping[str, float]]
    """By kind of question, the mean absolute error of each candidate when it was asked, of logarithms."""
    intervals: Intervals
    support: Support
    common: Mapping[str, str]
    """By column, the value that all rows have."""
    rows: int
    configurations: int

    def predict(self, runs: Runs) -> pl.DataFrame:
        """A row for each row: `id`, `predicted`, `low`, `high` (in the target's unit; the interval's level is `intervals.level`) and
        `note`, which says along which axes the row is outside what was measured. A row that lacks a value, or is too far outside, has no
        prediction, and `note` says why.

        Raises InconclusiveError if no row has one.
        """
        places = self.support.places(runs)
        why = gaps(runs, self.support)
        wider, doubts = self._doubts(runs, places, why == "")
        why = np.where((why == "") & np.isinf(wider), doubts, why)
        kept = (why == "") & ~places.refused
        try:
            logarithm = self._logarithms_of(runs, kept)
        except (InconclusiveError, UsageError):
            refused = refusals(runs, kept, lambda rows: self._logarithms(rows, self.support.places(rows)))
            why, kept = np.where(kept, refused, why), kept & (refused == "")
            logarithm = self._logarithms_of(runs, kept)
        if runs.height and not kept.any():
            if why[0]:
                raise InconclusiveError(f"no row can be predicted: {why[0]}")
            raise InconclusiveError(
                f"no row can be predicted: {places.note[0]}",
                remedy=f"measure closer to it; nothing is said beyond {FARTHEST:g} times what was measured",
            )
        half = np.hypot(self.intervals.half_widths(places), np.where(np.isinf(wider), 0, wider))
        outside = np.where(places.refused, "too far outside: " + places.note, places.note)
        both = np.where((outside != "") & (doubts != ""), "; ", "")
        note = np.where(why != "", why, outside + both + doubts)
        frame = pl.DataFrame(
            {
                "id": runs.frame["id"],
                "predicted": np.exp(logarithm),
                "low": np.exp(logarithm - half),
                "high": np.exp(logarithm + half),
                "note": pl.Series(note.tolist(), dtype=pl.String),
            }
        )
        return frame.with_columns(pl.col("predicted", "low", "high").fill_nan(None))

    def parts(self, runs: Runs) -> dict[str, Floats]:
        """What the predicted times consist of, in the target's unit, by the name of each part: the shares that those members tell which
        have parts, of the whole prediction. Empty if none has.
        """
        places = self.support.places(runs)
        whole = np.exp(self._logarithms(runs, places))
        shares: dict[str, Floats] = {}
        weights = np.zeros(runs.height)
        for name, member in self.models.items():
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

    def lacked(self) -> list[str]:
        """What the measured rows did not tell its models, a sentence each."""
        told = dict.fromkeys(one.lacked() for one in self.models.values() if isinstance(one, Doubts))
        return [f"{each[0].upper()}{each[1:]}." for each in told if each]

    def explain(self) -> list[Term]:
        """The parameters of each model, of the one with the most weight inside the range first; with several, names begin with theirs.
        What a model and another one correct alike stands once.
        """
        inside = self.weights[INSIDE]
        found: dict[Term, str] = {}
        for name in sorted(self.models, key=lambda name: -inside.get(name, 0)):
            for term in self.models[name].explain():
                found.setdefault(term, f"{name}: {term.name}" if len(self.models) > 1 else term.name)
        return [replace(term, name=name) for term, name in found.items()]

    def members(self) -> pl.DataFrame:
        """Which model answers which question: `question` (an axis beyond whose measured values a row lies, `inside`, or `outside` for all
        other axes), `model`, `weight` (0 to 1), and `mean_ape` (%, of this model when such rows were left out; null if none could be).
        """
        found = [
            (
                kind,
                name,
                weight,
                100 * error if (error := self.errors.get(kind, {}).get(name)) is not None else None,
            )
            for kind, shares in self.weights.items()
            for name, weight in shares.items()
        ]
        schema = {"question": pl.String, "model": pl.String, "weight": pl.Float64, "mean_ape": pl.Float64}
        return pl.DataFrame(found, schema, orient="row")

    def known(self) -> Mapping[str, str]:
        """By column, the value that all measured rows have."""
        return self.common

    def summary(self) -> str:
        """What it was fitted to, and which models answer inside the range, with their error there; no full stop."""
        weights = self.weights[INSIDE]
        names = sorted(weights, key=lambda name: -weights[name])
        errors = self.errors.get(INSIDE, {})
        error = sum(weight * errors.get(name, math.nan) for name, weight in weights.items())
        off = "" if math.isnan(error) else f", {100 * error:.1f} % off for configurations that were left out"
        answer = "answers" if len(names) == 1 else "answer"
        fitted = f"fitted to {count_of(self.rows, 'run')} of {count_of(self.configurations, 'configuration')}"
        return f"{fitted}; between these {listed(names)} {answer}{off}"

    @property
    def level(self) -> float:
        """The share of times that are to lie in their interval."""
        return self.intervals.level

    def _doubts(
        self, runs: Runs, places: Places, whole: npt.NDArray[np.bool_]
    ) -> tuple[Floats, npt.NDArray[np.object_]]:
        """By row that is `whole`, how much wider its interval is as its models were told too little, and what they were not told."""
        wider, words = np.zeros(runs.height), np.full(runs.height, "", dtype=object)
        for name, member in self.models.items():
            asked = whole & (self._weights(places, name) > 0)
            if not asked.any() or not isinstance(member, Doubts):
                continue
            each, said = member.doubts(runs.where(asked), places.kind[asked] == INSIDE)
            wider[asked] = np.maximum(wider[asked], each)
            words[asked] = np.where(words[asked] == "", np.array(said, dtype=object), words[asked])
        return wider, words

    def _weights(self, places: Places, name: str) -> Floats:
        otherwise = self.weights[OUTSIDE]
        return np.array([self.weights.get(kind, otherwise).get(name, 0.0) for kind in places.kind])

    def _logarithms_of(self, runs: Runs, kept: npt.NDArray[np.bool_]) -> Floats:
        """The logarithm of the time of each of these rows, NaN for the others."""
        found = np.full(runs.height, np.nan)
        if kept.any():
            rows = runs.where(kept)
            found[kept] = self._logarithms(rows, self.support.places(rows))
        return found

    def _logarithms(self, runs: Runs, places: Places) -> Floats:
        found = np.zeros(runs.height)
        for name, member in self.models.items():
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
    """Linear algebra and trees on one thread: sums are then in one order, and what is fitted does not depend on the number of cores.
    Only libraries that are loaded already are limited.
    """
    try:
        import sklearn.ensemble  # noqa: F401, PLC0415 - an extra, and SciPy with it
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
        why = "; ".join(f"{name}: {model_of(name).lacks(runs)}" for name in MODELS)
        raise InconclusiveError("no model can be fitted to these rows", remedy=why)
    models = fit_members(names, runs)
    asked = _Asked.of(sampled(runs, _MOST_CONFIGURATIONS), models)
    errors = asked.errors()
    weights = _chosen(errors, names)
    used = [name for name in names if any(each.get(name, 0) > 0 for each in weights.values())]
    support = support_of(runs)
    heed = [each for name, each in models.items() if name in used and isinstance(each, Heeds)]
    if len(heed) == len(used):
        support = support.only({role for each in heed for role in each.heeds})
    return Predictor(
        description=runs.description,
        models={name: models[name] for name in used},
        weights=weights,
        errors=errors,
        intervals=asked.intervals(weights, support.constant, of_two(runs)),
        support=support,
        common=_common(runs),
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


def _common(runs: Runs) -> dict[str, str]:
    columns = {**runs.description.columns, **{name: name for name in runs.description.features}}
    columns.pop(WORK, None)  # it is that of a row
    found = {}
    for role, column in columns.items():
        values = runs.frame[role].unique()
        if values.len() == 1 and values[0] is not None:
            found[column] = f"{values[0]:.15g}" if values.dtype == pl.Float64 else str(values[0])
    return found


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
    def of(runs: Runs, models: Mapping[str, Fitted]) -> _Asked:
        """Ask models of the form of these all questions."""
        names = list(models)
        numbers, weights, places = [], [], []
        residuals: dict[str, list[Floats]] = {name: [] for name in names}
        for number, fold in enumerate(questions(runs)):
            train, test = runs.where(fold.train), runs.where(fold.test)
            place = support_of(train).places(test)
            between = float((place.kind == INSIDE).mean()) > _MOSTLY
            members = fit_members(
                [name for name in names if between or not interpolates(name)], train, models
            )
            for name in names:
                said = members[name].predict(test) if name in members else np.full(test.height, np.nan)
                residuals[name].append(np.log(test.target / said))
            numbers.append(np.full(test.height, number))
            weights.append(test.weights)
            places.append(place)
        return _Asked(
            np.concatenate(numbers),
            np.concatenate(weights),
            Places.joined(places),
            {name: np.concatenate(each) for name, each in residuals.items()},
        )

    def errors(self) -> dict[str, dict[str, float]]:
        """By kind of question the mean over the folds of the error of each candidate that could be asked it at all; `outside`: the mean
        over the kinds outside.
        """
        found: dict[str, dict[str, float]] = {}
        for kind in dict.fromkeys(self.places.kind):
            rows = self.places.kind == kind
            asked = {name: left for name, left in self.residuals.items() if np.isfinite(left[rows]).any()}
            if asked:
                found[kind] = {name: self._error(left, rows) for name, left in asked.items()}
        outside = [each for kind, each in found.items() if kind != INSIDE]
        if outside:
            found[OUTSIDE] = {
                name: float(np.mean([each.get(name, _WORST) for each in outside]))
                for name in self.residuals
                if any(name in each for each in outside)
            }
        return found

    def _error(self, left: Floats, rows: npt.NDArray[np.bool_]) -> float:
        means = []
        for number in np.unique(self.fold[rows]):
            those = rows & (self.fold == number)
            size = np.nan_to_num(np.abs(np.expm1(-left[those])), nan=_WORST, posinf=_WORST)
            means.append(np.average(np.minimum(size, _WORST), weights=self.weights[those]))
        return float(np.mean(means))

    def intervals(
        self, weights: Mapping[str, Mapping[str, float]], constant: Sequence[str], of_two: Sequence[str]
    ) -> Intervals:
        """Intervals from what the members, joined with these weights, leave; `constant`: axes that never varied; `of_two`: those with two
        values.
        """
        joined = np.zeros(self.fold.size)
        for name, left in self.residuals.items():
            share = np.array(
                [weights.get(kind, weights[OUTSIDE]).get(name, 0.0) for kind in self.places.kind]
            )
            joined += np.where(share > 0, share * left, 0)
        known = np.isfinite(joined)
        return intervals_of(
            joined[known],
            self.weights[known],
            self.places.where(known),
            self.fold[known],
            constant=constant,
            of_two=of_two,
        )


def _chosen(errors: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """By kind of question, the weights with which the members are joined.

    Inside the range, the smaller the error the larger the weight, by its fourth power. Outside, a mean of what goes right and what goes
    astray goes astray: one member answers, the first (what has a meaning stands before what has none) unless another is clearly better.
    Along an axis about which nothing was asked, it has to be clearly better along all others. If nothing could be asked at all, the first of
    `names` answers.
    """
    if not errors:
        alone = _clearly_best(dict.fromkeys(names, 0.0))
        return {INSIDE: alone, OUTSIDE: alone}
    found = {kind: _joined(each) if kind == INSIDE else _clearly_best(each) for kind, each in errors.items()}
    first = _clearly_best(errors[OUTSIDE if OUTSIDE in errors else INSIDE], share=0.0)
    if OUTSIDE not in found:  # nothing tells
        found[OUTSIDE] = _clearly_best(errors[INSIDE])
    elif any(found[kind] == first for kind in errors if kind not in (INSIDE, OUTSIDE)):
        found[OUTSIDE] = first
    return {INSIDE: found[OUTSIDE], **found}


def _joined(errors: Mapping[str, float]) -> dict[str, float]:
    names = list(errors)
    size = np.maximum([errors[name] for name in names], 1e-4)
    share = (size.min() / size) ** _SHARPNESS
    share = np.where(share / share.sum() < _LEAST_WEIGHT, 0, share)
    return {name: float(each) for name, each in zip(names, share / share.sum(), strict=True) if each > 0}


def _clearly_best(errors: Mapping[str, float], share: float = _CLEARLY) -> dict[str, float]:
    extrapolating = {name: error for name, error in errors.items() if not interpolates(name)} or errors
    first = next(iter(extrapolating))
    best = min(extrapolating, key=lambda name: extrapolating[name])
    return {best if extrapolating[best] < share * extrapolating[first] else first: 1.0}
