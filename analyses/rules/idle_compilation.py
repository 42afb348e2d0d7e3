"""Rules about compilation: code that is compiled while steps run, and compiled functions that leave their graphs."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.idle import Idle
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.rules.idle_processors import COMPARED_STEPS
from tracekit.analyses.rules.idle_time import LAUNCHING, CausedIdle, caused_idle
from tracekit.analyses.rules.rule import HOST_CODE_ADVICE, Advice, Evidence, Rule
from tracekit.analyses.scope import Scope, step_spans
from tracekit.facts.stack_names import CACHE_LOOKUP, COMPILED_GRAPH, COMPILED_REGION
from tracekit.facts.units import count_of, format_count, format_ns, format_share, times
from tracekit.spans import BoolArray, Int64Array

__all__ = ["COMPILATION_IN_STEPS", "COMPILING", "GRAPH_BREAKS", "compiled_at_first"]

# -- compilation_in_steps ---------------------------------------------------------------------------

COMPILATION_IN_STEPS_LEAST_SHARE: Final = 0.02
"""In a steady state nothing is compiled; a lookup in the cache of compiled code takes less than this."""
LOOKUPS_PART: Final = 0.5
"""If half of the time goes to such lookups, they are the cost, not compilation."""
COMPILING: Final = "Tracing and compilation"
"""How the title begins if they are not."""


def compilation_in_steps(scope: Scope, _result: Idle) -> Evidence | None:
    """Steps trace or compile code while the device is idle; without a device, while no operator runs.

    At stake is the idle time that compilation causes (`analyses.idle.causes`); where the first steps compile, others do not, and
    later ones do again, only that of the later ones. API calls that build code do not count,
    because they are first-time work and belong to `cold_start`. If most of the time goes to lookups in the cache of
    compiled code, the rule says that nothing is compiled: the conditions of the compiled code (guards) are checked.

    Fires when tracing and compilation keep the device idle for `COMPILATION_IN_STEPS_LEAST_SHARE` of the window.
    """
    idle = _compiling(scope)
    if not scope.duration or idle.ns / scope.duration < COMPILATION_IN_STEPS_LEAST_SHARE:
        return None
    who = "no operator ran" if scope.on_cpu else "the device was idle"
    lookups = _in_lookups(scope)
    checks = lookups >= LOOKUPS_PART * idle.ns
    what = "Checks of compiled code" if checks else COMPILING
    while_ = "the cache of compiled code was searched" if checks else "code was traced or compiled"
    first = 0 if checks else compiled_at_first(scope)
    of_steps, advice = ("", _GUARDS) if checks else _of_steps(scope, idle, first)
    at_first = f", {format_ns(first)} of it in the first steps" if first else ""
    return Evidence(
        title=f"{what} take {format_share(idle.ns / scope.duration)} of the time{at_first}",
        text=f"For {format_ns(idle.ns)} {who} while {while_}{idle.where}.{of_steps}",
        ns_at_stake=idle.ns - first,
        advice=advice,
        stretches=idle.stretches,
    )


def compiled_at_first(scope: Scope) -> int:
    """The idle time in ns for which the first steps compile, if others do not, and later ones do again."""
    return scope.once(compiled_at_first, lambda: _compiled_at_first(scope))


def _compiled_at_first(scope: Scope) -> int:
    if scope.window != "steps" or scope.steps.height < 2:
        return 0
    ns, compiles = _by_step(scope, _compiling(scope))
    first = int(np.argmin(compiles))
    return int(ns[:first].sum()) if compiles[first:].any() else 0


def _compiling(scope: Scope) -> CausedIdle:
    return caused_idle(scope, "compilation", wanted=pl.col("span_kind") != "runtime")


def _by_step(scope: Scope, idle: CausedIdle) -> tuple[Int64Array, BoolArray]:
    """What compilation takes in each step, in ns, and in which steps that is more than nothing."""
    spans = step_spans(scope)
    start, length = (each.to_numpy() for each in idle.columns("start", "duration_ns"))
    at = np.searchsorted(spans["span_start"].to_numpy(), start, "right") - 1
    ns = np.bincount(np.maximum(at, 0), length, spans.height).astype(np.int64)
    usual = float(str((spans["span_end"] - spans["span_start"]).median()))
    return ns, ns >= COMPILATION_IN_STEPS_LEAST_SHARE * usual


def _of_steps(scope: Scope, idle: CausedIdle, first: int) -> tuple[str, Advice | None]:
    """How many of several steps compile, as a sentence, and the advice for those; nothing if none tells whether others will.

    `first` is what `compiled_at_first` says.
    """
    if scope.window != "steps" or scope.steps.height < 2:
        return "", None
    _, compiles = _by_step(scope, idle)
    others = np.flatnonzero(~compiles)
    again = compiles[others[0] :].any() if others.size else compiles.size >= COMPARED_STEPS
    count = int(compiles.sum())
    if not count or not (others.size or again):
        return "", None
    told = f" {format_count(count)} of {count_of(compiles.size, 'step')} {'compiles' if count == 1 else 'compile'}"
    if first:
        later = format_ns(idle.ns - first)
        return f"{told}: the first ones for {format_ns(first)}, later ones for {later}.", _BOTH
    return f"{told}.", _AGAIN if again else _WARM_UP


def _in_lookups(scope: Scope) -> int:
    """The idle time of the devices in lookups in the cache of compiled code, in ns."""
    host = scope.trace.host
    lookups = host.filter(pl.col("name").cast(pl.String) == CACHE_LOOKUP)["span_id"]
    pieces = idle_causes(scope).pieces.filter(pl.col("span_id").is_in(lookups.implode()))
    return int(pieces["duration_ns"].sum())


_GUARDS: Final = Advice(
    "Nothing is compiled: before each call, conditions on the inputs and on Python objects (guards) are checked. "
    "TORCH_LOGS=guards lists them. Compile fewer and larger functions, without graph breaks, and pass fewer Python objects; "
    "once code is compiled for all inputs, torch.compiler.set_stance(skip_guard_eval_unsafe=True) checks fewer guards."
)

_RECOMPILES: Final = (
    "TORCH_LOGS=recompiles says why; mark dynamic shapes (torch._dynamo.mark_dynamic) and keep Python values out of the "
    "model's inputs."
)
_AGAIN: Final = Advice(
    f"Code is compiled again in later steps: find out what changes there, such as shapes.\n[compiled] {_RECOMPILES}",
    plain="Kernels are built again in later iterations: keep what was built, and build for all sizes before the loop.",
)
_BOTH: Final = Advice(
    "The first steps compile: run some steps before you record. But code is compiled again in later steps: find out what changes "
    f"there, such as shapes.\n[compiled] {_RECOMPILES}",
    plain=f"Load and compile before you record: run some iterations first. {_AGAIN.plain}",
)
_WARM_UP: Final = Advice(
    "Only the first steps compile: run some steps before you record.",
    plain="Load and compile before you record: run some iterations first.",
)

COMPILATION_IN_STEPS = Rule(
    id="compilation_in_steps",
    analysis="idle",
    evidence=compilation_in_steps,
    advice=Advice(
        "Run some steps before you record. If compilation remains, something is compiled again and again.\n"
        f"[compiled] {_RECOMPILES}",
        plain=(
            "Load and compile before you record: run some iterations first, and build kernels and graphs before the "
            "loop."
        ),
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
    explains=frozenset({"step_variability"}),
    pattern="tracing and compilation",
)


# -- graph_breaks -----------------------------------------------------------------------------------

BETWEEN_GRAPHS: Final = (*LAUNCHING, "compilation", "synchronisation", "collective_bookkeeping")
"""What a break between graphs costs: Python, what it launches and waits for, and the lookup of the next graph."""
GRAPH_BREAKS_LEAST_SHARE: Final = 0.05
"""Python between two graphs takes some tens of µs; below a twentieth of the window the device hides it, or it does not matter."""


def graph_breaks(scope: Scope, _result: Idle) -> Evidence | None:
    """A compiled function leaves its graph for Python code and goes on in another graph, and the device waits meanwhile.

    When torch.compile cannot compile a part of a function, the rest of the function becomes a graph of its own, whose span
    (`Torch-Compiled Region`) lies inside that of the first; functions that are compiled one by one have spans beside each
    other. At stake is the idle time of the device in such nested regions, outside the calls of the graphs themselves.

    Fires when the device is idle between the graphs of one function for `GRAPH_BREAKS_LEAST_SHARE` of the window.
    """
    stack = attribution(scope).model.stack
    region = stack.named(COMPILED_REGION)
    above = stack.nesting.nearest_ancestor(region, include_self=False)
    inner = np.flatnonzero(region & (above >= 0))
    if not inner.size:
        return None
    outer = np.zeros(stack.size, dtype=bool)
    outer[above[inner]] = True
    graph = stack.nesting.nearest_ancestor(stack.named(COMPILED_GRAPH)) >= 0
    between = np.flatnonzero((stack.nesting.nearest_ancestor(outer) >= 0) & ~graph)
    mine = pl.col("span_id").is_in(pl.Series(between).implode())
    idle = caused_idle(scope, *BETWEEN_GRAPHS, wanted=mine)
    low, high = scope.host_window()
    breaks = int(((stack.start[inner] >= low) & (stack.start[inner] < high)).sum())
    if not breaks or idle.ns < GRAPH_BREAKS_LEAST_SHARE * scope.duration:
        return None
    steps = scope.steps.height if scope.window == "steps" else 0
    each = f", {breaks / steps:,.0f} a step" if steps else ""
    return Evidence(
        title=f"Graph breaks keep the device waiting for {format_share(idle.ns / scope.duration)} of the time",
        text=f"A compiled function left its graph for Python {times(breaks)}{each}, and continued in another graph "
        f"(a Torch-Compiled Region inside another). Between the graphs the device was idle for {format_ns(idle.ns)}{idle.where}.",
        ns_at_stake=idle.ns,
        stretches=idle.stretches,
    )


GRAPH_BREAKS = Rule(
    id="graph_breaks",
    analysis="idle",
    evidence=graph_breaks,
    runs="device",
    advice=Advice(
        "TORCH_LOGS=graph_breaks lists each break with its line and reason; fullgraph=True makes each an error. The usual "
        "reasons are print and logging, .item() and conditions on tensors, and functions that torch.compile cannot trace. Move "
        "them out of the compiled function."
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound"}),
    explains=frozenset(
        {
            *("host_bound_launches", "short_kernels", "compilation_in_steps", "blocking_synchronisation"),
            HOST_CODE_ADVICE,
        }
    ),
)
