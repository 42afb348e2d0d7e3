"""CUDA graphs as a change: what a graph can hold of each step, and what the host still has to do."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.idle.span_causes import CAUSE_NUMBER
from tracekit.analyses.what_if.draft import Draft
from tracekit.classes import dataclass
from tracekit.errors import UsageError
from tracekit.facts.idle_names import PAGEABLE_COPY
from tracekit.facts.units import NS_PER_US, count_of, format_share
from tracekit.spans import BoolArray, Int64Array, take

__all__ = ["WHOLE", "CudaGraph"]

_LAUNCH_NS: Final = (5 * NS_PER_US, 10 * NS_PER_US, 30 * NS_PER_US)
"""What the launch of a graph takes the host."""
WHOLE: Final = "step"
"""All work of a step, as a value of the flag."""


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """What lies between two waits of the host becomes one graph, which the host launches with one call.

    `of` is `step`, or a selector such as `layer:encoder` for graphs of this work alone.
    """

    of: str = WHOLE

    @property
    def label(self) -> str:
        """`--cuda-graph step`."""
        return f"--cuda-graph {self.of}"

    def apply(self, draft: Draft) -> None:
        """Take away the code from the first to the last launch of each graph, but for what a graph cannot hold."""
        if draft.made.scope.on_cpu:
            raise UsageError(
                "no device was captured, so there is nothing to put into a graph",
                remedy="leave --cuda-graph out",
            )
        draft.need_launches(self.label)
        found = _Graphs(draft, self.of)
        draft.scale_pieces(found.pieces, 0.0)
        draft.added[found.vertex] += _LAUNCH_NS[draft.spread + 1]
        draft.assume(
            "All shapes stay the same. Between the launches of a graph no code decides what comes next, and no number that the host passes to "
            "a kernel changes from step to step."
        )
        draft.assume(found.sentence)


class _Graphs:
    """The graphs of a window: the `pieces` of code that they replace, and the `vertex` of the first launch of each."""

    def __init__(self, draft: Draft, of: str) -> None:
        self.draft, self.of, made, host = draft, of, draft.made, draft.host
        stack, links = made.stack, made.graph.links
        launches = np.flatnonzero(draft.links_of("launch"))
        activity = made.activity[links.target[launches]]
        wanted = self._wanted()[activity]
        calls = made.lines.launch[activity]
        stops = self._stops(calls[~wanted])
        launching = np.isin(host.thread, np.unique(stack.thread[calls]))
        calls, first = np.unique(calls[wanted], return_index=True)
        vertex = links.source[launches[wanted][first]]
        stopped = host.inside(stops) | (host.cause == CAUSE_NUMBER["data_loading"])
        at_work = np.isin(host.thread, np.unique(stack.thread[calls]))
        begins, ends = self._edges(stopped & launching)  # another thread's launch ends a graph, too
        held = take(stack.nesting.nearest_ancestor(stops), calls) < 0
        held &= stack.start[calls] >= made.begin  # what was launched before the window has no code in it
        self.launches = calls.size
        calls, vertex = calls[held], vertex[held]
        order = np.argsort(stack.start[calls], kind="stable")
        calls, vertex = calls[order], vertex[order]
        between = np.searchsorted(begins, stack.start[calls], side="right")
        heads = np.flatnonzero(np.append(True, between[1:] != between[:-1]))[: calls.size]
        low, high = self._bounds(calls, heads)
        low = np.maximum(low, np.append(made.begin, ends)[between[heads]])
        high = np.minimum(high, np.append(begins, made.end)[between[heads]])
        inside = np.searchsorted(low, host.start, side="right") - 1
        kept = stopped | ~at_work | (host.cause == CAUSE_NUMBER["allocation"])
        gone = (inside >= 0) & ~kept
        gone[gone] = host.end[gone] <= high[inside[gone]]
        saved = np.bincount(inside[gone], (host.end - host.start)[gone], minlength=heads.size)
        # A graph that takes as long to launch as what it replaces is left out.
        worth = saved > _LAUNCH_NS[draft.spread + 1]
        gone[gone] = worth[inside[gone]]
        self.pieces, self.vertex = gone, vertex[heads[worth]]
        self.taken = int(np.diff(np.append(heads, calls.size))[worth].sum())

    def _wanted(self) -> BoolArray:
        """The activities that the graphs are to hold."""
        if self.of == WHOLE:
            return np.ones(self.draft.rows.height, dtype=bool)
        if ":" not in self.of:
            raise UsageError(
                f"--cuda-graph {self.of} is not known",
                remedy=f"write {WHOLE}, or a selector such as layer:encoder",
            )
        rows = self.draft.select(self.of).rows
        if not rows.any():
            raise UsageError(f"{self.of} launches no device work", remedy="select a layer or an operator")
        return rows

    def _stops(self, others: Int64Array) -> BoolArray:
        """The spans that no graph holds: operators and calls in which the host waits for the device, or copies pageable memory, and those
        that make these other launches.
        """
        made, stack = self.draft.made, self.draft.made.stack
        waits = stack.awaits_device()
        copies = np.zeros(stack.size, dtype=bool)
        rows = made.lines.rows.filter(pl.col("name").cast(pl.String).str.contains(PAGEABLE_COPY))
        copies[rows["launch_id"].drop_nulls().to_numpy()] = True
        operators = stack.named(r"^aten::", "op")
        outermost = operators & (stack.nesting.nearest_ancestor(operators, include_self=False) < 0)
        around = stack.nesting.nearest_ancestor(outermost)
        if not self.draft.waits_for_device:  # the values of these operators are not read either
            copies &= ~np.isin(around, np.setdiff1d(around[waits], [-1]))
            waits[:] = False
        stops: BoolArray = waits | copies
        stops[others] = True
        held = around[stops]
        stops[held[held >= 0]] = True
        return stops

    def _edges(self, stopped: BoolArray) -> tuple[Int64Array, Int64Array]:
        """Where graphs end, and where the next may begin: at what they cannot hold, and at steps."""
        made, host = self.draft.made, self.draft.host
        steps = made.graph.time[made.steps]
        begins = np.concatenate([host.start[stopped], steps])
        ends = np.concatenate([host.end[stopped], steps])
        order = np.argsort(begins, kind="stable")
        return begins[order], np.maximum.accumulate(ends[order])

    def _bounds(self, calls: Int64Array, heads: Int64Array) -> tuple[Int64Array, Int64Array]:
        """From the outermost operator around the first launch of each graph to the end of that around its last."""
        if not calls.size:
            return calls, calls
        stack = self.draft.made.stack
        operators = stack.of_kind("op")
        outermost = operators & (stack.nesting.nearest_ancestor(operators, include_self=False) < 0)
        around = take(stack.nesting.nearest_ancestor(outermost), calls)
        root = np.where(around >= 0, around, calls)
        return np.minimum.reduceat(stack.start[root], heads), np.maximum.reduceat(stack.end[root], heads)

    @property
    def sentence(self) -> str:
        """What the graphs hold and what stays, in words."""
        waits = "waits of the host and the operators that wait, " if self.draft.waits_for_device else ""
        others = "" if self.of == WHOLE else "operators that launch other work too, "
        stay = (
            f"{waits}copies of pageable memory, data loading, calls that allocate or free memory, {others}"
            "and code before the first and after the last launch of a graph"
        )
        if not self.vertex.size:
            return f"No graph gains anything, since these stay: {stay}."
        steps = self.draft.made.scope.steps.height
        per = steps if steps and self.vertex.size % steps == 0 else 1
        count = self.vertex.size // per
        where = "a step" if per > 1 or steps == 1 else f"{steps} steps" if steps else "the window"
        holds = "holds" if count == 1 else "hold"
        share = format_share(self.taken / self.launches)
        if self.of != WHOLE:
            where = f"{self.of} in {where}"
        return f"The launches of {where} become {count_of(count, 'graph')}, which {holds} {share} of them. These stay: {stay}."
