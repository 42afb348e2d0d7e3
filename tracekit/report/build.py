"""Run the analyses on a trace and put what they found into a `Report`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.analyses.registry import BUILT_IN, Analysis, analyses
from tracekit.analyses.result import Result
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.scope import Window as WindowKind
from tracekit.errors import TracekitError, UsageError
from tracekit.findings import Finding
from tracekit.readers import how_to_record
from tracekit.report.columns import column_of
from tracekit.report.figures_data import figures_of
from tracekit.report.format import format_excerpt
from tracekit.report.model import (
    Column,
    HealthItem,
    Report,
    Section,
    Step,
    Table,
    TraceInfo,
    Tree,
    Verdict,
    Window,
)
from tracekit.report.text import clean, clean_frame
from tracekit.report.tree import costliest
from tracekit.report.views import TableView, view_of
from tracekit.trace import Trace
from tracekit.verdict.capture_flags import section_with_flags, with_flags
from tracekit.verdict.decide import VERDICT_NEEDS, decide

__all__ = ["build_report", "build_section", "trace_info"]

_BUILT_IN: Final = frozenset(analysis.name for analysis in BUILT_IN)


def build_report(
    trace: Trace,
    *,
    window: WindowKind = "steps",
    step: str | None = None,
    only: Sequence[str] | None = None,
    top: int | None = None,
) -> Report:
    """The report of a trace.

    `window` and `step` choose the scope as in `tracekit.analyses.scope.select`; `only` names the sections to keep,
    in any order; `top` limits every table to its first rows (None: all rows). The verdict is the same whatever
    `only` says. An analysis of another package that fails becomes a section that says so; a failure of a built-in
    one is raised.

    Raises UsageError for an unknown analysis, a step pattern that matches nothing, or a `top` below 1.
    """
    if top is not None and top < 1:
        raise UsageError(f"--top {top} leaves nothing to show", remedy="use a number from 1 on")
    registered, broken = _registered()
    names = {analysis.name for analysis in registered}
    unknown = [name for name in only or () if name not in names]
    if unknown:
        raise UsageError(
            f"there is no analysis {unknown[0]!r}", remedy=f"choose from {', '.join(sorted(names))}"
        )
    scope = select(trace, window=window, step=step)
    results: dict[str, Result] = {}
    sections = []
    for analysis in registered:
        wanted = only is None or analysis.name in only
        if not wanted and analysis.name not in VERDICT_NEEDS:
            continue
        outcome = _run(analysis, trace, scope)
        if isinstance(outcome, Result):
            results[analysis.name] = outcome
        empty = isinstance(outcome, Result) and outcome.not_captured is not None
        if wanted and not (only is None and analysis.optional and empty):
            sections.append(_section(analysis, outcome, scope, top))
    verdict = _with_choices(_clean_verdict(decide(scope, results)), trace)
    return Report(
        trace=trace_info(trace),
        window=_window(scope),
        verdict=with_flags(verdict, trace.manifest),
        sections=tuple(
            section_with_flags(one, trace.manifest) for one in _said_once(sections, trace.meta.format)
        ),
        health=(*_health(trace), *broken),
    )


def build_section(trace: Trace, name: str, *, scope: Scope | None = None, top: int | None = None) -> Section:
    """One analysis as a section, with all its tables.

    Raises UsageError when no analysis has this name.
    """
    registered, _ = _registered()
    analysis = next((a for a in registered if a.name == name), None)
    if analysis is None:
        known = ", ".join(a.name for a in registered)
        raise UsageError(f"there is no analysis {name!r}", remedy=f"choose one of {known}")
    scope = scope or select(trace)
    section = _section(analysis, _run(analysis, trace, scope), scope, top)
    return section_with_flags(section, trace.manifest)


def _registered() -> tuple[tuple[Analysis, ...], tuple[HealthItem, ...]]:
    """All analyses; only the built-in ones, and a health item, when an installed package cannot be loaded."""
    try:
        return analyses(), ()
    except Exception as error:  # noqa: BLE001 - a broken package must not take the report down; it is reported
        item = HealthItem(
            "broken_extension", "warning", 1, "an installed analysis could not be loaded", _one_line(error)
        )
        return BUILT_IN, (item,)


def _run(analysis: Analysis, trace: Trace, scope: Scope) -> Result | str:
    """The result, or the one line of the error when the analysis belongs to another package."""
    if analysis.name in _BUILT_IN:
        return analysis.load()(trace, scope=scope)
    try:
        result: object = analysis.load()(trace, scope=scope)
    except Exception as error:  # noqa: BLE001 - it is another package's, and its section says what happened
        return _one_line(error)
    if not isinstance(result, Result):
        return f"TypeError: it returned {type(result).__name__}, not a Result"
    return result


def _one_line(error: Exception) -> str:
    text = str(error) if isinstance(error, TracekitError) else f"{type(error).__name__}: {error}"
    return clean(" ".join(text.split()))[:200]


def _section(analysis: Analysis, outcome: Result | str, scope: Scope, top: int | None) -> Section:
    if isinstance(outcome, str):
        return Section(analysis.name, analysis.question, "This analysis failed.", error=outcome)
    full = {name: clean_frame(frame) for name, frame in outcome.tables().items()}
    frames = tuple(_table(analysis.name, name, frame, scope, top) for name, frame in full.items())
    return Section(
        name=analysis.name,
        question=_question(analysis, scope),
        answer=clean(outcome.answer),
        not_captured=None if outcome.not_captured is None else clean(outcome.not_captured),
        findings=tuple(_clean_finding(finding) for finding in outcome.findings),
        tables=frames,
        # a table that was not captured is a None among the figures; it is not one of them
        scalars={
            name: clean(value) if isinstance(value, str) else value
            for name, value in outcome.scalars().items()
            if not (value is None and _is_frame(outcome, name))
        },
        figures=figures_of(analysis.name, full, on_cpu=scope.on_cpu),
    )


def _is_frame(result: Result, name: str) -> bool:
    annotations = {field.name: str(field.type) for field in dataclasses.fields(result)}
    return "DataFrame" in annotations[name]


def _table(section: str, name: str, frame: pl.DataFrame, scope: Scope, top: int | None) -> Table:
    view = view_of(section, name, frame.columns)
    columns = tuple(_column(column_of(key, dtype), view, scope) for key, dtype in frame.schema.items())
    table = Table(
        name=name,
        title=_CPU_WORDS.get(view.title, view.title) if scope.on_cpu else view.title,
        frame=frame,
        columns=columns,
        total_rows=frame.height,
        short=tuple(key for key in view.short if key in frame.columns),
        series=view.series,
        hidden=view.hidden,
        tree=Tree(largest_first=False) if view.tree else None,
    )
    shown = table if top is None else dataclasses.replace(table, frame=costliest(table, top))
    return dataclasses.replace(shown, tree=Tree()) if view.tree else shown


def _column(column: Column, view: TableView, scope: Scope) -> Column:
    """The column as this table calls it."""
    title = view.titles.get(column.name, column.title)
    return dataclasses.replace(column, title=_CPU_WORDS.get(title, title) if scope.on_cpu else title)


_CPU_WORDS: Final = {
    "stream": "thread",
    "on device": "time",
    "own on device": "own time",
    "host wait": "between operators",
    "Time per device": "Time of the processors",
    "Waiting per stream": "Waiting per thread",
    "Idle time by cause": "Time outside operators by cause",
    "Idle time by layer": "Time outside operators by layer",
    "Idle time by operator": "Time outside operators by operator",
    "Idle time by line of your code": "Time outside operators by line of your code",
    "of idle time": "of this time",
    "Longest gaps of a whole device, and why": "Longest stretches without an operator, and why",
}
"""Without a device a stream is a thread, and what runs are operators."""

_CPU_QUESTIONS: Final = {
    "breakdown": "Where did the processors' time go?",
    "idle": "What ran while no operator did?",
    "kernels": "Which operators take the time?",
    "ops": "Which operators take the time, and how often are they called?",
}


def _question(analysis: Analysis, scope: Scope) -> str:
    return _CPU_QUESTIONS.get(analysis.name, analysis.question) if scope.on_cpu else analysis.question


def _said_once(sections: Sequence[Section], format_: str) -> tuple[Section, ...]:
    """The sections; only the first that lacks the device's activities says how to capture them."""
    hints = {clean(how_to_record(what, format_)) for what in ("device", "everything")}
    kept, said = [], False
    for section in sections:
        text = section.not_captured
        if said and text is not None:
            parts = [part for part in text.split("; ") if part not in hints]
            section = dataclasses.replace(section, not_captured="; ".join(parts))  # noqa: PLW2901
        kept.append(section)
        said = said or (text is not None and any(hint in text for hint in hints))
    return tuple(kept)


def _clean_finding(finding: Finding) -> Finding:
    return dataclasses.replace(
        finding, title=clean(finding.title), evidence=clean(finding.evidence), advice=clean(finding.advice)
    )


def _clean_verdict(verdict: Verdict) -> Verdict:
    costs = tuple(dataclasses.replace(cost, label=clean(cost.label)) for cost in verdict.costs)
    layers = tuple(dataclasses.replace(cost, label=clean(cost.label)) for cost in verdict.layers)
    return dataclasses.replace(verdict, headline=clean(verdict.headline), costs=costs, layers=layers)


def _with_choices(verdict: Verdict, trace: Trace) -> Verdict:
    added = [] if trace.meta.excerpt is None else [format_excerpt(trace.meta.excerpt)]
    if trace.layer_ranges is not None:
        added.append(
            clean(f"Of the named ranges only those count as layers that {trace.layer_ranges.label} leaves.")
        )
    return dataclasses.replace(verdict, notes=(*added, *verdict.notes))


def trace_info(trace: Trace) -> TraceInfo:
    """What a report says of its trace."""
    meta = trace.meta
    return TraceInfo(
        path=clean(Path(meta.path).name),
        name=clean(meta.name if trace.manifest is None else trace.manifest.workload),
        format=meta.format,
        format_version=clean(meta.format_version),
        producer={clean(key): clean(value) for key, value in sorted(meta.producer.items())},
        rank=meta.rank,
        process_id=meta.process_ids[0] if meta.parts > 1 else None,
        world_size=meta.world_size,
        backend=None if meta.backend is None else clean(meta.backend),
        devices=tuple(dataclasses.replace(device, name=clean(device.name)) for device in meta.devices),
        captured=tuple(sorted(meta.captured)),
        excerpt=meta.excerpt,
        origin_utc_ns=meta.origin_utc_ns,
        event_count=meta.event_count,
        size_bytes=meta.size_bytes,
    )


def _window(scope: Scope) -> Window:
    rows = scope.steps.select("step", "name", "start", "end").rows() if scope.window == "steps" else []
    return Window(
        kind=scope.window,
        label=clean(scope.label),
        start_ns=scope.start,
        end_ns=scope.end,
        duration_ns=scope.duration,
        steps=tuple(Step(number, clean(name), start, end) for number, name, start, end in rows),
        on_cpu=scope.on_cpu,
        steps_inferred_from=None if scope.inferred_from is None else clean(scope.inferred_from),
    )


def _health(trace: Trace) -> tuple[HealthItem, ...]:
    return tuple(
        HealthItem(row["kind"], row["severity"], row["count"], clean(row["meaning"]), clean(row["example"]))
        for row in trace.health.iter_rows(named=True)
    )
