"""Gradient-boosted trees on the logarithm of the time: for configurations between those that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tracekit.classes import dataclass
from tracekit.errors import MissingDependencyError
from tracekit.facts.distribution import how_to_install
from tracekit.predict.features import column, one_each, sampled, several, varying
from tracekit.predict.model import Term
from tracekit.predict.models.forest import Forest, forest_of
from tracekit.predict.table import Floats, Runs

__all__ = ["MODEL", "Trees", "grow"]

_LEAST_ROWS: Final = 20
_MOST_ROWS: Final = 4000
_TREES: Final = 250
_DEPTH: Final = 4
_RATE: Final = 0.08
_LEAF: Final = 2


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees that together say a logarithm."""

    numbers: tuple[str, ...]
    names: Mapping[str, Mapping[str, float]]
    """By role, the code of each name; one that was never seen has the code of the middle."""
    forest: Forest

    def logarithms(self, runs: Runs) -> Floats:
        """What the trees say of each row."""
        return self.forest.sums(_design(runs, self.numbers, self.names))

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
        inner = self.forest.left != np.arange(self.forest.left.size)
        counts = np.bincount(self.forest.feature[inner], minlength=len(self.numbers) + len(self.names))
        named = sorted(
            zip((*self.numbers, *self.names), counts.tolist(), strict=True), key=lambda each: -each[1]
        )
        return [Term(name, count, "decisions", f"how many decisions look at {name}") for name, count in named]

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "numbers": list(self.numbers),
            "names": {role: dict(codes) for role, codes in self.names.items()},
            "forest": self.forest.state(),
        }


def grow(
    runs: Runs, logarithms: Floats, trees: int = _TREES, depth: int = _DEPTH, rate: float = _RATE
) -> Trees:
    """Fit trees to a logarithm of each row. Raises MissingDependencyError without scikit-learn."""
    try:
        from sklearn import config_context  # noqa: PLC0415 - an extra
        from sklearn.ensemble import GradientBoostingRegressor  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError(
            "boosting needs scikit-learn", remedy=how_to_install("predict")
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
    with config_context(
        skip_parameter_validation=True, assume_finite=True
    ):  # which it would do for every tree
        booster.fit(_design(runs, numbers, names), logarithms)
    start = float(booster.init_.constant_.ravel()[0])
    width = len(numbers) + len(names)
    return Trees(
        numbers, names, _flat(width, start, [each.tree_ for each in booster.estimators_[:, 0]], rate)
    )


def _flat(width: int, start: float, trees: list[Any], rate: float) -> Forest:
    roots = np.cumsum([0, *(tree.node_count for tree in trees)], dtype=np.int32)[:-1]
    first = np.repeat(roots, [tree.node_count for tree in trees])
    left, right, feature, threshold = (
        np.concatenate([getattr(tree, name) for tree in trees])
        for name in ("children_left", "children_right", "feature", "threshold")
    )
    leaf, itself = left < 0, np.arange(left.size)
    return Forest(
        width,
        max(tree.max_depth for tree in trees),
        start,
        roots,
        np.where(leaf, 0, feature).astype(np.int32),
        np.where(leaf, 0.0, threshold),
        np.where(leaf, itself, first + left).astype(np.int32),
        np.where(leaf, itself, first + right).astype(np.int32),
        np.where(leaf, rate * np.concatenate([tree.value[:, 0, 0] for tree in trees]), 0.0),
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
        numbers = tuple(map(str, state["numbers"]))
        names = {
            str(role): {str(name): float(code) for name, code in codes.items()}
            for role, codes in state["names"].items()
        }
        return Trees(numbers, names, forest_of(state["forest"], len(numbers) + len(names)))


MODEL: Final = Boosting()
