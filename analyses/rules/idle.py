"""Rules about idle time: what keeps the host, or the processors, from starting work."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.span_places import StackModel
from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.causes import cause_name, idle_causes
from tracekit.analyses.idle.span_causes import span_causes
from tracekit.analyses.rules.idle_time import caused_idle, told_elsewhere
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded, by_share
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import VALUE_OPERATOR
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import NS_PER_MS, NS_PER_US, format_count, format_ns, format_share
from tracekit.intervals import IntervalSet
from tracekit.spans import Int64Array, take
from tracekit.trace import Trace

__all__ = ["COMPILATION_IN_STEPS", "HOST_BOUND_LAUNCHES", "LONG_GAPS", "SHORT_OPERATORS", "VALUE_READS"]

# -- host_bound_launches ----------------------------------------------------------------------------

HOST_BOUND_LAUNCHES_LEAST_SHARE: Final = 0.10
"""Below a tenth of the window, faster launching changes little."""
QUEUE_EMPTY: Final = 1.0
"""With less than one activity waiting on average, the host is not ahead of the device."""
LONG_GAP_NS: Final = NS_PER_MS
"""Python and dispatch between two launches take tens of µs; 1 ms is something else."""
LEAST_GAPS: Final = 20
"""Fewer gaps are no pattern."""
LAUNCHING: Final = (
    *("python", "host_code", "operator_dispatch", "library_call"),
    *("launch_api", "launch_latency"),
)
"""The causes of idle time that faster or fewer launches would lessen."""


def host_bound_launches(scope: Scope, result: Idle) -> Evidence | None:
    """The device mostly waits for the host to launch the next kernel.

    Host-bound launching shows as many short gaps in which nothing was queued. So only gaps below `LONG_GAP_NS` count
    (a longer one is a cold start or something else that has its own rule), and on the stream with most gaps the mean queue
    (Little's law: sum of launch-to-start delays over the time they span) must be below one. At stake is the idle time
    of the device in such gaps that Python, operator dispatch, launch calls and their latency cause (`analyses.idle.causes`).

    Fires when short waits for the host take `HOST_BOUND_LAUNCHES_LEAST_SHARE` of the window and the queue runs empty.
    """
    trace = scope.trace
    if not result.streams.height or not scope.duration:
        return None
    stream = result.streams.sort("gaps", "busy_ns", descending=True).row(0, named=True)
    if stream["gaps"] < LEAST_GAPS:
        return None
    mine = (pl.col("device_id") == stream["device_id"]) & (pl.col("stream_id") == stream["stream_id"])
    short = pl.col("duration_ns").sum().over("gap_id") < LONG_GAP_NS
    idle = caused_idle(scope, *LAUNCHING, wanted=short)
    at_stake = idle.ns
    queue = _mean_queue(trace, scope.activities.filter(mine))
    if at_stake / scope.duration < HOST_BOUND_LAUNCHES_LEAST_SHARE or queue is None or queue >= QUEUE_EMPTY:
        return None
    slowed = " Python stacks were recorded, which slows the host." if "stacks" in trace.meta.captured else ""
    return Evidence(
        title=f"The device waits {format_share(at_stake / scope.duration)} of the time for the host's launches",
        text=f"It was idle for {format_ns(at_stake)} in gaps below {format_ns(LONG_GAP_NS)}: {_split(scope, short)}"
        f"{idle.where}. Stream {stream['stream_id']} of device {stream['device_id']} had "
        f"{format_count(stream['gaps'])} gaps in all, with {queue:.2f} activities queued on average.{slowed}",
        ns_at_stake=at_stake,
    )


def _split(scope: Scope, short: pl.Expr) -> str:
    """The causes in words, largest first."""
    parts = [(caused_idle(scope, cause, wanted=short).ns, cause) for cause in LAUNCHING]
    return ", ".join(
        f"{cause_name(cause)} {format_ns(ns)}" for ns, cause in sorted(parts, reverse=True) if ns
    )


def _mean_queue(trace: Trace, activities: pl.DataFrame) -> float | None:
    calls = trace.host.select(pl.col("span_id").alias("launch_id"), pl.col("start").alias("call_start"))
    rows = activities.join(calls, on="launch_id", how="inner")
    if rows.height < 2:
        return None
    first, last = (
        rows.select(pl.min_horizontal(pl.col("call_start").min(), pl.col("start").min())).item(),
        rows["start"].max(),
    )
    span = int(str(last)) - int(first)
    waiting = int((rows["start"] - rows["call_start"]).clip(lower_bound=0).sum())
    return waiting / span if span > 0 else None


HOST_BOUND_LAUNCHES = Rule(
    id="host_bound_launches",
    analysis="idle",
    evidence=host_bound_launches,
    runs="device",
    advice=Advice(
        'Launch less from Python: torch.compile(model, mode="reduce-overhead") or torch.cuda.CUDAGraph '
        "for static shapes, fused operators and optimizer (fused=True), a larger batch; remove "
        "synchronising calls such as .item() from the loop.",
        plain=(
            "Launch less: fuse small kernels, replay what repeats as a CUDA graph, give each launch more "
            "work, and remove synchronising calls from the loop."
        ),
        flags=("--compile", "--batch"),
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
)


# -- compilation_in_steps ---------------------------------------------------------------------------

COMPILATION_IN_STEPS_LEAST_SHARE: Final = 0.02
"""In a steady state nothing is compiled; a lookup in the cache of compiled code takes less than this."""


def compilation_in_steps(scope: Scope, _result: Idle) -> Evidence | None:
    """Steps trace or compile code while the device, or without one the processors, have nothing to do.

    At stake is the idle time that compilation causes (`analyses.idle.causes`), but for API calls that load code: those are
    first-time work, and belong to `cold_start`.

    Fires when tracing and compilation keep the device idle for `COMPILATION_IN_STEPS_LEAST_SHARE` of the window.
    """
    idle = caused_idle(scope, "compilation", wanted=pl.col("span_kind") != "runtime")
    if not scope.duration or idle.ns / scope.duration < COMPILATION_IN_STEPS_LEAST_SHARE:
        return None
    who = "no operator ran" if scope.on_cpu else "the device was idle"
    return Evidence(
        title=f"Tracing and compilation take {format_share(idle.ns / scope.duration)} of the time",
        text=f"For {format_ns(idle.ns)} {who} while code was traced or compiled{idle.where}.",
        ns_at_stake=idle.ns,
    )


COMPILATION_IN_STEPS = Rule(
    id="compilation_in_steps",
    analysis="idle",
    evidence=compilation_in_steps,
    advice=Advice(
        "Run the compiled model some steps before recording; if it stays, TORCH_LOGS=recompiles tells why"
        " it is compiled again: mark dynamic shapes (torch._dynamo.mark_dynamic) and keep Python values "
        "out of the model's inputs.",
        plain=(
            "Load and compile before recording: run some iterations first, and build kernels and graphs ahead"
            " of the loop."
        ),
    ),
)


# -- short_operators --------------------------------------------------------------------------------

SHORT_NS: Final = 20 * NS_PER_US
"""To dispatch an operator takes some µs, twice as much while a profiler records it."""
NEAR_NS: Final = 100 * NS_PER_US
"""Python that only calls the next operator takes some µs, a few tens with stacks recorded; more is work of its own."""
LEAST_PART: Final = 0.5
"""Short operators are the pattern when half of the operators' time goes to them."""
SHORT_OPERATORS_LEAST_SHARE: Final = 0.4
"""Below two fifths of the window, other things matter more."""
LEAST_COUNT: Final = 100
"""Fewer are no pattern."""


def short_operators(scope: Scope, _result: Idle) -> Evidence | None:
    """Without a device: operators so short that starting them takes the time.

    Looks at the outermost operators of those names whose median is below `SHORT_NS`, without those that read a value
    (`value_reads`) or load data, and the Python between operators
    (the cause python of `analyses.idle.causes` in stretches below `NEAR_NS`). At stake is the sum of the two.

    Fires when operators of typically less than `SHORT_NS` and the Python between them take `SHORT_OPERATORS_LEAST_SHARE` of the window.
    """
    if not scope.activities.height:
        return None
    operators = _outermost(scope)
    # By name: one call that the system interrupts for long does not make an operator a long one.
    short = operators.filter(pl.col("duration").median().over("name") < SHORT_NS)
    inside, all_ = int(short["duration"].sum()), int(operators["duration"].sum())
    if short.height < LEAST_COUNT or inside < LEAST_PART * all_:
        return None
    near = pl.col("duration_ns").sum().over("gap_id") < NEAR_NS
    between = caused_idle(scope, "python", wanted=near)
    at_stake = bounded(inside + between.ns, scope)
    if at_stake / scope.duration < SHORT_OPERATORS_LEAST_SHARE:
        return None
    names = short.group_by("name").agg(pl.len(), pl.col("duration").sum()).sort("duration", "name")
    name, count, _ = names.row(-1)
    return Evidence(
        title=f"Operator dispatch: tiny operators and the Python between them take {format_share(at_stake / scope.duration)} of the time",
        text=f"{format_count(short.height)} operators of typically less than {format_ns(SHORT_NS)} take {format_ns(inside)}, most of it "
        f"{name} ({format_count(count)} times), and the Python between operators {format_ns(between.ns)}{between.where}.",
        ns_at_stake=at_stake,
    )


def _outermost(scope: Scope) -> pl.DataFrame:
    """The outermost operators of the scope, without those that read a value or load data: `name`, `duration`."""
    model = attribution(scope).model
    stack = model.stack
    above = stack.nesting.nearest_ancestor(stack.of_kind("op"), include_self=False)
    above[stack.named(VALUE_OPERATOR, "op")] = 0
    rows = scope.host("op", columns=["span_id", "name", "duration"]).with_columns(
        pl.col("name").cast(pl.String)
    )
    rows = rows.filter(pl.Series(above[rows["span_id"].to_numpy()] < 0))
    phase = model.places(rows["span_id"].to_numpy()).phase
    return rows.filter(pl.Series(phase != PHASES.index("data")))


SHORT_OPERATORS = Rule(
    id="short_operators",
    analysis="idle",
    evidence=short_operators,
    runs="processor",
    advice=Advice(
        "Do more in each operator: batch or vectorise the loop, use fused or foreach variants "
        "(torch._foreach_add, fused=True), or torch.compile, which fuses elementwise operators.",
        plain=("Do more in each call: batch or vectorise the loop, and fuse elementwise operations."),
        flags=("--compile",),
    ),
    pattern="the dispatch of tiny operators and the Python between them",
)


# -- value_reads ------------------------------------------------------------------------------------

LEAST_A_STEP: Final = 1
"""One wait in every step keeps the host from running ahead."""
VALUE_READS_LEAST_SHARE: Final = 0.01
"""Below a hundredth of the window the time on the processors says nothing about that on a device."""


def value_reads(scope: Scope, _result: Idle) -> Evidence | None:
    """Without a device: Python reads values out of tensors, which on a device waits for all work that is queued.

    Counted are the outermost of `aten::item` and its kin (`.item()`, `float(tensor)`, `if tensor:`) in the steps; not
    those of the optimizer, whose step counters lie in the host's memory anyway. At stake is the time in them; where that is below `LEAST_SHARE`,
    the trace cannot tell, since the waits come with a device.

    Fires when values are read `LEAST_A_STEP` times a step or more, outside data loading and the optimizer.
    """
    trace = scope.trace
    model = attribution(scope).model
    reads = _reads(scope, model)
    steps = max(scope.steps.height if scope.window == "steps" else 1, 1)
    if reads.size < LEAST_A_STEP * steps:
        return None
    stack = model.stack
    spent = bounded(int((stack.end[reads] - stack.start[reads]).sum()), scope)
    a_step = reads.size / steps
    return Evidence(
        title=f"Python reads values of tensors (.item()) {_times(round(a_step))} a step",
        text=f".item() and its kin ran {format_count(reads.size)} times and took {format_ns(spent)}, "
        f"{format_share(spent / scope.duration)} of the time{_where(trace, model, reads)}. On a device each waits until "
        "all queued work is done.",
        ns_at_stake=spent if spent >= VALUE_READS_LEAST_SHARE * scope.duration else None,
        severity=by_share(spent, scope.duration),
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{format_count(count)} times"


def _reads(scope: Scope, model: StackModel) -> Int64Array:
    stack = model.stack
    value = stack.named(VALUE_OPERATOR, "op")
    outer = value & (stack.nesting.nearest_ancestor(value, include_self=False) < 0)
    rows = scope.host("op", columns=["span_id"])["span_id"].to_numpy()
    rows = rows[outer[rows]]
    phase = model.places(rows).phase
    chosen: Int64Array = rows[(phase != PHASES.index("optimizer")) & (phase != PHASES.index("data"))]
    return chosen


def _where(trace: Trace, model: StackModel, reads: Int64Array) -> str:
    """The line of code with most of them, where stacks were recorded; else the layer."""
    frames = span_causes(trace, model).frame
    names = model.stack.frame["name"].cast(pl.String)
    found = take(frames, reads)
    if (found >= 0).any():
        return f", most of them in {names.gather(found[found >= 0]).mode().sort()[0]}"
    layers = model.places(reads).layer
    if (layers >= 0).any():
        table = model.layers.table["path"]
        return f", most of them in layer {table.gather(layers[layers >= 0]).mode().sort()[0]}"
    return ""


VALUE_READS = Rule(
    id="value_reads",
    analysis="idle",
    evidence=value_reads,
    runs="processor",
    advice=Advice(
        "Keep the value in a tensor: accumulate losses and metrics and call .item() every N steps; "
        "replace Python conditions on tensors by torch.where."
    ),
    pattern="reading values of tensors with .item() and its kin",
)


# -- long_gaps --------------------------------------------------------------------------------------

LEAST_OF_STEP: Final = 0.05
"""A twentieth of a step: too long for the launch of anything, and seldom enough to be looked at one by one."""
LEAST_OF_IDLE: Final = 0.5
"""With less than half of the idle time the long gaps are not what the device's idle time is made of."""

_PROFILER: Final = "profiler_overhead"


def long_gaps(scope: Scope, _result: Idle) -> Evidence | None:
    """Most of the device's idle time lies in a few long gaps, not in many short ones.

    The expert rule `gpu_gaps` of Nsight Systems, for steps: NVIDIA's threshold, 500 ms, is longer than most steps, so a gap is
    long here when it takes `LEAST_OF_STEP` of the mean step, or of the window where there are no steps. As there, the time
    before the device's first activity and after its last is no gap, and what the profiler itself took is not counted. Each long gap
    is one event with one cause, which a look at the timeline shows; the rules of short gaps (`host_bound_launches`,
    `short_operators`) are about the others. Silent where synchronisation, data loading, allocation or compilation causes most of
    it: these have rules of their own. Looks at the device on which long gaps take most.

    Fires when long gaps take `WARNING_SHARE` of the window and `LEAST_OF_IDLE` of the device's idle time.
    """
    steps = max(scope.steps.height, 1) if scope.window == "steps" else 1
    least = LEAST_OF_STEP * scope.duration / steps
    gaps = _gaps(scope).filter(pl.col("ns") >= least)
    if not gaps.height:
        return None
    device, total = (
        gaps.group_by("device_id")
        .agg(pl.col("ns").sum())
        .sort("ns", "device_id", descending=[True, False])
        .row(0)
    )
    idle = scope.intervals(device).complement(scope.start, scope.end).measure
    if total < WARNING_SHARE * scope.duration or total < LEAST_OF_IDLE * idle:
        return None
    mine = gaps.filter(pl.col("device_id") == device).sort("ns", "start", descending=[True, False])
    if told_elsewhere(scope, device, IntervalSet.of(mine["start"].to_numpy(), mine["end"].to_numpy())):
        return None
    longest = mine.row(0, named=True)
    at_stake = bounded(total, scope)
    return Evidence(
        title=f"{_count(mine.height)} of the device {'takes' if mine.height == 1 else 'take'} {format_share(total / scope.duration)} of the time",
        text=f"Device {device} idles {format_ns(total)} in gaps of {format_ns(least)} or more, {format_share(total / idle)} of its idle "
        f"time{_cause(scope, mine)}. The longest, {format_ns(longest['ns'])}, begins {format_ns(longest['start'])} into the "
        f"trace{_step_at(scope, longest['start'])}.",
        ns_at_stake=at_stake,
    )


def _gaps(scope: Scope) -> pl.DataFrame:
    """Gaps between activities: `device_id`, `gap_id`, `start`, `end` and `ns`, the time in it that is not the profiler's."""
    pieces = idle_causes(scope).pieces
    own = pl.col("cause").cast(pl.String) != _PROFILER
    return (
        pieces.group_by("device_id", "gap_id")
        .agg(
            pl.col("start").min(),
            (pl.col("start") + pl.col("duration_ns")).max().alias("end"),
            pl.col("duration_ns").filter(own).sum().alias("ns"),
            pl.col("ended_by").first(),
        )
        .filter(pl.col("ended_by").is_not_null() & (pl.col("start") > scope.start))
    )


def _cause(scope: Scope, gaps: pl.DataFrame) -> str:
    """The cause of more than half of the time, if one is known."""
    pieces = idle_causes(scope).pieces.join(gaps, on=["device_id", "gap_id"], how="semi")
    sums = pieces.group_by(pl.col("cause").cast(pl.String)).agg(pl.col("duration_ns").sum())
    cause, ns = sums.sort("duration_ns", "cause").row(-1)
    known = cause not in ("not_captured", "unexplained", _PROFILER) and 2 * ns > sums["duration_ns"].sum()
    return f", mostly {cause_name(cause)}" if known else ""


def _step_at(scope: Scope, time: int) -> str:
    inside = scope.steps.filter((pl.col("start") <= time) & (pl.col("end") > time))
    return f", during {inside['name'][0]}" if inside.height else ""


def _count(gaps: int) -> str:
    return "One long gap" if gaps == 1 else f"{format_count(gaps)} long gaps"


LONG_GAPS = Rule(
    id="long_gaps",
    analysis="idle",
    evidence=long_gaps,
    runs="device",
    advice=Advice(
        "Look at what the host does there: tracekit idle --causes lists the gaps with their cause and "
        "where the host was, tracekit view --html shows what runs around them."
    ),
    restates=True,
)
