"""Layers from ranges that need not nest: NVTX start/end ranges, which may begin on one thread and end on another.

Such a range says when something ran in the process, not on which thread. Work belongs to the innermost one that is
open when it is launched, whatever its thread; where two are open of which neither contains the other, it
belongs to none (DEFINITIONS §5, *by interval, abstaining when ambiguous*).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack, one_begins_in
from tracekit.analyses.attribution.layer_ranges import counting
from tracekit.facts.stack_names import LIBRARY_DOMAINS, NOT_A_LAYER
from tracekit.spans import BoolArray, Int64Array, Nesting, nest, take
from tracekit.trace import Trace

__all__ = ["Spanning", "spanning_ranges"]


@dataclass(frozen=True, slots=True, eq=False)
class Spanning:
    """Start/end ranges, nested by process. `names` are theirs, row by row; `process_of_thread` gives the number of the process of each
    thread of the host stack. `starts` and `ends` are sorted within each process, which `bounds` delimits.
    """

    nesting: Nesting
    names: pl.Series
    depth: Int64Array
    process_of_thread: Int64Array
    ends: Int64Array
    bounds: Int64Array

    def at(self, thread: Int64Array, time: Int64Array) -> Int64Array:
        """For each (thread, time) the innermost open range of the thread's process; −1 for none, and where that is ambiguous."""
        process = self.process_of_thread[thread]
        row = self.nesting.innermost_at(process, time)
        # All ranges around a range are open while it is; if more are open, one of them does not contain it.
        clear = take(self.depth, row) + 1 == self._open(process, time)
        return np.where(clear, row, -1)

    def _open(self, process: Int64Array, time: Int64Array) -> Int64Array:
        """How many ranges are open at each time."""
        count = np.zeros(time.size, dtype=np.int64)
        for code in np.unique(process).tolist():
            rows = np.flatnonzero(process == code)
            low, high = int(self.bounds[code]), int(self.bounds[code + 1])
            begun = np.searchsorted(self.nesting.start[low:high], time[rows], side="right")
            count[rows] = begun - np.searchsorted(self.ends[low:high], time[rows], side="right")
        return count


def spanning_ranges(trace: Trace, stack: HostStack, work: BoolArray) -> Spanning | None:
    """The start/end ranges of a trace that may stand for layers and meanwhile see some of `work` (a mask of the host
    spans) begin in their process; None when there is none.
    """
    if trace.ranges is None or not stack.size:
        return None
    rows = trace.ranges.filter((pl.col("kind") == "start_end") & (pl.col("duration") > 0))
    distinct = rows.select("name", "domain").unique()
    tools = distinct["name"].cast(pl.String).str.contains(NOT_A_LAYER) | distinct["domain"].cast(
        pl.String
    ).str.contains(LIBRARY_DOMAINS).fill_null(value=False)
    own = distinct.filter(~tools)
    if trace.layer_ranges is not None and own.height:
        own = own.filter(pl.Series(counting(own, trace.layer_ranges)))
    rows = rows.join(own, on=["name", "domain"], how="semi", nulls_equal=True, maintain_order="left")
    codes, process = np.unique(stack.process, return_inverse=True)
    numbers = pl.DataFrame({"process_id": codes, "process": np.arange(codes.size, dtype=np.int64)})
    rows = rows.join(numbers, on="process_id", how="inner", maintain_order="left")
    rows = rows.select("name", "process", "start", (pl.col("start") + pl.col("duration")).alias("end"))
    rows = rows.sort("process", "start", pl.col("end") * -1, maintain_order=True)
    rows = rows.filter(pl.Series(one_begins_in(rows, process.astype(np.int64)[work], stack.start[work])))
    if not rows.height:
        return None
    nesting = nest(rows["process"].to_numpy(), rows["start"].to_numpy(), rows["end"].to_numpy())
    depth = nesting.depth()
    chosen = trace.layer_ranges
    if chosen is not None and chosen.depth is not None and (depth >= chosen.depth).any():
        rows = rows.filter(pl.Series(depth < chosen.depth))
        nesting = nest(rows["process"].to_numpy(), rows["start"].to_numpy(), rows["end"].to_numpy())
        depth = nesting.depth()
    of_thread = np.zeros(int(stack.thread[-1]) + 1, dtype=np.int64)
    of_thread[stack.thread] = process
    return Spanning(
        nesting=nesting,
        names=rows["name"].cast(pl.String),
        depth=depth,
        process_of_thread=of_thread,
        ends=rows.sort("process", "end")["end"].to_numpy(),
        bounds=np.searchsorted(nesting.thread, np.arange(codes.size + 1)),
    )
