"""`tracekit layers`: the tree of layers, or stacks for a flame graph."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from tracekit.cli import output as out
from tracekit.cli.commands.analysis import Part, run_analysis
from tracekit.cli.options import BY_SUFFIX, Request, flag, format_option, with_flags
from tracekit.cli.sources import Sources, expanded
from tracekit.facts.stack_names import PHASES
from tracekit.report import formats
from tracekit.report.formats import Can, Format

__all__ = ["layers"]

_PROSE_TABLES: Final = ("tree", "by_phase", "coverage")


class LayersBy(str, Enum):
    """The meaning of a row of `tracekit layers`."""

    tree = "tree"
    type = "type"
    pattern = "pattern"


PhaseKind = Enum("PhaseKind", list(zip(PHASES, PHASES, strict=True)), type=str)  # type: ignore[misc]


@with_flags
def layers(
    request: Request,
    by: Annotated[
        LayersBy,
        flag(
            "Show the tree, one row per type of layer, or one row per repeated layer (layer.*.attention).",
            of=LayersBy,
        ),
    ] = LayersBy.tree,
    depth: Annotated[int | None, flag("Show this many levels of the tree.", min=1)] = None,
    phase: Annotated[
        PhaseKind | None, flag("Show layers with time in this phase, sorted by that time.", of=PhaseKind)
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Sort by this column; `execution` sorts layers in the order in which they ran.",
        ),
    ] = None,
    format_: Annotated[
        Format | None,
        format_option(
            Can.SECTION | Can.STACKS,
            f"{BY_SUFFIX} collapsed (.collapsed) and speedscope (.speedscope.json) are stacks for flame graphs.",
        ),
    ] = None,
) -> None:
    """Run `layers`, or write stacks of layers, operators and kernels for a flame graph."""
    chosen = formats.choose_format(Can.SECTION | Can.STACKS, format_, request.output, command="layers")
    of = None if phase is None else phase.value
    if Can.STACKS in chosen.can:
        _write_stacks(request, chosen, of)
        return
    tables: tuple[str, ...] | None
    if by is LayersBy.tree:
        tables = None if Can.DATA in chosen.can or request.table is not None else _PROSE_TABLES
    else:
        tables = (f"by_{by.value}",)
    plain = replace(request, sort=None if sort == "execution" else sort, format_=chosen)
    run_analysis("layers", plain, Part(tables, "layers", depth, of, in_order=sort == "execution"))


def _write_stacks(request: Request, chosen: Format, phase: str | None) -> None:
    selection = request.selection
    traces, _ = Sources(expanded(request.traces), selection, request.reading).read()
    formats.check_traces(Can.STACKS, chosen, len(traces))
    from tracekit.analyses.layers.stacks import layer_stacks
    from tracekit.analyses.scope import select

    (trace,) = traces
    scope = select(trace, window=selection.window.value, step=selection.step)
    stacks = layer_stacks(scope, phase=phase)
    out.emit(formats.render_stacks(chosen, stacks, Path(trace.meta.path).name), request.output)
