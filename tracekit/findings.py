"""Findings: what an analysis noticed, how much time it may cost, and what to change."""

from __future__ import annotations

from typing import Final, Literal, get_args

from tracekit.classes import dataclass
from tracekit.facts.units import NS_PER_S

__all__ = [
    "BOUNDS",
    "SEVERITIES",
    "SHOWN_SHARE",
    "Bound",
    "Finding",
    "Severity",
    "Stretches",
    "bound_name",
    "rank",
]

Severity = Literal["critical", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")

Stretches = tuple[tuple[int, int], ...]
"""Stretches of time, each from its start to its end in ns from the trace's origin."""

SHOWN_SHARE: Final = 0.0005
"""A lower share of the time would be shown as 0.0 %, so it is no cost, no layer and no finding."""


Bound = Literal[
    "host-bound",
    "input-bound",
    "communication-bound",
    "memory-copy-bound",
    "compute-bound",
    "launch/short-kernel-bound",
    "idle",
    "incomplete",
    "too little",
    "cpu",
    "counters",
    "ranges only",
    "nothing ran",
]
BOUNDS: Final[tuple[Bound, ...]] = get_args(Bound)
"""What may bound a run. `idle`: the device mostly idles and the trace cannot tell why, or for more than one reason;
`incomplete`: records are missing that could show what bounds it; `too little`: a few activities and hardly any idle time;
`cpu`: no device was captured; `counters`: hardware counters were measured by replaying kernels, so times mean nothing; `ranges only`: nothing but named ranges was recorded. `compute-bound` is shown as device-bound."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing.

    `ns_at_stake` is an upper bound of what the remedy could save inside the analysed window, in ns; None when the
    trace cannot tell. `evidence` cites the figures that triggered the rule, `advice` says what to change. `stretches` is
    where a timeline shows it, the worst first; empty if it has no place in time.
    """

    id: str
    severity: Severity
    title: str
    evidence: str
    advice: str
    ns_at_stake: int | None = None
    stretches: Stretches = ()

    @property
    def seconds_at_stake(self) -> float | None:
        """`ns_at_stake` in seconds."""
        return None if self.ns_at_stake is None else self.ns_at_stake / NS_PER_S


def rank(findings: list[Finding]) -> list[Finding]:
    """Gravest first; among equals the one with most time at stake.

    >>> a = Finding("a", "info", "", "", "", 5)
    >>> b = Finding("b", "warning", "", "", "", 1)
    >>> [f.id for f in rank([a, b])]
    ['b', 'a']
    """
    return sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), -(f.ns_at_stake or 0), f.id))


def bound_name(bound: str) -> str:
    """The name of a bound. Nothing in a profile proves that arithmetic and not bandwidth is short.

    >>> bound_name("compute-bound"), bound_name("idle")
    ('device-bound', 'idle')
    """
    return "device-bound" if bound == "compute-bound" else bound
