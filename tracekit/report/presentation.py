"""How a report presents what analyses give: sections, tables and columns, texts made fit to be shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.analyses.completeness import completeness
from tracekit.analyses.counters.analysis import has_ranges, how_to_record_device
from tracekit.analyses.registry import Analysis
from tracekit.analyses.result import NotCaptured, Result, TableView, column_of, processor_word
from tracekit.analyses.scope import Scope
from tracekit.findings import Finding
from tracekit.names import clean, clean_frames
from tracekit.readers import how_to_record
from tracekit.report.figures_data import figures_of
from tracekit.report.format import format_excerpt
from tracekit.report.kept import limited
from tracekit.report.model import Column, HealthItem, Section, Step, Table, TraceInfo, Tree, Window
from tracekit.trace import Trace
from tracekit.verdict.model import Verdict

__all__ = [
    "file_name",
    "health_items",
    "present_section",
    "present_verdict",
    "present_window",
    "sections",
    "trace_info",
    "trace_infos",
]


def sections(
    outcomes: Sequence[tuple[Analysis, Result | str]], scope: Scope, top: int | None
) -> tuple[Section, ...]:
    """A section for each result, or for the one line of an error. `top` limits every table (None: all rows).

    Only the first section that lacks the device's activities says how to record them.
    """
    hints = {how_to_record("everything", scope.trace.meta.format), how_to_record_device(scope.trace)}
    made, hinted = [], False
    for analysis, outcome in outcomes:
        lacks = outcome.not_captured if isinstance(outcome, Result) else None
        if isinstance(lacks, NotCaptured) and lacks.remedy in hints:
            lacks = dataclasses.replace(lacks, remedy="") if hinted else lacks
            hinted = True
        made.append(present_section(analysis, outcome, scope, top, lacks))
    return tuple(made)


def present_section(
    analysis: Analysis, outcome: Result | str, scope: Scope, top: int | None, lacks: NotCaptured | str | None
) -> Section:
    """The section of a result that `lacks` something, or of the one line of an error."""
    if isinstance(outcome, str):
        return Section(analysis.name, analysis.question, "This analysis failed.", error=outcome)
    tables = outcome.tables()
    # Counters alone show no time of the device, but they are of its work.
    on_processors = scope.on_cpu and not (analysis.name == "roofline" and scope.trace.counters is not None)
    full = dict(zip(tables, clean_frames([*tables.values()]), strict=True))
    section = Section(
        name=analysis.name,
        question=(on_processors and analysis.on_processors) or analysis.question,
        answer=clean((_doubt(analysis.name, scope) if any(map(len, full.values())) else "") + outcome.answer),
        not_captured=None if lacks is None else clean(str(lacks)),
        findings=tuple(_clean_finding(finding) for finding in outcome.findings),
        tables=tuple(_table(analysis, name, frame, scope) for name, frame in full.items()),
        # a table that was not captured is a None among the figures; it is not one of them
        scalars={
            name: clean(value) if isinstance(value, str) else value
            for name, value in outcome.scalars().items()
            if not (value is None and _is_frame(outcome, name))
        },
        figures=figures_of(analysis.name, full, on_cpu=scope.on_cpu),
        on_cpu=scope.on_cpu,
    )
    return limited(section, top)


_DOUBTS: Final = {
    "breakdown": "busy times are lower bounds, and idle time may be work without a record",
    "steps": "work without a record counts as other",
    "idle": "this time may be work without a record, so its causes are uncertain",
    "layers": "times are lower bounds, and idle time may be work without a record",
    "launches": "only recorded launches count",
    "critical-path": "work without a record is not on the path",
    "what-if": "work without a record stays out of the prediction",
}
"""What missing records leave uncertain, by section."""
_OF_WHOLE_STEPS: Final = ("critical-path", "what-if")
"""The sections that leave out the steps which the end of a file cuts, and say so."""
_TIMED: Final = ("breakdown", "steps", "idle", "layers", "kernels", "ops", "launches")
"""The sections about times, which say nothing of the program where kernels were replayed."""


def _doubt(section: str, scope: Scope) -> str:
    """What a section's answer begins with if kernels were replayed, or the file lacks records or names that it rests on."""
    complete = completeness(scope)
    if section in _TIMED and has_ranges(scope.trace):
        return "Times include the replay of kernels. "
    if section not in _DOUBTS or complete.sure or (section in _OF_WHOLE_STEPS and complete.breaks):
        return ""
    if not complete.broken and not complete.operators.thin:
        return "Names are missing from the file, so the causes are uncertain. " if section == "idle" else ""
    if scope.on_cpu and not complete.lost_host:
        return ""
    return f"Records are missing: {_DOUBTS[section]}. "


def _is_frame(result: Result, name: str) -> bool:
    annotations = {field.name: str(field.type) for field in dataclasses.fields(result)}
    return "DataFrame" in annotations[name]


def _table(analysis: Analysis, name: str, frame: pl.DataFrame, scope: Scope) -> Table:
    view = analysis.tables().get(name) or TableView(
        name.replace("_", " ").capitalize(), short=" ".join(frame.columns[:6])
    )
    columns = tuple(_column(column_of(key, dtype), view, scope) for key, dtype in frame.schema.items())
    short = view.columns if view.short is None else view.short
    return Table(
        name=name,
        title=(scope.on_cpu and view.processor_title) or view.title,
        frame=frame,
        columns=columns,
        total_rows=frame.height,
        short=tuple(key for key in short.split() if key in frame.columns),
        series=view.series,
        hidden=tuple(view.hidden.split()),
        tree=Tree() if view.tree else None,
        main=view.main,
    )


def _column(column: Column, view: TableView, scope: Scope) -> Column:
    """The column as this table calls it."""
    title = view.titles.get(column.name, column.title)
    return dataclasses.replace(column, title=processor_word(title) if scope.on_cpu else title)


def _clean_finding(finding: Finding) -> Finding:
    return dataclasses.replace(
        finding, title=clean(finding.title), evidence=clean(finding.evidence), advice=clean(finding.advice)
    )


def present_verdict(verdict: Verdict, trace: Trace) -> Verdict:
    """The verdict with cleaned texts, and with notes about the part of the trace that was read."""
    costs, layers = (
        tuple(dataclasses.replace(cost, label=clean(cost.label)) for cost in each)
        for each in (verdict.costs, verdict.layers)
    )
    notes = [] if trace.meta.excerpt is None else [format_excerpt(trace.meta.excerpt)]
    if trace.layer_ranges is not None:
        notes.append(clean(f"Only the ranges that {trace.layer_ranges.label} selects count as layers."))
    return dataclasses.replace(
        verdict,
        headline=clean(verdict.headline),
        costs=costs,
        layers=layers,
        advice=tuple(
            dataclasses.replace(each, title=clean(each.title), advice=clean(each.advice))
            for each in verdict.advice
        ),
        notes=(*notes, *map(clean, verdict.notes)),
    )


def trace_info(trace: Trace) -> TraceInfo:
    """What a report says of its trace."""
    meta = trace.meta
    return TraceInfo(
        path=file_name(meta.path),
        name=clean(meta.name if trace.manifest is None else trace.manifest.workload),
        format=meta.format,
        format_version=clean(meta.format_version),
        producer={clean(key): clean(value) for key, value in sorted(meta.producer.items())},
        rank=meta.rank,
        process_id=meta.process_id if meta.parts > 1 else None,
        world_size=meta.world_size,
        backend=None if meta.backend is None else clean(meta.backend),
        devices=tuple(dataclasses.replace(device, name=clean(device.name)) for device in meta.devices),
        captured=tuple(sorted(meta.captured)),
        excerpt=meta.excerpt,
        origin_utc_ns=meta.origin_utc_ns,
        event_count=meta.event_count,
        size_bytes=meta.size_bytes,
    )


def trace_infos(traces: Sequence[Trace]) -> list[TraceInfo]:
    """What is said of each of several traces; those of several files with one name begin with the name of the folder that holds each."""
    names = list({Path(trace.meta.path): trace.meta.name for trace in traces}.values())
    return [
        dataclasses.replace(
            trace_info(trace), path=file_name(trace.meta.path, in_folder=names.count(trace.meta.name) > 1)
        )
        for trace in traces
    ]


def file_name(path: str, *, in_folder: bool = False) -> str:
    """The name of a file, that of its folder before it or not."""
    name = clean(Path(path).name)
    return f"{clean(Path(path).resolve().parent.name)}/{name}" if in_folder else name


def present_window(scope: Scope) -> Window:
    """What was analysed."""
    rows = scope.steps[["step", "name", "start", "end"]].rows() if scope.window == "steps" else []
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


def health_items(trace: Trace) -> tuple[HealthItem, ...]:
    """What the reader met that was not sound."""
    return tuple(
        HealthItem(row["kind"], row["severity"], row["count"], clean(row["meaning"]), clean(row["example"]))
        for row in trace.health.iter_rows(named=True)
    )
