"""The runs of one side as one: sums over their kept steps, per device, in which each run weighs the same.

A run of more steps would else weigh more, and where runs differ, a change of the mixture would be taken for a change of the step. So the values of
a run are multiplied by a whole number, the larger the fewer its steps are: then sums stay exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.model import SIDE_STEPS, Side
from tracekit.digest import Digest
from tracekit.errors import UsageError
from tracekit.groups import at_rows

__all__ = ["Pool", "pool"]

_TEXTS: Final = ("kind", "category", "name", "operator", "shapes", "dtypes", "layer", "type", "phase")
_MOST_UNITS: Final = 1 << 20
_MOST_SUM: Final = 1 << 56
"""A weighted sum of step times stays below it; those of calls, which may run beside each other, then fit into 64 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """A side, and what its steps went to; times and counts are multiplied by `side.unit` over the devices of their run, in sums also by its weight."""

    side: Side
    layers: pl.DataFrame
    """As in a digest; of all runs."""
    leaves: pl.DataFrame
    """The texts of a digest's leaves with the sums `ns`, `calls`, `duration_ns`; `leaf` is the row."""
    values: pl.DataFrame
    """`at` (a kept step of any run, from 0), `leaf`, `ns`, without the weight."""
    weights: npt.NDArray[np.int64]
    """Of each kept step that of its process."""
    runs: npt.NDArray[np.int64]
    """Of each kept step its run, from 0."""
    places: npt.NDArray[np.int64]
    """Of each kept step its place in its process, from 0."""


def pool(
    digests: Sequence[Digest],
    kept: Sequence[npt.NDArray[np.bool_]],
    *,
    windows: bool,
    runs: Sequence[int] | None = None,
) -> Pool:
    """One side from its processes. `kept` says which steps of each count; `windows`: all steps of a process are one. `runs`: how many
    processes each run has; without it all are one run.
    """
    unit = math.lcm(*(digest.facts.devices for digest in digests))
    if unit > _MOST_UNITS:
        devices = ", ".join(str(digest.facts.devices) for digest in digests)
        raise UsageError(
            f"runs on {devices} devices have no common measure", remedy="compare them one by one"
        )
    steps, rows, count, time = [], [], 0, 0
    texts, numbers = _texts(digests)
    counts = [1 if windows else int(keep.sum()) for keep in kept]
    weights = _weights(counts, unit * sum(int(one.steps["time_ns"].sum()) for one in digests))
    for run, (digest, keep, own, weight) in enumerate(zip(digests, kept, numbers, weights, strict=True)):
        told = digest.steps.with_columns(pl.lit(run, pl.Int64).alias("run"), pl.Series("kept", keep))
        steps.append(told.select(*SIDE_STEPS))
        counted = told.filter("kept").select("step", pl.lit(run, pl.Int64).alias("at"))
        if not windows:
            counted = counted.with_columns(pl.int_range(count, count + pl.len()).alias("at"))
        count += 1 if windows else counted.height
        scale = pl.when(digest.leaves["kind"] == "call").then(unit).otherwise(unit // digest.facts.devices)
        by_leaf = digest.leaves.select(scale.cast(pl.Int64).alias("weight"), own.alias("of_side"))
        rows.append(_scaled(digest.values.join(counted, on="step"), by_leaf))
        time += weight * int(told.filter("kept")["time_ns"].sum())
    values, made = pl.concat(rows), pl.concat(steps)
    of_steps = np.repeat(np.array(weights, dtype=np.int64), counts)
    leaves = texts.with_columns(*_sums(values, of_steps, texts.height))
    facts = tuple(digest.facts for digest in digests)
    side = Side(
        name=", ".join(dict.fromkeys(each.name for each in facts)),
        facts=facts,
        steps=made,
        has_steps=all(digest.has_steps for digest in digests),
        time_ns=time,
        count=count,
        weight=int(of_steps.sum()),
        unit=unit,
    )
    layers = pl.concat([digest.layers for digest in digests]).unique(
        "path", keep="first", maintain_order=True
    )
    run_of = np.repeat(np.arange(len(runs or [0])), runs or [len(digests)])
    of_runs = np.unique(np.repeat(run_of, counts), return_inverse=True)[1]  # a run without a step is none
    places = np.concatenate([np.arange(each) for each in counts])
    return Pool(side, layers, leaves, values.select("at", "leaf", "ns"), of_steps, of_runs, places)


def _weights(counts: Sequence[int], time: int) -> list[int]:
    """By how much the steps of each run count, so that all runs count alike: exactly, or nearly if numbers would be too large."""
    there = [count for count in counts if count]
    if not there:
        return [1] * len(counts)
    common, most = math.lcm(*there), max(1, _MOST_SUM // max(1, time)) * min(there)
    return [max(1, round(min(common, most) / count)) if count else 1 for count in counts]


def _sums(values: pl.DataFrame, weights: npt.NDArray[np.int64], leaves: int) -> Iterator[pl.Series]:
    """The sums of the columns of values for each leaf."""
    leaf, weight = values["leaf"].to_numpy(), weights[values["at"].to_numpy()]
    for name in ("ns", "calls", "duration_ns"):
        sums = np.zeros(leaves, dtype=np.int64)
        np.add.at(sums, leaf, values[name].to_numpy() * weight)
        yield pl.Series(name, sums)


def _scaled(values: pl.DataFrame, by_leaf: pl.DataFrame) -> pl.DataFrame:
    """The values with the leaves of the side, per device of the side's unit."""
    scale = at_rows(by_leaf["weight"], values["leaf"])
    return values.select(
        "at",
        at_rows(by_leaf["of_side"], values["leaf"]).alias("leaf"),
        *(values[column] * scale for column in ("ns", "calls", "duration_ns")),
    )


def _texts(digests: Sequence[Digest]) -> tuple[pl.DataFrame, list[pl.Series]]:
    """The distinct leaves of all digests, and for each digest the numbers of its own."""
    if len(digests) == 1:
        return digests[0].leaves, [digests[0].leaves["leaf"]]
    every = pl.concat([digest.leaves.select(_TEXTS) for digest in digests])
    texts = every.unique(maintain_order=True).with_row_index("leaf").cast({"leaf": pl.Int64})
    numbers = every.join(texts, on=_TEXTS, how="left", nulls_equal=True, maintain_order="left")["leaf"]
    heights = [digest.leaves.height for digest in digests]
    starts = np.cumsum([0, *heights[:-1]])
    return texts, [numbers.slice(int(start), height) for start, height in zip(starts, heights, strict=True)]
