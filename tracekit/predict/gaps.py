"""Which rows of a table of questions lack what an answer needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.errors import InconclusiveError, UsageError
from tracekit.predict.describe import CATEGORIES, MAY_BE_ZERO, NUMBERS
from tracekit.predict.support import Support
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


def gaps(runs: Runs, support: Support) -> Words:
    """By row which value it lacks that every measured row had, in words; empty where it lacks none."""
    found = np.full(runs.height, "", dtype=object)
    for role in (*support.numbers, *support.names):
        if role in runs.frame.columns:
            missing = runs.frame[role].is_null().to_numpy()
            at_least = "" if role in MAY_BE_ZERO or role in CATEGORIES else ", or is not a number above 0"
            found[missing & (found == "")] = (
                f"{runs.description.columns.get(role, role)} is missing{at_least}"
            )
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
