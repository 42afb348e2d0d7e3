"""Brute-force answers to compare with: slow, obvious, and independent of tracekit.

Section numbers are those of the definitions. Sets of time are cut into elementary cells, and each cell is
asked which intervals cover it; nothing is merged, swept or sorted cleverly.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from .model import COMMUNICATION, COMPUTE, MEMORY, Activity, HostSpan, Step

Interval = tuple[int, int]
ThreadKey = tuple[int, int]
"""(process, thread)"""
StreamKey = tuple[int, int]
"""(device, stream)"""

# -- sets of time ----------------------------------------------------------------------------------


def cells(*sets: Sequence[Interval]) -> list[tuple[int, int, tuple[bool, ...]]]:
    """Elementary cells between all end points, each with which of the sets covers it."""
    cuts = sorted({point for intervals in sets for interval in intervals for point in interval})
    return [
        (low, high, tuple(any(a <= low and high <= b for a, b in intervals) for intervals in sets))
        for low, high in pairwise(cuts)
    ]


def measure(intervals: Sequence[Interval]) -> int:
    """|S|: how long at least one interval is open."""
    return sum(high - low for low, high, (inside,) in cells(intervals) if inside)


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """The maximal intervals of the union; what only touches is joined, what has no length is nowhere."""
    found: list[Interval] = []
    for low, high, (inside,) in cells(intervals):
        if not inside:
            continue
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


def intersection(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    return union([(low, high) for low, high, (one, two) in cells(first, second) if one and two])


def difference(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    return union([(low, high) for low, high, (one, two) in cells(first, second) if one and not two])


def coverage(intervals: Sequence[Interval]) -> list[tuple[int, int, int]]:
    """How many intervals are open in each elementary cell."""
    cuts = sorted({point for interval in intervals for point in interval})
    return [(low, high, sum(a <= low and high <= b for a, b in intervals)) for low, high in pairwise(cuts)]


def span_of(activity: Activity) -> Interval:
    return activity.start_ns, activity.end_ns


# -- windows (§1) ---------------------------------------------------------------------------------


def trace_window(activities: Sequence[Activity]) -> Interval:
    """First start to last end of all device activities."""
    return min(a.start_ns for a in activities), max(a.end_ns for a in activities)


def steps_window(activities: Sequence[Activity], numbers: Iterable[int] | None = None) -> Interval:
    """First start to last end of what was launched within the steps (all of them by default)."""
    wanted = None if numbers is None else set(numbers)
    return trace_window(
        [a for a in activities if a.step is not None and (wanted is None or a.step in wanted)]
    )


def before_recording(activity: Activity, activities: Sequence[Activity]) -> bool:
    """Whether an activity has no launch, and runs before all of its device that have one."""
    launched = [a.start_ns for a in activities if a.launch is not None and a.device == activity.device]
    return activity.launch is None and activity.start_ns < min(launched, default=0)


def window_of_steps(activities: Sequence[Activity], steps: Sequence[Step]) -> Interval:
    """From the first step on the host, or the end of earlier work, to the last step on the host, or its last activity.

    An activity that waited for 100 µs although nothing was left to run waited for work from before the recording.
    """
    begin = steps[0].start_ns
    earlier = [
        a for a in activities if before_recording(a, activities) or (a.launch_start_ns or begin) < begin
    ]
    numbers = {step.number for step in steps}
    own = [a for a in activities if a.step in numbers and a not in earlier]
    begin = max([begin, *(a.end_ns for a in earlier)])
    first = min(own, key=lambda a: a.start_ns)
    if first.launch_end_ns is not None and first.start_ns - max(begin, first.launch_end_ns) >= 100_000:
        begin = first.start_ns
    return begin, max(steps[-1].end_ns, *(a.end_ns for a in own))


def step_of(time: int, steps: Sequence[Step]) -> int | None:
    """The step that is open at a time of launch."""
    return next((step.number for step in steps if step.start_ns <= time < step.end_ns), None)


def step_times(steps: Sequence[Step]) -> dict[int, int]:
    """Start to the next start; the last step's own duration."""
    ordered = sorted(steps, key=lambda step: step.start_ns)
    times = {one.number: two.start_ns - one.start_ns for one, two in pairwise(ordered)}
    if ordered:
        times[ordered[-1].number] = ordered[-1].dur_ns
    return times


# -- temporal breakdown (§3) ----------------------------------------------------------------------


@dataclass(frozen=True)
class Breakdown:
    """All in ns, for one device and one window."""

    window: int
    compute: int
    communication: int
    memory: int
    exposed_communication: int
    exposed_memory: int
    idle: int
    busy: int
    kernels: int  # |C ∪ X|
    overlap: int  # |X ∩ C|

    @property
    def non_compute(self) -> int:
        """HTA's name for what is busy and not compute."""
        return self.exposed_communication + self.exposed_memory

    @property
    def overlap_ratio(self) -> float | None:
        return self.overlap / self.communication if self.communication else None

    @property
    def utilisation(self) -> float | None:
        return self.busy / self.window if self.window else None


def breakdown(activities: Sequence[Activity], window: Interval, device: int | None = None) -> Breakdown:
    """Each cell of the window goes to one of compute, exposed communication, exposed memory, idle."""
    own = [a for a in activities if device is None or a.device == device]
    sets = [[span_of(a) for a in own if a.cls == cls] for cls in (COMPUTE, COMMUNICATION, MEMORY)]
    total: dict[str, int] = defaultdict(int)
    for low, high, (compute, communication, memory, inside) in cells(*sets, [window]):
        if not inside:
            continue
        length = high - low
        total["window"] += length
        total["compute"] += length * compute
        total["communication"] += length * communication
        total["memory"] += length * memory
        total["exposed_communication"] += length * (communication and not compute)
        total["exposed_memory"] += length * (memory and not compute and not communication)
        total["idle"] += length * (not (compute or communication or memory))
        total["busy"] += length * (compute or communication or memory)
        total["kernels"] += length * (compute or communication)
        total["overlap"] += length * (communication and compute)
    return Breakdown(**{name: total[name] for name in Breakdown.__dataclass_fields__})


# -- idle (§4) ------------------------------------------------------------------------------------


def stream_idle(
    activities: Sequence[Activity], threshold_ns: int = 30_000
) -> dict[StreamKey, dict[str, int]]:
    """HTA's split per (device, stream): sums of host_wait, kernel_wait and other, in ns.

    A gap is start(b) − end(a) of neighbours in order of start, so it is negative where they overlap.
    """
    result: dict[StreamKey, dict[str, int]] = {}
    for key in {(a.device, a.stream) for a in activities}:
        own = sorted(
            (a for a in activities if (a.device, a.stream) == key), key=lambda a: (a.start_ns, a.index)
        )
        sums = {"host_wait": 0, "kernel_wait": 0, "other": 0}
        for before, after in pairwise(own):
            gap = after.start_ns - before.end_ns
            late = after.launch_start_ns is not None and after.launch_start_ns > before.end_ns
            sums["host_wait" if late else "kernel_wait" if gap < threshold_ns else "other"] += gap
        result[key] = sums
    return result


def idle_gaps(
    activities: Sequence[Activity], device: int, window: Interval
) -> list[tuple[int, int, int | None]]:
    """Maximal idle gaps of a device in a window: (start, end, index of the activity that ends it)."""
    own = [a for a in activities if a.device == device]
    gaps = []
    for low, high in difference([window], [span_of(a) for a in own]):
        enders = [a for a in own if a.start_ns == high and a.dur_ns]
        gaps.append((low, high, min((a.index for a in enders), default=None)))
    return gaps


def host_time_in(
    spans: Sequence[HostSpan], thread: ThreadKey, window: Interval, caller: ThreadKey | None = None
) -> dict[int | None, int]:
    """What a (process, thread) did in a window: ns by innermost span; where none was open, what its caller did other than a bare step, or None."""
    asked = [key for key in (thread, caller) if key is not None]
    edges = {t for s in spans if (s.process, s.thread) in asked for t in (s.start_ns, s.end_ns)}
    cuts = sorted({*window, *(t for t in edges if window[0] < t < window[1])})
    result: dict[int | None, int] = defaultdict(int)
    for low, high in pairwise(cuts):
        found = innermost_at(spans, thread, low)
        if found is None and caller is not None:
            found = innermost_at(spans, caller, low)
            found = None if found is None or spans[found].kind == "step" else found
        result[found] += high - low
    return dict(result)


# -- nesting (§5) ---------------------------------------------------------------------------------


def parent_of(spans: Sequence[HostSpan], span: HostSpan) -> int | None:
    """The latest-starting other span on the thread that contains it whole; of equals the earlier is outer."""
    holders = [
        other
        for other in spans
        if other is not span
        and (other.process, other.thread) == (span.process, span.thread)
        and other.start_ns <= span.start_ns
        and span.end_ns <= other.end_ns
        and ((other.start_ns, other.end_ns) != (span.start_ns, span.end_ns) or other.index < span.index)
    ]
    if not holders:
        return None
    return max(holders, key=lambda other: (other.start_ns, -other.end_ns, other.index)).index


def parents(spans: Sequence[HostSpan]) -> list[int | None]:
    """The parent of each span."""
    return [parent_of(spans, span) for span in spans]


def depths(found: Sequence[int | None]) -> list[int]:
    """How many ancestors each span has, from `parents` of spans whose index is their place."""
    result = []
    for parent in found:
        depth, at = 0, parent
        while at is not None:
            depth, at = depth + 1, found[at]
        result.append(depth)
    return result


def innermost_at(spans: Sequence[HostSpan], thread: ThreadKey, time: int) -> int | None:
    """The span with start ≤ time < end that started last; of equal starts the shorter, then the later row."""
    open_spans = [s for s in spans if (s.process, s.thread) == thread and s.start_ns <= time < s.end_ns]
    if not open_spans:
        return None
    return max(open_spans, key=lambda s: (s.start_ns, -s.end_ns, s.index)).index


def self_times(spans: Sequence[HostSpan]) -> list[int]:
    """Each span's duration less the union of its children."""
    found = parents(spans)
    return [
        span.dur_ns
        - measure([(s.start_ns, s.end_ns) for s, p in zip(spans, found, strict=True) if p == span.index])
        for span in spans
    ]


def operators_of(spans: Sequence[HostSpan], activity: Activity) -> tuple[int | None, int | None]:
    """The innermost and the outermost operator around an activity's launch."""
    at = None if activity.launch is None else parent_of(spans, spans[activity.launch])
    chain = []
    while at is not None:
        if spans[at].kind == "op":
            chain.append(at)
        at = parent_of(spans, spans[at])
    return (chain[0], chain[-1]) if chain else (None, None)


# -- kernels, copies, launches (§6) ---------------------------------------------------------------


def quantile(values: Sequence[int], share: float) -> float:
    """Linear interpolation between order statistics, as numpy and pandas do by default."""
    ordered = sorted(values)
    place = Fraction(share).limit_denominator(1000) * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (place - low))


def statistics(values: Sequence[int]) -> dict[str, float]:
    """count, total, mean, median, p95, min, max, and the sample standard deviation (0 for a single value)."""
    count, total = len(values), sum(values)
    mean = Fraction(total, count)
    squares = sum((value - mean) ** 2 for value in values)
    return {
        "count": count,
        "total": total,
        "mean": float(mean),
        "median": quantile(values, 0.5),
        "p95": quantile(values, 0.95),
        "min": min(values),
        "max": max(values),
        "std": math.sqrt(squares / (count - 1)) if count > 1 else 0.0,
    }


def kernel_table(
    activities: Sequence[Activity], kinds: Sequence[str] = ("kernel",)
) -> dict[str, dict[str, float]]:
    """Durations by name."""
    return {
        name: statistics([a.dur_ns for a in activities if a.kind in kinds and a.name == name])
        for name in {a.name for a in activities if a.kind in kinds}
    }


def memcpy_table(activities: Sequence[Activity]) -> dict[str, dict[str, float]]:
    """By direction (`HtoD`, `DtoH`, `DtoD`, …, and `memset`): count, bytes, ns in sum, GB/s."""
    result: dict[str, dict[str, float]] = {}
    for a in activities:
        if a.cls != MEMORY:
            continue
        direction = "memset" if a.kind == "memset" else a.name.split()[1]
        row = result.setdefault(direction, {"count": 0, "bytes": 0, "total": 0})
        row["count"] += 1
        row["bytes"] += a.bytes or 0
        row["total"] += a.dur_ns
    for row in result.values():
        row["bandwidth_gbps"] = row["bytes"] / row["total"] if row["total"] else math.nan
    return result


def launch_delays(activities: Sequence[Activity]) -> dict[int, tuple[int, int]]:
    """Per activity with a recorded launch: (start − launch start, start − launch end or 0)."""
    return {
        a.index: (a.start_ns - a.launch_start_ns, max(a.start_ns - a.launch_end_ns, 0))
        for a in activities
        if a.launch_start_ns is not None and a.launch_end_ns is not None
    }


def launch_summary(activities: Sequence[Activity], short_ns: int = 10_000) -> dict[str, float]:
    """Short kernels, and the share of linked activities that are shorter than what their launch cost the host.

    A call that launches several activities (a graph) costs each of them its equal share.
    """
    linked = [a for a in activities if a.launch_start_ns is not None and a.launch_end_ns is not None]
    sharing = Counter(a.launch for a in linked)
    bound = [
        a for a in linked if a.dur_ns * sharing[a.launch] < (a.launch_end_ns or 0) - (a.launch_start_ns or 0)
    ]
    return {
        "short_kernels": sum(a.kind == "kernel" and a.dur_ns < short_ns for a in activities),
        "linked": len(linked),
        "unlinked": len(activities) - len(linked),
        "launch_bound": len(bound),
        "launch_bound_share": len(bound) / len(linked) if linked else math.nan,
    }


def queue_depth(activities: Sequence[Activity], device: int, stream: int) -> list[tuple[int, int]]:
    """Launched and not yet started: the value from each change on; changes at one time are taken together."""
    own = [
        a for a in activities if (a.device, a.stream) == (device, stream) and a.launch_start_ns is not None
    ]
    times = sorted({t for a in own for t in (a.launch_start_ns or 0, a.start_ns)})
    return [(time, sum((a.launch_start_ns or 0) <= time < a.start_ns for a in own)) for time in times]
