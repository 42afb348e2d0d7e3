"""Which rows are fitted and which are foretold: splits of a table of runs, in words."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError, UsageError, nearest
from tracekit.names import clean
from tracekit.predict.describe import CATEGORIES
from tracekit.predict.features import device_names
from tracekit.predict.support import DEVICE, INSIDE, support_of
from tracekit.predict.table import Floats, Runs

__all__ = ["HOW", "Fold", "by_configuration", "folds_of"]

Mask = npt.NDArray[np.bool_]

HOW: Final = (
    "write kfold, kfold:10, interpolation, COLUMN>NUMBER, COLUMN>p75, p75(COLUMN), COLUMN=VALUE, or COLUMN to leave out each of its"
    " values in turn"
)
_FOLDS: Final = 5
_MOST_FOLDS: Final = 100
_MOST_VALUES: Final = 50
_MOST_LISTED: Final = 6

_KFOLD: Final = re.compile(r"(?:k-?fold|grouped)(?::(\d{1,3}))?")
_QUANTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d{1,3})?)\(([^()]{1,200})\)")
_COMPARED: Final = re.compile(r"([^<>=()]{1,200}?)\s*(>=|<=|==|>|<|=)\s*([^<>=]{1,200})")
_SHARE: Final = re.compile(r"p(\d{1,2}(?:\.\d{1,3})?)")


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """What is left out, in words, and which rows are fitted and which foretold. No configuration stands on both sides."""

    name: str
    train: Mask
    test: Mask


def folds_of(runs: Runs, split: str) -> list[Fold]:
    """The folds of a split; see `HOW` for what can be written.

    Raises UsageError for words that are no split, InconclusiveError if one side has no row.
    """
    split = split.strip()
    if found := _KFOLD.fullmatch(split):
        folds = by_configuration(runs, int(found[1] or _FOLDS))
    elif split == "interpolation":
        folds = _inside(runs, by_configuration(runs, _FOLDS))
    elif found := _QUANTILE.fullmatch(split):
        folds = [_fold(runs, split, _compared(runs, found[2].strip(), ">", f"p{found[1]}"))]
    elif found := _COMPARED.fullmatch(split):
        folds = [_fold(runs, split, _compared(runs, found[1].strip(), found[2], found[3].strip()))]
    else:
        folds = _in_turn(runs, split)
    folds = [fold for fold in folds if fold.train.any() and fold.test.any()]
    if not folds:
        raise InconclusiveError(
            f"the split {split!r} leaves no row on one of its sides", remedy="choose a value within the table"
        )
    return folds


def by_configuration(runs: Runs, count: int) -> list[Fold]:
    """Each configuration with all its repetitions left out once, in so many folds; always the same ones for the same table."""
    if not 2 <= count <= _MOST_FOLDS:
        raise UsageError(f"there cannot be {count} folds", remedy=f"choose 2 to {_MOST_FOLDS}")
    _, codes = np.unique(runs.frame["configuration"].to_numpy(), return_inverse=True)
    order = np.random.default_rng(0).permutation(codes.max() + 1)
    number = order[codes] % count
    return [Fold(f"fold {each + 1} of {count}", number != each, number == each) for each in range(count)]


def _fold(runs: Runs, name: str, test: Mask) -> Fold:
    """The fold with these rows, and all repetitions of their configurations, left out."""
    numbers = runs.frame["configuration"].to_numpy()
    test = np.isin(numbers, numbers[test])
    return Fold(name, ~test, test)


def _inside(runs: Runs, folds: list[Fold]) -> list[Fold]:
    """The folds without the rows that would be extrapolation."""
    found = []
    for fold in folds:
        if not fold.train.any():
            continue
        kinds = support_of(runs.where(fold.train)).places(runs).kind
        found.append(Fold(fold.name, fold.train, fold.test & (kinds == INSIDE)))
    return found


def _in_turn(runs: Runs, name: str) -> list[Fold]:
    values = _values(runs, name)
    if isinstance(values, list):
        texts = np.array(values, dtype=object)
        known: list[object] = list(dict.fromkeys(values))
        folds = [
            _fold(runs, f"{name}={clean(str(value))}", texts == value) for value in known[: _MOST_VALUES + 1]
        ]
    else:
        folds = [
            _fold(runs, f"{name}={value:g}", values == value)
            for value in np.unique(values[~np.isnan(values)])[: _MOST_VALUES + 1]
        ]
    if len(folds) > _MOST_VALUES:
        raise UsageError(
            f"{name} has more than {_MOST_VALUES} values to leave out in turn",
            remedy=f"write {name}>p75, or kfold",
        )
    return folds


def _compared(runs: Runs, name: str, sign: str, value: str) -> Mask:
    values = _values(runs, name)
    if isinstance(values, list):
        if sign not in ("=", "=="):
            raise UsageError(
                f"{name} holds names, which {sign!r} does not compare", remedy=f"write {name}=NAME"
            )
        if value not in values:
            known = sorted(set(values))
            raise UsageError(
                f"no row has {name} {value!r}",
                remedy=nearest(value, known, f"its values are {', '.join(map(clean, known[:_MOST_LISTED]))}"),
            )
        return np.array([each == value for each in values])
    limit = _limit(values, value)
    if sign in ("=", "=="):
        return np.isclose(values, limit, rtol=1e-9, atol=0)
    with np.errstate(invalid="ignore"):
        found: Mask = {">": np.greater, "<": np.less, ">=": np.greater_equal, "<=": np.less_equal}[sign](
            values, limit
        )
    return found


def _limit(values: Floats, value: str) -> float:
    if found := _SHARE.fullmatch(value):
        return float(np.nanquantile(values, float(found[1]) / 100))
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{value!r} is neither a number nor a percentile such as p75", remedy=HOW) from None


def _values(runs: Runs, name: str) -> Floats | list[str]:
    """A column by its role, by its name in the table, or by its name as a feature."""
    roles = {column: role for role, column in runs.description.columns.items()}
    role = name if name in runs.description.columns else roles.get(name, name)
    if role == DEVICE and any(devices := device_names(runs)):
        return devices
    if role in CATEGORIES and role in runs.frame.columns:
        return runs.names(role)
    known = (*runs.description.columns, *runs.description.features)
    if role not in known:
        raise UsageError(
            f"there is no split {name!r}",
            remedy=nearest(name, (*known, *roles, "kfold", "interpolation"), HOW),
        )
    return runs.numbers(role)
