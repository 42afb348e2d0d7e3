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
from tracekit.analyses.flops.work import DTYPES, is_shape, json_list, operator_named
from tracekit.analyses.scope import Scope, once
from tracekit.facts.kernel_rules import VIEWS
from tracekit.facts.launch_apis import GRAPH_LAUNCH
from tracekit.groups import Groups, are_known, at_rows, distinct_counts, groups, kept, or_none, text_numbers
from tracekit.spans import BoolArray, Int64Array, take
from tracekit.trace import Schema, Trace, empty

__all__ = [
    "CALLS_OTHERS",
    "COMPILED",
    "NO_FLOPS",
    "NO_SHAPES",
    "REPLAYED",
    "UNMODELLED",
    "Coverage",
    "coverage",
]

CALLS_OTHERS: Final = "makes a view or calls others"
"""The reason for time in which a processor only gets to the work, or has none."""
COMPILED: Final = "compiled code"
NO_FLOPS: Final = "FLOPs: its inputs do not tell"
NO_SHAPES: Final = "shapes not recorded"
REPLAYED: Final = "replayed graph"

_OWN_CODE: Final = (
    f"{VIEWS}|"
    "__iand__|__ior__|__ixor__|_batch_norm_impl_index|_conj|_convolution|_convolution_mode|_dim_arange|"
    "_embedding_bag_backward|_embedding_bag_sparse_backward|_empty_affine_quantized|"
    "_has_compatible_shallow_copy_type|_indices|_is_all_true|_nnz|_pack_padded_sequence|"
    "_pack_padded_sequence_backward|_pad_circular|_pad_packed_sequence|_safe_softmax|"
    "_scaled_dot_product_attention_math|_sparse_addmm|_sparse_coo_tensor_unsafe|"
    "_sparse_coo_tensor_with_dims_and_tensors|_sparse_mm|_values|_weight_norm|adaptive_avg_pool1d|"
    "adaptive_avg_pool2d|adaptive_avg_pool3d|adjoint|atleast_1d|atleast_2d|avg_pool1d|batch_norm|"
    "binary_cross_entropy_with_logits|broadcast_tensors|cdist|clip|col_indices|column_stack|concat|"
    "contiguous|conv1d|conv2d|conv3d|convolution|cosine_similarity|cross_entropy_loss|crow_indices|"
    "ctc_loss|cudnn_is_acceptable|dense_dim|diag|diag_embed|diagonal|diagonal_backward|diagonal_copy|"
    "diff|dim|divide|dropout|dstack|einsum|embedding_backward|embedding_bag|embedding_sparse_backward|"
    "empty_like|empty_permuted|empty_strided|expand|expand_as|flatten_dense_tensors|full|full_like|"
    "gather_backward|ger|greater|greater_equal|grid_sampler|group_norm|gru_cell|hsplit|hstack|imag|"
    "index_put|index_select_backward|indices|instance_norm|is_coalesced|is_same_size|kl_div|l1_loss|"
    "layer_norm|less|less_equal|linalg_norm|log_sigmoid|log_softmax|lstm_cell|matrix_norm|max_pool1d|"
    "max_pool2d|max_pool3d|meshgrid|mH|moveaxis|mT|multiply|new_empty|new_empty_strided|new_full|"
    "new_ones|new_zeros|nll_loss|nll_loss2d|nll_loss_nd|nonzero_numpy|not_equal|numel|numpy_T|one_hot|"
    "ones|ones_like|outer|pad|permute|prelu|q_scale|q_zero_point|qscheme|rand|rand_like|randint|"
    "randint_like|randn|randn_like|ravel|real|repeat|repeat_interleave|reshape_as|resize|resize_as|"
    "result_type|rms_norm|rnn_relu_cell|rnn_tanh_cell|scalar_tensor|scaled_dot_product_attention|"
    "select_backward|set|size|slice_backward|softmax|sparse_dim|stride|subtract|swapdims|"
    "T|tensor_split|tile|to|transpose|true_divide|type_as|unflatten_dense_tensors|unsafe_chunk|"
    "unsafe_split|value_selecting_reduction_backward|values|view_as|view_as_complex|view_as_real|vsplit|"
    "vstack|zeros|zeros_like|fft_i?r?fft[2n]?"
)
_OWN_PATTERNS: Final = frozenset(one for one in _OWN_CODE.split("|") if "?" in one)
_OWN_NAMES: Final = frozenset(_OWN_CODE.split("|")) - _OWN_PATTERNS
"""A pattern of all of them takes longer to compile than most reports to use it."""
_CALLS_OTHERS: Final = re.compile(
    rf"(?:aten::)?(?:{'|'.join(_OWN_PATTERNS)})_?"
    r"|autograd::engine::.*|torch::autograd::.*|\w+Backward\d+"
    # A collective goes on in a thread of its backend, as `gloo:…`. What a compiled function calls first are checks of its inputs.
    r"|c10d::.*|torch(?:::|\.)distributed.*reducer::.*"
    r"|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime Wrapper Prologue",
    re.DOTALL,
)
"""Operators and nodes of autograd whose own code moves and computes nothing; those that they call have a time of their own."""

_COMPILED: Final = re.compile(r"Torch-Compiled Region.*|CompiledFunction(?:Backward)?|graph_\d+_cpp_.*")
"""Ranges around kernels of torch.compile that are not recorded as operators with their inputs."""

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
    overhead: BoolArray
    """Of each activity of the scope, whether a processor makes a view in it, or only calls other operators: there is no work to know."""
    overhead_ns: int
    """Their time, which is launched, too."""
    unmodelled: pl.DataFrame
    """What is not known, the longest first and that overhead last: `name` (the operator; of an activity without one its own), `reason`, `calls` (of the
    operator, or activities without one), `device_ns`, `share` of `device_ns`. The reasons are

    * `no formula for it`;
    * `compiled code`: kernels of torch.compile; their inputs are not recorded;
    * `makes a view or calls others`: on processors, the operator's own code, which computes and moves nothing;
    * `shapes not recorded`;
    * `its inputs do not tell`: there is a model, and the inputs do not tell the work;
    * `unknown type …`: the same, of tensors whose type is not known here;
    * `replayed graph`: one call launched many activities; the operators that made them, and their shapes, are not recorded;
    * `no operator` around the launch.
    """
    without_bytes: pl.DataFrame
    """The same of work whose FLOPs are known and bytes are not, so that it has no roof; the reasons begin with `bytes: `."""
    without_flops: pl.DataFrame
    """The same of work whose bytes are known by a model and FLOPs are not; the reason is `NO_FLOPS`."""

    @property
    def share(self) -> float | None:
        """The share of the launched time, without the overhead, of which FLOPs or bytes are known, 0 to 1; None if an operator
        launched nothing.
        """
        return self._of_work(self.flops_ns + self.bytes_ns)

    @property
    def flops_share(self) -> float | None:
        """The same of which FLOPs are known."""
        return self._of_work(self.flops_ns)

    def _of_work(self, ns: int) -> float | None:
        working = self.launched_ns - self.overhead_ns
        return ns / working if working else None


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
    figures = work.of(owner)
    flops = (figures["flops"] >= 0) & ~carried
    known = carried | (np.minimum(figures["read"], figures["written"]) >= 0)
    launched = operator >= 0
    duration = rows["duration"].to_numpy()
    total = int(duration.sum())
    lost = ~(flops | known)
    overhead = lost & _calling(scope, operator)
    unmodelled = _unmodelled(scope, kept(rows, lost), anchor[lost], overhead[lost], total)
    bare, moved = flops & ~known, known & ~flops & ~carried
    host = scope.trace.host
    without_bytes = _half_known(host, kept(rows, bare), owner[bare], total, "bytes")
    without_flops = _half_known(host, kept(rows, moved), owner[moved], total, "FLOPs")
    return Coverage(
        device_ns=total,
        launched_ns=int(duration[launched].sum()),
        flops_ns=int(duration[launched & flops].sum()),
        bytes_ns=int(duration[launched & known & ~flops].sum()),
        overhead=overhead,
        overhead_ns=int(duration[overhead].sum()),
        unmodelled=unmodelled,
        without_bytes=without_bytes,
        without_flops=without_flops,
    )


def _only_calls(name: str) -> bool:
    own = name.removeprefix("aten::")
    if own in _OWN_NAMES or own.removesuffix("_") in _OWN_NAMES:
        return True
    return _CALLS_OTHERS.fullmatch(name) is not None or is_composite(name)


def _calling_themselves(scope: Scope) -> np.ndarray:
    """The spans directly around one that counts, of the same operator: another form of it does their work (`arange` without a result)."""
    inner = np.flatnonzero(counted(scope).figure >= 0)
    outer = attribution(scope).model.stack.nesting.parent[inner]
    inner, outer = inner[outer >= 0], outer[outer >= 0]
    names = scope.trace.host["name"]
    of_inner, of_outer = (names[spans].cast(pl.String).str.strip_suffix("_") for spans in (inner, outer))
    return np.unique(outer[(of_inner == of_outer).fill_null(value=False).to_numpy()])


def _calling(scope: Scope, operator: np.ndarray) -> BoolArray:
    """Whether the own code of each of these operators only calls others, makes a view, or computes nothing, on processors."""
    if not scope.on_cpu:
        return np.zeros(operator.size, dtype=bool)
    only = attribution(scope).model.stack.names.which(_only_calls)
    only[_calling_themselves(scope)] = True
    only |= counted(scope).without_work
    calling: BoolArray = take(only.astype(np.int64), operator) == 1
    return calling


def _unmodelled(
    scope: Scope, rows: pl.DataFrame, anchor: np.ndarray, calling: BoolArray, total: int
) -> pl.DataFrame:
    """The table of that name, of the activities that are not known."""
    if not rows.height:
        return empty(UNMODELLED)
    stack, host = attribution(scope).model.stack, scope.trace.host
    # A composite operator only calls those that do its work.
    modelled = stack.names.which(lambda name: operator_named(name) is not None and not is_composite(name))
    outermost = modelled & (stack.nesting.nearest_ancestor(modelled, include_self=False) < 0)
    span = take(stack.nesting.nearest_ancestor(outermost), anchor)
    operator = or_none(rows["op_id"])
    named = np.where(span >= 0, span, operator)
    replayed = take(stack.named(GRAPH_LAUNCH, "runtime").astype(np.int64), anchor) == 1
    compiled = (
        take(stack.names.which(lambda name: _COMPILED.fullmatch(name) is not None).astype(np.int64), operator)
        == 1
    )
    traits = {"calls others": calling, "replayed": replayed, "compiled": compiled, "modelled": span >= 0}
    own = text_numbers(rows["name"]) * (named < 0)
    first, of = _alike(host, named, own, *traits.values())
    shown = _texts(host, named[first]).hstack([pl.Series(name, of[first]) for name, of in traits.items()])
    reason = (
        pl.when("replayed").then(pl.lit(REPLAYED))
        .when(pl.Series(named[first] < 0)).then(pl.lit("no operator"))
        .when("calls others").then(pl.lit(CALLS_OTHERS))
        .when("compiled").then(pl.lit(COMPILED))
        .when(~pl.col("modelled")).then(pl.lit("no formula for it"))
        .when(pl.col("shapes").is_not_null()).then("untold")
        .otherwise(pl.lit(NO_SHAPES))
    )  # fmt: skip
    names = pl.coalesce("operator", rows["name"][first].cast(pl.String))
    said = shown.select(names.alias("name"), reason.alias("reason"))
    return _by_name(said, of, named, rows["duration"].to_numpy(), total)


def _alike(
    host: pl.DataFrame, spans: Int64Array, *more: Int64Array | BoolArray
) -> tuple[Int64Array, Int64Array]:
    """Activities by the name and the inputs of the operators of these spans and by more: the first of each kind, and the kind of each."""
    texts = (text_numbers(at_rows(host[name], spans)) for name in _SAID)
    found = groups(*texts, *(each.astype(np.int64, copy=False) for each in more))
    return found.first, found.of


_SAID: Final = ("name", "shapes", "dtypes")


def _texts(host: pl.DataFrame, spans: Int64Array) -> pl.DataFrame:
    """Of operators the name (`operator`), the `shapes`, and what their inputs lack, in words (`untold`)."""
    name, shapes, dtypes = (at_rows(host[column], spans).cast(pl.String) for column in _SAID)
    words = [_lacking(*pair) for pair in zip(shapes, dtypes, strict=True)]
    return pl.DataFrame({"operator": name, "shapes": shapes, "untold": pl.Series(words, dtype=pl.String)})


def _by_name(
    said: pl.DataFrame, of: Int64Array, spans: Int64Array, duration: Int64Array, total: int
) -> pl.DataFrame:
    """The table of activities: `of` is the row of each in what is `said` (`name` and `reason`), `spans` are their operators."""
    alike = groups(*(text_numbers(said[name]) for name in ("name", "reason")))
    of = alike.of[of]
    found = Groups(of, alike.keys)
    calls = distinct_counts(np.where(spans >= 0, spans, -1 - np.arange(spans.size)), found)
    sums = [pl.Series("calls", calls), pl.Series("device_ns", found.sums(duration))]
    share = (pl.col("device_ns") / total if total else pl.lit(None, pl.Float64)).alias("share")
    table = said[alike.first].hstack(sums).with_columns(share)
    order = [pl.col("reason") == CALLS_OTHERS, "device_ns", "name"]
    return table.sort(order, descending=[False, True, False]).select(list(UNMODELLED))


def _half_known(
    host: pl.DataFrame, rows: pl.DataFrame, span: Int64Array, total: int, lacking: str
) -> pl.DataFrame:
    """The table of activities of which only FLOPs or bytes are known, and not the other one, `lacking`; `span` is the operator that
    tells them.
    """
    if not rows.height:
        return empty(UNMODELLED)
    first, of = _alike(host, span)
    reason = pl.lit(NO_FLOPS) if lacking == "FLOPs" else pl.lit("bytes: ") + pl.col("untold")
    said = _texts(host, span[first]).select(pl.col("operator").alias("name"), reason.alias("reason"))
    return _by_name(said, of, span, rows["duration"].to_numpy(), total)


def _lacking(shapes: str | None, dtypes: str | None) -> str:
    given = list(zip(json_list(shapes), map(str, json_list(dtypes)), strict=False))
    unknown = sorted({dtype for sizes, dtype in given if is_shape(sizes) and sizes and dtype and dtype not in DTYPES})  # fmt: skip
    if unknown:
        return f"unknown type {', '.join(unknown)}"
    lists = any(dtype.startswith("TensorList") for _, dtype in given)
    return "the types in its lists are not recorded" if lists else "its inputs do not tell"
