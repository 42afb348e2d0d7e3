"""Rules about kernels: what could run faster, or as one."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import (
    Advice,
    Evidence,
    Rule,
    bounded,
    bounded_by_host,
    bounded_by_removal,
    longest,
    of_time,
)
from tracekit.analyses.scope import Scope
from tracekit.analyses.sdpa import SDPA_MATH
from tracekit.facts.device_peaks import peak_tflops
from tracekit.facts.kernel_rules import ORDINARY_INSTRUCTIONS, TENSOR_CORE
from tracekit.facts.units import count_of, format_count, format_ns, format_share
from tracekit.findings import Stretches
from tracekit.groups import distinct, kept, or_none
from tracekit.names import shorten_name
from tracekit.trace import Trace

__all__ = [
    "FIRST_WGMMA",
    "LAYOUT_CONVERSIONS",
    "NO_TENSOR_CORES",
    "OF_CONVOLUTIONS",
    "OTHER_TOO_LARGE",
    "RANDOM_NUMBERS",
    "WHOLE_GRAPHS",
    "capability_of",
    "costliest",
    "worth_faster",
]

LONGEST_NAME: Final = 80

# -- no_tensor_cores --------------------------------------------------------------------------------

NO_TENSOR_CORES_LEAST_SHARE: Final = 0.05
"""Some products stay off tensor cores for good reasons (odd sizes, a first layer with three channels)."""
LEAST_OF_WINDOW: Final = 0.005
"""Less at stake is not worth a change of the program."""
LEAST_OF_IDLE_WINDOW: Final = 0.05
"""Where the device is mostly idle, faster kernels save little, and what they take to launch may cost more."""
LEAST_RATIO: Final = 8.0
"""Of the peaks of tensor cores and FP32 units on the first devices that have both (V100, T4), for those that the catalogue lacks."""

_FIRST_TENSOR_CORES: Final = (7, 0)
_FIRST_TF32: Final = (8, 0)
FIRST_WGMMA: Final = (9, 0)
"""The first compute capability whose tensor cores work asynchronously on whole warp groups."""
_ORDINARY_UNITS: Final = (
    r"(?:maxwell|volta|turing|ampere|hopper|sm\d+)_(?:s|h)gemm|(?:maxwell|volta|turing|ampere)_[sh]cudnn"
    r"|cutlass_\d+_simt|_simt_|ffma|implicit_convolve_[sh]gemm|(?:dgrad_|dgrad2d_alg1_1|wgrad_alg0_|wgrad_alg1_)(?:engine)?\w*<float"
    r"|sgemm_largek|\bsgemm|hgemm"
)
_FP16: Final = Advice(
    '[training] Train with torch.autocast("cuda", dtype=torch.float16) and torch.amp.GradScaler.\n'
    '[!training] Use torch.autocast("cuda", dtype=torch.float16).\n'
    "The tensor cores of this device compute in FP16 only. Use sizes that are multiples of 8.",
    flags=("--precision",),
)
_TF32: Final = Advice(
    'Call torch.set_float32_matmul_precision("high") for TF32 products, or use '
    'torch.autocast("cuda", dtype=torch.bfloat16).',
    flags=("--precision",),
)
_OF_RNN: Final = Advice(
    'Use torch.autocast("cuda", dtype=torch.bfloat16), or set torch.backends.cudnn.allow_tf32 = True.',
    flags=("--precision",),
)
_BY_CATEGORY: Final = {"gemm": _TF32, "rnn": _OF_RNN}
"""The advice if most of the time is that of this category."""
_NAMES_HOPPER: Final = r"(?i)hopper_|sm(9|10)\d_|^nvjet_|cutlass_(9|10)\d"
_NAMES_AMPERE: Final = r"(?i)ampere_|hopper_|sm(8|9|10|12)\d_|cutlass_(8|9|10)\d"


def no_tensor_cores(scope: Scope, result: Kernels) -> Evidence | None:
    """Matrix products and convolutions run on the ordinary FP32 or FP16 units of a device that has tensor cores.

    A kernel counts only if its name proves this: FP32 and FP16 kernels of cuBLAS, cuDNN and CUTLASS that name the ordinary
    units (`…_sgemm_…`, `…_scudnn_…`, `simt`), on an NVIDIA device of compute capability 7.0 or more. FP64 kernels,
    matrix-vector products (bound by memory) and devices of other vendors do not count, because their names prove nothing.

    At stake is what they would save if the tensor cores reached as much of their peak: the time but for one part in the ratio of
    the two peaks. Of an H100 (14.8) 333 ms of FP32 products became 35 ms in BF16; what memory bounds gains less.

    Fires when such kernels take `NO_TENSOR_CORES_LEAST_SHARE` of the summed device time, and `LEAST_OF_WINDOW` is at stake, or
    `LEAST_OF_IDLE_WINDOW` where the device is idle for more than half of the window.
    """
    trace = scope.trace
    capability = capability_of(trace, result)
    if capability is None or capability < _FIRST_TENSOR_CORES or not result.total_ns:
        return None
    name = pl.col("name")
    rows = result.by_name.filter(
        pl.col("category").is_in(["gemm", "convolution", "attention", "rnn"])
        & (pl.col("kind") == "kernel")
        & name.str.contains(f"(?i){_ORDINARY_UNITS}")
        & (~name.str.contains(f"(?i){TENSOR_CORE}") | name.str.contains(ORDINARY_INSTRUCTIONS))
    )
    total = int(rows["total_ns"].sum())
    ratio = _ratio_of_peaks(trace)
    at_stake = bounded_by_host(int(total * (1 - 1 / ratio)), scope)
    if total / result.total_ns < NO_TENSOR_CORES_LEAST_SHARE or not worth_faster(at_stake, scope):
        return None
    by_category = dict(rows.group_by("category").agg(pl.col("total_ns").sum()).rows())
    advice = next(
        (words for name, words in _BY_CATEGORY.items() if 2 * by_category.get(name, 0) >= total), None
    )
    return Evidence(
        title=f"Matrix work without tensor cores takes {of_time(total, scope)}",
        text=f"{format_count(int(rows['count'].sum()))} kernels use ordinary units (compute capability "
        f"{capability[0]}.{capability[1]}) and take {format_ns(total)}. The largest: "
        f"{shorten_name(rows['name'][0], LONGEST_NAME)}, {format_ns(rows['total_ns'][0])}. In 16 bits, the peak of the device's "
        f"tensor cores is {ratio:.0f} times that of its FP32 units.",
        ns_at_stake=at_stake,
        advice=_FP16 if capability < _FIRST_TF32 else advice,
        stretches=_longest_of(scope, rows),
    )


def worth_faster(at_stake_ns: int, scope: Scope) -> bool:
    """Whether so much time at stake is worth a finding about faster kernels."""
    idle = 2 * scope.intervals().measure < scope.duration
    return at_stake_ns >= (LEAST_OF_IDLE_WINDOW if idle else LEAST_OF_WINDOW) * scope.duration


def _ratio_of_peaks(trace: Trace) -> float:
    """How much higher the peak of 16-bit products is than that of FP32, at most, of the devices."""
    peaks = [
        (peak_tflops(one.name, "fp16", one.memory_bytes), peak_tflops(one.name, "fp32", one.memory_bytes))
        for one in trace.meta.devices
    ]
    return max((fp16 / fp32 for fp16, fp32 in peaks if fp16 and fp32), default=LEAST_RATIO)


def capability_of(trace: Trace, result: Kernels) -> tuple[int, int] | None:
    """The lowest capability of the NVIDIA devices that worked; if the file gives none, what kernel names prove."""
    there = set(distinct(trace.device["device_id"]))
    used = [device for device in trace.meta.devices if device.device_id in there]
    capabilities = [d.compute_capability for d in used if d.compute_capability is not None]
    if any(d.is_amd for d in used):
        return None
    if capabilities:
        return min(capabilities)
    names = result.by_name["name"]
    if names.str.contains(_NAMES_HOPPER).any():
        return FIRST_WGMMA
    return _FIRST_TF32 if names.str.contains(_NAMES_AMPERE).any() else None


NO_TENSOR_CORES = Rule(
    id="no_tensor_cores",
    analysis="kernels",
    evidence=no_tensor_cores,
    runs="device",
    advice=Advice(
        'Use torch.autocast("cuda", dtype=torch.bfloat16) with model.to(memory_format=torch.channels_last), or set '
        "torch.backends.cudnn.allow_tf32 = True.",
        plain=(
            "Allow TF32 or a 16-bit type in the library that computes this (cublasSetMathMode, "
            "cudnnSetConvolutionMathType, or the compute type of the call)."
        ),
        flags=("--precision", "--channels-last"),
    ),
)


# -- layout_conversions -----------------------------------------------------------------------------

LAYOUT_CONVERSIONS_LEAST_SHARE: Final = 0.02
"""The conversion of the first input alone takes less than one part in fifty."""

_CONVERSION: Final = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|batched_transpose_\d+x\d+"
OF_CONVOLUTIONS: Final = rf"{_CONVERSION}|SubTensorOpWith"
"""Kernels that change layout and type inside the calls of a convolution library, where no compiler reaches them."""


def layout_conversions(scope: Scope, result: Kernels) -> Evidence | None:
    """Kernels convert between NCHW and NHWC around convolutions, because the model does not keep the layout of the library.

    Fires when conversion kernels take `LAYOUT_CONVERSIONS_LEAST_SHARE` of the summed device time.
    """
    if not result.total_ns:
        return None
    rows = result.by_name.filter((pl.col("kind") == "kernel") & pl.col("name").str.contains(_CONVERSION))
    total = int(rows["total_ns"].sum())
    if total / result.total_ns < LAYOUT_CONVERSIONS_LEAST_SHARE:
        return None
    at_stake = bounded_by_removal(total, scope, *(f"kernel:{name}" for name in rows["name"].cast(pl.String)))
    return Evidence(
        title=f"Layout conversions take {of_time(total, scope)}",
        text=f"Kernels that convert NCHW to NHWC or back take {format_ns(total)} in {count_of(int(rows['count'].sum()), 'launch', 'launches')}.",
        ns_at_stake=at_stake,
        stretches=_longest_of(scope, rows),
    )


LAYOUT_CONVERSIONS = Rule(
    id="layout_conversions",
    analysis="kernels",
    evidence=layout_conversions,
    runs="device",
    advice=Advice(
        "Use channels last everywhere: call model.to(memory_format=torch.channels_last), do the same for the input "
        "batch, and avoid .contiguous() and view() in between.\n"
        "[amd] For convolutions on AMD, set PYTORCH_MIOPEN_SUGGEST_NHWC=1 as well.",
        plain=("Keep the data in the layout in which the library computes (NHWC for tensor cores)."),
        flags=("--channels-last",),
    ),
)


def _longest_of(scope: Scope, rows: pl.DataFrame) -> Stretches:
    """The few longest activities with the names of these rows."""
    return longest(scope.activities.filter(pl.col("name").cast(pl.String).is_in(rows["name"].implode())))


def costliest(rows: pl.DataFrame) -> str:
    """The name of the row with the most time (`name`, `total_ns`), shortened."""
    return shorten_name(str(rows.sort("total_ns", "name", descending=[True, False])["name"][0]), LONGEST_NAME)


# -- random_numbers ---------------------------------------------------------------------------------

RANDOM_NUMBERS_LEAST_SHARE: Final = 0.05
"""Below a twentieth of the time, fewer random numbers save little."""
MOSTLY_OF_ONE: Final = 0.5
"""The advice is about dropout, or about sampling, if at least half of the time is of it."""

_DROPOUT: Final = r"^aten::(native_|_fused_|feature_|alpha_|feature_alpha_)?dropout_?$"
_SAMPLING: Final = r"^aten::multinomial$"
_OF_DROPOUT: Final = Advice(
    "[inference] Call model.eval(): dropout is switched on.\n"
    "[!inference] Remove dropout layers that training does not need, and leave attention dropout to "
    "scaled_dot_product_attention(dropout_p=…), which draws the numbers inside the fused kernel.\n"
    "[!inference !compiled] torch.compile draws the numbers inside the surrounding kernels.",
    processor=(
        "[inference] Call model.eval(): dropout is switched on.\n"
        "[!inference] Remove dropout that training does not need (p=0), on large tensors first.\n"
        "[!inference !compiled] torch.compile draws the numbers inside the surrounding loops."
    ),
)
_OF_SAMPLING: Final = Advice(
    "torch.multinomial draws a number for each category of each row: keep the k most likely with torch.topk, draw among these, "
    "and look up with torch.gather which they are."
)


def random_numbers(scope: Scope, result: Kernels) -> Evidence | None:
    """Random numbers take much of the time: those of dropout, or others.

    All of what lies inside operators of dropout counts (drawing, scaling, masking), and in steps the rest of the category
    `random`; before the steps, programs draw their weights. The dropout of unfused attention is left to `sdpa_fallback`. At
    stake is all of it: a fused kernel draws the numbers beside its other work, and of a vocabulary few words are likely.

    Fires when this takes `RANDOM_NUMBERS_LEAST_SHARE` of the time.
    """
    stack = attribution(scope).model.stack
    rows = scope.activities[["op_id", "category", "start", "duration"]]
    op, ns = or_none(rows["op_id"]), rows["duration"].to_numpy()
    of_dropout, unfused = (stack.inside(name, op, "op") for name in (_DROPOUT, SDPA_MATH))
    drawn = of_dropout | ((rows["category"] == "random").to_numpy() & (scope.window == "steps"))
    drawn, of_dropout = drawn & ~unfused, of_dropout & ~unfused
    total, of_dropouts = int(ns[drawn].sum()), int(ns[of_dropout].sum())
    if total < RANDOM_NUMBERS_LEAST_SHARE * max(result.total_ns, 1):
        return None
    of_samples = int(ns[drawn & stack.inside(_SAMPLING, op, "op")].sum())
    mostly, samples = of_dropouts >= MOSTLY_OF_ONE * total, of_samples >= MOSTLY_OF_ONE * total
    part = (
        f"{format_ns(of_samples)} of it in torch.multinomial"
        if samples
        else f"{format_ns(of_dropouts)} of it in dropout"
    )
    names = kept(result.by_name, result.by_name["category"] == "random")
    largest = f" {costliest(names)} takes the most." if names.height else ""
    return Evidence(
        title=f"{'Dropout takes' if mostly else 'Random number generation takes'} {of_time(total, scope)}",
        text=f"Drawing random numbers takes {format_ns(total)}, {part}.{largest}",
        ns_at_stake=bounded(total, scope),
        advice=_OF_DROPOUT if mostly else _OF_SAMPLING if samples else None,
        stretches=longest(kept(rows, drawn)),
    )


RANDOM_NUMBERS = Rule(
    id="random_numbers",
    analysis="kernels",
    evidence=random_numbers,
    advice=Advice(
        "Draw the numbers ahead of time, once instead of in each step, or where they are needed: on the device, in the type "
        "in which they are used.",
        processor="Draw the numbers ahead of time, once instead of in each step, or with more threads.",
        plain="Draw the numbers ahead of time, once instead of in each step, or inside the kernel that uses them.",
    ),
)


# -- other_too_large --------------------------------------------------------------------------------

MOST_OTHER: Final = 0.05
"""Above this, the table by category no longer shows where the time goes."""

_CHECKPOINT: Final = r"^(autograd::engine::evaluate_function: )?CheckpointFunction(Backward)?$"


def other_too_large(scope: Scope, result: Kernels) -> Evidence | None:
    """Kernels without a category take too much device time (DEFINITIONS §2: more than 5 % is a finding).

    Fires when the category `other` holds more than `MOST_OTHER` of the summed time. Graphs recorded as a whole do not
    count, because `whole_graphs` reports them, and neither does the Python code of activation checkpointing.
    """
    graphs = distinct(scope.activities["name"].filter(scope.activities["kind"] == "graph"))
    rows = kept(result.by_name, result.by_name["category"] == "other")
    if rows.height:
        named = pl.col("name").is_in(graphs.cast(pl.String).to_list())
        rows = rows.filter(~named & ~pl.col("name").str.contains(_CHECKPOINT))
    total = int(rows["total_ns"].sum())
    if not result.total_ns or total / result.total_ns <= MOST_OTHER:
        return None
    what = "operators' self time" if scope.on_cpu else "device time"
    top = "; ".join(
        f"{shorten_name(name, LONGEST_NAME)} {format_ns(time)}"
        for name, time in rows[["name", "total_ns"]].head(3).rows()
    )
    return Evidence(
        title=f"{format_share(total / result.total_ns)} of the {what} has no category",
        text=f"{count_of(rows.height, 'name takes', 'names take')} {format_ns(total)} of "
        f"{format_ns(result.total_ns)}. The largest: {top}.",
        stretches=_longest_of(scope, rows),
    )


OTHER_TOO_LARGE = Rule(
    id="other_too_large",
    analysis="kernels",
    evidence=other_too_large,
    advice=Advice(
        "Look these names up in the kernel table. Wrap your own kernels in torch.library.custom_op or "
        "torch.profiler.record_function with a clear name, so that they fall into a category.",
        plain=(
            "Look these names up in the kernel table. An NVTX range with a clear name around their launches groups them."
        ),
    ),
)


# -- whole_graphs -----------------------------------------------------------------------------------

MOST_IN_GRAPHS: Final = 0.05
"""Above this, the kernels in the trace no longer show where the time goes."""


def whole_graphs(scope: Scope, result: Kernels) -> Evidence | None:
    """CUDA graphs were recorded as a whole, so their kernels are not in the trace.

    Fires when activities of the kind `graph` hold more than `MOST_IN_GRAPHS` of the summed time.
    """
    rows = kept(scope.activities, scope.activities["kind"] == "graph")
    total = int(rows["duration"].sum())
    if not result.total_ns or total / result.total_ns <= MOST_IN_GRAPHS:
        return None
    return Evidence(
        title=f"CUDA graphs that were recorded as a whole take {of_time(total, scope)}",
        text=f"{count_of(rows.height, 'graph replay takes', 'graph replays take')} {format_ns(total)} of "
        f"{format_ns(result.total_ns)}, and the trace does not contain {'its' if rows.height == 1 else 'their'} kernels.",
        severity="warning",
        stretches=longest(rows),
    )


WHOLE_GRAPHS = Rule(
    id="whole_graphs",
    analysis="kernels",
    evidence=whole_graphs,
    advice=Advice("Record the kernels of the graphs: nsys profile --cuda-graph-trace=node."),
)
