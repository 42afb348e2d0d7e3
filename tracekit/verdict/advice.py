"""The advice of a verdict: that of the findings, by the time at stake, and general advice if no finding explains the loss."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import polars as pl

from tracekit.analyses.program import program
from tracekit.analyses.result import Result, has_host_work
from tracekit.analyses.rules import RULES, rule_of, words_for
from tracekit.analyses.rules.idle_time import caused_idle, waits_before_graphs
from tracekit.analyses.rules.rule import (
    HOST_CODE_ADVICE,
    WARNING_SHARE,
    longest_named,
    longest_work,
    of_time,
)
from tracekit.analyses.rules.rule import Advice as Words
from tracekit.analyses.rules.steps_slow import STEP_VARIABILITY
from tracekit.analyses.scope import Scope
from tracekit.analyses.stalls import stalled_ns
from tracekit.analyses.start import split_start
from tracekit.facts.idle_names import CAUSES
from tracekit.facts.units import format_ns, format_share
from tracekit.findings import Bound, Finding, rank
from tracekit.names import category_name, shorten_name
from tracekit.verdict.general_advice import BLOCKED, GENERAL
from tracekit.verdict.idle_words import LONGEST, HostCode
from tracekit.verdict.model import Advice

__all__ = [
    "ADVICE",
    "LEAST_CODE_SHARE",
    "LITTLE",
    "Owned",
    "category_advice",
    "choose",
    "few_advice",
    "general",
    "host_code_advice",
    "mpi_advice",
    "of_finding",
    "operator_advice",
    "outside_advice",
    "owned",
    "python_advice",
    "restates",
    "told_by",
    "unseen_advice",
]

ADVICE: Final = 3
LEAST_SHARE: Final = 0.01
"""Advice that could save less than this share of the basis stays in its section."""
LITTLE: Final = 0.2
"""Advice with less of the time at stake than this is little, where hardly any work was recorded."""
LEAST_CODE_SHARE: Final = 0.05
"""From this share on, the advice names the code, or the calls, for which the device waits."""
ANSWERS: Final = 0.5
"""A finding answers a loss if it explains half of it; otherwise the verdict gives the general advice as well, and first."""

_AT_START: Final = "before the first kernel of the recording"
_RECORD_LATER: Final = (
    "Record from a later step on. If only the first step does this work, it costs the others nothing; if they do it too, "
    "they do it while the device works."
)
"""Of what the device waits for only at the start of a recording."""

_OWN_FUNCTION: Final = r"^(?!Compiled|Checkpoint)[A-Za-z_]\w*(?<!\d)$"
"""Names of the program's own functions of autograd; those of PyTorch end with a digit."""

SAME: Final[dict[Bound, str]] = {"launch/short-kernel-bound": "host_bound_launches"}
"""By bound, the finding that advises the same as the general advice."""

NARROWER: Final = frozenset({"many_embeddings", "optimizer_not_fused", "updates_one_by_one"})
"""Findings about launches of one kind, with a remedy of their own."""

WAITING: Final = frozenset({"host-bound", "input-bound", "launch/short-kernel-bound", "idle"})
"""The bounds of which the longest gaps are the evidence."""

EXPLAINED: Final = 0.8
"""A rule explains another's finding if its own has this part of the time at stake, or more."""


class Owned(msgspec.Struct, frozen=True):
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
    places = caused_idle(scope, *CAUSES).stretches if bound in WAITING else ()
    text = words_for(words, scope)
    if "graph" in text and (before := waits_before_graphs(scope)):
        text = f"{text} {before}"
    return Advice(title, text, stake if stake > 0 else None, stretches=places)


def few_advice() -> Advice:
    """What to do if there is hardly anything to judge."""
    title, words = GENERAL["too little"]
    return Advice(title, words.text)


def host_code_advice(code: HostCode, basis: int, scope: Scope) -> Advice:
    """What to do about code of the host for which the device waits. What the first step has of it only since the device was empty is
    not at stake; nothing is if hardly any is left.
    """
    share, caused = format_share(code.ns / basis), caused_idle(scope, code.cause)
    places, once = caused.stretches, 0
    if scope.window == "steps" and caused.ns:
        once = round(code.ns * split_start(scope, caused.columns("start", "duration_ns"))[1] / caused.ns)
    at_stake, least = code.ns - once, LEAST_CODE_SHARE * basis
    what = BLOCKED[code.blocked][0] if code.blocked else ""
    title = (
        f"{what} {share} of the time{code.place}"
        if what
        else f"The device waits {code.words} {share} of the time{code.place}"
    )
    if once >= EXPLAINED * code.ns and at_stake < least:
        return Advice(f"{title}, once, {_AT_START}", _RECORD_LATER, None, stretches=places)
    started = f" {format_ns(once)} of this happens only once, {_AT_START}." if once >= least else ""
    if code.blocked:
        return Advice(
            title, f"{words_for(BLOCKED[code.blocked][1], scope)}{started}", at_stake, stretches=places
        )
    less = "Do this work less often, ahead of time, or in another thread"
    meanwhile = ", or launch the device's next work first, if that work does not need the result."
    binary = "\nBinary output needs no formatting." if code.formats else ""
    words = Words(
        f"{less} or process{meanwhile}{binary}",
        plain=f"{less}{meanwhile}{binary}",
    )
    return Advice(title, f"{words_for(words, scope)}{started}", at_stake, stretches=places)


def mpi_advice(results: Mapping[str, Result], basis: int, scope: Scope) -> Advice | None:
    """What to do about calls of MPI for which the device waits; None if they take little."""
    rows = results["idle"].tables()["by_operator"].filter(pl.col("operator").str.starts_with("MPI_"))
    calls = (
        rows.group_by("operator").agg(pl.col("total_ns").sum()).sort("total_ns", "operator", descending=True)
    )
    ns = int(calls["total_ns"].sum())
    if ns < LEAST_CODE_SHARE * basis:
        return None
    named = " and ".join(f"{name} ({format_ns(each)})" for name, each in calls.head(2).rows())
    text = (
        "Let the device work meanwhile: start the exchange with MPI_Isend and MPI_Irecv, launch work that does not need it, and "
        "only then wait. Compare the ranks, since this one may wait for another."
    )
    of_mpi = pl.col("operator").cast(pl.String).str.starts_with("MPI_")
    places = caused_idle(scope, *CAUSES, wanted=of_mpi).stretches
    title = f"The device waits for MPI {of_time(ns, scope)}, mostly in {named}"
    return Advice(title, text, ns, stretches=places)


def unseen_advice(ns: int, scope: Scope) -> Advice:
    """What to do when the trace shows nothing of what the host does meanwhile."""
    unseen = f"For {format_ns(ns)}, no host call is recorded, so the trace cannot name the cause."
    words = (
        Words(f"{unseen} Record the host as well ({{everything}}).")
        if not has_host_work(scope.trace)
        else Words(
            f"{unseen}\n[!stacks] Record {{names}} to see it.",
            plain=f"{unseen} Mark the host code with NVTX ranges to see it.",
            flags=("--stack",),
        )
    )
    title, stretches = (
        "Record what the host does while the device waits",
        caused_idle(scope, *CAUSES).stretches,
    )
    return Advice(title, words_for(words, scope), ns, stretches=stretches)


def category_advice(category: str, share: float, scope: Scope) -> Advice | None:
    """What makes the operators of this category, with this share of the time, cheaper on processors; None if nothing does in general."""
    lines = {
        "convolution": "[!compiled] The memory format torch.channels_last is often faster.\n",
        "gemm": "",
        "attention": "",
        "rnn": "",
    }
    if category not in lines:
        return None
    # A program that stood still had too few cores for its threads already.
    still = stalled_ns(scope) >= WARNING_SHARE * scope.duration
    threads = "" if still else "Use more threads (torch.set_num_threads) if the machine has idle cores.\n"
    words = Words(
        f"{lines[category]}{threads}"
        '[!low_precision] Use torch.autocast("cpu", dtype=torch.bfloat16) if the processor computes in bfloat16.',
        plain="Use 16-bit types if the processor computes in them."
        if still
        else "Use more threads if the machine has idle cores, and 16-bit types if the processor computes in them.",
        flags=("--precision",) if still else ("--threads", "--precision"),
    )
    said = words_for(words, scope)
    if not said:
        return None
    title = f"Make {category_name(category)} cheaper ({format_share(share)} of the time)"
    return Advice(title, said, stretches=longest_work(scope, category))


def operator_advice(name: str, share: float, scope: Scope) -> Advice:
    """What to do about the operator of this name, which has no remedy of its own; `share` is its part of the time."""
    short, words = shorten_name(name, LONGEST), general("cpu", 0, scope).advice
    if program(scope.trace).pytorch and re.match(_OWN_FUNCTION, name):
        words = (
            f"{short} is a torch.autograd.Function of the program: this is the time of its own code, without the operators that it calls. "
            "Write it with operators of PyTorch on whole tensors."
        )
    elif re.fullmatch(r"aten::(arg)?sort", name):
        words = f"torch.topk is faster if only the largest or smallest values are needed. {words}"
    return Advice(
        f"Look at {short} first ({format_share(share)} of the time)",
        words,
        stretches=longest_named(scope, name),
    )


def python_advice(ns: int, scope: Scope) -> Advice:
    """What to do when most time passes outside any operator."""
    words = Words(
        "[!stacks] Record {names} to see which code it is.\n"
        "Larger tensors and fewer operations in Python reduce this time (vectorised loops).\n"
        "[!compiled] torch.compile does so for the operations of a model.",
        flags=("--compile", "--stack"),
    )
    places = caused_idle(scope, "python").stretches
    return Advice(
        "Look at the Python code between the operators", words_for(words, scope), ns, stretches=places
    )


def outside_advice(ns: int, scope: Scope) -> Advice:
    """What to do when most time passes outside any operator, and the trace does not show in what."""
    words = Words(
        "[!stacks] Record {names} to see which code runs there.\n"
        "[stacks] tracekit view shows the code around the longest gaps.\n"
        "[python] Another thread of the program may hold the interpreter lock meanwhile.",
        flags=("--stack",),
    )
    return Advice("Find out what runs between the operators", words_for(words, scope), ns)


def of_finding(owned: Owned) -> Advice:
    """The advice of a finding."""
    finding = owned.finding
    return Advice(
        finding.title,
        finding.advice,
        finding.ns_at_stake,
        finding=finding.id,
        analysis=owned.section,
        severity=finding.severity,
        stretches=finding.stretches,
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

    `loss` is about the largest loss, of this `bound`, in general; it is left out if an answer explains half of the loss, and else
    stands above the answers about less. A finding that only restates a loss is left out. An answer about the host, or a finding about
    one kind of launches, that has half of the time between launches stands before the advice about these.
    """
    useful = [
        of_finding(owned)
        for owned in findings
        if owned.finding.advice
        and owned.finding.id not in {advice.finding for advice in first}
        and _about_run(owned.finding)
        and not restates(owned.finding.id)
        and not _explained(owned.finding.id, owned.finding.ns_at_stake, findings)
        and _matters(owned.finding, basis)
    ]
    answers = [each for each in answers if not _explained(HOST_CODE_ADVICE, each.ns_at_stake, findings)]
    of_host = [each for each in answers if each.analysis != "kernels"]
    narrow = [each for each in useful if each.finding in NARROWER]
    told = max((each.ns_at_stake or 0 for each in (*of_host, *narrow)), default=0)
    others = [each for each in useful if each not in narrow]
    useful = sorted(
        [*of_host, *narrow, *others, *(each for each in answers if each not in of_host)],
        key=lambda advice: -_rank(advice, told),
    )
    started = sum(each.ns_at_stake or 0 for each in first)
    general_ = [loss] if loss and not answers and not _answered(useful, bound, loss) else []
    general_ = [] if any(each.finding == SAME.get(bound) for each in useful) else general_
    general_ = [each for each in general_ if not first or started < ANSWERS * (each.ns_at_stake or 0)]
    rest = [*general_, *([last] if last else [])]
    kept = [*first, *useful][: ADVICE - len(rest)]
    little = [each for each in kept[len(first) :] if general_ and _little(each, bound, general_[0])]
    return (*(each for each in kept if each not in little), *general_, *little, *([last] if last else []))


def _rank(advice: Advice, told: int) -> int:
    """The time at stake in ns, of launches at most that of the largest answer or narrower finding (`told`) if this has half of it."""
    stake = advice.ns_at_stake or 0
    return min(stake, told) if advice.finding in SAME.values() and told >= ANSWERS * stake else stake


def _little(advice: Advice, bound: Bound, loss: Advice) -> bool:
    """Whether the advice is about a small part of the loss only, or about something else that costs less."""
    stake = advice.ns_at_stake
    rule = rule_of(advice.finding)
    if stake is None:  # what it saves is unknown, and it is no reason for the loss
        return rule is not None and bound not in rule.answers
    least = 1.0 if rule and rule.answers and bound not in rule.answers else ANSWERS
    return stake < least * (loss.ns_at_stake or 0)


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


def told_by(answer: Advice, finding: Finding) -> bool:
    """Whether nearly all that a finding about slow steps has at stake passes in what the answer is about."""
    inside = sum(
        min(end, last) - max(start, first)
        for start, end in answer.stretches
        for first, last in finding.stretches
        if min(end, last) > max(start, first)
    )
    return finding.id == STEP_VARIABILITY.id and inside >= EXPLAINED * max(finding.ns_at_stake or 0, 1)


def restates(finding_id: str) -> bool:
    """Whether a finding only says how much time is lost, or where."""
    rule = rule_of(finding_id)
    return rule is not None and rule.restates


def _matters(finding: Finding, basis: int) -> bool:
    return finding.ns_at_stake is None or finding.ns_at_stake >= LEAST_SHARE * basis


def _answered(useful: list[Advice], bound: Bound, fallback: Advice) -> bool:
    """Whether a finding explains much of the loss: one of a rule about this bound, or any if no rule is about it."""
    of_bound = [advice for advice in useful if _answers(advice.finding, bound)]
    has_rule = any(bound in rule.answers for rule in RULES.values())
    candidates = of_bound if has_rule else [advice for advice in useful if not restates(advice.finding)]
    return any((advice.ns_at_stake or 0) >= ANSWERS * (fallback.ns_at_stake or 0) for advice in candidates)


def _answers(finding_id: str, bound: Bound) -> bool:
    rule = rule_of(finding_id)
    return rule is not None and bound in rule.answers
