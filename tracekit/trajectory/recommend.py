"""The best configuration of a program, from runs of some: measured, or predicted for combinations that were not run.

The time of a step follows a law, a sum of terms that are not negative: fixed, per sample, per sample of each thread, … Which terms is
chosen by the error for runs that are left out. What runs lie beside the law is interpolated between them in logarithms
(kriging), so that a prediction near runs follows these and one far from them the law, with an interval as wide as the law errs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from math import exp, log, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.scaling.laws import non_negative
from tracekit.trajectory.labels import FELT

__all__ = ["NUMERIC", "Prediction", "Recommendation", "Trial", "recommend"]

Floats = npt.NDArray[np.float64]
Place = tuple[float, ...]

NUMERIC: Final = ("batch", "threads", "ranks")
"""The settings along which the law predicts; of those that vary, at most two."""
_TERMS: Final[dict[str, Callable[[float, float], float]]] = {
    "": lambda _work, _workers: 1.0,
    "× samples": lambda work, _workers: work,
    "/ workers": lambda _work, workers: 1.0 / workers,
    "× samples / workers": lambda work, workers: work / workers,
    "× workers": lambda _work, workers: workers,
}
"""What a step's time may consist of, each times a factor: `work` is its samples, `workers` are threads times ranks."""
_MOST_TERMS: Final = 3
_REACH: Final = 2.0
"""Over so many doublings of a key, what runs lie beside the law stays alike (to 1/e)."""
_LEAST_RUNS: Final = 3
"""Of fewer runs there is no error for those left out."""
_WIDE: Final = log(1.5)
"""A prediction that may be further off than this factor is none."""
_SIDES: Final = 1.96
"""Standard errors on each side of an interval of 95 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run that was timed."""

    name: str
    place: Mapping[str, float]
    """The values of the `NUMERIC` settings."""
    samples: float
    """Of a step, over all ranks; 1 if all runs have the same work."""
    time_ns: float
    """Of a step."""
    error: float
    """The standard error of the time, relative to it."""
    choice: tuple[object, ...] = ()
    """The other settings that differ between runs; a law holds for equal ones."""
    chosen: int = 0
    """How many of the settings that differ are not the workload's own."""

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.time_ns * 1e9

    @property
    def interval(self) -> tuple[float, float]:
        """Where the rate lies in 95 % of cases, by the scatter of the steps."""
        return self.rate * exp(-_SIDES * self.error), self.rate * exp(_SIDES * self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The samples a second of a combination that was not run, and where they lie in 95 % of cases."""

    place: Mapping[str, float]
    choice: tuple[object, ...]
    rate: float
    interval: tuple[float, float]
    extrapolated: bool
    """No two runs stand on both sides of it along one of the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The configuration with the most samples a second."""

    trials: tuple[Trial, ...]
    best: Trial | Prediction
    default: Trial
    """What the gain compares with: the run with the fewest settings that are not the workload's own; of equals the least."""
    gain: float
    """The samples a second over those of the default."""
    low: float
    high: float
    """Where the gain lies in 95 % of cases."""
    knee: Trial | None
    """Along one setting: the run with its least value from which more gains less than 5 %; None if that is the best."""
    predictions: tuple[Prediction, ...] = ()
    """Of the combinations that were not run."""
    unknown: tuple[Mapping[str, float], ...] = ()
    """Combinations that the runs do not predict."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """The factors of the law's terms in ns, of the runs with the settings of the best; empty without a law."""
    error: float | None = None
    """The mean relative error of the prediction for each run when it is left out."""

    @property
    def configurations(self) -> list[Trial | Prediction]:
        """Those that were run and those that are predicted, the fastest first."""
        return sorted([*self.trials, *self.predictions], key=lambda one: -one.rate)


def recommend(trials: Sequence[Trial], *, too_large: float | None = None) -> Recommendation:
    """The best configuration that these runs of one program show, among those run and all combinations of their settings' values.

    A combination with a batch of `too_large` or more is none. Raises ValueError without runs.

    >>> def run(batch, threads):
    ...     place = {"batch": batch, "threads": threads, "ranks": 1}
    ...     return Trial(name="", place=place, samples=batch, time_ns=1e6 * (5 + 2 * batch / threads), error=0.01)
    >>> seen = [run(1, 1), run(8, 1), run(64, 1), run(1, 2), run(8, 2), run(1, 4)]
    >>> found = recommend(seen)
    >>> found.best.place, round(found.gain, 1), found.best.extrapolated
    ({'batch': 64, 'threads': 4, 'ranks': 1}, 12.1, True)
    """
    if not trials:
        message = "there are no runs"
        raise ValueError(message)
    varied = [name for name in NUMERIC if len({trial.place[name] for trial in trials}) > 1]
    default = min(trials, key=lambda trial: (trial.chosen, *(trial.place[name] for name in NUMERIC)))
    best: Trial | Prediction = max(trials, key=lambda trial: trial.rate)
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.choice, []).append(trial)
    laws = {choice: _Law.of(group, varied) for choice, group in groups.items()} if len(varied) <= 2 else {}
    predictions: list[Prediction] = []
    unknown: list[Mapping[str, float]] = []
    for choice, law in laws.items():
        for place in _missing(groups[choice], trials, varied, too_large):
            made = None if law is None else _predicted(law, groups[choice], place)
            if made is None:
                unknown.append(place)
            else:
                predictions.append(made)
    best = max([best, *predictions], key=lambda one: one.rate)  # of equals the one that was run
    spread = sqrt(_error(best) ** 2 + default.error**2) * _SIDES if best is not default else 0.0
    gain, law = best.rate / default.rate, laws.get(best.choice)
    return Recommendation(
        trials=tuple(trials),
        best=best,
        default=default,
        gain=gain,
        low=gain * exp(-spread),
        high=gain * exp(spread),
        knee=_knee(groups[best.choice], varied, best),
        predictions=tuple(predictions),
        unknown=tuple(unknown),
        terms={} if law is None else law.terms,
        error=None if law is None else law.error,
    )


def _error(one: Trial | Prediction) -> float:
    return one.error if isinstance(one, Trial) else log(one.interval[1] / one.interval[0]) / 2 / _SIDES


def _knee(group: Sequence[Trial], varied: Sequence[str], best: Trial | Prediction) -> Trial | None:
    if len(varied) != 1 or not isinstance(best, Trial):
        return None
    near = [trial for trial in group if trial.rate * (1 + FELT) >= best.rate]
    least = min(near, key=lambda trial: trial.place[varied[0]])
    return None if least is best else least


def _missing(
    group: Sequence[Trial],
    trials: Sequence[Trial],
    varied: Sequence[str],
    too_large: float | None,
) -> list[dict[str, float]]:
    """The combinations of the values of all runs that these runs lack, without those that cannot run."""
    values = [sorted({trial.place[name] for trial in trials}) for name in varied]
    run = {tuple(trial.place[name] for name in varied) for trial in group}
    fixed = {name: group[0].place[name] for name in NUMERIC}
    places = [
        {**fixed, **dict(zip(varied, place, strict=True))} for place in product(*values) if place not in run
    ]
    return [place for place in places if too_large is None or place["batch"] < too_large]


def _predicted(law: _Law, group: Sequence[Trial], place: Mapping[str, float]) -> Prediction | None:
    samples = group[0].samples * _samples(place) / _samples(group[0].place)
    time, error = law.at(samples, place)
    if error * _SIDES > _WIDE:
        return None
    rate = samples / time * 1e9
    return Prediction(
        place=place,
        choice=group[0].choice,
        rate=rate,
        interval=(rate * exp(-error * _SIDES), rate * exp(error * _SIDES)),
        extrapolated=not any(_between(place, group, name) for name in NUMERIC),
    )


def _samples(place: Mapping[str, float]) -> float:
    return place["batch"] * place["ranks"]


def _between(place: Mapping[str, float], group: Sequence[Trial], name: str) -> bool:
    """Whether runs that differ from the place in this setting alone stand on both sides of it."""
    line = [
        trial.place[name]
        for trial in group
        if all(trial.place[each] == place[each] for each in NUMERIC if each != name)
    ]
    return bool(line) and min(line) < place[name] < max(line)


@dataclass(frozen=True, slots=True)
class _Law:
    """A law of the step time with the runs that it was fitted to."""

    trials: Sequence[Trial]
    names: tuple[str, ...]
    factors: Floats
    spread: float
    """The root mean square of the logarithmic errors of the law alone for runs left out."""

    @property
    def terms(self) -> dict[str, float]:
        return dict(zip(self.names, self.factors.tolist(), strict=True))

    @property
    def error(self) -> float:
        """The mean relative error of the prediction for each run when it is left out."""
        errors = []
        for out in self.trials:
            rest = [one for one in self.trials if one is not out]
            if (factors := _factors(rest, self.names)) is not None:
                time, _ = _Law(rest, self.names, factors, self.spread).at(out.samples, out.place)
                errors.append(abs(time / out.time_ns - 1))
        return float(np.mean(errors))

    @staticmethod
    def of(trials: Sequence[Trial], varied: Sequence[str]) -> _Law | None:
        """The law with the least error for runs left out, of equals that with the fewest terms; None if the runs are too few."""
        if len(trials) < _LEAST_RUNS:
            return None
        shared = {"threads", "ranks"} & set(varied)
        known = [name for name in _TERMS if shared or "workers" not in name]
        found: _Law | None = None
        for size in range(1, _MOST_TERMS + 1):
            for names in combinations(known, size):
                law = _fitted(trials, names)
                if law is not None and (found is None or law.spread < 0.9 * found.spread):
                    found = law
        return found

    def at(self, samples: float, place: Mapping[str, float]) -> tuple[float, float]:
        """The time of a step in ns, and its standard error relative to it."""
        law = float(_row(self.names, samples, place) @ self.factors)
        beside = np.array([log(one.time_ns / self._law(one)) for one in self.trials])
        noise = np.array([one.error**2 for one in self.trials])
        variance = max(self.spread**2 - float(noise.mean()), 1e-12)
        places = [_logarithms(one) for one in (place, *(one.place for one in self.trials))]
        alike = np.exp(-np.abs(np.array(places)[:, None] - np.array(places)[None]).sum(axis=2) / _REACH)
        weights = np.linalg.solve(variance * alike[1:, 1:] + np.diag(noise), variance * alike[0, 1:])
        left = variance * (1 - float(weights @ alike[0, 1:]))
        return law * exp(float(weights @ beside)), sqrt(max(left, 0.0) + float(noise.mean()))

    def _law(self, trial: Trial) -> float:
        return float(_row(self.names, trial.samples, trial.place) @ self.factors)


def _fitted(trials: Sequence[Trial], names: tuple[str, ...]) -> _Law | None:
    """The law with these terms; None if not all are above 0, or one run less would not tell them."""
    factors = _factors(trials, names)
    if factors is None or not factors.all() or len(trials) <= len(names):
        return None
    rests = [_factors([one for one in trials if one is not out], names) for out in trials]
    laws = [0.0 if each is None else float(_row(names, out.samples, out.place) @ each) for out, each in zip(trials, rests, strict=True)]  # fmt: skip
    if not all(laws):
        return None
    squares = [log(out.time_ns / law) ** 2 for out, law in zip(trials, laws, strict=True)]
    return _Law(trials, names, factors, sqrt(sum(squares) / len(squares)))


def _factors(trials: Sequence[Trial], names: tuple[str, ...]) -> Floats | None:
    """The factors of the terms, by least squares of relative errors; None if the runs do not tell the terms apart."""
    rows = np.array([_row(names, one.samples, one.place) / one.time_ns for one in trials])
    scale = np.linalg.norm(rows, axis=0)
    if np.linalg.matrix_rank(rows / scale) < len(names):
        return None
    return np.asarray(non_negative(rows / scale)[0] / scale, dtype=np.float64)


def _row(names: Sequence[str], samples: float, place: Mapping[str, float]) -> Floats:
    # A rank computes its own part of the samples; threads share those of a rank.
    return np.array([_TERMS[name](samples, place["threads"] * place["ranks"]) for name in names])


def _logarithms(place: Mapping[str, float]) -> list[float]:
    return [log(place[name]) / log(2) for name in NUMERIC]
