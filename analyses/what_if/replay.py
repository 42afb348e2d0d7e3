"""A graph replayed with changes, from where a trace of a capture is as long as without recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tracekit.analyses.graph.build import dependencies
from tracekit.analyses.graph.joint import Joint, Lengths, joint_graph
from tracekit.analyses.recording import unrecorded_ns
from tracekit.analyses.result import no_launches
from tracekit.analyses.scope import Scope
from tracekit.analyses.what_if.changes import Change
from tracekit.analyses.what_if.draft import Draft, HostTime
from tracekit.analyses.what_if.graphs import CudaGraph
from tracekit.classes import dataclass
from tracekit.errors import UsageError
from tracekit.facts.units import format_ns
from tracekit.spans import Int64Array

__all__ = ["USUAL_SLOWING", "Replay", "host_speeds", "replay"]

_FASTEST: Final = 16.0
"""No recording slows a host more."""
USUAL_SLOWING: Final = 1.7
"""So much longer do steps take that the host bounds: the median of 23 captures of a dozen models on an H100."""
_FELT: Final = 0.95
"""If steps were shorter by less with the fastest host, it is not the host that bounds them."""
_TRIES: Final = 9
"""Halvings between 1 and _FASTEST: to half a percent."""


def host_time(scope: Scope) -> HostTime:
    """The code of the threads of the scope's graph in pieces."""
    return scope.once(host_time, lambda: HostTime(dependencies(scope)))


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A replay with changes: their drafts, one a rank, the lengths, when each vertex occurs, and the length of the window."""

    drafts: list[Draft]
    lengths: Lengths
    times: Int64Array
    window: int


def host_speeds(scope: Scope) -> tuple[float, float, float]:
    """How many times as fast as recorded the host is without recording, in the best, the likeliest and the worst case.

    Where the host bounds the steps, all three are the speed at which a replay takes what the steps take then. Where the device does, any
    speed from the last on fits. All are 1 where steps were not measured without recording, and without a device.
    """
    return scope.once(host_speeds, lambda: _host_speeds(scope))


def _host_speeds(scope: Scope) -> tuple[float, float, float]:
    plain = unrecorded_ns(scope)
    if plain is None or no_launches(scope) is not None:
        return (1.0, 1.0, 1.0)
    joint, host = joint_graph([scope]), host_time(scope)

    def window_at(speed: float) -> int:
        draft = Draft(joint.members[0], host, 0, 0)
        draft.scale_pieces(np.ones(draft.left.size, dtype=bool), 1 / speed)
        return _window(joint, joint.graph.replay(joint.of([draft.lengths()]).weights))

    least = window_at(_FASTEST)
    told = least < _FELT * plain
    target = plain if told else max(plain, least / _FELT)
    slow, fast = 1.0, _FASTEST
    for _ in range(_TRIES):
        between = (slow * fast) ** 0.5
        slow, fast = (between, fast) if window_at(between) > target else (slow, between)
    return (fast, fast, fast) if told else (_FASTEST, max(fast, USUAL_SLOWING), fast)


def replay(joint: Joint, changes: Sequence[Change], spread: int = 0) -> Replay:
    """A replay with all these changes, in their best (−1), likeliest (0) or worst case (1). Raises UsageError for one that fits nothing."""
    waits = joint.waits or [None]
    drafts = [
        Draft(made, host_time(made.scope), spread, rank, waited)
        for made, rank, waited in zip(joint.members, joint.ranks, waits, strict=True)
    ]
    for draft in drafts:
        _without_recording(draft)
    # The other changes say what a graph can hold.
    for change in sorted(changes, key=lambda one: isinstance(one, CudaGraph)):
        faults = [fault for draft in drafts if (fault := _applied(change, draft)) is not None]
        if len(faults) == len(drafts):  # of several ranks, one is enough
            raise faults[0]
    lengths = joint.of([draft.lengths() for draft in drafts])
    times = joint.graph.replay(lengths.weights)
    return Replay(drafts, lengths, times, _window(joint, times))


def _applied(change: Change, draft: Draft) -> UsageError | None:
    try:
        change.apply(draft)
    except UsageError as error:
        return error
    return None


def _window(joint: Joint, times: Int64Array) -> int:
    """The length of the window. It is never shorter than its steps on the host, if it was not when it was recorded: the host may be
    ahead of the device when the window begins, but not more and more so. Nor is it shorter than nothing, where the recorded times are in
    disorder and its last work moves before its first.
    """
    begin = joint.begin
    if any(one.scope.window != "steps" and not one.scope.on_cpu for one in joint.members):
        first = np.flatnonzero((joint.graph.time == begin) & (joint.activity >= 0))
        begin = int(times[first].min()) if first.size else begin
    window = max(int(times[-1]) - begin, 0)
    for made, where in zip(joint.members, joint.where, strict=True):
        if made.steps.size > 1:
            first, last = where[made.steps[0]], where[made.steps[-1]]
            if joint.graph.time[last] - joint.graph.time[first] <= joint.window:
                window = max(window, int(times[last] - times[first]))
    return window


def _without_recording(draft: Draft) -> None:
    scope = draft.made.scope
    speed = host_speeds(scope)[draft.spread + 1]
    if speed == 1.0:
        return
    draft.scale_pieces(np.ones(draft.left.size, dtype=bool), 1 / speed)
    least, _, most = sorted(host_speeds(scope))
    plain = unrecorded_ns(scope)
    if plain is not None and least == most:
        each = format_ns(plain / scope.steps.height)
        draft.assume(
            f"The host is {speed:.2f} times as fast as recorded: a step takes {each} without recording."
        )
    elif draft.spread == 0:
        draft.assume(
            f"The host is {speed:.2f} times as fast as recorded, as is usual without recording. The steps do not show how fast it is: the "
            "device bounds them."
        )
