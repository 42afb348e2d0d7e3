"""The host waits for the device in the middle of a step, and the device then waits for the host.

A wait is a call with the role synchronisation, or a copy to host memory whose call took as long as one (a copy into
pageable memory blocks although its name says Async). Named is the operator that waits most (`aten::item`,
`aten::nonzero`, `aten::to`, …). The last wait of a step, after which nothing more is launched in it, is how a step
ends and does not count. At stake is the device's idle time inside the waits (the cause synchronisation of
`analyses.idle_causes`) and from the end of each to the next activity, at most `MOST_IDLE_AFTER_NS` each: with the
wait removed, the host would have been ahead by then.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.launches import Launches
from tracekit.analyses.rules.calls import calls_with_roles, outermost_operators
from tracekit.analyses.rules.idle_time import CausedIdle, caused_idle
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, all_idle
from tracekit.analyses.scope import Scope
from tracekit.facts.units import NS_PER_MS, NS_PER_US, format_count, format_ns, format_share
from tracekit.intervals import IntervalSet
from tracekit.trace import Trace

__all__ = ["RULE"]

LEAST_STAKE: Final = 0.01
"""Idle time after waits below 1 % of the window is not worth a change of code."""
LEAST_WAIT: Final = 0.05
"""Waiting for a twentieth of the window keeps the host from running ahead, even if the device idles little yet."""
MOST_IDLE_AFTER_NS: Final = NS_PER_MS
"""The host launches again some tens of µs after a wait; idle time beyond 1 ms has another cause."""
BLOCKING_COPY_NS: Final = 50 * NS_PER_US
"""An asynchronous copy call returns within some 10 µs; one that takes longer has waited."""

_REMEDY: Final = {
    "item|local_scalar|is_nonzero|bool": Advice(
        "Keep the value on the device: accumulate losses and metrics as tensors and call .item() every N steps; "
        "replace Python conditions on tensors by torch.where."
    ),
    "nonzero|masked_select|unique|index": Advice(
        "Its result's size depends on the data, so the host must wait: use a mask, torch.where or a fixed size "
        "(torch.nonzero_static)."
    ),
    "to|copy|cpu|_to_copy": Advice(
        "Copy with non_blocking=True from and into pinned memory, and read results a step later.",
        flags=("--pin-memory",),
    ),
}
"""The beginning of an operator's name → what to do about its wait."""


def evidence(scope: Scope, result: Launches) -> Evidence | None:
    """Fires when waits inside steps leave the device idle, or take much of the host's time."""
    trace = scope.trace
    if not result.calls.height:
        return None
    calls = calls_with_roles(scope, result)
    waits = _inside_steps(_waits(trace, calls), calls, scope)
    waits = waits.filter((pl.col("end") > scope.start) & (pl.col("start") < scope.end))
    if not waits.height:
        return None
    at_stake = _idle_after(waits, scope)
    waited = (
        IntervalSet.of(waits["start"].to_numpy(), waits["end"].to_numpy())
        .clip(scope.start, scope.end)
        .measure
    )
    if at_stake / scope.duration < LEAST_STAKE and waited / scope.duration < LEAST_WAIT:
        return None
    by_operator = (
        waits.with_columns(outermost_operators(scope, waits["span_id"]))
        .group_by("operator")
        .agg(pl.len().alias("count"), pl.col("duration").sum(), pl.col("name").mode().sort().first())
        .sort("duration", "operator", descending=[True, False], nulls_last=True)
    )
    worst = by_operator.row(0, named=True)
    idle = caused_idle(scope, "synchronisation")
    inside = f", {format_ns(idle.ns)} of it in the waits{_place(idle)}" if idle.ns else ""
    where = "in mid-step" if scope.window == "steps" else "before it launches more"
    who = worst["operator"] or f"{worst['name']} outside any operator"
    return Evidence(
        title=f"The host waits {_times(waits.height)} for the device {where}, {format_share(waited / scope.duration)} of the time",
        text=f"It waited {format_ns(waited)}, and {format_ns(at_stake)} of device idle time followed{inside}. Most in {who}: "
        f"{_times(worst['count'])}, {format_ns(worst['duration'])} ({worst['name']}).",
        ns_at_stake=at_stake,
        advice=_remedy(worst["operator"]),
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{format_count(count)} times"


def _waits(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    to_host = trace.device.filter(
        (pl.col("kind") == "memcpy") & pl.col("name").cast(pl.String).str.contains("DtoH", literal=True)
    )["launch_id"].drop_nulls()
    blocking_copy = pl.col("span_id").is_in(to_host.implode()) & (pl.col("duration") >= BLOCKING_COPY_NS)
    return calls.filter((pl.col("role") == "synchronisation") | blocking_copy)


def _inside_steps(waits: pl.DataFrame, calls: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """Waits after which something more is launched in the same step (without steps: at all)."""
    launches = calls.filter(pl.col("role") == "launch").sort("start")["start"].to_numpy()
    end = waits["end"].to_numpy()
    limit = np.full(end.size, np.iinfo(np.int64).max)
    if scope.window == "steps":
        starts, ends = scope.steps["start"].to_numpy(), scope.steps["end"].to_numpy()
        index = np.searchsorted(starts, waits["start"].to_numpy(), side="right") - 1
        limit = np.where(index >= 0, ends[np.maximum(index, 0)], 0)
    following = np.searchsorted(launches, end, side="left")
    padded = np.append(launches, np.iinfo(np.int64).max)
    return waits.filter(pl.Series(padded[following] < limit))


def _idle_after(waits: pl.DataFrame, scope: Scope) -> int:
    """Idle time of the devices in each wait, and from its end until they work again."""
    idle, end = all_idle(scope), waits["end"].to_numpy()
    inside = idle & IntervalSet.of(waits["start"].to_numpy(), end)
    if not idle:
        return 0
    index = np.maximum(np.searchsorted(idle.starts, end, side="right") - 1, 0)
    after = (idle.starts[index] <= end) & (end < idle.ends[index])
    last = np.minimum(idle.ends[index][after], end[after] + MOST_IDLE_AFTER_NS)
    return (inside | IntervalSet.of(end[after], last)).measure


def _place(idle: CausedIdle) -> str:
    """The line of code and the layer; the operator is named anyway."""
    return replace(idle, operator=None).where


def _remedy(operator: str | None) -> Advice | None:
    name = (operator or "").rsplit("::", 1)[-1]
    return next((advice for begin, advice in _REMEDY.items() if re.match(f"_?(?:{begin})", name)), None)


RULE = Rule(
    id="blocking_synchronisation",
    analysis="launches",
    evidence=evidence,
    runs="device",
    advice=Advice(
        "Remove torch.cuda.synchronize() and other waits from the loop; time with CUDA events instead.",
        plain=(
            "Copy with asynchronous calls from and into pinned memory, and wait once, where the result is "
            "used; time with CUDA events."
        ),
    ),
    answers=frozenset({"host-bound"}),
)
