"""The rules that turn figures into findings: one rule, one record, one file, one test.

Rules run when an analysis is done. They read its result, never compute again what that has, and fire only on evidence that
they cite. How grave a finding is, the share of the window at stake decides (`rule.by_share`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tracekit.analyses.program import program
from tracekit.analyses.rules import (
    allocation_calls,
    blocking_synchronisation,
    cold_start,
    compilation_in_steps,
    counter_replay,
    damaged_capture,
    data_loading,
    exposed_communication,
    host_bound_launches,
    incomplete_capture,
    layout_conversions,
    long_gaps,
    low_part_of_step,
    low_utilisation,
    memory_near_limit,
    ncu_coverage,
    no_tensor_cores,
    optimizer_not_fused,
    other_too_large,
    pageable_copies,
    profiler_overhead,
    short_kernels,
    short_operators,
    small_copies,
    step_variability,
    unfused_attention,
    value_reads,
    whole_graphs,
)
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, by_share, with_flags
from tracekit.analyses.scope import Scope
from tracekit.facts.capture_flags import FLAGS, flag_for
from tracekit.findings import Finding, rank

if TYPE_CHECKING:
    from tracekit.analyses.result import Result

__all__ = ["RULES", "findings_of", "rule_of", "words_for"]

_MODULES: Final = (
    allocation_calls,
    blocking_synchronisation,
    cold_start,
    compilation_in_steps,
    counter_replay,
    damaged_capture,
    data_loading,
    exposed_communication,
    host_bound_launches,
    incomplete_capture,
    layout_conversions,
    long_gaps,
    low_part_of_step,
    low_utilisation,
    memory_near_limit,
    ncu_coverage,
    no_tensor_cores,
    optimizer_not_fused,
    other_too_large,
    pageable_copies,
    profiler_overhead,
    short_kernels,
    short_operators,
    small_copies,
    step_variability,
    unfused_attention,
    value_reads,
    whole_graphs,
)

RULES: Final[dict[str, Rule]] = {module.RULE.id: module.RULE for module in _MODULES}
"""Every rule by its id."""


def rule_of(finding_id: str) -> Rule | None:
    """The rule behind a finding; None for one of another package."""
    return RULES.get(finding_id)


def findings_of(analysis: str, scope: Scope, result: Result) -> tuple[Finding, ...]:
    """What the rules of an analysis find in its result, gravest first."""
    return tuple(rank(list(_fired(analysis, scope, result))))


def _fired(analysis: str, scope: Scope, result: Result) -> Iterator[Finding]:
    here = "processor" if scope.on_cpu else "device"
    for rule in RULES.values():
        if (
            rule.analysis != analysis
            or rule.runs not in ("any", here)
            or (rule.runs == here and not scope.duration)
        ):
            continue
        evidence = rule.evidence(scope, result)
        if evidence is not None:
            yield _finding(rule, evidence, scope)


def _finding(rule: Rule, evidence: Evidence, scope: Scope) -> Finding:
    return Finding(
        id=rule.id,
        severity=evidence.severity or by_share(evidence.ns_at_stake, scope.duration),
        title=evidence.title,
        evidence=evidence.text,
        advice=words_for(evidence.advice or rule.advice, scope, plain=rule.advice.plain),
        ns_at_stake=evidence.ns_at_stake,
    )


def words_for(advice: Advice, scope: Scope, *, plain: str | None = None) -> str:
    """The advice in the words for the program that the trace shows, with the flags of its profiler and of `tracekit capture`.

    `plain` is what a program without PyTorch is told where the advice says nothing for it.
    """
    text = advice.text
    if scope.on_cpu and advice.processor is not None:
        text = advice.processor
    if not program(scope.trace).pytorch:
        text = advice.plain or plain or text
    for what in FLAGS:
        if f"{{{what}}}" in text:
            text = text.replace(f"{{{what}}}", flag_for(what, scope.trace.meta.format))
    return with_flags(text, advice.flags, scope.trace.manifest)
