"""Kernels that Inductor writes in Triton, where they stand as operators with their inputs (torch from 2.5 on).

An operator `triton_poi_fused_add_mul_0` is given the tensors that its kernel reads or writes, each once, and the sizes of the space
that it goes through. Which of them are written is not recorded: all bytes count as read. FLOPs of fused operators cannot be told. A
kernel whose name holds an operator that may leave out a part of a tensor (a gather, a slice), and that is given a tensor larger than
its space, may not touch all of it: nothing is told of it. Of a template of a product (`triton_tem_fused_mm_0`) the FLOPs are those of
the two matrices whose product has the size of the last tensor, the result; what is fused with it is not counted.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Final

from tracekit.analyses.flops.tensors import bytes_of, precision_of, tensors
from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY"]

FAMILY: Final = Family("triton")

_PARTIAL: Final = (
    r".*(embedding|index|gather|scatter|take|slice|select|split|unbind|narrow|chunk|as_strided|unfold).*"
)
"""Names of kernels that may not touch all of a tensor."""


def _whole(inputs: Inputs) -> Work:
    """The bytes of all tensors."""
    places = tensors(inputs)
    if not places:
        raise ValueError
    return Work(None, bytes_of(inputs, places), 0, precision_of(inputs, places))


def _partial(dimensions: int) -> Model:
    """The model of a kernel that may leave out a part, unless no tensor is larger than the space of its last scalars."""

    def work(inputs: Inputs) -> Work:
        scalars = [int(text) for text in inputs.concrete if str(text).isdigit()]
        space = prod(scalars[-dimensions:])
        if any(inputs.elements(place) > space for place in tensors(inputs)):
            raise ValueError
        return _whole(inputs)

    return work


def _product(inputs: Inputs) -> Work:
    """A product with a bias or more before or behind its factors, which follow each other."""
    whole, places = _whole(inputs), tensors(inputs)
    shapes = [inputs.shape(place, 0) for place in places]
    made = shapes[-1]
    fitting = {
        2 * prod(made) * one[-1]
        for one, other in pairwise(shapes[:-1])
        if len(one) == len(other) == len(made) > 1
        and one[-1] == other[-2]
        and [*one[:-1], other[-1]] == made
        and one[:-2] == other[:-2]
    }
    flops = fitting.pop() if len(fitting) == 1 else None
    return Work(flops, whole.read, whole.written, whole.precision, "matrix")


FAMILY.matching(r"triton_poi_" + _PARTIAL)(_partial(1))
FAMILY.matching(r"triton_(red|per)_" + _PARTIAL)(_partial(2))
FAMILY.matching(r"triton_tem_fused_(.*_)?(mm|addmm|bmm|baddbmm)_.*")(_product)
FAMILY.matching(r"triton_(poi|red|per|tem)_.*")(_whole)
