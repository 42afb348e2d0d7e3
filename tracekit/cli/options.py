"""The flags that commands share, each declared once, their groups, and commands that take whole groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeGuard, TypeVar

import typer

from tracekit.limits import Limits
from tracekit.range_filter import RangeFilter, range_filter
from tracekit.report import formats
from tracekit.report.formats import FIGURE_FORMATS, Can, Format

__all__ = [
    "MAX_EVENTS",
    "AnalysisFormat",
    "ExportFormat",
    "FactsFormat",
    "FigureFormat",
    "Figures",
    "LayersFormat",
    "MaxEvents",
    "NamedRanges",
    "Ncu",
    "NoCache",
    "NoSizeLimit",
    "Output",
    "Process",
    "Rank",
    "Reading",
    "ReportFormat",
    "Request",
    "Selection",
    "Step",
    "TablesFormat",
    "Top",
    "TraceFile",
    "TraceFiles",
    "WindowFlag",
    "WindowKind",
    "choice",
    "with_flags",
]


class WindowKind(str, Enum):
    """Which part of the trace is analysed."""

    steps = "steps"
    trace = "trace"


_READ: Final = "Reading"
_SELECT: Final = "Selection"
_WRITE: Final = "Output"
_BY_SUFFIX: Final = "The format. The default follows from the suffix of -o; without -o it is table."
_T = TypeVar("_T", bound=str)


def choice(values: Sequence[_T], *flags: str, text: str, known: Iterable[_T] = ()) -> Any:
    """An option that takes one of these values, and lets the command refuse others that are `known`."""

    def value_of(word: str) -> _T:
        for value in (*values, *known):
            if value == word:
                return value
        message = f"{word!r} is not one of {', '.join(names)}."
        raise typer.BadParameter(message)

    names = [value.value if isinstance(value, Enum) else value for value in values]
    return typer.Option(
        *flags,
        metavar="|".join(names),
        help=text,
        rich_help_panel=_WRITE,
        parser=value_of,
        autocompletion=lambda: names,
    )


def _format_option(content: Can, text: str = _BY_SUFFIX) -> Any:
    return choice(formats.formats_of(content), "--format", "-f", text=text, known=Format)


_FORMS = "from PyTorch's profiler (.json, .json.gz) or Nsight Systems (.sqlite, a folder of Parquet files, .nsys-rep)"
TraceFile = Annotated[
    Path, typer.Argument(metavar="TRACE", help=f"A trace {_FORMS}, or the folder of a capture.")
]
TraceFiles = Annotated[
    list[Path], typer.Argument(metavar="TRACE...", help=f"Traces {_FORMS}, or folders of captures.")
]

Rank = Annotated[int | None, typer.Option(help="Take only the trace of this rank.", rich_help_panel=_SELECT)]
Process = Annotated[
    int | None,
    typer.Option(
        metavar="PID",
        help="Take only this process, if the file holds several.",
        rich_help_panel=_SELECT,
    ),
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Ranges whose name matches are the steps, instead of ProfilerStep# or inferred ones.",
        rich_help_panel=_SELECT,
    ),
]
WindowFlag = Annotated[
    WindowKind,
    typer.Option(
        "--window",
        help="Analyse all complete steps, or the whole trace (then no steps are inferred).",
        rich_help_panel=_SELECT,
    ),
]
CommPatterns = Annotated[
    list[str] | None,
    typer.Option(
        "--comm-pattern",
        metavar="REGEX",
        help="Kernels whose name matches count as communication; repeatable.",
        rich_help_panel=_SELECT,
    ),
]
NvtxDepth = Annotated[
    int | None,
    typer.Option(
        "--nvtx-depth",
        min=1,
        help="Only this many levels of nested ranges (NVTX, record_function) count as layers.",
        rich_help_panel=_SELECT,
    ),
]
NvtxInclude = Annotated[
    list[str] | None,
    typer.Option(
        "--nvtx-include",
        metavar="REGEX",
        help="Only ranges whose name matches count as layers; repeatable.",
        rich_help_panel=_SELECT,
    ),
]
NvtxExclude = Annotated[
    list[str] | None,
    typer.Option(
        "--nvtx-exclude",
        metavar="REGEX",
        help="Ranges whose name matches do not count as layers; repeatable.",
        rich_help_panel=_SELECT,
    ),
]
NvtxDomain = Annotated[
    list[str] | None,
    typer.Option(
        "--nvtx-domain",
        metavar="NAME",
        help="Only ranges of this NVTX domain count as layers (`default` is the unnamed one); repeatable.",
        rich_help_panel=_SELECT,
    ),
]
Top = Annotated[
    int | None,
    typer.Option(min=1, max=10**9, help="Show this many rows of each table.", rich_help_panel=_SELECT),
]
Sort = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Sort tables by this column.", rich_help_panel=_SELECT)
]
TableName = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="Show only this table.", rich_help_panel=_SELECT),
]

ReportFormat = Annotated[Format | None, _format_option(Can.REPORT)]
AnalysisFormat = Annotated[Format | None, _format_option(Can.SECTION)]
TablesFormat = Annotated[Format | None, _format_option(Can.TABLES)]
FactsFormat = Annotated[Format | None, _format_option(Can.FACTS)]
ExportFormat = Annotated[
    Format | None, _format_option(Can.FRAMES, "How each frame is written. The default is parquet.")
]
LayersFormat = Annotated[
    Format | None,
    _format_option(
        Can.SECTION | Can.STACKS,
        f"{_BY_SUFFIX} collapsed (.collapsed) and speedscope (.speedscope.json) are stacks for flame graphs.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write to this file instead of stdout.", rich_help_panel=_WRITE
    ),
]
Figures = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Also draw the figures, as files in this folder.", rich_help_panel=_WRITE
    ),
]
FigureFormat = Annotated[
    formats.FigureFormat, choice(FIGURE_FORMATS, "--figure-format", text="The format of the figures.")
]

Ncu = Annotated[
    list[Path] | None,
    typer.Option(
        "--ncu",
        metavar="FILE",
        help="Add the metrics that Nsight Compute measured for the kernels (output of ncu --csv); repeatable.",
        rich_help_panel=_READ,
    ),
]
MaxEvents = Annotated[
    int,
    typer.Option(
        "--max-events",
        min=0,
        help="If the trace has more events, read only steps from its middle with about this many; 0 reads all.",
        rich_help_panel=_READ,
    ),
]
MAX_EVENTS: Final = 4_000_000
"""About 1.6 GB of JSON, and as much memory."""

NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Do not use the cache of parsed traces.", rich_help_panel=_READ),
]
NoSizeLimit = Annotated[
    bool,
    typer.Option(
        "--no-size-limit",
        help="Read a compressed file however large it becomes.",
        rich_help_panel=_READ,
    ),
]


# -- groups of flags ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedRanges:
    """Which named ranges count as layers."""

    nvtx_depth: NvtxDepth = None
    nvtx_include: NvtxInclude = None
    nvtx_exclude: NvtxExclude = None
    nvtx_domain: NvtxDomain = None

    @property
    def filter(self) -> RangeFilter | None:
        """The choice, None where there is none. Raises UsageError for what is no regular expression."""
        return range_filter(self.nvtx_depth, self.nvtx_include, self.nvtx_exclude, self.nvtx_domain)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of the traces in the files, and which part of each."""

    rank: Rank = None
    process: Process = None
    step: Step = None
    window: WindowFlag = WindowKind.steps
    comm_pattern: CommPatterns = None
    ranges: NamedRanges = field(default_factory=NamedRanges)


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read."""

    max_events: MaxEvents = MAX_EVENTS
    no_cache: NoCache = False
    no_size_limit: NoSizeLimit = False

    @property
    def limits(self) -> Limits:
        """How much is read."""
        return Limits(enforced=not self.no_size_limit, max_events=self.max_events or None)


@dataclass(frozen=True, slots=True)
class Request:
    """What a command line asks of an analysis."""

    traces: TraceFiles
    selection: Selection = field(default_factory=Selection)
    table: TableName = None
    top: Top = None
    sort: Sort = None
    format_: AnalysisFormat = None
    output: Output = None
    reading: Reading = field(default_factory=Reading)


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are groups (dataclasses, of flags and of groups) are flags, in their place.

    A flag of the command's own takes the place of one of the same name in a group, which keeps its default there.
    """
    parameters = _parameters(command)
    own = {parameter.name for parameter in parameters if not _is_group(parameter.annotation)}

    def run(**values: object) -> None:
        groups = {name: value for name, value in values.items() if name not in own}
        command(**_arguments(parameters, groups), **{name: values[name] for name in own})

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    flags = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in _flags(parameters, own, inside=False)
    ]
    run.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    return run


def _is_group(annotation: object) -> TypeGuard[Callable[..., object]]:
    return isinstance(annotation, type) and is_dataclass(annotation)


@cache
def _parameters(command: Callable[..., object]) -> list[inspect.Parameter]:
    # typer resolves annotations in the module of a function; in a signature they are objects already.
    return list(inspect.signature(command, eval_str=True).parameters.values())


def _flags(
    parameters: Iterable[inspect.Parameter], own: set[str], *, inside: bool
) -> Iterator[inspect.Parameter]:
    """The parameters, with those of each group in the place of the group."""
    for parameter in parameters:
        if _is_group(parameter.annotation):
            yield from _flags(_parameters(parameter.annotation), own, inside=True)
        elif not (inside and parameter.name in own):
            yield parameter


def _arguments(parameters: Iterable[inspect.Parameter], values: dict[str, object]) -> dict[str, Any]:
    """Those of the parameters that have a value, and the groups, of theirs."""
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        group = parameter.annotation
        if _is_group(group):
            arguments[parameter.name] = group(**_arguments(_parameters(group), values))
        elif parameter.name in values:
            arguments[parameter.name] = values[parameter.name]
    return arguments
