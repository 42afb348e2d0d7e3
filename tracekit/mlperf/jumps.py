"""Gaps between the events of runs, and clocks that seem to have jumped forward."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from tracekit.classes import dataclass
from tracekit.mlperf.log import Event, point_of

if TYPE_CHECKING:
    from tracekit.mlperf.runs import LoggedRun

__all__ = ["Gap", "gaps_of", "with_jumps"]

_NS: Final = 1e9
_PAUSE_S: Final = 60.0
"""No clock that jumps forward by less is told."""
_LONGER: Final = 4
"""By so many times the longest gap is longer than what else there is."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The time between two events that follow each other."""

    seconds: float
    line: int
    """Of the second event."""
    alike: int
    """Other gaps of the run between two events with these keys."""
    longer: float
    """By how many times training comes further in it than in the median of those; 1 at least."""


def gaps_of(events: Sequence[Event]) -> tuple[Gap, ...]:
    """The longest two gaps between these events, the longest first."""
    reached = list(accumulate((point_of(event) or 0.0 for event in events), max))
    points = [*reached, *reached[-1:]]
    further = [points[bisect_right(reached, point)] - point for point in reached]  # when it is told next
    kinds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for (one, other), way in zip(pairwise(events), further, strict=False):
        kinds[one.key, other.key].append(way)
    longest = sorted(enumerate(pairwise(events)), key=lambda pair: pair[1][0].time_ns - pair[1][1].time_ns)
    found = []
    for at, (one, other) in longest[:2]:
        alike = kinds[one.key, other.key]
        usual = float(np.median(alike))
        longer = max(1.0, further[at] / usual) if usual else 1.0
        found.append(Gap((other.time_ns - one.time_ns) / _NS, other.line, len(alike) - 1, longer))
    return tuple(found)


def with_jumps(runs: Sequence[LoggedRun]) -> list[LoggedRun]:
    """The runs, with a problem more for those whose clock seems to jump forward: whose longest gap is longer by far than all gaps of another run of
    its configuration, or than all others of its own run, of which several are between such events, even for as far as training comes in it.
    """
    groups: defaultdict[tuple[object, ...], list[LoggedRun]] = defaultdict(list)
    for run in runs:
        groups[run.round, run.organisation, run.system, run.benchmark, run.accelerators, run.batch].append(
            run
        )
    usual: dict[int, float | None] = {}
    for group in groups.values():
        longest = sorted((run.gaps[0].seconds, id(run)) for run in group if run.gaps and run.succeeded)
        for run in group:
            usual[id(run)] = next((seconds for seconds, of in longest if of != id(run)), None)
    return [_with_jump(run, usual[id(run)]) for run in runs]


def _with_jump(run: LoggedRun, usual: float | None) -> LoggedRun:
    if len(run.gaps) < 2 or run.gaps[0].seconds < _PAUSE_S:
        return run
    most, next_ = run.gaps
    if usual is not None and most.seconds >= _LONGER * usual:
        why = f"of another run no gap is longer than {usual:,.3g} s"
    elif usual is None and most.alike > 1 and most.seconds >= _LONGER * next_.seconds * most.longer:
        why = f"no other gap is longer than {next_.seconds:,.3g} s"
    else:
        return run
    told = f"{most.seconds:,.0f} s pass before line {most.line}, but {why}: the clock may have jumped forward, or lines are missing"
    return replace(run, problems=(*run.problems, told))
