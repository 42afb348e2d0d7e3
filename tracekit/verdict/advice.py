"""The advice of a verdict: that of the findings, by the time at stake, and general advice if no finding explains the loss."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.analyses.result import Result
from tracekit.analyses.rules import RULES, rule_of, words_for
from tracekit.analyses.rules.rule import HOST_CODE_ADVICE, of_time
from tracekit.analyses.rules.rule import Advice as Words
from tracekit.analyses.scope import Scope
from tracekit.analyses.traits import traits
from tracekit.facts.units import format_ns, format_share
from tracekit.findings import Bound, Finding, rank
from tracekit.names import category_name, shorten_name
from tracekit.verdict.model import Advice

__all__ = [
    "GENERAL",
    "Owned",
    "category_advice",
    "choose",
    "few_advice",
    "fusible_advice",
    "general",
    "host_code_advice",
    "of_finding",
    "owned",
    "python_advice",
    "top_kernels_advice",
    "unseen_advice",
]

ADVICE: Final = 3
LEAST_SHARE: Final = 0.01
"""Advice that could save less than this share of the basis stays in its section."""
LITTLE: Final = 0.2
"""Advice with less of the loss at stake than this stands below advice about all of it."""
ANSWERS: Final = 0.5
"""A finding answers a loss if it explains half of it; otherwise the verdict gives the general advice as well."""

GENERAL: Final[dict[Bound, tuple[str, Words]]] = {
    "host-bound": (
        "Keep the device busy",
        Words(
            "The idle tables show what the host does meanwhile. Do it ahead of time, in another thread or process, or on the "
            "device.\n"
            "[waits] Remove synchronisations such as .item() from the loop.\n"
            "[!compiled !graphs] If the host is busy with many short launches, use torch.compile or CUDA graphs.",
            plain=(
                "Let the host work while the device computes: launch the next work first, or use another thread.\n"
                "[waits] Remove waits for the device.\n"
                "[!graphs] If the host is busy with many short launches, replay them as a CUDA graph."
            ),
            flags=("--compile", "--batch"),
        ),
    ),
    "input-bound": (
        "Load data faster",
        Words(
            "Use more DataLoader workers, and decode ahead of time.\n"
            "[pageable] Set pin_memory=True and copy with non_blocking=True.",
            plain="Load and decode in other threads, ahead of time and into pinned memory, and copy asynchronously.",
            flags=("--workers", "--pin-memory"),
        ),
    ),
    "communication-bound": (
        "Hide or shrink communication",
        Words(
            "[training] Overlap it with the backward pass, and reduce gradients in a lower precision.\n"
            "[!training] Overlap it with computation that does not need its result.\n"
            "Compare the ranks, since one may be slower than the others.",
            plain=(
                "Start it earlier, on a separate stream beside the computation, and send fewer bytes. Compare the ranks, "
                "since one may be slower than the others."
            ),
        ),
    ),
    "memory-copy-bound": (
        "Copy less",
        Words(
            "Keep data on the device, and copy on a separate stream beside the computation.\n"
            "[pageable] Pin the host memory.",
            flags=("--pin-memory",),
        ),
    ),
    "compute-bound": (
        "Make the kernels cheaper",
        Words(
            "[!low_precision] Use lower precision (bf16, TF32) for matrix products.\n"
            "[!compiled] torch.compile fuses elementwise kernels, casts and layout changes.\n"
            "[compiled low_precision] The kernels are compiled and compute in a low precision already; try other shapes and "
            "batch sizes.",
            plain="Use lower precision where the result allows it (TF32, 16-bit types), fused kernels and better shapes.",
            flags=("--precision", "--compile"),
        ),
    ),
    "launch/short-kernel-bound": (
        "Launch fewer, longer kernels",
        Words(
            "[!compiled] torch.compile fuses kernels.\n"
            "[!graphs] CUDA graphs start many kernels at once.\n"
            "[graphs] Put more of the kernels into the graphs.\n"
            "[training !fused_optimizer] Create the optimizer with fused=True.\n"
            "[!serving] A larger batch makes each kernel longer.",
            plain="Fuse kernels, or give each kernel more work.\n[!graphs] Replay repeated work as a CUDA graph.",
            flags=("--compile", "--batch"),
        ),
    ),
    "idle": (
        "Find out what the device waits for",
        Words(
            "Look at the longest gaps in the timeline.\n"
            "[streams] Events between streams and unrecorded launches are possible causes."
        ),
    ),
    "incomplete": (
        "Record again",
        Words("Record again with fewer steps, so that the profiler's buffers hold all of them."),
    ),
    "too little": (
        "Record more of the program",
        Words("Record more steps, or for longer; a few activities may not be typical of it."),
    ),
    "cpu": (
        "See the top operators",
        Words(
            "Use fewer and larger operators, more threads (torch.set_num_threads), or a device.",
            plain="Use fewer and larger operations, more threads, or a device.",
            flags=("--threads",),
        ),
    ),
    "counters": (
        "Measure times in a second run",
        Words("Profile without {counters} for times, and use only the counters of this profile."),
    ),
    "ranges only": (
        "Record operators and kernels",
        Words(
            "tracekit capture --levels M,MLG records operators and kernels as well. If you run the profiler yourself, use "
            "{everything}.",
            plain="Ranges alone show no cause. Record with {everything}.",
        ),
    ),
    "nothing ran": (
        "Capture some work",
        Words(
            "Call the model while the profiler records, with {everything}.",
            plain="Let the program work while the profiler records, with {everything}.",
        ),
    ),
}
"""For every bound a title and general advice."""

EXPLAINED: Final = 0.8
"""A rule explains another's finding if its own has this part of the time at stake, or more."""
FUSIBLE_SHARE: Final = 0.2
"""If fusible kernels take less of the computation, only matrix and attention kernels are worth a look."""
_FUSIBLE: Final = ("elementwise", "copy")
"""Categories of kernels that compilers fuse. Those that quantise are not among them: they are operators that a compiler cannot look
into, and each fuses its steps already.
"""

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


def owned(results: Mapping[str, Result]) -> list[Owned]:
    """The findings of all results with their section, gravest first."""
    owner = {id(finding): name for name, result in results.items() for finding in result.findings}
    ranked = rank([finding for result in results.values() for finding in result.findings])
    return [Owned(finding, owner[id(finding)]) for finding in ranked]


def general(bound: Bound, stake: int, scope: Scope) -> Advice:
    """The general advice for this bound; `stake` is the time of the cost behind it, in ns."""
    title, words = GENERAL[bound]
    return Advice(title, words_for(words, scope), stake if stake > 0 else None)


def few_advice() -> Advice:
    """What to do if there is hardly anything to judge."""
    title, words = GENERAL["too little"]
    return Advice(title, words.text)


def host_code_advice(ns: int, place: str, basis: int, scope: Scope) -> Advice:
    """What to do about code of the host for which the device waits; `place` says where it is, as `, mostly in FRAME`."""
    words = Words(
        "Do this work less often, ahead of time, or in another thread or process.\n"
        "[!processor !serving] Work on tensors may also move to the device."
    )
    title = f"The device waits {format_share(ns / basis)} of the time for code{place}"
    return Advice(title, words_for(words, scope), ns)


def unseen_advice(ns: int, scope: Scope) -> Advice:
    """What to do when the trace shows nothing of what the host does meanwhile."""
    unseen = f"For {format_ns(ns)} no call of the host is recorded, so the trace cannot name the cause."
    words = Words(
        f"{unseen}\n[!stacks] Record {{names}} to see it.",
        plain=f"{unseen} Mark the code of the host with NVTX ranges to see it.",
        flags=("--stack",),
    )
    return Advice("Record what the host does while the device waits", words_for(words, scope), ns)


def category_advice(category: str, scope: Scope) -> Advice | None:
    """What makes the operators of this category cheaper on processors; None if nothing does in general."""
    lines = {
        "convolution": "[!compiled] The memory format torch.channels_last is often faster.\n",
        "gemm": "",
        "attention": "",
        "rnn": "",
    }
    if category not in lines:
        return None
    words = Words(
        f"{lines[category]}Use more threads (torch.set_num_threads) if the machine has idle cores.\n"
        '[!low_precision] Use torch.autocast("cpu", dtype=torch.bfloat16) if the processor computes in bfloat16.',
        plain="Use more threads if the machine has idle cores, and 16-bit types if the processor computes in them.",
        flags=("--threads", "--precision"),
    )
    return Advice(f"Make {category_name(category)} cheaper", words_for(words, scope))


def python_advice(ns: int, scope: Scope) -> Advice:
    """What to do when most time passes outside any operator."""
    words = Words(
        "[!stacks] Record {names} to see which code it is.\n"
        "Larger tensors and fewer operations in Python reduce this time (vectorised loops, torch.compile).",
        flags=("--compile", "--stack"),
    )
    return Advice("Look at the Python code between the operators", words_for(words, scope), ns)


def fusible_advice(kernels: pl.DataFrame, compute: int, scope: Scope) -> Advice | None:
    """What to do if elementwise kernels and casts take much of the computation; None if not, or if the program is compiled.

    `kernels` are the computing rows of the table by name; `compute` is their total time in ns, each moment once.
    """
    total = max(int(kernels["total_ns"].sum()), 1)
    fusible = int(kernels.filter(pl.col("category").is_in(_FUSIBLE))["total_ns"].sum())
    if fusible < FUSIBLE_SHARE * total or "pytorch" not in traits(scope) or "compiled" in traits(scope):
        return None
    words = Words(
        "torch.compile fuses chains of them into one kernel. Use one data type and one memory layout throughout.",
        flags=("--compile",),
    )
    ns = round(compute * fusible / total)
    title = f"Elementwise kernels, casts and layout changes take {of_time(ns, scope)}"
    return Advice(title, words_for(words, scope), ns)


def top_kernels_advice(kernels: pl.DataFrame, compute: int, scope: Scope) -> Advice:
    """What to do about a busy device, without advice that the program already follows according to its kernel names.

    `kernels` are the computing rows of the table by name, largest first; `compute` is their total time in ns.
    """
    names, times = kernels["name"].to_list(), kernels["total_ns"].to_list()
    total = max(sum(times), 1)
    already = sum(ns for name, ns in zip(names, times, strict=True) if _ALREADY.search(name))
    if already < total / 2:
        return general("compute-bound", 0, scope)
    top = ", ".join(
        f"{shorten_name(name, 36)} ({format_share(ns / total)})"
        for name, ns in zip(names[:2], times[:2], strict=True)
    )
    return Advice(
        "Most of the computation already uses fused or low-precision kernels",
        f"Try other shapes and batch sizes. The largest kernels in {format_ns(compute)} of computation: {top}.",
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
    loss: Advice | None,
    answers: Sequence[Advice] = (),
    first: Sequence[Advice] = (),
    last: Advice | None = None,
) -> tuple[Advice, ...]:
    """`first`, then the advice of findings and `answers` with the most time at stake, then `loss`, then `last`.

    `loss` is about the largest loss, of this `bound`, in general; it is left out if an answer explains the loss. It says
    where to look, so it stands below every answer but those about a small part of the loss. A finding that only restates a loss is left out.
    """
    useful = [
        of_finding(owned)
        for owned in findings
        if owned.finding.advice
        and owned.finding.id not in {advice.finding for advice in first}
        and _about_run(owned.finding)
        and not _restates(owned.finding.id)
        and not _explained(owned.finding.id, owned.finding.ns_at_stake, findings)
        and _matters(owned.finding, basis)
    ]
    answers = [each for each in answers if not _explained(HOST_CODE_ADVICE, each.ns_at_stake, findings)]
    useful = sorted([*useful, *answers], key=lambda advice: -(advice.ns_at_stake or 0))
    general_ = [loss] if loss and not first and not answers and not _answered(useful, bound, loss) else []
    rest = [*general_, *([last] if last else [])]
    kept = [*first, *useful][: ADVICE - len(rest)]
    little = [each for each in kept if general_ and _little(each, general_[0])]
    return (*(each for each in kept if each not in little), *general_, *little, *([last] if last else []))


def _little(advice: Advice, loss: Advice) -> bool:
    """Whether the advice is about a small part of the loss only."""
    stake = advice.ns_at_stake
    return stake is not None and stake < LITTLE * (loss.ns_at_stake or 0)


def _about_run(finding: Finding) -> bool:
    rule = rule_of(finding.id)
    return rule is None or rule.about_run


def _explained(what: str, ns: int | None, findings: Sequence[Owned]) -> bool:
    """Whether another finding explains nearly all of the time (ns) of what has this id."""
    return any(
        (rule := rule_of(owned.finding.id)) is not None
        and what in rule.explains
        and (owned.finding.ns_at_stake or 0) >= EXPLAINED * (ns or 0)
        for owned in findings
    )


def _restates(finding_id: str) -> bool:
    rule = rule_of(finding_id)
    return rule is not None and rule.restates


def _matters(finding: Finding, basis: int) -> bool:
    return finding.ns_at_stake is None or finding.ns_at_stake >= LEAST_SHARE * basis


def _answered(useful: list[Advice], bound: Bound, fallback: Advice) -> bool:
    """Whether a finding explains much of the loss: one of a rule about this bound, or any if no rule is about it."""
    of_bound = [advice for advice in useful if _answers(advice.finding, bound)]
    has_rule = any(bound in rule.answers for rule in RULES.values())
    candidates = of_bound if has_rule else [advice for advice in useful if not _restates(advice.finding)]
    return any((advice.ns_at_stake or 0) >= ANSWERS * (fallback.ns_at_stake or 0) for advice in candidates)


def _answers(finding_id: str, bound: Bound) -> bool:
    rule = rule_of(finding_id)
    return rule is not None and bound in rule.answers
