"""The report of a trace: its analyses run, their results weighed and presented."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tracekit.analyses.parts import conservation
from tracekit.analyses.registry import BUILT_IN, ON_REQUEST, Analysis, analyses, no_analysis
from tracekit.analyses.result import Result
from tracekit.analyses.rules import run
from tracekit.analyses.scope import Scope, Window, select
from tracekit.digest import digest_of
from tracekit.errors import TracekitError, UsageError
from tracekit.names import clean
from tracekit.report.model import HealthItem, Report, Section
from tracekit.report.possible import impossible
from tracekit.report.presentation import (
    health_items,
    present_section,
    present_verdict,
    present_window,
    sections,
    trace_info,
)
from tracekit.trace import Trace
from tracekit.verdict.decide import VERDICT_NEEDS, decide

__all__ = ["build_report", "build_section"]

_BUILT_IN: Final = frozenset(analysis.name for analysis in (*BUILT_IN, *ON_REQUEST))


def build_report(
    trace: Trace,
    *,
    window: Window = "steps",
    step: str | None = None,
    only: Sequence[str] | None = None,
    top: int | None = None,
    scope: Scope | None = None,
    digest: bool = False,
) -> Report:
    """The report of a trace.

    `window` and `step` choose the scope as in `tracekit.analyses.scope.select`, unless `scope` is given; `only` names the sections to keep,
    in any order; `top` limits every table to its first rows (None: all rows); with `digest` its JSON can be compared later as the trace
    can. The verdict is the same whatever
    `only` says. An analysis of another package that fails becomes a section that says so; a failure of a built-in
    one is raised.

    Raises UsageError for an unknown analysis, a step pattern that matches nothing, or a `top` below 1.
    """
    if top is not None and top < 1:
        raise UsageError(f"--top {top} leaves nothing to show", remedy="use 1 or more")
    registered, broken = _registered()
    registered = (*registered, *(one for one in ON_REQUEST if one.name in (only or ())))
    names = [analysis.name for analysis in registered]
    unknown = [name for name in only or () if name not in names]
    if unknown:
        raise no_analysis(unknown[0], names)
    scope = scope or select(trace, window=window, step=step)
    outcomes = {
        analysis.name: _run(analysis, scope)
        for analysis in registered
        if only is None or analysis.name in only or analysis.name in VERDICT_NEEDS
    }
    results = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Result)}
    own = {name: result for name, result in results.items() if name in _BUILT_IN}
    shown = [
        (analysis, outcomes[analysis.name])
        for analysis in registered
        if (analysis.name in only if only is not None else not _left_out(analysis, results))
    ]
    return Report(
        trace=trace_info(trace),
        window=present_window(scope),
        verdict=present_verdict(decide(scope, results), trace),
        sections=sections(shown, scope, top),
        health=(*health_items(trace), *broken, *_broken_laws(scope), *impossible(own)),
        digest=digest_of(scope) if digest else None,
    )


def _left_out(analysis: Analysis, results: Mapping[str, Result]) -> bool:
    """Whether an optional analysis has nothing to say on this trace."""
    result = results.get(analysis.name)
    return analysis.optional and result is not None and result.not_captured is not None


def _broken_laws(scope: Scope) -> Iterator[HealthItem]:
    for law in conservation(scope):
        if not law.holds:
            yield HealthItem(
                "broken_law",
                "error",
                1,
                "the parts do not sum to the whole, which is a fault of tracekit",
                law.law,
            )


def build_section(
    trace: Trace, name: str, *, scope: Scope | None = None, top: int | None = None, job: Sequence[Scope] = ()
) -> Section:
    """One analysis as a section, with all its tables; that of a `job`, if its ranks are given.

    Raises UsageError when no analysis has this name.
    """
    registered = (*_registered()[0], *ON_REQUEST)
    analysis = next((a for a in registered if a.name == name), None)
    if analysis is None:
        raise no_analysis(name, [a.name for a in registered])
    scope = scope or select(trace)
    outcome = analysis.load()(job) if job else _run(analysis, scope)
    lacks = outcome.not_captured if isinstance(outcome, Result) else None
    return present_section(analysis, outcome, scope, top, lacks)


def _registered() -> tuple[tuple[Analysis, ...], tuple[HealthItem, ...]]:
    """All analyses; only the built-in ones, and a health item, when an installed package cannot be loaded."""
    try:
        return analyses(), ()
    except Exception as error:  # noqa: BLE001 - a broken package must not take the report down; it is reported
        item = HealthItem(
            "broken_extension", "warning", 1, "an installed analysis could not be loaded", _one_line(error)
        )
        return BUILT_IN, (item,)


def _run(analysis: Analysis, scope: Scope) -> Result | str:
    """The result, or the one line of the error when the analysis belongs to another package."""
    if analysis.name in _BUILT_IN:
        return run(analysis, scope)
    try:
        return run(analysis, scope)
    except Exception as error:  # noqa: BLE001 - it is another package's, and its section says what happened
        return _one_line(error)


def _one_line(error: Exception) -> str:
    text = str(error) if isinstance(error, TracekitError) else f"{type(error).__name__}: {error}"
    return clean(" ".join(text.split()))[:200]
