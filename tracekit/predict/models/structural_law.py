"""The law of a training job's time: its parameters, and what it says for rows of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.predict.table import Floats, Runs

__all__ = ["GROUPS", "PARAMETERS", "Form", "Jobs", "Law", "Parameter", "jobs_of"]

REFERENCE_GFLOPS: Final = 1000.0
"""What a device's peak divides is given for a device of this peak."""


_STEP: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a parameter of the law means. All are above 0."""

    unit: str
    meaning: str


_ON_DEVICE: Final = "on a device of 1000 GFLOP/s"

PARAMETERS: Final[dict[str, Parameter]] = {
    "start": Parameter("s", "to start a run"),
    "start_device": Parameter("s", "to start a run, for each device"),
    "load": Parameter("s", "of one thread, to load a sample"),
    "collate": Parameter("", "of that time, what only one thread can do: to put a sample into its batch"),
    "growth": Parameter("", "how that part grows with the batch, as an exponent"),
    "epoch": Parameter("iterations", "of the usual batch, of which one does not overlap with loading"),
    "sample": Parameter("s", f"to compute a sample, {_ON_DEVICE}"),
    "sample_layer": Parameter("s", f"to compute a sample, {_ON_DEVICE}, for each layer"),
    "sample_fixed": Parameter("s", "to compute a sample, whatever the peak of the device"),
    "step": Parameter("s", f"for an iteration, {_ON_DEVICE}, however small the batch"),
    "step_layer": Parameter("s", f"for an iteration, {_ON_DEVICE}, for each layer"),
    "host": Parameter("s", "of the host, for an iteration"),
    "host_device": Parameter("s", "of the host, for an iteration and each device after the first"),
    "sync": Parameter("s", "to synchronise several devices, for an iteration"),
    "ring": Parameter("s", "to pass gradients around a ring of many devices, for an iteration"),
    "tree": Parameter("s", "to synchronise twice as many devices, for an iteration"),
    "sync_device": Parameter("s", "to synchronise, for an iteration and each device after the first"),
    "scatter": Parameter("s", "to give a sample to one of several devices"),
    "overlap": Parameter("", "how well loading hides behind computing: 1 not at all, large ones wholly"),
}
GROUPS: Final[dict[str, tuple[str, str]]] = {
    "computing": ("device", "computing samples takes this often as long as the peak says"),
    "steps": ("device", "what an iteration of any batch costs takes this often as long as the peak says"),
    "loading": ("machine", "loading takes this often as long as on the others"),
    "starting": ("machine", "starting takes this often as long as on the others"),
    "networks": ("network", "computing takes this often as long as for the others"),
}
"""The factors: what each is of, and what it means. There is one for each name that was measured. Of those that were not, a machine
has the mean of the machines in which its device was measured, as cards of a kind stand in machines of a kind; others have 1."""


@dataclass(frozen=True, slots=True)
class Form:
    """What tells variants of the law apart."""

    own_threads: bool = False
    """Whether each device has the loader threads for itself, or all share them."""
    same_samples: bool = False
    """Whether all runs took the same number of samples, so that what their iterations say beyond that is warm-up and the like."""
    loads: bool = True
    """Whether loading is ever waited for."""
    without: tuple[str, ...] = ()
    """The parameters of several devices that do not show in the data."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Rows of runs as arrays. What the table does not have is 1."""

    iterations: Floats
    batch: Floats
    gpus: Floats
    threads: Floats
    layers: Floats
    flops: Floats
    """Of an iteration; NaN without."""
    gflops: Floats
    """The peak of one device; NaN without."""
    levels: Mapping[str, npt.NDArray[np.str_]]
    """By what factors are of, its name in each row."""

    def where(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Jobs:
        """Some of the rows."""
        numbers = {name: getattr(self, name)[rows] for name in _NUMBERS}
        return Jobs(**numbers, levels={name: values[rows] for name, values in self.levels.items()})


_NUMBERS: Final = ("iterations", "batch", "gpus", "threads", "layers", "flops", "gflops")


def jobs_of(runs: Runs) -> Jobs:
    """The rows of a table of runs."""
    peaks = runs.die_gflops
    has_names = "device" in runs.frame.columns
    named = runs.names("device") if has_names else [f"of {peak:.0f} GFLOP/s" for peak in peaks]
    network = [" ".join(words).strip() for words in zip(*map(runs.names, _NETWORK), strict=True)]
    return Jobs(
        iterations=runs.numbers("iterations", 1.0),
        batch=runs.numbers("batch", 1.0),
        gpus=runs.numbers("gpus", 1.0),
        threads=runs.numbers("loader_threads", 1.0),
        layers=runs.numbers("layers", 1.0),
        flops=runs.numbers("flops"),
        gflops=peaks,
        levels={
            "device": np.array(named, dtype=np.str_),
            "machine": np.array(runs.names("machine"), dtype=np.str_),
            "network": np.array(network, dtype=np.str_),
        },
    )


_NETWORK: Final = ("network", "precision", "mode", "option")
_ROLES: Final[dict[str, tuple[str, ...]]] = {
    "start": ("iterations",),
    "start_device": ("gpus",),
    "load": ("batch",),
    "collate": ("loader_threads",),
    "sample": ("batch", "gpus"),
    "sample_layer": ("layers",),
    "host_device": ("gpus",),
}
"""By parameter, the roles that it acts on."""


@dataclass(frozen=True, slots=True)
class Law:
    """The law with the parameters that its data can tell.

    It takes them as natural logarithms: those of `names` first, then the factors of each group's `levels`.
    """

    form: Form
    names: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]
    batch: float
    """The batch at which `collate` holds."""
    flops: float
    """The FLOPs of what counts as one sample, where the table has FLOPs."""
    gflops: float
    """The peak of a device whose peak is not known."""
    samples: float
    """How many samples a run has, where all have the same."""
    slack: float
    """How far, as a factor, iterations may lie from what that number says and mean the same."""
    stands: Mapping[str, tuple[str, ...]]
    """By device, the machines in which it was measured."""

    @property
    def size(self) -> int:
        """How many parameters there are, factors included."""
        return len(self.names) + sum(map(len, self.levels.values()))

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """What each logarithm is of: a name and nothing, or a group and its level."""
        factors = [(group, level) for group, levels in self.levels.items() for level in levels]
        return [*((name, "") for name in self.names), *factors]

    def places(self, jobs: Jobs) -> dict[str, npt.NDArray[np.intp]]:
        """By group, where in `_values` each row has its factor."""
        found = {}
        means = {key: self.size + 1 + place for place, key in enumerate(self._of_devices())}
        for group, at in self._at().items():
            pairs = [
                *zip(jobs.levels[GROUPS[group][0]].tolist(), jobs.levels["device"].tolist(), strict=True)
            ]
            known = {
                (level, device): at.get(level, means.get((group, device), self.size))
                for level, device in set(pairs)
            }
            found[group] = np.array([known[pair] for pair in pairs], np.intp)
        return found

    def _at(self) -> dict[str, dict[str, int]]:
        """By group and level, where in the parameters its factor is."""
        found, start = {}, len(self.names)
        for group, levels in self.levels.items():
            found[group] = {level: start + place for place, level in enumerate(levels)}
            start += len(levels)
        return found

    def _of_devices(self) -> dict[tuple[str, str], list[int]]:
        """By group and device, where in the parameters the factors of the device's machines are."""
        of_machines = {group: at for group, at in self._at().items() if at and GROUPS[group][0] == "machine"}
        return {
            (group, device): [at[machine] for machine in machines]
            for group, at in of_machines.items()
            for device, machines in self.stands.items()
        }

    def _values(self, logs: Floats) -> Floats:
        """The parameters, 1, and the mean factors of machines by device."""
        means = [logs[..., places].mean(axis=-1, keepdims=True) for places in self._of_devices().values()]
        found: Floats = np.exp(np.concatenate([logs, np.zeros((*logs.shape[:-1], 1)), *means], axis=-1))
        return found

    @property
    def needs(self) -> frozenset[str]:
        """The roles that its parameters act on."""
        told = {role for name in self.names for role in _ROLES.get(name, ())}
        return frozenset(told | ({"flops"} if np.isfinite(self.flops) else set()))

    def times(self, logs: Floats, jobs: Jobs, places: Mapping[str, npt.NDArray[np.intp]]) -> Floats:
        """The seconds of each row; `logs` may have several sets of parameters, a row each, and so has the result."""
        found: Floats = np.sum(np.broadcast_arrays(*self.parts(logs, jobs, places).values()), axis=0)
        return found

    def slopes(self, logs: Floats, jobs: Jobs, places: Mapping[str, npt.NDArray[np.intp]]) -> Floats:
        """By row and parameter, how the logarithm of its seconds grows with that of the parameter."""
        told = np.log(self.times(np.vstack([logs, logs + _STEP * np.eye(self.size)]), jobs, places))
        found: Floats = (told[1:] - told[0]).T / _STEP
        return found

    def parts(
        self, logs: Floats, jobs: Jobs, places: Mapping[str, npt.NDArray[np.intp]]
    ) -> dict[str, Floats]:
        """The seconds of each part of each row."""
        values = self._values(logs)
        at = {name: place for place, name in enumerate(self.names)}

        def of(name: str) -> Floats:
            place = at.get(name)
            return np.zeros((*logs.shape[:-1], 1)) if place is None else values[..., place : place + 1]

        def factor(group: str) -> Floats | float:
            return values[..., places[group]] if group in places else 1.0

        iterations, further = self._iterations(jobs), jobs.gpus - 1
        local = jobs.batch / jobs.gpus
        work = local if np.isnan(self.flops) else jobs.flops / self.flops / jobs.gpus
        slowness = REFERENCE_GFLOPS / np.where(np.isnan(jobs.gflops), self.gflops, jobs.gflops)
        fixed = of("step") + of("step_layer") * jobs.layers
        device = slowness * factor("computing") * (of("sample") + of("sample_layer") * jobs.layers) * work
        device = device + slowness * factor("steps") * fixed
        device = factor("networks") * (device + of("sample_fixed") * work)
        host = of("host") + of("host_device") * further
        exposed = np.zeros_like(device)
        loaded = local if self.form.own_threads else jobs.batch
        if "load" in at:
            alone = of("collate") * (loaded / self.batch) ** (of("growth") - 1)
            loading = factor("loading") * of("load") * loaded * (1 / jobs.threads + alone)
            exposed = _longer(device + host, loading, of("overlap")) - device - host
        if "epoch" in at:  # Its first iteration has nothing to compute while its batch is loaded.
            exposed = exposed + loaded / self.batch / of("epoch") * (device + host)
        sync = (further > 0) * (of("sync") + of("scatter") * jobs.batch) + of("sync_device") * further
        sync = sync + of("ring") * further / jobs.gpus + of("tree") * np.log2(jobs.gpus)
        start = factor("starting") * (of("start") + of("start_device") * jobs.gpus)
        return {
            "device": iterations * device,
            "loading not hidden": iterations * exposed,
            "host": iterations * host,
            "synchronisation": iterations * sync,
            "start-up": start + 0 * iterations,
        }

    def _iterations(self, jobs: Jobs) -> Floats:
        if not self.form.same_samples:
            return jobs.iterations
        # Within what was seen iterations do not matter; beyond it, they count.
        more = np.log(jobs.iterations * jobs.batch / self.samples)
        beyond = np.sign(more) * np.maximum(np.abs(more) - np.log(self.slack), 0)
        found: Floats = self.samples / jobs.batch * np.exp(beyond)
        return found


def _longer(one: Floats, other: Floats, sharpness: Floats) -> Floats:
    """The longer of two, rounded where they are about as long: the smooth maximum (oneᵖ + otherᵖ)^(1/p), never below `one`."""
    top = np.maximum(one, other)
    low = np.minimum(one, other) / np.maximum(top, 1e-300)
    return np.asarray(top * (1 + low**sharpness) ** (1 / sharpness))
