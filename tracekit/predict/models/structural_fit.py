"""Fit the law of a training job's time: robust least squares of logarithms, one row for each configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.errors import MissingDependencyError
from tracekit.facts.distribution import how_to_install
from tracekit.predict.models.structural_law import GROUPS, Form, Jobs, Law, jobs_of
from tracekit.predict.table import Floats, Runs

__all__ = ["Measured", "choose", "fit", "measured_of"]

_NOISE: Final = 0.05
"""Residuals of logarithms above this count less and less."""
_FAR: Final = 5.0
_SPREAD: Final = {
    "collate": 1.0,
    "growth": 0.4,
    "epoch": 2.5,
    "sample_fixed": 1.5,
    "host": 3.0,
    "sample_layer": 2.0,
    "step_layer": 2.0,
    "start_device": 0.7,
    "overlap": 0.7,
}
"""How far, in natural logarithms, a parameter may lie from its first guess before the data has to say so; the others `_FAR`."""
_FACTORS: Final = {"computing": 0.25, "steps": 0.25, "loading": 0.4, "starting": 1.0, "networks": 2.0}
"""The same for factors."""
_LOADING: Final = frozenset({"load", "collate", "growth", "overlap"})
"""The parameters of loading."""
_ANY: Final = 2.0
"""The same for the factors of devices whose peaks are not known."""
_OF_DEVICES: Final = ("sync_device", "host_device", "sync", "ring", "scatter", "start_device")
"""The parameters of several devices, those first that grow with their number in each iteration."""
_COUNTS_TOLD: Final = 3
"""So many numbers of devices tell these apart."""
_SHOWS: Final = 6.0
"""By how much a form of two has to be better by the criterion to be taken in place of the other, which goes less astray beyond the data."""
_STARTS: Final = 4
_STARTS_TRIED: Final = 2
"""To choose a form, which only needs to be about right."""
_EVALUATIONS: Final = 150
_MOST_FITTED: Final = 1500
_MOST_TRIED: Final = 400
_STEP: Final = 1e-5
_LEAST_ERROR: Final = 0.002
"""Forms that miss by less are as good as each other."""
_CLEARLY: Final = 0.85
"""A form other than the first has to miss by less than this share of the first's error to be chosen, and by less within the range."""
_SAME_SAMPLES: Final = 1.2
"""Runs may differ by this factor in samples and still be thought to have the same."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Configurations, the logarithms of their seconds, and how many rows stand behind them."""

    jobs: Jobs
    logs: Floats

    def where(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Measured:
        """Some of the configurations."""
        return Measured(self.jobs.where(rows), self.logs[rows])


def measured_of(runs: Runs) -> Measured:
    """A row for each configuration: the median of the logarithms of its times, in seconds."""
    logs = np.log(runs.target * runs.description.seconds)
    configuration = runs.frame["configuration"].to_numpy()
    order = np.lexsort((logs, configuration))
    _, first, count = np.unique(configuration[order], return_index=True, return_counts=True)
    low, high = first + (count - 1) // 2, first + count // 2
    return Measured(jobs_of(runs).where(order[first]), (logs[order[low]] + logs[order[high]]) / 2)


def choose(measured: Measured) -> Form:
    """The form of the law that foretells best what lies beyond the rest of these configurations."""
    sample = _thinned(measured, _MOST_TRIED)
    forms = _forms(measured.jobs)
    told = len(forms) > 1 and _held_back(sample.jobs)  # of few configurations none can be held back
    form = _best(sample, forms) if told else forms[0]
    if _vary(measured.jobs.threads):
        bare = replace(form, loads=False)
        form = form if _criterion(sample, form, 2.0) < _criterion(sample, bare, 2.0) else bare
    return form if np.unique(measured.jobs.gpus).size < _COUNTS_TOLD else _of_several(sample, form)


def _of_several(measured: Measured, form: Form) -> Form:
    """The form with those parameters of several devices that show, around a ring unless these configurations say otherwise.

    A ring takes little more for many devices than for a few.
    """
    of_ring, ring = _sparse(measured, replace(form, ring=True))
    if "ring" in ring.without:
        return ring
    least, plain = _sparse(measured, form)
    return plain if least < of_ring - _SHOWS else ring


def _sparse(measured: Measured, form: Form) -> tuple[float, Form]:
    """The form without those parameters of several devices that explain no more than noise, and its criterion (Schwarz's).

    What does not show is little within the range, and would be most of the time of many more devices.
    """
    each_costs = float(np.log(measured.logs.size))
    least = _criterion(measured, form, each_costs)
    for name in _OF_DEVICES:
        fewer = replace(form, without=(*form.without, name))
        if name not in _dropped(measured.jobs, form):
            found = _criterion(measured, fewer, each_costs)
            least, form = (found, fewer) if found <= least else (least, form)
    return least, form


def _criterion(measured: Measured, form: Form, each_costs: float) -> float:
    """How much a form misses, and what its parameters cost; what only follows noise gains less than it costs."""
    law, logs = fit(measured, form, _STARTS_TRIED)
    left = (np.log(law.times(logs, measured.jobs, law.places(measured.jobs))) - measured.logs) / _NOISE
    missed = float(np.sum(np.sqrt(1 + left**2) - 1))
    return measured.logs.size * float(np.log(max(missed, 1e-9))) + each_costs * law.size


def _best(measured: Measured, forms: Sequence[Form]) -> Form:
    """The form that foretells best; the first, unless another is clearly better."""
    errors = np.array([_foretold(measured, form) for form in forms])
    gains = np.mean(errors, axis=1) - np.mean(errors[0])
    better = (gains < np.log(_CLEARLY)) & (errors[:, 0] < errors[0, 0])
    return forms[int(np.argmin(np.where(better, gains, 0.0)))]


def fit(measured: Measured, form: Form, starts: int = _STARTS) -> tuple[Law, Floats]:
    """The law of this form with its parameters, as logarithms."""
    try:
        from scipy.optimize import least_squares  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError(
            "the structural model needs SciPy to be fitted",
            remedy=how_to_install("predict"),
        ) from None
    measured = _thinned(measured, _MOST_FITTED)
    law, guess, spread = _start(measured, form)
    places = law.places(measured.jobs)

    def residuals(logs: Floats) -> Floats:
        told = np.log(law.times(logs, measured.jobs, places))
        return np.concatenate([(told - measured.logs) / _NOISE, (logs - guess) / spread])

    def slopes(logs: Floats) -> Floats:
        around = np.vstack([logs, logs + _STEP * np.eye(law.size)])
        told = np.log(law.times(around, measured.jobs, places))
        return np.vstack([(told[1:] - told[0]).T / (_STEP * _NOISE), np.diag(1 / spread)])

    low, high = guess - 3 * spread, guess + 3 * spread
    random, found = np.random.default_rng(0), []
    for start in range(starts):
        first = guess + (start > 0) * random.normal(0, 1, law.size) * np.minimum(spread, 1)
        found.append(
            least_squares(
                residuals,
                np.clip(first, low + 1e-6, high - 1e-6),
                jac=slopes,
                bounds=(low, high),
                loss="soft_l1",
                max_nfev=_EVALUATIONS,
            )
        )
    return law, np.asarray(min(found, key=lambda one: one.cost).x)


def _forms(jobs: Jobs) -> list[Form]:
    """The forms that these configurations can tell apart, the plainest first."""
    threads, gpus = _vary(jobs.threads), _vary(jobs.gpus)
    found = [Form(own_threads=own) for own in ((False, True) if threads and gpus else (False,))]
    samples = jobs.iterations * jobs.batch
    if _vary(jobs.batch) and _vary(samples) and samples.max() < _SAME_SAMPLES * samples.min():
        found += [Form(own_threads=form.own_threads, same_samples=True) for form in found]
    return found


def _vary(values: Floats) -> bool:
    return bool(np.unique(values).size > 1)


def _thinned(measured: Measured, most: int) -> Measured:
    """At most so many of the configurations, drawn evenly at random."""
    size = measured.logs.size
    if size <= most:
        return measured
    return measured.where(np.sort(np.random.default_rng(0).permutation(size)[:most]))


def _foretold(measured: Measured, form: Form) -> list[float]:
    """How far this form misses configurations that are held back: the logarithm of the mean error for each way to do so, so that each
    counts by what a form changes of it.
    """
    errors = []
    for held in _held_back(measured.jobs):
        law, logs = fit(measured.where(~held), form, _STARTS_TRIED)
        rest = measured.where(held)
        told = np.log(law.times(logs, rest.jobs, law.places(rest.jobs)))
        errors.append(float(np.log(_LEAST_ERROR + np.mean(np.minimum(np.abs(told - rest.logs), 1.0)))))
    return errors


def _held_back(jobs: Jobs) -> list[npt.NDArray[np.bool_]]:
    """The ways to hold configurations back: one in four, and the largest of each kind."""
    found = [np.random.default_rng(0).permutation(jobs.batch.size) % 4 == 0]
    for values, least in ((jobs.gpus, 3), (jobs.batch, 3), (jobs.layers, 3), (jobs.gflops, 2)):
        levels = np.unique(values[~np.isnan(values)])
        if levels.size >= least:
            found.append(
                values > max(np.quantile(values, 0.75, method="lower"), levels[0]) - (values is jobs.gflops)
            )
    return [held for held in found if held.any() and (~held).sum() >= 4]


def _start(measured: Measured, form: Form) -> tuple[Law, Floats, Floats]:
    """The law, a first guess of its parameters, and how far they may lie from it."""
    jobs = measured.jobs
    seconds = np.exp(measured.logs)
    samples = jobs.iterations * jobs.batch
    flops = float(np.median(jobs.flops / jobs.batch))
    peaks = jobs.gflops[~np.isnan(jobs.gflops)]
    peak = float(np.exp(np.mean(np.log(peaks)))) if peaks.size else 1000.0
    run, step = float(np.median(seconds)), float(np.median(seconds / jobs.iterations))
    sample, speed = float(np.median(seconds / samples)), peak / 1000
    layers, gpus = float(np.median(jobs.layers)), float(np.median(jobs.gpus))
    guesses = {
        "start": 0.01 * run,
        "start_device": 0.003 * run,
        "load": 0.5 * sample * float(np.median(jobs.threads)),
        "collate": 0.04,
        "growth": 1.0,
        "epoch": 300.0,
        "sample": 0.7 * sample * speed * gpus,
        "sample_layer": 0.03 * sample * speed * gpus / layers,
        "sample_fixed": 0.02 * sample * gpus,
        "step": 0.2 * step * speed,
        "step_layer": 0.01 * step * speed / layers,
        "host": 0.03 * step,
        "host_device": 0.03 * step,
        "sync": 0.02 * step,
        "ring": 0.04 * step,
        "sync_device": 0.02 * step,
        "scatter": 0.02 * sample,
        "overlap": 8.0,
    }
    dropped = _dropped(jobs, form)
    names = tuple(name for name in guesses if name not in dropped)
    levels = _levels(jobs, dropped)
    law = Law(
        form,
        names,
        levels,
        batch=float(np.median(jobs.batch)),
        flops=flops,
        gflops=peak,
        samples=float(np.exp(np.mean(np.log(samples)))),
        slack=float(np.exp(np.abs(np.log(samples) - np.mean(np.log(samples))).max())),
        stands=_stands(jobs),
    )
    spreads = _FACTORS if np.isfinite(jobs.gflops).all() else {**_FACTORS, "computing": _ANY, "steps": _ANY}
    factors = [spreads[group] for group, found in levels.items() for _ in found]
    guess = np.concatenate([np.log([guesses[name] for name in names]), np.zeros(len(factors))])
    return law, guess, np.array([*(_SPREAD.get(name, _FAR) for name in names), *factors])


def _levels(jobs: Jobs, dropped: set[str]) -> dict[str, tuple[str, ...]]:
    """By factor, the names that have one: where there are several, and what it acts on is told."""
    acts_on = {"loading": "load", "starting": "start"}
    found = {}
    for group, (kind, _) in GROUPS.items():
        names = tuple(sorted(set(map(str, jobs.levels[kind])) - {""}))
        found[group] = names if len(names) > 1 and acts_on.get(group) not in dropped else ()
    return found


def _stands(jobs: Jobs) -> dict[str, tuple[str, ...]]:
    """By device, the machines in which these configurations have it."""
    found: dict[str, set[str]] = {}
    for device, machine in zip(jobs.levels["device"], jobs.levels["machine"], strict=True):
        if device and machine:
            found.setdefault(str(device), set()).add(str(machine))
    return {device: tuple(sorted(machines)) for device, machines in sorted(found.items())}


def _dropped(jobs: Jobs, form: Form) -> set[str]:
    """The parameters that the law of this form does not have."""
    other_exchange = "sync" if form.ring else "ring"
    return _untold(jobs) | (set() if form.loads else _LOADING) | {other_exchange, *form.without}


def _untold(jobs: Jobs) -> set[str]:
    """The parameters about which these configurations tell nothing."""
    found: set[str] = set()
    if not _vary(jobs.iterations):
        found |= {"start_device"}
    if bool(np.all(jobs.iterations == 1)):
        found |= {"start"}
    if not _vary(jobs.gpus):
        found |= set(_OF_DEVICES)
    if not _vary(jobs.layers):
        found |= {"sample_layer", "step_layer"}
    if not _vary(jobs.threads):
        found |= _LOADING | {"epoch"}
    if bool(np.isnan(jobs.gflops).any()):
        found |= {"sample_fixed", "host"}
    return found
