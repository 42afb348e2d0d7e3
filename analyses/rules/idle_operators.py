"""Rules about operators that run on processors: tiny ones and reads of values without a device, long ones beside a device."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.span_places import StackModel
from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.idle.span_causes import span_causes
from tracekit.analyses.optimizer import optimizer_ranges, unfusable
from tracekit.analyses.processors import slowed_by_recording
from tracekit.analyses.rules.idle_calls import COMPUTES_NS, operators_by_idle, waiting_calls
from tracekit.analyses.rules.idle_time import caused_idle
from tracekit.analyses.rules.rule import (
    WARNING_SHARE,
    Advice,
    Evidence,
    Rule,
    bounded,
    by_share,
    densest,
    longest,
    of_time,
)
from tracekit.analyses.scope import Scope
from tracekit.analyses.stalls import stalled_ns, stalled_within
from tracekit.facts.idle_names import VALUE_OPERATOR
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import NS_PER_US, count_of, format_count, format_ns, format_share, listed, times
from tracekit.groups import at_rows, or_none
from tracekit.intervals import IntervalSet
from tracekit.name_table import NameTable
from tracekit.names import short_frame
from tracekit.spans import Int64Array, take
from tracekit.trace import one_of

__all__ = ["PROCESSOR_OPERATORS", "SHORT_OPERATORS", "VALUE_READS", "computing_calls"]

# -- short_operators --------------------------------------------------------------------------------

SHORT_NS: Final = 20 * NS_PER_US
"""To dispatch an operator takes some µs, twice as much while a profiler records it."""
NEAR_NS: Final = 100 * NS_PER_US
"""Python that only calls the next operator takes some µs, a few tens with stacks recorded; more is work of its own."""
LONGER: Final = 50
"""Not even an interrupted call takes so many times as long as usual, unless its inputs are larger."""
SHORT_OPERATORS_LEAST_SHARE: Final = 0.3
"""Of the window; healthy steps spend less on the tiny operators that surround the large ones."""
_PART_OF_STEP: Final = {
    "backward": ", mostly in the backward pass",
    "optimizer": ", mostly in the optimizer",
}
OF_OPTIMIZER: Final = 0.25
"""From this part of the time on, the advice names the optimizer."""
LEAST_COUNT: Final = 100
"""Fewer are no pattern."""


def short_operators(scope: Scope, _result: Idle) -> Evidence | None:
    """Without a device: the operators are so short that most time goes to starting them.

    The rule looks at outermost operators whose median duration by name and shapes is below `SHORT_NS`, except operators that read a
    value (`value_reads`) or load data. Where shapes were not recorded, calls that take `LONGER` times as long as the median of their name
    are of larger inputs, and do not count. It adds the Python code between operators (the cause python of
    `analyses.idle.causes`, in gaps below `NEAR_NS`). At stake is the sum of the two.

    Fires when operators that typically take less than `SHORT_NS` and the Python code between them take `SHORT_OPERATORS_LEAST_SHARE` of the
    window without stalls (`analyses.stalls`).
    """
    if not scope.activities.height:
        return None
    operators = _outermost(scope)
    # By the median: one call that the system interrupts for long does not make an operator a long one.
    usual = pl.col("duration").median().over("name", "shapes")
    larger = pl.col("shapes").is_null() & (pl.col("duration") > LONGER * usual)
    short = operators.filter((usual < SHORT_NS) & ~larger)
    inside = int(short["duration"].sum())
    starts = short["start"].to_numpy()
    stalled = stalled_within(scope, IntervalSet.of(starts, starts + short["duration"].to_numpy()))
    if short.height < LEAST_COUNT:
        return None
    near = pl.col("duration_ns").sum().over("gap_id") < NEAR_NS
    between = caused_idle(scope, "python", wanted=near)
    # Recording lengthens tiny operators, and the code between them, as much as anything.
    at_stake = bounded(round((inside - stalled + between.ns) / slowed_by_recording(scope.trace)), scope)
    if at_stake < SHORT_OPERATORS_LEAST_SHARE * (scope.duration - stalled_ns(scope)):
        return None
    names = short.group_by("name").agg(pl.len(), pl.col("duration").sum()).sort("duration", "name")
    name, count, _ = names.row(-1)
    parts = _by_place(scope, short, near)
    of_optimizer = int(parts.filter(pl.col("phase") == "optimizer")["duration"].sum())
    fusable = optimizer_ranges(scope).height and not unfusable(scope)
    place = _place_of(parts)
    return Evidence(
        title=f"Tiny operators and the Python code between them take {format_share(at_stake / scope.duration)} of the time{place}",
        text=f"{format_count(short.height)} operators that typically take less than {format_ns(SHORT_NS)} take "
        f"{format_ns(inside)} in all. {name} takes the largest share, in {count_of(count, 'call')}. The Python code between "
        f"operators takes {format_ns(between.ns)}{between.where}.",
        ns_at_stake=at_stake,
        stretches=densest(_with_code_between(scope, short, near), scope),
        advice=_FOR_OPTIMIZER if fusable and of_optimizer >= OF_OPTIMIZER * (inside + between.ns) else None,
    )


def _with_code_between(scope: Scope, operators: pl.DataFrame, near: pl.Expr) -> IntervalSet:
    """The time of these operators, and of Python in idle time of which `near` holds."""
    pieces = idle_causes(scope).pieces.filter(pl.col("cause") == "python").filter(near)
    parts = (
        operators[["start", "duration"]],
        pieces.select("start", pl.col("duration_ns").alias("duration")),
    )
    rows = pl.concat(parts)
    return IntervalSet.of(rows["start"].to_numpy(), (rows["start"] + rows["duration"]).to_numpy())


def _by_place(scope: Scope, operators: pl.DataFrame, near: pl.Expr) -> pl.DataFrame:
    """The same time by `frame`, where stacks were recorded, and `phase`: `duration`."""
    spans, causes = operators["span_id"].to_numpy(), span_causes(scope)
    frame = take(causes.frame, spans)
    names = at_rows(causes.names, np.maximum(frame, 0)).cast(pl.String)
    inside = operators.select(
        pl.when(pl.Series(frame >= 0)).then(names).alias("frame"),
        at_rows(pl.Series(PHASES), attribution(scope).model.places(spans).phase).alias("phase"),
        "duration",
    )
    pieces = idle_causes(scope).pieces.filter(pl.col("cause") == "python").filter(near)
    places = pl.col("frame", "phase").cast(pl.String)
    between = pieces.select(places, pl.col("duration_ns").alias("duration"))
    return pl.concat([inside, between])


def _place_of(parts: pl.DataFrame) -> str:
    """`, mostly in FRAME`, or the part of a step: where half of the time lies; empty if that is nowhere."""
    half = 0.5 * int(parts["duration"].sum())
    for by in ("frame", "phase"):
        sums = parts.drop_nulls(by).group_by(by).agg(pl.col("duration").sum()).sort("duration", by)
        if sums.height and int(sums["duration"][-1]) >= half:
            place = str(sums[by][-1])
            return f", mostly in {short_frame(place)}" if by == "frame" else _PART_OF_STEP.get(place, "")
    return ""


def _outermost(scope: Scope) -> pl.DataFrame:
    """The outermost operators of the scope, without those that read a value or load data.

    Columns `span_id`, `name`, `shapes`, `start` and `duration`.
    """
    model = attribution(scope).model
    stack = model.stack
    above = stack.nesting.nearest_ancestor(stack.of_kind("op"), include_self=False)
    above[stack.named(VALUE_OPERATOR, "op")] = 0
    rows = scope.host("op", columns=["span_id", "name", "shapes", "start", "duration"]).with_columns(
        pl.col("name").cast(pl.String)
    )
    rows = rows.filter(pl.Series(above[rows["span_id"].to_numpy()] < 0))
    phase = model.places(rows["span_id"].to_numpy()).phase
    return rows.filter(pl.Series(phase != PHASES.index("data")))


_FOR_OPTIMIZER: Final = Advice(
    "Do more work in each operator: batch or vectorise the loop.\n"
    "[!fused_optimizer] Create the optimizer with fused=True.\n"
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
MANY_A_STEP: Final = 20
"""No loop logs so many values of a step; it indexes with tensors, or decides by them."""
VALUE_READS_LEAST_SHARE: Final = 0.01
"""Below a hundredth of the window the time on the processors says nothing about that on a device."""


def value_reads(scope: Scope, _result: Idle) -> Evidence | None:
    """Without a device: Python reads values out of tensors. On a device, such a read waits for all queued work.

    The rule counts the outermost calls of `aten::item` and similar operators (`.item()`, `float(tensor)`, `if tensor:`) in
    the steps. It leaves out calls of the optimizer, whose step counters are in host memory anyway, and those in which
    torch.distributed exchanges objects, if stacks were recorded. At stake is the time of
    the calls. If that is below `VALUE_READS_LEAST_SHARE` of the window, the time at stake is unknown, because the waits
    occur only on a device.

    Fires when values are read `LEAST_A_STEP` times a step (in the window, if it is not made of steps) or more, outside data
    loading and the optimizer.
    """
    model = attribution(scope).model
    reads = _reads(scope, model)
    steps = max(scope.steps.height if scope.window == "steps" else 1, 1)
    if reads.size < LEAST_A_STEP * steps:
        return None
    stack = model.stack
    spent = bounded(int((stack.end[reads] - stack.start[reads]).sum()), scope)
    count = f"{times(round(reads.size / steps))}{' a step' if scope.window == 'steps' else ''}"
    printed, checked = (
        float(stack.inside(pattern, reads, "python").mean()) for pattern in (_PRINTING, _CHECKING)
    )
    advice = _MANY_READS if reads.size >= MANY_A_STEP * steps else _FEW_READS
    if checked >= _LARGE_PART:
        advice = Advice(f"{advice.text} {_UNCHECKED.format(format_share(checked))}")
    return Evidence(
        title=f"{'Printing tensors reads their values' if printed >= _MOSTLY else 'Python reads tensor values (.item())'} {count}",
        text=f".item() and similar calls ran {format_count(reads.size)} times and took {format_ns(spent)}, "
        f"{format_share(spent / scope.duration)} of the time{_where(scope, model, reads)}. On a device, each call waits "
        "until all queued work is done.",
        ns_at_stake=spent if spent >= VALUE_READS_LEAST_SHARE * scope.duration else None,
        severity=by_share(spent, scope.duration),
        advice=_LESS_PRINTING if printed >= _MOSTLY else advice,
        stretches=longest(
            pl.DataFrame({"start": stack.start[reads], "duration": stack.end[reads] - stack.start[reads]})
        ),
    )


_PRINTING: Final = r"(^|[/\\])torch[/\\]_tensor_str\.py\("
"""Functions that write tensors as text."""
_CHECKING: Final = (
    r"(^|[/\\])torch[/\\]distributions[/\\]distribution\.py\(\d+\): (__init__|_validate_sample)$"
)
"""Functions of torch.distributions that check arguments."""
_MOSTLY: Final = 0.5
_LARGE_PART: Final = 0.2
_FEW_READS: Final = Advice(
    "Keep the value in a tensor: accumulate losses and metrics, and call .item() only every N steps. Replace Python "
    "conditions on tensors with torch.where."
)
_LESS_PRINTING: Final = Advice(
    "Print tensors less often, or only a few values of each: to write a tensor as text, PyTorch reads it value by value."
)
_UNCHECKED: Final = "torch.distributions makes {} of the reads to check its arguments: create distributions with validate_args=False."
_MANY_READS: Final = Advice(
    "Read many values at once, before the loop that needs them (.tolist()), and keep indices in Python. Accumulate losses and metrics in "
    "tensors, and call .item() only every N steps."
)


def _reads(scope: Scope, model: StackModel) -> Int64Array:
    stack = model.stack
    value = stack.named(VALUE_OPERATOR, "op")
    outer = value & (stack.nesting.nearest_ancestor(value, include_self=False) < 0)
    rows = scope.host("op", columns=["span_id"])["span_id"].to_numpy()
    rows = rows[outer[rows]]
    # What functions such as all_gather_object read is no choice of the program.
    rows = rows[~stack.inside(_OBJECTS, rows, "python")]
    phase = model.places(rows).phase
    chosen: Int64Array = rows[(phase != PHASES.index("optimizer")) & (phase != PHASES.index("data"))]
    return chosen


_OBJECTS: Final = r"distributed_c10d\.py\(\d+\): \w+_object(_list)?$"
"""Functions of torch.distributed that exchange Python objects."""


def _where(scope: Scope, model: StackModel, reads: Int64Array) -> str:
    """The line of code with the most reads, if stacks were recorded; else the layer."""
    causes = span_causes(scope)
    frames = take(causes.frame, reads)
    if (frames >= 0).any():
        names = at_rows(causes.names, frames[frames >= 0]).cast(pl.String)
        return f", most often in {names.mode().sort()[0]}"
    layers = model.places(reads).layer
    if (layers >= 0).any():
        table = model.layers.table["path"]
        return f", most often in layer {at_rows(table, layers[layers >= 0]).mode().sort()[0]}"
    return ""


VALUE_READS = Rule(
    id="value_reads",
    analysis="idle",
    evidence=value_reads,
    runs="processor",
    advice=_FEW_READS,
    pattern="reads of tensor values (.item() and similar calls)",
)


# -- processor_operators ----------------------------------------------------------------------------

_FROM_DEVICE: Final = r"(?i)DtoH|DeviceToHost"


def computing_calls(scope: Scope) -> pl.DataFrame:
    """The `waiting_calls` that launch nothing, and take about as long as others on the same inputs: they compute on the processor."""
    return waiting_calls(scope).filter(~pl.col("launches") & ~pl.col("stands_out"))


def processor_operators(scope: Scope, _result: Idle) -> Evidence | None:
    """Operators of a run with a device compute on the processor, and the device waits for them.

    Such calls launch nothing, and take `COMPUTES_NS` or more in their own code, without API calls such as waits for the device.
    The calls of an operator on the same inputs all take about as long: a call that stands out is the matter of `long_calls`. At
    stake is the idle time that operator dispatch causes in them (`analyses.idle.causes`), and the time in which the device only
    copies what they compute on: copies to the host after which the thread launched nothing else before them.

    Fires when the device is idle in such calls for `WARNING_SHARE` of the window.
    """
    calls = computing_calls(scope)
    ns = int(calls["idle_ns"].sum())
    if not calls.height or ns < WARNING_SHARE * scope.duration:
        return None
    mine = pl.col("op_id").is_in(calls["span_id"].implode())
    idle = caused_idle(scope, "operator_dispatch", wanted=mine)
    named = [
        f"{name} ({count_of(part.height, 'call')}, {format_ns(int(part['idle_ns'].sum()))})"
        for name, part in operators_by_idle(calls)
    ]
    before = _copies_before(scope, calls["span_id"].to_numpy())
    copies, follow = np.unique(before[before >= 0]), int((before >= 0).sum())
    copying = _only_copying(scope, int(idle.columns("device_id").item(0, 0)), copies)
    text = (
        f"{count_of(calls.height, 'operator call launches nothing and takes', 'operator calls launch nothing and take')} "
        f"{format_ns(COMPUTES_NS)} or more; the device is idle for {format_ns(ns)} meanwhile{idle.where_in_code}, longest in "
        f"{listed(named)}."
    )
    if follow:
        text += (
            f" Before {format_count(follow)} of them, the thread's last launch was a copy from the device to the host; during "
            f"{count_of(copies.size, 'such copy', 'such copies')}, the device does nothing else for {format_ns(copying)}."
        )
    also = ", and copies to the host before them," if copying >= WARNING_SHARE * scope.duration else ""
    at_stake = bounded(ns + copying, scope)
    return Evidence(
        title=f"Operators that compute on the processor{also} keep the device from computing for {of_time(at_stake, scope)}",
        text=text,
        ns_at_stake=at_stake,
        advice=_OPTIMIZER_ON_DEVICE
        if 2 * _of_optimizer(idle.columns("phase", "duration_ns")) >= ns
        else _KEEP_ON_DEVICE
        if 2 * follow >= calls.height
        else None,
        stretches=longest(calls, by="idle_ns"),
    )


def _copies_before(scope: Scope, spans: Int64Array) -> Int64Array:
    """For each of these host spans the call that launched a copy from the device, if it is the thread's last launch before; else −1."""
    stack, device = attribution(scope).model.stack, scope.trace.device
    launched, copies = or_none(device["launch_id"]), NameTable(device["name"]).matching(_FROM_DEVICE)
    from_device = np.zeros(stack.size, dtype=bool)
    from_device[launched[(launched >= 0) & copies]] = True
    puts = np.append(-1, np.unique(launched[launched >= 0]))
    last = puts[np.searchsorted(puts, spans) - 1]  # rows are by thread and time
    same = take(stack.thread, last) == stack.thread[spans]
    return np.where((last >= 0) & same & from_device[last], last, -1)


def _only_copying(scope: Scope, device: int, launches: Int64Array) -> int:
    """The time in which a device only runs the copies that these calls launched, in ns."""
    mine = pl.col("launch_id").is_in(pl.Series(launches).implode()) & (pl.col("device_id") == device)
    rows = scope.activities.filter(mine)
    region = IntervalSet.of(rows["start"].to_numpy(), rows["end"].to_numpy()).clip(scope.start, scope.end)
    return (region - scope.intervals(device, "compute", "communication")).measure


def _of_optimizer(pieces: pl.DataFrame) -> int:
    """The idle time of these pieces that lies in the optimizer, in ns."""
    return int(pieces.filter(one_of("phase", "optimizer"))["duration_ns"].sum())


_OPTIMIZER_ON_DEVICE: Final = Advice(
    "The optimizer computes in host memory. Keep the parameters and its state on the device: move the model there before you "
    "create the optimizer, and create it with fused=True. If they do not fit, shard them across ranks (fully_shard), or keep the "
    "state in 8 bits."
)
_KEEP_ON_DEVICE: Final = Advice(
    'Keep their inputs on the device and compute there: leave out the copies to the host before them (.cpu(), .to("cpu")). If the '
    "host needs the result, copy only that, which is smaller."
)

PROCESSOR_OPERATORS = Rule(
    id="processor_operators",
    analysis="idle",
    evidence=processor_operators,
    runs="device",
    advice=Advice(
        "Compute on the device: create the inputs there (device=…), or copy them there first. What must run on the processor can "
        "run ahead of time, in another thread or in DataLoader workers."
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound", "idle", "memory-copy-bound"}),
)
