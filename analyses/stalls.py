"""Without a device: calls, and the code between them, that stand still in one step, since something else has the processors."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.scope import Scope, once, step_spans
from tracekit.facts.units import NS_PER_MS
from tracekit.groups import any_known, are_known, at_rows, kept
from tracekit.intervals import IntervalSet
from tracekit.trace import Schema, empty, one_of

__all__ = ["code_stalls", "longest_between", "stalled_ns", "stalled_within", "stalls"]

LEAST_STEPS: Final = 2
SURE_STEPS: Final = 3
"""Of two steps, one may be the first of its kind: both must hold stalls then."""
LONGER: Final = 3
"""A call that takes this many times its usual time, and `STALL_NS` more, does not vary: it stood still."""
STALL_NS: Final = NS_PER_MS
"""An operating system gives a processor away for some ms at a time."""
LEAST_OPERATORS: Final = 3
"""A stall of one operator may be its own; those of several have a cause in common."""
LONGEST: Final = 2
"""Code between operators counts up to this many times the longest stall of an operator: longer code is the program's own."""
LARGER: Final = 1.5
"""Without shapes, a step may have larger inputs if half of its operators' time, as it usually is, takes this many times as long."""
_CODE: Final = ("python", "host_code")
_STALLS: Final[Schema] = {
    **dict.fromkeys(("activity_id", "call"), pl.Int64),
    "name": pl.String,
    **dict.fromkeys(("step", "start", "ns"), pl.Int64),
    **dict.fromkeys(("usual", "more"), pl.Float64),
}
"""Columns of `stalls`."""


def stalls(scope: Scope) -> pl.DataFrame:
    """The stretches that stood still: `activity_id` and `call` (null between operators), `name`, `step`, `start`, `ns`, `usual`, `more`.

    A stretch of an operator (its self time, `ns`) is compared with the `usual` time of the one that has the same place among
    those of its name and shapes in the other steps: the median, the lower one of an even number. No Python runs in such a
    stretch, so it stands still only if the operating system gives the processor to something else. Collectives do not count.
    Where operators stall, the code between the same two operators counts as well, under the `name` of the next one. Where
    shapes were recorded, what has none does not count; where they were not, no step counts in which most of the operators'
    time is slower, since its inputs may be larger.

    Empty unless `LEAST_OPERATORS` operators stall; of two steps, in each.
    """
    return once(scope, _stalls)


def stalled_ns(scope: Scope) -> int:
    """What the stretches that stood still take more than usual, in ns; at most the window."""
    return min(round(float(stalls(scope)["more"].sum())), scope.duration) if scope.on_cpu else 0


def code_stalls(scope: Scope) -> int:
    """The part of it between operators, in ns."""
    return round(float(stalls(scope).filter(pl.col("activity_id").is_null())["more"].sum()))


def longest_between(scope: Scope) -> float:
    """Up to this time in ns, code between operators may have stood still in this run; 0 if no operator stalls."""
    return _most_between(stalls(scope))


def stalled_within(scope: Scope, region: IntervalSet) -> int:
    """The part of it that lies in a region, in ns."""
    rows = stalls(scope)
    inside = region.coverage(rows["start"].to_numpy(), (rows["start"] + rows["ns"]).to_numpy()) > 0
    return round(float(rows.filter(pl.Series(inside, dtype=pl.Boolean))["more"].sum()))


def _stalls(scope: Scope) -> pl.DataFrame:
    if not scope.on_cpu or scope.window != "steps":
        return empty(_STALLS)
    spans = step_spans(scope)
    compared = _compared(_operators(scope), spans)
    larger = _larger(compared)
    stalled = _longer(compared, spans).filter(~pl.col("step").is_in(larger))
    by_step = (
        stalled.group_by("step").agg(pl.col("name").n_unique()).filter(pl.col("name") >= LEAST_OPERATORS)
    )
    several = stalled["name"].n_unique() >= LEAST_OPERATORS
    if not several or (spans.height < SURE_STEPS and by_step.height < spans.height):
        return stalled.clear()
    between = _longer(_compared(_between(scope), spans), spans)
    between = between.filter(~pl.col("step").is_in(larger) & (pl.col("more") <= _most_between(stalled)))
    return pl.concat([stalled, between])


def _most_between(stalled: pl.DataFrame) -> float:
    return LONGEST * float(stalled.drop_nulls("activity_id")["more"].max() or 0)  # type: ignore[arg-type]


def _compared(rows: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The rows (`activity_id`, `call`, `before`, `name`, `shapes`, `start`, `ns`) with their `step`, what the same `usual`ly takes, and in
    how many `steps` it is.
    """
    rows = rows.sort("start").with_columns(
        pl.Series(
            "step",
            np.searchsorted(spans["span_start"].to_numpy(), rows["start"].sort().to_numpy(), side="right"),
        )
    )
    rows = rows.with_columns(pl.int_range(pl.len()).over("step", "before", "name").alias("place"))
    same = ("before", "name", "shapes", "place")
    usual = pl.col("ns").quantile(0.5, interpolation="lower").over(same)
    return rows.with_columns(usual.alias("usual"), pl.len().over(same).alias("steps"))


def _larger(compared: pl.DataFrame) -> list[int]:
    """The steps that may have larger inputs, if shapes do not tell."""
    if any_known(compared["shapes"]):
        return []
    slower = pl.col("usual").filter(pl.col("ns") > LARGER * pl.col("usual")).sum()
    by_step = compared.group_by("step").agg((2 * slower >= pl.col("usual").sum()).alias("larger"))
    return by_step.filter("larger")["step"].to_list()


def _longer(rows: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Those of the compared rows that take far longer than the same in other steps."""
    return rows.filter(
        (pl.col("steps") >= min(max(spans.height, LEAST_STEPS), SURE_STEPS))
        & (pl.col("ns") > LONGER * pl.col("usual"))
        & (pl.col("ns") > pl.col("usual") + STALL_NS)
    ).select(
        "activity_id",
        "call",
        pl.col("name").cast(pl.String),
        "step",
        "start",
        "ns",
        "usual",
        (pl.col("ns") - pl.col("usual")).alias("more"),
    )


def _operators(scope: Scope) -> pl.DataFrame:
    rows = scope.activities.filter(pl.col("class") != "communication")
    rows = rows.select(
        "activity_id",
        pl.col("launch_id").alias("call"),
        pl.lit("").alias("before"),
        "name",
        at_rows(scope.trace.host["shapes"], rows["launch_id"]).alias("shapes"),
        "start",
        (pl.col("end") - pl.col("start")).alias("ns"),
    )
    shapes = rows["shapes"]
    return kept(rows, are_known(shapes)) if any_known(shapes) else rows


def _between(scope: Scope) -> pl.DataFrame:
    """The stretches of code between two operators."""
    pieces = idle_causes(scope).pieces.filter(one_of("cause", *_CODE))
    names = scope.activities[["activity_id", "name", "start", "end"]].sort("start")
    after = names.select(
        pl.col("activity_id").alias("ended_by"), "name", pl.col("name").shift(1).alias("before")
    )
    gaps = pieces.group_by("gap_id").agg(
        pl.col("start").min(), pl.col("ended_by").first(), pl.col("duration_ns").sum().alias("ns")
    )
    return gaps.join(after, on="ended_by").select(
        *(pl.lit(None, pl.Int64).alias(name) for name in ("activity_id", "call")),
        pl.col("before").cast(pl.String),
        "name",
        pl.lit(None, scope.trace.host["shapes"].dtype).alias("shapes"),
        "start",
        "ns",
    )
