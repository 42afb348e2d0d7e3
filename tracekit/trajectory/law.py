"""Laws of the time of a step: sums of terms that are not negative, weighed by how well each foretells runs that are left out.

What runs lie beside a law is interpolated between them in logarithms (kriging), so that a prediction near runs follows these and one far
from them the law. Its error is that of the runs, of the law's factors, of what lies beside it, and of laws that explain the runs as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import exp, log, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.scaling.laws import t_quantile

__all__ = ["NUMERIC", "SIDES", "Laws", "Trial"]

Floats = npt.NDArray[np.float64]
Term = Callable[[float, float], float]

NUMERIC: Final = ("batch", "threads", "ranks")
"""The settings along which laws predict."""
SIDES: Final = 1.96
"""Standard errors on each side of an interval of 95 %."""
_TERMS: Final[dict[str, Term]] = {
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
_EXACT: Final = 1e-18
"""The square of an error that is rounding."""
_LEAST_WEIGHT: Final = 0.01
"""Laws with less of the weight of the best change no prediction."""


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
        return self.rate * exp(-SIDES * self.error), self.rate * exp(SIDES * self.error)


@dataclass(frozen=True, slots=True)
class Law:
    """A law with the factors that fit runs."""

    terms: Mapping[str, Term]
    factors: Floats
    spread: float
    """The root mean square of the logarithmic errors of the law alone for runs left out."""

    def row(self, samples: float, place: Mapping[str, float]) -> Floats:
        """What each term gives before its factor."""
        return _row(self.terms, samples, place)

    def at(self, samples: float, place: Mapping[str, float]) -> float:
        """The time of a step in ns."""
        return float(self.row(samples, place) @ self.factors)


@dataclass(frozen=True, slots=True)
class Laws:
    """The laws that explain some runs, the best first, with their weights."""

    runs: Sequence[Trial]
    laws: Sequence[Law]
    weights: Floats

    @property
    def terms(self) -> dict[str, float]:
        """The terms of the best law with their factors in ns."""
        return dict(zip(self.laws[0].terms, self.laws[0].factors.tolist(), strict=True))

    @property
    def error(self) -> float:
        """The mean relative error of the prediction for each run when it is left out; of too few runs, that of the best law alone."""
        errors = []
        for out in self.runs:
            rest = [one for one in self.runs if one is not out]
            if laws := [law for one in self.laws if (law := _fitted(rest, one.terms)) is not None]:
                time, _ = _weighed(rest, laws).at(out.samples, out.place)
                errors.append(abs(time / out.time_ns - 1))
        return float(np.mean(errors)) if errors else self.laws[0].spread

    @staticmethod
    def of(runs: Sequence[Trial], varied: Sequence[str]) -> Laws | None:
        """None if the runs are too few, or no law tells its terms apart."""
        if len(runs) < _LEAST_RUNS:
            return None
        known = _known(runs, varied)
        found = [
            law
            for size in range(1, _MOST_TERMS + 1)
            for names in combinations(known, size)
            if (law := _fitted(runs, {name: known[name] for name in names})) is not None
        ]
        return _weighed(runs, found) if found else None

    def at(self, samples: float, place: Mapping[str, float]) -> tuple[float, float]:
        """The time of a step in ns, and its standard error relative to it."""
        times, variances = np.array([self._by(law, samples, place) for law in self.laws]).T
        mean = float(self.weights @ times)
        # Laws that explain the runs as well and say another thing here are an error too.
        variance = float(self.weights @ (variances + (times - mean) ** 2))
        return exp(mean), sqrt(variance)

    def _by(self, law: Law, samples: float, place: Mapping[str, float]) -> tuple[float, float]:
        """The logarithm of the time by one law and the runs near the place, and its variance (universal kriging)."""
        noise = np.array([one.error**2 for one in self.runs])
        variance = max(law.spread**2 - float(noise.mean()), 1e-12)
        fitted = np.array([law.at(one.samples, one.place) for one in self.runs])
        beside = np.log(np.array([one.time_ns for one in self.runs]) / fitted)
        alike = _alike(place, self.runs)
        inverse = np.linalg.inv(variance * alike[1:, 1:] + np.diag(noise))
        weights = inverse @ (variance * alike[0, 1:])
        there = law.at(samples, place)
        shares = np.array([law.row(one.samples, one.place) for one in self.runs]) / fitted[:, None]
        off = law.row(samples, place) / there - weights @ shares
        left = variance * (1 - float(weights @ alike[0, 1:]))
        of_factors = float(off @ np.linalg.pinv(shares.T @ inverse @ shares) @ off)
        freedom = len(self.runs) - len(law.factors)
        few = t_quantile(freedom) / t_quantile(10**9)
        return log(there) + float(weights @ beside), (max(left, 0.0) + of_factors) * few**2


def _known(runs: Sequence[Trial], varied: Sequence[str]) -> dict[str, Term]:
    """The terms that these runs may tell; work may be shared by fewer workers than there are, as where cores are fewer."""
    if not {"threads", "ranks"} & set(varied):
        return {name: term for name, term in _TERMS.items() if "workers" not in name}
    counts = sorted({_workers(one.place) for one in runs})
    return {**_TERMS, **{f"× samples / min(workers, {most:g})": _until(most) for most in counts[1:-1]}}


def _until(most: float) -> Term:
    return lambda work, workers: work / min(workers, most)


def _fitted(runs: Sequence[Trial], terms: Mapping[str, Term]) -> Law | None:
    """The law with these terms; None if not all are above 0, or one run less would not tell them."""
    rows = np.array([_row(terms, one.samples, one.place) / one.time_ns for one in runs])
    scale = np.linalg.norm(rows, axis=0)
    if len(runs) <= len(terms) or np.linalg.matrix_rank(rows / scale) < len(terms):
        return None
    design = rows / scale
    factors = np.linalg.lstsq(design, np.ones(len(runs)), rcond=None)[0]
    free = 1 - np.einsum("ij,ji->i", design, np.linalg.pinv(design))
    if factors.min() <= 0 or free.min() < 1e-9:
        return None
    without = 1 - (1 - design @ factors) / free  # what the law of the others gives for each, over its time
    if without.min() <= 0:
        return None
    return Law(terms, factors / scale, float(np.sqrt(np.mean(np.log(without) ** 2))))


def _weighed(runs: Sequence[Trial], laws: Sequence[Law]) -> Laws:
    """The laws by the likelihood of their errors for runs left out."""
    noise = float(np.mean([one.error**2 for one in runs]))
    spreads = np.array([max(law.spread**2, noise, _EXACT) for law in laws])
    weights = (spreads / spreads.min()) ** (-len(runs) / 2)
    order = [index for index in np.argsort(-weights, kind="stable") if weights[index] >= _LEAST_WEIGHT]
    kept = weights[order]
    return Laws(runs, [laws[index] for index in order], kept / kept.sum())


def _row(terms: Mapping[str, Term], samples: float, place: Mapping[str, float]) -> Floats:
    # A rank computes its own part of the samples; threads share those of a rank.
    return np.array([term(samples, _workers(place)) for term in terms.values()])


def _workers(place: Mapping[str, float]) -> float:
    return place["threads"] * place["ranks"]


def _alike(place: Mapping[str, float], runs: Sequence[Trial]) -> Floats:
    """How alike what lies beside a law is at the place and at the runs, each with each."""
    places = np.log2([[each[name] for name in NUMERIC] for each in (place, *(one.place for one in runs))])
    return np.asarray(np.exp(-np.abs(places[:, None] - places[None]).sum(axis=2) / _REACH))
