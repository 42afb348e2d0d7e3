"""Rules about idle time: what keeps the host, or the processors, from starting work."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.result import has_host_work
from tracekit.analyses.rules.idle_time import (
    LAUNCHING,
    LONG_GAP_NS,
    caused_idle,
    covered_by_other_rules,
    waits_before_graphs,
    while_launching_for_others,
)
from tracekit.analyses.rules.memory import before_small_copies
from tracekit.analyses.rules.rule import (
    CRITICAL_SHARE,
    RECORD_HOST,
    WARNING_SHARE,
    Advice,
    Evidence,
    Rule,
    bounded,
    longest,
    of_time,
)
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import CAUSES, QUEUED, cause_name
from tracekit.facts.stack_names import BUFFER_LAYER, LOSS_LAYER
from tracekit.facts.units import count_of, format_count, format_ns, format_share
from tracekit.groups import are_known, at_rows, groups, kept, or_none
from tracekit.intervals import IntervalSet
from tracekit.trace import Trace

__all__ = [
    "BUFFER_SYNCHRONISATION",
    "HOST_BOUND_LAUNCHES",
    "LONG_GAPS",
]

# -- host_bound_launches ----------------------------------------------------------------------------

HOST_BOUND_LAUNCHES_LEAST_SHARE: Final = 0.10
"""Below a tenth of the window, faster launching changes little."""
QUEUE_EMPTY: Final = 1.0
"""With less than one activity waiting on average, the host is not ahead of the device."""
LEAST_GAPS: Final = 20
"""Fewer gaps are no pattern."""

_PROCESS_EACH: Final = (
    "One process launches for all devices: run one for each, as DistributedDataParallel does."
)
_PLAIN_EACH: Final = "One process launches for all devices: run one for each.\n"
_LESS: Final = "Launch less from Python."
_COMPILE: Final = (
    '[!compiled !graphs] torch.compile(model, mode="reduce-overhead") fuses kernels and replays them as CUDA graphs; for '
    "static shapes, torch.cuda.CUDAGraph does so without compilation.\n"
)
_LESS_IN_LOSS: Final = "Launch less in the loss, where most of this time is lost: compute it with operators on whole tensors instead of loops."
_COMPILE_LOSS: Final = "[!compiled !graphs] torch.compile of the function that computes it fuses its kernels; of the model alone it changes little.\n"
_WITH_GRAPHS: Final = (
    '[compiled !graphs] Compile with mode="reduce-overhead", which replays the kernels as CUDA graphs.\n'
    "[graphs] Put more of the work into the graphs.\n"
    "[optimizer_launches] Create the optimizer with fused=True.\n"
    "[!serving] A larger batch gives each launch more work."
)
_REMOVE_WAITS: Final = "[waits] Remove synchronising calls such as .item() from the loop."
_REMOVE_WAITS_PLAIN: Final = "[waits] Remove synchronising calls from the loop."
_LESS_PLAIN: Final = (
    "Launch less: fuse small kernels and give each launch more work.\n"
    "[!graphs] Replay repeated work as a CUDA graph."
)
_FLAGS: Final = ("--compile", "--batch")


def host_bound_launches(scope: Scope, result: Idle) -> Evidence | None:
    """The device mostly waits for the host to launch the next kernel.

    If the host launches too slowly, there are many short gaps in which no work is queued. So only gaps below 1 ms (`LONG_GAP_NS`)
    count; a longer gap is a cold start or has another cause with its own rule, unless the host launches for other devices in it. On the stream with the most gaps, the mean
    queue length should be below one (Little's law: the sum of the delays from launch to start, over the time they span). At
    stake is the device's idle time in such gaps that Python, operator dispatch, launch calls and their latency cause
    (`analyses.idle.causes`), without that before many small copies, which the rule `small_copies` reports.

    Fires when short waits for the host take `HOST_BOUND_LAUNCHES_LEAST_SHARE` of the window and the queue runs empty, or
    `CRITICAL_SHARE`: then the host was ahead only in a part of each step.
    """
    trace = scope.trace
    if not result.streams.height or not scope.duration:
        return None
    stream = max(result.streams.iter_rows(named=True), key=lambda one: (one["gaps"], one["busy_ns"]))
    if stream["gaps"] < LEAST_GAPS:
        return None
    rows = scope.activities[["device_id", "stream_id", "launch_id", "start"]]
    rows = kept(rows, (rows["device_id"] == stream["device_id"]) & (rows["stream_id"] == stream["stream_id"]))
    copies = before_small_copies(scope)
    others = (
        None if copies is None else ~pl.col("gap_id").is_in(copies.columns("gap_id").to_series().implode())
    )
    busy_elsewhere = while_launching_for_others(scope)
    idle = caused_idle(scope, *LAUNCHING, wanted=others, below=LONG_GAP_NS, or_in=busy_elsewhere)
    pieces = idle.columns("gap_id", "cause", "duration_ns")
    elsewhere = int(pieces.filter(pl.col("gap_id").is_in(busy_elsewhere))["duration_ns"].sum())
    at_stake = idle.ns
    queue, share = _mean_queue(trace, rows), at_stake / scope.duration
    if queue is None or share < HOST_BOUND_LAUNCHES_LEAST_SHARE:
        return None
    if queue >= QUEUE_EMPTY and share < CRITICAL_SHARE:
        return None
    queued = (
        f"and on average {queue:.2f} activities were queued on it"
        if queue < QUEUE_EMPTY
        else f"although the host was ahead at other times (on average {queue:.1f} activities were queued)"
    )
    sums = pieces.group_by(pl.col("cause").cast(pl.String)).agg(pl.col("duration_ns").sum())
    by_cause = sums.sort("duration_ns", "cause", descending=True).rows()
    waits = waits_before_graphs(scope)
    slowed = (
        " The profile holds Python stacks, and recording them slows the host."
        if "stacks" in trace.meta.captured
        else ""
    )
    return Evidence(
        title=f"The device waits for launches from the host {format_share(at_stake / scope.duration)} of the time",
        text=f"It was idle for {format_ns(at_stake)} in gaps shorter than "
        f"{format_ns(LONG_GAP_NS)}{', or while the host launched for other devices' if elsewhere else ''}: "
        f"{_split(by_cause)}{idle.where}. Stream {stream['stream_id']} of device {stream['device_id']} had "
        f"{format_count(stream['gaps'])} gaps, {queued}.{slowed}",
        ns_at_stake=at_stake,
        advice=_advice(
            by_cause, waits, in_loss=idle.layer == LOSS_LAYER, elsewhere=2 * elsewhere >= at_stake
        ),
        stretches=idle.stretches,
    )


def _advice(by_cause: list[tuple[str, int]], waits: str, *, in_loss: bool, elsewhere: bool) -> Advice | None:
    """None: the rule's own. `waits` is what must go before graphs; without most time in Python, or in operators, these are not to blame.

    `in_loss`: most of the time is lost around the work of the loss, which compiling a model leaves as it is.
    `elsewhere`: most is lost while the host launches for other devices.
    """
    in_python = sum(ns for cause, ns in by_cause if cause in ("python", "operator_dispatch"))
    mostly = 2 * in_python >= sum(ns for _, ns in by_cause)
    if mostly and not waits and not in_loss and not elsewhere:
        return None
    less = _LESS_IN_LOSS if in_loss else _LESS if mostly else "Launch fewer, longer kernels."
    less = f"{_PROCESS_EACH}\n{less}" if elsewhere else less
    how = f"{_COMPILE_LOSS if in_loss else _COMPILE}{_WITH_GRAPHS}"
    text = f"{less}\n{waits}\n{how}" if waits else f"{less}\n{how}\n{_REMOVE_WAITS}"
    each = _PLAIN_EACH if elsewhere else ""
    return Advice(text, plain=f"{each}{_LESS_PLAIN}\n{waits or _REMOVE_WAITS_PLAIN}", flags=_FLAGS)


def _split(by_cause: list[tuple[str, int]]) -> str:
    """The causes in words, with their times in ns."""
    return ", ".join(f"{cause_name(cause)} {format_ns(ns)}" for cause, ns in by_cause)


def _mean_queue(trace: Trace, activities: pl.DataFrame) -> float | None:
    launch = or_none(activities["launch_id"])
    called, start = (
        trace.host["start"].to_numpy()[launch[launch >= 0]],
        activities["start"].to_numpy()[launch >= 0],
    )
    if start.size < 2:
        return None
    span = int(start.max()) - min(int(called.min()), int(start.min()))
    waiting = int(np.maximum(start - called, 0).sum())
    return waiting / span if span > 0 else None


HOST_BOUND_LAUNCHES = Rule(
    id="host_bound_launches",
    analysis="idle",
    evidence=host_bound_launches,
    runs="device",
    advice=Advice(
        f"{_LESS}\n{_COMPILE}{_WITH_GRAPHS}\n{_REMOVE_WAITS}",
        plain=f"{_LESS_PLAIN}\n{_REMOVE_WAITS_PLAIN}",
        flags=_FLAGS,
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
)


# -- long_gaps --------------------------------------------------------------------------------------

LEAST_OF_STEP: Final = 0.05
"""A twentieth of a step: too long for any launch, and rare enough to look at each gap."""
LEAST_OF_IDLE: Final = 0.5
"""If long gaps take less than half of the idle time, short gaps are the larger problem."""

_PROFILER: Final = "profiler_overhead"


def long_gaps(scope: Scope, _result: Idle) -> Evidence | None:
    """Most of the device's idle time lies in a few long gaps, not in many short ones.

    This is the expert rule `gpu_gaps` of Nsight Systems, for steps. NVIDIA's threshold of 500 ms is longer than most steps,
    so here a gap is long if it takes `LEAST_OF_STEP` of the mean step, or of the window if there are no steps. As in
    NVIDIA's rule, the time before the first activity of the device and after its last is no gap, and the profiler's own
    time does not count. You can look at each long gap in the timeline; the rules `host_bound_launches` and
    `short_operators` are about short gaps. The rule does not fire if synchronisation, data loading, allocation or
    compilation causes most of the time, because these causes have their own rules. The rule looks at the device with the
    most time in long gaps.

    Fires when long gaps take `WARNING_SHARE` of the window and `LEAST_OF_IDLE` of the device's idle time.
    """
    steps = max(scope.steps.height, 1) if scope.window == "steps" else 1
    least = LEAST_OF_STEP * scope.duration / steps
    gaps = _gaps(scope)
    gaps = kept(gaps, gaps["ns"] >= least)
    if not gaps.height:
        return None
    devices = groups(gaps["device_id"].to_numpy())
    sums = devices.sums(gaps["ns"].to_numpy())
    device, total = int(devices.keys[0][sums.argmax()]), int(sums.max())
    idle = scope.intervals(device).complement(scope.start, scope.end).measure
    if total < WARNING_SHARE * scope.duration or total < LEAST_OF_IDLE * idle:
        return None
    mine = gaps.filter(pl.col("device_id") == device).sort("ns", "start", descending=[True, False])
    if covered_by_other_rules(
        scope, device, IntervalSet.of(mine["start"].to_numpy(), mine["end"].to_numpy())
    ):
        return None
    first = mine.row(0, named=True)
    at_stake = bounded(total, scope)
    return Evidence(
        title=f"The device is idle in {'one long gap' if mine.height == 1 else count_of(mine.height, 'long gap')} for {format_share(total / scope.duration)} of the time",
        text=f"Device {device} is idle for {format_ns(total)} in gaps of {format_ns(least)} or more, which is "
        f"{format_share(total / idle)} of its idle time{_cause(scope, mine)}. The longest gap takes "
        f"{format_ns(first['ns'])} and begins {format_ns(first['start'])} into the "
        f"trace{_step_at(scope, first['start'])}.",
        ns_at_stake=at_stake,
        advice=_of_gaps(scope, mine),
        stretches=longest(mine.with_columns((pl.col("end") - pl.col("start")).alias("duration")), by="ns"),
    )


def _of_gaps(scope: Scope, gaps: pl.DataFrame) -> Advice | None:
    """What to look at if it is not the host; None: the rule's own advice."""
    if not has_host_work(scope.trace):
        return RECORD_HOST
    pieces = idle_causes(scope).pieces.join(gaps, on=["device_id", "gap_id"], how="semi")
    queued = pieces.filter(pl.col("cause").cast(pl.String).is_in(_LAUNCHED))
    return (
        _SEE_WHAT_WAITS if 2 * int(queued["duration_ns"].sum()) > int(pieces["duration_ns"].sum()) else None
    )


_LAUNCHED: Final = ("launch_latency", *QUEUED)
"""Causes of gaps before work that the host had launched already."""
_SEE_WHAT_WAITS: Final = Advice(
    "The host has already launched the next work by then: see what that work waits for, such as an event of another stream, a copy or an "
    "earlier node of its graph."
)


def _gaps(scope: Scope) -> pl.DataFrame:
    """Gaps between activities: `device_id`, `gap_id`, `start`, `end` and `ns`, the time in it that is not the profiler's."""
    pieces = idle_causes(scope).pieces
    gaps = groups(pieces["device_id"].to_numpy(), pieces["gap_id"].to_numpy())
    start, ns = pieces["start"].to_numpy(), pieces["duration_ns"].to_numpy()
    own = pieces["cause"].to_physical().to_numpy() != CAUSES.index(_PROFILER)
    found = pl.DataFrame(
        {
            "device_id": gaps.keys[0],
            "gap_id": gaps.keys[1],
            "start": gaps.least(start),
            "end": gaps.greatest(start + ns),
            "ns": gaps.sums(np.where(own, ns, 0)),
        }
    )
    ended = are_known(at_rows(pieces["ended_by"], gaps.first))
    return kept(found, ended & (found["start"].to_numpy() > scope.start))


def _cause(scope: Scope, gaps: pl.DataFrame) -> str:
    """The cause of more than half of the time, if one is known."""
    pieces = idle_causes(scope).pieces.join(gaps, on=["device_id", "gap_id"], how="semi")
    sums = pieces.group_by(pl.col("cause").cast(pl.String)).agg(pl.col("duration_ns").sum())
    cause, ns = sums.sort("duration_ns", "cause").row(-1)
    if cause == "python" and "stacks" not in scope.trace.meta.captured and 2 * ns > sums["duration_ns"].sum():
        return "; for most of that, no host call is recorded"
    if cause == "launch_latency" and 2 * ns > sums["duration_ns"].sum():
        return "; for most of that, work had been launched but had not started"
    explained = cause not in ("not_captured", "unexplained", _PROFILER) and 2 * ns > sums["duration_ns"].sum()
    return f"; the main cause is {cause_name(cause)}" if explained else ""


def _step_at(scope: Scope, time: int) -> str:
    inside = scope.steps.filter((pl.col("start") <= time) & (pl.col("end") > time))
    return f", during {inside['name'][0]}" if inside.height else ""


LONG_GAPS = Rule(
    id="long_gaps",
    analysis="idle",
    evidence=long_gaps,
    runs="device",
    advice=Advice(
        "See what the host does there: tracekit idle --causes lists the gaps with their causes and the place in the "
        "host's code, and tracekit view --html shows what runs around them."
    ),
    restates=True,
)


# -- buffer_synchronisation -------------------------------------------------------------------------


def buffer_synchronisation(scope: Scope, _result: Idle) -> Evidence | None:
    """The device waits while DistributedDataParallel sends the buffers of the model to all ranks before a forward pass.

    At stake is the idle time that this causes (`analyses.idle.causes`).

    Fires when that is `WARNING_SHARE` of the window.
    """
    causes = idle_causes(scope)
    rows = kept(causes.by_layer, causes.by_layer["layer"] == BUFFER_LAYER)
    ns = bounded(int(rows["total_ns"].sum()), scope)
    if not ns or ns < WARNING_SHARE * scope.duration:
        return None
    return Evidence(
        title=f"DistributedDataParallel's buffer synchronisation keeps the device waiting for {of_time(ns, scope)}",
        text=f"The device was idle for {format_ns(ns)} while the host started to send the model's buffers to all ranks, before each "
        "forward pass.",
        ns_at_stake=ns,
        stretches=longest(
            causes.pieces.join(
                causes.layers.filter(pl.col("path") == BUFFER_LAYER), on="layer_id", how="semi"
            ),
            length="duration_ns",
        ),
    )


BUFFER_SYNCHRONISATION = Rule(
    id="buffer_synchronisation",
    analysis="idle",
    evidence=buffer_synchronisation,
    runs="device",
    advice=Advice(
        "Pass broadcast_buffers=False to DistributedDataParallel, if the ranks need not share buffers such as the statistics of "
        "batch normalisation."
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
)
