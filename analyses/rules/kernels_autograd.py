"""A rule about inference that autograd records."""

from __future__ import annotations

from typing import Final

from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.analyses.traits import traits
from tracekit.facts.units import format_count

__all__ = ["AUTOGRAD_IN_INFERENCE"]

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
        text=f"The sequence numbers of {format_count(numbers.len())} operators show at least {format_count(nodes)} nodes of autograd's "
        "graph, and no backward pass is in the trace.",
    )


AUTOGRAD_IN_INFERENCE = Rule(
    id="autograd_in_inference",
    analysis="kernels",
    evidence=autograd_in_inference,
    advice=Advice(
        "If no backward pass follows, call the model under torch.inference_mode(): this saves work of the host, and memory."
    ),
)
