"""Whole training jobs: start-up + iterations · (the longer of loading and computing, + synchronisation).

Fitted in logarithms, with few parameters that all are above 0, so that it extrapolates: no time falls when the batch, the depth or the
FLOPs grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, log
from typing import Any, Final

import numpy as np

from tracekit.errors import UsageError
from tracekit.predict.describe import NUMBERS
from tracekit.predict.model import Term
from tracekit.predict.models.checked import table
from tracekit.predict.models.structural_fit import choose, fit, measured_of
from tracekit.predict.models.structural_law import GROUPS, PARAMETERS, Form, Jobs, Law, jobs_of
from tracekit.predict.table import Floats, Runs

__all__ = ["MODEL", "Structural", "StructuralFit"]

_LEAST: Final = 4
"""Fewer configurations do not tell start-up, loading and computing apart."""
_NOT_MODELLED: Final = (
    "tensor_parallel",
    "pipeline_parallel",
    "micro_batch",
    "op",
    "hidden",
    "heads",
    "sequence",
)
_ALWAYS: Final = frozenset({"sample", "step"})
_EXPONENTS: Final = frozenset({"growth", "overlap"})
_LARGEST: Final = 100.0
_LARGEST_EXPONENT: Final = 6.0
"""Logarithms of parameters beyond these are no fit's."""


@dataclass(frozen=True, slots=True)
class StructuralFit:
    """The law with its parameters, as logarithms of seconds."""

    law: Law
    logs: Floats
    seconds: float
    """Of one unit of the target."""

    def predict(self, runs: Runs) -> Floats:
        """The times of these rows, in the target's unit."""
        jobs = self._jobs(runs)
        return self.law.times(self.logs, jobs, self.law.places(jobs)) / self.seconds

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """What these times consist of; loading counts as far as computing does not hide it."""
        jobs = self._jobs(runs)
        found = self.law.parts(self.logs, jobs, self.law.places(jobs))
        return {name: values / self.seconds for name, values in found.items()}

    def explain(self) -> Sequence[Term]:
        """The parameters, then the factors of devices, machines and networks, the farthest from 1 first."""
        values = np.exp(self.logs)
        known = [PARAMETERS[name] for name in self.law.names]
        terms = [
            Term(name, float(value), parameter.unit, parameter.meaning)
            for name, value, parameter in zip(self.law.names, values, known, strict=False)
        ]
        levels = [(group, level) for group, found in self.law.levels.items() for level in found]
        factors = [
            Term(f"{group}, {GROUPS[group][0]} {level}", float(value), "×", GROUPS[group][1])
            for (group, level), value in zip(levels, values[len(known) :], strict=True)
        ]
        return [*terms, *sorted(factors, key=lambda term: -abs(log(term.value)))]

    def _jobs(self, runs: Runs) -> Jobs:
        """The rows as arrays. Raises UsageError for a role without which there is no answer."""
        for role in sorted(self.law.needs - runs.roles):
            raise UsageError(
                f"the model needs {role} ({NUMBERS[role]}) of every row",
                remedy="add the column, or fit a model without it",
            )
        return jobs_of(runs)

    def state(self) -> dict[str, Any]:
        """The law and its parameters, as JSON."""
        law = asdict(self.law)
        for name in ("levels", "stands"):
            law[name] = {key: list(found) for key, found in law[name].items()}
        law["flops"] = self.law.flops if isfinite(self.law.flops) else None
        return {**law, "names": list(self.law.names), "logs": self.logs.tolist(), "seconds": self.seconds}


class Structural:
    """The model of whole training jobs."""

    def lacks(self, runs: Runs) -> str | None:
        """Why it cannot be fitted to these rows: what it does not model, or too few configurations."""
        columns = set(runs.frame.columns)
        for role in _NOT_MODELLED:
            if role in columns and runs.frame[role].n_unique() > 1:
                return f"it has no term for {role}"
        if not columns & {"batch", "flops", "gpus", "iterations"}:
            return "it needs a column of the batch, the FLOPs, the devices or the iterations"
        configurations = runs.frame["configuration"].n_unique()
        if configurations < _LEAST:
            return f"it needs {_LEAST} configurations, and there are {configurations}"
        return None

    def fit(self, runs: Runs) -> StructuralFit:
        """Fit it to rows with a target."""
        measured = measured_of(runs)
        law, logs = fit(measured, choose(measured))
        return StructuralFit(law, logs, runs.description.seconds)

    def refit(self, runs: Runs, like: StructuralFit) -> StructuralFit:
        """Fit the form of the law that another fit chose."""
        law, logs = fit(measured_of(runs), like.law.form)
        return StructuralFit(law, logs, runs.description.seconds)

    def restore(self, state: Mapping[str, Any]) -> StructuralFit:
        """The fitted model of a state. Raises ValueError, KeyError or TypeError for one that is none."""
        names = tuple(state["names"])
        levels = {group: tuple(map(_text, state["levels"][group])) for group in GROUPS}
        if not _ALWAYS <= set(names) <= set(PARAMETERS) or len(set(names)) != len(names):
            raise ValueError("the structural model has other parameters")
        law = Law(
            _form(state["form"]),
            names,
            levels,
            batch=_positive(state["batch"]),
            flops=float("nan") if state["flops"] is None else _positive(state["flops"]),
            gflops=_positive(state["gflops"]),
            samples=_positive(state["samples"]),
            slack=max(1.0, _positive(state["slack"])),
            stands=_stands(state["stands"], levels),
        )
        logs = np.array([_number(value) for value in state["logs"]], dtype=np.float64)
        largest = [_LARGEST_EXPONENT if name in _EXPONENTS else _LARGEST for name in names]
        largest += [_LARGEST] * (law.size - len(names))
        if logs.size != law.size or (np.abs(logs) > largest).any():
            raise ValueError("the structural model's parameters are not those of a fit")
        return StructuralFit(law, logs, _positive(state["seconds"]))


def _form(state: object) -> Form:
    """The form of a law, as its fields."""
    told = {"ring": False, "without": (), **table(state)}  # older files do not have these
    without = tuple(map(_text, told["without"]))
    if not set(without) <= set(PARAMETERS):
        raise ValueError("the structural model lacks parameters that there are not")
    plain = {name: bool(told[name]) for name in asdict(Form()) if name != "without"}
    return Form(**plain, without=without)


def _stands(state: Mapping[str, Any], levels: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The machines of each device, of those that have factors."""
    found = {_text(device): tuple(map(_text, machines)) for device, machines in state.items()}
    known = [set(names) for group, names in levels.items() if names and GROUPS[group][0] == "machine"]
    if any(not machines or not set(machines) <= names for machines in found.values() for names in known):
        raise ValueError("a device stands in machines that were not measured")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError("a parameter is not a number")
    return float(value)


def _positive(value: object) -> float:
    number = _number(value)
    if number <= 0:
        raise ValueError("a parameter is not above 0")
    return number


MODEL: Final = Structural()
