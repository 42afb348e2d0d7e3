"""Rules about launches and calls that wait for the device."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.launches import Launches
from tracekit.analyses.rules.idle_time import (
    LONG_CALL_NS,
    calls_with_roles,
    caused_idle,
    outermost_operators,
    waits_before_graphs,
)
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, all_idle, densest, longest
from tracekit.analyses.scope import Scope, launch_times
from tracekit.facts.idle_names import CAUSES
from tracekit.facts.launch_apis import GRAPH_LAUNCH, RETURNED_MEMORY
from tracekit.facts.stack_names import HOST_TO_DEVICE, PHASES
from tracekit.facts.units import NS_PER_MS, NS_PER_US, count_of, format_count, format_ns, format_share, times
from tracekit.groups import at_rows, kept, or_none
from tracekit.intervals import IntervalSet
from tracekit.name_table import NameTable
from tracekit.spans import Int64Array
from tracekit.trace import Trace

__all__ = ["BLOCKING_SYNCHRONISATION", "SHORT_KERNELS"]

# -- short_kernels ----------------------------------------------------------------------------------

SHORT_NS: Final = 10 * NS_PER_US
"""A launch call takes 5 to 10 µs of host time; below this a kernel cannot hide its own launch (DEFINITIONS §6)."""
LEAST_COUNT: Final = 20
"""Fewer short kernels are no pattern."""
SHORT_SHARE: Final = 0.50
"""From half of all kernels on, short kernels are the pattern and not the tail."""
SHORT_KERNELS_LEAST_STAKE: Final = 0.01
"""If the host runs ahead, short kernels cost almost nothing; below 1 % of the window there is no finding."""


def short_kernels(scope: Scope, result: Launches) -> Evidence | None:
    """Most kernels are so short that their launch calls can take longer than they do.

    For each short kernel, the time at stake is the duration of its launch call minus its own. This time counts only where
    no device worked just before the kernel, because a launch behind a running kernel costs nothing. Kernels of a CUDA
    graph do not count, because they share one call, and neither do launch calls of `LONG_CALL_NS` or more, which
    `cold_start` explains.

    Fires when half of the kernels are short and their launches cost device time.
    """
    trace = scope.trace
    if result.short_share is None or result.short_share < SHORT_SHARE or result.short < LEAST_COUNT:
        return None
    host, rows = trace.host, scope.activities[["kind", "launch_id", "start", "duration"]]
    short = kept(rows, (rows["kind"] == "kernel") & (rows["duration"] < SHORT_NS))
    launch = or_none(short["launch_id"])
    launch, start, took = (
        values[launch >= 0] for values in (launch, short["start"].to_numpy(), short["duration"].to_numpy())
    )
    call = host["duration"].to_numpy()[launch]
    counts = (at_rows(host["kind"], launch) == "runtime").to_numpy() & (call < LONG_CALL_NS)
    counts &= ~NameTable(at_rows(host["name"], launch)).matching(GRAPH_LAUNCH)
    excess = np.maximum(call - took, 0)
    before = IntervalSet.of((start - excess)[counts], start[counts])
    waits = before & all_idle(scope)
    at_stake = waits.measure
    if not scope.duration or at_stake / scope.duration < SHORT_KERNELS_LEAST_STAKE:
        return None
    most = kept(result.by_name, result.by_name["mean_device_ns"] < SHORT_NS).head(1)
    example = (
        f" {_plain(most['name'][0])} is the most frequent, with {count_of(most['count'][0], 'launch', 'launches')}."
        if most.height
        else ""
    )
    return Evidence(
        title=f"{format_share(result.short_share)} of the kernels take less than {format_ns(SHORT_NS)}",
        text=f"{format_count(result.short)} kernels take less than {format_ns(SHORT_NS)}, and "
        f"{format_share(result.launch_bound_share)} of all activities are shorter than their launch call."
        f"{example} The device was idle for {format_ns(at_stake)} during their launches.",
        ns_at_stake=at_stake,
        advice=_short_kernels_advice(before_graphs)
        if (before_graphs := waits_before_graphs(scope))
        else None,
        stretches=densest(waits, scope),
    )


def _plain(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:79]}…"


def _short_kernels_advice(before_graphs: str) -> Advice:
    """`before_graphs` is what must be done before graphs are of use, or nothing."""
    first = f"{before_graphs}\n" if before_graphs else ""
    return Advice(
        "[!compiled] Fuse chains of elementwise operators with torch.compile.\n"
        "[optimizer_launches] Create the optimizer with fused=True.\n"
        "[compiled] Let torch.compile compile the code around the short kernels as well.\n"
        f"{first}"
        "[!graphs] Replay the kernels as a CUDA graph, which starts them without the host.\n"
        "[graphs] Put more of the kernels into the graphs.\n"
        "[!serving] A larger batch makes each kernel longer.",
        plain=(
            "Fuse the kernels, or give each of them more work.\n"
            f"{first}"
            "[!graphs] Replay repeated work as a CUDA graph, which launches all of its kernels at once."
        ),
        flags=("--compile", "--batch"),
    )


SHORT_KERNELS = Rule(
    id="short_kernels",
    analysis="launches",
    evidence=short_kernels,
    advice=_short_kernels_advice(""),
    answers=frozenset({"launch/short-kernel-bound"}),
)


# -- blocking_synchronisation -----------------------------------------------------------------------

BLOCKING_SYNCHRONISATION_LEAST_STAKE: Final = 0.01
"""Idle time after waits below 1 % of the window is not worth a change of code."""
LEAST_WAIT: Final = 0.05
"""Waits for a twentieth of the window keep the host from running ahead, even if the device is hardly idle yet."""
MOST_IDLE_AFTER_NS: Final = NS_PER_MS
"""The host launches again some tens of µs after a wait; idle time beyond 1 ms has another cause."""
NEARLY_ALL: Final = 0.9
"""With this part of the waits in the forward pass, the advice is about those."""
BLOCKING_COPY_NS: Final = 50 * NS_PER_US
"""An asynchronous copy call returns within some 10 µs; one that takes longer has waited."""
NO_WAIT_NS: Final = 10 * NS_PER_US
"""A call that finds the device done returns within some µs, as the one does that follows a blocking copy."""

_TO_DEVICE: Final = Advice(
    "Copy with non_blocking=True from pinned memory.",
    plain="Copy with asynchronous calls from pinned memory.",
    flags=("--pin-memory",),
)
"""The advice about waits for copies to the device."""
_REMEDY: Final = {
    "is_nonzero|bool": Advice(
        "A Python condition reads a tensor's value, and the host waits for it. Branch on what the host already knows, or replace "
        "the condition with torch.where."
    ),
    "item|local_scalar": Advice(
        "[!inference] Keep the value on the device: accumulate losses and metrics as tensors, and call .item() only every N steps.\n"
        "[inference !serving] Accumulate results such as metrics as tensors on the device, and call .item() only at the end.\n"
        "[inference] If the next step needs the value, such as a token, pass it on as a tensor: start the next forward pass before you "
        "read it, or read it one step later."
    ),
    "nonzero|masked_select|unique|index": Advice(
        "The host waits because the size of the result depends on the data. Use a mask, torch.where or a fixed size "
        "(torch.nonzero_static)."
    ),
    "to|copy|cpu|_to_copy": Advice(
        "Copy with non_blocking=True to and from pinned memory, and read results one step later.",
        flags=("--pin-memory",),
    ),
}
"""The beginning of an operator's name → the advice about its waits."""
_READ_BY_LAYERS: Final = Advice(
    "In the forward pass, layers read values on the host. Keep these on the device: use fixed sizes or masks, or kernels that "
    "take sizes from device memory (for experts, a grouped matrix product)."
)
LAYERS: Final = 4
"""A loss or a metric is read once or twice a step."""
_QUEUED: Final = [CAUSES.index(cause) for cause in ("kernel_gap", "dependency")]
"""Causes of gaps after which a kernel starts that was queued before."""


def blocking_synchronisation(scope: Scope, result: Launches) -> Evidence | None:
    """The host waits for the device within a step, and the device then waits for the host.

    A wait is a call with the role synchronisation that takes `NO_WAIT_NS` or more, or a copy to host memory with a long call
    (a copy into pageable memory blocks although its name says Async). The finding names the operator that waits longest (`aten::item`,
    `aten::nonzero`, `aten::to`, …). A wait after which a step launches nothing more ends the step and does not count, nor
    does one after which memory is freed (`allocation_calls`).
    At stake is the device's idle time inside the waits, without that between kernels already queued, and from the
    end of each wait to the next activity, at most `MOST_IDLE_AFTER_NS` each, because without the wait the host would have
    run ahead: by the time of the wait, so no more than the waits take is at stake.

    Fires when waits inside steps leave the device idle, or take much of the host's time.
    """
    trace = scope.trace
    if not result.calls.height:
        return None
    calls = calls_with_roles(scope, result)
    waits = _before_frees(_inside_steps(_waits(trace, calls), calls, scope), calls, scope)
    # Before its first activity the device does nothing that a call could wait for.
    first = trace.device["start"].min()
    waits = kept(waits, (waits["end"] > scope.start) & (waits["start"] < scope.end) & (waits["end"] > first))
    if not waits.height:
        return None
    waited = (
        IntervalSet.of(waits["start"].to_numpy(), waits["end"].to_numpy())
        .clip(scope.start, scope.end)
        .measure
    )
    idle_after = _idle_after(waits, scope)
    at_stake = min(idle_after, waited)
    if (
        at_stake / scope.duration < BLOCKING_SYNCHRONISATION_LEAST_STAKE
        and waited / scope.duration < LEAST_WAIT
    ):
        return None
    sent = pl.Series("sent", np.isin(waits["span_id"].to_numpy(), _copies(trace, HOST_TO_DEVICE)))
    by_operator = (
        waits.with_columns(outermost_operators(scope, waits["span_id"]), sent)
        .group_by("operator")
        .agg(
            pl.len().alias("count"),
            pl.col("duration").sum(),
            pl.col("name").cast(pl.String).mode().sort().first(),
            pl.col("sent").all(),
        )
        .sort("duration", "operator", descending=[True, False], nulls_last=True)
    )
    worst = by_operator.row(0, named=True)
    idle = caused_idle(scope, "synchronisation")
    cause = (
        f" Synchronisation caused {format_ns(idle.ns)} of idle time{idle.where_in_code}." if idle.ns else ""
    )
    who = worst["operator"] or "Code outside any operator"
    return Evidence(
        title=f"{_often(waits.height, scope)}, and the device then idles for "
        f"{format_share(idle_after / scope.duration)} of the time",
        text=f"The host waited for {format_ns(waited)}, {format_share(waited / scope.duration)} of the time. The device was idle for {format_ns(idle_after)} during and after the waits.{cause} "
        f"{who} waits longest ({worst['name']}): {times(worst['count'])}, {format_ns(worst['duration'])}.",
        ns_at_stake=at_stake,
        advice=_TO_DEVICE
        if worst["sent"]
        else _READ_BY_LAYERS
        if _read_by_layers(waits, scope)
        else _remedy(worst["operator"]),
        stretches=longest(waits),
    )


def _read_by_layers(waits: pl.DataFrame, scope: Scope) -> bool:
    """Whether copies to the host, `LAYERS` or more a step and nearly all of the waits, are launched in the forward pass, and each is
    followed by more computation, so that they are no results.
    """
    if scope.window != "steps":
        return False
    waits = waits.sort("start")
    work = kept(scope.activities, scope.activities["class"] == "compute")
    launched = np.sort(launch_times(scope.trace, work))
    upcoming = np.append(waits["start"].to_numpy()[1:], np.iinfo(np.int64).max)
    goes_on = np.searchsorted(launched, upcoming) > np.searchsorted(launched, waits["end"].to_numpy())
    operators = outermost_operators(scope, waits["span_id"])
    phase = attribution(scope).model.places(waits["span_id"].to_numpy()).phase
    reads = operators.str.contains(r"^aten::(to|copy_|_to_copy|cpu)$").fill_null(value=False).to_numpy()
    inside = int((reads & goes_on & (phase == PHASES.index("forward"))).sum())
    return inside >= max(LAYERS * scope.steps.height, NEARLY_ALL * waits.height)


def _often(waits: int, scope: Scope) -> str:
    if scope.window != "steps":
        return f"The host waits {times(waits)} for the device and then launches more"
    each, uneven = divmod(waits, scope.steps.height)
    steps = f"{scope.steps.height} steps" if uneven else "a step" if scope.steps.height > 1 else "the step"
    return f"Within {steps}, the host waits {times(waits if uneven else each)} for the device"


def _waits(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    to_host = _copies(trace, "DtoH")
    long = (calls["duration"] >= BLOCKING_COPY_NS).to_numpy()
    blocking_copy = pl.Series(np.isin(calls["span_id"].to_numpy(), to_host) & long)
    waited = (calls["role"] == "synchronisation") & (calls["duration"] >= NO_WAIT_NS)
    return kept(calls, waited | blocking_copy)


def _copies(trace: Trace, pattern: str) -> Int64Array:
    """The launches of the copies whose name matches."""
    copies = kept(trace.device[["name", "launch_id"]], trace.device["kind"] == "memcpy")
    return or_none(copies["launch_id"])[NameTable(copies["name"]).matching(pattern)]


def _inside_steps(waits: pl.DataFrame, calls: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """The waits that are followed by a launch in the same step; without steps, by any launch."""
    launches = calls["start"].filter(calls["role"] == "launch").sort().to_numpy()
    end = waits["end"].to_numpy()
    limit = np.full(end.size, np.iinfo(np.int64).max)
    if scope.window == "steps":
        starts, ends = scope.steps["start"].to_numpy(), scope.steps["end"].to_numpy()
        index = np.searchsorted(starts, waits["start"].to_numpy(), side="right") - 1
        limit = np.where(index >= 0, ends[np.maximum(index, 0)], 0)
    following = np.searchsorted(launches, end, side="left")
    padded = np.append(launches, np.iinfo(np.int64).max)
    return kept(waits, padded[following] < limit)


def _before_frees(waits: pl.DataFrame, calls: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """The waits without those after which their thread frees memory: a cache that gives memory back waits until nothing uses it."""
    frees, span = NameTable(calls["name"]).matching(RETURNED_MEMORY), calls["span_id"].to_numpy()
    thread, freeing = attribution(scope).model.stack.thread, np.flatnonzero(frees[1:])
    before = span[freeing][thread[span[freeing]] == thread[span[freeing + 1]]]
    return kept(waits, ~np.isin(waits["span_id"].to_numpy(), before))


def _idle_after(waits: pl.DataFrame, scope: Scope) -> int:
    """Idle time of the devices in each wait, and from its end until they work again."""
    idle, end = all_idle(scope), waits["end"].to_numpy()
    if not idle:
        return 0
    # A queued kernel starts no sooner if the host does not wait: BERT's waits were said to cost five times what they did.
    pieces = idle_causes(scope).pieces[["cause", "start", "duration_ns"]]
    pieces = kept(pieces, ~np.isin(pieces["cause"].to_physical().to_numpy(), _QUEUED))
    start = pieces["start"].to_numpy()
    caused = IntervalSet.of(start, start + pieces["duration_ns"].to_numpy())
    inside = idle & caused & IntervalSet.of(waits["start"].to_numpy(), end)
    index = np.maximum(np.searchsorted(idle.starts, end, side="right") - 1, 0)
    after = (idle.starts[index] <= end) & (end < idle.ends[index])
    last = np.minimum(idle.ends[index][after], end[after] + MOST_IDLE_AFTER_NS)
    return (inside | IntervalSet.of(end[after], last)).measure


def _remedy(operator: str | None) -> Advice | None:
    name = (operator or "").rsplit("::", 1)[-1]
    return next((advice for begin, advice in _REMEDY.items() if re.match(f"_?(?:{begin})", name)), None)


BLOCKING_SYNCHRONISATION = Rule(
    id="blocking_synchronisation",
    analysis="launches",
    evidence=blocking_synchronisation,
    runs="device",
    advice=Advice(
        "Remove torch.cuda.synchronize() and other waits from the loop; measure times with CUDA events instead.",
        plain=(
            "Copy with asynchronous calls to and from pinned memory, and wait only where the program uses the result; "
            "measure times with CUDA events."
        ),
    ),
    answers=frozenset({"host-bound"}),
    explains=frozenset({"host_bound_launches", "short_kernels"}),
)
