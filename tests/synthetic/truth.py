"""From the machine's memory to the planted truth: file order, steps of activities, gaps with causes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .machine import Machine, Thread
from .model import Activity, Collective, Gap, HostSpan, Step

KERNEL_GAP_NS = 5_000
"""Below this, a gap between two activities that were both launched in time is the device's own overhead."""

Segments = dict[tuple[int, int], list[tuple[int, int, int | None]]]


@dataclass
class Truth:
    """What `finish` hands back."""

    spans: list[HostSpan]
    activities: list[Activity]
    steps: list[Step]
    gaps: list[Gap]
    renumber: Callable[[list[Collective]], list[Collective]]


def finish(machine: Machine, threads: Sequence[Thread], steps: list[Step]) -> Truth:
    """Orders the spans as in the file, drops what is not recorded, and works out the gaps."""
    config = machine.config
    kept = [s for s in machine.spans if s.kind != "runtime"]
    if config.device_recorded:
        kept += [s for s in machine.spans if s.kind == "runtime"]
    if not config.host_recorded:
        kept = []
    place = {span.index: number for number, span in enumerate(kept)}
    for number, span in enumerate(kept):
        span.index = number
        span.parent = None if span.parent is None else place[span.parent]

    steps = [replace(step, span=place[step.span]) for step in steps if step.span in place]
    activities = machine.activities if config.device_recorded else []
    for activity in activities:
        _relink(activity, place, steps, config.host_recorded)

    segments: Segments = {
        thread.key: [(a, b, None if top is None else place.get(top)) for a, b, top in thread.segments]
        for thread in threads
    }

    def renumber(collectives: list[Collective]) -> list[Collective]:
        if not kept or not activities:
            return []
        return [replace(collective, op=place[collective.op]) for collective in collectives]

    return Truth(kept, activities, steps, _gaps(activities, kept, segments), renumber)


def _relink(activity: Activity, place: dict[int, int], steps: list[Step], host_recorded: bool) -> None:
    if not host_recorded:
        activity.launch = activity.op = activity.outer_op = None
        activity.launch_start_ns = activity.launch_end_ns = activity.launch_thread = None
        return
    if activity.launch is None or activity.launch_start_ns is None:
        return
    activity.launch = place[activity.launch]
    activity.op = None if activity.op is None else place[activity.op]
    activity.outer_op = None if activity.outer_op is None else place[activity.outer_op]
    for step in steps:
        if step.start_ns <= activity.launch_start_ns < step.end_ns:
            activity.step = step.number


def _gaps(activities: list[Activity], spans: list[HostSpan], segments: Segments) -> list[Gap]:
    """Sweeps each device's activities in order of start."""
    if not activities:
        return []
    first = min(a.start_ns for a in activities)
    last = max(a.end_ns for a in activities)
    gaps: list[Gap] = []
    for device in sorted({a.device for a in activities}):
        own = [a for a in activities if a.device == device and a.dur_ns]
        busy_until = first
        for activity in sorted(own, key=lambda a: (a.start_ns, a.index)):
            if activity.start_ns > busy_until:
                gaps.append(_explain(device, busy_until, activity, spans, segments))
            busy_until = max(busy_until, activity.end_ns)
        if busy_until < last:
            gaps.append(Gap(device, busy_until, last, None, None, {}, {}))
    return gaps


def _explain(device: int, start: int, by: Activity, spans: list[HostSpan], segments: Segments) -> Gap:
    end, length = by.start_ns, by.start_ns - start
    launch = by.launch_start_ns
    if launch is None or by.launch_thread is None:
        return Gap(device, start, end, by.index, None, {}, {})
    if launch <= start:
        cause = (
            "dependency"
            if by.bound == "dependency"
            else "kernel_gap"
            if length < KERNEL_GAP_NS
            else "unexplained"
        )
        return Gap(device, start, end, by.index, cause, {cause: length}, {})
    by_span: dict[int | None, int] = {}
    covered = 0
    for begin, finish_, top in segments[by.launch_thread]:
        part = min(finish_, launch) - max(begin, start)
        if part > 0:
            by_span[top] = by_span.get(top, 0) + part
            covered += part
    if covered < launch - start:  # before the thread did anything
        by_span[None] = by_span.get(None, 0) + launch - start - covered
    split: dict[str, int] = {"launch_latency": end - launch}
    for top, part in by_span.items():
        cause = "python" if top is None else spans[top].cause
        split[cause] = split.get(cause, 0) + part
    return Gap(device, start, end, by.index, "host", split, by_span)
