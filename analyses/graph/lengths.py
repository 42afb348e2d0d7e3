"""The lengths of a graph's edges: as they were recorded, and as they usually are.

An edge that determined a vertex has the length that was recorded; the others have what such an edge takes at least, so that they
count when the first becomes shorter.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tracekit.analyses.graph.model import LINKS, NEVER, Links, Weights
from tracekit.classes import dataclass
from tracekit.facts.units import NS_PER_US
from tracekit.spans import BoolArray, Int64Array

__all__ = ["Vertices", "lengths"]

_CALL_NS: Final = 5 * NS_PER_US
"""A call that waits takes about this long if there is nothing to wait for."""
_LAUNCH_NS: Final = (1 * NS_PER_US, 5 * NS_PER_US, 100 * NS_PER_US)
"""The least, usual and longest time from a launch call to the start on an idle device."""
_GAP_NS: Final = (0, 1 * NS_PER_US, 5 * NS_PER_US)
"""The same for the gap between two activities of a stream, both launched in time."""
_QUEUED_NS: Final = 10 * NS_PER_US
"""What was launched this long before the stream was free was in its queue."""

_KIND: Final = {name: number for number, name in enumerate(LINKS)}


@dataclass(frozen=True, slots=True, eq=False)
class Vertices:
    """Vertices by lane and time, in ns: the `duration` of the activity that starts there (0: none), which lie on streams, and the numbers of
    those at which waits ended (`waited`), and of these at which work of another thread did or began (`served`). `begun` is when the window
    began, if earlier work kept a device busy until then.
    """

    time: Int64Array
    lane: Int64Array
    duration: Int64Array
    on_stream: BoolArray
    waited: Int64Array
    served: Int64Array
    begun: int | None


def lengths(vertices: Vertices, links: Links) -> tuple[Int64Array, Int64Array, Int64Array, Weights]:
    """Work and lag of the chain into each vertex, and the lag of each link, all in ns; and the usual lengths of all edges.

    What determined a vertex is the edge by which it would have been reached last, if each took as long as such edges usually do.
    """
    time, duration, on_stream, kind = vertices.time, vertices.duration, vertices.on_stream, links.kind
    chained = np.append(False, vertices.lane[1:] == vertices.lane[:-1])
    before = np.append(0, time[:-1])
    step = np.where(chained, time - before, 0)
    work = np.where(on_stream & chained, np.minimum(np.append(0, duration[:-1]), step), step)
    gap = step - work
    call = np.minimum(_CALL_NS, step)
    call[vertices.served] = 0
    waited = np.zeros(time.size, dtype=bool)
    waited[vertices.waited] = True
    carried = np.where(links.after, duration[links.source], 0)
    left = time[links.source] + carried
    delay = time[links.target] - left
    free = np.where(chained & on_stream, time - gap, NEVER)
    usual, gap_ns = _usual(time, links, delay, gap, free)
    # When each edge would have reached its target.
    least = np.minimum(usual, delay)
    begins, ends = kind == _KIND["begin"], kind == _KIND["end"]
    held = begins & on_stream[links.target] if vertices.begun is not None else np.zeros_like(begins)
    if vertices.begun is not None:  # the device is not free before, however early its first launch comes
        least[held] = np.minimum(vertices.begun - time[0], delay[held])
    arrival = np.where(begins & ~held, NEVER, left + least)
    own = np.where(on_stream, before + work + gap_ns, np.where(waited, before + call, time))
    own = np.where(chained, own, NEVER)
    best = np.full(time.size, NEVER, dtype=np.int64)
    np.maximum.at(best, links.target, arrival)
    by_link = (best > own) | ~chained
    binding = by_link[links.target] & (arrival == best[links.target])
    link_lag = np.where(binding, delay, least)
    link_lag[ends] = 0
    freed = by_link & chained
    work = np.where(freed & ~on_stream, np.where(waited, call, work), work)
    lag = np.where(on_stream, np.where(freed, np.minimum(gap, gap_ns), gap), 0)
    chain = work + np.where(on_stream & chained, gap_ns, 0)
    return work, lag, link_lag, Weights(chain, carried + np.where(begins | ends, link_lag, usual))


def _usual(
    time: Int64Array, links: Links, delay: Int64Array, gap: Int64Array, free: Int64Array
) -> tuple[Int64Array, int]:
    """The usual lag of each link in ns, by its kind; also that of the gaps of streams, which were `free` before their vertices."""
    kind, launch = links.kind, links.kind == _KIND["launch"]
    target, called = links.target[launch], time[links.source[launch]]
    held = np.zeros(time.size, dtype=bool)  # by another stream: what passes until then is no latency
    held[links.target[np.isin(kind, [_KIND["event"], _KIND["inferred_wait"]])]] = True
    idle = delay[launch][(called >= free[target]) & ~held[target]]
    queued = target[(called < free[target] - _QUEUED_NS) & ~held[target]]
    gap_ns = _typical(gap[queued], *_GAP_NS)
    usual = np.full(kind.size, gap_ns, dtype=np.int64)
    usual[launch] = _typical(idle, *_LAUNCH_NS)
    usual[np.isin(kind, [_KIND["synchronisation"], _KIND["inferred_synchronisation"]])] = _CALL_NS
    usual[np.isin(kind, [_KIND["thread"], _KIND["inferred_thread"], _KIND["begin"]])] = 0
    return usual, gap_ns


def _typical(values: Int64Array, least: int, usual: int, most: int) -> int:
    """The median within reason; what is usual, where there is none."""
    return int(np.clip(np.median(values), least, most)) if values.size else usual
