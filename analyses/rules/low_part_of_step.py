"""The device is little used in the same part of each step, and well used in the rest.

The expert rule `gpu_time_util` of Nsight Systems, for steps: as there, time is cut into 30 equal chunks and one used less than
50 % is low; but it is each step that is cut, and a chunk's utilisation is that over all steps, so that what is said
holds for the step and not for one moment of the recording. Unlike there, work that runs at once counts once. Where more than half of
the step is low, `low_utilisation` says it; where synchronisation, data loading, allocation or compilation causes most of it, their
own rules do. Looks at the busiest device.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.rules.idle_time import told_elsewhere
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded, by_share
from tracekit.analyses.scope import Scope
from tracekit.analyses.steps import Steps
from tracekit.facts.units import format_ns, format_share
from tracekit.intervals import IntervalSet
from tracekit.spans import BoolArray, Int64Array

__all__ = ["RULE"]

CHUNKS: Final = 30
"""NVIDIA's number of chunks."""
LOW: Final = 0.5
"""NVIDIA's threshold: a chunk that is used less is low."""
LEAST_STEPS: Final = 3
"""Of two steps nobody can say what they have in common."""
LEAST_CHUNKS: Final = 3
"""A tenth of the step: a shorter part is a gap, which the idle analysis names."""
MOST_OF_STEP: Final = 0.5
"""When more is low, it is the step that is little used, not a part of it."""


def evidence(scope: Scope, result: Steps) -> Evidence | None:
    """Fires with `LEAST_STEPS` steps when the low part has `LEAST_CHUNKS` chunks, and its idle time is `WARNING_SHARE` of the steps."""
    if scope.window != "steps" or result.table.height < LEAST_STEPS:
        return None
    busiest = max(scope.device_ids, key=lambda device: (scope.intervals(device).measure, -device))
    edges = _edges(result.table)
    used, length = _profile(scope.intervals(busiest), edges)
    low = used < LOW * length
    begin, stop = _longest(low)
    total = int(length.sum())
    if stop - begin < LEAST_CHUNKS or low.sum() > MOST_OF_STEP * CHUNKS:
        return None
    idle = int((length - used)[begin:stop].sum())
    if idle < WARNING_SHARE * total:
        return None
    if told_elsewhere(scope, busiest, IntervalSet.of(edges[:, begin], edges[:, stop])):
        return None
    inside = used[begin:stop].sum() / length[begin:stop].sum()
    outside = (used.sum() - used[begin:stop].sum()) / (total - length[begin:stop].sum())
    steps, at_stake = result.table.height, bounded(idle, scope)
    return Evidence(
        title=f"The device is little used {_place(begin, stop)} of each step",
        text=f"From {100 * begin / CHUNKS:.0f} to {100 * stop / CHUNKS:.0f} % of the step it is busy {format_share(inside)} of the time, "
        f"in the rest {format_share(outside)}; {format_ns(idle / steps)} of each step of {format_ns(total / steps)} are idle there, over {steps} steps.",
        ns_at_stake=at_stake,
        severity=by_share(at_stake, total),
    )


def _edges(table: pl.DataFrame) -> Int64Array:
    """The bounds of the chunks: a row for each step, in ns."""
    start, length = table["span_start"].to_numpy(), table["span_ns"].to_numpy()
    edges: Int64Array = start[:, None] + length[:, None] * np.arange(CHUNKS + 1) // CHUNKS
    return edges


def _profile(busy: IntervalSet, edges: Int64Array) -> tuple[Int64Array, Int64Array]:
    """How long the device works in each chunk, and how long the chunks are, in ns over all steps."""
    covered = busy.coverage(edges[:, :-1].ravel(), edges[:, 1:].ravel())
    used: Int64Array = covered.reshape(-1, CHUNKS).sum(axis=0)
    lengths: Int64Array = np.diff(edges, axis=1).sum(axis=0)
    return used, lengths


def _longest(low: BoolArray) -> tuple[int, int]:
    """The longest run of low chunks; an empty one when none is."""
    begins = np.flatnonzero(low & np.append(True, ~low[:-1]))
    stops = np.flatnonzero(low & np.append(~low[1:], True)) + 1
    if not begins.size:
        return 0, 0
    most = int(np.argmax(stops - begins))
    return int(begins[most]), int(stops[most])


def _place(begin: int, stop: int) -> str:
    return "at the beginning" if begin == 0 else "at the end" if stop == CHUNKS else "in one part"


RULE = Rule(
    id="low_part_of_step",
    analysis="steps",
    evidence=evidence,
    runs="device",
    advice=Advice(
        "See what the host does there (tracekit idle --causes, tracekit view --html): waiting for data at"
        " the beginning, an optimizer that is not fused, values read back or logging at the end are the "
        "usual reasons.",
        plain=(
            "See what the host does there (tracekit idle --causes, tracekit view --html): waiting for data at"
            " the beginning, values copied back, output or logging at the end are the usual reasons."
        ),
    ),
    restates=True,
)
