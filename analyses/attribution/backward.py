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
from tracekit.groups import codes_of, distinct, falling, groups, kept, or_none
from tracekit.name_table import NameTable, any_matching
from tracekit.spans import BoolArray, Int64Array, NarrowArray, narrow, ranges, take
from tracekit.trace import Trace

__all__ = ["Backward", "backward_of"]

_UNTOLD = np.iinfo(np.int64).min
"""The number of a forward thread where the profile does not tell it."""
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
    number, named = or_none(stack.frame["forward_thread"], _UNTOLD), stack.named(BACKWARD_NODE, "op")
    numbered = ((number > 0) | ((number == _UNTOLD) & named)) & (stack.sequence >= 0)
    is_node = stack.of_kind("op") & (numbered | named)
    node = stack.nesting.nearest_ancestor(is_node)
    forward = _forward_operators(trace, stack, is_node, np.flatnonzero(is_node & numbered), node, number)
    engine = _engine_threads(trace, stack, is_node, node)
    between = _between_nodes(stack, is_node, engine)
    if between.any():
        is_node |= between
        node = stack.nesting.nearest_ancestor(is_node)
    follows = is_node & ~numbered
    forward[follows] = take(forward, _last_numbered(stack, is_node, numbered, node)[follows])
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
    others = codes_of(stack.thread[forwards & (node < 0)])[1]
    threads: Int64Array = np.union1d(
        np.setdiff1d(codes_of(stack.thread[is_node])[1], others), named[named >= 0]
    )
    return threads


def _between_nodes(stack: HostStack, is_node: BoolArray, engine: Int64Array) -> BoolArray:
    """Outermost operators of the engine's threads that lie in no node; old profiles record no span of the engine."""
    if not engine.size:
        return np.zeros(stack.size, dtype=bool)
    between = stack.of_kind("op") & (stack.nesting.parent < 0) & ~is_node
    between[between] = np.isin(stack.thread[between], engine)
    return between


def _last_numbered(stack: HostStack, is_node: BoolArray, numbered: BoolArray, node: Int64Array) -> Int64Array:
    """For each node without a number the last one with a number before it, beside it on its thread.

    Where there is none beside it, the one around it; else −1.
    """
    source = np.full(stack.size, -1, dtype=np.int64)
    rows = np.flatnonzero(is_node)
    if not rows.size:
        return source
    parent = take(node, stack.nesting.parent[rows])
    beside = np.where(parent >= 0, parent, -1 - stack.thread[rows])
    order = np.argsort(beside, kind="stable")
    rows, beside = rows[order], beside[order]
    first = np.flatnonzero(np.append(True, beside[1:] != beside[:-1]))
    at = np.maximum.accumulate(np.where(numbered[rows], np.arange(rows.size), -1))
    known = at >= np.repeat(first, np.diff(first, append=rows.size))
    source[rows[known]] = rows[at[known]]
    # The engine's span of a node without a number has what comes before it, and the node in it inherits that.
    return take(source, stack.nesting.nearest_ancestor(source >= 0))


def _forward_operators(
    trace: Trace,
    stack: HostStack,
    is_node: BoolArray,
    nodes: Int64Array,
    node: Int64Array,
    number: Int64Array,
) -> Int64Array:
    """For each span that is one of these `nodes` its forward operator; −1 for all else. `number` is the profiler's own one of the
    forward thread.
    """
    forward = np.full(stack.size, -1, dtype=np.int64)
    ops = np.flatnonzero(stack.of_kind("op") & (stack.sequence >= 0) & ~is_node)
    if not nodes.size or not ops.size:
        return forward
    told = number[nodes] != _UNTOLD
    if told.any():
        rows = nodes[told]
        threads = _thread_of_number(trace, stack, rows, number[rows], ops)
        _match(forward, stack, rows, threads, ops, stack.thread[ops])
    if not told.all():
        in_none = is_node & (take(node, stack.nesting.parent) < 0)
        _match_untold(forward, stack, in_none, nodes[~told], ops)
    return forward


def _match(
    forward: Int64Array, stack: HostStack, nodes: Int64Array, at: Int64Array, ops: Int64Array, of: Int64Array
) -> None:
    """Link each node to the latest operator of its number and place that starts before it. `at` and `of` are the places of nodes and
    of operators; those of operators are known.
    """
    place, _ = codes_of(np.concatenate([of, at]))
    sequence, numbers = codes_of(stack.sequence[np.concatenate([ops, nodes])])
    key = place * numbers.size + sequence
    key, wanted = key[: ops.size], key[ops.size :]
    order = np.lexsort((stack.start[ops], key))
    key, ops = key[order], ops[order]
    low, high = (np.searchsorted(key, wanted, side=side) for side in ("left", "right"))
    first, begin, time = low.copy(), stack.start[ops], stack.start[nodes]
    halving = np.flatnonzero(low < high)
    while halving.size:
        middle = (low[halving] + high[halving]) // 2
        before = begin[middle] <= time[halving]
        low[halving[before]], high[halving[~before]] = middle[before] + 1, middle[~before]
        halving = halving[low[halving] < high[halving]]
    found = low > first
    forward[nodes[found]] = ops[low[found] - 1]


def _match_untold(
    forward: Int64Array, stack: HostStack, in_none: BoolArray, nodes: Int64Array, ops: Int64Array
) -> None:
    """The same for nodes without a forward thread; `in_none` marks the nodes inside no other node."""
    outermost = stack.nesting.nearest_ancestor(in_none)
    inside = outermost[ops] >= 0
    outside, again = ops[~inside], ops[inside]
    _match(forward, stack, nodes, stack.process[nodes], outside, stack.process[outside])
    _match(forward, stack, nodes, outermost[nodes], again, outermost[again])


def _thread_of_number(
    trace: Trace, stack: HostStack, nodes: Int64Array, number: Int64Array, ops: Int64Array
) -> Int64Array:
    """For each of these nodes the thread that its `number` means, the profiler's own one of a forward thread; −1 for none.

    The flows from forward to backward say so; without them it is the thread whose operators bear the most of the
    numbers of those nodes.
    """
    of_node = groups(stack.process[nodes], number)
    votes = _votes_of_flows(trace, stack, nodes, of_node.of)
    counted = groups(*(_votes_of_sequences(stack, nodes, of_node.of, ops) if votes is None else votes))
    group, thread = counted.keys
    # Each number has one thread and each thread one number, the pair with the most votes first.
    meant = np.full(of_node.size, -1, dtype=np.int64)
    for at in falling(-counted.counts, of_node.keys[1][group], thread).tolist():
        if meant[group[at]] < 0 and thread[at] not in meant:
            meant[group[at]] = thread[at]
    return meant[of_node.of]


def _votes_of_sequences(
    stack: HostStack, nodes: Int64Array, of_node: Int64Array, ops: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Groups of nodes, each with a thread that bears a sequence number of theirs; at most `_MOST_VOTES`, of the numbers that the
    fewest share.
    """
    key = groups(*(column[np.concatenate([nodes, ops])] for column in (stack.process, stack.sequence)))
    several, threads = int(of_node.max()) + 1, int(stack.thread[-1]) + 1
    asked = codes_of(key.of[: nodes.size] * several + of_node)[1]
    offered = codes_of(key.of[nodes.size :] * threads + stack.thread[ops])[1]
    offers = np.bincount(offered // threads, minlength=key.size)
    pairs = np.bincount(asked // several, minlength=key.size) * offers
    fewest = np.argsort(pairs, kind="stable")
    counted = np.zeros(key.size, dtype=bool)
    counted[fewest[np.cumsum(pairs[fewest]) <= _MOST_VOTES]] = True
    asked = asked[counted[asked // several]]
    of = asked // several
    which, at = ranges((np.cumsum(offers) - offers)[of], offers[of])
    return asked[which] % several, offered[at] % threads


def _votes_of_flows(
    trace: Trace, stack: HostStack, nodes: Int64Array, of_node: Int64Array
) -> tuple[Int64Array, Int64Array] | None:
    """Groups of nodes, each with the thread from which a flow leads to one of them; None without any."""
    if trace.flows is None or not trace.flows.height:
        return None
    target = stack.code_of(trace.flows["target_process"], trace.flows["target_thread"])
    source = stack.code_of(trace.flows["source_process"], trace.flows["source_thread"])
    marked = np.zeros(stack.size, dtype=bool)
    marked[nodes] = True
    landed = stack.nesting.innermost_at(target, trace.flows["target_time"].to_numpy())
    landed = take(stack.nesting.nearest_ancestor(marked), landed)
    linked = (landed >= 0) & (source >= 0)
    if not linked.any():
        return None
    return of_node[np.searchsorted(nodes, landed[linked])], source[linked]
