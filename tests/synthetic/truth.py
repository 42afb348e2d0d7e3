"""From the machine's memory to the planted truth: file order, steps of activities, gaps with causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

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

    return Truth(
        kept, activities, steps, _gaps(activities, kept, _with_main_thread(segments, kept)), renumber
    )


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


def _with_main_thread(segments: Segments, spans: list[HostSpan]) -> Segments:
    """While a thread of the autograd engine runs nothing, what counts is the main thread, which has yet to call it; not its bare steps."""
    outer = [span for span in spans if span.parent is None]
    others = {(span.process, span.thread) for span in outer if not span.name.startswith(_OF_ENGINE)}
    calls = Counter((span.process, span.thread) for span in spans if span.kind == "runtime")
    mains = [key for key, _ in calls.most_common() if key in others]
    ends = [at for pieces in segments.values() for begin, finish_, _ in pieces for at in (begin, finish_)]
    filled = dict(segments)
    for engine in (key for key in segments if mains and key in calls and key not in others):
        filled[engine] = []
        for begin, finish_, top in _during(segments[engine], min(ends), max(ends)):
            pieces = [(begin, finish_, top)]
            if top is None:
                pieces = _during(segments[mains[0]], begin, finish_)
                pieces = [(a, b, None if x is None or spans[x].kind == "step" else x) for a, b, x in pieces]
            filled[engine] += pieces
    return filled


_OF_ENGINE = ("autograd::engine", "torch::autograd::AccumulateGrad")


def _during(
    segments: list[tuple[int, int, int | None]], start: int, end: int
) -> list[tuple[int, int, int | None]]:
    """The pieces from start to end, with those between them, in which nothing ran."""
    found: list[tuple[int, int, int | None]] = []
    for begin, finish_, top in sorted(segments, key=lambda one: one[0]):
        first, last = max(begin, start), min(finish_, end)
        if first < last:
            found += [(start, first, None)] if start < first else []
            found.append((first, last, top))
            start = last
    return [*found, (start, end, None)] if start < end else found


def _gaps(activities: list[Activity], spans: list[HostSpan], segments: Segments) -> list[Gap]:
    """Sweeps each device's activities in order of start."""
    if not activities:
        return []
    first = min(a.start_ns for a in activities)
    last = max(a.end_ns for a in activities)
    ended: list[tuple[int, int, Activity]] = []
    open_: list[Gap] = []
    for device in sorted({a.device for a in activities}):
        own = [a for a in activities if a.device == device and a.dur_ns]
        busy_until = first
        for activity in sorted(own, key=lambda a: (a.start_ns, a.index)):
            if activity.start_ns > busy_until:
                ended.append((device, busy_until, activity))
            busy_until = max(busy_until, activity.end_ns)
        if busy_until < last:
            open_.append(_at_end(device, busy_until, last, own, spans, segments))
    latency = _latency(ended)
    return [_explain(*one, latency, spans, segments) for one in ended] + open_


def _latency(ended: list[tuple[int, int, Activity]]) -> int:
    """The median time from a launch to its start on an idle device, between 10 and 100 µs."""
    launched = [(start, by.launch_start_ns, by.start_ns) for _, start, by in ended if by.launch_start_ns]
    taken = [end - launch for start, launch, end in launched if start < launch < end]
    return round(min(max(median(taken or [0]), 10_000), 100_000))


def _on_host(
    thread: tuple[int, int], start: int, end: int, spans: list[HostSpan], segments: Segments
) -> tuple[dict[str, int], dict[int | None, int]]:
    """What a thread did from start to end: ns by cause, and by innermost span."""
    by_span: dict[int | None, int] = {}
    covered = 0
    for begin, finish_, top in segments[thread]:
        part = min(finish_, end) - max(begin, start)
        if part > 0:
            by_span[top] = by_span.get(top, 0) + part
            covered += part
    if covered < end - start:  # before the thread did anything
        by_span[None] = by_span.get(None, 0) + end - start - covered
    split: dict[str, int] = {}
    for top, part in by_span.items():
        cause = "python" if top is None else spans[top].cause
        split[cause] = split.get(cause, 0) + part
    return split, by_span


def _at_end(
    device: int, start: int, end: int, own: list[Activity], spans: list[HostSpan], segments: Segments
) -> Gap:
    """After the device's last activity the host launches nothing more: what did the thread do that launched last?"""
    launched = [a for a in own if a.launch_start_ns is not None]
    if not launched:
        return Gap(device, start, end, None, None, {}, {})
    last = max(launched, key=lambda a: a.launch_start_ns or 0)
    assert last.launch_thread is not None
    return Gap(device, start, end, None, "host", *_on_host(last.launch_thread, start, end, spans, segments))


def _explain(
    device: int, start: int, by: Activity, latency: int, spans: list[HostSpan], segments: Segments
) -> Gap:
    end, launch = by.start_ns, by.launch_start_ns
    if launch is None or by.launch_thread is None or by.launch_end_ns is None or by.launch is None:
        return Gap(device, start, end, by.index, None, {}, {})
    # A call that waits for its own copy does not keep the device waiting.
    returned = launch if spans[by.launch].cause == "synchronisation" else by.launch_end_ns
    if launch > start:
        split, by_span = _on_host(by.launch_thread, start, launch, spans, segments)
        inside = min(returned, end) - launch if returned - launch > latency else 0
        split["launch_api"] = split.get("launch_api", 0) + inside
        split["launch_latency"] = split.get("launch_latency", 0) + end - launch - inside
        return Gap(device, start, end, by.index, "host", split, by_span)
    called = min(max(returned, start), end)
    started = min(max(launch + latency, called), end)
    kernel_gap = "kernel_gap" if end - start < KERNEL_GAP_NS else "unexplained"
    cause = "dependency" if by.bound == "dependency" else kernel_gap
    split = {"launch_api": called - start, "launch_latency": started - called, cause: end - started}
    return Gap(device, start, end, by.index, cause, split, {})
