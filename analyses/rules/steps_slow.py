"""Rules about steps that differ from the others."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.idle.host_code import HOST_CODE
from tracekit.analyses.idle.span_causes import user_frames
from tracekit.analyses.rules.idle_calls import LongCalls
from tracekit.analyses.rules.idle_processors import COMPARED_STEPS
from tracekit.analyses.rules.idle_time import Blocked, blocked_pieces, caused_idle
from tracekit.analyses.rules.kernels_slower import (
    alike_by,
    become_slower,
    on_other_grids,
    with_shapes,
)
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded, by_share, longest
from tracekit.analyses.rules.steps_processors import MAIN_PART, compared, slow_steps
from tracekit.analyses.scope import Scope
from tracekit.analyses.start import without_start
from tracekit.analyses.steps import Steps
from tracekit.analyses.traits import traits
from tracekit.facts.idle_names import cause_name
from tracekit.facts.stack_names import NOT_A_LAYER
from tracekit.facts.units import format_count, format_ns, listed
from tracekit.groups import kept
from tracekit.names import short_frame
from tracekit.spans import Int64Array
from tracekit.trace import one_of

__all__ = ["STEP_VARIABILITY"]

# -- step_variability -------------------------------------------------------------------------------

MOST_VARIATION: Final = 0.10
"""A quiet machine repeats a step within a few percent."""
WORK: Final = "work"
COPIES: Final = "copies"
COPIES_PART: Final = 0.2
"""From this part of the difference on, copies are named beside another cause."""
TO_HOST: Final = "copies to the host"
_WAYS: Final = (("(?i)DtoH|DeviceToHost", TO_HOST), ("(?i)HtoD|HostToDevice", "copies to the device"))
_MOST_PLACED: Final = 20
"""The slow steps in which the place of the cause is looked up."""

MORE_KERNELS: Final = 1.02
"""Steps that repeat each other run the same number of kernels, give or take a few of the libraries' choice."""
EVALUATION_PART: Final = 0.8
"""If this part of the additional work is neither backward nor the optimizer's, the step does something beside training."""

OTHER_SIZES: Final = 0.1
"""Not every kernel has a larger grid for larger inputs; if some have, the inputs are larger."""

_DEVICE: Final = "device work"
_EVALUATION: Final = r"(?i)eval|valid|test"


def step_variability(scope: Scope, result: Steps) -> Evidence | None:
    """Some steps take longer than the median step, on the device too, and one thing takes most of the difference.

    The rule compares the spans of steps (with the work that they launch), so a host that runs ahead at an uneven pace does
    not count. Where the recording finds the device empty, the first step begins with its first kernel: what comes before, later
    steps hide. The time of a step is what the device works, and its idle time by cause (`analyses.idle.causes`). At stake is
    what the largest of these takes more in the slow steps than in a median one. Of idle time by operator dispatch, calls that
    take much longer than others of their operator are named. Code in which the host sleeps or waits for something else is told
    apart from Python that runs; a program that only infers may wait for requests, which come as they come. Copies beside which
    nothing runs, and which other steps do not make, are named and count beside idle time. If work of the device takes longer,
    the rule looks at where it was launched. Work in the optimizer and in collectives that other steps do not have (accumulated
    gradients), and kernels with other grids or shapes than in the other steps (inputs of another size), are no fault, nor are more
    batches before an update. Kernels that become slower for good are the matter of `kernels_slow_down`. If the slow steps are the
    first ones of the recording, the program warms up: that is a matter of the profile rather than of the run, so it is no more than a
    warning.

    Without a device, only operators count that the median step does not run, or not on inputs of this shape, and time outside
    operators in stretches that no other program explains: where the same operators take longer, the machine was busy.

    Fires with `COMPARED_STEPS` steps or more when steps are longer than the median by more than
    `MOST_VARIATION`, and half of the difference or more has one cause, or one and copies.
    """
    if result.table.height < COMPARED_STEPS or scope.window != "steps":
        return None
    table = without_start(scope, result.table)
    median = float(str(table["span_ns"].median()))
    slow = table.filter(pl.col("span_ns") > (1 + MOST_VARIATION) * median).sort("span_ns", descending=True)
    if not slow.height or slow.height > table.height / 2:
        return None
    if scope.on_cpu:
        return slow_steps(scope, table, slow)
    excess = int((slow["span_ns"] - median).sum())
    at_stake, cause = _cause_of(scope, table, slow, excess)
    if cause is None or at_stake < MAIN_PART * excess or at_stake < WARNING_SHARE * median:
        return None
    at_stake = min(cause.ns or at_stake, excess)
    first = _are_first(scope, table, slow)
    some = f"{slow.height} of {table.height}"
    if first:
        some = f"The first{'' if slow.height == 1 else f' {slow.height}'} of {table.height}"
    grave = first and by_share(bounded(at_stake, scope), scope.duration) == "critical"
    slowest = ", ".join(f"{row[0]} {format_ns(row[1])}" for row in slow[["name", "span_ns"]].head(3).rows())
    return Evidence(
        title=f"{some} steps {'is' if slow.height == 1 else 'are'} slow, mostly because of {cause.reason}",
        text=f"{compared(median, excess, slow.height)}; {format_ns(at_stake)} of that is {cause.reason}{cause.place}. The slowest: {slowest}.",
        ns_at_stake=bounded(at_stake, scope) if cause.sure else None,
        severity="warning" if grave and cause.sure else None,
        advice=_WARM_UP if first and cause.advice in (None, _SLOWER) else cause.advice,
        stretches=longest(slow.with_columns(pl.col("span_start").alias("start")), length="span_ns"),
    )


def _are_first(scope: Scope, table: pl.DataFrame, slow: pl.DataFrame) -> bool:
    """Whether the slow steps are those with which the recording begins."""
    marked = scope.trace.host.filter(one_of("kind", "step"))["start"]
    if (marked < scope.steps["start"].min()).any():
        return False
    first = table["span_start"].sort().head(slow.height)
    return slow["span_start"].is_in(first.implode()).all()


class _Cause(msgspec.Struct, frozen=True):
    """Why steps are slow, as a noun; the place as a clause; whether it is sure that they could be faster; the time of the reason, if
    it is not all of one cause.
    """

    reason: str
    place: str = ""
    advice: Advice | None = None
    sure: bool = True
    ns: int | None = None


def _cause_of(
    scope: Scope, table: pl.DataFrame, slow: pl.DataFrame, excess: int
) -> tuple[int, _Cause | None]:
    """What the slow steps have more of than a median one, in ns, and why, if `excess` is what they take more in all."""
    parts = _parts_of_steps(scope, table)
    numbers = slow["step"].to_list()
    those = table["step"].is_in(numbers).to_numpy()
    more = {what: int((row[those] - round(float(np.median(row)))).sum()) for what, row in parts.items()}
    copies = more.pop(COPIES)
    what, ns = max(more.items(), key=lambda item: item[1])
    added = copies >= MAIN_PART * int(parts[COPIES][those].sum())
    if added and copies >= COPIES_PART * excess and (what != WORK or copies >= MAIN_PART * ns):
        waits = {name: each for name, each in more.items() if name != WORK and each >= COPIES_PART * excess}
        cause = _copying(scope, slow, copies, waits)
        return cause.ns or copies, cause
    if what == "waits" and "inference" in traits(scope):
        return ns, None
    return ns, _work(scope, numbers, ns) if what == WORK else _waiting(scope, what, slow)


def _waiting(scope: Scope, cause: str, slow: pl.DataFrame) -> _Cause:
    """Idle time, with the place where the host was late in the slow steps."""
    spans = slow.head(_MOST_PLACED)[["span_start", "span_ns"]].rows()
    start, end = pl.col("start"), pl.col("start") + pl.col("duration")
    inside = [start.is_between(first, first + length, closed="left") for first, length in spans]
    wanted = pl.any_horizontal(inside)
    for what, rows in blocked_pieces(scope).items():
        if what == cause:
            blocking = idle_causes(scope).pieces["span_id"].filter(pl.Series(rows)).implode()
            idle = caused_idle(scope, *HOST_CODE, wanted=wanted & pl.col("span_id").is_in(blocking))
            reason, advice = _BLOCKED[what]
            return _Cause(reason, idle.where, advice)
    idle = caused_idle(scope, cause, wanted=wanted)
    # The device waits for a part of the call: it may begin before the step does on the device.
    during = [(start < first + length) & (end > first) for first, length in spans]
    calls = LongCalls.among(scope, pl.any_horizontal(during)) if cause == "operator_dispatch" else None
    if calls is not None and calls.idle_ns >= MAIN_PART * idle.ns:
        where = f". {calls.text[:-1]}{idle.where_in_code}"
        return _Cause(calls.noun, where, calls.advice, ns=calls.idle_ns)
    return _Cause(_REASONS.get(cause, cause_name(cause)), idle.where)


_REASONS: Final = {
    "unexplained": "idle time of unknown cause",
    "not_captured": "idle time whose cause is not captured",
    "dependency": "waits for another stream",
}
"""Causes whose names are no reasons."""


def _copying(scope: Scope, slow: pl.DataFrame, copies: int, waits: dict[str, int]) -> _Cause:
    """Copies of this time in ns beside which nothing runs, and the largest of these causes of idle time, if there is one."""
    rows = scope.activities.filter(
        (pl.col("class") == "memory") & pl.col("step").is_in(slow["step"].implode())
    )
    names = pl.col("name").cast(pl.String)
    ways = {
        words: int(rows.filter(names.str.contains(pattern))["duration"].sum()) for pattern, words in _WAYS
    }
    total = int(rows["duration"].sum())
    way = next((words for words, ns in ways.items() if ns >= MAIN_PART * total), "copies")
    advice = _LESS_SAVING if way == TO_HOST else None
    if not waits:
        return _Cause(way, "", advice, ns=copies)
    cause, ns = max(waits.items(), key=lambda item: item[1])
    waiting = _waiting(scope, cause, slow)
    ns = ns if waiting.ns is None else waiting.ns
    parts = sorted([(ns, waiting.reason), (copies, way)], reverse=True)
    times = listed([format_ns(part) for part, _ in parts])
    return _Cause(
        listed([name for _, name in parts]),
        f", {times}{waiting.place}",
        advice or waiting.advice,
        ns=ns + copies,
    )


# -- more work in some steps ------------------------------------------------------------------------


def _work(scope: Scope, slow: list[int], more: int) -> _Cause | None:
    """Why the device works longer in these steps, by `more` ns in all; None if that is no fault."""
    rows = with_shapes(attributed(scope), scope).with_columns(pl.col("step").is_in(slow).alias("slow"))
    phases = _more_by_phase(rows, len(slow), scope.steps.height)
    # Collectives and updates that the other steps do not have: gradients are accumulated over several steps.
    rare = phases.filter((pl.col("more_rows") > 0) & pl.col("phase").is_in(["optimizer", "communication"]))
    if int(rare["more_ns"].sum()) >= MAIN_PART * more:
        return None
    place = _only_in(scope, rows, slow, more)
    if place is not None:
        steps = "this step runs" if len(slow) == 1 else "these steps run"
        advice = _LESS_EVALUATION if re.search(_EVALUATION, place) else None
        return _Cause(_DEVICE, f", launched in {place}, which only {steps}", advice)
    of_phase = dict(phases[["phase", "more_ns"]].rows())
    if of_phase.get("communication", 0) >= MAIN_PART * more:
        return _Cause("collectives", "", _RANKS)
    updating = of_phase.get("backward", 0) + of_phase.get("optimizer", 0)
    added = sum(of_phase.values()) - updating
    if "training" in traits(scope) and added >= EVALUATION_PART * more and _added(rows):
        where = (
            ", in addition to what the other steps run; the backward pass and the optimizer take no longer"
        )
        return _Cause(_DEVICE, where, _LESS_EVALUATION)
    # Against a median step, kernels that are slower for good would cost too little.
    return None if become_slower(scope) else _kernels(rows, more)


def _added(rows: pl.DataFrame) -> bool:
    """Whether slow steps run more kernels than the others."""
    count, usual = _counts(rows)
    return count > MORE_KERNELS * usual


def _more_batches(rows: pl.DataFrame) -> bool:
    """Whether slow steps run the forward and the backward pass more often: both have as many times as many activities."""
    phase = rows["phase"].cast(pl.String)
    parts = kept(rows, phase == "backward"), kept(rows, ~phase.is_in(["backward", "optimizer"]))
    back, rest = (count / max(usual, 1) for count, usual in map(_counts, parts))
    return back > 1 + MOST_VARIATION and abs(back - rest) <= MOST_VARIATION * back


def _counts(rows: pl.DataFrame) -> tuple[float, float]:
    """How many activities a slow step has, and one of the others, on average."""
    parts = rows.filter("slow"), rows.filter(~pl.col("slow"))
    count, usual = (part.height / max(part["step"].n_unique(), 1) for part in parts)
    return count, usual


def _kernels(rows: pl.DataFrame, more: int) -> _Cause | None:
    """Why the kernels of slow steps take longer, by `more` ns in all; None if their inputs have another size, or they run more batches."""
    slow, others = rows.filter("slow"), rows.filter(~pl.col("slow"))
    sized = bool(rows["sized"].any())
    new = slow.filter(~pl.col("like").is_in(others["like"].unique().implode()))
    added = _added(rows)
    if sized and int(new["duration"].sum()) >= (MAIN_PART if added else OTHER_SIZES) * more:
        return None
    if added and _more_batches(rows):
        return None
    if added:
        count, usual = _counts(rows)
        return _Cause(
            _DEVICE,
            f" ({format_count(round(count))} activities a step instead of {format_count(round(usual))})",
        )
    if sized:
        if on_other_grids(slow, others):
            return None
        where = f", with {alike_by(rows)} as in the other steps"
        return _Cause("kernels that take longer", where, _SLOWER)
    unknown = "; the trace records neither grids nor shapes, so the inputs may be larger there"
    return _Cause(_DEVICE, unknown, sure=False)


def _more_by_phase(rows: pl.DataFrame, slow: int, steps: int) -> pl.DataFrame:
    """By `phase`: `more_ns` and `more_rows`, what all slow steps have more than as many of the others on average."""
    ratio = slow / max(steps - slow, 1)
    mine = pl.col("slow")
    return rows.group_by(pl.col("phase").cast(pl.String)).agg(
        (pl.col("duration").filter(mine).sum() - ratio * pl.col("duration").filter(~mine).sum()).alias(
            "more_ns"
        ),
        (mine.sum() - ratio * (~mine).sum()).alias("more_rows"),
    )


def _only_in(scope: Scope, rows: pl.DataFrame, slow: list[int], more: int) -> str | None:
    """The innermost range, or frame of the user's code, that only the slow steps have and that launched most of the additional work."""
    stack = attribution(scope).model.stack
    wanted = (stack.of_kind("annotation") & ~stack.named(NOT_A_LAYER, "annotation")) | user_frames(stack)
    spans = stack.frame.select(
        pl.col("name").cast(pl.String), "start", (pl.col("start") + pl.col("duration")).alias("end")
    ).filter(pl.Series(wanted))
    # A range named after the number of its step is in every step.
    spans = spans.with_columns(pl.col("name").str.replace_all(r"\d+", "#").alias("pooled"))
    starts, steps = scope.steps["start"].to_numpy(), scope.steps["step"].to_numpy()
    index = np.searchsorted(starts, spans["start"].to_numpy(), side="right") - 1
    spans = spans.with_columns(pl.Series("step", steps[np.maximum(index, 0)])).filter(pl.Series(index >= 0))
    in_slow = pl.col("step").is_in(slow)
    only = spans.filter(in_slow.all().over("pooled"))
    calls = stack.start[rows.filter("slow")["launch_id"].drop_nulls().to_numpy()]
    work = rows.filter(pl.col("slow") & pl.col("launch_id").is_not_null())["duration"].to_numpy()
    order = np.argsort(calls, kind="stable")
    until = np.concatenate([[0], np.cumsum(work[order])])
    low, high = (np.searchsorted(calls[order], only[edge].to_numpy()) for edge in ("start", "end"))
    held = only.with_columns(
        pl.Series("work", until[high] - until[low]), (pl.col("end") - pl.col("start")).alias("length")
    )
    sums = held.group_by("name").agg(pl.col("work").sum(), pl.col("length").sum())
    sums = sums.filter(pl.col("work") >= MAIN_PART * more).sort("length", "name")
    return short_frame(sums["name"][0]) if sums.height else None


def _parts_of_steps(scope: Scope, table: pl.DataFrame) -> dict[str, Int64Array]:
    """What each step consists of, in ns: `WORK`, `COPIES`, the part of it in which the device only copies, and the idle time of the
    busiest device by cause, or by what the host does in its code instead of running it (`Blocked`).
    """
    device = max(scope.device_ids, key=lambda each: (scope.intervals(each).measure, -each))
    start, length = table["span_start"].to_numpy(), table["span_ns"].to_numpy()
    pieces = idle_causes(scope).pieces.with_columns(pl.col("cause").cast(pl.String))
    for what, inside in reversed(blocked_pieces(scope).items()):
        pieces = pieces.with_columns(cause=pl.when(pl.Series(inside)).then(pl.lit(what)).otherwise("cause"))
    pieces = pieces.filter(pl.col("device_id") == device)
    step = np.searchsorted(start, pieces["start"].to_numpy(), side="right") - 1
    busy = scope.intervals(device)
    copying = busy - scope.intervals(device, "compute", "communication")
    parts = {WORK: busy.coverage(start, start + length), COPIES: copying.coverage(start, start + length)}
    for cause in pieces["cause"].unique().to_list():
        mine = (pieces["cause"] == cause).to_numpy() & (step >= 0)
        sums = np.bincount(step[mine], weights=pieces["duration_ns"].to_numpy()[mine], minlength=start.size)
        parts[cause] = sums.astype(np.int64)
    return parts


_BLOCKED: Final[dict[Blocked, tuple[str, Advice]]] = {
    "waits": (
        "the host waiting for something else",
        Advice("See what it waits for there: make that faster, or let it work further ahead."),
    ),
    "sleeps": (
        "the host sleeping",
        Advice("Remove the pause, or wait for a queue, an event or a condition instead."),
    ),
}
_LESS_EVALUATION: Final = Advice(
    "Evaluate less often, on fewer batches, or in another process, with torch.inference_mode() and a larger batch. Leave these "
    "steps out when you compare step times (--step)."
)
_LESS_SAVING: Final = Advice(
    "Do this less often, or alongside the steps: copy into pinned memory with non_blocking=True, and let another thread handle "
    "the result.\n"
    "[training] If it is a checkpoint, torch.distributed.checkpoint.async_save does so.",
    plain="Do this less often, or alongside the steps: copy into pinned memory, and let another thread handle the result.",
)
_RANKS: Final = Advice("Compare the ranks at these steps: another rank may have arrived late.")
_SLOWER: Final = Advice(
    "Find out what slows the device at these times: its clock (nvidia-smi -q -d PERFORMANCE,CLOCK shows whether power or heat "
    "limits it), other programs on it, or copies and collectives that run alongside the kernels."
)
_WARM_UP: Final = Advice(
    "Let the program warm up: run more steps before you record, or leave the first out (--step).",
    flags=("--warmup",),
)

STEP_VARIABILITY = Rule(
    id="step_variability",
    analysis="steps",
    evidence=step_variability,
    advice=Advice(
        "Compare a slow step with a median one (--step).\n"
        "[training] The usual causes are data loading, evaluation, checkpoints, logging, garbage collection and changing input "
        "shapes.\n"
        "[!training] The usual causes are logging, garbage collection and changing input shapes.",
        plain=(
            "Compare a slow step with a median one (--step). The usual causes are input and output, logging, allocation, "
            "other processes on the machine and inputs of changing size."
        ),
    ),
    explains=frozenset({"code_outside_operators"}),
)
