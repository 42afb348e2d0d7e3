"""The work of the operators of a trace: which spans of the host count, and around which spans they lie.

Operators are nested (`aten::convolution` calls `aten::cudnn_convolution`), so only the outermost with a model counts. A composite one
counts only if no other does its work inside: of a product, no other product; it may hold copies. Fills alone do no work of another.
One that only passes the call on (`flops.passed_on`) or computes nothing (`flops.idle`) does not count. What an operator calls for the
tangent of its result (`flops.tangents`) counts beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.flops.calls import modelled_calls
from tracekit.analyses.flops.distinct_calls import KEYS, Calls
from tracekit.analyses.flops.idle import idle
from tracekit.analyses.flops.indexing import SPARSE_SUM, with_sparse_sums
from tracekit.analyses.flops.inputs_of_others import with_inputs_of_others
from tracekit.analyses.flops.passed_on import passed_on
from tracekit.analyses.flops.pointwise import with_squares
from tracekit.analyses.flops.tangents import tangents
from tracekit.analyses.flops.work import DTYPES, Operator, operator_named, read_inputs, work_of
from tracekit.analyses.scope import Scope, once
from tracekit.groups import distinct
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, NarrowArray, Nesting, narrow, take
from tracekit.trace import Trace

__all__ = ["PRECISIONS", "WIDENED", "CountedOperators", "counted", "counted_operators"]

PRECISIONS: Final = (
    *dict.fromkeys(precision for _, precision in DTYPES.values() if precision),
    "int8",  # a type of matrix products only: integers have no precision
)
WIDENED: Final = ("bf16", "fp16", "fp8")
"""Outside the matrix units PyTorch computes in fp32 on tensors of these types."""
_OF_SPARSE: Final = ("aten::_nnz", "aten::_values", "aten::_indices", "aten::_coalesce")
FIGURES: Final = ("flops", "read", "written", "precision", "matrix")
_PRECISIONS: Final[dict[str | None, int]] = {precision: index for index, precision in enumerate(PRECISIONS)}
_NOTHING: Final = (-1, -1, -1, -1, False)


class CountedOperators(msgspec.Struct, frozen=True, eq=False):
    """The `figures` of distinct calls (columns of FIGURES), and for each span of the host `figure`, the row that is its own, −1
    for those that do not count, and `owner`, the span that counts around it, itself included, −1 for none.
    """

    figures: Int64Array
    figure: NarrowArray
    owner: NarrowArray
    without_work: BoolArray
    names: tuple[str, ...] = PRECISIONS

    def of(self, spans: Int64Array) -> dict[str, Int64Array]:
        """The FIGURES of these spans (by row, −1 for none), as the properties have those of all."""
        rows = take(self.figure, spans)
        return {name: take(self.figures[:, at], rows) for at, name in enumerate(FIGURES)}

    def _of_all(self, name: str) -> Int64Array:
        return take(self.figures[:, FIGURES.index(name)], self.figure)

    @property
    def flops(self) -> Int64Array:
        """For each span its FLOPs; −1 for those that do not count, and where they cannot be told."""
        return self._of_all("flops")

    @property
    def read(self) -> Int64Array:
        """The same of the bytes that it reads."""
        return self._of_all("read")

    @property
    def written(self) -> Int64Array:
        """The same of the bytes that it writes."""
        return self._of_all("written")

    @property
    def precision(self) -> Int64Array:
        """An index into `names` for each span, −1 for none."""
        return self._of_all("precision")

    @property
    def matrix(self) -> BoolArray:
        """Which spans the units for matrix products compute."""
        matrix: BoolArray = self._of_all("matrix") == 1
        return matrix


def counted(of: Scope | Trace) -> CountedOperators:
    """The work of the spans of a trace's host, computed once for a scope.

    >>> import tracekit
    >>> known = counted(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> known.flops[known.matrix].sum() > known.flops[~known.matrix & (known.flops > 0)].sum() > 0
    np.True_
    """
    return once(of, _counted)


def _counted(scope: Scope) -> CountedOperators:
    trace = scope.trace
    nesting = attribution(scope).model.stack.nesting
    return counted_operators(trace.host, nesting, device=trace.device, collectives=trace.collectives)


def counted_operators(
    host: pl.DataFrame,
    nesting: Nesting,
    *,
    device: pl.DataFrame | None = None,
    collectives: pl.DataFrame | None = None,
) -> CountedOperators:
    """The work of the spans of `trace.host`; what it launched tells the types of lists, the records of collectives what they moved."""
    names = NameTable(host["name"])
    calls = modelled_calls(host, names, device, collectives)
    tangent, numbered = tangents(host, names, nesting)
    nothing = idle(calls, host, names, nesting, tangent)
    calls, aside = passed_on(calls, host, names, nesting, tangent)
    if numbered.any():
        tangent |= numbered & ~aside[nesting.parent]
    aside |= nothing
    calls = with_squares(with_sparse_sums(calls, host, names, nesting), names, nesting)
    known = {name: operator for name in distinct(calls.inputs["name"]) if (operator := operator_named(name))}
    calls = with_inputs_of_others(calls, host, names, nesting, known)
    figures = _figures(calls, known)
    told = figures[:, :3].max(axis=1, initial=-1)[calls.of] >= 0
    calls = Calls(calls.spans[told], calls.of[told], calls.inputs)
    counted = _counting(calls, figures, known, _around_sparse(names, nesting), aside, nesting)
    spans = np.flatnonzero(counted)
    above = take(nesting.nearest_ancestor(counted), nesting.parent[spans])
    if tangent.any():
        above[above < nesting.nearest_ancestor(tangent)[spans]] = -1
    counted[spans[above >= 0]] = False
    figure = np.full(host.height, -1, dtype=np.min_scalar_type(-max(figures.shape[0], 1)))
    figure[calls.spans] = calls.of
    figure[~counted] = -1
    owner = narrow(nesting.nearest_ancestor(counted), host.height)
    return CountedOperators(figures, figure, owner, aside)


def _counting(
    calls: Calls,
    figures: Int64Array,
    known: Mapping[str, Operator],
    sparse: BoolArray,
    aside: BoolArray,
    nesting: Nesting,
) -> BoolArray:
    """Which spans of the host count, however they lie in one another: not those `aside`, nor those around `sparse` tensors, nor those of
    composite operators that hold others that do their work.
    """
    operators = [(name, known[name]) for name in calls.inputs["name"]]
    # A product may be one of a matrix with a vector, which the matrix units do not compute.
    products = np.array([operator.family == "matmul" for _, operator in operators], dtype=bool)
    products |= figures[:, FIGURES.index("matrix")] == 1
    sums = np.array([name == SPARSE_SUM for name, _ in operators], dtype=bool)
    spans = calls.spans
    counted = np.zeros(nesting.parent.size, dtype=bool)
    counted[spans] = (sums[calls.of] | ~sparse[spans]) & ~aside[spans]
    outer = calls.where(np.array([operator.composite for _, operator in operators], dtype=bool))
    if outer.size:
        fills = (figures[:, FIGURES.index("read")] == 0) & (figures[:, FIGURES.index("flops")] <= 0)
        working = counted.copy()
        working[spans[calls.where(fills)]] = False
        of_products = np.zeros(counted.size, dtype=bool)
        of_products[spans[calls.where(products)]] = True
        # The work of a product may be done by another product, not by a copy of its factors.
        holds = np.where(
            products[calls.of[outer]],
            _around(of_products, nesting)[spans[outer]],
            _around(working, nesting)[spans[outer]],
        )
        counted[spans[outer[holds]]] = False
    return counted


def _around_sparse(names: NameTable, nesting: Nesting) -> BoolArray:
    """The calls around those of which only sparse tensors have any: the recorded sizes are those of the dense tensor, not of the work."""
    around = np.zeros(nesting.parent.size, dtype=bool)
    spans = np.flatnonzero(names.which(_OF_SPARSE.__contains__))
    while spans.size:
        spans = np.unique(nesting.parent[spans])
        spans = spans[spans >= 0]
        spans = spans[~around[spans]]
        around[spans] = True
    return around


def _around(counted: BoolArray, nesting: Nesting) -> BoolArray:
    """Which spans have one of these below them."""
    above = take(nesting.nearest_ancestor(counted), nesting.parent[counted])
    around = np.zeros(counted.size, dtype=bool)
    around[above[above >= 0]] = True
    return around


def _figures(calls: Calls, known: Mapping[str, Operator]) -> Int64Array:
    """Columns of `FIGURES` for each of the distinct inputs of the calls."""
    used = np.zeros(calls.inputs.height, dtype=bool)
    used[calls.of] = True
    names, *inputs = (calls.inputs[key].to_list() for key in KEYS)
    works = [
        _of_call(known[name], *texts) if some else _NOTHING
        for some, name, *texts in zip(used.tolist(), names, *inputs, strict=True)
    ]
    return np.array(works, dtype=np.int64).reshape(-1, len(FIGURES))


@lru_cache(maxsize=1 << 15)
def _of_call(operator: Operator, shapes: str, *others: str | None) -> tuple[int, ...]:
    """The figures of a call. Ranks of a job, which a worker reads one after the other, have the same calls."""
    work = work_of(operator, read_inputs(shapes, *others))
    if work is None:
        return _NOTHING
    figures = [-1 if figure is None else figure for figure in (work.flops, work.read, work.written)]
    return (*figures, _PRECISIONS.get(work.precision, -1), work.unit == "matrix")
