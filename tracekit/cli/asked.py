"""The flags that every analysis takes, declared once, and commands that take them beside their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields

from tracekit.cli import options as flags
from tracekit.cli.options import WindowKind
from tracekit.ranges import RangeFilter, range_filter

__all__ = ["Asked", "with_flags"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command line asks of an analysis. The fields are the flags, in the order of the help."""

    traces: flags.TraceFiles
    rank: flags.Rank = None
    process: flags.Process = None
    step: flags.Step = None
    window: flags.WindowFlag = WindowKind.steps
    comm_pattern: flags.CommPatterns = None
    nvtx_depth: flags.NvtxDepth = None
    nvtx_include: flags.NvtxInclude = None
    nvtx_exclude: flags.NvtxExclude = None
    nvtx_domain: flags.NvtxDomain = None
    table: flags.TableName = None
    top: flags.Top = None
    sort: flags.Sort = None
    format_: flags.FormatFlag = None
    output: flags.Output = None
    max_events: flags.MaxEvents = flags.MAX_EVENTS
    no_cache: flags.NoCache = False
    no_size_limit: flags.NoSizeLimit = False

    @property
    def ranges(self) -> RangeFilter | None:
        """Which named ranges count as layers. Raises UsageError for what is no regular expression."""
        return range_filter(self.nvtx_depth, self.nvtx_include, self.nvtx_exclude, self.nvtx_domain)


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes the flags of `Asked` and those of `command`, which gets an `Asked` as its first argument.

    A flag of its own takes the place of a shared one of the same name.
    """
    # typer resolves annotations in the module of a function; in a signature they are objects already.
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    replaced = {parameter.name for parameter in own}
    shared = inspect.signature(Asked, eval_str=True).parameters
    kept = [shared[field.name] for field in fields(Asked) if field.name not in replaced]

    def run(**given: object) -> None:
        asked = Asked(**{parameter.name: given.pop(parameter.name) for parameter in kept})  # type: ignore[arg-type]
        command(asked, **given)

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    keyword = inspect.Parameter.KEYWORD_ONLY
    shown = [each.replace(kind=keyword) for each in (*kept, *own)]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return run
