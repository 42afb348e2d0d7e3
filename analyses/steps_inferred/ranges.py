"""Steps inferred from ranges: a repeated user range with a name that is that of a step.

The rule (DEFINITIONS §1), for ranges on one thread whose names differ only in digits:

* the name is that of a step (`facts.step_names`), and ranges inside another one of the same name are left out;
* at least three of them launch device work on their own thread (without a device: contain operators), none overlaps
  another partly, and together they cover at least half of the device's work, by the time of the launch;
* between the first and the last one, most of the forward and backward pass lies in them, as far as it is marked: a
  range `step` around the optimizer alone is not a step.

If several names qualify, the one that covers the most work is the step; among equals, the outermost.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.steps_inferred.sequence import passes
from tracekit.analyses.steps_inferred.stretches import FEWEST
from tracekit.facts.step_names import STEP_RANGE
from tracekit.groups import at_rows, kept, text_codes
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array
from tracekit.trace import Trace

__all__ = ["InferredSteps", "inferred_steps"]

_MOST_FAMILIES: Final = 16
"""Only so many of the longest ranges are examined, since a range that covers half of the work is among them."""

_NEVER: Final = -(1 << 63)

_FAMILY: Final = ("process_id", "thread_id", "family")


class InferredSteps(msgspec.Struct, frozen=True, eq=False):
    """Inferred steps: their `source` (the name of a range, with # for runs of digits if these differ), the `label` that
    says so, and their `spans` (`name`, `start`, `duration` in ns). `periods`: each ends at the start of the next.
    """

    source: str
    label: str
    spans: pl.DataFrame
    periods: bool = False


def inferred_steps(trace: Trace, rows: pl.DataFrame, launched: Int64Array) -> InferredSteps | None:
    """The steps inferred from ranges; None if no range is a step. `rows` are all activities, `launched` the launch time
    of each.
    """
    ranges = _families(trace)
    if not ranges.height or not rows.height:
        return None
    launch = trace.host.select(pl.col("span_id").alias("launch_id"), "process_id", "thread_id")
    work = rows[["launch_id", "duration"]].join(launch, on="launch_id", how="left", maintain_order="left")
    work = work.with_columns(pl.Series("at", launched))
    marked = passes(trace.host)
    order = ranges.group_by(_FAMILY).agg(pl.sum("duration").alias("total"))
    order = order.sort("total", *_FAMILY, descending=[True, False, False, False]).head(_MOST_FAMILIES)
    families = order.join(ranges, on=_FAMILY, maintain_order="left_right")
    groups = [spans for _, spans in families.group_by(_FAMILY, maintain_order=True)]
    steps = [(covered, spans) for spans in groups if (covered := _covered(spans, work, marked)) is not None]
    if not steps:
        return None
    _, spans = max(
        steps,
        key=lambda each: (each[0], -each[1]["depth"].sum() // each[1].height, each[1]["duration"].sum()),
    )
    spans = spans.select(pl.col("name").cast(pl.String), "start", "duration")
    names = spans["name"]
    name = str(names[0] if names.n_unique() == 1 else names.head(1).str.replace_all(r"\d+", "#")[0])
    return InferredSteps(name, f'inferred from the range "{name}"', spans)


def _families(trace: Trace) -> pl.DataFrame:
    """Ranges with the name of a step, in order of time on each thread, without ranges inside others.

    Ranges that overlap partly, and groups of too few ranges, are left out.
    """
    host = trace.host[["kind", "name", "process_id", "thread_id", "depth", "start", "duration"]]
    ranges = kept(host, host["kind"] == "annotation")
    ranges = kept(ranges, NameTable(ranges["name"]).matching(STEP_RANGE))
    if not ranges.height:
        return ranges
    of, names = text_codes(ranges["name"])
    family = pl.col("name").str.replace_all(r"[\W\d_]+", " ").str.strip_chars().str.to_lowercase()
    families = pl.DataFrame({"name": names}).select(family.alias("family"))["family"]
    ranges = (
        ranges.hstack([at_rows(families, of), (ranges["start"] + ranges["duration"]).alias("end")])
        .sort(*_FAMILY, "start", "end", descending=[False] * 4 + [True])
        .with_columns(pl.col("end").cum_max().shift(1, fill_value=_NEVER).over(_FAMILY).alias("before"))
        .filter(pl.col("end") > pl.col("before"))
    )
    apart = (pl.col("start") >= pl.col("before")).all().over(_FAMILY)
    return ranges.filter(apart & (pl.len().over(_FAMILY) >= FEWEST))


def _covered(spans: pl.DataFrame, work: pl.DataFrame, marked: Int64Array) -> int | None:
    """The time of the work launched in these ranges, in ns; None if they are not steps. `marked` has the starts of
    parts of forward and backward passes.
    """
    starts, ends = spans["start"].to_numpy(), spans["end"].to_numpy()
    inside, which = _inside(starts, ends, work["at"].to_numpy())
    duration = work["duration"].to_numpy()
    covered = int(duration[inside].sum())
    own = (pl.col("process_id") == spans["process_id"][0]) & (pl.col("thread_id") == spans["thread_id"][0])
    theirs = work.select((own | pl.col("thread_id").is_null()).fill_null(value=False)).to_series().to_numpy()
    between = marked[(marked >= starts[0]) & (marked < ends[-1])]
    held, _ = _inside(starts, ends, between)
    if (
        2 * covered < int(duration.sum())
        or np.unique(which[inside & theirs]).size < FEWEST
        or 2 * int(held.sum()) < between.size
    ):
        return None
    return covered


def _inside(starts: Int64Array, ends: Int64Array, times: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Whether each time lies in one of the ranges, which do not overlap, and in which."""
    which = np.searchsorted(starts, times, side="right") - 1
    inside: BoolArray = (which >= 0) & (times < ends[np.maximum(which, 0)])
    return inside, which
