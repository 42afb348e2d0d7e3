"""What a model is, which there are, and how a fitted one is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import UsageError, nearest
from tracekit.predict.table import Floats, Runs

__all__ = ["MODELS", "Doubts", "Fitted", "Heeds", "Model", "Refits", "Term", "model_of"]


@dataclass(frozen=True, slots=True)
class Term:
    """A parameter of a fitted model."""

    name: str
    value: float
    unit: str
    meaning: str
    """In words, as a user reads them."""


class Fitted(Protocol):
    """A model whose parameters are known. It keeps no row of the data that it was fitted to."""

    def predict(self, runs: Runs) -> Floats:
        """The times of these rows, in the target's unit: finite, above 0."""
        ...

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """What these times consist of, in the target's unit, by the name of each part; they sum to `predict`. Empty for a model that
        does not tell.
        """
        ...

    def explain(self) -> Sequence[Term]:
        """Its parameters, the most telling first."""
        ...

    def state(self) -> dict[str, Any]:
        """What the model's `restore` makes it from again: JSON."""
        ...


@runtime_checkable
class Heeds(Protocol):
    """A fitted model that looks at some columns only: where a row lies along others does not matter to it."""

    heeds: ClassVar[frozenset[str]]


@runtime_checkable
class Doubts(Protocol):
    """A fitted model that knows of rows of which it was told too little."""

    def doubts(self, runs: Runs, inside: npt.NDArray[np.bool_]) -> tuple[Floats, list[str]]:
        """By row, by how much what it was not told widens its interval, in logarithms (infinite: it has no answer), and what that is, in
        words; empty where it was told all. `inside`: which rows lie within what was measured, where its errors are known.
        """
        ...

    def lacked(self) -> str:
        """What the rows that it was fitted to did not tell it, as a sentence without its full stop; empty if they told all."""
        ...


class Model(Protocol):
    """A way to fit."""

    def lacks(self, runs: Runs) -> str | None:
        """Why it cannot be fitted to these rows, in words; None if it can."""
        ...

    def fit(self, runs: Runs) -> Fitted:
        """Fit it to rows with a target. It looks at nothing else."""
        ...

    def restore(self, state: Mapping[str, Any]) -> Fitted:
        """The fitted model of a state. Raises ValueError, KeyError or TypeError for one that is none."""
        ...


@runtime_checkable
class Refits(Protocol):
    """A way to fit that first chooses among forms of itself. To see how well it foretells, the choice need not be made again each time."""

    def refit(self, runs: Runs, like: Any) -> Fitted:
        """Fit it to other rows in the form that `like`, one of its fits, chose."""
        ...


MODELS: Final[dict[str, str]] = {
    "layerwise": "the sum of the layers, each linear in its operators, FLOPs and bytes by its type and pass",
    "structural": "start-up + iterations · (the longer of loading and computing, + communication)",
    "layouts": "tensor-, data- and pipeline-parallel transformers: slots · layers + communication + optimizer",
    "devices": "runs of one case on several devices, scaled by what the devices can do",
    "kernels": "kernels on a roofline whose share depends on size, waves and intensity",
    "lattuada": "a regression on products and inverses of the features, selected one by one",
    "boosting": "gradient-boosted trees; for configurations between those that were measured only",
}
"""The models, by the name of their module in `models/`, in the order in which they are tried: what has a meaning stands before what has none. Each module has its model as `MODEL`."""


def model_of(name: str) -> Model:
    """The model of this name. Raises UsageError if there is none."""
    if name not in MODELS:
        raise UsageError(
            f"there is no model {name!r}", remedy=nearest(name, MODELS, f"choose one of {', '.join(MODELS)}")
        )
    found: Model = import_module(f"tracekit.predict.models.{name}").MODEL
    return found
