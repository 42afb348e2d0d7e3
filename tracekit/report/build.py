"""Run the analyses on a trace and put what they found into a `Report`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.analyses.registry import BUILT_IN, Analysis, analyses
from tracekit.analyses.result import Result
from tracekit.analyses.run import run
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.scope import Window as WindowKind
from tracekit.analyses.tables import TableView, column_of, processor_word
from tracekit.errors import TracekitError, UsageError
from tracekit.facts.capture_flags import how_to_record
from tracekit.findings import Finding
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
from tracekit.trace import Trace
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
        outcome = _run(analysis, scope)
        if isinstance(outcome, Result):
            results[analysis.name] = outcome
        empty = isinstance(outcome, Result) and outcome.not_captured is not None
        if wanted and not (only is None and analysis.optional and empty):
            sections.append(_section(analysis, outcome, scope, top))
    verdict = _with_choices(_clean_verdict(decide(scope, results)), trace)
    return Report(
        trace=trace_info(trace),
        window=_window(scope),
        verdict=verdict,
        sections=_said_once(sections, trace.meta.format),
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
    return _section(analysis, _run(analysis, scope), scope, top)


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
        result: object = run(analysis, scope)
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
    frames = tuple(_table(analysis, name, frame, scope, top) for name, frame in full.items())
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


def _table(analysis: Analysis, name: str, frame: pl.DataFrame, scope: Scope, top: int | None) -> Table:
    view = analysis.tables().get(name) or TableView(
        name.replace("_", " ").capitalize(), short=" ".join(frame.columns[:6])
    )
    columns = tuple(_column(column_of(key, dtype), view, scope) for key, dtype in frame.schema.items())
    short = view.columns if view.short is None else view.short
    table = Table(
        name=name,
        title=(scope.on_cpu and view.processor_title) or view.title,
        frame=frame,
        columns=columns,
        total_rows=frame.height,
        short=tuple(key for key in short.split() if key in frame.columns),
        series=view.series,
        hidden=tuple(view.hidden.split()),
        tree=Tree(largest_first=False) if view.tree else None,
        main=view.main,
    )
    shown = table if top is None else dataclasses.replace(table, frame=costliest(table, top))
    return dataclasses.replace(shown, tree=Tree()) if view.tree else shown


def _column(column: Column, view: TableView, scope: Scope) -> Column:
    """The column as this table calls it."""
    title = view.titles.get(column.name, column.title)
    return dataclasses.replace(column, title=processor_word(title) if scope.on_cpu else title)


def _question(analysis: Analysis, scope: Scope) -> str:
    return (scope.on_cpu and analysis.on_processors) or analysis.question


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
