"""What every analysis returns, and the registry that makes an analysis show up everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

import polars as pl

from tracekit.analyses.scope import Scope
from tracekit.errors import UsageError
from tracekit.findings import Finding
from tracekit.trace import Trace

__all__ = ["BUILT_IN", "Analysis", "AnalysisFunction", "Result", "analyses", "get_analysis"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Result:
    """The base of all results.

    Subclasses add frames and scalars as fields, with units in their names. `answer` is one sentence;
    `not_captured` says what the profile lacks and which flag captures it, and is None when the question could be
    answered.
    """

    answer: str
    not_captured: str | None = None
    findings: tuple[Finding, ...] = ()

    def tables(self) -> dict[str, pl.DataFrame]:
        """The result's frames by field name; one that is None was not captured and is left out."""
        return {name: value for name, value in self._own_fields() if isinstance(value, pl.DataFrame)}

    def scalars(self) -> dict[str, int | float | str | None]:
        """The result's plain figures by field name."""
        return {name: value for name, value in self._own_fields() if value is None or isinstance(value, int | float | str)}

    def _own_fields(self) -> list[tuple[str, Any]]:
        base = {field.name for field in dataclasses.fields(Result)}
        return [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in base]


class AnalysisFunction(Protocol):
    """A pure function of a trace and a scope."""

    def __call__(self, trace: Trace, *, scope: Scope | None = None) -> Result:
        """The result for this scope; without one, for the default scope of the trace."""
        ...


@dataclass(frozen=True, slots=True)
class Analysis:
    """A registry entry: its name, the question it answers, and where the function lives (`module:function`)."""

    name: str
    question: str
    target: str

    def load(self) -> AnalysisFunction:
        """Import the function."""
        module, _, attribute = self.target.partition(":")
        function: Callable[..., Result] = getattr(import_module(module), attribute)
        return function


BUILT_IN: Final = (
    Analysis("breakdown", "Where did the device's time go?", "tracekit.analyses.breakdown:breakdown"),
    Analysis("steps", "How long is a step, and how steady?", "tracekit.analyses.steps:steps"),
    Analysis("idle", "What did each stream wait for?", "tracekit.analyses.idle:idle"),
    Analysis("kernels", "Which kernels take the time?", "tracekit.analyses.kernels:kernels"),
    Analysis("launches", "Does the host launch work fast enough?", "tracekit.analyses.launches:launches"),
    Analysis("overlap", "Is communication hidden behind computation?", "tracekit.analyses.overlap:overlap"),
    Analysis("memory", "What is copied, and how full is the memory?", "tracekit.analyses.memory:memory"),
    Analysis("counters", "What did the hardware counters measure?", "tracekit.analyses.counters:counters"),
)
"""The analyses that come with tracekit, in the order of the report."""

ENTRY_POINT_GROUP: Final = "tracekit.analyses"


def analyses() -> tuple[Analysis, ...]:
    """The built-in analyses, then those of installed packages (entry points of the group `tracekit.analyses`).

    An entry point's value is the function; the question is the first line of the function's docstring.
    """
    found = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.name):
        function = point.load()
        question = (function.__doc__ or point.name).strip().splitlines()[0]
        found.append(Analysis(point.name, question, point.value))
    return (*BUILT_IN, *found)


def get_analysis(name: str) -> Analysis:
    """The analysis of this name.

    Raises UsageError when there is none.
    """
    for analysis in analyses():
        if analysis.name == name:
            return analysis
    known = ", ".join(analysis.name for analysis in analyses())
    raise UsageError(f"there is no analysis {name!r}", remedy=f"choose one of {known}")
