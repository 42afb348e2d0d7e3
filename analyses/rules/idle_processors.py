"""Rules for runs without a device: code that holds the processors up, the global interpreter lock, double precision."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tracekit.analyses.attribution import attribution
from tracekit.analyses.completeness import completeness
from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.idle.tables import grouped, open_ranges, with_names
from tracekit.analyses.kernels import Kernels
from tracekit.analyses.processors import CPU_DEVICE
from tracekit.analyses.rules.idle_time import Blocked, blocked_in, caused_idle
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded, longest
from tracekit.analyses.scope import Scope
from tracekit.analyses.stalls import longest_between
from tracekit.facts.units import NS_PER_MS, count_of, format_count, format_ns, format_share
from tracekit.groups import at_rows, kept, or_none, rows_of, with_series
from tracekit.intervals import IntervalSet
from tracekit.names import short_frame, shorten_name
from tracekit.spans import Int64Array, nesting_of
from tracekit.trace import one_of

__all__ = [
    "CODE_OUTSIDE_OPERATORS",
    "COMPARED_STEPS",
    "DOUBLE_PRECISION",
    "INTERPRETER_LOCK",
    "PREEMPTION_NS",
    "remedy_of",
]

_CODE: Final = ("python", "host_code")

# -- code_outside_operators -------------------------------------------------------------------------

LONG_NS: Final = NS_PER_MS
"""Python that only calls the next operator takes some µs; 1 ms is work of its own."""
COMPARED_STEPS: Final = 4
"""Among three steps, nobody can say which one is unusual."""
PREEMPTION_NS: Final = 20 * NS_PER_MS
"""Another program takes the processor for some ms at a time; a longer stretch is the program's own."""
LONE_NS: Final = 100 * NS_PER_MS
"""Not even on a busy machine do other programs take so long at a time from a step that is one of a few."""
MOSTLY: Final = 0.5
"""A place is named if half of the time lies there."""
ENCLOSING: Final = 0.95
"""A range that is open for longer than this part of the window is no place in it."""
LONGEST: Final = 72
"""Characters of a range's name in a title."""

_COLLECT_LESS: Final = "Collect garbage less often: call gc.freeze() before the loop, and gc.collect() only every N steps or not at all."
_REMEDIES: Final = {
    r"torch/serialization|checkpoint|(?i:save)": (
        "Save checkpoints less often, or write them in another thread or process."
    ),
    r"<built-in (function|method) collect|(^|/)gc\.py": _COLLECT_LESS,
    r"(?i)(\b|_)log(s|g\w*|_\w*)?\b|print|progress|wandb|tensorboard|mlflow|metric": "Log less often, every N steps, or from another thread.",
}
"""What the names of frames show, and the advice about it."""

_COLLECTING: Final = r"^<built-in (function|method) collect\b"
_BLOCKED: Final[dict[Blocked, tuple[str, str]]] = {
    "waits": (
        "The program waits for something else",
        "The thread that runs the operators has nothing to do there.\n"
        "[!training] If it waits for requests, serve more of them.\n"
        "If it waits for another thread, a process or a service, make that faster, or let it work further ahead.",
    ),
    "sleeps": (
        "The program sleeps",
        "The thread that runs the operators does nothing there: remove the pause, or wait on a queue, an event or a condition "
        "instead, which returns as soon as there is work.",
    ),
}
"""What the title says, and the advice, where code of the host runs nothing."""


def remedy_of(place: str) -> str:
    """What to do about the code in this place, if its names show what it is; else what holds for all code."""
    found = next((advice for pattern, advice in _REMEDIES.items() if re.search(pattern, place)), "")
    return found or "Do this work less often, ahead of time, or in another thread or process."


def code_outside_operators(scope: Scope, _result: Idle) -> Evidence | None:
    """Without a device: code between two operators takes so long that it does more than to call the next one.

    At stake is the time of the cause python, or host code, of `analyses.idle.causes` in gaps in which it takes `LONG_NS` or
    more. A gap counts if there is one like it, in the same line and before the same operator, in half of the steps; without
    several steps, if it takes `PREEMPTION_NS`; among too few steps for `step_variability`, also if it takes `LONE_NS` and
    `WARNING_SHARE` of the window. What only a few of many steps do is the matter of `step_variability`, what happens
    anywhere that of other programs on the machine, and the optimizer's code that of `optimizer_not_fused`. The place is
    the line of the user's code with half of the time; without recorded stacks it is the innermost range with half of it that is
    not open for `ENCLOSING` of the window, or the ranges and operators between which the time lies. Where stacks show that this code
    mostly sleeps, waits or collects garbage, the title says so.

    Fires when this time takes `WARNING_SHARE` of the window, unless the gaps are those of `interpreter_lock`, or operators may be
    missing from the file: then those may have run meanwhile.
    """
    if not completeness(scope).sure:
        return None  # what lies between two recorded operators may be operators
    # The code of an optimizer is the matter of `optimizer_not_fused`.
    wanted = ~one_of("phase", "optimizer")
    gaps = _repeated(scope, _gaps(scope, wanted))
    total = int(gaps["ns"].sum())
    if not scope.duration or total < WARNING_SHARE * scope.duration or _waits_for_lock(scope):
        return None
    in_gaps = pl.col("gap_id").is_in(gaps["gap_id"].implode()) & wanted
    idle = caused_idle(scope, *_CODE, wanted=in_gaps)
    at_stake = bounded(total, scope)
    in_range = None if idle.frame else _range(scope, in_gaps)
    known = short_frame(idle.frame) if idle.frame else in_range
    place = f", mostly in {known}" if known else _between(scope, gaps)
    asks = "" if known else "\n[!stacks] Record {names} to see which code it is."
    mine = idle_causes(scope).pieces.select(in_gaps).to_series().to_numpy()
    what = "Python" if gaps["cause"][0] == "python" else "Host"
    title, remedy = (
        ("Garbage collection takes", _COLLECT_LESS)
        if _collects_garbage(scope, mine)
        else _BLOCKED.get(
            blocked_in(scope, mine), (f"{what} code outside operators takes", remedy_of(known or ""))
        )
    )
    return Evidence(
        title=f"{title} {format_share(at_stake / scope.duration)} of the time{place}",
        text=f"No operator ran for {format_ns(at_stake)} in {count_of(gaps.height, 'stretch', 'stretches')} of "
        f"{format_ns(LONG_NS)} or more{'' if in_range else idle.where}.",
        ns_at_stake=at_stake,
        stretches=idle.stretches,
        advice=Advice(f"{remedy}{asks}", flags=("--stack",) if asks else ()),
    )


def _collects_garbage(scope: Scope, mine: NDArray[np.bool_]) -> bool:
    """Whether the host mostly collects garbage in these pieces of idle time (by row of `IdleCauses.pieces`)."""
    pieces, stack = idle_causes(scope).pieces, attribution(scope).model.stack
    inside = stack.inside(_COLLECTING, or_none(pieces["span_id"]), "python")
    ns = pieces["duration_ns"].to_numpy()
    return bool(ns[mine & inside].sum() > MOSTLY * ns[mine].sum())


def _repeated(scope: Scope, gaps: pl.DataFrame) -> pl.DataFrame:
    """The gaps that are alike in half of the steps or more; among few steps, also those that are long.

    Alike are gaps in one line of the user's code, before the same call of an operator, or behind the same one. Where operators stand still,
    since something else has the processors, code that takes no longer than that counts if it is alike in all steps.
    """
    steps = scope.steps if scope.window == "steps" else scope.steps.clear()
    if steps.height < 2:
        return kept(gaps, gaps["ns"] >= PREEMPTION_NS)
    if not gaps.height:
        return gaps
    starts = steps["start"].to_numpy()
    gaps = with_series(_with_calls_around(scope, gaps, starts), _steps_at(starts, gaps["start"]))
    alike = pl.max_horizontal(
        pl.col("step").n_unique().over("frame", *call) for call in (("next", "call"), ("before", "after"))
    )
    half = max(2, -(-steps.height // 2))
    least = pl.when(pl.col("ns") <= longest_between(scope)).then(steps.height).otherwise(half)
    gaps = gaps.with_columns((alike >= least).alias("repeated"))
    if steps.height < COMPARED_STEPS:  # a checkpoint in one of three steps was in no finding
        once = pl.col("ns") >= max(LONE_NS, WARNING_SHARE * scope.duration)
        gaps = gaps.with_columns(pl.col("repeated") | once)
    of_frame = pl.col("repeated").any().over("frame")
    # No operator ends the gap at the end of the last step.
    return gaps.filter(pl.col("repeated") | (pl.col("next").is_null() & of_frame))


def _with_calls_around(scope: Scope, gaps: pl.DataFrame, starts: Int64Array) -> pl.DataFrame:
    """The gaps with the number `call`, in its step, of the operator that ends them, and the operator `before` them with its number `after`:
    nothing ends the gap at the end of the last step.
    """
    rows = scope.activities[["activity_id", "name", "start"]].sort("start")
    rows = with_series(rows, _steps_at(starts, rows["start"])).with_columns(
        pl.int_range(pl.len()).over("step", "name").alias("call")
    )
    gaps = gaps.join(
        rows.select(pl.col("activity_id").alias("ended_by"), "call"),
        on="ended_by",
        how="left",
        maintain_order="left",
    )
    row = np.searchsorted(rows["start"].to_numpy(), gaps["start"].to_numpy(), side="right") - 1
    return with_series(
        gaps, at_rows(rows["name"], row).alias("before"), at_rows(rows["call"], row).alias("after")
    )


def _steps_at(starts: Int64Array, times: pl.Series) -> pl.Series:
    """The number of the step that is open at each of these times."""
    return pl.Series("step", np.searchsorted(starts, times.to_numpy(), side="right"))


def _gaps(scope: Scope, wanted: pl.Expr | None = None) -> pl.DataFrame:
    """The gaps with code of `LONG_NS` or more: `gap_id`, `start`, `end`, `cause`, `frame`, `ended_by`, `next` (the operator that
    ends it) and `ns`, the time of that code; of the pieces of idle time for which `wanted` is true.
    """
    pieces = idle_causes(scope).pieces
    code = kept(pieces, pieces["device_id"] == CPU_DEVICE)
    code = code.filter(one_of("cause", *_CODE), *([] if wanted is None else [wanted]))
    longest = pl.col("duration_ns").arg_max()
    gaps = (
        code.group_by("gap_id")
        .agg(
            pl.col("start").min(),
            (pl.col("start") + pl.col("duration_ns")).max().alias("end"),
            pl.col("cause", "frame").cast(pl.String).get(longest),
            pl.col("ended_by").first(),
            pl.col("duration_ns").sum().alias("ns"),
        )
        .sort("start")
    )
    gaps = kept(gaps, gaps["ns"] >= LONG_NS)
    rows = rows_of(scope.activities["activity_id"], or_none(gaps["ended_by"]))
    return with_series(gaps, at_rows(scope.activities["name"], rows).alias("next"))


def _range(scope: Scope, wanted: pl.Expr) -> str | None:
    """The innermost of the user's ranges with half of the time of code in the pieces of idle time for which `wanted` is true; None if
    there is none, or if it encloses the window.
    """
    found = idle_causes(scope)
    if found.by_range is None:
        return None
    pieces = found.pieces.filter(one_of("cause", *_CODE), wanted)
    named = with_names(scope.trace, attribution(scope), pieces)
    sums = grouped(named, "range", open_ranges(named)).group_by("range").agg(pl.col("total_ns").sum())
    whole = found.by_range.filter(pl.col("open_share") >= ENCLOSING)["range"]
    least = MOSTLY * int(pieces["duration_ns"].sum())
    most = sums.filter(pl.col("total_ns") >= least, ~pl.col("range").is_in(whole.implode())).sort(
        "total_ns", "range"
    )
    return shorten_name(most["range"][-1], LONGEST) if most.height else None


def _between(scope: Scope, gaps: pl.DataFrame) -> str:
    """`, mostly between A and B`: the outermost ranges or operators around half of the time; `, mostly in A`: that in which it lies.

    Empty if there are none.
    """
    host = scope.trace.host.filter(one_of("kind", "op", "annotation"))
    if not host.height:
        return ""
    host = host.filter(pl.col("thread_id") == host["thread_id"].mode().sort()[0]).sort("start")
    outer = host.filter(pl.Series(nesting_of(host).depth() == 0))
    start = outer["start"].to_numpy()
    middle = (gaps["start"].to_numpy() + gaps["end"].to_numpy()) // 2
    before = np.searchsorted(start, middle, side="right") - 1
    inside = (start + outer["duration"].to_numpy())[np.maximum(before, 0)] > middle
    known = (before >= 0) & (inside | (before + 1 < start.size))
    names = outer["name"].cast(pl.String)
    places = pl.DataFrame(
        {
            "a": at_rows(names, np.maximum(before, 0)),
            "b": at_rows(names, np.minimum(before + 1, start.size - 1)),
            "inside": inside,
            "ns": gaps["ns"].to_numpy() * known,
        }
    ).with_columns(pl.when("inside").then(None).otherwise("b").alias("b"))
    a, b, ns = places.group_by("a", "b").agg(pl.col("ns").sum()).sort("ns", "a", "b").row(-1)
    if ns < MOSTLY * int(gaps["ns"].sum()):
        return ""
    return f", mostly in {a}" if b is None else f", mostly between {a} and {b}"


CODE_OUTSIDE_OPERATORS = Rule(
    id="code_outside_operators",
    analysis="idle",
    evidence=code_outside_operators,
    runs="processor",
    advice=Advice("Do this work less often, ahead of time, or in another thread or process."),
)


# -- interpreter_lock -------------------------------------------------------------------------------

SWITCH_NS: Final = 5 * NS_PER_MS
"""Python lets another thread run after this time (sys.getswitchinterval)."""
SWITCHED_NS: Final = round(5.9 * NS_PER_MS)
"""The thread also has to wake up."""
LEAST_WAITS: Final = 20
"""Fewer gaps of this length are chance."""
LOCK_PART: Final = 0.15
"""Some of the long gaps take about one switch interval if another thread holds the lock,"""
SHORTER_PART: Final = 0.1
"""and hardly any is shorter."""


def interpreter_lock(scope: Scope, _result: Idle) -> Evidence | None:
    """Without a device: another Python thread holds the global interpreter lock (GIL), so that the program waits between operators.

    Python hands the lock over every `SWITCH_NS`, so that each wait takes that long, or a multiple. At stake is the time
    of the cause python in gaps of `SWITCH_NS` or more.

    Fires when `LEAST_WAITS` gaps or more take `SWITCH_NS` or more, `LOCK_PART` of all gaps of 1 ms or more about one interval, and
    at most `SHORTER_PART` less.
    """
    if not scope.duration or not _waits_for_lock(scope):
        return None
    gaps = _gaps(scope).filter(pl.col("ns") >= SWITCH_NS)
    waits = gaps["ns"]
    at_stake = bounded(int(waits.sum()), scope)
    return Evidence(
        title=f"Another Python thread holds the global interpreter lock (GIL) for {format_share(at_stake / scope.duration)} of "
        "the time",
        text=f"Between operators the program waited {format_count(waits.len())} times, {format_ns(at_stake)} in all. The "
        f"typical wait takes {format_ns(float(str(waits.median())))}, and Python hands the lock to another thread every "
        f"{format_ns(SWITCH_NS)}.",
        ns_at_stake=at_stake,
        stretches=longest(gaps.with_columns((pl.col("end") - pl.col("start")).alias("duration")), by="ns"),
    )


def _waits_for_lock(scope: Scope) -> bool:
    """Whether most long gaps take as long as Python lets another thread run."""
    ns = _gaps(scope)["ns"].to_numpy()
    once = int(((ns >= 0.98 * SWITCH_NS) & (ns <= SWITCHED_NS)).sum())
    shorter = int((ns < 0.98 * SWITCH_NS).sum())
    return (
        ns.size - shorter >= LEAST_WAITS and once >= LOCK_PART * ns.size and shorter <= SHORTER_PART * ns.size
    )


INTERPRETER_LOCK = Rule(
    id="interpreter_lock",
    analysis="idle",
    evidence=interpreter_lock,
    runs="processor",
    advice=Advice(
        "Run the work of the other thread in another process (multiprocessing, DataLoader workers), or in code that releases the "
        "lock.",
        plain="Run the work of the other thread in another process, or in code that releases the lock.",
    ),
    explains=frozenset({"step_variability", "code_outside_operators", "short_operators"}),
    pattern="waits for the global interpreter lock (GIL), which another Python thread holds",
)


# -- double_precision -------------------------------------------------------------------------------

DOUBLE_LEAST_SHARE: Final = 0.1
"""Below a tenth of the window, faster products change little."""
SAVED: Final = 0.5
"""A float32 product moves half of the bytes and does twice as many operations at a time."""
_MATRIX: Final = ("gemm", "convolution", "attention", "rnn")


def double_precision(scope: Scope, _result: Kernels) -> Evidence | None:
    """Without a device: matrix products and convolutions compute in float64, which is seldom intended.

    The types of inputs are those that record_shapes=True records. At stake is half of the time of these operators.

    Fires when operators of the matrix categories with an input of type double take `DOUBLE_LEAST_SHARE` of the window.
    """
    double = scope.trace.host.filter(
        pl.col("dtypes").cast(pl.String).str.contains(r"(?i)^\W*double", strict=True)
    )["span_id"]
    rows = scope.activities.filter(one_of("category", *_MATRIX))
    mine = rows.filter(pl.col("launch_id").is_in(double.implode()))
    if not mine.height:
        return None
    taken = IntervalSet.of(mine["start"].to_numpy(), mine["end"].to_numpy()).measure
    if taken < DOUBLE_LEAST_SHARE * scope.duration:
        return None
    name = _largest(mine)
    return Evidence(
        title=f"Matrix products and convolutions in float64 take {format_share(taken / scope.duration)} of the time",
        text=f"Operators with inputs of type double take {format_ns(taken)}. {name} takes the most.",
        ns_at_stake=bounded(round(SAVED * taken), scope),
        stretches=longest(mine),
    )


def _largest(rows: pl.DataFrame) -> str:
    sums = rows.group_by(pl.col("name").cast(pl.String)).agg(pl.col("duration").sum())
    return str(sums.sort("duration", "name")["name"][-1])


DOUBLE_PRECISION = Rule(
    id="double_precision",
    analysis="kernels",
    evidence=double_precision,
    runs="processor",
    advice=Advice(
        "Use float32. NumPy arrays are float64: convert the data once, with .float() or astype(numpy.float32), and remove "
        ".double() and torch.set_default_dtype(torch.float64)."
    ),
)
