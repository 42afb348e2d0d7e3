"""Notes on a device's verdict: sentences about the limits of what it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.parts import DeviceParts, ProcessorParts
from tracekit.analyses.rules.idle_time import blocked
from tracekit.analyses.scope import Scope
from tracekit.analyses.traits import traits
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.findings import Bound
from tracekit.readers import flag_for
from tracekit.verdict.advice import Owned
from tracekit.verdict.losses import BESIDE_SHARE, LEAD_IN_SHARE, Loss
from tracekit.verdict.model import Advice

__all__ = ["LEAST_ACTIVITIES", "notes_on", "shared"]

_OF_THE_HOST: Final[tuple[Bound, ...]] = ("host-bound", "launch/short-kernel-bound")
LEAST_ACTIVITIES: Final = 10
"""Fewer activities of a device say little about a program."""


_OF_LOSSES: Final = ("", "breakdown", "idle", "launches", "memory", "steps")
"""Sections whose findings are about time in which the device does not compute; general advice has no section."""


def shared(advice: Sequence[Advice], parts: DeviceParts | ProcessorParts) -> Iterable[str]:
    """That the stakes of the advice overlap, if they are more in all than the losses that all of it is about, or than the window."""
    staked = [each for each in advice if each.ns_at_stake]
    of_losses = [each for each in staked if each.analysis in _OF_LOSSES]
    total = sum(each.worth for each in staked)
    if len(staked) < 2:
        return
    lost = parts.basis - parts.compute if isinstance(parts, DeviceParts) else parts.basis
    more_than_lost = isinstance(parts, DeviceParts) and sum(each.worth for each in of_losses) > lost
    if more_than_lost and len(of_losses) == len(staked):
        yield (
            f"These savings overlap, and together cannot exceed the {format_ns(lost)} in which the device does not "
            "compute."
        )
    elif total > parts.basis:
        yield f"These savings overlap: their sum exceeds the window of {format_ns(parts.basis)}."
    elif more_than_lost and len(of_losses) > 1:
        yield f"Some of these savings overlap: those of time without computation cannot exceed the {format_ns(lost)} that there is of it."


def notes_on(
    parts: DeviceParts, scope: Scope, losses: Sequence[Loss], bound: Bound, warm_up: Owned | None
) -> Iterable[str]:
    """The sentences; `losses` are the largest first, none if records are missing."""
    if parts.activities < LEAST_ACTIVITIES and bound != "too little":
        count = count_of(parts.activities, "device activity", "device activities")
        yield f"The window holds only {count}, too few to judge the program by."
    if warm_up:
        title = warm_up.finding.title
        yield (
            f"The profile includes warm-up: {title[:1].lower()}{title[1:]}, so the figures say little about the steady state."
        )
    if parts.recording and losses:
        yield (
            f"Recording adds {format_ns(parts.recording)} to the window, during which the device waits. The verdict does not count this as "
            "waiting for the host; the tables show all times as recorded."
        )
    if parts.set_up >= LEAD_IN_SHARE * parts.basis:
        share = format_share(parts.set_up / parts.basis)
        yield (
            f"Copies before the first step, or before the first computation, take {share} of {format_ns(parts.basis)}. They set up the "
            "program, so they do not count as a loss of its steps."
        )
    if losses and parts.lead_in >= LEAD_IN_SHARE * parts.basis:
        share = format_share(parts.lead_in / parts.basis)
        yield f"{format_ns(parts.lead_in)} of the {format_ns(parts.basis)} ({share}) passed before the device's first activity."
    if parts.before:
        yield (
            f"For the first {format_ns(parts.before)}, the device finished work launched before the recording, or before "
            "these steps. This work is left out: the window begins after it."
        )
    if bound != "compute-bound" and len(losses) > 1 and losses[1].ns >= max(0.6 * losses[0].ns, 1):
        second = losses[1]
        share = format_share(second.ns / parts.basis)
        yield f"The second-largest loss is almost as large: {second.label}, {share} of {format_ns(parts.basis)}."
    if parts.idle and not parts.causes_known:
        what = (
            "No activity could be linked to its launch call"
            if parts.launch_calls
            else "No launch calls were captured"
        )
        yield f"{what}, so the trace does not show what the device waited for."
    if losses and parts.streams > 1:
        yield from _unseen_waits(parts, scope)
    host = bound in _OF_THE_HOST or (losses and parts.host_wait >= BESIDE_SHARE * parts.basis)
    if host and "stacks" in scope.trace.meta.captured and not blocked(scope, parts.device_id):
        yield "Python stacks were recorded, which slows the host. Without them, the device would wait less for Python code."
    if parts.devices > 1:
        yield f"The verdict is about the busiest of {parts.devices} devices."


def _unseen_waits(parts: DeviceParts, scope: Scope) -> Iterable[str]:
    """Why idle time with queued work has no cause, if the trace shows that."""
    causes = idle_causes(scope).by_cause.filter(device_id=parts.device_id, cause="unexplained")
    ns = int(causes["total_ns"].sum())
    unseen = "sync" not in scope.trace.meta.captured and "amd" not in traits(scope)
    if ns >= BESIDE_SHARE * parts.basis and unseen:
        yield (
            f"Waits between streams were not recorded, so {format_ns(ns)} of idle time with queued work has "
            f"no known cause. To record them: {flag_for('sync', scope.trace.meta.format)}."
        )
