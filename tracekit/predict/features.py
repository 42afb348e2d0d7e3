"""Rows of runs as regressions take them: numbers by name, names as indicators, one row for each configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from tracekit.errors import UsageError
from tracekit.predict.describe import CATEGORIES, NUMBERS
from tracekit.predict.table import Floats, Runs

__all__ = ["categories_of", "column", "device_names", "matrix", "one_each", "sampled", "several", "varying"]

_MOST_NAMES = 64


def one_each(runs: Runs) -> Runs:
    """One row for each configuration, in the order in which they first stand, with the median of its times."""
    rest = [pl.first(name) for name in runs.frame.columns if name not in ("configuration", "target")]
    frame = runs.frame.group_by("configuration", maintain_order=True).agg(*rest, pl.median("target"))
    return replace(runs, frame=frame.select(runs.frame.columns))


def sampled(runs: Runs, most: int) -> Runs:
    """At most so many of its configurations, chosen at random but always the same ones, with all their rows."""
    numbers = runs.frame["configuration"].unique().sort().to_numpy()
    if numbers.size <= most:
        return runs
    chosen = np.random.default_rng(0).permutation(numbers)[:most]
    return runs.where(np.isin(runs.frame["configuration"].to_numpy(), chosen))


def column(runs: Runs, name: str) -> Floats:
    """A column of numbers by its role or name; the peak is that of a die.

    Raises UsageError where the table does not have it, or not in all rows.
    """
    values = runs.die_gflops if name == "peak_gflops" else runs.numbers(name)
    if np.isnan(values).any():
        raise UsageError(
            f"the model needs {runs.description.columns.get(name, name)!r}, which is not in all rows",
            remedy="add it to the table",
        )
    return values


def matrix(runs: Runs, names: Sequence[str]) -> Floats:
    """These columns side by side; see `column`."""
    return np.column_stack([column(runs, name) for name in names]) if names else np.empty((runs.height, 0))


def varying(runs: Runs) -> list[str]:
    """The columns of numbers, by role or name, that every row has and in which rows differ."""
    asked = (*NUMBERS, *runs.description.features)
    known = [name for name in asked if name in runs.frame.columns and not runs.frame[name].null_count()]
    return [name for name in known if runs.frame[name].n_unique() > 1]


def several(runs: Runs) -> list[str]:
    """The roles of names that every row has and in which rows differ."""
    return [
        name for name in CATEGORIES if name in runs.roles and 1 < runs.frame[name].n_unique() <= _MOST_NAMES
    ]


def categories_of(runs: Runs, role: str, values: Sequence[str]) -> Floats:
    """A column of 0 and 1 for each of these names; a name that is none of them has the mean share of each."""
    names = np.array(runs.names(role), dtype=object)
    found = np.column_stack([(names == value).astype(np.float64) for value in values])
    unseen = found.sum(axis=1) == 0
    found[unseen] = 1 / len(values)
    return found


def device_names(runs: Runs) -> list[str]:
    """What each row's device is called: the name in its column, else what the description calls a device of its peak, else the peak
    itself; empty without both.
    """
    if "device" in runs.frame.columns:
        return runs.names("device")
    if "peak_gflops" not in runs.roles:
        return [""] * runs.height
    devices = runs.description.devices
    called = {key: str(known.get("name", f"of {key} GFLOP/s")) for key, known in devices.items()}
    return [called.get(text, f"of {text} GFLOP/s") for text in _peaks(runs)]


def _peaks(runs: Runs) -> list[str]:
    return [f"{value:.15g}" for value in runs.numbers("peak_gflops")]
