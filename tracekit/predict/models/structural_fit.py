"""Fit the law of a training job's time: robust least squares of logarithms, one row for each configuration."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import MissingDependencyError
from tracekit.facts.distribution import how_to_install
from tracekit.predict.models.structural_law import GROUPS, Form, Jobs, Law, jobs_of
from tracekit.predict.table import Floats, Runs

__all__ = [
    "NOISE",
    "_OF_DEVICES",
    "Measured",
    "dropped",
    "fit",
    "may_wait_for_loading",
    "measured_of",
    "thinned",
    "vary",
]

NOISE: Final = 0.05
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
_OF_DEVICES: Final = ("sync_device", "host_device", "sync", "tree", "ring", "scatter", "start_device")
"""The parameters of several devices, those first that grow with their number in each iteration."""
_EVALUATIONS: Final = 150
_EXACT: Final = 1e-4
"""Times do not follow a law more closely."""
_MOST_FITTED: Final = 1500


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


def fit(
    measured: Measured, form: Form, starts: int, near: tuple[Law, Floats] | None = None
) -> tuple[Law, Floats]:
    """The law of this form with its parameters, as logarithms.

    `near`: the fit of a form that has nearly the same parameters, to the same configurations. The search begins there, first of `starts`.
    """
    try:
        from scipy.optimize import least_squares  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError(
            "the structural model needs SciPy to be fitted",
            remedy=how_to_install("predict"),
        ) from None
    measured = thinned(measured, _MOST_FITTED)
    law, guess, spread = _start(measured, form)
    places = law.places(measured.jobs)

    def residuals(logs: Floats) -> Floats:
        told = np.log(law.times(logs, measured.jobs, places))
        return np.concatenate([(told - measured.logs) / NOISE, (logs - guess) / spread])

    def slopes(logs: Floats) -> Floats:
        return np.vstack([law.slopes(logs, measured.jobs, places) / NOISE, np.diag(1 / spread)])

    low, high = guess - 3 * spread, guess + 3 * spread
    random, found = np.random.default_rng(0), []
    begin = guess if near is None else _at(near, law, guess)
    for start in range(starts):
        first = begin + (start > 0) * random.normal(0, 1, law.size) * np.minimum(spread, 1)
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


def unsure_of(measured: Measured, law: Law, logs: Floats) -> Floats:
    """How unsure these parameters are: a matrix by which the slopes of a time become its standard error, the root of the sum of the
    squares of their product (the inverse of a root of the Hessian, with the mean square of what is left).
    """
    measured = thinned(measured, _MOST_FITTED)
    _, _, spread = _start(measured, law.form)
    places = law.places(measured.jobs)
    left = np.log(law.times(logs, measured.jobs, places)) - measured.logs
    square = float(np.sum(left**2)) / max(left.size - law.size, 1)
    slopes = law.slopes(logs, measured.jobs, places)
    hessian = slopes.T @ slopes / max(square, _EXACT**2) + np.diag(spread**-2.0)
    found: Floats = np.linalg.inv(np.linalg.cholesky(hessian)).T
    return found


def _at(near: tuple[Law, Floats], law: Law, guess: Floats) -> Floats:
    """The guess, but what another law has as well as there."""
    other, logs = near
    found = dict(zip(other.parameters, logs, strict=True))
    return np.array([found.get(name, value) for name, value in zip(law.parameters, guess, strict=True)])


def vary(values: Floats) -> bool:
    """Whether there are several of these values."""
    return bool(np.unique(values).size > 1)


def may_wait_for_loading(jobs: Jobs) -> bool:
    """Whether these configurations can tell loading from computing: by the number of threads, or as only computing gets shorter with more
    or faster devices, or with fewer layers.
    """
    known = jobs.gflops[~np.isnan(jobs.gflops)]
    return vary(jobs.threads) or (vary(jobs.batch) and any(map(vary, (jobs.gpus, known, jobs.layers))))


def thinned(measured: Measured, most: int) -> Measured:
    """At most so many of the configurations, drawn evenly at random."""
    size = measured.logs.size
    if size <= most:
        return measured
    return measured.where(np.sort(np.random.default_rng(0).permutation(size)[:most]))


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
        "tree": 0.02 * step,
        "sync_device": 0.02 * step,
        "scatter": 0.02 * sample,
        "overlap": 8.0,
    }
    without = dropped(jobs, form)
    names = tuple(name for name in guesses if name not in without)
    levels = _levels(jobs, without)
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


def dropped(jobs: Jobs, form: Form) -> set[str]:
    """The parameters that the law of this form does not have."""
    return _untold(jobs) | (set() if form.loads else _LOADING) | set(form.without)


def _untold(jobs: Jobs) -> set[str]:
    """The parameters about which these configurations tell nothing."""
    found: set[str] = set()
    if not vary(jobs.iterations):
        found |= {"start_device"}
    if bool(np.all(jobs.iterations == 1)):
        found |= {"start"}
    if not vary(jobs.gpus):
        found |= set(_OF_DEVICES)
    if not vary(jobs.layers):
        found |= {"sample_layer", "step_layer"}
    if not vary(jobs.threads):  # and what the host does for each device is as long as what it waits for each
        found |= {"collate", "growth", "epoch", "host_device"}
    if not may_wait_for_loading(jobs):
        found |= _LOADING
    if bool(np.isnan(jobs.gflops).any()):
        found |= {"sample_fixed", "host"}
    return found
