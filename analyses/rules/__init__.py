"""The rules that turn figures into findings: one rule, one record, one test.

Rules run when an analysis is done. They read its result, never compute again what that has, and fire only on evidence that
they cite. How grave a finding is, the share of the window at stake decides (`rule.by_share`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from tracekit.analyses.parts import DeviceParts, run_parts
from tracekit.analyses.program import program
from tracekit.analyses.recording import is_slowed, unrecorded_ns
from tracekit.analyses.registry import Analysis, get_analysis
from tracekit.analyses.result import Result
from tracekit.analyses.rules import (
    attention,
    breakdown,
    breakdown_communication,
    breakdown_devices,
    breakdown_processors,
    breakdown_search,
    breakdown_unequal,
    counters,
    idle,
    idle_calls,
    idle_compilation,
    idle_operators,
    idle_processors,
    idle_threads,
    kernels,
    kernels_autograd,
    kernels_blocks,
    kernels_loss,
    kernels_optimizer,
    kernels_slower,
    launches,
    launches_allocation,
    launches_once,
    layers,
    memory,
    memory_limit,
    memory_returned,
    ops,
    ops_embeddings,
    roofline,
    steps,
    steps_slow,
    steps_stalls,
)
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, by_share, with_flags
from tracekit.analyses.scope import Scope, once
from tracekit.analyses.traits import traits
from tracekit.findings import SHOWN_SHARE, Bound, Finding, rank
from tracekit.readers import RECORDABLE, flag_for
from tracekit.trace import Trace

__all__ = ["RULES", "findings_of", "rule_of", "run", "words_for"]

_MODULES: Final = (
    breakdown,
    breakdown_communication,
    breakdown_devices,
    breakdown_processors,
    breakdown_search,
    breakdown_unequal,
    steps,
    steps_slow,
    steps_stalls,
    idle,
    idle_calls,
    idle_compilation,
    idle_operators,
    idle_processors,
    idle_threads,
    layers,
    kernels,
    kernels_optimizer,
    kernels_autograd,
    kernels_blocks,
    kernels_loss,
    kernels_slower,
    attention,
    ops,
    ops_embeddings,
    roofline,
    launches,
    launches_allocation,
    launches_once,
    memory,
    memory_limit,
    memory_returned,
    counters,
)

RULES: Final[dict[str, Rule]] = {
    rule.id: rule
    for module in _MODULES
    for name in module.__all__
    if isinstance(rule := getattr(module, name), Rule)
}
"""Every rule by its id."""


def run(analysis: Analysis | str, of: Scope | Trace) -> Result:
    """The result of an analysis, or of the one of this name, on a scope, with the findings of its rules.

    Of a trace it is its default scope. Raises UsageError when no analysis has the name, and TypeError when the function of
    another package returns something else.

    >>> import tracekit
    >>> [finding.id for finding in run("kernels", tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).findings]
    ['optimizer_not_fused']
    """
    analysis = get_analysis(analysis) if isinstance(analysis, str) else analysis
    result: object = once(of, analysis.load())
    if not isinstance(result, Result):
        message = f"it returned {type(result).__name__}, not a Result"
        raise TypeError(message)
    found = once(of, lambda scope: findings_of(analysis.name, scope, result))
    return dataclasses.replace(result, findings=(*found, *result.findings))


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
        if evidence is not None and not _is_nothing(evidence, scope):
            yield _finding(rule, evidence, scope)


def _is_nothing(evidence: Evidence, scope: Scope) -> bool:
    """Whether what is at stake would be shown as 0.0 % of the window."""
    return 0 < (evidence.ns_at_stake or 0) < SHOWN_SHARE * scope.duration


def _finding(rule: Rule, evidence: Evidence, scope: Scope) -> Finding:
    at_stake = evidence.ns_at_stake
    if at_stake and evidence.waited_ns:
        at_stake += _without_recording(evidence.waited_ns, scope, of_host=True) - evidence.waited_ns
    elif at_stake and rule.analysis in _OF_IDLE_TIME and rule.answers <= _OF_THE_HOST:
        at_stake = _without_recording(at_stake, scope, of_host=bool(rule.answers))
    # The share is that of a window which the recording has made longer.
    title = evidence.title.replace(" of the time", f" of the {'recorded ' if is_slowed(scope) else ''}time")
    return Finding(
        id=rule.id,
        severity=evidence.severity or by_share(at_stake, scope.duration),
        title=title,
        evidence=evidence.text,
        advice=words_for(evidence.advice or rule.advice, scope, plain=rule.advice.plain),
        ns_at_stake=at_stake,
        stretches=evidence.stretches,
    )


_OF_IDLE_TIME: Final = frozenset({"breakdown", "idle", "launches"})
_OF_THE_HOST: Final[frozenset[Bound]] = frozenset({"host-bound", "launch/short-kernel-bound"})
"""What rules of these sections that explain no other bound find is idle time of a device."""


def _without_recording(idle_ns: int, scope: Scope, *, of_host: bool) -> int:
    """Idle time in ns without what the recording adds: waits for the host lose their part of that, others are at most what is left."""
    if unrecorded_ns(scope) is None:
        return idle_ns
    parts = run_parts(scope)
    if not isinstance(parts, DeviceParts):
        return idle_ns
    return parts.program_ns(idle_ns) if of_host else min(idle_ns, parts.idle - parts.recording)


_CONDITION: Final = re.compile(r"^\[(.+?)\] ", re.MULTILINE)


def words_for(advice: Advice, scope: Scope, *, plain: str | None = None) -> str:
    """The advice in the words for the program that the trace shows, with the flags of its profiler and of `tracekit capture`.

    `plain` is what a program without PyTorch is told where the advice says nothing for it.
    """
    text = advice.text
    if scope.on_cpu and advice.processor is not None:
        text = advice.processor
    if not scope.once(program, lambda: program(scope.trace)).pytorch:
        text = advice.plain or plain or text
    conditional = (
        _CONDITION.search(text) is not None
    )  # only then the traits are needed, which takes other analyses
    text = " ".join(_fitting(text, traits(scope)) if conditional else text.splitlines())
    for what in RECORDABLE:
        if f"{{{what}}}" in text:
            text = text.replace(f"{{{what}}}", flag_for(what, scope.trace.meta.format))
    return with_flags(text, advice.flags, scope.trace.manifest)


def _fitting(text: str, shown: frozenset[str]) -> Iterator[str]:
    """The lines of an advice that fit a run of these traits."""
    for line in text.splitlines():
        conditions = _CONDITION.match(line)
        words = conditions[1].split() if conditions else []
        if all((word.removeprefix("!") in shown) != word.startswith("!") for word in words):
            yield line[conditions.end() :] if conditions else line
