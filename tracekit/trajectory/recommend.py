"""The best configuration of a program, from runs of some: measured, or predicted for combinations that were not run.

Predictions are those of laws of the time of a step (`tracekit.trajectory.law`), along at most two of the settings `NUMERIC`. A law holds
among the runs; beyond them it is a guess, so such a prediction must be faster by more than it errs to stand above what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import product
from math import exp, hypot, log
from statistics import NormalDist
from typing import Final

from tracekit.classes import dataclass
from tracekit.trajectory.labels import FELT
from tracekit.trajectory.law import NUMERIC, SIDES, Laws, Trial

_ROUNDING: Final = 1 + 1e-9
"""A prediction that is faster by less is as fast."""
__all__ = ["NUMERIC", "Prediction", "Recommendation", "Trial", "recommend"]

_WIDE: Final = log(1.5)
"""A prediction that may be further off than this factor is none."""
_LIKELY: Final = 1.0
"""By so many standard errors a combination that no runs surround must be faster than those that were run to be named before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The samples a second of a combination that was not run, and where they lie in 95 % of cases."""

    place: Mapping[str, float]
    choice: tuple[object, ...]
    rate: float
    interval: tuple[float, float]
    extrapolated: bool
    """No two runs stand on both sides of it along one of the settings."""
    margin: float = 0.0
    """By so many standard errors it must be faster than what was run to be the best."""


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
    """Where the gain lies in 95 % of cases, though the fastest of several that are alike looks faster than it is."""
    rivals: tuple[Trial | Prediction, ...]
    """The others that may be as fast, the fastest first: all that are, in 95 % of cases."""
    knee: Trial | None
    """Along one setting: the run with its least value from which more gains less than 5 %; None if that is the best."""
    predictions: tuple[Prediction, ...] = ()
    """Of the combinations that were not run."""
    unknown: tuple[Mapping[str, float], ...] = ()
    """Combinations that the runs do not predict."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """The factors of the best law's terms in ns, of the runs with the settings of the best; empty without a law."""
    laws: int = 0
    """How many laws explain these runs about as well: predictions are of all of them."""
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
    fastest = max(trials, key=lambda trial: trial.rate)
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.choice, []).append(trial)
    laws = {choice: Laws.of(group, varied) for choice, group in groups.items()} if len(varied) <= 2 else {}
    predictions: list[Prediction] = []
    unknown: list[Mapping[str, float]] = []
    for choice, law in laws.items():
        for place in _missing(groups[choice], trials, varied, too_large):
            made = None if law is None else _predicted(law, groups[choice], place)
            if made is None:
                unknown.append(place)
            else:
                predictions.append(made)
    borne: list[Trial | Prediction] = [
        one for one in predictions if one.rate * exp(-one.margin * _error(one)) > fastest.rate * _ROUNDING
    ]
    best: Trial | Prediction = max(
        [fastest, *borne], key=lambda one: one.rate
    )  # of equals the one that was run
    every: list[Trial | Prediction] = [*trials, *predictions]
    every.sort(key=lambda one: -one.rate)
    reach = _sides(len(every))
    rivals = [one for one in every if one is not best and log(best.rate / one.rate) <= reach * _apart(best, one)]  # fmt: skip
    # Only those compete to be the best.
    compared = len(rivals) + 1 + all(one is not default for one in (best, *rivals))
    spread = _sides(compared) * _apart(best, default) if best is not default else 0.0
    gain, law = best.rate / default.rate, laws.get(best.choice)
    return Recommendation(
        trials=tuple(trials),
        best=best,
        default=default,
        gain=gain,
        low=gain * exp(-spread),
        high=gain * exp(spread),
        rivals=tuple(rivals),
        knee=_knee(groups[best.choice], varied, best),
        predictions=tuple(predictions),
        unknown=tuple(unknown),
        terms={} if law is None else law.terms,
        laws=0 if law is None else len(law.laws),
        error=None if law is None else law.error,
    )


def _sides(count: int) -> float:
    """So many standard errors on each side hold the differences of all pairs of so many in 95 % of cases (Šidák)."""
    return NormalDist().inv_cdf((1 + 0.95 ** (1 / max(1, count * (count - 1) // 2))) / 2)


def _apart(one: Trial | Prediction, other: Trial | Prediction) -> float:
    """The standard error of the logarithm of the ratio of their rates."""
    return hypot(_error(one), _error(other))


def _error(one: Trial | Prediction) -> float:
    return one.error if isinstance(one, Trial) else log(one.interval[1] / one.interval[0]) / 2 / SIDES


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


def _predicted(law: Laws, group: Sequence[Trial], place: Mapping[str, float]) -> Prediction | None:
    samples = group[0].samples * _samples(place) / _samples(group[0].place)
    time, error = law.at(samples, place)
    if error * SIDES > _WIDE:
        return None
    rate = samples / time * 1e9
    extrapolated = not any(_between(place, group, name) for name in NUMERIC)
    beyond = any(not min(seen) <= place[name] <= max(seen) for name in NUMERIC if (seen := [one.place[name] for one in group]))  # fmt: skip
    return Prediction(
        place=place,
        choice=group[0].choice,
        rate=rate,
        interval=(rate * exp(-error * SIDES), rate * exp(error * SIDES)),
        extrapolated=extrapolated,
        margin=SIDES if beyond else _LIKELY if extrapolated else 0.0,
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
