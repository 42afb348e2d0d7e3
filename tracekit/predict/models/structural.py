"""Whole training jobs: start-up + iterations · (the longer of loading and computing, + synchronisation).

Fitted in logarithms, with few parameters that all are above 0, so that it extrapolates: no time falls when the batch, the depth or the
FLOPs grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isclose, isfinite, log
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import UsageError
from tracekit.predict.describe import NUMBERS
from tracekit.predict.model import Term
from tracekit.predict.models.checked import table
from tracekit.predict.models.structural_fit import fit, measured_of, unsure_of
from tracekit.predict.models.structural_forms import choose
from tracekit.predict.models.structural_law import GROUPS, PARAMETERS, Form, Jobs, Law, jobs_of
from tracekit.predict.table import Floats, Runs

__all__ = ["MODEL", "Likely", "Structural", "StructuralFit"]

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
_STARTS: Final = 4
_STARTS_AGAIN: Final = 2
"""Of a form that was chosen, on some of the rows."""
_NORMAL: Final = 1.645
_APART: Final = 0.05
"""Forms that are farther apart than this are told of."""
_UNTOLD: Final = "the measured counts of devices do not tell how synchronisation grows"


@dataclass(frozen=True, slots=True)
class Likely:
    """A form of the law that the data allows."""

    law: Law
    logs: Floats
    """Its parameters, as logarithms of seconds."""
    unsure: Floats
    """How unsure these are (`structural_fit.unsure_of`)."""
    share: float
    """How likely it is, of all that are allowed."""

    def times(self, jobs: Jobs) -> Floats:
        """The seconds of each row."""
        return self.law.times(self.logs, jobs, self.law.places(jobs))

    def variance(self, jobs: Jobs) -> Floats:
        """That of the logarithm of each row's seconds."""
        slopes = self.law.slopes(self.logs, jobs, self.law.places(jobs))
        return np.asarray(np.sum((slopes @ self.unsure) ** 2, axis=1))


@dataclass(frozen=True, slots=True)
class StructuralFit:
    """The forms of the law that the data allows, the likeliest first; an answer is their mean."""

    forms: tuple[Likely, ...]
    seconds: float
    """Of one unit of the target."""
    needs: frozenset[str]
    """The roles without which it has no answer: those that its parameters act on and its rows had."""

    def predict(self, runs: Runs) -> Floats:
        """The times of these rows, in the target's unit."""
        jobs = self._jobs(runs)
        found: Floats = np.sum([form.share * form.times(jobs) for form in self.forms], axis=0)
        return found / self.seconds

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """What these times consist of; loading counts as far as computing does not hide it."""
        jobs = self._jobs(runs)
        found: dict[str, Floats] = {}
        for form in self.forms:
            for name, values in form.law.parts(form.logs, jobs, form.law.places(jobs)).items():
                found[name] = found.get(name, 0.0) + form.share * values / self.seconds
        return found

    def doubts(self, runs: Runs, inside: npt.NDArray[np.bool_]) -> tuple[Floats, list[str]]:
        """How unsure the parameters are and how far the forms are apart (90 % of a normal distribution), and in words if the latter is
        much. Nothing within what was measured, where its errors hold all that, and of rows that it does not answer.
        """
        if not self.needs <= runs.roles:
            return np.zeros(runs.height), [""] * runs.height
        jobs = self._jobs(runs)
        shares = np.array([form.share for form in self.forms])[:, None]
        logs = np.log([form.times(jobs) for form in self.forms])
        apart = np.sum(shares * (logs - np.sum(shares * logs, axis=0)) ** 2, axis=0)
        unsure = np.sum(shares * np.array([form.variance(jobs) for form in self.forms]), axis=0)
        said = [_UNTOLD if each > _APART else "" for each in _NORMAL * np.sqrt(apart)]
        return np.where(inside, 0.0, _NORMAL * np.sqrt(apart + unsure)), said

    def lacked(self) -> str:
        """Nothing for all rows: forms differ where there are many devices."""
        return ""

    def explain(self) -> Sequence[Term]:
        """The parameters, then the factors of devices, machines and networks, the farthest from 1 first; means of the forms."""
        values: dict[tuple[str, str], float] = {}
        for form in self.forms:
            for each, value in zip(form.law.parameters, form.share * np.exp(form.logs), strict=True):
                values[each] = values.get(each, 0.0) + float(value)
        terms = [
            Term(name, values[name, ""], parameter.unit, parameter.meaning)
            for name, parameter in PARAMETERS.items()
            if (name, "") in values
        ]
        of_levels = [
            Term(f"{group}, {GROUPS[group][0]} {level}", value, "×", GROUPS[group][1])
            for (group, level), value in values.items()
            if level
        ]
        return [*terms, *sorted(of_levels, key=lambda term: -abs(log(term.value)))]

    def _jobs(self, runs: Runs) -> Jobs:
        """The rows as arrays. Raises UsageError for a role without which there is no answer."""
        for role in sorted(self.needs - runs.roles):
            raise UsageError(
                f"the model needs {role} ({NUMBERS[role]}) of every row",
                remedy="add the column, or fit a model without it",
            )
        return jobs_of(runs)

    def state(self) -> dict[str, Any]:
        """The forms and their parameters, as JSON."""
        forms = [_state(form) for form in self.forms]
        return {"forms": forms, "seconds": self.seconds, "needs": sorted(self.needs)}


def _state(form: Likely) -> dict[str, Any]:
    law = asdict(form.law)
    for name in ("levels", "stands"):
        law[name] = {key: list(found) for key, found in law[name].items()}
    law["flops"] = form.law.flops if isfinite(form.law.flops) else None
    return {
        **law,
        "names": list(form.law.names),
        "logs": form.logs.tolist(),
        "unsure": form.unsure.tolist(),
        "share": form.share,
    }


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
        return _fitted(runs, choose(measured_of(runs)))

    def refit(self, runs: Runs, like: StructuralFit) -> StructuralFit:
        """Fit the forms of the law that another fit chose, as likely as there."""
        return _fitted(runs, {each.law.form: each.share for each in like.forms}, starts=_STARTS_AGAIN)

    def restore(self, state: Mapping[str, Any]) -> StructuralFit:
        """The fitted model of a state. Raises ValueError, KeyError or TypeError for one that is none."""
        forms = tuple(map(_restored, state["forms"]))
        if not isclose(sum(form.share for form in forms), 1):
            raise ValueError("the shares of the structural model's forms do not sum to 1")
        needs = frozenset(map(_text, state["needs"]))
        if not needs <= NUMBERS.keys():
            raise ValueError("the structural model needs roles that there are not")
        return StructuralFit(forms, _positive(state["seconds"]), needs)


def _fitted(runs: Runs, forms: Mapping[Form, float], starts: int = _STARTS) -> StructuralFit:
    measured = measured_of(runs)
    fits = [(fit(measured, form, starts), share) for form, share in forms.items()]
    found = tuple(Likely(*each, unsure_of(measured, *each), share) for each, share in fits)
    needs = frozenset().union(*(form.law.needs for form in found)) & runs.roles
    return StructuralFit(found, runs.description.seconds, needs)


def _restored(state: Mapping[str, Any]) -> Likely:
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
    unsure = np.array([[_number(value) for value in row] for row in state["unsure"]], dtype=np.float64)
    if unsure.shape != (law.size, law.size) or (np.abs(unsure) > _LARGEST).any():
        raise ValueError("how unsure the structural model's parameters are is not what a fit says")
    return Likely(law, logs, unsure, _positive(state["share"]))


def _form(state: object) -> Form:
    """The form of a law, as its fields."""
    told = table(state)
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
