"""The members of a prediction: fitted models, some of them with trees that correct what they leave inside the range of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.predict.features import one_each, sampled
from tracekit.predict.model import MODELS, Doubts, Fitted, Refits, Term, model_of
from tracekit.predict.models import boosting
from tracekit.predict.support import Support, support_of
from tracekit.predict.table import Floats, Runs

__all__ = ["CORRECTED", "candidates", "fit_members", "interpolates", "restore_member"]

CORRECTED: Final = "+boosting"
_MOST_CONFIGURATIONS: Final = 4000
_FADES: Final = 3.0
_MOST_CORRECTED: Final = 0.7
_TREES: Final = 120
_DEPTH: Final = 3


@dataclass(frozen=True, slots=True)
class Corrected:
    """A model, and trees that say the logarithm of what it leaves; these fade to nothing outside what was measured."""

    base: Fitted
    name: str
    trees: boosting.Trees
    support: Support

    def predict(self, runs: Runs) -> Floats:
        """The times of these rows."""
        return self.base.predict(runs) * self._factor(runs)

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """The parts of the model, each corrected by the same factor."""
        factor = self._factor(runs)
        return {name: part * factor for name, part in self.base.parts(runs).items()}

    def doubts(self, runs: Runs, inside: npt.NDArray[np.bool_]) -> tuple[Floats, list[str]]:
        """Those of the model."""
        if isinstance(self.base, Doubts):
            return self.base.doubts(runs, inside)
        return np.zeros(runs.height), [""] * runs.height

    def lacked(self) -> str:
        """What the model lacked."""
        return self.base.lacked() if isinstance(self.base, Doubts) else ""

    def explain(self) -> Sequence[Term]:
        """The parameters of the model, then what the trees look at."""
        return (*self.base.explain(), *self.trees.explain())

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "model": self.name,
            "base": self.base.state(),
            "trees": self.trees.state(),
            "support": self.support.state(),
        }

    def _factor(self, runs: Runs) -> Floats:
        fading = np.exp(-_FADES * self.support.places(runs).distance)
        return np.exp(np.clip(self.trees.logarithms(runs), -_MOST_CORRECTED, _MOST_CORRECTED) * fading)


def candidates(runs: Runs, wanted: str = "auto") -> list[str]:
    """The members that can be fitted to these rows; `wanted`: one model, or `auto` for all."""
    names = [name for name in MODELS if model_of(name).lacks(runs) is None] if wanted == "auto" else [wanted]
    if wanted == "auto" and "boosting" in names:
        names += [f"{name}{CORRECTED}" for name in names if name != "boosting"]
    return names


def interpolates(name: str) -> bool:
    """Whether the member is for rows between those that were measured only."""
    return name.endswith("boosting")


def fit_members(
    names: Sequence[str], runs: Runs, like: Mapping[str, Fitted] | None = None
) -> dict[str, Fitted]:
    """Fit these members to the rows; those that lack something are left out. `like`: fits whose choices are kept."""
    found: dict[str, Fitted] = {}
    bases = {name.removesuffix(CORRECTED) for name in names}
    fitted = {
        name: _fit(name, runs, like or {})
        for name in MODELS
        if name in bases and model_of(name).lacks(runs) is None
    }
    for name in names:
        base = name.removesuffix(CORRECTED)
        if base not in fitted:
            continue
        if name == base:
            found[name] = fitted[base]
        elif boosting.MODEL.lacks(runs) is None:
            found[name] = _corrected(base, fitted[base], runs)
    return found


def _fit(name: str, runs: Runs, like: Mapping[str, Fitted]) -> Fitted:
    model = model_of(name)
    if name in like and isinstance(model, Refits):
        return model.refit(runs, like[name])
    return model.fit(runs)


def _corrected(name: str, base: Fitted, runs: Runs) -> Corrected:
    each = one_each(sampled(runs, _MOST_CONFIGURATIONS))
    left = np.log(each.target / base.predict(each))
    trees = boosting.grow(each, left, trees=_TREES, depth=_DEPTH)
    return Corrected(base, name, trees, support_of(runs))


def restore_member(name: str, state: Mapping[str, Any]) -> Fitted:
    """The member of a state. Raises ValueError, KeyError, TypeError or AttributeError for one that is none."""
    base = name.removesuffix(CORRECTED)
    if base not in MODELS:
        raise ValueError(f"there is no model {name!r}")
    if name == base:
        return model_of(name).restore(state)
    return Corrected(
        model_of(base).restore(state["base"]),
        base,
        boosting.MODEL.restore(state["trees"]),
        Support.restore(state["support"]),
    )
