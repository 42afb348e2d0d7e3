"""Gradient-boosted trees on the logarithm of the time: for configurations between those that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.errors import MissingDependencyError
from tracekit.predict.features import column, one_each, sampled, several, varying
from tracekit.predict.model import Term
from tracekit.predict.table import Floats, Runs

__all__ = ["MODEL", "Trees", "grow"]

_LEAST_ROWS: Final = 20
_MOST_ROWS: Final = 4000
_TREES: Final = 250
_DEPTH: Final = 4
_RATE: Final = 0.08
_LEAF: Final = 2
_MOST_NODES: Final = 100_000
_DEEPEST: Final = 16
_MOST_TREES: Final = 1000
_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees that together say a logarithm. A leaf leads to itself; other nodes lead to later ones."""

    numbers: tuple[str, ...]
    names: Mapping[str, Mapping[str, float]]
    """By role, the code of each name; one that was never seen has the code of the middle."""
    start: float
    roots: npt.NDArray[np.int64]
    feature: npt.NDArray[np.int64]
    threshold: Floats
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    value: Floats

    def logarithms(self, runs: Runs) -> Floats:
        """What the trees say of each row."""
        given = _design(runs, self.numbers, self.names)
        starts = range(0, runs.height, _AT_ONCE)
        found: Floats = np.concatenate(
            [np.empty(0), *(self._said(given[at : at + _AT_ONCE]) for at in starts)]
        )
        return found

    def _said(self, given: Floats) -> Floats:
        node = np.repeat(self.roots[None, :], given.shape[0], axis=0)
        row = np.arange(given.shape[0])[:, None]
        for _ in range(_DEEPEST):
            below = np.where(
                given[row, self.feature[node]] <= self.threshold[node], self.left[node], self.right[node]
            )
            if np.array_equal(below, node):
                break
            node = below
        found: Floats = self.start + self.value[node].sum(axis=1)
        return found

    def predict(self, runs: Runs) -> Floats:
        """The times of these rows."""
        found: Floats = np.exp(np.clip(self.logarithms(runs), -700, 700))
        return found

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """Nothing: trees do not tell."""
        del runs
        return {}

    def explain(self) -> Sequence[Term]:
        """How many of the decisions look at each column."""
        inner = self.left != np.arange(self.left.size)
        counts = np.bincount(self.feature[inner], minlength=len(self.numbers) + len(self.names))
        named = sorted(
            zip((*self.numbers, *self.names), counts.tolist(), strict=True), key=lambda each: -each[1]
        )
        return [Term(name, count, "decisions", f"how many decisions look at {name}") for name, count in named]

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "numbers": list(self.numbers),
            "names": {role: dict(codes) for role, codes in self.names.items()},
            "start": self.start,
            "roots": self.roots.tolist(),
            "feature": self.feature.tolist(),
            "threshold": self.threshold.tolist(),
            "left": self.left.tolist(),
            "right": self.right.tolist(),
            "value": self.value.tolist(),
        }


def grow(
    runs: Runs, logarithms: Floats, trees: int = _TREES, depth: int = _DEPTH, rate: float = _RATE
) -> Trees:
    """Fit trees to a logarithm of each row. Raises MissingDependencyError without scikit-learn."""
    try:
        from sklearn.ensemble import GradientBoostingRegressor  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError(
            "boosting needs scikit-learn", remedy='install it with: pip install "tracekit[predict]"'
        ) from None
    numbers = tuple(varying(runs))
    names = {role: _codes(runs, role, logarithms) for role in several(runs)}
    booster = GradientBoostingRegressor(
        n_estimators=trees,
        max_depth=depth,
        learning_rate=rate,
        min_samples_leaf=_LEAF,
        subsample=0.7,
        random_state=0,
    )
    booster.fit(_design(runs, numbers, names), logarithms)
    start = float(booster.init_.constant_.ravel()[0])
    return _flat(numbers, names, start, [each.tree_ for each in booster.estimators_[:, 0]], rate)


def _flat(
    numbers: tuple[str, ...],
    names: Mapping[str, Mapping[str, float]],
    start: float,
    trees: list[Any],
    rate: float,
) -> Trees:
    sizes = [tree.node_count for tree in trees]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    feature, threshold, left, right, value = [], [], [], [], []
    for root, tree in zip(roots, trees, strict=True):
        itself = np.arange(tree.node_count)
        leaf = tree.children_left < 0
        feature.append(np.where(leaf, 0, tree.feature))
        threshold.append(np.where(leaf, 0.0, tree.threshold))
        left.append(root + np.where(leaf, itself, tree.children_left))
        right.append(root + np.where(leaf, itself, tree.children_right))
        value.append(np.where(leaf, rate * tree.value[:, 0, 0], 0.0))
    return Trees(
        numbers,
        names,
        start,
        roots,
        np.concatenate(feature).astype(np.int64),
        np.concatenate(threshold),
        np.concatenate(left).astype(np.int64),
        np.concatenate(right).astype(np.int64),
        np.concatenate(value),
    )


def _codes(runs: Runs, role: str, logarithms: Floats) -> dict[str, float]:
    """Names in the order of their mean, as numbers from 0."""
    names = np.array(runs.names(role), dtype=object)
    means = {name: float(logarithms[names == name].mean()) for name in sorted(set(names.tolist()))}
    return {
        name: float(code) for code, name in enumerate(sorted(means, key=lambda name: (means[name], name)))
    }


def _design(runs: Runs, numbers: Sequence[str], names: Mapping[str, Mapping[str, float]]) -> Floats:
    found = [column(runs, name).astype(np.float32).astype(np.float64) for name in numbers]
    for role, codes in names.items():
        middle = (len(codes) - 1) / 2
        found.append(np.array([codes.get(name, middle) for name in runs.names(role)]))
    return np.column_stack(found) if found else np.zeros((runs.height, 1))


class Boosting:
    """Gradient-boosted trees."""

    def lacks(self, runs: Runs) -> str | None:
        """Why they cannot be grown from these rows."""
        if one_each(runs).height < _LEAST_ROWS:
            return f"there are fewer than {_LEAST_ROWS} configurations"
        return None if varying(runs) or several(runs) else "all rows have the same configuration"

    def fit(self, runs: Runs) -> Trees:
        """Grow them from one row for each configuration, at most 4,000 of them."""
        each = one_each(sampled(runs, _MOST_ROWS))
        return grow(each, np.log(each.target))

    def restore(self, state: Mapping[str, Any]) -> Trees:
        """The trees of a state. Raises ValueError, KeyError or TypeError for one that is none."""
        whole = {
            name: np.asarray(state[name], dtype=np.int64) for name in ("roots", "feature", "left", "right")
        }
        real = {name: np.asarray(state[name], dtype=np.float64) for name in ("threshold", "value")}
        numbers = tuple(map(str, state["numbers"]))
        names = {
            str(role): {str(name): float(code) for name, code in codes.items()}
            for role, codes in state["names"].items()
        }
        _check(whole, real, len(numbers) + len(names))
        return Trees(
            numbers,
            names,
            float(state["start"]),
            whole["roots"],
            whole["feature"],
            real["threshold"],
            whole["left"],
            whole["right"],
            real["value"],
        )


def _check(whole: Mapping[str, npt.NDArray[np.int64]], real: Mapping[str, Floats], columns: int) -> None:
    size = whole["left"].size
    if any(each.ndim != 1 for each in (*whole.values(), *real.values())) or not 0 < size <= _MOST_NODES:
        raise ValueError("the trees are no lists of nodes")
    if any(each.size != size for each in (whole["feature"], whole["right"], *real.values())):
        raise ValueError("the trees' lists are not of the same length")
    if whole["roots"].size > _MOST_TREES:
        raise ValueError(f"there are more than {_MOST_TREES} trees")
    if (whole["feature"] < 0).any() or (whole["feature"] >= max(columns, 1)).any():
        raise ValueError("the trees look at a column that is not there")
    for name in ("roots", "left", "right"):
        if (whole[name] < 0).any() or (whole[name] >= size).any():
            raise ValueError("the trees lead to a node that is not there")


MODEL: Final = Boosting()
