"""Cases that ran on some devices, on another: the arithmetic and the memory of each case take as long as the devices' figures allow.

time = exp(case + device) · (arithmetic · peak of an A100 / sustained peak + memory · bandwidth of an A100 / bandwidth), where the case is
the sum of its network, mode and option, of powers of its batch and sequence, and of what is its own. A case that ran nowhere has no own
term; a device that gave no measurement has that of its vendor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError
from tracekit.predict.boards import Boards, boards_of
from tracekit.predict.model import Term
from tracekit.predict.models.checked import LARGEST, number, numbers, table
from tracekit.predict.table import Floats, Runs

__all__ = ["MODEL", "Devices", "DevicesFit"]

_PEAK, _BANDWIDTH = 19_500.0, 1_555.0
"""Of an A100, GFLOP/s and GB/s: shares are given for a device like it."""
_CASE: Final = (
    "network",
    "mode",
    "option",
    "precision",
    "gpus",
    "batch",
    "sequence",
    "layers",
    "hidden",
    "flops",
)
"""What tells cases apart."""
_FACTORS: Final = {
    "network": 2.0,
    "mode": 1.5,
    "option": 0.5,
    "precision": 0.5,
    "network, mode": 0.1,
    "network, option": 0.1,
    "case": 0.025,
    "vendor": 0.3,
    "generation": 0.08,
    "device": 0.05,
}
"""The factors that have levels, and how far these lie apart, in natural logarithms, before the data says so."""
_SLOPES: Final = {"batch": (1.0, 0.05), "sequence": (1.0, 0.3), "flops": (1.0, 0.05)}
"""What a time grows with, as an exponent, and how far that may be off."""
_MEMORY: Final = (0.25, 0.3)
"""The time of the memory over that of the arithmetic, in 32-bit transformers on an A100, and how far its logarithm may be off: the bytes
of the element-wise operators of GPT-2 and BERT at its bandwidth, against their matrix products at its peak. Where a table counts FLOPs and
bytes, these say it for each case, and this is the factor beside them, over the first of these numbers."""
_FUSED: Final = ("fusion", "fused", "compile")
_FUSED_MEMORY: Final = 0.4
"""What fusion leaves of the memory's share: the 12 % that it saves of a network on an A100 are of the memory's 20 %."""
_PARALLEL: Final = re.compile(r"(dp|tp|pp)(\d{1,6})(?:_(\d{1,6}))?")
"""Options that share the work between devices: how, between how many, and for a pipeline in how many parts."""
_NOISE: Final = 0.04
_STEP: Final = 1e-4
_ROUNDS: Final = 40


@dataclass(frozen=True, slots=True)
class DevicesFit:
    """The parameters, as logarithms: of the mean, of the memory over the arithmetic, exponents, and levels by factor and name."""

    mean: float
    memory: float
    slopes: Mapping[str, float]
    levels: Mapping[str, Mapping[str, float]]

    def predict(self, runs: Runs) -> Floats:
        """The times of these rows, in the target's unit."""
        return sum(self.parts(runs).values(), np.zeros(runs.height))

    def parts(self, runs: Runs) -> Mapping[str, Floats]:
        """The time of the arithmetic and of the memory, in the target's unit."""
        boards = boards_of(runs)
        logs = self.mean + _shared_work(runs)
        for role, slope in self.slopes.items():
            values = runs.numbers(role)
            if not np.isfinite(values).all():
                raise InconclusiveError(
                    f"a row lacks its {role}", remedy="the model was fitted to rows that have it"
                )
            logs += slope * np.log(values)
        for factor, names in _levels_of(runs, boards).items():
            known = self.levels.get(factor, {})
            logs += np.array([known.get(name, 0.0) for name in names])
        work = np.exp(np.clip(logs, -LARGEST, LARGEST))
        arithmetic, memory = _shares(runs, boards, self.memory)
        return {"arithmetic": work * arithmetic, "memory": work * memory}

    def explain(self) -> Sequence[Term]:
        """The share of the memory, the exponents, and the factors of the levels, the farthest from 1 first."""
        share = _share_of_memory(self.memory)
        terms = [Term("memory", share, "", "the memory's share of the time on a device like an A100")]
        terms += [
            Term(role, slope, "", f"the exponent with which the time grows with the {role}")
            for role, slope in self.slopes.items()
        ]
        factors = [
            Term(
                f"{factor} {name}".strip(),
                float(np.exp(value)),
                "×",
                f"what this {factor} takes, over the mean",
            )
            for factor, known in self.levels.items()
            for name, value in known.items()
        ]
        return [*terms, *sorted(factors, key=lambda term: -abs(np.log(term.value)))]

    def state(self) -> dict[str, Any]:
        """The parameters, as JSON."""
        levels = {factor: dict(known) for factor, known in self.levels.items()}
        return {"mean": self.mean, "memory": self.memory, "slopes": dict(self.slopes), "levels": levels}


class Devices:
    """The model of cases on devices."""

    def lacks(self, runs: Runs) -> str | None:
        """Why it cannot be fitted to these rows: they name no networks or devices, or no case ran on two devices."""
        if "op" in runs.frame.columns:
            return "its rows are kernels"
        if not {"device", "network"} <= runs.roles:
            return "it needs the columns of the device and of the network"
        told = [role for role in _CASE if role in runs.frame.columns]
        if runs.frame.group_by(told).agg(pl.col("device").n_unique())["device"].max() == 1:
            return "no case ran on two devices"
        try:
            boards_of(runs)
        except InconclusiveError as error:
            return str(error)
        return None

    def fit(self, runs: Runs) -> DevicesFit:
        """Fit it to rows with a target."""
        boards = boards_of(runs)
        slopes = {role: prior for role, prior in _SLOPES.items() if role in runs.roles}
        if "flops" in slopes:
            slopes = {"flops": slopes["flops"]}
        rows = _levels_of(runs, boards)
        levels = [(factor, name) for factor, names in rows.items() for name in dict.fromkeys(names) if name]
        first = 2 + len(slopes)
        place = {level: column for column, level in enumerate(levels, start=first)}
        design = np.zeros((runs.height, first + len(levels)))
        design[:, 0] = 1.0
        for column, role in enumerate(slopes, start=2):
            design[:, column] = np.log(runs.numbers(role))
        for factor, names in rows.items():
            named = [(row, place[factor, name]) for row, name in enumerate(names) if name]
            design[tuple(np.array(named, dtype=np.int64).reshape(-1, 2).T)] = 1.0
        logs = np.log(runs.target) - _shared_work(runs)
        priors = [(float(logs.mean()), 1e3), (float(np.log(_MEMORY[0])), _MEMORY[1]), *slopes.values()]
        priors += [(0.0, _FACTORS[factor]) for factor, _ in levels]
        found = _solve(
            design, logs, np.sqrt(runs.weights), priors, lambda memory: _shares(runs, boards, memory)
        )
        known: dict[str, dict[str, float]] = {factor: {} for factor in rows}
        for (factor, name), value in zip(levels, found[first:].tolist(), strict=True):
            known[factor][name] = value
        return DevicesFit(
            float(found[0]), float(found[1]), dict(zip(slopes, found[2:first].tolist(), strict=True)), known
        )

    def restore(self, state: Mapping[str, Any]) -> DevicesFit:
        """The fitted model of a state. Raises ValueError, KeyError or TypeError for one that is none."""
        levels = {str(factor): numbers(known) for factor, known in table(state["levels"]).items()}
        slopes = numbers(state["slopes"])
        if not set(levels) <= set(_FACTORS) or not set(slopes) <= set(_SLOPES):
            raise ValueError("the model of devices has other factors")
        return DevicesFit(number(state["mean"]), number(state["memory"]), slopes, levels)


def _solve(
    design: Floats,
    logs: Floats,
    weights: Floats,
    priors: Sequence[tuple[float, float]],
    shares: Callable[[float], tuple[Floats, Floats]],
) -> Floats:
    """The parameters of the smallest residuals; rows far from what they should be weigh less. Column 1 is that of the memory."""
    centre = np.array([middle for middle, _ in priors])
    tight = np.diag([1 / spread for _, spread in priors])
    found = centre.copy()
    for _ in range(_ROUNDS):
        arithmetic, memory = shares(float(found[1]))
        further, more = shares(float(found[1]) + _STEP)
        slope = (np.log(further + more) - np.log(arithmetic + memory)) / _STEP
        design[:, 1] = 0.0
        residual = logs - design @ found - np.log(arithmetic + memory)
        design[:, 1] = slope
        weight = weights / (_NOISE * np.sqrt(1 + (residual / (2 * _NOISE)) ** 2))
        matrix = np.vstack([design * weight[:, None], tight])
        wanted = np.concatenate([residual * weight, tight @ (centre - found)])
        found = found + np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    return found


def _share_of_memory(memory: float) -> float:
    """The memory's share of the time on a device like an A100."""
    return float(np.exp(memory) / (1 + np.exp(memory)))


def _shares(runs: Runs, boards: Boards, memory: float) -> tuple[Floats, Floats]:
    """The time of the arithmetic and of the memory of each row, over the time of both on a device like an A100."""
    fused = np.array([any(word in option for word in _FUSED) for option in runs.names("option")])
    ratio = np.exp(memory) * np.where(fused, _FUSED_MEMORY, 1.0)
    counted = runs.numbers("bytes") / _BANDWIDTH / (runs.numbers("flops") / _PEAK)
    ratio = ratio * np.where(np.isfinite(counted), counted / _MEMORY[0], 1.0)
    arithmetic = _PEAK / boards.column("sustained") / (1 + ratio)
    return arithmetic, ratio * _BANDWIDTH / boards.column("streamed") / (1 + ratio)


def _shared_work(runs: Runs) -> Floats:
    """The logarithm of the share of its work that a device has where the option says that several share it."""
    shares = {}
    for option in dict.fromkeys(runs.names("option")):
        found = _PARALLEL.fullmatch(option)
        devices = max(1, int(found[2])) if found else 1
        parts = max(1, int(found[3] or 1)) if found else 1
        at_once = (parts + devices - 1) / parts if found and found[1] == "pp" else 1
        shares[option] = float(np.log(at_once / devices))
    return np.array([shares[option] for option in runs.names("option")])


def _levels_of(runs: Runs, boards: Boards) -> dict[str, list[str]]:
    """The level of each row, by factor, for the factors that these rows have columns of."""
    roles = [name for name in ("network", "mode", "option", "precision") if name in runs.frame.columns]
    columns: dict[str, list[str]] = {name: runs.names(name) for name in roles}
    told = {
        factor: [
            ", ".join(parts) for parts in zip(*(columns[name] for name in factor.split(", ")), strict=True)
        ]
        for factor in _FACTORS
        if set(factor.split(", ")) <= columns.keys()
    }
    case = [
        runs.frame[role].cast(pl.String).fill_null("").to_list()
        for role in _CASE
        if role in runs.frame.columns
    ]
    names = [(board.name, board.vendor, board.generation) for board in boards.boards]
    return {
        **told,
        "case": [", ".join(filter(None, parts)) for parts in zip(*case, strict=True)],
        "vendor": [names[at][1] for at in boards.index],
        "generation": [names[at][2] for at in boards.index],
        "device": [names[at][0] for at in boards.index],
    }


MODEL: Final = Devices()
