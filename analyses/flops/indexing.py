"""Operators that take or write the elements of a tensor that indices or masks name, and sparse gradients added to a dense tensor.

Lists of indices are recorded without their sizes. These stand at two calls inside the operator: torch first makes a view of the tensor
in the shape of what the indices name (`as_strided`), then brings each tensor of indices into line with it (`reshape`). So a mask counts
as the indices that were found in it. A sparse tensor is recorded with the sizes of the dense one; those of its values stand at the call
inside an addition that brings them to the type of the sum (`to`).
"""

from __future__ import annotations

from math import prod
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.flops.distinct_calls import Calls
from tracekit.analyses.flops.tensors import INDEX, bytes_of, is_tensor, made, of_sums
from tracekit.analyses.flops.work import Family, Inputs, Work
from tracekit.groups import at_rows
from tracekit.name_table import NameTable
from tracekit.spans import Nesting

__all__ = ["FAMILY", "SPARSE_SUM", "with_sparse_sums"]

FAMILY: Final = Family("indexing")

_INSIDE: Final = ("aten::as_strided", "aten::reshape")


def _named(inputs: Inputs, own: int) -> tuple[int, int]:
    """How many elements the indices name, and the bytes of the indices; `own` is the number of the operator's own inputs."""
    strides = str(inputs.concrete[own + 2]).strip("[]").split(",")
    view, indices = range(own, own + 4), range(own + 4, len(inputs.shapes), 2)
    if not all(is_tensor(inputs, place) for place in (view[0], *indices)) or "0" not in map(
        str.strip, strides
    ):
        raise ValueError  # another view, of which more may follow
    sizes = bytes_of(inputs, indices)
    if sizes is None or not indices:
        raise ValueError
    return prod(inputs.numbers(own + 1)), sizes


@FAMILY.model("aten::index", inside=_INSIDE)
def _index(inputs: Inputs) -> Work:
    """`index(input, indices)`."""
    elements, indices = _named(inputs, 2)
    size = made(elements, inputs.itemsize(0))
    return Work(0, None if size is None else size + indices, size)


@FAMILY.model("aten::_index_put_impl_", inside=_INSIDE)
def _index_put(inputs: Inputs) -> Work:
    """`_index_put_impl_(self, indices, values, accumulate, …)`: with `accumulate` values are added, as by the gradient of an index.

    Where nothing inside tells what the indices name, as where a device sorts them to add, it is as much as there are values, and what
    the indices take is left out.
    """
    adds = inputs.flag(3)
    try:
        elements, indices = _named(inputs, 5)
    except LookupError:
        if not adds:
            raise  # one value may be written to many places
        elements, indices = inputs.elements(2), 0
    written, values = made(elements, inputs.itemsize(0)), inputs.size(2)
    read = None if written is None or values is None else values + indices + (written if adds else 0)
    return Work(of_sums(inputs, 0, elements) if adds else 0, read, written, inputs.precision(0))


# -- sparse gradients -------------------------------------------------------------------------------

SPARSE_SUM: Final = "aten::add_ (sparse)"
"""As which the `add` inside an `add_` of a sparse tensor counts."""


@FAMILY.model(SPARSE_SUM, composite=True, inside=("aten::_values", "aten::to"))
def _sparse_sum(inputs: Inputs) -> Work:
    """`add(dense, sparse, alpha, out)`: 1 FLOP for each value, which is added to its place. On devices `index_add_` does it inside."""
    dense, values = inputs.shape(0), inputs.shape(_values(inputs, 4))
    kept = len(values) - 1
    if values[1:] != dense[len(dense) - kept :] or kept >= len(dense):
        raise ValueError
    elements = prod(values)
    written, own = made(elements, inputs.itemsize(0)), made(elements, inputs.itemsize(_values(inputs, 4)))
    indices = values[0] * (len(dense) - kept) * INDEX
    read = None if own is None or written is None else own + indices + written
    return Work(elements, read, written, inputs.precision(0))


def _values(inputs: Inputs, own: int) -> int:
    """The place of the values: those of the first `to` behind `_values`. The first has five inputs, the other one."""
    place, asked = own, False
    while inputs.shapes[place] is not None:
        brings = inputs.dtypes[place + 1 : place + 2] == ["Scalar"]
        if brings and asked:
            return place
        asked = asked or not brings
        place += 5 if brings else 1
    raise ValueError


def with_sparse_sums(calls: Calls, host: pl.DataFrame, names: NameTable, nesting: Nesting) -> Calls:
    """The calls, with the name of sparse sums where they are such."""
    asked = np.flatnonzero(names.which("aten::_values".__eq__))
    sums = np.unique(nesting.parent[asked])
    sums = sums[sums >= 0]
    around = nesting.parent[sums]
    inner, outer = (at_rows(host["name"], spans).cast(pl.String) for spans in (sums, around))
    sparse = ((inner == "aten::add") & (outer == "aten::add_")).fill_null(value=False).to_numpy()
    return calls.renamed(calls.at(sums[sparse]), SPARSE_SUM) if sparse.any() else calls
