"""Of how much of the device time the work is known, and what is in the way for the rest."""

from __future__ import annotations

import re
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.flops.calls import is_composite
from tracekit.analyses.flops.count import counted
from tracekit.analyses.flops.work import operator_named
from tracekit.analyses.scope import Scope, once
from tracekit.facts.kernel_rules import VIEWS
from tracekit.facts.launch_apis import GRAPH_LAUNCH
from tracekit.groups import are_known, at_rows, kept, none_to_null, or_none
from tracekit.spans import take
from tracekit.trace import Schema, Trace, empty

__all__ = ["CALLS_OTHERS", "UNMODELLED", "Coverage", "coverage"]

CALLS_OTHERS: Final = "makes a view or calls others"
"""The reason for time in which a processor only gets to the work, or has none."""

_OWN_CODE: Final = (
    f"{VIEWS}|"
    "_batch_norm_impl_index|_convolution|_embedding_bag_backward|_embedding_bag_sparse_backward|_indices|_nnz|"
    "_safe_softmax|_scaled_dot_product_attention_math|_sparse_coo_tensor_unsafe|"
    "_sparse_coo_tensor_with_dims_and_tensors|_values|batch_norm|binary_cross_entropy_with_logits|concat|"
    "contiguous|conv1d|conv2d|conv3d|convolution|cross_entropy_loss|diagonal|dropout|embedding_backward|"
    "embedding_bag|embedding_sparse_backward|empty_like|empty_strided|expand|expand_as|full|full_like|"
    "group_norm|hstack|index_put_|instance_norm|is_coalesced|layer_norm|log_softmax|new_empty|"
    "new_empty_strided|new_full|new_ones|new_zeros|nll_loss|nll_loss_nd|numpy_T|ones|ones_like|pad|permute|"
    "rand|rand_like|randint|randn|randn_like|resize_|result_type|scaled_dot_product_attention|"
    "select_backward|set_|softmax|to|transpose|unsafe_chunk|unsafe_split|view_as|view_as_complex|"
    "view_as_real|vstack|zeros|zeros_like"
)
_CALLS_OTHERS: Final = re.compile(
    rf"(?:aten::)?(?:{_OWN_CODE})_?|autograd::engine::.*|torch::autograd::.*|\w+Backward\d+", re.DOTALL
)
"""Operators and nodes of autograd whose own code moves and computes nothing; those that they call have a time of their own."""

UNMODELLED: Final[Schema] = {
    "name": pl.String,
    "reason": pl.String,
    "calls": pl.Int64,
    "device_ns": pl.Int64,
    "share": pl.Float64,
}


class Coverage(msgspec.Struct, frozen=True, eq=False):
    """Device time (in ns, the sum of durations) by what is known of its work.

    The parts exclude each other: FLOPs known (0 where data are only moved), else bytes known (by a model, or by the
    record of a copy or fill), else nothing.
    """

    device_ns: int
    """Of all activities."""
    launched_ns: int
    """Of those that an operator launched."""
    flops_ns: int
    """Of those, where FLOPs are known."""
    bytes_ns: int
    """Of those, where only bytes are known."""
    unmodelled: pl.DataFrame
    """What is not known, the longest first: `name` (the operator; of an activity without one its own), `reason`, `calls` (of the
    operator, or activities without one), `device_ns`, `share` of `device_ns`. The reasons are

    * `no formula for it`;
    * `makes a view or calls others`: on processors, the operator's own code, which computes and moves nothing;
    * `shapes not recorded`;
    * `its inputs do not tell`: there is a model, and the inputs do not tell the work;
    * `replayed graph`: one call launched many activities; the operators that made them, and their shapes, are not recorded;
    * `no operator` around the launch.
    """

    @property
    def share(self) -> float | None:
        """The share of the launched time of which FLOPs or bytes are known, 0 to 1; None if an operator launched nothing."""
        return (self.flops_ns + self.bytes_ns) / self.launched_ns if self.launched_ns else None

    @property
    def flops_share(self) -> float | None:
        """The share of the launched time of which FLOPs are known, 0 to 1; None if an operator launched nothing."""
        return self.flops_ns / self.launched_ns if self.launched_ns else None


def coverage(of: Scope | Trace) -> Coverage:
    """How much of the device time a model of its operator covers. Without a device, of the operators' time on the processors.

    >>> import tracekit
    >>> known = coverage(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> known.launched_ns == known.flops_ns + known.bytes_ns + known.unmodelled["device_ns"].sum()
    True
    """
    return once(of, _coverage)


def _coverage(scope: Scope) -> Coverage:
    work = counted(scope)
    rows = scope.activities[["kind", "name", "launch_id", "op_id", "duration", "bytes"]]
    launch, operator = or_none(rows["launch_id"]), or_none(rows["op_id"])
    anchor = np.where(launch >= 0, launch, operator)
    owner = take(work.owner, anchor)
    carried = ((rows["kind"] == "memcpy") | (rows["kind"] == "memset")).to_numpy() & are_known(rows["bytes"])
    flops = (take(work.flops, owner) >= 0) & ~carried
    known = carried | (take(np.maximum(work.read, work.written), owner) >= 0)
    launched = operator >= 0
    duration = rows["duration"].to_numpy()
    total = int(duration.sum())
    lost = ~(flops | known)
    return Coverage(
        device_ns=total,
        launched_ns=int(duration[launched].sum()),
        flops_ns=int(duration[launched & flops].sum()),
        bytes_ns=int(duration[launched & known & ~flops].sum()),
        unmodelled=_unmodelled(scope, kept(rows, lost), anchor[lost], total),
    )


def _only_calls(name: str) -> bool:
    return _CALLS_OTHERS.fullmatch(name) is not None or is_composite(name)


def _unmodelled(scope: Scope, rows: pl.DataFrame, anchor: np.ndarray, total: int) -> pl.DataFrame:
    """The table of that name, of the activities that are not known."""
    if not rows.height:
        return empty(UNMODELLED)
    stack, host = attribution(scope).model.stack, scope.trace.host
    # A composite operator only calls those that do its work.
    modelled = stack.names.which(lambda name: operator_named(name) is not None and not is_composite(name))
    outermost = modelled & (stack.nesting.nearest_ancestor(modelled, include_self=False) < 0)
    span = take(stack.nesting.nearest_ancestor(outermost), anchor)
    operator = or_none(rows["op_id"])
    named = none_to_null(np.where(span >= 0, span, operator)).alias("span")
    replayed = take(stack.named(GRAPH_LAUNCH, "runtime").astype(np.int64), anchor) == 1
    calling = np.zeros(rows.height, dtype=bool)
    if scope.on_cpu:
        calling = take(stack.names.which(_only_calls).astype(np.int64), operator) == 1
    shown = rows.with_columns(
        named,
        pl.Series("calls others", calling),
        pl.Series("replayed", replayed),
        pl.Series("modelled", span >= 0),
        at_rows(host["shapes"], named).alias("shapes"),
        at_rows(host["name"], named).cast(pl.String).alias("operator"),
    )
    reason = (
        pl.when("replayed").then(pl.lit("replayed graph"))
        .when(pl.col("span").is_null()).then(pl.lit("no operator"))
        .when("calls others").then(pl.lit(CALLS_OTHERS))
        .when(~pl.col("modelled")).then(pl.lit("no formula for it"))
        .when(pl.col("shapes").is_not_null()).then(pl.lit("its inputs do not tell"))
        .otherwise(pl.lit("shapes not recorded"))
    )  # fmt: skip
    return (
        shown.group_by(
            pl.coalesce("operator", pl.col("name").cast(pl.String)).alias("name"), reason.alias("reason")
        )
        .agg(
            (pl.col("span").drop_nulls().n_unique() + pl.col("span").is_null().sum())
            .cast(pl.Int64)
            .alias("calls"),
            pl.col("duration").sum().alias("device_ns"),
        )
        .with_columns((pl.col("device_ns") / total if total else pl.lit(None, pl.Float64)).alias("share"))
        .sort("device_ns", "name", descending=[True, False])[list(UNMODELLED)]
    )
