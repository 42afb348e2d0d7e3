"""The rule about calls that take memory from the driver or give it back."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.launches import Launches
from tracekit.analyses.program import program
from tracekit.analyses.rules.idle_time import (
    CONTEXT_CREATION_NS,
    LAUNCHING,
    CausedIdle,
    calls_with_roles,
    caused_idle,
)
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.launch_apis import RETURNED_MEMORY
from tracekit.facts.units import count_of, format_count, format_ns, format_share, times
from tracekit.groups import kept, with_series
from tracekit.spans import Int64Array, take

__all__ = ["ALLOCATION_CALLS"]

ALLOCATION_CALLS_LEAST_SHARE: Final = 0.01
"""In a steady state the share is zero: after the first steps the caching allocator no longer calls the driver."""
LEAST_EMPTIED: Final = 2
"""A program may empty the cache once, between two parts of its work."""
STEADY: Final = 0.5
"""In a warm-up the calls become fewer; if the last step has half as many as the first, they are the usual ones."""

_HOST_ALLOCATION: Final = r"Host(Alloc|Malloc|Free|Register|Unregister)|(Malloc|Free)Host"
_AFTER_WARM_UP: Final = "Profile after warm-up. If the calls remain, "
_PIN_ONCE: Final = "in a few buffers once and copy into them: these calls lock host memory, which takes long."
_OF_CACHE: Final = (
    "eep input shapes constant.\n"
    "[!amd] PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets the cache grow in place."
)


def allocation_calls(scope: Scope, result: Launches) -> Evidence | None:
    """The program takes memory from the driver or returns it inside the window, which PyTorch's cache should avoid.

    At stake is the idle time that allocation causes (`analyses.idle.causes`). Calls that last `CONTEXT_CREATION_NS` create
    the device's context; they belong to `cold_start`.

    A PyTorch program that gives memory back outside of operators `LEAST_EMPTIED` times, with launches in between, empties its
    cache again and again. Its host then starts from behind, and so the launches after the calls come late: the idle time before
    them is at stake, too, up to the time that the calls took since the cache was emptied.

    Fires when allocation calls keep the devices idle for `ALLOCATION_CALLS_LEAST_SHARE` of the window.
    """
    if not result.calls.height:
        return None
    every = calls_with_roles(scope, result)
    calls = kept(
        every,
        (every["role"] == "allocation")
        & (every["duration"] < CONTEXT_CREATION_NS)
        & (every["end"] > scope.start)
        & (every["start"] < scope.end),
    )
    if not calls.height:
        return None
    calls = with_series(calls, calls["name"].cast(pl.String))
    short = pl.col("span_ns").is_null() | (pl.col("span_ns") < CONTEXT_CREATION_NS)
    idle = caused_idle(scope, "allocation", wanted=short)
    emptied = _emptied(scope, every, calls)
    at_stake = max(_until_ahead(scope, calls, emptied), idle.ns) if emptied.size else idle.ns
    if at_stake / scope.duration < ALLOCATION_CALLS_LEAST_SHARE:
        return None
    if emptied.size:
        return _of_emptied(scope, calls, emptied, at_stake, idle)
    names = (
        calls.group_by("name")
        .agg(pl.len(), pl.col("duration").sum())
        .sort("duration", "name", descending=[True, False])
    )
    listed = ", ".join(
        f"{format_count(count)} × {name} ({format_ns(time)})" for name, count, time in names.head(3).rows()
    )
    calls_ = count_of(
        calls.height, "call that allocates or frees memory keeps", "calls that allocate or free memory keep"
    )
    steps = _steps_with(scope, calls)
    each = f" They come in each of {format_count(steps)} steps." if steps else ""
    return Evidence(
        title=f"{calls_} the device idle for {format_share(at_stake / scope.duration)} of the time",
        text=f"The calls: {listed}. They cause {format_ns(at_stake)} of idle time{idle.where}.{each}",
        ns_at_stake=at_stake,
        advice=_advice(
            of_host=bool(names["name"].str.contains(_HOST_ALLOCATION)[0]),
            each_step=bool(steps),
            frees=bool(names["name"].str.contains(RETURNED_MEMORY).any()),
        ),
        stretches=idle.stretches,
    )


def _advice(*, of_host: bool, each_step: bool, frees: bool) -> Advice | None:
    """PyTorch's cache on the device and its settings have nothing to do with memory of the host; calls that come in each step
    are no warm-up; and where nothing is given back, nobody empties the cache.
    """
    if of_host:
        plain = "Allocate page-locked host memory before the loop, and reuse it."
        if each_step:
            return Advice(f"P{_PIN_ONCE}", plain=plain)
        return Advice(f"{_AFTER_WARM_UP}p{_PIN_ONCE}", plain=plain, flags=("--warmup",))
    if each_step:
        return Advice(f"K{_OF_CACHE}", plain=_POOL)
    return None if frees else Advice(f"{_AFTER_WARM_UP}k{_OF_CACHE}", plain=_POOL, flags=("--warmup",))


_POOL: Final = "Allocate before the loop and reuse the memory, or take it from a pool (cudaMallocAsync, or the library's pool)."


def _steps_with(scope: Scope, calls: pl.DataFrame) -> int:
    """The number of steps, if the calls come in each of several, and do not become few; else 0."""
    if scope.window != "steps" or scope.steps.height < LEAST_EMPTIED:
        return 0
    step = np.searchsorted(scope.steps["start"].to_numpy(), calls["start"].to_numpy(), side="right") - 1
    counts = np.bincount(step[step >= 0], minlength=scope.steps.height)
    return scope.steps.height if counts.all() and counts[-1] >= STEADY * counts[0] else 0


# -- a cache that is emptied again and again ----------------------------------------------------------


def _emptied(scope: Scope, every: pl.DataFrame, calls: pl.DataFrame) -> Int64Array:
    """When the cache was emptied: the begin of each series of calls outside operators that give memory back, without launches in
    between; empty unless that happens again and again.

    The allocator itself gives memory back only inside an operator that asks for more.
    """
    none = np.zeros(0, dtype=np.int64)
    frees = kept(calls, calls["name"].str.contains(RETURNED_MEMORY))
    if not frees.height or not scope.once(program, lambda: program(scope.trace)).pytorch:
        return none
    outside = take(attribution(scope).model.stack.operator, frees["span_id"].to_numpy()) < 0
    start = np.sort(frees["start"].to_numpy()[outside])
    launches = every["start"].filter(every["role"] == "launch").sort().to_numpy()
    number = np.searchsorted(launches, start)
    first = start[np.diff(number, prepend=-1) > 0]
    return first if first.size >= LEAST_EMPTIED else none


def _until_ahead(scope: Scope, calls: pl.DataFrame, emptied: Int64Array) -> int:
    """The idle time of allocation and late launches, in ns, from each time on that the cache was emptied up to the next, at most
    what the calls take of the host meanwhile.
    """
    idle = caused_idle(scope, "allocation", *LAUNCHING).columns("start", "duration_ns")
    lost, waited = (
        np.bincount(
            np.searchsorted(emptied, rows["start"].to_numpy(), side="right"),
            weights=rows[ns].to_numpy(),
            minlength=emptied.size + 1,
        )
        for rows, ns in ((calls, "duration"), (idle, "duration_ns"))
    )
    return round(float(np.minimum(lost, waited).sum()))


def _of_emptied(
    scope: Scope, calls: pl.DataFrame, emptied: Int64Array, at_stake: int, idle: CausedIdle
) -> Evidence:
    back = calls["name"].str.contains(RETURNED_MEMORY)
    freed, asked = int(back.sum()), int((~back).sum())
    again = f", and {format_count(asked)} ask for memory again" if asked else ""
    late = at_stake - idle.ns
    behind = f", and for {format_ns(late)} more because later launches come late" if late > 0 else ""
    return Evidence(
        title=f"The cache of device memory is emptied {times(emptied.size)}, and the device idles for "
        f"{format_share(at_stake / scope.duration)} of the time",
        text=f"{format_count(freed)} calls outside operators give memory back to the driver, as torch.cuda.empty_cache() "
        f"does{again}. These calls take {format_ns(int(calls['duration'].sum()))} of the host's time. Meanwhile, the device is idle "
        f"for {format_ns(idle.ns)}{idle.where}{behind}.",
        ns_at_stake=at_stake,
        advice=_KEEP,
        stretches=idle.stretches,
    )


_KEEP: Final = Advice(
    "Remove torch.cuda.empty_cache() from the loop. The cache then keeps the blocks, and the next step reuses them without a "
    "driver call."
)

ALLOCATION_CALLS = Rule(
    id="allocation_calls",
    analysis="launches",
    evidence=allocation_calls,
    runs="device",
    advice=Advice(
        f"{_AFTER_WARM_UP}remove torch.cuda.empty_cache() from the loop and k{_OF_CACHE}",
        plain=_POOL,
        flags=("--warmup",),
    ),
    answers=frozenset({"host-bound"}),
)
