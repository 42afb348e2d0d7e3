"""Rules about steps: waiting for data, variation, a part of the step in which the device does little."""

from __future__ import annotations

import re
from math import ceil
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.parts import loader_ns
from tracekit.analyses.result import has_host_work
from tracekit.analyses.rules.idle_processors import COMPARED_STEPS
from tracekit.analyses.rules.idle_time import (
    CausedIdle,
    caused_idle,
    covered_by_other_rules,
    idle_in,
    mostly_caused,
)
from tracekit.analyses.rules.rule import (
    RECORD_HOST,
    WARNING_SHARE,
    Advice,
    Evidence,
    Rule,
    bounded,
    by_share,
    longest,
)
from tracekit.analyses.scope import Scope
from tracekit.analyses.start import split_start
from tracekit.analyses.steps import DATA_LOADER, Steps
from tracekit.facts.idle_names import DATA_OPERATOR
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.groups import kept
from tracekit.intervals import IntervalSet
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array

__all__ = ["DATA_LOADING", "LOW_PART_OF_STEP"]

# -- data_loading -----------------------------------------------------------------------------------

LEAST_SHARE: Final = 0.05
"""A loader that keeps up delivers a batch from its queue in much less than a twentieth of a step."""

FEW_PART: Final = 0.9
"""If this part of the loading lies in half of the steps or fewer, a mean step says nothing."""

_SINGLE_PROCESS: Final = "_SingleProcessDataLoaderIter"
_PINNED: Final = "\n[pageable] Set pin_memory=True and copy with non_blocking=True."
_ELSEWHERE: Final = " and move decoding and augmentation out of the loop (cached, batched or on the device)."
_WORKERS: Final = (
    "[training] Set num_workers > 0 and persistent_workers=True: the loader runs in the main process.{enough}\n"
    "[!training] Set num_workers > 0 to prepare the next input meanwhile: the loader runs in the main process.{enough} Prepare "
    "identical inputs only once."
)
_MOST_WORKERS: Final = 64
"""So many cores have few machines: the work itself has to become less."""
_IN_FEW: Final = Advice(
    "See what is loaded in these steps. If an epoch begins there, persistent_workers=True keeps the workers alive; a larger "
    "prefetch_factor makes up for single slow batches.",
    plain="See what is loaded in these steps, and load it earlier, in another thread.",
)
_PINS: Final = Advice(
    "Let the loader pin them in a thread of its own (DataLoader(pin_memory=True)), or copy into a few buffers that you pin once."
)
_LATER: Final = Advice(
    "This happens once, at the start of the recording, so more workers do not help. Record some steps later, or leave the "
    "first step out (--step)."
)


def data_loading(scope: Scope, result: Steps) -> Evidence | None:
    """The step waits for its next batch.

    Only the idle time of the device counts that loading causes (`analyses.idle.causes`), so hidden loading costs nothing.
    Before the first kernel of the recording, the device is empty and waits for what later steps hide: there it counts as much
    as in a median later step (`analyses.start`), and the rest is told as what it is. Without a device, the time of the loader
    counts with the operators in it (`analyses.parts`).

    Fires when data loading that nothing hides takes `LEAST_SHARE` of the window or more.
    """
    idle = caused_idle(scope, "data_loading")
    steps, total = result.table.height, scope.duration
    each, once = (
        split_start(scope, idle.columns("start", "duration_ns")) if steps else (np.array([idle.ns]), 0)
    )
    loading = loader_ns(scope) if scope.on_cpu else int(each.sum())
    if not total or max(loading, once) / total < LEAST_SHARE:
        return None
    if loading / total < LEAST_SHARE:
        return _only_at_start(scope, idle, once, each)
    names = scope.host("annotation")["name"].cast(pl.String)
    single = bool(names.str.contains(_SINGLE_PROCESS, literal=True).any())
    few = _few(each)
    spread = f" in {count_of(steps, 'step')}, {format_ns(loading / steps)} a step" if steps else ""
    if few:
        spread = f", nearly all of that in {few} of {count_of(steps, 'step')}"
    where = "" if scope.on_cpu else ", while no device worked"
    also = (
        f" Before the first kernel it took {format_ns(once)} more, because the device was empty when the recording began."
        if once >= LEAST_SHARE * loading
        else ""
    )
    pins = re.search(DATA_OPERATOR, idle.operator or "") is not None
    return Evidence(
        title=f"{'Pinning batches' if pins else 'Data loading'} takes {format_share(loading / total)} of the time",
        text=f"{'Pinning' if pins else 'The data loader'} took {format_ns(loading)} of {format_ns(total)}{spread}{where}{idle.where}.{also}",
        ns_at_stake=bounded(loading, scope),
        severity=by_share(loading, total),
        advice=_PINS if pins else _in_process(scope, total - loading) if single else _IN_FEW if few else None,
        stretches=idle.stretches,
    )


def _in_process(scope: Scope, rest: int) -> Advice:
    """The advice for a loader in the main process; `rest` is what the window takes without it, in ns, which workers have time for."""
    ranges = scope.host("annotation", columns=["name", "start", "duration"])
    ranges = kept(ranges, NameTable(ranges["name"]).matching(DATA_LOADER))
    start = ranges["start"].to_numpy()
    loading = IntervalSet.of(start, start + ranges["duration"].to_numpy()).clip(scope.start, scope.end)
    workers = ceil(loading.measure / max(rest, 1))
    enough = f" At least {workers} workers are needed to hide it." if 1 < workers <= _MOST_WORKERS else ""
    words = _WORKERS.format(enough=enough)
    return Advice(f"{words}{_PINNED}", processor=words, flags=("--workers", "--pin-memory"))


def _few(each: Int64Array) -> int:
    """In how many steps nearly all of this time lies; 0 if they are not few, or there are few in all."""
    sums = np.cumsum(np.sort(each)[::-1])
    count = int(np.searchsorted(sums, FEW_PART * sums[-1])) + 1
    return count if each.size >= COMPARED_STEPS and 2 * count <= each.size else 0


def _only_at_start(scope: Scope, idle: CausedIdle, once: int, each: Int64Array) -> Evidence:
    """The device waits for the first batch, and hardly for any other."""
    return Evidence(
        title=f"The device waits for the first batch {format_share(once / scope.duration)} of the time, and hardly at all for "
        "later ones",
        text=f"Before the first kernel of the recording, the device waited {format_ns(once + int(each[0]))} for the data "
        f"loader{idle.where}, and in a median later step {format_ns(float(np.median(each[1:])))}.",
        ns_at_stake=bounded(once, scope),
        severity="info",  # the run itself may be fine: only the profile must change
        advice=_LATER,
        stretches=idle.stretches,
    )


DATA_LOADING = Rule(
    id="data_loading",
    analysis="steps",
    evidence=data_loading,
    advice=Advice(
        f"Raise num_workers{_ELSEWHERE}{_PINNED}",
        processor=f"Raise num_workers{_ELSEWHERE}",
        plain="Load and prepare data in other threads, ahead of time, and into pinned memory.",
        flags=("--workers", "--pin-memory"),
    ),
    answers=frozenset({"input-bound"}),
    pattern="data loading",
)


# -- low_part_of_step -------------------------------------------------------------------------------

CHUNKS: Final = 30
"""NVIDIA's number of chunks."""
LOW: Final = 0.5
"""NVIDIA's threshold: a chunk with a lower utilisation is low."""
LOW_PART_OF_STEP_LEAST_STEPS: Final = 3
"""Two steps do not show a pattern."""
LEAST_CHUNKS: Final = 3
"""A tenth of the step: a shorter part is a gap, which the idle analysis reports."""
MOST_OF_STEP: Final = 0.5
"""If more is low, the utilisation of the whole step is low, not that of a part."""


def low_part_of_step(scope: Scope, result: Steps) -> Evidence | None:
    """The device has a low utilisation in the same part of each step, and a higher one in the rest.

    This is the expert rule `gpu_time_util` of Nsight Systems, for steps. As in NVIDIA's rule, there are 30 equal chunks, and
    a chunk with a utilisation below 50 % is low. But here the rule cuts each step into chunks, not the recording, and takes
    the utilisation of a chunk over all steps, so that the finding holds for the steps and not for one moment. Unlike
    NVIDIA's rule, simultaneous work counts once. If more than half of the step is low, `low_utilisation` reports it. If
    synchronisation, data loading, allocation or compilation causes most of it, their own rules do. The rule looks at the
    busiest device.

    Fires with `LOW_PART_OF_STEP_LEAST_STEPS` steps when the low part has `LEAST_CHUNKS` chunks, and its idle time is `WARNING_SHARE` of the steps.
    """
    if scope.window != "steps" or result.table.height < LOW_PART_OF_STEP_LEAST_STEPS:
        return None
    busiest = max(scope.device_ids, key=lambda device: (scope.intervals(device).measure, -device))
    used, length = _profile(scope.intervals(busiest), result.table)
    low = used < LOW * length
    begin, stop = _longest(low)
    total = int(length.sum())
    if stop - begin < LEAST_CHUNKS or low.sum() > MOST_OF_STEP * CHUNKS:
        return None
    idle = int((length - used)[begin:stop].sum())
    if idle < WARNING_SHARE * total:
        return None
    starts, ends = _edge(result.table, begin), _edge(result.table, stop)
    region = IntervalSet.of(starts, ends)
    if covered_by_other_rules(scope, busiest, region):
        return None
    inside = used[begin:stop].sum() / length[begin:stop].sum()
    outside = (used.sum() - used[begin:stop].sum()) / (total - length[begin:stop].sum())
    steps, at_stake = result.table.height, bounded(idle, scope)
    return Evidence(
        title=f"The device is mostly idle {_place(begin, stop)} of each step",
        text=f"It is busy {format_share(inside)} of the time from {100 * begin / CHUNKS:.0f} % to {100 * stop / CHUNKS:.0f} % "
        f"of the step, and {format_share(outside)} in the rest. It is idle there{idle_in(scope, busiest, region).where_in_code} for "
        f"{format_ns(idle / steps)} of a step of {format_ns(total / steps)} (mean of {steps} steps).",
        ns_at_stake=at_stake,
        waited_ns=at_stake,
        advice=_look(scope, busiest, region, _place(begin, stop)),
        stretches=longest(pl.DataFrame({"start": starts, "duration": ends - starts})),
    )


def _edge(table: pl.DataFrame, chunk: int) -> Int64Array:
    """Where this chunk begins in each step, in ns."""
    start, length = table["span_start"].to_numpy(), table["span_ns"].to_numpy()
    edge: Int64Array = start + length * chunk // CHUNKS
    return edge


def _profile(busy: IntervalSet, table: pl.DataFrame) -> tuple[Int64Array, Int64Array]:
    """The busy time of the device in each chunk and the duration of each chunk, in ns over all steps."""
    used, lengths = np.zeros(CHUNKS, dtype=np.int64), np.zeros(CHUNKS, dtype=np.int64)
    begin = _edge(table, 0)
    for chunk in range(CHUNKS):  # one at a time: of a million steps, all chunks would be gigabytes
        end = _edge(table, chunk + 1)
        used[chunk], lengths[chunk] = busy.coverage(begin, end).sum(), (end - begin).sum()
        begin = end
    return used, lengths


def _longest(low: BoolArray) -> tuple[int, int]:
    """The longest run of low chunks, from its first chunk to the one after its last; (0, 0) if no chunk is low."""
    begins = np.flatnonzero(low & np.append(True, ~low[:-1]))
    stops = np.flatnonzero(low & np.append(~low[1:], True)) + 1
    if not begins.size:
        return 0, 0
    most = int(np.argmax(stops - begins))
    return int(begins[most]), int(stops[most])


def _place(begin: int, stop: int) -> str:
    return "at the beginning" if begin == 0 else "at the end" if stop == CHUNKS else "in one part"


def _look(scope: Scope, device: int, region: IntervalSet, place: str) -> Advice | None:
    """The advice for the idle time in this place of the steps; None: the rule's own."""
    if not has_host_work(scope.trace):
        return RECORD_HOST
    if mostly_caused(scope, device, region, *_QUEUED):
        return _LAUNCHED
    return _USUAL.get(f"{place} of periods" if scope.periods and place == "at the end" else place)


_LOOK: Final = "See what the host does there (tracekit idle --causes, tracekit view --html)."
_USUAL: Final = {
    "at the beginning": Advice(
        f"{_LOOK}\n[training] The usual cause is a wait for data.",
        plain=f"{_LOOK} The usual cause is a wait for data.",
    ),
    "at the end of periods": Advice(
        f"{_LOOK}\n[training] The usual causes are a wait for data (an inferred step begins with its first launch, so this wait "
        "comes at its end), the optimizer, value reads and logging.",
        plain=f"{_LOOK} The usual causes are waits for input, copies to the host, output and logging.",
    ),
    "at the end": Advice(
        f"{_LOOK}\n[training] The usual causes are the optimizer, value reads and logging.",
        plain=f"{_LOOK} The usual causes are copies to the host, output and logging.",
    ),
}
"""The advice by the place in the step; within a step there are no usual causes."""

_QUEUED: Final = ("dependency", "unexplained")
"""Causes of idle time for which the host, which had launched the next work long before, is not to blame."""
_LAUNCHED: Final = Advice(
    "By then, the host has already launched the next work: see what that work waits for (tracekit idle --causes, tracekit view "
    "--html)."
)

LOW_PART_OF_STEP = Rule(
    id="low_part_of_step",
    analysis="steps",
    evidence=low_part_of_step,
    runs="device",
    advice=Advice(_LOOK),
    restates=True,
)
