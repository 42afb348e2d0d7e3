"""The flags that commands share, each declared once, their groups, and commands that take whole groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeGuard, TypeVar

import typer

from tracekit.classes import dataclass
from tracekit.cli import completion
from tracekit.cli.workers import ENGINES, Engine
from tracekit.errors import UnreadableTraceError
from tracekit.files import keep_inputs
from tracekit.limits import Limits
from tracekit.report import formats
from tracekit.report.formats import FIGURE_FORMATS, Can, Format

if TYPE_CHECKING:
    from tracekit.range_filter import RangeFilter

__all__ = [
    "BY_SUFFIX",
    "MAX_EVENTS",
    "AnalysisFormat",
    "CommPattern",
    "EngineChoice",
    "FactsFormat",
    "FigureFormat",
    "Figures",
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
    "flag",
    "format_option",
    "with_flags",
]


class WindowKind(str, Enum):
    """The part of the trace that is analysed."""

    steps = "steps"
    trace = "trace"


BY_SUFFIX: Final = "The format. The default follows from the suffix of -o; without -o it is table."
_T = TypeVar("_T", bound=str)


def choice(values: Sequence[_T], *flags: str, text: str, others: Iterable[_T] = ()) -> Any:
    """An option with one of these values. It also accepts the `others`, which the command refuses."""

    def value_of(word: str) -> _T:
        for value in (*values, *others):
            if value == word:
                return value
        message = f"{word!r} is not one of {', '.join(names)}."
        raise typer.BadParameter(message)

    names = [value.value if isinstance(value, Enum) else value for value in values]
    shape = "|".join(names)
    return typer.Option(*flags, metavar=shape, help=text, parser=value_of, autocompletion=lambda: names)


def flag(text: str, *names: str, of: type[Enum] | None = None, **more: Any) -> Any:
    """An option with this help text; it takes a number, or a value `of` an Enum, unless `metavar` says what else."""
    shape = "N" if of is None else "|".join(one.value for one in of)
    return typer.Option(*names, help=text, **{"metavar": shape, **more})


def format_option(content: Can, text: str = BY_SUFFIX) -> Any:
    """The option `--format` of a command that writes this content."""
    return choice(formats.formats_of(content), "--format", "-f", text=text, others=Format)


def _names(name: str, metavar: str, text: str) -> Any:
    return flag(f"{text}; repeatable.", name, metavar=metavar)


_FORMS = "from PyTorch's profiler (.json, .json.gz) or Nsight Systems (.sqlite, a folder of Parquet files, .nsys-rep)"
TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help=f"A trace {_FORMS}, its address (https://, s3://, gs://), the folder of a capture, or - (standard input).",
    ),
]
TraceFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE...",
        help=f"Traces {_FORMS}, their addresses (https://, s3://, gs://), folders of traces, or - (standard input).",
    ),
]

Rank = Annotated[int | None, flag("Take only the trace of this rank.")]
Process = Annotated[
    int | None, typer.Option(metavar="PID", help="Take only this process, if the file holds several.")
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Use the ranges whose name matches as steps, instead of ProfilerStep# or inferred steps.",
    ),
]
WindowFlag = Annotated[
    WindowKind,
    flag(
        "Analyse all complete steps, or the whole trace (then no steps are inferred).",
        "--window",
        of=WindowKind,
    ),
]
CommPattern = Annotated[
    list[str] | None,
    _names("--comm-pattern", "REGEX", "Kernels whose name matches count as communication"),
]
Top = Annotated[int | None, flag("Show this many rows of each table.", min=1, max=10**9)]

ReportFormat = Annotated[Format | None, format_option(Can.REPORT)]
AnalysisFormat = Annotated[Format | None, format_option(Can.SECTION)]
TablesFormat = Annotated[Format | None, format_option(Can.TABLES)]
FactsFormat = Annotated[Format | None, format_option(Can.FACTS)]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write to this file instead of stdout.",
        callback=lambda path: None if path == Path("-") else path,
    ),
]
Figures = Annotated[Path | None, typer.Option(metavar="DIR", help="Also draw the figures into this folder.")]
FigureFormat = Annotated[
    formats.FigureFormat, choice(FIGURE_FORMATS, "--figure-format", text="The format of the figures.")
]
Ncu = Annotated[
    list[Path] | None,
    _names(
        "--ncu", "FILE", "Add the metrics that Nsight Compute measured for the kernels (output of ncu --csv)"
    ),
]

MAX_EVENTS: Final = 4_000_000
"""About 1.6 GB of JSON, and as much memory."""
MaxEvents = Annotated[
    int,
    flag(
        "Read at most about this many events, from the steps around the middle of the trace; 0 reads all.",
        "--max-events",
        min=0,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Read this many traces at once, each in its own process. [default: one per core]",
    ),
]
EngineChoice = Annotated[
    Engine | None,
    choice(
        ENGINES,
        "--engine",
        text="Read the ranks in processes on this machine, or in Dask workers. [default: processes, for more than a few]",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Let the workers of this Dask scheduler (tcp://… or a scheduler file) read the ranks, instead of those that "
        "--engine dask starts here.",
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Neither read nor write the cache of parsed traces.")
]
NoSizeLimit = Annotated[
    bool, typer.Option("--no-size-limit", help="Read a compressed file of any decompressed size.")
]


# -- groups of flags ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedRanges:
    """The user ranges that count as layers."""

    nvtx_depth: Annotated[
        int | None,
        flag(
            "Only this many levels of nested ranges (NVTX, record_function) count as layers.",
            "--nvtx-depth",
            min=1,
        ),
    ] = None
    nvtx_include: Annotated[
        list[str] | None, _names("--nvtx-include", "REGEX", "Only ranges whose name matches count as layers")
    ] = None
    nvtx_exclude: Annotated[
        list[str] | None,
        _names("--nvtx-exclude", "REGEX", "Ranges whose name matches do not count as layers"),
    ] = None
    nvtx_domain: Annotated[
        list[str] | None,
        _names(
            "--nvtx-domain",
            "NAME",
            "Only ranges of this NVTX domain count as layers (`default` is the unnamed one)",
        ),
    ] = None

    @property
    def filter(self) -> RangeFilter | None:
        """The choice, None where there is none. Raises UsageError for what is no regular expression."""
        names = [tuple(given or ()) for given in (self.nvtx_include, self.nvtx_exclude, self.nvtx_domain)]
        if self.nvtx_depth is None and not any(names):
            return None
        from tracekit.range_filter import RangeFilter

        return RangeFilter(self.nvtx_depth, *names)


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection among the traces in the files, and the part of each."""

    rank: Rank = None
    process: Process = None
    step: Step = None
    window: WindowFlag = WindowKind.steps
    comm_pattern: CommPattern = None
    ranges: NamedRanges = field(default_factory=NamedRanges)

    @property
    def chooses(self) -> bool:
        """Whether it names one trace."""
        return self.rank is not None or self.process is not None


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
    """The flags of an analysis."""

    traces: TraceFiles
    selection: Selection = field(default_factory=Selection)
    table: Annotated[
        str | None,
        typer.Option(
            "--table", metavar="NAME", help="Show only this table.", autocompletion=completion.tables
        ),
    ] = None
    top: Top = None
    sort: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Sort tables by this column.", autocompletion=completion.columns),
    ] = None
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
        named = [path for name in _INPUTS for path in _paths(values.get(name))]
        for path in named:
            _check_there(path)
        keep_inputs(named)
        groups = {name: value for name, value in values.items() if name not in own}
        command(**_arguments(parameters, groups), **{name: values[name] for name in own})

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    flags = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in _flags(parameters, own, inside=False)
    ]
    run.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    return run


_INPUTS: Final = ("trace", "traces", "runs")
"""Parameters of commands that are paths to read."""


def _check_there(path: Path) -> None:
    """Raises UnreadableTraceError if there is nothing at a path: of several, one that somebody names is not to be left out."""
    try:
        path.stat()
    except FileNotFoundError:
        text = str(path)
        # What a pattern fits is looked up later.
        if text == "-" or _is_address(path) or set("*?[") & set(text):
            return
        raise UnreadableTraceError("no such file", path=path, remedy="check the path") from None
    except (OSError, ValueError):  # the reader says what is wrong
        return


def _is_address(path: Path) -> bool:
    if ":" not in str(path):
        return False
    from tracekit.readers.remote import address_of

    return address_of(path) is not None


def _paths(value: object) -> list[Path]:
    return [path for path in (value if isinstance(value, list) else [value]) if isinstance(path, Path)]


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
