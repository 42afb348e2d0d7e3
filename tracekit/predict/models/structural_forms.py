"""Choose forms of the law of a training job's time: what a table of runs shows, and what it cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tracekit.predict.models.structural_fit import (
    NOISE,
    Measured,
    dropped,
    fit,
    may_wait_for_loading,
    thinned,
    vary,
)
from tracekit.predict.models.structural_law import Form, Jobs, Law
from tracekit.predict.table import Floats

__all__ = ["choose"]

_COUNTS_TOLD: Final = 3
"""So many numbers of devices tell exchanges apart."""
_EXCHANGES: Final = (
    (),
    ("sync",),
    ("ring",),
    ("tree",),
    ("sync_device",),
    ("ring", "sync_device"),
    ("ring", "tree"),
    ("sync", "tree"),
    ("sync", "sync_device"),
)
"""The ways in which devices may exchange gradients, by the parameters that each has."""
_OTHERS: Final = ("host_device", "scatter")
"""What else a further device may cost in each iteration."""
_AT_START: Final = "start_device"
_AS_WELL: Final = 4.6
"""A form whose criterion is larger than the least by more than this is out: the data is 10 times as likely under the other."""
_MOST_FORMS: Final = 4
_STARTS_TRIED: Final = 2
"""To choose a form, which only needs to be about right."""
_MOST_TRIED: Final = 400
_LEAST_ERROR: Final = 0.002
"""Forms that miss by less are as good as each other."""
_CLEARLY: Final = 0.85
"""A form other than the first has to miss by less than this share of the first's error to be chosen, and by less within the range."""
_SAME_SAMPLES: Final = 1.2
"""Runs may differ by this factor in samples and still be thought to have the same."""

_Fit: TypeAlias = tuple[Law, Floats]


def choose(measured: Measured) -> dict[Form, float]:
    """The forms of the law with which these configurations agree, and how likely each is; these sum to 1.

    They differ in how devices exchange gradients. All else is that which foretells best what lies beyond the rest.
    """
    sample = thinned(measured, _MOST_TRIED)
    forms = _forms(measured.jobs)
    told = len(forms) > 1 and _held_back(sample.jobs)  # of few configurations none can be held back
    form = _best(sample, forms) if told else forms[0]
    if may_wait_for_loading(measured.jobs):
        bare = replace(form, loads=False)
        form = form if _criterion(sample, form, 2.0) < _criterion(sample, bare, 2.0) else bare
    several = np.unique(measured.jobs.gpus).size >= _COUNTS_TOLD
    return _of_several(sample, replace(form, without=())) if several else {form: 1.0}


def _of_several(measured: Measured, form: Form) -> dict[Form, float]:
    """The form with each exchange of gradients that these configurations allow, by its likelihood (that of Schwarz's criterion).

    Of few numbers of devices with noise, several do: what they say of many more devices differs. What a further device costs at the start
    looks like an exchange if all others may be there as well, so it is asked for beside each.
    """
    costs = float(np.log(measured.logs.size))
    most = fit(measured, form, _STARTS_TRIED)
    told = dropped(measured.jobs, form)
    form = _sparse(measured, form, [name for name in _OTHERS if name not in told], most, costs)
    every = {name for names in _EXCHANGES for name in names}
    forms = [replace(form, without=(*form.without, *sorted(every - set(names)))) for names in _EXCHANGES]
    found = _ordered(measured, forms, most, costs)
    if _AT_START not in told:
        near = [one for each, one in found if each <= found[0][0] + 2 * _AS_WELL]
        bare = [replace(one, without=(*one.without, _AT_START)) for one in near]
        found = min(_ordered(measured, bare, most, costs), found, key=lambda ordered: ordered[0][0])
    least = found[0][0]
    likely = {
        one: float(np.exp((least - each) / 2))
        for each, one in found[:_MOST_FORMS]
        if each <= least + _AS_WELL
    }
    whole = sum(likely.values())
    return {each: share / whole for each, share in likely.items()}


def _ordered(measured: Measured, forms: Sequence[Form], most: _Fit, costs: float) -> list[tuple[float, Form]]:
    """The forms and their criteria, the least first."""
    return sorted(((_criterion(measured, each, costs, most), each) for each in forms), key=lambda one: one[0])


def _sparse(measured: Measured, form: Form, names: Sequence[str], most: _Fit, costs: float) -> Form:
    """The form without those of these parameters that explain no more than noise.

    What does not show is little within the range, and would be most of the time of many more devices.
    """
    least = _criterion(measured, form, costs, most)
    for name in names:
        fewer = replace(form, without=(*form.without, name))
        found = _criterion(measured, fewer, costs, most)
        least, form = (found, fewer) if found <= least else (least, form)
    return form


def _criterion(measured: Measured, form: Form, each_costs: float, near: _Fit | None = None) -> float:
    """How much a form misses, and what its parameters cost; what only follows noise gains less than it costs. `near`: as for `fit`.

    A parameter costs the more the fewer configurations are left to contradict it. Factors, held near 1, take none of these.
    """
    law, logs = fit(measured, form, _STARTS_TRIED if near is None else 1, near)
    left = (np.log(law.times(logs, measured.jobs, law.places(measured.jobs))) - measured.logs) / NOISE
    missed = float(np.sum(np.sqrt(1 + left**2) - 1))
    count, own = measured.logs.size, len(law.names)
    costs = law.size - own + own * count / max(count - own - 1, 1)
    return count * float(np.log(max(missed, 1e-9))) + each_costs * costs


def _best(measured: Measured, forms: Sequence[Form]) -> Form:
    """The form that foretells best; the first, unless another is clearly better."""
    errors = np.array([_foretold(measured, form) for form in forms])
    gains = np.mean(errors, axis=1) - np.mean(errors[0])
    better = (gains < np.log(_CLEARLY)) & (errors[:, 0] < errors[0, 0])
    return forms[int(np.argmin(np.where(better, gains, 0.0)))]


def _forms(jobs: Jobs) -> list[Form]:
    """The forms that these configurations can tell apart, the plainest first, with an exchange that few numbers of devices tell."""
    threads, gpus = vary(jobs.threads), vary(jobs.gpus)
    found = [
        Form(own_threads=own, without=("ring", "tree"))
        for own in ((False, True) if threads and gpus else (False,))
    ]
    samples = jobs.iterations * jobs.batch
    if vary(jobs.batch) and vary(samples) and samples.max() < _SAME_SAMPLES * samples.min():
        found += [replace(form, same_samples=True) for form in found]
    return found


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
