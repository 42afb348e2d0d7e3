"""Steps that nobody marked as such: a range of the user's that is repeated and whose name says that it is a step.

The rule (DEFINITIONS §1), for ranges on one thread whose names are equal but for their digits:

* the name says so (`facts.step_names`), and those inside another one of the same name are left out;
* at least three of them launch device work on their own thread (without a device: hold operators), none overlaps
  another partly, and together they cover at least half of all that the device did, by the time of the launch;
* between the first and the last one most of the forward and backward pass lies in them, as far as it is marked: a
  range `step` around the optimizer alone is none.

Of several such names the one that covers the most work is the step; of those that cover the same, the outermost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tracekit.facts.stack_names import PHASE_MARKERS
from tracekit.facts.step_names import STEP_RANGE
from tracekit.spans import BoolArray, Int64Array
from tracekit.trace import Trace

__all__ = ["InferredSteps", "inferred_steps"]

_FEWEST: Final = 3
"""Two ranges may be one for the warm-up and one for the run."""

_MOST_CANDIDATES: Final = 16
"""The longest are looked at: what covers half of the work is among them."""

_PASSES: Final = tuple(
    pattern
    for pattern, phase, layer in PHASE_MARKERS
    if phase in ("forward", "backward") and layer != "<loss>"
)

_GROUP: Final = ("process_id", "thread_id", "family")


@dataclass(frozen=True, slots=True, eq=False)
class InferredSteps:
    """What the steps are inferred from (`source`: of a range its name, runs of digits as #, where they differ), how that
    is `told`, and their `spans`: `name`, `start`, `duration` in ns. `periods`: each ends where another one begins.
    """

    source: str
    told: str
    spans: pl.DataFrame
    periods: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """What the device did: when and on which thread (process, thread) it was launched, and for how long it ran."""

    at: Int64Array
    duration: Int64Array
    thread: pl.DataFrame  # process_id, thread_id; null where the launch is unknown


def inferred_steps(trace: Trace, rows: pl.DataFrame, launched: Int64Array) -> InferredSteps | None:
    """The steps of a trace that marks none, from its ranges; None when no range is one.

    `rows` are all activities, `launched` the time at which each was launched.
    """
    ranges = _candidates(trace)
    if ranges is None or not rows.height:
        return None
    work = _Work(launched, rows["duration"].to_numpy(), _threads(trace, rows))
    order = ranges.group_by(_GROUP).agg(pl.col("duration").sum().alias("total"))
    order = order.sort("total", *_GROUP, descending=[True, False, False, False]).head(_MOST_CANDIDATES)
    best: tuple[tuple[int, int, int], pl.DataFrame] | None = None
    for group in order.select(_GROUP).rows():
        spans = ranges.filter(
            (pl.col("process_id") == group[0])
            & (pl.col("thread_id") == group[1])
            & (pl.col("family") == group[2])
        )
        covered = _covered(trace, spans, work)
        if covered is None:
            continue
        merit = covered, -int(spans["depth"].sum()) // spans.height, int(spans["duration"].sum())
        if best is None or merit > best[0]:
            best = merit, spans
    if best is None:
        return None
    spans = best[1].select(pl.col("name").cast(pl.String), "start", "duration")
    name = _shown(spans["name"])
    return InferredSteps(name, f'inferred from the range "{name}"', spans)


def _candidates(trace: Trace) -> pl.DataFrame | None:
    """Ranges whose names say that they are steps, in order of time on each thread, less those inside another one.

    Those that overlap partly, and those that are too few, are left out; None when none is left.
    """
    known = trace.host.select("kind", "name").filter(pl.col("kind") == "annotation").select("name").unique()
    text = pl.col("name").cast(pl.String)
    known = known.filter(text.str.contains(STEP_RANGE)).with_columns(
        text.str.replace_all(r"[\W\d_]+", " ").str.strip_chars().str.to_lowercase().alias("family")
    )
    if not known.height:
        return None
    ranges = (
        trace.host.select("kind", "name", "process_id", "thread_id", "depth", "start", "duration")
        .filter((pl.col("kind") == "annotation") & pl.col("name").is_in(known["name"].implode()))
        .join(known, on="name", how="left", maintain_order="left")
        .with_columns((pl.col("start") + pl.col("duration")).alias("end"))
    )
    before = pl.col("end").cum_max().shift(1).over(_GROUP)
    ranges = ranges.sort(*_GROUP, "start", "end", descending=[False] * 4 + [True])
    ranges = ranges.with_columns(before.alias("before")).filter(
        pl.col("before").is_null() | (pl.col("end") > pl.col("before"))
    )
    apart = (pl.col("before").is_null() | (pl.col("start") >= pl.col("before"))).all().over(_GROUP)
    ranges = ranges.filter(apart & (pl.len().over(_GROUP) >= _FEWEST))
    return ranges if ranges.height else None


def _threads(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    launch = trace.host.select(pl.col("span_id").alias("launch_id"), "process_id", "thread_id")
    joined = rows.select("launch_id").join(launch, on="launch_id", how="left", maintain_order="left")
    return joined.select("process_id", "thread_id")


def _covered(trace: Trace, spans: pl.DataFrame, work: _Work) -> int | None:
    """The time of the work that was launched in these ranges, in ns; None when they are no steps."""
    starts, ends = spans["start"].to_numpy(), spans["end"].to_numpy()
    inside, which = _inside(starts, ends, work.at)
    covered = int(work.duration[inside].sum())
    if 2 * covered < int(work.duration.sum()):
        return None
    own = (pl.col("process_id") == spans["process_id"][0]) & (pl.col("thread_id") == spans["thread_id"][0])
    by_them = (
        work.thread.select((own | pl.col("thread_id").is_null()).fill_null(value=False))
        .to_series()
        .to_numpy()
    )
    if np.unique(which[inside & by_them]).size < _FEWEST:
        return None
    passes = _passes(trace, int(starts[0]), int(ends[-1]))
    held, _ = _inside(starts, ends, passes)
    return None if 2 * int(held.sum()) < passes.size else covered


def _inside(starts: Int64Array, ends: Int64Array, times: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Whether each time lies in one of the ranges, which are apart, and in which."""
    which = np.searchsorted(starts, times, side="right") - 1
    inside: BoolArray = (which >= 0) & (times < ends[np.maximum(which, 0)])
    return inside, which


def _passes(trace: Trace, low: int, high: int) -> Int64Array:
    """When what belongs to a forward or backward pass starts, in [low, high): numbered operators and marked ranges."""
    host = trace.host.select("kind", "name", "start", "sequence").filter(
        (pl.col("start") >= low) & (pl.col("start") < high)
    )
    numbered = host.filter((pl.col("kind") == "op") & (pl.col("sequence") >= 0))["start"]
    ranges = host.filter(pl.col("kind") == "annotation")
    names = ranges.select("name").unique()
    text = pl.col("name").cast(pl.String)
    marks = names.filter(pl.any_horizontal(text.str.contains(pattern) for pattern in _PASSES))
    marked = ranges.filter(pl.col("name").is_in(marks["name"].implode()))["start"]
    return np.concatenate([numbered.to_numpy(), marked.to_numpy()])


def _shown(names: pl.Series) -> str:
    """One name for all of them."""
    if names.n_unique() == 1:
        return str(names[0])
    return str(names.head(1).str.replace_all(r"\d+", "#")[0])
