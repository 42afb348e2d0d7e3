"""Which rows of a table of questions lack what an answer needs."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.errors import InconclusiveError, UsageError
from tracekit.names import clean
from tracekit.predict.describe import CATEGORIES, MAY_BE_ZERO, NUMBERS, WORK
from tracekit.predict.dies import die_of_name
from tracekit.predict.support import DEVICE, Support
from tracekit.predict.table import Runs

__all__ = ["gaps", "refusals"]

Words = npt.NDArray[np.object_]

_ALIKE: Final = (
    "device",
    "network",
    "op",
    "peak_gflops",
    "bandwidth_gb_s",
    "gpus",
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
)
"""Of the columns of a row, those whose values, not only whether they are there, decide whether a model has an answer."""

_NETWORK: Final = "network"
_TELL_WORK: Final = ("flops", "bytes", "parameters", "layers")
"""Numbers that say how much work a network is, if they differ among those that were measured."""


def gaps(runs: Runs, support: Support) -> Words:
    """By row which value it lacks that every measured row had, or that nobody knows its device, in words; empty where it lacks none."""
    found = np.full(runs.height, "", dtype=object)
    for role in (*support.numbers, *support.names):
        if role in runs.frame.columns:
            missing = runs.frame[role].is_null().to_numpy()
            at_least = "" if role in MAY_BE_ZERO or role in CATEGORIES else ", or is not a number above 0"
            found[missing & (found == "")] = (
                f"{runs.description.columns.get(role, role)} is missing{at_least}"
            )
    found = np.where(found == "", _strange(runs, support), found)
    return np.where(found == "", _other_network(runs, support), found)


def _other_network(runs: Runs, support: Support) -> Words:
    """By row why nothing compares its network with the only one that was measured; empty where its work tells, or it is that one."""
    found = np.full(runs.height, "", dtype=object)
    seen = support.names.get(_NETWORK, frozenset())
    low_high = [support.numbers[name] for name in _TELL_WORK if name in support.numbers]
    if len(seen) != 1 or any(low < high for low, high in low_high):
        return found
    untold = np.full(runs.height, True)
    if WORK in runs.frame.columns:
        untold = runs.frame[WORK].is_null().to_numpy()
    for row, name in enumerate(runs.names(_NETWORK)):
        if name not in seen and untold[row]:
            found[row] = (
                f"network {clean(name)} was never measured, and one network does not tell how long another takes"
            )
    return found


def _strange(runs: Runs, support: Support) -> Words:
    """By row why nothing compares its device, which was never measured, with those that were; empty where something does."""
    found = np.full(runs.height, "", dtype=object)
    seen, devices = support.names.get(DEVICE, frozenset()), runs.description.devices
    names = np.array(runs.names(DEVICE), dtype=object)
    new = (names != "") & ~np.isin(names, list(seen))
    if not seen or not new.any():
        return found
    unknown = np.isnan(runs.die_gflops)
    if "peak_gflops" not in runs.frame.columns and all(isnan(die_of_name(name, devices)) for name in seen):
        found[new] = [
            f"device {clean(name)} was never measured, and the peaks of those that were are not known"
            for name in names[new]
        ]
    for row in np.flatnonzero(new & unknown):
        found[row] = f"the peak of device {clean(names[row])} is not known"
    return found


def refusals(runs: Runs, asked: npt.NDArray[np.bool_], answer: Callable[[Runs], object]) -> Words:
    """By row why `answer` raises for it, in words; empty for a row that is not `asked` or that it answers.

    It is tried on one row of each device, operator and layout, and of each set of values that are there.
    """
    found = np.full(runs.height, "", dtype=object)
    alike = [name for name in _ALIKE if name in runs.frame.columns]
    others = [name for name in (*NUMBERS, *CATEGORIES) if name in runs.frame.columns and name not in alike]
    sort = pl.struct(*alike, *(pl.col(name).is_null().alias(f"no {name}") for name in others))
    number = runs.frame.select(sort.rank("dense")).to_series().to_numpy()
    for each in np.unique(number[asked]):
        rows = asked & (number == each)
        one = np.zeros(runs.height, dtype=bool)
        one[np.flatnonzero(rows)[0]] = True
        try:
            answer(runs.where(one))
        except (InconclusiveError, UsageError) as error:
            found[rows] = str(error)
    return found
