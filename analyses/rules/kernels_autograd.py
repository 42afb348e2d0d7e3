"""Rules about what autograd records: inference, and casts of mixed precision."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.kernels import Kernels
from tracekit.analyses.recording import unrecorded_ns
from tracekit.analyses.rules.idle_time import LAUNCHING, caused_idle, idle_of_spans
from tracekit.analyses.rules.rule import (
    Advice,
    Evidence,
    Rule,
    bounded,
    bounded_by_removal,
    longest,
    of_time,
)
from tracekit.analyses.scope import Scope
from tracekit.analyses.traits import traits
from tracekit.facts.stack_names import ENGINE_PREFIX
from tracekit.facts.units import NS_PER_US, count_of, format_count, format_ns, format_share
from tracekit.groups import kept, or_none

__all__ = ["ANOMALY_DETECTION", "AUTOCAST_CASTS", "AUTOGRAD_IN_INFERENCE"]

LEAST_NODES: Final = 10
"""Without nodes, all operators carry the same number; fewer nodes than a small network makes prove nothing."""


def autograd_in_inference(scope: Scope, _result: Kernels) -> Evidence | None:
    """Operators of a forward pass make nodes for a backward pass, and the trace has none.

    PyTorch numbers an operator while gradients are on, and counts on with each node of autograd's graph. Under `torch.no_grad()`
    and `torch.inference_mode()` operators have no number. What the nodes cost is unknown: some µs of the host for each
    operator, and the memory of all inputs that a backward pass would read.

    Fires when the numbers of a trace without any training show `LEAST_NODES` nodes.
    """
    if "inference" not in traits(scope):
        return None
    numbers = scope.host("op", columns=["sequence"])["sequence"].drop_nulls()
    nodes = int(numbers.n_unique()) - 1
    if nodes < LEAST_NODES:
        return None
    return Evidence(
        title="Autograd prepares a backward pass that never runs",
        text=f"The sequence numbers of {format_count(numbers.len())} operators show at least {format_count(nodes)} nodes of the "
        "autograd graph, and the trace contains no backward pass.",
    )


AUTOGRAD_IN_INFERENCE = Rule(
    id="autograd_in_inference",
    analysis="kernels",
    evidence=autograd_in_inference,
    advice=Advice(
        "If no backward pass follows, call the model under torch.inference_mode(): this saves host work and memory."
    ),
)


# -- autocast_casts ---------------------------------------------------------------------------------

AUTOCAST_CASTS_LEAST_SHARE: Final = 0.05
"""Of the window."""
LEAST_CASTS: Final = 10
"""Nodes of casts a step; a model has a few without mixed precision."""
MOST_COPIED: Final = 0.1
"""The same operator sends inputs to the device. Where more of its activities do so, its time is not that of casts."""
FEW_PRODUCTS: Final = 0.1
"""Where products take less of the window, and the device is mostly idle, smaller types make nothing faster."""

_CASTS: Final = ("aten::_to_copy", "ToCopyBackward0")


def autocast_casts(scope: Scope, result: Kernels) -> Evidence | None:
    """Autocast converts parameters and activations between fp32 and 16 bits in each step, and gradients back.

    At stake is the device's time in these casts and the idle time that launching them causes, at most what a replay loses without them.

    Fires when a step has `LEAST_CASTS` casts with a backward pass, and this is `AUTOCAST_CASTS_LEAST_SHARE` of the window; where casts
    are in vain (`FEW_PRODUCTS`), of the window without recording, if a capture measured that.
    """
    stack = attribution(scope).model.stack
    nodes = int(stack.named(f"^{_CASTS[1]}$", "op").sum())
    if (
        scope.window != "steps"
        or "low_precision" not in traits(scope)
        or nodes < LEAST_CASTS * scope.steps.height
    ):
        return None
    inside = np.append(
        stack.nesting.nearest_ancestor(stack.named(f"^({'|'.join(_CASTS)})$", "op")) >= 0, False
    )
    casts = kept(scope.activities, inside[or_none(scope.activities["op_id"])])
    if (casts["kind"] == "memcpy").sum() > MOST_COPIED * casts.height:
        return None
    operators = pl.Series(np.flatnonzero(inside)).implode()
    idle = caused_idle(scope, *LAUNCHING, wanted=pl.col("op_id").is_in(operators)).ns
    on_device, window = int(casts["duration"].sum()), unrecorded_ns(scope) or scope.duration
    products = int(result.by_category.filter(pl.col("category").is_in(_MATRIX))["total_ns"].sum()) / window
    in_vain = products < FEW_PRODUCTS and scope.intervals().measure < window / 2
    least = AUTOCAST_CASTS_LEAST_SHARE * (window if in_vain else scope.duration)
    if on_device + idle < least:
        return None
    at_stake = bounded_by_removal(on_device + idle, scope, *(f"op:{name}" for name in _CASTS))
    if at_stake < least:
        return None
    return Evidence(
        title=f"Mixed-precision casts and the waits for them take {of_time(on_device + idle, scope)}",
        text=f"{count_of(round(casts.height / scope.steps.height), 'cast')} a step take {format_ns(on_device)} on the device, "
        f"which is idle for {format_ns(idle)} while the host launches them. Matrix products, which smaller types speed up, take "
        f"{format_share(products)} of the time{'' if window == scope.duration else ' without recording'}.",
        ns_at_stake=at_stake,
        advice=_WITHOUT if in_vain else None,
        stretches=longest(casts),
    )


_MATRIX: Final = ("gemm", "convolution", "attention", "rnn")
_WITHOUT: Final = Advice(
    "Train without autocast: the device waits for the host anyway, and casts add to the host's work."
)

AUTOCAST_CASTS = Rule(
    id="autocast_casts",
    analysis="kernels",
    evidence=autocast_casts,
    runs="device",
    advice=Advice(
        "[!compiled] torch.compile fuses casts into neighbouring kernels.\n"
        "Parameters in 16 bits, with fp32 copies in the optimizer, need no casts in the step."
    ),
)


# -- anomaly_detection ------------------------------------------------------------------------------

CHECKED: Final = 0.5
"""Of autograd's nodes. Hooks of a program look at some gradients, anomaly detection at what each node returns."""

STACK_TRACE_NS: Final = 100 * NS_PER_US
"""A stack trace of some ten frames took 36 µs; deeper programs have more."""

_NODE: Final = rf"^{ENGINE_PREFIX}[A-Z]"
"""Not those of AccumulateGrad, which return nothing; these begin with their namespace."""
_CHECK: Final = r"^aten::(isnan|_is_any_true|any|item|is_nonzero)$"


def anomaly_detection(scope: Scope, _result: Kernels) -> Evidence | None:
    """Each node of the backward pass looks for NaN in the gradients that it returns, and the host reads each answer.

    At stake is the time of these operators, on the device or, without one, on the processors, and on a device also the idle time
    during the backward pass's nodes, because each answer that the host reads keeps it from running ahead. Without a device it is also
    `STACK_TRACE_NS` of each node, at most the time of the forward pass's operators, in which stack traces are recorded.

    Fires when `CHECKED` of the nodes, and `LEAST_NODES` or more, call `aten::isnan` and read a value themselves.
    """
    stack = attribution(scope).model.stack
    names = [stack.named(pattern, "op") for pattern in ("^aten::isnan$", "^aten::(item|is_nonzero)$")]
    if not names[0].any():
        return None
    nodes, checks = stack.named(_NODE, "op"), stack.named(_CHECK, "op")
    parent = stack.nesting.parent.astype(np.int64)
    checks &= nodes[parent] & (parent >= 0)
    checked = np.intersect1d(parent[checks & names[0]], parent[checks & names[1]])
    if checked.size < max(LEAST_NODES, CHECKED * int(nodes.sum())):
        return None
    inside = np.append(stack.nesting.nearest_ancestor(checks & np.isin(parent, checked)) >= 0, False)
    rows = kept(scope.activities, inside[or_none(scope.activities["op_id"])])
    work, idle = int(rows["duration"].sum()), 0
    if not scope.on_cpu:
        idle = idle_of_spans(scope, stack.nesting.nearest_ancestor(nodes) >= 0).ns
    reads = count_of(int((checks & names[1]).sum()), "value")
    traces = min(_forward_ns(scope), STACK_TRACE_NS * int(checked.size)) if scope.on_cpu else 0
    traced = (
        f" Anomaly detection also records a stack trace in each operator of the forward pass, which may take up to {format_ns(traces)}."
        if traces
        else ""
    )
    waits = f", and the device is idle for {format_ns(idle)} during the backward pass" if idle else ""
    return Evidence(
        title=f"The backward pass checks gradients for NaN; this takes {'up to ' if idle else ''}{of_time(work + idle, scope)}",
        text=f"{format_count(checked.size)} of {format_count(int(nodes.sum()))} nodes of autograd call aten::isnan and read the answer. "
        f"The host reads {reads} in this way. The checks take {format_ns(work)}{waits}.{traced}",
        ns_at_stake=bounded(work + idle + traces, scope),
        stretches=longest(rows),
    )


def _forward_ns(scope: Scope) -> int:
    """The time of the operators of the forward pass, in ns."""
    rows = attributed(scope)[["phase", "duration"]]
    return int(kept(rows, rows["phase"].cast(pl.String) == "forward")["duration"].sum())


ANOMALY_DETECTION = Rule(
    id="anomaly_detection",
    analysis="kernels",
    evidence=anomaly_detection,
    advice=Advice(
        "Turn anomaly detection off when no NaN is being looked for: remove torch.autograd.set_detect_anomaly(True) and "
        "torch.autograd.detect_anomaly(). It also records a stack trace for each operator of the forward pass."
    ),
    explains=frozenset({"blocking_synchronisation", "value_reads", "short_operators"}),
)
