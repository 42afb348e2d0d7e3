"""The advice of a verdict about kernels: which take the time, and what could make them cheaper."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import polars as pl

from tracekit.analyses.rules import words_for
from tracekit.analyses.rules.attention_work import claimed_by_attention
from tracekit.analyses.rules.kernels import OF_CONVOLUTIONS
from tracekit.analyses.rules.rule import Advice as Words
from tracekit.analyses.rules.rule import bounded_by_removal, longest_work, of_time
from tracekit.analyses.scope import Scope
from tracekit.analyses.traits import traits
from tracekit.facts.device_peaks import computes_fp8
from tracekit.facts.units import format_share
from tracekit.names import category_name, shorten_name
from tracekit.verdict.model import Advice

__all__ = ["fusible_advice", "top_kernels_advice"]

FUSIBLE_SHARE: Final = 0.2
"""If fusible kernels take less of the computation, they are not worth advice of their own."""
_FUSIBLE: Final = ("elementwise", "copy")
"""Categories of kernels that compilers fuse. Those that quantise are not among them: they are operators that a compiler cannot look
into, and each fuses its steps already.
"""
_PASSES: Final = (*_FUSIBLE, "normalisation", "reduction", "softmax")
"""Categories of kernels that read and write memory once for little arithmetic."""
_MATRIX: Final = ("gemm", "convolution", "attention", "rnn")

LEAST_NAMED: Final = 0.1
"""A kernel with a smaller part of the computation is not named."""
LEAST_FOR_FP8: Final = 0.4
"""Products with a smaller part of the time are not worth types that cost accuracy."""
_WIDTH: Final = 36

_DOUBLE: Final = r"\bdouble\b|(?i)dgemm|_f64"
_VECTOR: Final = r"(?i)gemv"
_EIGHT_BITS: Final = r"(?i)fp8|f8f8|e4m3|e5m2|mxfp4|nvfp4|int8|_F8[A-Z0-9]*_|_I8"
_ADDS: Final = r"ReduceAdd|(?i)(scatter|index)_?add|atomic_?add"
"""Kernels that add values to the rows of a tensor, where indices may repeat."""
_OF_TABLE: Final = r"(?i)RadixSort|compute_grad_weight|sum_and_scatter|embedding_backward"
"""Kernels of the dense gradient of an embedding: it sorts the indices first."""
_TENSILE: Final = r"^Cijk_"
"""Kernels of rocBLAS and hipBLASLt."""


def fusible_advice(
    kernels: pl.DataFrame, compute: int, scope: Scope, fired: Collection[str]
) -> Advice | None:
    """What to do if elementwise kernels and casts take much of the computation; None if not, or if the program is compiled.

    `kernels` are the computing rows of the table by name; `compute` is their total time in ns, each moment once. `fired` are the ids
    of findings; what those about attention have at stake is left out.
    """
    total = max(int(kernels["total_ns"].sum()), 1)
    wanted = pl.col("category").is_in(_FUSIBLE) & ~pl.col("name").str.contains(OF_CONVOLUTIONS)
    claimed = claimed_by_attention(scope, fired)
    theirs = sum(claimed.get(category, 0) for category in _FUSIBLE)
    fusible = int(kernels.filter(wanted)["total_ns"].sum()) - theirs
    if fusible < FUSIBLE_SHARE * total or "pytorch" not in traits(scope) or "compiled" in traits(scope):
        return None
    words = Words(
        "torch.compile fuses chains of them into one kernel. Use one data type and one memory layout throughout.",
        flags=("--compile",),
    )
    ns = round(compute * fusible / total)
    which = "Outside attention, elementwise" if theirs else "Elementwise"
    title = f"{which} kernels, casts and layout changes take {of_time(ns, scope)}"
    present = [
        f"category:{each}"
        for each in _FUSIBLE
        if kernels.filter(wanted & (pl.col("category") == each)).height
    ]
    return Advice(
        title,
        words_for(words, scope),
        bounded_by_removal(ns, scope, *present),
        analysis="kernels",
        stretches=longest_work(scope, *_FUSIBLE),
    )


def top_kernels_advice(
    kernels: pl.DataFrame, compute: int, basis: int, scope: Scope, fired: Collection[str]
) -> Advice | None:
    """What could make the largest category of kernels cheaper, and what its kernels are; None if nothing is known that could.

    `kernels` are the computing rows of the table by name, largest first; `compute` is their total time and `basis` that of the
    shares, in ns. `fired` are the ids of findings; what they advise is left out.
    """
    table = kernels[["name", "category", "total_ns"]].filter(pl.col("total_ns") > 0)
    if not table.height:
        return None
    total = int(table["total_ns"].sum())
    sums = table.group_by("category").agg(pl.col("total_ns").sum()).sort("total_ns", "category")
    category, ns = sums.row(-1)
    mine = table.filter(pl.col("category") == category)
    devices = scope.trace.meta.devices
    large = ns * compute >= LEAST_FOR_FP8 * total * basis
    fp8 = large and any(computes_fp8(device.name, device.compute_capability) for device in devices)
    words = words_for(
        Words(
            "\n".join(_lines(mine, category, fired, pytorch=True, fp8=fp8)),
            plain="\n".join(_lines(mine, category, fired, pytorch=False, fp8=fp8)),
        ),
        scope,
    )
    if not words:
        return None
    named = ", ".join(
        f"{shorten_name(name, _WIDTH)} ({format_share(each / total * compute / basis)})"
        for name, each in mine[["name", "total_ns"]].head(2).rows()
        if each >= LEAST_NAMED * total
    )
    share = format_share(ns / total * compute / basis)
    what = category_name(category)
    several = " and " in what or (what.endswith("s") and not what.endswith("ss"))
    title = f"Of the computation, {what} {'take' if several else 'takes'} the most, {share} of the time"
    stretches = longest_work(scope, category)
    return Advice(f"{title}: {named}" if named else title, words, analysis="kernels", stretches=stretches)


def _lines(
    mine: pl.DataFrame, category: str, fired: Collection[str], *, pytorch: bool, fp8: bool
) -> Iterator[str]:
    """The lines of advice about kernels of this category, with the traits that each needs."""

    def mostly(pattern: str) -> bool:
        matching = mine.filter(pl.col("name").str.contains(pattern))["total_ns"].sum()
        return bool(2 * matching >= mine["total_ns"].sum())

    if category in _PASSES:
        fuse = "Fuse kernels that use each other's results, so that the data pass through memory once."
        yield "[!compiled] torch.compile fuses such kernels into the ones beside them." if pytorch else fuse
    if category == "embedding":
        if mostly(_ADDS):
            yield (
                "These kernels add to rows that several threads share, one after the other: sort the indices, so that one thread sums "
                "a row (torch.segment_reduce, or a product with a sparse matrix)."
                if pytorch
                else "These kernels add to rows that several threads share, one after the other: sort the indices, so that one thread "
                "sums a row."
            )
        elif pytorch and mostly(_OF_TABLE):
            yield (
                "The backward pass of a lookup sorts the indices and writes a gradient for every row of the table. Make it "
                "sparse (sparse=True, with an optimizer such as SparseAdam), or use the lookups of fbgemm_gpu, which update the rows in "
                "the backward pass."
            )
    if category not in _MATRIX:
        return
    if mostly(_DOUBLE):
        yield "These kernels compute in double precision; single precision halves their bytes, if the result allows it."
    elif "no_tensor_cores" not in fired:
        yield "[!low_precision] Use 16-bit types if the result allows it, or TF32 if the device has it."
    if category == "gemm" and fp8 and not mostly(_EIGHT_BITS):
        yield "[low_precision] 8-bit types (FP8) are faster, if the accuracy allows them."
    if mostly(_VECTOR):
        yield (
            "The product of a matrix and a vector reads the whole matrix, so the bandwidth of the memory bounds it. Several vectors "
            "at a time, as one matrix product, share the reading."
        )
    if category == "gemm":
        yield (
            "[serving] Serve more requests at a time: a step that makes one token for each mostly reads the weights, so this adds "
            "little time."
        )
    if pytorch and mostly(_TENSILE):
        yield "PYTORCH_TUNABLEOP_ENABLED=1 searches the library for the fastest matrix product of each size."
    if pytorch:
        yield '[compiled !serving] mode="max-autotune" of torch.compile compares more kernels for each product.'
