"""The work of a run's layers: what each computes and moves in each pass of a step, as tables of runs carry it.

A cell of the column `work` is JSON: a list with `[type, pass, operators, FLOPs, bytes, ns, unknown]` for each layer and pass. The
type is the class of the module; work outside the model's layers has the name of its phase, such as `<optimizer>`. `ns` is the time that was
recorded, or null, and `unknown` the share of it that operators took whose FLOPs or bytes are not known: these sums lack them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from math import isfinite
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.layer_spans import OF_MODEL
from tracekit.analyses.scope import Scope
from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError
from tracekit.names import clean
from tracekit.predict.table import Floats, Runs
from tracekit.predict.trace_work import placed_pieces

__all__ = ["Kind", "Work", "dumped_work", "work_of"]

Kind = tuple[str, str]
"""The type of a layer, and the pass."""

_FIELDS: Final = 7
_MOST_LAYERS: Final = 200_000
_LARGEST: Final = 1e24
_OUTSIDE: Final = "outside of layers"


@dataclass(frozen=True, slots=True)
class Work:
    """Layers in their passes, those of one row after those of another.

    `row`: to which row of the table each belongs; `kinds`: the kinds that there are; `kind`: which of them each is; `operators`, `flops`,
    `bytes`: of a step; `ns`: the recorded time of a step, NaN where there is none; `unknown`: the share of that time, or of the operators where
    there is none, that operators take whose FLOPs or bytes are not known, 0 to 1.
    """

    row: npt.NDArray[np.int64]
    kinds: tuple[Kind, ...]
    kind: npt.NDArray[np.int64]
    operators: Floats
    flops: Floats
    bytes: Floats
    ns: Floats
    unknown: Floats

    @property
    def terms(self) -> Floats:
        """The operators, FLOPs and bytes side by side."""
        return np.column_stack([self.operators, self.flops, self.bytes])

    def unknown_of(self, rows: int) -> Floats:
        """The share of each of so many rows that is not known: of the time of its layers, or of their operators if one has no time."""
        timed = np.bincount(self.row, np.isnan(self.ns), rows)[self.row] == 0
        size = np.where(timed, self.ns, self.operators)
        whole = np.bincount(self.row, size, rows)
        found: Floats = np.bincount(self.row, size * self.unknown, rows) / np.where(whole > 0, whole, 1)
        return found


def dumped_work(scope: Scope) -> str | None:
    """The work of the layers of a scope, of a step, as a cell; None where the trace has no layers."""
    table = attribution(scope).layers
    if not table["source"].is_in(OF_MODEL).any():
        return None
    named = table.select(
        "layer_id",
        pl.when(pl.col("source").is_in(OF_MODEL)).then(pl.col("type").cast(pl.String)).alias("type"),
        pl.col("name").cast(pl.String),
    )
    steps = max(scope.steps.height, 1)
    layer = ("layer_id", "type", "phase")
    rows = (
        placed_pieces(scope)
        .join(named, on="layer_id", how="left", maintain_order="left")
        .with_columns(
            pl.coalesce("type", "name_right", pl.lit(_OUTSIDE)).alias("type"),
            pl.col("phase").fill_null("other"),
        )
        .group_by(*layer, "step", maintain_order=True)
        .agg(pl.len(), pl.col("flops", "bytes", "duration").sum(), _UNKNOWN_NS.sum().alias("unknown"))
        .group_by(*layer, maintain_order=True)
        .agg(
            pl.col("len", "flops", "bytes").sum() / steps,
            _median_of(steps).alias("duration"),
            (pl.col("unknown").sum() / pl.col("duration").sum()).clip(0, 1).alias("share"),
        )
        .filter(pl.col("duration") > 0)
    )
    cells = [
        [clean(kind), phase, round(count, 2), round(flops), round(moved), round(ns), round(unknown, 4)]
        for _, kind, phase, count, flops, moved, ns, unknown in rows.rows()
    ]
    return json.dumps(cells, separators=(",", ":"))


_UNKNOWN_NS: Final = pl.when(pl.col("flops").is_null() | pl.col("bytes").is_null()).then("piece_ns")
"""The time of a piece of work whose FLOPs or bytes are not known."""


def _median_of(steps: int) -> pl.Expr:
    """The median of the durations of so many steps; those that have no row count as 0."""
    missing = pl.repeat(0, steps - pl.len(), dtype=pl.Int64)
    return pl.col("duration").append(missing).median()


def work_of(runs: Runs) -> tuple[Work, npt.NDArray[np.bool_]]:
    """The work of the layers of these rows, and which of them tell it.

    Raises InconclusiveError for a cell that is no work of layers.
    """
    cells = runs.names("work")
    found = [_layers(cell) if cell else ((), np.empty((0, _FIELDS - 2))) for cell in cells]
    names: dict[Kind, int] = {}
    kind = [names.setdefault(each, len(names)) for kinds, _ in found for each in kinds]
    numbers = np.concatenate([values for _, values in found] or [np.empty((0, _FIELDS - 2))])
    row = np.repeat(np.arange(len(cells)), [len(kinds) for kinds, _ in found])
    work = Work(row, tuple(names), np.array(kind, dtype=np.int64), *numbers.T)
    return work, np.array([bool(kinds) for kinds, _ in found], dtype=bool)


@lru_cache(maxsize=4096)
def _layers(cell: str) -> tuple[tuple[Kind, ...], Floats]:
    """The kind of each layer in a cell, and its operators, FLOPs, bytes, ns and share of unknown work."""
    try:
        said = json.loads(cell)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, list) or len(said) > _MOST_LAYERS:
        raise InconclusiveError("a row's work is not a list of layers", remedy=_REMEDY)
    kinds, numbers = [], []
    for layer in said:
        if not isinstance(layer, list) or len(layer) != _FIELDS:
            raise InconclusiveError("a layer of a row's work has other fields", remedy=_REMEDY)
        kinds.append((clean(str(layer[0])), clean(str(layer[1]))))
        ns = float("nan") if layer[5] is None else _number(layer[5])
        numbers.append([*map(_number, layer[2:5]), ns, min(_number(layer[6]), 1.0)])
    return tuple(kinds), np.array(numbers, dtype=np.float64).reshape(-1, _FIELDS - 2)


_REMEDY: Final = "write the table with: tracekit dataset"


def _number(value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not isfinite(value)
        or not 0 <= value <= _LARGEST
    ):
        raise InconclusiveError("a layer's work is not a number of 0 or more", remedy=_REMEDY)
    return float(value)
