"""A rule in one record: where it looks, when it fires and on what evidence, and what it advises to whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.processors import slowed_by_recording
from tracekit.analyses.recording import unrecorded_ns
from tracekit.analyses.result import no_launches
from tracekit.analyses.scope import Scope, step_spans
from tracekit.analyses.stalls import stalled_ns
from tracekit.errors import UsageError
from tracekit.facts.units import format_share
from tracekit.findings import Bound, Severity, Stretches
from tracekit.groups import falling
from tracekit.intervals import IntervalSet
from tracekit.manifest import Manifest
from tracekit.readers import format_named
from tracekit.spans import Int64Array
from tracekit.trace import one_of

__all__ = [
    "CRITICAL_SHARE",
    "HOST_CODE_ADVICE",
    "MOST_STRETCHES",
    "RECORD_HOST",
    "REPLAYED",
    "WARNING_SHARE",
    "Advice",
    "Evidence",
    "Rule",
    "all_idle",
    "bounded",
    "bounded_by_host",
    "bounded_by_removal",
    "by_share",
    "densest",
    "longest",
    "longest_named",
    "longest_of",
    "longest_work",
    "of_time",
    "with_flags",
]

HOST_CODE_ADVICE: Final = "host_code"
"""Stands among the rules that one explains for the advice of a verdict about code of the host."""
CRITICAL_SHARE: Final = 0.20
"""A fifth of the window: fix this first."""
WARNING_SHARE: Final = 0.05
"""A twentieth of the window: steps on a quiet machine differ by less."""
MOST_STRETCHES: Final = 8
"""As many stretches of evidence as one looks at, one after another."""
PARTS: Final = 30
"""A thirtieth of a step is wide enough to be seen, and tells the phases of a step apart."""
MOST_PARTS: Final = 10_000
DENSER: Final = 1.5
"""What is less than this many times as dense as on average has no place of its own."""


class Advice(msgspec.Struct, frozen=True):
    """What to change, in one text for each kind of program.

    A line of a text that begins with traits in brackets (`analyses.traits`) is only for runs that have all of them; `!`
    stands before those that a run must not have: `[optimizer_launches] Create the optimizer with fused=True.`
    """

    text: str
    """For a PyTorch program that runs on a device."""
    processor: str | None = None
    """For a program without a captured device; None: the same as `text`."""
    plain: str | None = None
    """For a program whose trace shows no PyTorch; None: the same as `text`."""
    flags: tuple[str, ...] = ()
    """The flags of `tracekit capture` that make this change."""


RECORD_HOST: Final = Advice("Record the host as well, to see what it does there ({everything}).")
"""For idle time of a trace that tells nothing of the host."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a rule fires."""

    title: str
    text: str
    """The figures behind it, in sentences."""
    ns_at_stake: int | None = None
    """An upper bound of the time in the window that the remedy saves, in ns; None if the trace does not show it."""
    waited_ns: int = 0
    """The part of that in which a device waits for the host; of rules of other sections than those of idle time."""
    severity: Severity | None = None
    """None: follows from the share of the window that is at stake."""
    advice: Advice | None = None
    """None: the rule's own."""
    stretches: Stretches = ()
    """Where a timeline shows it, the worst first (`longest`); empty if it has no place in time."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How the result of an analysis becomes a finding."""

    id: str
    analysis: str
    """The analysis whose result it reads; the finding stands in the section of this analysis."""
    evidence: Callable[[Scope, Any], Evidence | None]
    """Takes a scope and the result of the analysis; returns None if the rule does not fire."""
    advice: Advice
    runs: Literal["device", "processor", "any"] = "any"
    """Whether it looks at runs with a device, without one, or both."""
    answers: frozenset[Bound] = msgspec.field(default_factory=frozenset)
    """The bounds of a verdict that it explains."""
    restates: bool = False
    """It says how much time is lost or where, but not why, so a verdict that names the loss does not repeat it."""
    explains: frozenset[str] = msgspec.field(default_factory=frozenset)
    """Rules that a verdict leaves out if this one explains nearly all of their time."""
    about_run: bool = True
    """False if it is about the recording; a verdict then does not give its advice."""
    pattern: str = ""
    """Without a device: what takes the time, as a noun for the headline, used if the finding explains most of the time; or a
    whole sentence with `{share}`, if the program does not do it."""


def by_share(at_stake_ns: int | None, window_ns: int) -> Severity:
    """The severity of a finding depends on the share of the window that is at stake.

    *Critical* from a fifth of the window on, *warning* from a twentieth on, *info* below that or if the time at stake is
    unknown.

    >>> [by_share(ns, 100) for ns in (20, 19, 5, 4, None)]
    ['critical', 'warning', 'warning', 'info', 'info']
    """
    if at_stake_ns is None or window_ns <= 0:
        return "info"
    share = at_stake_ns / window_ns
    return "critical" if share >= CRITICAL_SHARE else "warning" if share >= WARNING_SHARE else "info"


def longest(rows: pl.DataFrame, *, by: str | None = None, length: str = "duration") -> Stretches:
    """The few longest of these rows, or those with most `by`, from their `start` on and as long as `length` says, in ns.

    >>> longest(pl.DataFrame({"start": [1, 5], "duration": [2, 4]}))
    ((5, 9), (1, 3))
    """
    columns = rows["start", length, by or length] if by else rows["start", length]
    if any(column.null_count() for column in columns):
        columns = columns.drop_nulls()
    start, lengths, *ranks = (column.to_numpy() for column in columns)
    return longest_of(start, lengths, *(ranks or [lengths]))


def longest_of(start: Int64Array, length: Int64Array, by: Int64Array) -> Stretches:
    """The few of these stretches (ns) with most `by`.

    >>> longest_of(np.array([1, 5]), np.array([2, 4]), np.array([9, 8]))
    ((1, 3), (5, 9))
    """
    few = falling(-by, start)[:MOST_STRETCHES]
    return tuple(zip(start[few].tolist(), (start[few] + length[few]).tolist(), strict=True))


def densest(region: IntervalSet, scope: Scope) -> Stretches:
    """The few stretches of the window in which most of this time lies: where many short things are densest.

    They consist of thirtieths of a step (without steps, of the window) of which the region covers more than half-way between the
    mean and the most. If it is about as dense everywhere, they are the steps with most of it; without several steps, none.
    """
    region = region.clip(scope.start, scope.end)
    steps = step_spans(scope) if scope.window == "steps" else None
    parts = min(PARTS * max(1, 0 if steps is None else steps.height), MOST_PARTS, scope.duration)
    if not region or not parts:
        return ()
    edges = scope.start + scope.duration * np.arange(parts + 1) // parts
    share = region.coverage(edges[:-1], edges[1:]) / np.diff(edges)
    mean, most = region.measure / scope.duration, float(share.max())
    if most >= DENSER * mean:
        dense = share >= (mean + most) / 2
        places = IntervalSet.of(edges[:-1][dense], edges[1:][dense])
        starts, ends = places.starts, places.ends
    elif steps is not None and steps.height > 1:
        starts, ends = steps["span_start"].to_numpy(), steps["span_end"].to_numpy()
    else:
        return ()
    covered = region.coverage(starts, ends)
    worst = np.argsort(-covered, kind="stable")[:MOST_STRETCHES]
    inside = [region.clip(int(starts[at]), int(ends[at])) for at in worst if covered[at]]
    return tuple((int(each.starts[0]), int(each.ends[-1])) for each in inside)


def longest_work(scope: Scope, *categories: str) -> Stretches:
    """The few longest activities of these categories."""
    return longest(scope.activities.filter(one_of("category", *categories)))


def longest_named(scope: Scope, name: str) -> Stretches:
    """The few longest activities of this name."""
    return longest(scope.activities.filter(pl.col("name").cast(pl.String) == name))


def bounded(at_stake_ns: int, scope: Scope) -> int:
    """The time at stake in ns, at most the window: a sum of durations on several streams can exceed it.

    Of a run without a device, what the recording adds to the window is not at stake, nor is what something else took.
    """
    most = scope.duration
    if scope.on_cpu:
        most = round((most - stalled_ns(scope)) / slowed_by_recording(scope.trace))
    return max(0, min(at_stake_ns, most))


REPLAYED: Final = 120_000
"""Of so many events a replay takes a twentieth of the time of the report at most."""
IDLE_ENOUGH: Final = 0.1
"""A device that is idle for less of the window is what the window waits for."""


def bounded_by_host(at_stake_ns: int, scope: Scope) -> int:
    """The time at stake in ns of work that devices could do faster with as many launches: at most what the window would lose if all
    such work took no time, as a replay with the fastest likely host tells it: one of the usual speed, where PyTorch's profiler recorded
    and it is not known how fast the host is without it.

    Where another profiler did, no launches are known, there are too many events for a replay, or devices are hardly idle, it is
    `bounded`.
    """
    return min(bounded(at_stake_ns, scope), scope.once(bounded_by_host, lambda: _lost_if_fast(scope)))


def _lost_if_fast(scope: Scope) -> int:
    """What the window loses if kernels take no time, with the fastest likely host; the window if that is not known."""
    if unrecorded_ns(scope) is not None:
        return _lost_without(scope, {"kernel:*": 0.0})
    if not format_named(scope.trace.meta.format).of_pytorch or no_launches(scope) is not None:
        return scope.duration
    from tracekit.analyses.what_if.replay import USUAL_SLOWING  # noqa: PLC0415 - loading it takes as long as the replay

    return _lost_without(scope, {"kernel:*": 0.0}, USUAL_SLOWING)


def bounded_by_removal(at_stake_ns: int, scope: Scope, *selectors: str) -> int:
    """The time at stake in ns of work that these selectors of `tracekit.analyses.what_if` fit: at most what the window would lose
    without it and the code that launches it, in a replay. Of too many events, and where devices are hardly idle, it is `bounded`.
    """
    return min(bounded(at_stake_ns, scope), _lost_without(scope, dict.fromkeys(selectors)))


def _lost_without(scope: Scope, work: Mapping[str, float | None], speed: float = 1.0) -> int:
    """What the window loses if this work takes so much of its time, or if it is removed (None), at most, with a host that is so many
    times as fast or not; the window if no replay tells.
    """
    idle = scope.duration - scope.intervals().measure
    if scope.on_cpu or scope.trace.meta.event_count > REPLAYED or idle < IDLE_ENOUGH * scope.duration:
        return scope.duration
    from tracekit.analyses.what_if import FasterHost, Remove, Scale, predicted  # noqa: PLC0415 - loading it takes as long as the replay

    less = [Remove(which) if part is None else Scale(which, part) for which, part in work.items()]
    cases = [([], 0), ([], -1) if speed == 1 else ([FasterHost(speed)], 0)]
    try:
        gains = [
            predicted(scope, host, case) - predicted(scope, [*host, *less], case) for host, case in cases
        ]
    except UsageError:  # no such work of the window is in the graph
        return scope.duration
    return max(0, *gains)


def of_time(ns: int, scope: Scope) -> str:
    """`23.1 % of the time`: the part of the window that this time takes, on all devices that worked; at most all of it."""
    whole = scope.duration * max(len(scope.device_ids), 1)
    return f"{format_share(min(ns / max(whole, 1), 1.0))} of the time"


def all_idle(scope: Scope) -> IntervalSet:
    """The time in the window in which no device works; a faster host can save only this time."""
    return scope.intervals().complement(scope.start, scope.end)


SETTINGS: Final = {
    "--workers": "workers",
    "--pin-memory": "pin_memory",
    "--precision": "precision",
    "--channels-last": "channels_last",
    "--compile": "compile",
    "--checkpoint-activations": "checkpoint_activations",
    "--batch": "batch",
    "--threads": "threads",
    "--shapes": "",
    "--memory": "",
    "--stack": "with_stack",
    "--warmup": "",
}
"""Flags of `tracekit capture` that advice names, with the setting or option of the manifest that each sets."""


def with_flags(text: str, flags: tuple[str, ...], manifest: Manifest | None) -> str:
    """The advice followed by flags of `tracekit capture`, if that command made the trace; without switches that are on or do nothing there.

    >>> with_flags("Compile it.", ("--compile", "--batch"), None)
    'Compile it.'
    """
    if manifest is None or manifest.settings is None:
        return text
    settings = manifest.settings
    useful = [
        flag
        for flag in flags
        if not any(getattr(each, SETTINGS[flag], None) is True for each in (settings, manifest.options))
    ]
    if settings.device == "cpu":  # nothing is copied to a device
        useful = [flag for flag in useful if flag != "--pin-memory"]
    if not useful:
        return text
    end = "." if text.endswith(".") else ""
    return f"{text.removesuffix('.')}; capture with {' or '.join(useful)}{end}"
