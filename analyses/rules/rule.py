"""A rule in one record: where it looks, when it fires and on what evidence, and what it advises to whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tracekit.analyses.scope import Scope
from tracekit.findings import Bound, Severity
from tracekit.intervals import IntervalSet
from tracekit.manifest import Manifest

__all__ = [
    "CRITICAL_SHARE",
    "WARNING_SHARE",
    "Advice",
    "Evidence",
    "Rule",
    "all_idle",
    "bounded",
    "by_share",
    "with_flags",
]

CRITICAL_SHARE: Final = 0.20
"""A fifth of the window: the first thing to mend."""
WARNING_SHARE: Final = 0.05
"""A twentieth of the window: more than steps of a quiet machine differ from each other."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change, in words for each kind of program."""

    text: str
    """For a program of PyTorch that runs on a device."""
    processor: str | None = None
    """Where no device was captured; None: the same."""
    plain: str | None = None
    """For a program that shows no PyTorch; None: the same."""
    flags: tuple[str, ...] = ()
    """Flags of `tracekit capture` that do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """That a rule fires, and why."""

    title: str
    text: str
    """The figures that made it fire, as a sentence."""
    ns_at_stake: int | None = None
    """An upper bound of what the remedy saves in the window, in ns; None where the trace cannot tell."""
    severity: Severity | None = None
    """None: by the share of the window that is at stake."""
    advice: Advice | None = None
    """None: the rule's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing worth knowing."""

    id: str
    analysis: str
    """The analysis whose result it reads, and in whose section it stands."""
    evidence: Callable[[Scope, Any], Evidence | None]
    """The evidence in a scope and the result of the analysis; None where the rule does not fire."""
    advice: Advice
    runs: Literal["device", "processor", "any"] = "any"
    """Whether it looks at runs with a device, without one, or both."""
    answers: frozenset[Bound] = field(default_factory=frozenset)
    """The bounds of a verdict that it explains."""
    restates: bool = False
    """It says that time is lost or where, not why: superfluous beside a verdict that names the loss."""
    about_run: bool = True
    """False: it is about the recording, and no advice of a verdict."""
    pattern: str = ""
    """On processors: what the time went to, in the words of a headline, where the finding explains most of it."""


def by_share(at_stake_ns: int | None, window_ns: int) -> Severity:
    """The severity of a finding with this much at stake in a window of this length.

    *Critical* from a fifth of the window on: nothing else is worth looking at first. *Warning* from a twentieth on:
    worth an afternoon. *Info* below, and where the trace cannot tell what is at stake.

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
    "--stack": "",
    "--warmup": "",
}
"""Flags of `tracekit capture` that advice names, with the setting of the manifest that each sets."""


def with_flags(text: str, flags: tuple[str, ...], manifest: Manifest | None) -> str:
    """The advice with the flags behind it, where `tracekit capture` ran the training loop; not switches that were on.

    >>> with_flags("Compile it.", ("--compile", "--batch"), None)
    'Compile it.'
    """
    if manifest is None or manifest.settings is None:
        return text
    settings = manifest.settings
    useful = [flag for flag in flags if getattr(settings, SETTINGS[flag], None) is not True]
    if not useful:
        return text
    end = "." if text.endswith(".") else ""
    return f"{text.removesuffix('.')}; capture with {' or '.join(useful)}{end}"
