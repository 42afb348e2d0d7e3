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
from tracekit.analyses.flops.calls import INPUTS, modelled_calls
from tracekit.analyses.flops.idle import idle
from tracekit.analyses.flops.indexing import SPARSE_SUM, with_sparse_sums
from tracekit.analyses.flops.inputs_of_others import with_inputs_of_others
from tracekit.analyses.flops.passed_on import passed_on
from tracekit.analyses.flops.pointwise import with_squares
from tracekit.analyses.flops.tangents import tangents
from tracekit.analyses.flops.work import DTYPES, Operator, operator_named, read_inputs, work_of
from tracekit.analyses.scope import Scope, once
from tracekit.groups import distinct, kept
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
_KEYS: Final = ("name", *INPUTS)
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
    rows = modelled_calls(host, device, collectives)
    tangent, numbered = tangents(host, nesting)
    nothing = idle(rows, host, nesting, tangent)
    rows, aside = passed_on(rows, host, nesting, tangent)
    tangent |= numbered & ~aside[nesting.parent]
    aside |= nothing
    rows = with_squares(with_sparse_sums(rows, host, nesting), host, nesting)
    known = {name: operator for name in distinct(rows["name"]) if (operator := operator_named(name))}
    rows = with_inputs_of_others(rows, host, nesting, known)
    # Calls of one operator with the same inputs are the same: few are told apart, however many there are.
    alike = rows[list(_KEYS)].unique(maintain_order=True)
    figures = _figures(alike, known)
    composite = [name for name, operator in known.items() if operator.composite]
    told = np.any([figures[name].to_numpy() >= 0 for name in ("flops", "read", "written")], axis=0)
    by_inputs = kept(alike.hstack(figures), told).with_row_index("row")
    rows = rows.join(by_inputs[[*_KEYS, "row"]], on=list(_KEYS), how="inner", nulls_equal=True)
    rows = rows[["span_id", "row"]]
    spans = rows["span_id"].to_numpy()
    counted = np.zeros(host.height, dtype=bool)
    counted[spans] = True
    family = [
        name for name, operator in known.items() if operator.family == "matmul"
    ]  # of a matrix with a vector, too
    matters = pl.DataFrame(
        {
            "product": (by_inputs["matrix"] == 1) | by_inputs["name"].is_in(family),
            "composite": by_inputs["name"].is_in(composite),
            "sparse": by_inputs["name"] == SPARSE_SUM,
            "fills": (by_inputs["read"] == 0) & (by_inputs["flops"] <= 0),
        }
    )
    row = rows["row"].to_numpy()
    products, of_others, sparse, fills = (column.to_numpy()[row] for column in matters)
    counted[spans] = (sparse | ~_around_sparse(host, nesting)[spans]) & ~aside[spans]
    working = counted.copy()
    working[spans[fills]] = False
    counted[spans] &= ~(of_others & _holds_another(products, spans, working, nesting))
    above = nesting.nearest_ancestor(counted, include_self=False)
    outermost = counted & ((above < 0) | (above < nesting.nearest_ancestor(tangent)))
    figure = np.full(host.height, -1, dtype=narrow(row[:0], by_inputs.height).dtype)
    figure[spans] = row
    figure[~outermost] = -1
    owner = narrow(nesting.nearest_ancestor(outermost), host.height)
    return CountedOperators(by_inputs[list(FIGURES)].to_numpy(), figure, owner, aside)


def _around_sparse(host: pl.DataFrame, nesting: Nesting) -> BoolArray:
    """The calls around those of which only sparse tensors have any: the recorded sizes are those of the dense tensor, not of the work."""
    around = np.zeros(host.height, dtype=bool)
    spans = np.flatnonzero(host["name"].is_in(_OF_SPARSE).to_numpy())
    while spans.size:
        spans = np.unique(nesting.parent[spans])
        spans = spans[spans >= 0]
        spans = spans[~around[spans]]
        around[spans] = True
    return around


def _holds_another(products: BoolArray, spans: Int64Array, counted: BoolArray, nesting: Nesting) -> BoolArray:
    """Which of the spans do their work in another that counts: a product not in a copy of its factors."""
    of_products = np.zeros(counted.size, dtype=bool)
    of_products[spans] = products
    held: BoolArray = np.where(
        products, _around(of_products, nesting)[spans], _around(counted, nesting)[spans]
    )
    return held


def _around(counted: BoolArray, nesting: Nesting) -> BoolArray:
    """Which spans have one of these below them."""
    around = np.zeros(counted.size, dtype=bool)
    above = nesting.nearest_ancestor(counted, include_self=False)
    around[above[counted & (above >= 0)]] = True
    return around


def _figures(calls: pl.DataFrame, known: Mapping[str, Operator]) -> pl.DataFrame:
    """Columns of `FIGURES` for each call."""
    names, *inputs = (calls[key].to_list() for key in _KEYS)
    works = [_of_call(known[name], *texts) for name, *texts in zip(names, *inputs, strict=True)]
    return pl.DataFrame(works, schema=dict.fromkeys(FIGURES, pl.Int64), orient="row")


@lru_cache(maxsize=1 << 15)
def _of_call(operator: Operator, shapes: str, *others: str | None) -> tuple[int, ...]:
    """The figures of a call. Ranks of a job, which a worker reads one after the other, have the same calls."""
    work = work_of(operator, read_inputs(shapes, *others))
    if work is None:
        return _NOTHING
    figures = [-1 if figure is None else figure for figure in (work.flops, work.read, work.written)]
    return (*figures, _PRECISIONS.get(work.precision, -1), work.unit == "matrix")
