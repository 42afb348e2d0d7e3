"""The commands of analyses with flags of their own: `layers`, `kernels`, `ops`, `counters`."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.asked import Asked, with_flags
from tracekit.cli.commands.analysis import run_analysis
from tracekit.cli.loading import expanded
from tracekit.cli.options import Format
from tracekit.cli.refine import Refine
from tracekit.cli.sources import Sources
from tracekit.errors import UsageError
from tracekit.facts.stack_names import PHASES

__all__ = ["counters", "kernels", "layers", "ops"]

_SHOWN_OF_LAYERS: Final = ("tree", "by_phase", "coverage")


class LayersBy(str, Enum):
    """What a row of `tracekit layers` is."""

    tree = "tree"
    type = "type"
    pattern = "pattern"


class KernelsBy(str, Enum):
    """What a row of `tracekit kernels` is."""

    name = "name"
    category = "category"
    operator = "operator"
    layer = "layer"
    shape = "shape"


class LayersFormat(str, Enum):
    """How layers are written."""

    table = "table"
    json = "json"
    md = "md"
    csv = "csv"
    parquet = "parquet"
    collapsed = "collapsed"
    speedscope = "speedscope"


PhaseKind = Enum("PhaseKind", {name: name for name in PHASES}, type=str)  # type: ignore[misc]

_SUFFIXES: Final = {
    ".collapsed": LayersFormat.collapsed,
    ".folded": LayersFormat.collapsed,
    ".speedscope.json": LayersFormat.speedscope,
    ".speedscope": LayersFormat.speedscope,
}

_LayersBy = Annotated[
    LayersBy,
    typer.Option(
        help="The tree, all layers of a type as one, or repeated layers (layer.*.attention) as one.",
        rich_help_panel="Selection",
    ),
]
_Depth = Annotated[
    int | None, typer.Option(min=1, help="So many levels of the tree.", rich_help_panel="Selection")
]
_Phase = Annotated[
    PhaseKind | None,
    typer.Option(help="Layers with time in this phase, the most first.", rich_help_panel="Selection"),
]
_LayersSort = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Sort by this column; `execution` is the order in which layers ran.",
        rich_help_panel="Selection",
    ),
]
_LayersFormat = Annotated[
    LayersFormat | None,
    typer.Option(
        "--format",
        "-f",
        help="Default: from the suffix of -o, else a table for reading. collapsed (.collapsed) and speedscope "
        "(.speedscope.json) are stacks for flame graphs.",
        rich_help_panel="Output",
    ),
]


@with_flags
def layers(
    asked: Asked,
    by: _LayersBy = LayersBy.tree,
    depth: _Depth = None,
    phase: _Phase = None,
    sort: _LayersSort = None,
    format_: _LayersFormat = None,
) -> None:
    """Run `layers`, or write the stacks of layers, operators and kernels for a flame graph."""
    chosen = format_ or _stack_format(asked.output)
    of = None if phase is None else phase.value
    if chosen in (LayersFormat.collapsed, LayersFormat.speedscope):
        _write_stacks(asked, chosen, of)
        return
    tables: tuple[str, ...] | None
    if by is LayersBy.tree:
        to_json = chosen is LayersFormat.json or _goes_to_json(format_, asked.output)
        tables = None if to_json or asked.table is not None else _SHOWN_OF_LAYERS
    else:
        tables = (f"by_{by.value}",)
    plain = replace(
        asked,
        sort=None if sort == "execution" else sort,
        format_=None if chosen is None else Format(chosen.value),
    )
    run_analysis("layers", plain, Refine(tables, "layers", depth, of, in_order=sort == "execution"))


def _stack_format(output: Path | None) -> LayersFormat | None:
    name = "" if output is None else output.name.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)


def _goes_to_json(given: LayersFormat | None, output: Path | None) -> bool:
    return given is None and output is not None and output.suffix.lower() == ".json"


def _write_stacks(asked: Asked, chosen: LayersFormat, phase: str | None) -> None:
    which = asked.which
    read, _ = Sources(expanded(asked.traces), which, asked.reading).read()
    if len(read) > 1:
        raise UsageError(
            f"one {chosen.value} file holds the stacks of one trace", remedy="use --rank or --process"
        )
    from tracekit.analyses.layers.stacks import layer_stacks
    from tracekit.analyses.scope import select
    from tracekit.report import stacks

    (trace,) = read
    rows = layer_stacks(select(trace, window=which.window.value, step=which.step), phase=phase)
    if chosen is LayersFormat.collapsed:
        out.emit(stacks.collapsed(rows), asked.output)
    else:
        out.emit(stacks.speedscope(rows, Path(trace.meta.path).name), asked.output)


@with_flags
def kernels(
    asked: Asked,
    by: Annotated[
        KernelsBy | None,
        typer.Option(help="Only the table of these. Default: all.", rich_help_panel="Selection"),
    ] = None,
    ncu: flags.Ncu = None,
) -> None:
    """Run `kernels`."""
    needs = {KernelsBy.layer: "layers", KernelsBy.shape: "shapes"}
    refine = None if by is None else Refine((f"by_{by.value}",), needs.get(by))
    run_analysis("kernels", asked, refine, ncu=ncu)


@with_flags
def counters(asked: Asked, ncu: flags.Ncu = None) -> None:
    """Run `counters`."""
    run_analysis("counters", asked, ncu=ncu)


@with_flags
def ops(
    asked: Asked,
    by_shape: Annotated[
        bool,
        typer.Option(
            "--by-shape", help="One row per operator and shapes of its inputs.", rich_help_panel="Selection"
        ),
    ] = False,
) -> None:
    """Run `ops`."""
    shown = ("by_shape",) if by_shape else None if asked.table else ("by_operator",)
    run_analysis("ops", asked, None if shown is None else Refine(shown, "shapes"))
