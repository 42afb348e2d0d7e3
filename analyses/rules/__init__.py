"""The rules that turn figures into findings: one rule, one file, one test.

A rule is a module with one function `check(trace, scope, result) -> Finding | None`; `RULES` names the analysis
whose result it looks at. A rule never recomputes what the analysis has, and fires only on evidence that it cites.
Where a trace shows no PyTorch, what `facts.plain_advice` has takes the place of a rule's own advice.
"""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar

from tracekit.analyses.program import program
from tracekit.facts.plain_advice import FINDINGS
from tracekit.findings import Finding, rank
from tracekit.trace import Trace

if TYPE_CHECKING:
    from tracekit.analyses.result import Result
    from tracekit.analyses.scope import Scope

__all__ = ["RULES", "evaluate"]

_AnyResult = TypeVar("_AnyResult", bound="Result")

RULES: Final[dict[str, tuple[str, ...]]] = {
    "breakdown": ("low_utilisation", "exposed_communication", "incomplete_capture", "damaged_capture"),
    "steps": ("data_loading", "step_variability", "low_part_of_step"),
    "idle": ("host_bound_launches", "compilation_in_steps", "short_operators", "value_reads", "long_gaps"),
    "kernels": (
        "no_tensor_cores",
        "unfused_attention",
        "layout_conversions",
        "optimizer_not_fused",
        "other_too_large",
        "whole_graphs",
    ),
    "launches": (
        "short_kernels",
        "blocking_synchronisation",
        "allocation_calls",
        "cold_start",
        "profiler_overhead",
    ),
    "memory": ("pageable_copies", "small_copies", "memory_near_limit"),
    "counters": ("counter_replay", "ncu_coverage"),
}
"""Analysis → the modules of its rules, in this package."""


def evaluate(analysis: str, trace: Trace, scope: Scope, result: _AnyResult) -> _AnyResult:
    """The same result with the findings of all rules of this analysis, gravest first."""
    findings: list[Finding] = []
    plain = {} if program(trace).pytorch else FINDINGS
    for name in RULES.get(analysis, ()):
        finding: Finding | None = import_module(f"{__name__}.{name}").check(trace, scope, result)
        if finding is not None:
            advice = plain.get(finding.id, finding.advice) if finding.advice else finding.advice
            findings.append(dataclasses.replace(finding, advice=advice))
    return dataclasses.replace(result, findings=tuple(rank(findings)))
