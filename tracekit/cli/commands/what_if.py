"""`tracekit what-if`: how long a step would take after a change."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracekit.analyses.registry import Analysis
from tracekit.classes import dataclass
from tracekit.cli import completion
from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.commands.analysis import narrowed, scopes_of_job, write_table
from tracekit.cli.options import Request, flag, with_flags
from tracekit.cli.sources import Sources, expanded
from tracekit.errors import UsageError
from tracekit.files import keep_inputs
from tracekit.report import formats
from tracekit.report.formats import Can

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.analyses.result import Result
    from tracekit.analyses.scope import Scope
    from tracekit.analyses.what_if import Change
    from tracekit.report.model import Section
    from tracekit.trace import Trace

__all__ = ["what_if"]

_QUESTION = "How long would a step take after these changes?"
_WHAT_IF = Analysis("what-if", _QUESTION, "tracekit.analyses.what_if.analysis:what_if")
_ADVISED = Analysis("what-if", "Which advised change gains the most?", "tracekit.verdict.advised:advised")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The changes, each a flag."""

    scale: Annotated[
        list[str] | None,
        flag(
            "Work takes FACTOR times as long. SELECTOR is layer:, kernel:, category:, op:, cause: or rank: with a name, * for any letters; repeatable.",
            metavar="SELECTOR=FACTOR",
        ),
    ] = None
    remove: Annotated[
        list[str] | None,
        flag("Work is gone, with the code that launches it; repeatable.", metavar="SELECTOR"),
    ] = None
    remove_sync: Annotated[
        bool, typer.Option("--remove-sync", help="The host does not wait for the device.")
    ] = False
    no_loader_wait: Annotated[
        bool, typer.Option("--no-loader-wait", help="Every batch is there when the loop asks for it.")
    ] = False
    faster_host: Annotated[
        str | None, flag("The host's code runs FACTOR times as fast.", metavar="FACTOR")
    ] = None
    fuse: Annotated[
        str | None, flag("The optimizer updates all parameters in one call.", metavar="optimizer")
    ] = None
    cuda_graph: Annotated[
        list[str] | None,
        flag(
            "All launches between two waits of the host become one graph: all work of a step, or what a selector matches; repeatable.",
            metavar="step|SELECTOR",
        ),
    ] = None
    device: Annotated[
        str | None,
        flag(
            "The work runs on this device of the catalogue.",
            metavar="NAME",
            autocompletion=completion.devices,
        ),
    ] = None
    overlap_comm: Annotated[
        bool, typer.Option("--overlap-comm", help="Nothing but the end waits for communication.")
    ] = False
    shard_optimizer: Annotated[
        str | None, flag("Each of N ranks updates its part of the parameters.", metavar="N")
    ] = None
    bucket_inputs: Annotated[
        bool, typer.Option("--bucket-inputs", help="In each step all ranks have inputs of one length.")
    ] = False
    partition_space: Annotated[
        str | None, flag("N devices share each sample, and exchange the borders of their parts.", metavar="N")
    ] = None
    bandwidth: Annotated[
        str | None, flag("Links between ranks are FACTOR times as fast.", metavar="FACTOR")
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """Their values by the names of the flags."""
        return {field.name.replace("_", "-"): getattr(self, field.name) for field in fields(self)}


@with_flags
def what_if(
    request: Request,
    wanted: Wanted,
    changes: Annotated[
        Path | None, flag("Read changes from a TOML file with the names of these flags.", metavar="FILE")
    ] = None,
    rank: Annotated[
        bool,
        typer.Option("--rank", help="Try the change that each finding advises, and rank them by their gain."),
    ] = False,
    format_: flags.ReportFormat = None,
) -> None:
    """Predict how long a step would take after a change.

    Several changes apply at once. The prediction replays what the trace recorded, with other lengths. For a capture on a GPU, it starts from the
    steps that were measured without the profiler.
    """
    chosen = formats.choose_format(Can.REPORT, format_, request.output, command="what-if")
    from tracekit.analyses.what_if.written import changes_in, changes_of

    keep_inputs([changes] if changes is not None else [])
    written = [*(changes_in(changes) if changes is not None else ()), *changes_of(wanted.given)]
    if rank == bool(written):
        fault = "--rank tries changes of its own" if rank else "no change is given"
        raise UsageError(fault, remedy="give either --rank or changes, such as --scale category:gemm=0.5")
    traces, _ = Sources(expanded(request.traces), request.selection, request.reading).read()
    job = scopes_of_job(traces, request)
    formats.check_traces(Can.REPORT, chosen, 1 if job else len(traces))
    shown = traces[:1] if job else traces
    found = [_section(trace, written, request, job) for trace in shown]
    _show(found, shown, chosen, request)


def _show(found: list[Section], traces: Sequence[Trace], chosen: formats.Format, request: Request) -> None:
    """The section of a trace or a job; several each below the name of its trace."""
    if Can.FILES in chosen.can:
        write_table(found[0], chosen, request)
    elif len(found) == 1 or (Can.DOCUMENT in chosen.can and Can.DATA not in chosen.can):
        if len(found) > 1:
            raise UsageError(f"{chosen.value} holds one trace", remedy="give one at a time")
        out.emit(formats.render_alone(chosen, found[0], out.page_for(chosen, request.top)), request.output)
    else:
        from tracekit.report.presentation import trace_infos

        sections = list(zip(found, trace_infos(traces), strict=True))
        out.emit(formats.render_sections(chosen, sections, out.page_for(chosen, request.top)), request.output)


def _section(trace: Trace, changes: Sequence[Change], request: Request, job: Sequence[Scope]) -> Section:
    from tracekit.analyses.scope import select
    from tracekit.report.presentation import present_section

    selection = request.selection
    scope = select(trace, window=selection.window.value, step=selection.step)
    if changes:
        from tracekit.analyses.what_if import what_if as replay

        result: Result = replay(job or scope, changes)
        of = _WHAT_IF
    else:
        from tracekit.verdict.advised import advised

        result, of = advised(job or [scope]), _ADVISED
    section = present_section(of, result, scope, None, result.not_captured)
    section = narrowed(section, trace, None, request)
    return section if request.table is not None else _short(section)


def _short(section: Section) -> Section:
    """The section with its assumptions below the answer, and only for data the operators."""
    assumed = next(
        (one.frame["assumption"].to_list() for one in section.tables if one.name == "assumptions"), []
    )
    tables = tuple(
        replace(one, detail=one.name == "operators") for one in section.tables if one.name != "assumptions"
    )
    return replace(section, tables=tables, points=tuple(("assumed", sentence) for sentence in assumed))
