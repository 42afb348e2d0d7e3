"""The questions with which models are compared: rows left out of the training rows as later rows will lie outside of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracekit.predict.features import device_names
from tracekit.predict.protocols import Fold, by_configuration
from tracekit.predict.support import DEVICE, FOLLOWS, Support, support_of
from tracekit.predict.table import Floats, Runs

__all__ = ["of_two", "questions"]

_FOLDS: Final = 5
_MOST_NAMES: Final = 6
_LEAST_LEFT: Final = 0.25
_TWO: Final = 2
_NOT_ASKED: Final = ("peak_gflops", "bandwidth_gb_s", "flops", "bytes", "parameters")
"""Axes that follow others: they are beyond the range when those are."""


def questions(runs: Runs) -> list[Fold]:
    """Folds by configuration, then the largest values of each column of numbers left out, then each name in turn.

    Of a column of numbers at least two values stay, so that there is something to go on from, and of all rows a quarter.
    """
    support = support_of(runs)
    folds = by_configuration(runs, _FOLDS)
    for axis in support.numbers:
        if axis not in _NOT_ASKED:
            found = _largest(axis, runs.numbers(axis))
            folds += [_alone(runs, fold) for fold in found] if axis in FOLLOWS else found
    for axis in support.names:
        if axis != "machine":
            folds += _each_name(axis, runs, support)
    return [_whole(runs, fold) for fold in folds if fold.train.mean() >= _LEAST_LEFT and fold.test.any()]


def of_two(runs: Runs) -> list[str]:
    """The axes along which the rows are at two places, so that they tell how the time grows but cannot be asked whether it goes on so."""
    return [
        axis
        for axis in support_of(runs).numbers
        if axis not in _NOT_ASKED and np.unique(runs.numbers(axis)).size == _TWO
    ]


def _largest(axis: str, values: Floats) -> list[Fold]:
    known = np.unique(values)
    if known.size <= _TWO:
        return []
    limit = max(float(np.quantile(values, 0.75)), float(known[1]))
    test = values > (limit if limit < known[-1] else known[-2])
    return [Fold(axis, ~test, test)]


def _alone(runs: Runs, fold: Fold) -> Fold:
    """The fold without the rows that are beyond what is left along another axis too."""
    fold = _whole(runs, fold)
    beyond = support_of(runs.where(fold.train)).places(runs).kind == fold.name
    return Fold(fold.name, fold.train, fold.test & beyond)


def _each_name(axis: str, runs: Runs, support: Support) -> list[Fold]:
    seen = support.names[axis]
    if len(seen) < 2:
        return []
    names = np.array(device_names(runs) if axis == DEVICE else runs.names(axis), dtype=object)
    counts = sorted(seen, key=lambda name: (-int((names == name).sum()), name))
    return [Fold(f"{axis}={name}", names != name, names == name) for name in sorted(counts[:_MOST_NAMES])]


def _whole(runs: Runs, fold: Fold) -> Fold:
    """The fold with all repetitions of what is left out left out."""
    numbers = runs.frame["configuration"].to_numpy()
    test = np.isin(numbers, numbers[fold.test])
    return Fold(fold.name, ~test, test)
