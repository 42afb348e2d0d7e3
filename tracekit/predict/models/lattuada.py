"""Regression on products and inverses of the columns, some of which are selected.

After Lattuada, Gianniti, Ardagna and Zhang, "Performance prediction of deep learning applications training in GPU as a service systems"
(2022): every column is joined by its inverse, and products of them up to a degree by theirs; of these the terms are selected forward by
the mean absolute percentage error, by Draper and Smith's stepwise procedure, or by non-negative least squares. Which of these, which
degree, and whether in logarithms is chosen by cross-validation in which no configuration stands on both sides. Errors are relative
(each row is divided by its time), since it is percentages that are to be small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import MissingDependencyError
from tracekit.facts.distribution import how_to_install
from tracekit.predict.features import matrix, one_each, sampled, several, varying
from tracekit.predict.model import Term
from tracekit.predict.table import Floats, Runs

__all__ = ["MODEL", "Regression"]

_LEAST_ROWS: Final = 6
_MOST_ROWS: Final = 1500
_MOST_CANDIDATES: Final = 400
_MOST_TERMS: Final = 12
_FOLDS: Final = 3
_BETTER: Final = 0.99
_SAME: Final = 1e-7
_ENTER: Final = 0.05
_LEAVE: Final = 0.10
_RIDGE: Final = 1e-6
_BEYOND: Final = 100.0

Powers = tuple[int, ...]
Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to select: how, up to which degree, and whether in logarithms."""

    selector: str
    degree: int
    logarithms: bool

    def __str__(self) -> str:
        where = "of logarithms" if self.logarithms else "of the columns and their inverses"
        return f"{_SELECTORS[self.selector]}; products {where} up to degree {self.degree}"


_SELECTORS: Final = {
    "forward": "forward selection by the error",
    "stepwise": "Draper and Smith's stepwise selection",
    "nnls": "non-negative least squares",
}
_VARIANTS: Final = (
    Variant("forward", 1, logarithms=True),
    Variant("forward", 2, logarithms=True),
    Variant("stepwise", 2, logarithms=True),
    *(Variant(selector, degree, logarithms=False) for selector in _SELECTORS for degree in (2, 3)),
)


@dataclass(frozen=True, slots=True)
class Regression:
    """A weighted sum of products of powers of columns."""

    names: tuple[str, ...]
    variant: Variant
    powers: npt.NDArray[np.int64]
    """A row for each term, the power of each column (of its logarithm)."""
    weights: Floats
    lowest: float
    highest: float
    """Of the times that it was fitted to."""

    def predict(self, runs: Runs) -> Floats:
        """The times of these rows; at least and at most a hundredth and a hundred times those that it was fitted to."""
        given = matrix(runs, self.names)
        with np.errstate(
            divide="ignore", invalid="ignore", over="ignore"
        ):  # a column that must be above 0 is not
            sums = _products(given, self.powers, self.variant.logarithms) @ self.weights
        if self.variant.logarithms:
            sums = np.exp(np.clip(sums, -700, 700))
        found: Floats = np.clip(np.nan_to_num(sums), self.lowest / _BEYOND, self.highest * _BEYOND)
        return found

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """Nothing: a term of a regression is no part of the time."""
        del runs
        return {}

    def explain(self) -> Sequence[Term]:
        """How the terms were selected, and the weight of each."""
        unit = "log of the time" if self.variant.logarithms else ""
        return [
            Term(
                _named(self.names, row, self.variant.logarithms),
                weight,
                unit,
                f"weight of a term ({self.variant})",
            )
            for row, weight in zip(self.powers.tolist(), self.weights.tolist(), strict=True)
        ]

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "names": list(self.names),
            "selector": self.variant.selector,
            "degree": self.variant.degree,
            "logarithms": self.variant.logarithms,
            "powers": self.powers.tolist(),
            "weights": self.weights.tolist(),
            "lowest": self.lowest,
            "highest": self.highest,
        }


class Lattuada:
    """The method of the paper."""

    def lacks(self, runs: Runs) -> str | None:
        """Why it cannot be fitted to these rows."""
        if one_each(runs).height < _LEAST_ROWS:
            return f"there are fewer than {_LEAST_ROWS} configurations"
        if names := several(runs):
            said = " and ".join(
                name for name in names if not (name == "machine" and "peak_gflops" in runs.roles)
            )
            if said:
                return f"it takes numbers only, and the rows differ in {said}"
        return None if varying(runs) else "all rows have the same configuration"

    def fit(self, runs: Runs) -> Regression:
        """Choose the variant by cross-validation, then select its terms from one row for each configuration, at most 1,500 of them."""
        names, given, times = _rows(runs)
        folds = _folds(given)
        errors = [_error(variant, given, times, folds) for variant in _VARIANTS]
        return _regression(_VARIANTS[int(np.argmin(errors))], names, given, times)

    def refit(self, runs: Runs, like: Regression) -> Regression:
        """Select terms again, as the variant that another fit chose does."""
        return _regression(like.variant, *_rows(runs))

    def restore(self, state: Mapping[str, Any]) -> Regression:
        """The regression of a state. Raises ValueError, KeyError or TypeError for one that is none."""
        names = tuple(map(str, state["names"]))
        if state["selector"] not in _SELECTORS or not isinstance(state["logarithms"], bool):
            raise ValueError("a regression is selected in no known way")
        powers = np.asarray(state["powers"], dtype=np.int64)
        weights = np.asarray(state["weights"], dtype=np.float64)
        if powers.shape != (weights.size, len(names)) or weights.size > _MOST_CANDIDATES:
            raise ValueError("a regression's terms and weights do not fit together")
        if np.abs(powers).max(initial=0) > max(variant.degree for variant in _VARIANTS):
            raise ValueError("a regression has a power that no degree allows")
        variant = Variant(str(state["selector"]), int(state["degree"]), state["logarithms"])
        return Regression(names, variant, powers, weights, float(state["lowest"]), float(state["highest"]))


def _rows(runs: Runs) -> tuple[tuple[str, ...], Floats, Floats]:
    """The columns that vary, their values and the time of one row for each configuration."""
    each = one_each(sampled(runs, _MOST_ROWS))
    names = tuple(varying(each))
    return names, matrix(each, names), each.target


def _regression(variant: Variant, names: tuple[str, ...], given: Floats, times: Floats) -> Regression:
    powers, weights = _selected(variant, given, times, _folds(given))
    return Regression(names, variant, powers, weights, float(times.min()), float(times.max()))


def _error(variant: Variant, given: Floats, times: Floats, folds: Sequence[Rows]) -> float:
    """The mean over the folds of the mean relative error in each, at most 1 in each."""
    found = []
    for fold in folds:
        rest = np.setdiff1d(np.arange(times.size), fold)
        powers, weights = _selected(variant, given[rest], times[rest], _thirds(rest.size))
        sums = _products(given[fold], powers, variant.logarithms) @ weights
        said = np.exp(np.clip(sums, -700, 700)) if variant.logarithms else sums
        found.append(min(1.0, float(np.abs(said / times[fold] - 1).mean())))
    return float(np.mean(found))


def _folds(given: Floats) -> list[Rows]:
    """Rows left out in turn: thirds of them, and for each column those of its largest value, if three others remain."""
    several = [values for values in given.T if np.unique(values).size > _FOLDS]
    return _thirds(given.shape[0]) + [np.flatnonzero(values == values.max()) for values in several]


def _thirds(count: int) -> list[Rows]:
    numbers = np.random.default_rng(0).permutation(count)
    return [np.sort(numbers[each::_FOLDS]) for each in range(_FOLDS)]


def _selected(
    variant: Variant, given: Floats, times: Floats, folds: Sequence[Rows]
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The powers of the terms that this variant selects, and their weights."""
    powers = _candidates(given, variant)
    design = _products(given, powers, variant.logarithms)
    # Each row is divided by its time, so that errors are relative; a logarithm's error is relative as it is.
    scale = np.ones(times.size) if variant.logarithms else times
    design, aim = design / scale[:, None], np.log(times) if variant.logarithms else np.ones(times.size)
    norms = np.linalg.norm(design, axis=0)
    usable = norms > 0
    powers, design = powers[usable], design[:, usable] / norms[usable]
    if variant.selector == "nnls":
        weights = _non_negative(design, aim)
        chosen = np.flatnonzero(weights > 0)
        weights = weights[chosen]
    else:
        select = _forward if variant.selector == "forward" else _stepwise
        chosen = select(design, aim, folds)
        weights = _ridge(design[:, chosen], aim)
    return powers[chosen], weights / norms[usable][chosen]


def _candidates(given: Floats, variant: Variant) -> npt.NDArray[np.int64]:
    """Powers of all terms: 1, and the products of columns and inverses up to the degree, or to one that makes few enough."""
    columns = given.shape[1]
    signs = (1,) if variant.logarithms or (given <= 0).any() else (1, -1)
    for degree in range(variant.degree, 0, -1):
        found = dict.fromkeys(_all_powers(columns, signs, degree))
        if len(found) <= _MOST_CANDIDATES or degree == 1:
            return np.array(list(found), dtype=np.int64).reshape(-1, columns)
    raise AssertionError  # unreachable: degrees start at 1


def _all_powers(columns: int, signs: tuple[int, ...], degree: int) -> Iterator[Powers]:
    """All powers up to the degree, each perhaps more than once; the constant first."""
    yield (0,) * columns
    factors = [(column, sign) for column in range(columns) for sign in signs]
    for count in range(1, degree + 1):
        for product in combinations_with_replacement(factors, count):
            powers = [0] * columns
            for column, sign in product:
                powers[column] += sign
            yield tuple(powers)


def _products(given: Floats, powers: npt.NDArray[np.int64], logarithms: bool) -> Floats:
    base = np.log(given) if logarithms else given
    found = np.ones((given.shape[0], powers.shape[0]))
    lowest, highest = int(powers.min(initial=0)), int(powers.max(initial=0))
    for column in range(given.shape[1]):
        table = np.column_stack([base[:, column] ** power for power in range(lowest, highest + 1)])
        found *= table[:, powers[:, column] - lowest]
    return found


def _forward(design: Floats, aim: Floats, folds: Sequence[Rows]) -> Rows:
    """Terms in the order in which each lowers the error in the folds the most, as long as it does.

    The candidates are kept orthogonal to what was chosen, so that what another one would change is one product away.
    """
    sides = [_Side(design, aim, fold) for fold in folds]
    chosen = [0]
    for side in sides:
        side.take(0)
    best = np.mean([side.error() for side in sides])
    while len(chosen) < min(_MOST_TERMS, design.shape[1], aim.size // 2):
        errors = np.mean([side.errors() for side in sides], axis=0)
        errors[chosen] = np.inf
        candidate = int(np.argmin(errors))
        if not errors[candidate] < _BETTER * best:
            break
        best = errors[candidate]
        chosen.append(candidate)
        for side in sides:
            side.take(candidate)
    return np.array(chosen)


class _Side:
    """A fold: what is fitted and what is left out, both orthogonal to what was taken."""

    def __init__(self, design: Floats, aim: Floats, fold: Rows) -> None:
        rest = np.setdiff1d(np.arange(aim.size), fold)
        self.inside, self.outside = design[rest].T.copy(), design[fold].T.copy()
        self.left, self.over = aim[rest].copy(), aim[fold].copy()
        self.squares = (self.inside**2).sum(axis=1)
        self.least = np.maximum(self.squares, _SAME) * _SAME

    def error(self) -> float:
        return float(np.minimum(np.abs(self.over), 1).mean())

    def errors(self) -> Floats:
        """The error after each candidate was taken; infinite for one that the others already say."""
        usable = self.squares > self.least
        steps = np.where(usable, self.inside @ self.left / np.where(usable, self.squares, 1), 0)
        found: Floats = np.minimum(np.abs(self.over - self.outside * steps[:, None]), 1).mean(axis=1)
        return np.where(usable, found, np.inf)

    def take(self, candidate: int) -> None:
        square = self.squares[candidate]
        if square <= self.least[candidate]:
            return
        inside, outside = self.inside[candidate].copy(), self.outside[candidate].copy()
        step = inside @ self.left / square
        shares = self.inside @ inside / square
        self.left -= step * inside
        self.over -= step * outside
        self.inside -= shares[:, None] * inside
        self.outside -= shares[:, None] * outside
        self.squares = (self.inside**2).sum(axis=1)


def _stepwise(design: Floats, aim: Floats, folds: Sequence[Rows]) -> Rows:
    """Draper and Smith: take the term with the largest partial F if it is significant, then drop those that no longer are."""
    from scipy.special import fdtrc  # noqa: PLC0415 - an extra

    del folds
    chosen = [0]
    seen: set[tuple[int, ...]] = {(0,)}
    while len(chosen) < min(_MOST_TERMS, design.shape[1], aim.size // 2):
        basis, _ = np.linalg.qr(design[:, chosen])
        left = aim - basis @ (basis.T @ aim)
        others = design - basis @ (basis.T @ design)
        squares = (others**2).sum(axis=0)
        usable = squares > _SAME
        gains = np.where(usable, (others.T @ left) ** 2 / np.where(usable, squares, 1), 0)
        gains[chosen] = 0
        candidate = int(np.argmax(gains))
        freedom = aim.size - len(chosen) - 1
        rest = max(float(left @ left) - gains[candidate], 1e-300)
        if fdtrc(1, freedom, gains[candidate] / rest * freedom) > _ENTER:
            break
        chosen.append(candidate)
        chosen = _dropped(design, aim, chosen)
        if tuple(chosen) in seen:  # it would go in circles
            break
        seen.add(tuple(chosen))
    return np.array(chosen)


def _dropped(design: Floats, aim: Floats, chosen: list[int]) -> list[int]:
    from scipy.special import fdtrc  # noqa: PLC0415 - an extra

    while len(chosen) > 1:
        part = design[:, chosen]
        weights = np.linalg.lstsq(part, aim, rcond=None)[0]
        left = aim - part @ weights
        freedom = max(aim.size - len(chosen), 1)
        spread = np.diag(np.linalg.pinv(part.T @ part)) * max(float(left @ left), 1e-300) / freedom
        ratios = weights**2 / np.maximum(spread, 1e-300)
        weakest = 1 + int(np.argmin(ratios[1:]))
        if fdtrc(1, freedom, ratios[weakest]) <= _LEAVE:
            break
        chosen = chosen[:weakest] + chosen[weakest + 1 :]
    return chosen


def _ridge(design: Floats, aim: Floats) -> Floats:
    linear_model = _linear_model()
    found: Floats = linear_model.Ridge(alpha=_RIDGE, fit_intercept=False).fit(design, aim).coef_
    return found


def _non_negative(design: Floats, aim: Floats) -> Floats:
    linear_model = _linear_model()
    found: Floats = linear_model.LinearRegression(positive=True, fit_intercept=False).fit(design, aim).coef_
    return found


def _linear_model() -> Any:
    try:
        from sklearn import linear_model  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError(
            "this regression needs scikit-learn", remedy=how_to_install("predict")
        ) from None
    return linear_model


def _named(names: Sequence[str], powers: Sequence[int], logarithms: bool) -> str:
    factors = []
    for name, power in zip(names, powers, strict=True):
        if power:
            base = f"log {name}" if logarithms else name
            factors.append(base if power == 1 else f"{base}^{power}")
    return " · ".join(factors) or "constant"


MODEL: Final = Lattuada()
