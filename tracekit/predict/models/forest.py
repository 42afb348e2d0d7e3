"""Gradient-boosted trees over a matrix, kept as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import MissingDependencyError
from tracekit.facts.distribution import how_to_install
from tracekit.predict.table import Floats

__all__ = ["Forest", "forest_of", "grow"]

_MOST_NODES: Final = 200_000
_LARGEST: Final = 1e3
_ARRAYS: Final = ("threshold", "value", "roots", "feature", "left", "right")
_AT_ONCE: Final = 4096
_LEAVES: Final = 24
_LEAST_IN_LEAF: Final = 30


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees whose leaves add up. A leaf leads to itself; other nodes lead to later ones, `depth` times at most."""

    width: int
    """Of the matrix."""
    depth: int
    start: float
    roots: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: Floats
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    value: Floats

    def sums(self, matrix: Floats) -> Floats:
        """What the trees say of each row."""
        found = [self._some(matrix[at : at + _AT_ONCE]) for at in range(0, matrix.shape[0], _AT_ONCE)]
        return np.concatenate(found) if found else np.zeros(0)

    def _some(self, matrix: Floats) -> Floats:
        node = np.repeat(self.roots[None, :], matrix.shape[0], axis=0)
        row = np.arange(matrix.shape[0])[:, None]
        for _ in range(self.depth):
            low = matrix[row, self.feature[node]] <= self.threshold[node]
            node = np.where(low, self.left[node], self.right[node])
        sums: Floats = self.start + self.value[node].sum(axis=1)
        return sums

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "width": self.width,
            "depth": self.depth,
            "start": self.start,
            "roots": self.roots.tolist(),
            "feature": self.feature.tolist(),
            "threshold": self.threshold.tolist(),
            "left": self.left.tolist(),
            "right": self.right.tolist(),
            "value": [float(f"{value:.5g}") for value in self.value],
        }


def grow(matrix: Floats, target: Floats, trees: int, rate: float) -> Forest:
    """Fit trees to the median of the target. Raises MissingDependencyError without scikit-learn."""
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor  # noqa: PLC0415 - an extra
        from threadpoolctl import threadpool_limits  # noqa: PLC0415 - comes with it
    except ImportError:
        raise MissingDependencyError(
            "the model of kernels needs scikit-learn",
            remedy=how_to_install("predict"),
        ) from None
    booster = HistGradientBoostingRegressor(
        loss="absolute_error",
        max_iter=trees,
        learning_rate=rate,
        max_leaf_nodes=_LEAVES,
        min_samples_leaf=_LEAST_IN_LEAF,
        early_stopping=False,
        random_state=0,
    )
    with threadpool_limits(1, "openmp"):
        booster.fit(matrix, target)
    return _flat(
        matrix.shape[1],
        float(np.ravel(booster._baseline_prediction)[0]),
        [each[0].nodes for each in booster._predictors],
    )


def _flat(width: int, start: float, trees: list[Any]) -> Forest:
    roots = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])[:-1]]).astype(np.int32)
    leaf = np.concatenate([tree["is_leaf"].astype(bool) for tree in trees])
    itself = np.arange(leaf.size)
    first = np.repeat(roots, [len(tree) for tree in trees])
    nodes = {
        name: np.concatenate([tree[name] for tree in trees])
        for name in ("feature_idx", "num_threshold", "left", "right", "value")
    }
    return Forest(
        width,
        max(int(tree["depth"].max()) for tree in trees),
        start,
        roots,
        np.where(leaf, 0, nodes["feature_idx"]).astype(np.int32),
        np.where(leaf, 0.0, nodes["num_threshold"]),
        np.where(leaf, itself, first + nodes["left"]).astype(np.int32),
        np.where(leaf, itself, first + nodes["right"]).astype(np.int32),
        np.where(leaf, nodes["value"], 0.0),
    )


def forest_of(state: Mapping[str, Any], width: int) -> Forest:
    """The forest of a state, for a matrix of this width. Raises ValueError, KeyError or TypeError for one that is none."""
    if any(not isinstance(state[name], list) or len(state[name]) > _MOST_NODES for name in _ARRAYS):
        raise ValueError("the trees are none")
    if any(abs(place) > _MOST_NODES for name in _ARRAYS[2:] for place in state[name]):
        raise ValueError("the trees are none")
    numbers = {name: np.array(state[name], dtype=np.float64) for name in ("threshold", "value")}
    places = {name: np.array(state[name], dtype=np.int32) for name in ("roots", "feature", "left", "right")}
    depth, start = state["depth"], float(state["start"])
    size = numbers["value"].size
    itself = np.arange(size)
    arrays: list[npt.NDArray[Any]] = [
        *numbers.values(),
        *(places[name] for name in ("feature", "left", "right")),
    ]
    sound = (
        state["width"] == width
        and isinstance(depth, int)
        and 0 <= depth <= _LEAVES
        and 0 < size <= _MOST_NODES
        and all(each.shape == (size,) for each in arrays)
        and places["roots"].ndim == 1
        and all(
            each.min(initial=0) >= 0 and each.max(initial=0) < size
            for each in (places["roots"], places["left"], places["right"])
        )
        and bool(np.all((places["left"] >= itself) & (places["right"] >= itself)))
        and places["feature"].min() >= 0
        and places["feature"].max() < width
        and isfinite(start)
        and all(bool(np.isfinite(each).all()) for each in numbers.values())
        and np.abs(numbers["value"]).max() <= _LARGEST
    )
    if not sound:
        raise ValueError("the trees are none")
    return Forest(
        width,
        depth,
        start,
        places["roots"],
        places["feature"],
        numbers["threshold"],
        places["left"],
        places["right"],
        numbers["value"],
    )
