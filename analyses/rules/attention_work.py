"""The work of attention that no fused kernel computes: its calls, and the time that a fused kernel would not take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.call_sizes import elements_in
from tracekit.analyses.flops import json_list
from tracekit.analyses.scope import Scope, once
from tracekit.analyses.sdpa import SDPA_MATH
from tracekit.groups import are_known, at_rows, groups, kept, text_codes, text_numbers
from tracekit.spans import BoolArray, Int64Array, take

__all__ = ["BATCHED", "AttentionWork", "attention_work", "claimed_by_attention"]

_SOFTMAX: Final = r"^aten::(_safe_softmax|_?softmax)$"
_SOFTMAX_BACKWARD: Final = r"^aten::_softmax_backward_data$"
BATCHED: Final = ("aten::bmm", "aten::baddbmm")
"""Products of many matrices at once, as of heads."""
_PRODUCT: Final = rf"^({'|'.join(BATCHED)})$"
_ANY_PRODUCT: Final = r"^aten::(bmm|baddbmm|mm|addmm)$"
_COPY: Final = r"^aten::copy_$"
_LEAST_PRODUCTS: Final = 1.5
"""Two products a softmax, less a few that the window cuts off."""
_HEADS: Final = 4
"""Batch, heads, positions and size of a head, in any order."""


class AttentionWork(msgspec.Struct, frozen=True, eq=False):
    """Attention that no fused kernel computes. Written by hand: softmax calls and batched products outside of
    `scaled_dot_product_attention`, the time of the softmax, of other work on tensors of the shape of the scores, and of copies that
    change the layout of what is multiplied, backward too. `math`: calls (span ids) of `scaled_dot_product_attention` that run as
    separate operators, with the time of each but for its products, backward too.

    Calls are those of the forward pass, without the calls inside of them. Times in ns. `by_hand` and `of_math` are the times by
    category.
    """

    softmax_calls: int
    products: int
    softmax_ns: int
    scores_ns: int
    copies_ns: int
    math_calls: int
    math: Int64Array
    math_ns: Int64Array
    by_hand: Mapping[str, int]
    of_math: Mapping[str, int]

    @property
    def is_by_hand(self) -> bool:
        """Whether attention is written by hand: the softmax of a classifier has no batched products."""
        return 0 < self.softmax_calls * _LEAST_PRODUCTS <= self.products

    @property
    def has_products(self) -> bool:
        """Whether batched products are those of attention, which a fused kernel computes without them."""
        return self.is_by_hand or self.math_calls > 0


def claimed_by_attention(scope: Scope, fired: Collection[str]) -> dict[str, int]:
    """The time by category that the rules about attention among those that `fired` have at stake, in ns."""
    found = once(scope, attention_work)
    claimed: dict[str, int] = {}
    for rule, times in (("unfused_attention", found.by_hand), ("sdpa_fallback", found.of_math)):
        for category, ns in times.items() if rule in fired else ():
            claimed[category] = claimed.get(category, 0) + ns
    return claimed


def attention_work(scope: Scope) -> AttentionWork:
    """The attention of the scope that no fused kernel computes."""
    model = attribution(scope).model
    stack, backward = model.stack, model.backward
    softmax, math = stack.named(_SOFTMAX, "op"), stack.named(SDPA_MATH, "op")
    if not (softmax | math).any():
        nothing = np.zeros(0, dtype=np.int64)
        return AttentionWork(0, 0, 0, 0, 0, 0, nothing, nothing, {}, {})
    work = scope.activities[["op_id", "duration", "category"]]
    work = kept(work, are_known(work["op_id"]))
    op, ns = work["op_id"].to_numpy(), work["duration"].to_numpy()
    nearest = stack.nesting.nearest_ancestor
    # Work of the backward pass belongs to the call of its forward operator.
    of_math = nearest(math)
    if math.any():
        nodes = np.flatnonzero((backward.node >= 0) & ~backward.recomputed)
        of_math[nodes] = take(of_math, take(backward.forward, backward.node[nodes]))
    by_hand = of_math < 0
    forward = op[backward.node[op] < 0]

    def calls(wanted: BoolArray) -> int:
        """How many outermost spans of these have work of the forward pass; one that runs again does not count."""
        spans = np.flatnonzero(wanted)
        if not spans.size:
            return 0
        outermost = np.zeros(stack.size, dtype=bool)
        outermost[spans[take(nearest(wanted), stack.nesting.parent[spans]) < 0]] = True
        works = np.zeros(stack.size + 1, dtype=bool)
        works[nearest(outermost)[forward]] = True
        return int(np.count_nonzero(works[:-1]))

    product, of_softmax = (
        nearest(wanted) >= 0
        for wanted in (stack.named(_ANY_PRODUCT, "op"), softmax | stack.named(_SOFTMAX_BACKWARD, "op"))
    )
    in_softmax = (of_softmax & by_hand)[op]
    scores, copies = _around_softmax(stack, op, product, in_softmax)
    scores, copies = scores & by_hand[op], copies & by_hand[op]
    other = ((of_math >= 0) & ~product)[op]
    by_call = np.zeros(stack.size, dtype=np.int64)
    np.add.at(by_call, of_math[op[other]], ns[other])
    rows = np.flatnonzero(by_call)

    def by_category(mask: BoolArray) -> dict[str, int]:
        code, names = text_codes(work["category"].filter(pl.Series(mask)))
        sums = np.zeros(len(names), dtype=np.int64)
        np.add.at(sums, code, ns[mask])
        return {str(name): ns for name, ns in zip(names, sums.tolist(), strict=True)}

    return AttentionWork(
        softmax_calls=calls(softmax & by_hand),
        products=calls(stack.named(_PRODUCT, "op") & by_hand),
        softmax_ns=int(ns[in_softmax].sum()),
        scores_ns=int(ns[scores].sum()),
        copies_ns=int(ns[copies].sum()),
        math_calls=calls(math),
        math=rows,
        math_ns=by_call[rows],
        by_hand=by_category(in_softmax | scores | copies),
        of_math=by_category(other),
    )


# -- what a fused kernel would not do beside the softmax ----------------------------------------------


class _Inputs(msgspec.Struct, frozen=True):
    """Of an operator, the values and the last size of its largest tensor, and the number of its sizes; values of all its tensors.
    `same`: its first two tensors are of one type.
    """

    values: int
    last: int
    sizes: int
    every: tuple[int, ...]
    same: bool


def _around_softmax(
    stack: HostStack, op: Int64Array, in_product: BoolArray, in_softmax: BoolArray
) -> tuple[BoolArray, BoolArray]:
    """Which activities, with these operators, are other work on the scores, and copies that change the layout of what is multiplied;
    none without recorded shapes. `in_product` are the spans of products and in them.

    Between two products and beside a softmax, all tensors of the size of the softmax's are scores: the forward pass scales, masks
    and drops them, the backward pass does the same to their gradients. A copy of four sizes into the same type, next to a batched
    product, only serves that product.
    """
    nothing = np.zeros(op.size, dtype=bool)
    if not in_softmax.any() or "shapes" not in stack.frame.columns:
        return nothing, nothing
    order = np.lexsort((stack.start[op], stack.thread[op]))
    nearest = stack.nesting.nearest_ancestor
    product, batched, copied = (
        wanted[op[order]]
        for wanted in (in_product, *(nearest(stack.named(name, "op")) >= 0 for name in (_PRODUCT, _COPY)))
    )
    # A part is what lies between two products; all activities of a product have the number of the part before it.
    part = np.cumsum(np.append(False, product[:-1]) & ~product)
    inside = ~product
    count = int(part[-1]) + 1
    code, inputs = _inputs(stack, op[order])
    values, last, sizes, same = (
        np.array([getattr(one, name) for one in inputs], dtype=np.int64)[code]
        for name in ("values", "last", "sizes", "same")
    )
    soft = in_softmax[order]
    of_softmax = np.full((2, count), -1, dtype=np.int64)
    of_softmax[:, part[soft]] = values[soft], last[soft]
    ends_with, begins_with = np.zeros(count + 1, dtype=bool), np.zeros(count + 1, dtype=bool)
    ends_with[part[batched]] = True
    begins_with[part[batched] + 1] = True
    beside = ends_with[part] | begins_with[part]
    scores = (
        inside
        & ~soft
        & beside
        & (values == of_softmax[0][part])
        & (last == of_softmax[1][part])
        & (values > 0)
    )
    multiplied = {each for one in set(code[batched].tolist()) for each in inputs[one].every} - {0}
    multiplied -= set(values[soft].tolist())
    operand = np.isin(values, np.array(sorted(multiplied), dtype=np.int64)) & (sizes >= _HEADS)
    copies = inside & ~soft & beside & copied & operand & (same > 0)
    back = np.empty(op.size, dtype=np.int64)
    back[order] = np.arange(op.size)
    return scores[back], copies[back]


def _inputs(stack: HostStack, op: Int64Array) -> tuple[Int64Array, list[_Inputs]]:
    """The recorded inputs of these operators: the number of each, and what they are."""
    columns = [at_rows(stack.frame[name], op) for name in ("shapes", "dtypes")]
    alike = groups(*(text_numbers(column) for column in columns))
    texts = (at_rows(column, alike.first).cast(pl.String).fill_null("") for column in columns)
    return alike.of, [_inputs_of(shapes, dtypes) for shapes, dtypes in zip(*texts, strict=True)]


def _inputs_of(shapes: str, dtypes: str) -> _Inputs:
    tensors = [
        (elements, shape)
        for shape in json_list(shapes)
        if isinstance(shape, list) and shape and type(shape[0]) is int  # and no list of tensors
        if (elements := elements_in(shape)) is not None
    ]
    types = json_list(dtypes)
    every = tuple(elements for elements, _ in tensors)
    _, largest = max(tensors, key=lambda one: one[0], default=(0, []))
    return _Inputs(
        max(every, default=0),
        largest[-1] if largest else 0,
        len(largest),
        every,
        len(types) > 1 and types[0] == types[1],
    )
