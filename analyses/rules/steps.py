"""Rules about steps: waiting for data, variation, a part of the step in which the device does little."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.rules.idle_time import caused_idle, told_elsewhere
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded, by_share
from tracekit.analyses.scope import Scope
from tracekit.analyses.steps import Steps
from tracekit.facts.units import format_ns, format_share
from tracekit.intervals import IntervalSet
from tracekit.spans import BoolArray, Int64Array

__all__ = ["DATA_LOADING", "LOW_PART_OF_STEP", "STEP_VARIABILITY"]

# -- data_loading -----------------------------------------------------------------------------------

LEAST_SHARE: Final = 0.05
"""A loader that keeps up answers from its queue in well under a twentieth of a step."""

_SINGLE_PROCESS: Final = "_SingleProcessDataLoaderIter"
_PINNED: Final = ", pin_memory=True and copies with non_blocking=True"
_ELSEWHERE: Final = ", and move decoding and augmentation out of the loop (cached, batched or on the device)."
_IN_PROCESS: Final = Advice(
    f"The loader runs in the training process: set num_workers > 0, persistent_workers=True{_PINNED}.",
    processor="The loader runs in the training process: set num_workers > 0, persistent_workers=True.",
    flags=("--workers", "--pin-memory"),
)


def data_loading(scope: Scope, result: Steps) -> Evidence | None:
    """The step waits for its next batch.

    Only time of the data loader in which no device worked and no runtime call ran counts (the composition of
    `analyses.steps`), so loading that is hidden costs nothing; or the idle time that loading causes
    (`analyses.idle.causes`), where that is more, since stacks show loading that no range marks.

    Fires when unhidden data loading takes `LEAST_SHARE` of the steps or more.
    """
    loading = int(result.composition.filter(pl.col("part") == "data_loader")["total_ns"].sum())
    total = int(result.composition["total_ns"].sum())
    idle = caused_idle(scope, "data_loading")
    loading = max(loading, min(idle.ns, total))
    if not total or loading / total < LEAST_SHARE:
        return None
    names = scope.host("annotation")["name"].cast(pl.String)
    single = bool(names.str.contains(_SINGLE_PROCESS, literal=True).any())
    steps = result.table.height
    each = (
        f" in {steps} step{'s' if steps != 1 else ''}, {format_ns(loading / steps)} a step," if steps else ""
    )
    where = "" if scope.on_cpu else " while no device worked"
    return Evidence(
        title=f"Data loading takes {format_share(loading / total)} of the {'steps' if steps else 'time'}",
        text=f"{format_ns(loading)} of {format_ns(total)}{each} went to the data loader{where}{idle.where}.",
        ns_at_stake=bounded(loading, scope),
        severity=by_share(loading, total),
        advice=_IN_PROCESS if single else None,
    )


DATA_LOADING = Rule(
    id="data_loading",
    analysis="steps",
    evidence=data_loading,
    advice=Advice(
        f"Raise num_workers or prefetch_factor, keep persistent_workers=True{_PINNED}{_ELSEWHERE}",
        processor=f"Raise num_workers or prefetch_factor, keep persistent_workers=True{_ELSEWHERE}",
        plain="Load and prepare data in other threads, ahead of time, into pinned memory.",
        flags=("--workers", "--pin-memory"),
    ),
    answers=frozenset({"input-bound"}),
    pattern="data loading",
)


# -- step_variability -------------------------------------------------------------------------------

STEP_VARIABILITY_LEAST_STEPS: Final = 4
"""Of three steps nobody can say which one is the odd one."""
MOST_VARIATION: Final = 0.10
"""A quiet machine repeats a step within a few percent."""


def step_variability(scope: Scope, result: Steps) -> Evidence | None:
    """Step times vary, or single steps take much longer than the others.

    At stake: by how much the slow outliers exceed the median step, summed; without outliers the same over all steps that
    are slower than the median.

    Fires with `STEP_VARIABILITY_LEAST_STEPS` steps or more when one is slow beyond the others, or all vary by `MOST_VARIATION`.
    """
    if result.table.height < STEP_VARIABILITY_LEAST_STEPS or result.median_ns is None:
        return None
    slow = result.table.filter(pl.col("outlier") & (pl.col("time_ns") > result.median_ns))
    varied = result.variation is not None and result.variation > MOST_VARIATION
    if not slow.height and not varied:
        return None
    chosen = slow if slow.height else result.table
    at_stake = bounded(int((chosen["time_ns"] - result.median_ns).clip(lower_bound=0).sum()), scope)
    listed = ", ".join(
        f"{name} {format_ns(time)}"
        for name, time in slow.sort("time_ns", descending=True).select("name", "time_ns").head(3).rows()
    )
    return Evidence(
        title=f"Step times vary by {format_share(result.variation)}"
        + (f", {slow.height} of {result.table.height} steps are slow" if slow.height else ""),
        text=f"Median {format_ns(result.median_ns)}, 95th percentile {format_ns(result.p95_ns)}"
        + (f"; slowest: {listed}." if listed else "."),
        ns_at_stake=at_stake,
        severity=by_share(at_stake, int(result.table["time_ns"].sum())),
    )


STEP_VARIABILITY = Rule(
    id="step_variability",
    analysis="steps",
    evidence=step_variability,
    advice=Advice(
        "Compare a slow step with a median one (--step): data loading, evaluation, checkpoints, logging, "
        "garbage collection and changing input shapes (recompilation, cudnn.benchmark) are the usual "
        "causes; pad or bucket inputs.",
        plain=(
            "Compare a slow step with a median one (--step): input and output, logging, allocation, other "
            "processes on the machine and inputs of changing size are the usual causes."
        ),
    ),
)


# -- low_part_of_step -------------------------------------------------------------------------------

CHUNKS: Final = 30
"""NVIDIA's number of chunks."""
LOW: Final = 0.5
"""NVIDIA's threshold: a chunk that is used less is low."""
LOW_PART_OF_STEP_LEAST_STEPS: Final = 3
"""Of two steps nobody can say what they have in common."""
LEAST_CHUNKS: Final = 3
"""A tenth of the step: a shorter part is a gap, which the idle analysis names."""
MOST_OF_STEP: Final = 0.5
"""When more is low, it is the step that is little used, not a part of it."""


def low_part_of_step(scope: Scope, result: Steps) -> Evidence | None:
    """The device is little used in the same part of each step, and well used in the rest.

    The expert rule `gpu_time_util` of Nsight Systems, for steps: as there, time is cut into 30 equal chunks and one used less than
    50 % is low; but it is each step that is cut, and a chunk's utilisation is that over all steps, so that what is said
    holds for the step and not for one moment of the recording. Unlike there, work that runs at once counts once. Where more than half of
    the step is low, `low_utilisation` says it; where synchronisation, data loading, allocation or compilation causes most of it, their
    own rules do. Looks at the busiest device.

    Fires with `LOW_PART_OF_STEP_LEAST_STEPS` steps when the low part has `LEAST_CHUNKS` chunks, and its idle time is `WARNING_SHARE` of the steps.
    """
    if scope.window != "steps" or result.table.height < LOW_PART_OF_STEP_LEAST_STEPS:
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


LOW_PART_OF_STEP = Rule(
    id="low_part_of_step",
    analysis="steps",
    evidence=low_part_of_step,
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
