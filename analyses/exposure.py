"""Exposed communication by what communicates and by the place in the step: exact sums over unions of intervals (DEFINITIONS §8)."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution.attribute import attributed
from tracekit.analyses.scope import Scope
from tracekit.facts.stack_names import PHASES
from tracekit.groups import groups, kept
from tracekit.intervals import EMPTY, IntervalSet
from tracekit.spans import Int64Array
from tracekit.trace import Schema, empty

__all__ = ["BINS", "POSITIONS", "exposed_by", "positions"]

BINS: Final = 50
"""Parts of a step."""

POSITIONS: Final[Schema] = {
    "position_ratio": pl.Float64,
    "mean_start_ns": pl.Float64,
    "phase": pl.String,
    "mean_communication_ns": pl.Float64,
    "mean_exposed_ns": pl.Float64,
}
"""Columns of `positions`."""


def exposed_by(scope: Scope, parts: pl.DataFrame, key: str) -> pl.DataFrame:
    """For each value of the key, a number, `communication_ns`, the time in which an activity of it runs, and `exposed_ns`, the part in
    which nothing computes on the same device.

    `parts` has the key, `device_id`, `start` and `end`. Times are those of the window, summed over devices. Activities with other
    keys are not subtracted, so values that communicate at once share their time, and the sum may exceed that of the device.
    """
    placed = groups(parts[key].to_numpy(), parts["device_id"].to_numpy())
    start, end = (parts[name].to_numpy().clip(scope.start, scope.end) for name in ("start", "end"))
    regions = [IntervalSet.of(start[rows], end[rows]) for rows in placed.rows()]
    of = np.repeat(np.arange(placed.size), [len(region) for region in regions])
    start = np.concatenate([EMPTY.starts, *(region.starts for region in regions)])
    end = np.concatenate([EMPTY.ends, *(region.ends for region in regions)])
    hidden = np.zeros(of.size, dtype=np.int64)
    for device in set(placed.keys[1].tolist()):
        mine = placed.keys[1][of] == device
        hidden[mine] = scope.intervals(device, "compute").coverage(start[mine], end[mine])
    took, exposed = np.zeros(placed.size, dtype=np.int64), np.zeros(placed.size, dtype=np.int64)
    np.add.at(took, of, end - start)
    np.add.at(exposed, of, end - start - hidden)
    found = groups(placed.keys[0])
    return pl.DataFrame(
        {key: found.keys[0], "communication_ns": found.sums(took), "exposed_ns": found.sums(exposed)},
        schema={key: parts.schema[key], "communication_ns": pl.Int64, "exposed_ns": pl.Int64},
    )


def positions(scope: Scope) -> pl.DataFrame:
    """How long the devices communicate in each fiftieth of a step, with the columns of `POSITIONS`; empty without steps.

    The steps of a device run from the first activity of each to that of the next, the last one to the end of the window. The times are
    means over steps and devices. `position_ratio` and `mean_start_ns` are where the part begins, `phase` is the phase that computes
    most in it, apart from the reduction of gradients; where none computes, that of the part before.
    """
    if scope.window != "steps":
        return empty(POSITIONS)
    columns = attributed(scope)[["class", "device_id", "phase", "start", "end"]]
    computing = kept(columns, columns["class"] == "compute")
    device_of, start, end = (computing[name].to_numpy() for name in ("device_id", "start", "end"))
    phase_of = computing["phase"].to_physical().to_numpy()
    length, communicates, exposed = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)
    by_phase = np.zeros((len(_WITHIN), BINS))
    steps = 0
    for device in scope.device_ids:
        low, high = _bins(scope, device)
        steps += low.shape[0]
        length += (high - low).sum(axis=0)
        communication = scope.intervals(device, "communication")
        communicates += _covered(communication, low, high)
        exposed += _covered(communication - scope.intervals(device, "compute"), low, high)
        for at, phase in enumerate(_WITHIN):
            mine = (device_of == device) & (phase_of == PHASES.index(phase))
            region = IntervalSet.of(start[mine], end[mine])
            by_phase[at] += _covered(region, low, high)
    if not steps:
        return empty(POSITIONS)
    most = pl.Series([_WITHIN[at] for at in by_phase.argmax(axis=0)]).set(
        pl.Series(by_phase.max(axis=0) == 0), None
    )
    return pl.DataFrame(
        {
            "position_ratio": np.arange(BINS) / BINS,
            "mean_start_ns": (np.cumsum(length) - length) / steps,
            "phase": most.forward_fill(),
            "mean_communication_ns": communicates / steps,
            "mean_exposed_ns": exposed / steps,
        },
        schema=POSITIONS,
    )


_WITHIN: Final = tuple(phase for phase in PHASES if phase != "communication")


def _bins(scope: Scope, device: int) -> tuple[Int64Array, Int64Array]:
    """Starts and ends of the parts of a device's steps: a row for each step, a column for each part."""
    mine = scope.activities.filter((pl.col("device_id") == device) & pl.col("step").is_not_null())
    begins = (
        mine.group_by("step")
        .agg(pl.col("start").min())["start"]
        .sort()
        .clip(scope.start, scope.end)
        .to_numpy()
    )
    ends = np.append(begins[1:], scope.end)[: begins.size]
    edges = begins[:, None] + (ends - begins)[:, None] * np.arange(BINS + 1) // BINS
    return edges[:, :-1], edges[:, 1:]


def _covered(region: IntervalSet, low: Int64Array, high: Int64Array) -> Int64Array:
    """How much of each part the region covers, over all steps."""
    covered: Int64Array = region.coverage(low.ravel(), high.ravel()).reshape(low.shape).sum(axis=0)
    return covered
