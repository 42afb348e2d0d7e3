"""Configurations to predict: every combination of the values that a user sets, and what the measured runs have in common for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.errors import UsageError, nearest
from tracekit.predict.describe import CATEGORIES, WORK, Description
from tracekit.predict.support import Support
from tracekit.predict.table import Runs, runs_from

__all__ = ["grid_of", "priced", "settings_of"]

_MOST: Final = 100_000
_GROWS: Final = ("flops", "bytes")
"""What is in proportion to the batch."""
_OTHER_WORK: Final = ("network", "mode", "layers", "hidden", "heads", "sequence")
"""Settings with which those are others."""
_WHOLE: Final = ("gpus", "tensor_parallel", "data_parallel", "pipeline_parallel")
"""Counts of devices."""
_OF_DEVICE: Final = ("device", "machine", "peak_gflops", "bandwidth_gb_s")
"""Settings that leave the work of layers as it is."""


def settings_of(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of each setting: `batch=64,128,gpus=4` sets two batches and one number of devices.

    >>> settings_of(["batch=64,128,gpus=4", "device=H100"])
    {'batch': ['64', '128'], 'gpus': ['4'], 'device': ['H100']}

    Raises UsageError for a text without a name, or a name without a value.
    """
    found: dict[str, list[str]] = {}
    for word in words:
        name = ""
        for part in word.split(","):
            key, sign, value = part.partition("=")
            name = key.strip() if sign else name
            if not name or not (value if sign else key).strip():
                raise UsageError(f"{word!r} sets nothing", remedy="write --set NAME=VALUE,VALUE,…")
            found.setdefault(name, []).append((value if sign else key).strip())
    return found


def grid_of(
    settings: Mapping[str, Sequence[str]],
    description: Description,
    known: Mapping[str, str],
    support: Support,
) -> Runs:
    """Every combination of the settings, by roles or columns; what is not set is as `known`, by columns, and empty if not all measured
    runs had it. At another batch FLOPs and bytes are in proportion to it.

    Raises UsageError for a setting that the model has no column for, one that is missing, or too many combinations.
    """
    names = {**description.columns, **{name: name for name in description.features}}
    columns = dict.fromkeys(names.values())
    chosen = {}
    for name, values in settings.items():
        column = names.get(name, name)
        if column not in columns:
            raise UsageError(
                f"the model knows no {name!r}", remedy=nearest(name, names, f"it knows {', '.join(names)}")
            )
        if column not in (description.columns.get(role) for role in CATEGORIES):
            for value in values:
                _number(value, name, whole=column in map(description.columns.get, _WHOLE))
        chosen[column] = list(values)
    if any(names.get(role) in chosen for role in _OTHER_WORK):
        known = {column: value for column, value in known.items() if column not in map(names.get, _GROWS)}
    unset = {role: column for role, column in names.items() if column not in chosen and column not in known}
    lacking = [role for role in unset if role in support.numbers or role in support.names]
    if lacking:
        raise UsageError(
            f"the runs that were measured differ in {', '.join(lacking)}",
            remedy=f"set {'it' if len(lacking) == 1 else 'them'} too: --set {','.join(f'{role}=…' for role in lacking)}",
        )
    grid = {**{column: [known.get(column, "")] for column in columns}, **chosen}
    if WORK in names and any(names[role] in chosen for role in names if role not in (*_OF_DEVICE, WORK)):
        grid[names[WORK]] = [""]
    if (count := prod(map(len, grid.values()))) > _MOST:
        raise UsageError(f"these are {count:,} combinations", remedy=f"set at most {_MOST:,}")
    rows = pl.DataFrame(list(product(*grid.values())), dict.fromkeys(grid, pl.String), orient="row")
    batch = names.get("batch", "")
    if batch in chosen and batch in known:
        grown = [names[role] for role in _GROWS if names.get(role, "") in known and names[role] not in chosen]
        factor = pl.col(batch).cast(pl.Float64) / float(known[batch])
        rows = rows.with_columns((pl.col(grown).cast(pl.Float64) * factor).cast(pl.String))
    if description.id and description.id not in rows.columns:
        rows = rows.with_columns(pl.int_range(pl.len()).cast(pl.String).alias(description.id))
    return runs_from(rows, description, Path("--set"), measured=False)


def priced(
    description: Description, asked: Runs, answers: pl.DataFrame, price: float
) -> tuple[Runs, pl.DataFrame]:
    """The rows and their answers, the cheapest first, with what each costs (`cost`) if a device costs `price` an hour."""
    hours = answers["predicted"] * description.seconds / 3600
    costs = hours * pl.Series(asked.numbers("gpus", 1.0)) * price
    order = costs.arg_sort(nulls_last=True)
    told = answers.select(pl.exclude("note"), costs.alias("cost"), "note")
    return replace(asked, frame=asked.frame[order]), told[order]


def _number(value: str, name: str, *, whole: bool) -> None:
    try:
        number = float(value)
    except ValueError:
        raise UsageError(
            f"{name} is {value!r}, which is not a number", remedy=f"write --set {name}=8"
        ) from None
    if whole and number > 0 and not number.is_integer():
        raise UsageError(f"{name} is {value}, which is not a whole number", remedy=f"write --set {name}=8")
