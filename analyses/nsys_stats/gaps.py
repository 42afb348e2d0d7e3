"""When devices are idle or little used, per process and device: the figures of `gpu_gaps` and `gpu_time_util`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.nsys_stats.rows import clock_shift, own_process
from tracekit.intervals import IntervalSet
from tracekit.spans import Int64Array
from tracekit.trace import Trace

__all__ = ["DeviceWork", "device_work", "gaps_of", "regions_of", "usage"]

_KEYS: Final = ("process_id", "device_id")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """The work of a process on a device, in ns on the clock of the reports, and when the profiler got in its way
    (`overhead_*`, inside the time of the work). `context_id` is None where there are several.
    """

    process_id: int | None
    device_id: int
    context_id: int | None
    start: Int64Array
    end: Int64Array
    overhead_start: Int64Array
    overhead_end: Int64Array

    @property
    def first(self) -> int:
        """When the first work begins."""
        return int(self.start.min())

    @property
    def last(self) -> int:
        """When the last work ends."""
        return int(self.end.max())


def device_work(traces: Sequence[Trace]) -> Iterator[DeviceWork]:
    """Each process and device of all traces, in order."""
    for part, trace in enumerate(traces):
        shift = clock_shift(traces, part)
        overhead = trace.host.filter(pl.col("kind") == "overhead").select("process_id", "start", "duration")
        rows = trace.device.with_columns(own_process(trace)).select(*_KEYS, "context_id", "start", "duration")
        for (process, device), mine in sorted(
            rows.partition_by(_KEYS, as_dict=True, maintain_order=True).items(), key=_order
        ):
            start = mine["start"].to_numpy() + shift
            end = start + mine["duration"].to_numpy()
            low, high = int(start.min()), int(end.max())
            theirs = overhead if process is None else overhead.filter(pl.col("process_id") == process)
            begin = theirs["start"].to_numpy() + shift
            finish = np.clip(begin + theirs["duration"].to_numpy(), low, high)
            begin = np.clip(begin, low, high)
            contexts = mine["context_id"].drop_nulls().unique().to_list()
            context = contexts[0] if len(contexts) == 1 else None
            yield DeviceWork(process, device, context, start, end, begin, finish)


def _order(item: tuple[tuple[int | None, ...], pl.DataFrame]) -> tuple[int, ...]:
    return tuple(-1 if key is None else key for key in item[0])


def gaps_of(work: DeviceWork, least_ns: float) -> IntervalSet:
    """The times, between its first and last work, of at least `least_ns` in which neither work nor overhead is."""
    used = IntervalSet.of(
        np.append(work.start, work.overhead_start), np.append(work.end, work.overhead_end)
    ).complement(work.first, work.last)
    long = used.ends - used.starts >= least_ns
    return IntervalSet(used.starts[long], used.ends[long])


def regions_of(work: DeviceWork, chunks: int, threshold: float) -> pl.DataFrame:
    """Regions that are used less than `threshold` %: `start`, `end` in ns, and `used`, in ns.

    The time from the first work to the last is cut into equal chunks; chunks below the threshold that follow each other are
    one region, whose utilisation is the mean weighted by duration.
    """
    first, last = work.first, work.last
    chunks = max(1, min(chunks, last - first))
    edges = np.array([first + (last - first) * number // chunks for number in range(chunks + 1)])
    used = usage(np.append(work.start, work.overhead_start), np.append(work.end, work.overhead_end), edges)
    length = np.diff(edges)
    low = (100 * used < threshold * length) & (length > 0)
    begins = np.flatnonzero(low & np.append(True, ~low[:-1]))
    stops = np.flatnonzero(low & np.append(~low[1:], True)) + 1
    before = np.append(0, np.cumsum(used))
    return pl.DataFrame(
        {"start": edges[begins], "end": edges[stops], "used": before[stops] - before[begins]},
        schema={"start": pl.Int64, "end": pl.Int64, "used": pl.Int64},
    )


def usage(start: Int64Array, end: Int64Array, edges: Int64Array) -> Int64Array:
    """The time in ns that the intervals take between each edge and the next; where they overlap it adds up.

    Sums of times may exceed 64 bits; they wrap around, and their differences are exact all the same.

    >>> usage(np.array([0, 5]), np.array([10, 7]), np.array([0, 6, 20])).tolist()
    [7, 5]
    """
    return np.diff(_until(np.sort(start), edges) - _until(np.sort(end), edges))


def _until(times: Int64Array, edges: Int64Array) -> Int64Array:
    """The sum, over the times before each edge, of how long before it they are."""
    sums = np.append(np.zeros(1, dtype=np.int64), np.cumsum(times))
    count = np.searchsorted(times, edges)
    return np.asarray(count * edges - sums[count], dtype=np.int64)
