"""Collectives: the bytes that this rank reads from and writes to its own memory, each once; the FLOPs of a sum are those of its share.

What the links carry is told by `analyses.collectives`. In a group of g ranks that sums n elements, each adds g − 1 times n / g.
"""

from __future__ import annotations

from typing import Final

from tracekit.analyses.flops.tensors import made
from tracekit.analyses.flops.work import Family, Inputs, Work
from tracekit.facts.collectives import ELEMENT_BYTES, collective_name

__all__ = ["FAMILY", "RECORD"]

FAMILY: Final = Family("collective")

RECORD: Final = "record_param_comms"
"""The operator that bears what a collective's record says: `analyses.flops.count` gives it the inputs that its model reads."""

_SUMS: Final = ("all_reduce", "reduce_scatter")


@FAMILY.model(RECORD)
def _recorded(inputs: Inputs) -> Work:
    """Elements in and out, with their type; as scalars the collective's name and the size of its group."""
    name, size = collective_name(inputs.concrete[0]), int(inputs.concrete[1])
    if name is None:
        raise ValueError  # these are the operator's own inputs: there was no record
    taken, left = inputs.elements(0), inputs.elements(1)
    width = ELEMENT_BYTES.get(inputs.dtypes[0])
    flops = taken * (size - 1) // size if name in _SUMS else 0
    return Work(flops, made(taken, width), made(left, width))


@FAMILY.model("c10d::_allgather_base_", "c10d::alltoall_base_", "c10d::_reduce_scatter_base_")
def _based(inputs: Inputs) -> Work:
    """`alltoall_base_(output, input, …)`. A sum whose n elements leave n / g to each rank adds n − n / g."""
    left, taken = inputs.elements(0), inputs.elements(1)
    sums = len(inputs.concrete) == 6 and taken > left
    return Work(taken - left if sums else 0, inputs.size(1), inputs.size(0))


@FAMILY.model(
    *("vllm::all_reduce", "_c10d_functional::all_reduce", "_c10d_functional::all_reduce_"),
    *("gloo:all_reduce", "gloo:reduce"),
)
def _like(inputs: Inputs) -> Work:
    """`all_reduce(input, …)`, of a group whose size is not recorded."""
    return Work(None, inputs.size(0), inputs.size(0), inputs.precision(0))


@FAMILY.model("gloo:broadcast")
def _sent(inputs: Inputs) -> Work:
    """`broadcast(input, …)`, which adds nothing."""
    return Work(0, inputs.size(0), inputs.size(0), inputs.precision(0))
