"""Matrix products and convolutions run on the ordinary FP32 or FP16 units of a device that has tensor cores.

Only kernels whose names prove it count: FP32 and FP16 kernels of cuBLAS, cuDNN and CUTLASS that name the ordinary
units (`…_sgemm_…`, `…_scudnn_…`, `simt`), on an NVIDIA device of compute capability 7.0 or more. FP64, matrix-vector
products (bound by memory) and everything on other vendors' devices stay out, because there a name proves nothing.

At stake is half of their time: tensor cores are 2 to 8 times as fast in practice, and no more than the least of that
is claimed.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded
from tracekit.analyses.scope import Scope
from tracekit.facts.kernel_rules import TENSOR_CORE
from tracekit.facts.units import format_count, format_ns, format_share
from tracekit.trace import Trace

__all__ = ["RULE"]

LEAST_SHARE: Final = 0.05
"""Some products stay off tensor cores for good reasons (odd sizes, a first layer with three channels)."""
SAVED_SHARE: Final = 0.5
"""Twice as fast is the least that TF32, BF16 or FP16 give in large products."""

_FIRST_TENSOR_CORES: Final = (7, 0)
_FIRST_TF32: Final = (8, 0)
_ORDINARY_UNITS: Final = (
    r"(?:maxwell|volta|turing|ampere|hopper|sm\d+)_(?:s|h)gemm|(?:maxwell|volta|turing|ampere)_[sh]cudnn"
    r"|cutlass_\d+_simt|_simt_|ffma|implicit_convolve_[sh]gemm|(?:dgrad_|dgrad2d_alg1_1|wgrad_alg0_|wgrad_alg1_)(?:engine)?\w*<float"
    r"|sgemm_largek|\bsgemm|hgemm"
)
_FP16: Final = Advice(
    'Train with torch.autocast("cuda", dtype=torch.float16) and torch.amp.GradScaler; this device has no TF32 and no '
    "BF16 tensor cores. Sizes that are multiples of 8 help.",
    flags=("--precision",),
)
_TF32: Final = Advice(
    'Call torch.set_float32_matmul_precision("high") for TF32 products, or use '
    'torch.autocast("cuda", dtype=torch.bfloat16).',
    flags=("--precision",),
)
_NAMES_AMPERE: Final = r"(?i)ampere_|hopper_|sm(8|9|10|12)\d_|cutlass_(8|9|10)\d"


def evidence(scope: Scope, result: Kernels) -> Evidence | None:
    """Fires when such kernels take `LEAST_SHARE` of the summed device time."""
    trace = scope.trace
    capability = _capability(trace, result)
    if capability is None or capability < _FIRST_TENSOR_CORES or not result.total_ns:
        return None
    name = pl.col("name")
    rows = result.by_name.filter(
        pl.col("category").is_in(["gemm", "convolution", "attention", "rnn"])
        & (pl.col("kind") == "kernel")
        & name.str.contains(f"(?i){_ORDINARY_UNITS}")
        & ~name.str.contains(f"(?i){TENSOR_CORE}")
    )
    total = int(rows["total_ns"].sum())
    if total / result.total_ns < LEAST_SHARE:
        return None
    at_stake = bounded(int(total * SAVED_SHARE), scope)
    gemm = int(rows.filter(pl.col("category") == "gemm")["total_ns"].sum())
    return Evidence(
        title=f"{format_share(total / result.total_ns)} of the device time is matrix work without tensor cores",
        text=f"{format_ns(total)} in {format_count(int(rows['count'].sum()))} kernels that use the ordinary units of a device "
        f"with compute capability {capability[0]}.{capability[1]}; the largest is {_plain(rows['name'][0])} "
        f"({format_ns(rows['total_ns'][0])}). At stake is half of it.",
        ns_at_stake=at_stake,
        advice=_FP16 if capability < _FIRST_TF32 else _TF32 if gemm * 2 >= total else None,
    )


def _capability(trace: Trace, result: Kernels) -> tuple[int, int] | None:
    """The least capability of NVIDIA's devices that worked; where the file describes none, what kernel names prove."""
    used = [
        device for device in trace.meta.devices if device.device_id in set(trace.device["device_id"].unique())
    ]
    known = [d.compute_capability for d in used if d.compute_capability is not None]
    if any("AMD" in d.name or d.warp_size == 64 for d in used):
        return None
    if known:
        return min(known)
    return _FIRST_TF32 if result.by_name["name"].str.contains(_NAMES_AMPERE).any() else None


def _plain(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:79]}…"


RULE = Rule(
    id="no_tensor_cores",
    analysis="kernels",
    evidence=evidence,
    runs="device",
    advice=Advice(
        'Use torch.autocast("cuda", dtype=torch.bfloat16) with model.to(memory_format=torch.channels_last), keep '
        "torch.backends.cudnn.allow_tf32 = True, and let torch.backends.cudnn.benchmark = True choose the kernels.",
        plain=(
            "Allow TF32 or a 16-bit type in the library that computes this (cublasSetMathMode, "
            "cudnnSetConvolutionMathType, or the compute type of the call)."
        ),
        flags=("--precision", "--channels-last"),
    ),
)
