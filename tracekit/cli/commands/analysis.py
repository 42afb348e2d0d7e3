"""The commands of single analyses: one section of the report, or a part of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.analyses.registry import ON_REQUEST
from tracekit.classes import dataclass
from tracekit.cli import completion
from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Request, Selection, with_flags
from tracekit.cli.sources import Sources, expanded
from tracekit.errors import InconclusiveError, UsageError, nearest
from tracekit.readers import flag_for
from tracekit.report import formats
from tracekit.report.formats import Can, Format

if TYPE_CHECKING:
    from tracekit.analyses.scope import Scope
    from tracekit.report.model import Report, Section, Table
    from tracekit.trace import Trace

__all__ = ["Part", "analysis", "command_of", "narrowed", "run_analysis", "scopes_of_job", "write_table"]


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a section that a command shows.

    `tables`: only these (None: all); `needs` is the key of `facts.capture_flags` for what they need. `depth`: the number of
    levels of a tree. `phase`: rows with time in this phase, the most first. `in_order`: a tree in the order of its table.
    """

    tables: tuple[str, ...] | None = None
    needs: str | None = None
    depth: int | None = None
    phase: str | None = None
    in_order: bool = False

    def of(self, section: Section, format_: str) -> Section:
        """That part of the section of a trace of this format.

        Raises UsageError when the trace has none of the tables.
        """
        kept = tuple(one for one in section.tables if self.tables is None or one.name in self.tables)
        if section.tables and not kept:
            wanted = " or ".join(self.tables or ())
            remedy = "" if self.needs is None else f"{self.needs} need {flag_for(self.needs, format_)}"
            raise UsageError(f"{section.name} has no table {wanted} for this trace", remedy=remedy)
        return replace(section, tables=tuple(self._table(one) for one in kept))

    def _table(self, table: Table) -> Table:
        import polars as pl

        frame, tree, short = table.frame, table.tree, table.short
        if tree is not None and self.depth is not None:
            frame = frame.filter(pl.col("depth") < self.depth)
        if tree is not None and self.in_order:
            tree = replace(tree, largest_first=False)
        column = f"{self.phase}_ns"
        if self.phase is not None and column in frame.columns:
            frame = frame.filter(pl.col(column) > 0)
            if tree is not None:
                tree = replace(tree, measure=column)
            else:
                frame = frame.sort(column, descending=True, maintain_order=True)
            if column not in short:
                short = (short[0], column, *short[1:])
        return replace(table, frame=frame, tree=tree, total_rows=frame.height, short=short)


def analysis(
    name: str = typer.Argument(
        metavar="NAME", help="The name of the analysis.", autocompletion=completion.analyses
    ),
    traces: flags.TraceFiles = [],  # noqa: B006 - typer copies it
    step: flags.Step = None,
    window: flags.WindowFlag = flags.WindowKind.steps,
    format_: flags.AnalysisFormat = None,
    output: flags.Output = None,
) -> None:
    """Run an analysis that an installed package adds.

    Packages register analyses in the entry-point group tracekit.analyses.
    """
    if not traces:
        raise UsageError("no trace is given", remedy="give a trace file after the name of the analysis")
    run_analysis(name, Request(traces, Selection(step=step, window=window), format_=format_, output=output))


def run_analysis(
    name: str,
    request: Request,
    part: Part | None = None,
    *,
    ncu: Sequence[Path] | None = None,
    machine: Path | None = None,
) -> None:
    """Run one analysis on each trace and write its result, or a part of it.

    `ncu` are tables of Nsight Compute, whose metrics are joined to the kernels; `machine` holds measured ceilings.

    Raises UsageError for an unknown table, column or format.
    """
    chosen = formats.choose_format(Can.SECTION, request.format_, request.output, command=name)
    page = out.page_for(chosen, request.top)
    sources = Sources(expanded(request.traces), request.selection, request.reading, ncu, machine=machine)
    question = sources.question(name, request.table, request.sort, part, chosen, page)
    if Can.FILES not in chosen.can and (answer := question.answer()) is not None:
        out.emit(answer, request.output)
        return
    traces, fits = sources.read()
    of_jobs = any(one.name == name and one.of_jobs for one in ON_REQUEST)
    job = scopes_of_job(traces, request) if of_jobs else []
    formats.check_traces(Can.SECTION, chosen, 1 if job else len(traces))
    if Can.FILES in chosen.can:
        write_table(_section(name, request, part, traces[0], job), chosen, request)
        return
    if job:
        text = formats.render_alone(chosen, _section(name, request, part, traces[0], job), page)
    elif Can.DATA in chosen.can:
        reports = [(_report(name, request, part, trace), trace) for trace in traces]
        text = formats.render_reports(chosen, reports, page)
    else:
        from tracekit.report.presentation import trace_infos

        found = [_section(name, request, part, trace) for trace in traces]
        sections = list(zip(found, trace_infos(traces), strict=True))
        text = formats.render_sections(chosen, sections, page)
    if fits:  # a warning is to be seen every time
        question.keep(text)
    out.emit(text, request.output)


def _section(
    name: str, request: Request, part: Part | None, trace: Trace, job: Sequence[Scope] = ()
) -> Section:
    from tracekit.analyses.scope import select
    from tracekit.report.build import build_section

    selection = request.selection
    scope = job[0] if job else select(trace, window=selection.window.value, step=selection.step)
    return narrowed(build_section(trace, name, scope=scope, job=job), trace, part, request)


def scopes_of_job(traces: Sequence[Trace], request: Request) -> list[Scope]:
    """The part of each trace that the flags choose, by rank, if these are the ranks of one job and collectives link them; else none."""
    ranks = {trace.meta.rank: trace for trace in traces}
    sizes = {trace.meta.world_size for trace in traces}
    if len(traces) == 1 or len(ranks) < len(traces) or None in ranks or len(sizes) > 1:
        return []
    from tracekit.analyses.graph.joint import joint_graph
    from tracekit.analyses.scope import select

    selection = request.selection
    ordered = [ranks[rank] for rank in sorted(rank for rank in ranks if rank is not None)]
    scopes = [select(trace, window=selection.window.value, step=selection.step) for trace in ordered]
    try:
        joint_graph(scopes)
    except UsageError as error:
        out.say(f"warning: each trace stands alone: {error.fault}")
        return []
    return scopes


def _report(name: str, request: Request, part: Part | None, trace: Trace) -> Report:
    """The report with this one section and the verdict."""
    from tracekit.report.build import build_report

    selection = request.selection
    report = build_report(trace, window=selection.window.value, step=selection.step, only=[name])
    return replace(report, sections=(narrowed(report.sections[0], trace, part, request),))


def write_table(section: Section, chosen: Format, request: Request) -> None:
    """Write the first table of a section as a file.

    Raises InconclusiveError when there is none.
    """
    from tracekit.report.format import costliest

    rows = sum(table.frame.height for table in section.tables[:1])
    if not section.tables or (section.not_captured and not rows):
        raise InconclusiveError(f"{section.name}: not captured", remedy=section.not_captured or "")
    table = section.tables[0]
    frame = costliest(table, request.top) if request.top else table.frame
    out.emit_frame(frame, chosen, request.output)


def narrowed(section: Section, trace: Trace, part: Part | None, request: Request) -> Section:
    """The section with only the requested tables and rows, in the requested order."""
    section = section if part is None else part.of(section, trace.meta.format)
    tables, sort = section.tables, request.sort
    if request.table is not None:
        tables = tuple(one for one in tables if one.name == request.table)
        if not tables:
            names = [one.name for one in section.tables]
            remedy = nearest(request.table, names, f"its tables are {', '.join(names) or 'none'}")
            raise UsageError(f"{section.name} has no table {request.table!r}", remedy=remedy)
    if sort is not None:
        if not any(sort in one.frame.columns for one in tables):
            names = list(dict.fromkeys(column for one in tables for column in one.frame.columns))
            remedy = nearest(sort, names, f"its columns are {', '.join(names)}")
            raise UsageError(f"{section.name} has no column {sort!r}", remedy=remedy)
        from tracekit.report.terminal import sort_table

        tables = tuple(sort_table(one, sort) if sort in one.frame.columns else one for one in tables)
    return replace(section, tables=tables)


@with_flags
def counters(request: Request, ncu: flags.Ncu = None) -> None:
    """Run `counters`; the registry has its help."""
    run_analysis("counters", request, ncu=ncu)


_CAUSES: Final = (
    *("by_cause", "by_call", "by_layer", "by_operator", "by_frame", "by_range", "by_os_call"),
    "by_function",
    "device_gaps",
)


@with_flags
def idle(
    request: Request,
    causes: Annotated[
        bool,
        typer.Option(
            "--causes",
            help="Show only the time in which a whole device was idle: by cause, layer, operator, line of code and "
            "range, and by what the host did meanwhile.",
        ),
    ] = False,
) -> None:
    """Run `idle`; the registry has its help."""
    run_analysis("idle", request, Part(_CAUSES) if causes else None)


class KernelsBy(str, Enum):
    """The meaning of a row of `tracekit kernels`."""

    name = "name"
    category = "category"
    operator = "operator"
    layer = "layer"
    shape = "shape"


@with_flags
def kernels(
    request: Request,
    by: Annotated[
        KernelsBy | None, flags.flag("Show only this table. The default is all tables.", of=KernelsBy)
    ] = None,
    ncu: flags.Ncu = None,
) -> None:
    """Run `kernels`; the registry has its help."""
    needs = {KernelsBy.layer: "layers", KernelsBy.shape: "shapes"}
    part = None if by is None else Part((f"by_{by.value}",), needs.get(by))
    run_analysis("kernels", request, part, ncu=ncu)


class RooflineOf(str, Enum):
    """The meaning of a row of `tracekit roofline`."""

    kernel = "kernel"
    op = "op"
    layer = "layer"
    type = "type"
    model = "model"


_LEVELS: Final = {
    RooflineOf.kernel: "kernels",
    RooflineOf.op: "operators",
    RooflineOf.layer: "layers",
    RooflineOf.type: "types",
    RooflineOf.model: "model",
}


@with_flags
def roofline(
    request: Request,
    level: Annotated[
        RooflineOf | None,
        flags.flag("Show only the table of this level. The default is all tables.", of=RooflineOf),
    ] = None,
    machine: Annotated[
        Path | None,
        flags.flag(
            "Use the ceilings in this file of tracekit machine. The default is the catalogue, else what was measured before.",
            metavar="FILE",
        ),
    ] = None,
    ncu: flags.Ncu = None,
) -> None:
    """Run `roofline`; the registry has its help."""
    part = None if level is None else Part((_LEVELS[level],))
    run_analysis("roofline", request, part, ncu=ncu, machine=machine)


@with_flags
def ops(
    request: Request,
    by_shape: Annotated[
        bool, typer.Option("--by-shape", help="Show one row per operator and input shapes.")
    ] = False,
) -> None:
    """Run `ops`; the registry has its help."""
    tables = ("by_shape",) if by_shape else None if request.table else ("by_operator",)
    run_analysis("ops", request, None if tables is None else Part(tables, "shapes"))


_WITH_OWN_FLAGS: Final = (counters, idle, kernels, roofline, ops)


def command_of(name: str) -> Callable[..., None]:
    """The command of an analysis."""

    def command(*, request: Request) -> None:
        run_analysis(name, request)

    command.__name__ = name
    own = {one.__name__: one for one in _WITH_OWN_FLAGS}
    return own.get(name) or with_flags(command)
