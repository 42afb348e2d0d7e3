"""What to try: what the findings say, by the time at stake, and general advice where no finding explains the loss."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.analyses.program import program
from tracekit.facts.plain_advice import BOUNDS
from tracekit.facts.units import format_ns, format_share
from tracekit.findings import Finding
from tracekit.readers import flag_for
from tracekit.report.model import Advice, Bound
from tracekit.report.text import shorten_name
from tracekit.trace import Trace

__all__ = [
    "Owned",
    "choose",
    "general",
    "lead_in_advice",
    "of_finding",
    "python_advice",
    "top_kernels_advice",
]

ADVICE: Final = 3
LEAST_SHARE: Final = 0.01
"""What could save less than this share of the basis stays in its section."""
ANSWERS: Final = 0.5
"""A finding answers a loss when it explains half of it; else the general advice is needed as well."""

_GENERAL: Final[dict[Bound, tuple[str, str]]] = {
    "host-bound": (
        "Keep the device fed",
        "remove synchronisations and .item() from the loop; then torch.compile or CUDA graphs, and larger batches",
    ),
    "input-bound": (
        "Load data faster",
        "more DataLoader workers, pin_memory=True, non_blocking copies, and decode ahead of time",
    ),
    "communication-bound": (
        "Hide or shrink communication",
        "larger buckets, overlap with the backward pass, lower precision of gradients; compare the ranks for a straggler",
    ),
    "memory-copy-bound": (
        "Copy less",
        "keep data on the device; pin host memory and copy on a stream of its own beside the computation",
    ),
    "compute-bound": (
        "Make the kernels cheaper",
        "lower precision (bf16, TF32), fused kernels (torch.compile, scaled_dot_product_attention), better shapes",
    ),
    "launch/short-kernel-bound": (
        "Launch fewer, longer kernels",
        "torch.compile or CUDA graphs, fused optimizers (fused=True), and larger batches",
    ),
    "idle": (
        "Find out what the device waits for",
        "look at the longest gaps in the timeline: events between streams, or launches that were not recorded",
    ),
    "cpu": (
        "See the top operators",
        "fewer and larger operators, more threads (torch.set_num_threads), or a device",
    ),
    "counters": (
        "Measure times in a second run",
        "profile without {counters}; read only the counters here",
    ),
    "ranges only": (
        "Record what the layers run",
        "tracekit capture --levels M,MLG records operators and kernels as well; "
        "a profiler of your own needs {everything}",
    ),
    "nothing ran": (
        "Capture some work",
        "call the model while the profiler records, with {everything}",
    ),
}

_FLAGS_NAMED: Final = ("counters", "everything")
"""What the texts above name in braces: keys of `tracekit.readers.RECORDABLE`."""

_ABOUT: Final[dict[Bound, frozenset[str]]] = {
    "input-bound": frozenset({"data_loading"}),
    "communication-bound": frozenset({"exposed_communication"}),
    "memory-copy-bound": frozenset({"pageable_copies", "small_copies"}),
    "host-bound": frozenset(
        {"host_bound_launches", "blocking_synchronisation", "cold_start", "allocation_calls"}
    ),
    "launch/short-kernel-bound": frozenset({"host_bound_launches", "short_kernels", "cold_start"}),
}
"""The findings that speak about a bound."""

FUSIBLE_SHARE: Final = 0.2
"""Where fusible kernels take less of the computation, the matrix and attention kernels are what is left to look at."""
_FUSIBLE: Final = ("elementwise", "copy")
"""Categories of kernels that compilers fuse."""

_NOT_HERE: Final = frozenset({"incomplete_capture"})
"""What the profile lacks is said in the sections; it changes nothing about the run."""
_RESTATES: Final = frozenset({"low_utilisation", "long_gaps", "low_part_of_step"})
"""Findings that say that something is amiss or where, not what; they only repeat the verdict on a loss."""

_ALREADY: Final = re.compile(
    r"(?i)triton|fused|flash|fmha|attn_fwd|unified_attention|scaled_mm|fp8|f8f8|e4m3|mxfp4|nvfp4|bf16|f16f16"
    r"|_(?:BBS|HHS|BSS|HSS|F8)[A-Z0-9]*_"
)
"""Kernels that are fused, or compute in a low precision, by their names; `BBS` is Tensile's word for bf16."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A finding, and the section that it stands in."""

    finding: Finding
    section: str


def general(bound: Bound, stake: int, trace: Trace) -> Advice:
    """The one advice that always fits this bound; `stake` is the time of the cost behind it, in ns.

    Flags are those that record a trace of this format; where it shows no PyTorch, none of PyTorch are named.
    """
    title, text = _GENERAL[bound]
    if not program(trace).pytorch:
        text = BOUNDS.get(bound, text)
    told = text.format(**{what: flag_for(what, trace.meta.format) for what in _FLAGS_NAMED})
    return Advice(title, told, stake if stake > 0 else None)


def lead_in_advice(ns: int, format_: str) -> Advice:
    """What to do when the host works long before the device does anything."""
    return Advice(
        "See what the host does before the device's first activity",
        f"it worked alone for {format_ns(ns)}: preprocessing, data loading or first-time initialisation; "
        f"{flag_for('names', format_)} name it",
        ns,
    )


def python_advice(ns: int, format_: str) -> Advice:
    """What to do when most time passes outside any operator."""
    return Advice(
        "Look at the Python code between the operators",
        f"{flag_for('names', format_)} name it; larger tensors and fewer operations in Python leave less of it "
        "(vectorised loops, torch.compile)",
        ns,
    )


def top_kernels_advice(kernels: pl.DataFrame, compute: int, trace: Trace) -> Advice:
    """What to do about a busy device; not what the names of its kernels show to be done already.

    `kernels` are the computing rows of the table by name, largest first; `compute` their time in all, in ns.
    """
    names, times = kernels["name"].to_list(), kernels["total_ns"].to_list()
    total = max(sum(times), 1)
    already = sum(ns for name, ns in zip(names, times, strict=True) if _ALREADY.search(name))
    if already < total / 2:
        return general("compute-bound", 0, trace)
    fusible = sum(kernels.filter(pl.col("category").is_in(_FUSIBLE))["total_ns"].to_list())
    if fusible >= FUSIBLE_SHARE * total and program(trace).pytorch:
        return Advice(
            f"Elementwise kernels, casts and changes of layout take {format_share(fusible / total)} of {format_ns(compute)} of computation",
            "torch.compile makes one kernel of a chain of them; keep one type and one layout throughout",
        )
    top = ", ".join(
        f"{shorten_name(name, 36)} ({format_share(ns / total)})"
        for name, ns in zip(names[:2], times[:2], strict=True)
    )
    return Advice(
        "The device is busy, with fused or low-precision kernels already",
        f"what is left is in their shapes and the batch size; the largest of {format_ns(compute)} of computation: {top}",
    )


def of_finding(owned: Owned) -> Advice:
    """The advice of a finding."""
    finding = owned.finding
    return Advice(
        finding.title, finding.advice, finding.ns_at_stake, finding.id, owned.section, finding.severity
    )


def choose(
    findings: Sequence[Owned],
    bound: Bound,
    basis: int,
    *,
    fallback: Advice,
    first: Iterable[Advice] = (),
    without: Iterable[str] = (),
) -> tuple[Advice, ...]:
    """`first`, then what to try by the time at stake, largest first; `fallback` where no finding explains the loss.

    `without` are ids of findings that would say what `first` says.
    """
    lead = tuple(first)
    left_out = {*_NOT_HERE, *without, *(advice.finding for advice in lead)}
    if bound not in ("compute-bound", "cpu"):
        left_out |= _RESTATES
    useful = [
        of_finding(owned)
        for owned in findings
        if owned.finding.advice and owned.finding.id not in left_out and _matters(owned.finding, basis)
    ]
    if not lead and not _answered(useful, bound, fallback):
        useful.append(fallback)
    useful.sort(key=lambda advice: -(advice.ns_at_stake or 0))
    return (*lead, *useful)[:ADVICE]


def _matters(finding: Finding, basis: int) -> bool:
    return finding.ns_at_stake is None or finding.ns_at_stake >= LEAST_SHARE * basis


def _answered(useful: list[Advice], bound: Bound, fallback: Advice) -> bool:
    about = _ABOUT.get(bound)
    if about is None:
        telling = [advice for advice in useful if advice.finding not in _RESTATES]
    else:
        telling = [advice for advice in useful if advice.finding in about]
    return any((advice.ns_at_stake or 0) >= ANSWERS * (fallback.ns_at_stake or 0) for advice in telling)
