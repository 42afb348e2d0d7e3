"""Rules about idle time: what keeps the host, or the processors, from starting work."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.span_places import StackModel
from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.causes import cause_name, idle_causes
from tracekit.analyses.idle.span_causes import span_causes
from tracekit.analyses.processors import slowed_by_recording
from tracekit.analyses.rules.idle_time import caused_idle, covered_by_other_rules
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded, by_share
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import VALUE_OPERATOR
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import NS_PER_MS, NS_PER_US, count_of, format_count, format_ns, format_share, times
from tracekit.intervals import IntervalSet
from tracekit.names import short_frame
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
"""The causes of idle time that faster or fewer launches would reduce."""


def host_bound_launches(scope: Scope, result: Idle) -> Evidence | None:
    """The device mostly waits for the host to launch the next kernel.

    If the host launches too slowly, there are many short gaps in which no work is queued. So only gaps below `LONG_GAP_NS`
    count; a longer gap is a cold start or has another cause with its own rule. On the stream with the most gaps, the mean
    queue length must be below one (Little's law: the sum of the delays from launch to start, over the time they span). At
    stake is the device's idle time in such gaps that Python, operator dispatch, launch calls and their latency cause
    (`analyses.idle.causes`).

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
    slowed = (
        " The profile holds Python stacks, and recording them slows the host."
        if "stacks" in trace.meta.captured
        else ""
    )
    return Evidence(
        title=f"The device waits for launches of the host {format_share(at_stake / scope.duration)} of the time",
        text=f"It was idle for {format_ns(at_stake)} in gaps below {format_ns(LONG_GAP_NS)}: {_split(scope, short)}"
        f"{idle.where}. Stream {stream['stream_id']} of device {stream['device_id']} had "
        f"{format_count(stream['gaps'])} gaps, and on average {queue:.2f} activities were queued on it.{slowed}",
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
        "Launch less from Python.\n"
        '[!compiled !graphs] torch.compile(model, mode="reduce-overhead") fuses kernels and replays them as CUDA graphs; for '
        "static shapes, torch.cuda.CUDAGraph does so without compilation.\n"
        '[compiled !graphs] Compile with mode="reduce-overhead", which replays the kernels as CUDA graphs.\n'
        "[graphs] Put more of the work into the graphs.\n"
        "[training !fused_optimizer] Create the optimizer with fused=True.\n"
        "[!serving] A larger batch gives each launch more work.\n"
        "[waits] Remove synchronising calls such as .item() from the loop.",
        plain=(
            "Launch less: fuse small kernels and give each launch more work.\n"
            "[!graphs] Replay repeated work as a CUDA graph.\n"
            "[waits] Remove synchronising calls from the loop."
        ),
        flags=("--compile", "--batch"),
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
)


# -- compilation_in_steps ---------------------------------------------------------------------------

COMPILATION_IN_STEPS_LEAST_SHARE: Final = 0.02
"""In a steady state nothing is compiled; a lookup in the cache of compiled code takes less than this."""


def compilation_in_steps(scope: Scope, _result: Idle) -> Evidence | None:
    """Steps trace or compile code while the device is idle; without a device, while no operator runs.

    At stake is the idle time that compilation causes (`analyses.idle.causes`). API calls that build code do not count,
    because they are first-time work and belong to `cold_start`.

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
        "Run some steps before you record. If compilation remains, something is compiled again in each step.\n"
        "[compiled] TORCH_LOGS=recompiles says why; mark dynamic shapes (torch._dynamo.mark_dynamic) and keep Python "
        "values out of the model's inputs.",
        plain=(
            "Load and compile before you record: run some iterations first, and build kernels and graphs before the "
            "loop."
        ),
    ),
    explains=frozenset({"step_variability"}),
    pattern="tracing and compilation",
)


# -- short_operators --------------------------------------------------------------------------------

SHORT_NS: Final = 20 * NS_PER_US
"""To dispatch an operator takes some µs, twice as much while a profiler records it."""
NEAR_NS: Final = 100 * NS_PER_US
"""Python that only calls the next operator takes some µs, a few tens with stacks recorded; more is work of its own."""
SHORT_OPERATORS_LEAST_SHARE: Final = 0.3
"""Of the window; healthy steps spend less on the tiny operators that surround the large ones."""
_PART_OF_STEP: Final = {
    "backward": ", mostly in the backward pass",
    "optimizer": ", mostly in the optimizer",
}
OF_OPTIMIZER: Final = 0.25
"""From this part of the tiny operators on, the advice names the optimizer."""
LEAST_COUNT: Final = 100
"""Fewer are no pattern."""


def short_operators(scope: Scope, _result: Idle) -> Evidence | None:
    """Without a device: the operators are so short that most time goes to starting them.

    The rule looks at outermost operators whose median duration by name is below `SHORT_NS`, except operators that read a
    value (`value_reads`) or load data. It adds the Python code between operators (the cause python of
    `analyses.idle.causes`, in gaps below `NEAR_NS`). At stake is the sum of the two.

    Fires when operators that typically take less than `SHORT_NS` and the Python code between them take `SHORT_OPERATORS_LEAST_SHARE` of the window.
    """
    if not scope.activities.height:
        return None
    operators = _outermost(scope)
    # By name: one call that the system interrupts for long does not make an operator a long one.
    short = operators.filter(pl.col("duration").median().over("name") < SHORT_NS)
    inside = int(short["duration"].sum())
    if short.height < LEAST_COUNT:
        return None
    near = pl.col("duration_ns").sum().over("gap_id") < NEAR_NS
    between = caused_idle(scope, "python", wanted=near)
    # Recording lengthens tiny operators, and the code between them, as much as anything.
    at_stake = bounded(round((inside + between.ns) / slowed_by_recording(scope.trace)), scope)
    if at_stake / scope.duration < SHORT_OPERATORS_LEAST_SHARE:
        return None
    names = short.group_by("name").agg(pl.len(), pl.col("duration").sum()).sort("duration", "name")
    name, count, _ = names.row(-1)
    of_optimizer = int(short.filter("optimizer")["duration"].sum()) >= OF_OPTIMIZER * inside
    place = _code_of(scope, short)
    return Evidence(
        title=f"Tiny operators and the Python code between them take {format_share(at_stake / scope.duration)} of the time{place}",
        text=f"{format_count(short.height)} operators that typically take less than {format_ns(SHORT_NS)} take {format_ns(inside)} "
        f"in all. {name} takes the most of it, in {count_of(count, 'call')}. The Python code between operators takes "
        f"{format_ns(between.ns)}{between.where}.",
        ns_at_stake=at_stake,
        advice=_FOR_OPTIMIZER if of_optimizer else None,
    )


def _code_of(scope: Scope, operators: pl.DataFrame) -> str:
    """`, mostly in FRAME`, or the part of a step: where half of the time of these operators lies; empty if that is nowhere."""
    model = attribution(scope).model
    spans = operators["span_id"].to_numpy()
    frame, places = take(span_causes(scope.trace, model).frame, spans), model.places(spans)
    frames = model.stack.frame["name"].gather(np.maximum(frame, 0)).cast(pl.String)
    table = operators.select("duration").with_columns(
        pl.when(pl.Series(frame >= 0)).then(frames).alias("frame"), pl.Series("phase", places.phase)
    )
    half = 0.5 * int(operators["duration"].sum())
    for by in ("frame", "phase"):
        sums = table.drop_nulls(by).group_by(by).agg(pl.col("duration").sum()).sort("duration", by)
        if sums.height and int(sums["duration"][-1]) >= half:
            place = sums[by][-1]
            return (
                f", mostly in {short_frame(place)}" if by == "frame" else _PART_OF_STEP.get(PHASES[place], "")
            )
    return ""


def _outermost(scope: Scope) -> pl.DataFrame:
    """The outermost operators of the scope, without those that read a value or load data.

    Columns `span_id`, `name`, `duration`, and whether it is the `optimizer`'s.
    """
    model = attribution(scope).model
    stack = model.stack
    above = stack.nesting.nearest_ancestor(stack.of_kind("op"), include_self=False)
    above[stack.named(VALUE_OPERATOR, "op")] = 0
    rows = scope.host("op", columns=["span_id", "name", "duration"]).with_columns(
        pl.col("name").cast(pl.String)
    )
    rows = rows.filter(pl.Series(above[rows["span_id"].to_numpy()] < 0))
    phase = model.places(rows["span_id"].to_numpy()).phase
    rows = rows.with_columns(pl.Series("optimizer", phase == PHASES.index("optimizer")))
    return rows.filter(pl.Series(phase != PHASES.index("data")))


_FOR_OPTIMIZER: Final = Advice(
    "[!fused_optimizer] Create the optimizer with fused=True.\n"
    "Do more work in each operator: batch or vectorise the loop.\n"
    "[!compiled] torch.compile fuses elementwise operators.",
    flags=("--compile",),
)

SHORT_OPERATORS = Rule(
    id="short_operators",
    analysis="idle",
    evidence=short_operators,
    runs="processor",
    advice=Advice(
        "Do more work in each operator: batch or vectorise the loop.\n"
        "[!compiled] torch.compile fuses elementwise operators.",
        plain=("Do more work in each call: batch or vectorise the loop, and fuse elementwise operations."),
        flags=("--compile",),
    ),
    pattern="tiny operators and the Python code between them",
)


# -- value_reads ------------------------------------------------------------------------------------

LEAST_A_STEP: Final = 1
"""One wait in every step keeps the host from running ahead."""
VALUE_READS_LEAST_SHARE: Final = 0.01
"""Below a hundredth of the window the time on the processors says nothing about that on a device."""


def value_reads(scope: Scope, _result: Idle) -> Evidence | None:
    """Without a device: Python reads values out of tensors. On a device, such a read waits for all queued work.

    The rule counts the outermost calls of `aten::item` and similar operators (`.item()`, `float(tensor)`, `if tensor:`) in
    the steps. It leaves out calls of the optimizer, whose step counters are in host memory anyway. At stake is the time of
    the calls. If that is below `VALUE_READS_LEAST_SHARE` of the window, the time at stake is unknown, because the waits
    occur only on a device.

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
        title=f"Python reads values of tensors (.item()) {times(round(a_step))} a step",
        text=f".item() and similar calls ran {format_count(reads.size)} times and took {format_ns(spent)}, "
        f"{format_share(spent / scope.duration)} of the time{_where(trace, model, reads)}. On a device, each call waits "
        "until all queued work is done.",
        ns_at_stake=spent if spent >= VALUE_READS_LEAST_SHARE * scope.duration else None,
        severity=by_share(spent, scope.duration),
    )


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
    """The line of code with the most reads, if stacks were recorded; else the layer."""
    names = model.stack.frame["name"].cast(pl.String)
    frames = take(span_causes(trace, model).frame, reads)
    if (frames >= 0).any():
        return f", most often in {names.gather(frames[frames >= 0]).mode().sort()[0]}"
    layers = model.places(reads).layer
    if (layers >= 0).any():
        table = model.layers.table["path"]
        return f", most often in layer {table.gather(layers[layers >= 0]).mode().sort()[0]}"
    return ""


VALUE_READS = Rule(
    id="value_reads",
    analysis="idle",
    evidence=value_reads,
    runs="processor",
    advice=Advice(
        "Keep the value in a tensor: accumulate losses and metrics, and call .item() only every N steps. Replace Python "
        "conditions on tensors by torch.where."
    ),
    pattern="reads of tensor values (.item() and similar calls)",
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
    if covered_by_other_rules(
        scope, device, IntervalSet.of(mine["start"].to_numpy(), mine["end"].to_numpy())
    ):
        return None
    longest = mine.row(0, named=True)
    at_stake = bounded(total, scope)
    return Evidence(
        title=f"The device is idle in {'one long gap' if mine.height == 1 else count_of(mine.height, 'long gap')} for {format_share(total / scope.duration)} of the time",
        text=f"Device {device} is idle for {format_ns(total)} in gaps of {format_ns(least)} or more, which is "
        f"{format_share(total / idle)} of its idle time{_cause(scope, mine)}. The longest gap takes "
        f"{format_ns(longest['ns'])} and begins {format_ns(longest['start'])} into the "
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
