"""Groups of flags that commands share, each declared once, and commands that take whole groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import Any, TypeGuard

from tracekit.cli import options as flags
from tracekit.cli.loading import limits_of
from tracekit.cli.options import WindowKind
from tracekit.limits import Limits
from tracekit.range_filter import RangeFilter, range_filter

__all__ = ["Asked", "NamedRanges", "Reading", "Which", "with_flags"]


@dataclass(frozen=True, slots=True)
class NamedRanges:
    """Which named ranges count as layers."""

    nvtx_depth: flags.NvtxDepth = None
    nvtx_include: flags.NvtxInclude = None
    nvtx_exclude: flags.NvtxExclude = None
    nvtx_domain: flags.NvtxDomain = None

    @property
    def filter(self) -> RangeFilter | None:
        """The choice, None where there is none. Raises UsageError for what is no regular expression."""
        return range_filter(self.nvtx_depth, self.nvtx_include, self.nvtx_exclude, self.nvtx_domain)


@dataclass(frozen=True, slots=True)
class Which:
    """Which of the traces in the files are asked about, and what of them."""

    rank: flags.Rank = None
    process: flags.Process = None
    step: flags.Step = None
    window: flags.WindowFlag = WindowKind.steps
    comm_pattern: flags.CommPatterns = None
    ranges: NamedRanges = field(default_factory=NamedRanges)


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read."""

    max_events: flags.MaxEvents = flags.MAX_EVENTS
    no_cache: flags.NoCache = False
    no_size_limit: flags.NoSizeLimit = False

    @property
    def limits(self) -> Limits:
        """How much is read."""
        return limits_of(no_size_limit=self.no_size_limit, max_events=self.max_events)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks of an analysis."""

    traces: flags.TraceFiles
    which: Which = field(default_factory=Which)
    table: flags.TableName = None
    top: flags.Top = None
    sort: flags.Sort = None
    format_: flags.FormatFlag = None
    output: flags.Output = None
    reading: Reading = field(default_factory=Reading)


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are groups (dataclasses, of flags and of groups) are flags, in their place.

    A flag of the command's own takes the place of one of the same name in a group, which keeps its default there.
    """
    parameters = _parameters(command)
    own = {parameter.name for parameter in parameters if not _is_group(parameter.annotation)}

    def run(**given: object) -> None:
        groups = {name: value for name, value in given.items() if name not in own}
        command(**_filled(parameters, groups), **{name: given[name] for name in own})

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    shown = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in _flags(parameters, own, inside=False)
    ]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
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


def _filled(parameters: Iterable[inspect.Parameter], given: dict[str, object]) -> dict[str, Any]:
    """Those of the parameters that have a value, and the groups, of theirs."""
    found: dict[str, Any] = {}
    for parameter in parameters:
        group = parameter.annotation
        if _is_group(group):
            found[parameter.name] = group(**_filled(_parameters(group), given))
        elif parameter.name in given:
            found[parameter.name] = given[parameter.name]
    return found
