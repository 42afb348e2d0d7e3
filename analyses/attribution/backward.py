"""From a node of the backward graph to the forward operator that it is the gradient of (DEFINITIONS §5).

A forward operator and its backward node bear the same autograd sequence number, which counts per forward thread.
Operators nested in a forward operator share its number or peek at the next one, so the latest that starts before
the node is the one. Where the profile does not tell the forward thread (NVTX ranges), it is an operator that ran
inside the node itself, on its thread (activation checkpointing), else one outside of all nodes. A node that adds up a
gradient has no number: it runs right after the node that made it.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.attribution.recomputed import recomputed_spans
from tracekit.facts.program_names import TRAINING_KERNEL
from tracekit.facts.stack_names import BACKWARD_NODE, ENGINE_THREAD
from tracekit.groups import NameTable, any_matching, are_known, distinct, kept, none_to_null, or_none
from tracekit.spans import BoolArray, Int64Array, NarrowArray, narrow, take
from tracekit.trace import Trace

__all__ = ["Backward", "backward_of"]

_MOST_VOTES = 4_000_000
"""The number of pairs of forward threads and their numbers that are counted: enough to match them, and little memory."""


class Backward(msgspec.Struct, frozen=True, eq=False):
    """Arrays over the host spans.

    `is_node` marks spans that run a backward node; `node` is the innermost such span around each (−1 for none),
    itself included, and on a thread of the autograd engine, for work between two nodes, the one before.
    `forward` is the span of the forward operator of each node (−1 where it is not in the file, and for spans that
    are no node). `follows` marks nodes without a number whose `forward` is that of the node before. `recomputed` marks
    forward operators that run again inside a node, with all that lies in them. `hidden`: the process has a thread of the
    engine, or kernels are named after training, but the trace shows neither work of the engine nor operators, so that any
    work may be backward.
    """

    is_node: BoolArray
    node: NarrowArray
    forward: NarrowArray
    follows: BoolArray
    engine_threads: Int64Array
    recomputed: BoolArray
    hidden: bool


def backward_of(trace: Trace, stack: HostStack) -> Backward:
    """The backward nodes of a trace, each with its forward operator."""
    forward_thread, named = stack.frame["forward_thread"], stack.named(BACKWARD_NODE, "op")
    of_node = (or_none(forward_thread, 0) > 0) | (~are_known(forward_thread) & named)
    numbered = of_node & (stack.sequence >= 0)
    is_node = stack.of_kind("op") & (numbered | named)
    node = stack.nesting.nearest_ancestor(is_node)
    forward = _forward_operators(trace, stack, is_node, numbered, node)
    engine = _engine_threads(trace, stack, is_node, node)
    between = _between_nodes(stack, is_node, engine)
    if between.any():
        is_node |= between
        node = stack.nesting.nearest_ancestor(is_node)
    follows = is_node & ~numbered
    source = _last_numbered(stack, is_node, numbered, node)
    forward = np.where(follows, take(forward, source), forward)
    again = recomputed_spans(stack, is_node, node, forward)
    hidden = not engine.size and not stack.of_kind("op").any() and _trains(trace)
    node, forward = narrow(node, stack.size), narrow(forward, stack.size)
    return Backward(is_node, node, forward, follows, engine, again, hidden)


def _trains(trace: Trace) -> bool:
    """Whether the process has a thread of the autograd engine, or kernels are named after the backward pass or an optimizer."""
    kernels = distinct(trace.device["name"]).cast(pl.String).to_list()
    return any_matching(trace.threads["name"].to_list(), ENGINE_THREAD) or any_matching(
        kernels, TRAINING_KERNEL
    )


def _engine_threads(trace: Trace, stack: HostStack, is_node: BoolArray, node: Int64Array) -> Int64Array:
    """Threads that run backward nodes but no step, user range or forward operator, and those with the engine's names."""
    rows = kept(trace.threads, NameTable(trace.threads["name"]).matching(ENGINE_THREAD))
    named = stack.code_of(rows["process_id"], rows["thread_id"])
    forwards = stack.of_kind("step", "annotation", "module") | (
        stack.of_kind("op") & (stack.sequence >= 0) & ~is_node
    )
    others = np.zeros(0, dtype=np.int64)
    if forwards.any():
        others = np.unique(stack.thread[forwards & (node < 0)])
    threads: Int64Array = np.union1d(np.setdiff1d(stack.thread[is_node], others), named[named >= 0])
    return threads


def _between_nodes(stack: HostStack, is_node: BoolArray, engine: Int64Array) -> BoolArray:
    """Outermost operators of the engine's threads that lie in no node; old profiles record no span of the engine."""
    if not engine.size:
        return np.zeros(stack.size, dtype=bool)
    outermost = stack.of_kind("op") & (stack.nesting.parent < 0)
    return outermost & np.isin(stack.thread, engine) & ~is_node


def _last_numbered(stack: HostStack, is_node: BoolArray, numbered: BoolArray, node: Int64Array) -> Int64Array:
    """For each node without a number the last one with a number before it, beside it on its thread.

    Where there is none beside it, the one around it; else −1.
    """
    source = np.full(stack.size, -1, dtype=np.int64)
    rows = np.flatnonzero(is_node)
    if not rows.size:
        return source
    carrier = is_node & numbered
    parent = take(node, stack.nesting.parent[rows])
    frame = pl.DataFrame(
        {
            "row": none_to_null(np.where(carrier[rows], rows, -1)),
            "thread": stack.thread[rows],
            "parent": parent,
        }
    )
    frame = frame.with_columns(pl.col("row").forward_fill().over("thread", "parent").alias("before"))
    source[rows] = or_none(frame["before"])
    # The engine's span of a node without a number has what comes before it, and the node in it inherits that.
    return take(source, stack.nesting.nearest_ancestor(source >= 0))


def _forward_operators(
    trace: Trace, stack: HostStack, is_node: BoolArray, numbered: BoolArray, node: Int64Array
) -> Int64Array:
    forward = np.full(stack.size, -1, dtype=np.int64)
    numbered_nodes = np.flatnonzero(is_node & numbered)
    offered = np.flatnonzero(stack.of_kind("op") & (stack.sequence >= 0) & ~is_node)
    if not numbered_nodes.size or not offered.size:
        return forward
    nodes = pl.DataFrame(
        {
            "row": numbered_nodes,
            "process": stack.process[numbered_nodes],
            "number": stack.frame["forward_thread"][numbered_nodes],
            "sequence": stack.sequence[numbered_nodes],
            "start": stack.start[numbered_nodes],
        }
    )
    ops = pl.DataFrame(
        {
            "found": offered,
            "process": stack.process[offered],
            "thread": stack.thread[offered],
            "sequence": stack.sequence[offered],
            "start": stack.start[offered],
        }
    )
    with_thread_number = kept(nodes, are_known(nodes["number"]))
    if with_thread_number.height:
        threads = _thread_of_number(trace, stack, with_thread_number, ops)
        _match(
            forward, with_thread_number.join(threads, on=["process", "number"], how="inner"), ops, "thread"
        )
    if with_thread_number.height < nodes.height:
        _match_untold(
            forward,
            stack,
            is_node & (take(node, stack.nesting.parent) < 0),
            kept(nodes, ~are_known(nodes["number"])),
            ops,
        )
    return forward


def _match(forward: Int64Array, nodes: pl.DataFrame, ops: pl.DataFrame, place: str) -> None:
    """Link each node to the latest operator of its number and `place` (a column of both) that starts before it."""
    matched = nodes.sort("start").join_asof(
        ops.select("found", place, "sequence", "start").sort("start", maintain_order=True),
        on="start",
        by=[place, "sequence"],
        strategy="backward",
        check_sortedness=False,
    )
    matched = kept(matched[["row", "found"]], are_known(matched["found"]))
    forward[matched["row"].to_numpy()] = matched["found"].to_numpy()


def _match_untold(
    forward: Int64Array, stack: HostStack, in_none: BoolArray, nodes: pl.DataFrame, ops: pl.DataFrame
) -> None:
    """The same for nodes without a forward thread; `in_none` marks the nodes inside no other node."""
    outermost = stack.nesting.nearest_ancestor(in_none)
    inside = outermost[ops["found"].to_numpy()] >= 0
    _match(forward, nodes, ops.filter(~inside), "process")
    around = outermost[nodes["row"].to_numpy()]
    again = ops.filter(inside).with_columns(pl.Series("node", outermost[ops["found"].to_numpy()][inside]))
    _match(forward, nodes.with_columns(pl.Series("node", around)), again, "node")


def _thread_of_number(trace: Trace, stack: HostStack, nodes: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """`process`, `number` (the profiler's own number of a forward thread) and `thread`, the thread it means.

    The flows from forward to backward say so; without them it is the thread whose operators bear the most of the
    numbers of those nodes.
    """
    votes = _votes_of_flows(trace, stack, nodes)
    if votes is None:
        votes = _votes_of_sequences(nodes, ops)
    counted = votes.group_by("process", "number", "thread").len()
    return _one_to_one(counted.sort("len", "number", "thread", descending=[True, False, False]))


def _votes_of_sequences(nodes: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Each number with each thread that bears one of its sequence numbers; those that the fewest share come first."""
    key = ["process", "sequence"]
    distinct_nodes = nodes.select(*key, "number").unique()
    offered = ops.select(*key, "thread").unique()
    pairs = pl.col("len") * pl.col("len_offered")
    few = (
        distinct_nodes.group_by(key)
        .len()
        .join(offered.group_by(key).len(), on=key, suffix="_offered")
        .with_columns(pairs.cast(pl.Int64).alias("pairs"))
        .sort("pairs", *key)
        .filter(pl.col("pairs").cum_sum() <= _MOST_VOTES)
        .select(key)
    )
    return distinct_nodes.join(few, on=key).join(offered, on=key)[["process", "number", "thread"]]


def _one_to_one(counted: pl.DataFrame) -> pl.DataFrame:
    """Each number with one thread and each thread with one number, the pair with the most votes first."""
    chosen: dict[tuple[int, int], int] = {}
    taken: set[int] = set()
    for process, number, thread, _ in counted.rows():
        if (process, number) not in chosen and thread not in taken:
            chosen[process, number] = thread
            taken.add(thread)
    return pl.DataFrame(
        [(process, number, thread) for (process, number), thread in chosen.items()],
        schema={"process": pl.Int64, "number": pl.Int64, "thread": pl.Int64},
        orient="row",
    )


def _votes_of_flows(trace: Trace, stack: HostStack, nodes: pl.DataFrame) -> pl.DataFrame | None:
    if trace.flows is None or not trace.flows.height:
        return None
    target = stack.code_of(trace.flows["target_process"], trace.flows["target_thread"])
    source = stack.code_of(trace.flows["source_process"], trace.flows["source_thread"])
    landed = stack.nesting.innermost_at(target, trace.flows["target_time"].to_numpy())
    landed = take(stack.nesting.nearest_ancestor(_marked(stack, nodes["row"].to_numpy())), landed)
    frame = pl.DataFrame({"row": landed, "thread": source}).filter(
        (pl.col("row") >= 0) & (pl.col("thread") >= 0)
    )
    votes = frame.join(nodes[["row", "process", "number"]], on="row", how="inner")
    return votes[["process", "number", "thread"]] if votes.height else None


def _marked(stack: HostStack, rows: Int64Array) -> BoolArray:
    marked = np.zeros(stack.size, dtype=bool)
    marked[rows] = True
    return marked
