"""An analysis with what its rules find."""

from __future__ import annotations

import dataclasses

from tracekit.analyses.registry import Analysis
from tracekit.analyses.result import Result
from tracekit.analyses.rules import findings_of
from tracekit.analyses.scope import Scope, once
from tracekit.trace import Trace

__all__ = ["run"]


def run(analysis: Analysis, of: Scope | Trace) -> Result:
    """The result of an analysis on a scope (of a trace: on its default scope), with the findings of its rules.

    Raises TypeError when the function of another package returns something else.

    >>> import tracekit
    >>> from tracekit.analyses.registry import get_analysis
    >>> [finding.id for finding in run(get_analysis("kernels"), tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).findings]
    ['optimizer_not_fused']
    """
    result: object = once(of, analysis.load())
    if not isinstance(result, Result):
        message = f"it returned {type(result).__name__}, not a Result"
        raise TypeError(message)
    found = once(of, lambda scope: findings_of(analysis.name, scope, result))
    return dataclasses.replace(result, findings=(*found, *result.findings))
