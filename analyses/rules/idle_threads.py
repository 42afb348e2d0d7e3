"""A rule about Python threads that keep each other from running."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.idle.host_code import host_code
from tracekit.analyses.program import program
from tracekit.analyses.rules.rule import HOST_CODE_ADVICE, Advice, Evidence, Rule, bounded, longest
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import ENGINE_CALL
from tracekit.facts.program_names import PYTHON_FUNCTION
from tracekit.facts.units import NS_PER_US, format_count, format_ns, format_share, times
from tracekit.findings import Stretches
from tracekit.groups import at_rows, or_none
from tracekit.intervals import IntervalSet
from tracekit.names import short_frame
from tracekit.spans import Int64Array
from tracekit.trace import one_of

__all__ = ["PYTHON_THREADS"]

# -- python_threads ---------------------------------------------------------------------------------

PYTHON_THREADS_LEAST_SHARE: Final = 0.05
"""Below a twentieth of the window, turns of other threads are not worth a change of the program."""
LEAST_PAUSE_NS: Final = 500 * NS_PER_US
"""Python lets another thread run for 5 ms, unless that one waits before; shorter pauses have other causes."""
PAUSES_PART: Final = 0.5
"""If other threads run in less than half of the pauses, they are not what the pauses have in common."""

LEAST_SAMPLES: Final = 20
"""Fewer samples of other threads prove nothing."""

_CAUSES: Final = ("python", "host_code", "operator_dispatch")
_WAITING: Final = (
    r"(?i)^<built-in .*\b(acquire|wait\w*|sleep|select|e?poll|recv\w*|read\w*|accept|join|get|synchronize)\b"
    rf"|{ENGINE_CALL}"
)
"""Functions in which a thread waits without the interpreter's lock."""
_OF_THE_LOCK: Final = "pthread_cond_timedwait"
"""How CPython waits for its lock on Linux."""


def python_threads(scope: Scope, result: Idle) -> Evidence | None:
    """The launching thread stops in the middle of its work while another thread of the process runs Python.

    Python runs one thread at a time (the global interpreter lock). A thread that enters or leaves a Python function has
    the lock at that moment. The rule looks at pauses of the launching thread of `LEAST_PAUSE_NS` or more in which the device
    is idle and that thread enters and leaves nothing (causes Python and dispatch of `analyses.idle.causes`), but not in
    built-in functions, nor in the autograd engine, nor outside all functions and operators, where it may have nothing to do. (By default PyTorch records the functions of the profiling thread only; `profile_all_threads` of
    its experimental_config records those of all threads.) At stake is the part of them in which another thread enters or leaves functions, up to the next such
    moment, without functions that wait. In profiles of Nsight Systems, the launching thread's calls of
    `pthread_cond_timedwait`, with which Python waits for the lock, take the place of these moments, and samples must show
    Python in other threads.

    Fires when that is `PYTHON_THREADS_LEAST_SHARE` of the window and `PAUSES_PART` of such pauses.
    """
    if not program(scope.trace).python:
        return None
    calls = _in_lock_calls(scope, result)
    if calls is not None:
        return calls
    stack = attribution(scope).model.stack
    pauses = _pauses(scope, stack)
    if not pauses.height:
        return None
    least = max(
        PYTHON_THREADS_LEAST_SHARE * scope.duration, PAUSES_PART * int(pauses["duration_ns"].sum()), 1
    )
    other, at_stake, function = _busiest_other(stack, pauses)
    if at_stake < least:
        return None
    share = format_share(at_stake / int(pauses["duration_ns"].sum()))
    return Evidence(
        title=f"Another Python thread runs while the device waits for launches, for {format_share(at_stake / scope.duration)} of the time",
        text=f"The launching thread stopped {times(pauses.height)} for {format_ns(LEAST_PAUSE_NS)} or more. For {share} of that "
        f"time, thread {other} ran Python, mostly {function}, while the launching thread entered and left no function. Python "
        "runs one thread at a time, so the launching thread may have been waiting for its turn.",
        ns_at_stake=bounded(at_stake, scope),
        stretches=longest(pauses, length="duration_ns"),
    )


def _in_lock_calls(scope: Scope, result: Idle) -> Evidence | None:
    """The evidence from calls of the operating system and samples; None without it."""
    if result.by_os_call is None:
        return None
    rows = result.by_os_call.filter(pl.col("os_call") == _OF_THE_LOCK)
    waited, total = int(rows["total_ns"].sum()), int(result.by_os_call["total_ns"].sum())
    samples = _samples_beside(scope)
    if (
        waited < max(PYTHON_THREADS_LEAST_SHARE * scope.duration, PAUSES_PART * total, 1)
        or samples < LEAST_SAMPLES
    ):
        return None
    return Evidence(
        title=f"Another Python thread runs while the device waits for launches, for {format_share(waited / scope.duration)} of the time",
        text=f"The device was idle for {format_ns(waited)} while the thread that launches next was in {_OF_THE_LOCK}, which "
        f"Python uses to wait for the global interpreter lock ({format_count(int(rows['calls'].sum()))} calls). During the idle time, "
        f"{format_count(samples)} samples show Python in other threads of the process. Other libraries use this call too, so the "
        "launching thread may have been waiting for something else.",
        ns_at_stake=bounded(waited, scope),
        stretches=_in_lock(scope),
    )


def _in_lock(scope: Scope) -> Stretches:
    """The longest of the waits for the lock in idle time."""
    waits, calls = host_code(scope.trace, idle_causes(scope).pieces), scope.trace.os_calls
    if calls is None:
        return ()
    calls = calls.filter(pl.col("name").cast(pl.String) == _OF_THE_LOCK)
    calls = calls.join(waits, on=["process_id", "thread_id"], how="semi", nulls_equal=True)
    start = calls["start"].to_numpy()
    region = IntervalSet.of(waits["start"].to_numpy(), waits["end"].to_numpy())
    region &= IntervalSet.of(start, start + calls["duration"].to_numpy())
    return longest(pl.DataFrame({"start": region.starts, "duration": region.ends - region.starts}))


def _samples_beside(scope: Scope) -> int:
    """How many samples show Python in another thread of the process while the device was idle for the launching thread."""
    if scope.trace.samples is None:
        return 0
    waits = host_code(scope.trace, idle_causes(scope).pieces)
    count = 0
    for (process, thread), mine in waits.group_by("process_id", "thread_id"):
        others = scope.trace.samples.filter(
            pl.col("process_id").eq_missing(process)
            & pl.col("thread_id").ne_missing(thread)
            & pl.col("stack").cast(pl.String).str.contains(PYTHON_FUNCTION)
        )
        region = IntervalSet.of(mine["start"].to_numpy(), mine["end"].to_numpy())
        count += int(region.contains(others["start"].to_numpy()).sum())
    return count


def _pauses(scope: Scope, stack: HostStack) -> pl.DataFrame:
    """Long pieces of idle time in which the launching thread was in a function or operator, and in none that needs no lock: `start`, `duration_ns`, `thread`, `process`."""
    pieces = idle_causes(scope).pieces.filter(
        one_of("cause", *_CAUSES) & (pl.col("duration_ns") >= LEAST_PAUSE_NS)
    )
    spans = or_none(pieces["span_id"])
    elsewhere = stack.named(f"^<built-in |{ENGINE_CALL}", "python")
    rows = np.maximum(spans, 0)
    wanted = (spans >= 0) & ~elsewhere[rows]
    thread, process = stack.thread[rows], stack.process[rows]
    return (
        pieces[["start", "duration_ns"]]
        .with_columns(pl.Series("thread", thread), pl.Series("process", process))
        .filter(pl.Series(wanted))
        .sort("start")
    )


def _busiest_other(stack: HostStack, pauses: pl.DataFrame) -> tuple[int, int, str]:
    """The thread that runs Python for the longest time in the pauses: its id, that time in ns, and its main function."""
    python = stack.of_kind("python")
    best = (-1, 0, "")
    for code in np.unique(stack.thread[python]).tolist():
        rows = np.flatnonzero(python & (stack.thread == code))
        # Another process has a lock of its own.
        mine = pauses.filter((pl.col("thread") != code) & (pl.col("process") == int(stack.process[rows[0]])))
        start, length = mine["start"].to_numpy(), mine["duration_ns"].to_numpy()
        if not start.size:
            continue
        edge = np.unique(np.concatenate([stack.start[rows], stack.end[rows]]))
        begin, end, inner = _turns(stack, code, edge, start, start + length)
        ns = IntervalSet.of(begin, end).measure
        if ns > best[1]:
            names = at_rows(stack.frame["name"].cast(pl.String), inner)
            most = pl.DataFrame({"name": names, "ns": end - begin}).group_by("name").agg(pl.col("ns").sum())
            name = str(most.sort("ns", "name")["name"][-1])
            best = (int(stack.frame["thread_id"][int(rows[0])]), ns, short_frame(name))
    return best


def _turns(
    stack: HostStack, code: int, edge: Int64Array, start: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The parts of pauses next to a moment in which the thread entered or left a function in the same pause: start, end and
    the innermost open function, without functions that wait and times in which none is open.
    """
    low, high = np.searchsorted(edge, start, side="left"), np.searchsorted(edge, end, side="right")
    chosen = np.flatnonzero(high > low)
    bounds = [np.concatenate([[start[i]], edge[low[i] : high[i]], [end[i]]]) for i in chosen.tolist()]
    begins = np.concatenate([np.zeros(0, np.int64), *(each[:-1] for each in bounds)])
    ends = np.concatenate([np.zeros(0, np.int64), *(each[1:] for each in bounds)])
    inner = stack.nesting.innermost_at(np.full(begins.size, code), begins)
    waits = stack.named(_WAITING, "python")
    wanted = (ends > begins) & (inner >= 0) & ~waits[np.maximum(inner, 0)]
    return begins[wanted], ends[wanted], inner[wanted]


PYTHON_THREADS = Rule(
    id="python_threads",
    analysis="idle",
    evidence=python_threads,
    runs="device",
    advice=Advice(
        "Move the work of the other thread (logging, decoding, checkpoints, metrics) into another process, or into library "
        "code that releases the lock.\n"
        "[!compiled !graphs] With fewer launches (torch.compile, CUDA graphs), the launching thread needs fewer turns.",
        plain=(
            "Move the work of the other thread into another process, or into library code that releases the global interpreter lock. "
            "With fewer launches, the launching thread needs fewer turns."
        ),
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
    explains=frozenset({"host_bound_launches", HOST_CODE_ADVICE}),
)
