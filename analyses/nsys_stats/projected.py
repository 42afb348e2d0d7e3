"""The device work that each range launched, without a row per pair.

The calls that launched work are sorted by thread and start, as host spans are. The work of a range is then a slice
of them: from the first call that begins in the range to the last call that ends in it, on the range's thread. Sums over a
slice are differences of prefix sums; the earliest start and the latest end come from tables of the extremes of
1, 2, 4, … neighbours, one table at a time. So the cost does not grow with the depth of the ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import numpy as np
import polars as pl

from tracekit.classes import dataclass
from tracekit.spans import Int64Array
from tracekit.trace import Trace, one_of

__all__ = ["Launched", "Slices", "launched", "pairs_of", "slice_extremes", "slices_of"]

_PATIENCE: Final = 64
"""The number of calls at the end of a slice that are checked; on one thread, at most one can cross the end of a range."""


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """Device work by its launch.

    * `rows`: `name`, `start` and `duration` of each activity, in the order of the calls
    * `calls`: the calls that launched work, by thread and start: `process_id`, `thread_id`, `start`, `end`
    * `first`: the row of the first activity of each call, followed by the end of the rows
    """

    rows: pl.DataFrame
    calls: pl.DataFrame
    first: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """For each range the rows of `Launched` from `low` to before `high`; both are equal if there are none."""

    low: Int64Array
    high: Int64Array


def launched(trace: Trace, *kinds: str) -> Launched:
    """The activities of these kinds (all kinds by default) whose launch was recorded."""
    device = trace.device.filter(one_of("kind", *kinds)) if kinds else trace.device
    rows = device.filter(pl.col("launch_id").is_not_null())[["name", "start", "duration", "launch_id"]]
    rows = rows.sort("launch_id", "start", maintain_order=True)
    calls, first = np.unique(rows["launch_id"].to_numpy(), return_index=True)
    end = (pl.col("start") + pl.col("duration")).alias("end")
    host = trace.host.select("process_id", "thread_id", "start", end)[calls]
    return Launched(rows.drop("launch_id"), host, np.append(first, rows.height).astype(np.int64))


def slices_of(ranges: pl.DataFrame, work: Launched) -> Slices:
    """The work that each range launched: on its process and thread, by calls that begin and end in it."""
    thread = ["process_id", "thread_id"]
    calls = work.calls.select(*thread, "start").with_row_index("call").sort("start", maintain_order=True)
    spans = ranges.select(*thread, "start", (pl.col("start") + pl.col("duration")).alias("end"))
    spans = spans.with_row_index("range")

    def call(column: str, strategy: Literal["backward", "forward"]) -> pl.Series:
        """The first call that does not begin before these times, or the last that does not begin after them."""
        joined = spans.sort(column).join_asof(
            calls, left_on=column, right_on="start", by=thread, strategy=strategy, check_sortedness=False
        )
        return joined.sort("range")["call"].cast(pl.Int64)

    low = call("start", "forward").fill_null(calls.height).to_numpy()
    high = np.maximum(call("end", "backward").fill_null(-1).to_numpy() + 1, low)
    called_until, end = work.calls["end"].to_numpy(), spans["end"].to_numpy()
    for _ in range(_PATIENCE):
        over = np.flatnonzero(high > low)
        over = over[called_until[high[over] - 1] > end[over]]
        if not over.size:
            break
        high[over] -= 1
    return Slices(work.first[low], work.first[high])


def slice_extremes(
    values: Int64Array, slices: Slices, pick: Callable[[Int64Array, Int64Array], Int64Array]
) -> Int64Array:
    """The least (`np.minimum`) or greatest (`np.maximum`) value of each slice; none of them may be empty.

    >>> slices = Slices(np.array([0, 1, 2]), np.array([4, 3, 3]))
    >>> slice_extremes(np.array([5, 3, 8, 1]), slices, np.minimum).tolist()
    [1, 3, 8]
    """
    extremes = np.empty(slices.low.size, dtype=np.int64)
    if not extremes.size:
        return extremes
    # The exponent of a float is exact for lengths below 2^53.
    level = np.frexp((slices.high - slices.low).astype(np.float64))[1] - 1
    table, width = values, 1
    for height in range(int(level.max()) + 1):
        if height:
            table, width = pick(table[:-width], table[width:]), 2 * width
        mine = np.flatnonzero(level == height)
        # Two overlapping runs of 2^height values cover the slice.
        extremes[mine] = pick(table[slices.low[mine]], table[slices.high[mine] - width])
    return extremes


def pairs_of(slices: Slices) -> tuple[Int64Array, Int64Array]:
    """A row for each range and each activity in it: the number of the range, and the row of the activity.

    >>> [part.tolist() for part in pairs_of(Slices(np.array([0, 2, 1]), np.array([2, 2, 3])))]
    [[0, 0, 2, 2], [0, 1, 1, 2]]
    """
    length = slices.high - slices.low
    owner = np.repeat(np.arange(length.size, dtype=np.int64), length)
    before = np.cumsum(length) - length
    return owner, np.arange(owner.size, dtype=np.int64) - np.repeat(before - slices.low, length)
