"""How grave a finding is, decided once for all rules: by the share of the window that is at stake.

*Critical* from a fifth of the window on: nothing else is worth looking at first. *Warning* from a twentieth on:
worth an afternoon. *Info* below, and where the trace cannot tell what is at stake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracekit.intervals import IntervalSet

if TYPE_CHECKING:
    from tracekit.analyses.scope import Scope
    from tracekit.findings import Severity

__all__ = ["CRITICAL_SHARE", "WARNING_SHARE", "all_idle", "bounded", "by_share"]

CRITICAL_SHARE: Final = 0.20
"""A fifth of the window: the first thing to mend."""
WARNING_SHARE: Final = 0.05
"""A twentieth of the window: more than steps of a quiet machine differ from each other."""


def by_share(at_stake_ns: int | None, window_ns: int) -> Severity:
    """The severity of a finding with this much at stake in a window of this length.

    >>> [by_share(ns, 100) for ns in (20, 19, 5, 4, None)]
    ['critical', 'warning', 'warning', 'info', 'info']
    """
    if at_stake_ns is None or window_ns <= 0:
        return "info"
    share = at_stake_ns / window_ns
    return "critical" if share >= CRITICAL_SHARE else "warning" if share >= WARNING_SHARE else "info"


def bounded(at_stake_ns: int, scope: Scope) -> int:
    """At most the window: a sum of durations on several streams can exceed it, what a remedy saves cannot."""
    return max(0, min(at_stake_ns, scope.duration))


def all_idle(scope: Scope) -> IntervalSet:
    """The time in the window in which no device works; only this can be won by a faster host."""
    return scope.intervals().complement(scope.start, scope.end)
