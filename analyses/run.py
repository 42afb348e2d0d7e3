"""An analysis with what its rules find."""

from __future__ import annotations

import dataclasses

from tracekit.analyses.registry import Analysis, get_analysis
from tracekit.analyses.result import Result
from tracekit.analyses.rules import findings_of
from tracekit.analyses.scope import Scope, once
from tracekit.trace import Trace

__all__ = ["run"]


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
