"""The analysed parts of a file, and their summaries: what a worker makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tracekit.analyses.attribution.layer_ranges import choose_ranges
from tracekit.analyses.ranks import summary_of
from tracekit.analyses.ranks.summary import MOST_CALLS, packed
from tracekit.analyses.scope import Scope, select
from tracekit.api import read_all
from tracekit.classify import recategorise
from tracekit.errors import UnreadableTraceError
from tracekit.trace import Trace

if TYPE_CHECKING:
    from tracekit.job.engine import Options

__all__ = ["check_events", "scopes_of", "summaries"]


def summaries(path: str, options: Options) -> Iterator[bytes]:
    """The packed summary of each process in a file. Raises what `scopes_of` raises, and UnreadableTraceError if the file holds no event: it would be
    of no job.
    """
    most = MOST_CALLS if options.most_calls is None else min(MOST_CALLS, options.most_calls)
    for scope in scopes_of(path, options):
        check_events(scope.trace, path)
        yield packed([summary_of(scope, most)])


def check_events(trace: Trace, path: str) -> None:
    """Raise UnreadableTraceError if one of several traces holds no event."""
    if not trace.host.height and not trace.device.height:
        cut = (trace.health["kind"] == "truncated_file").any()
        fault = "the file is truncated before its first event" if cut else "the file holds no event"
        raise UnreadableTraceError(fault, path=path, remedy="record it again")


def scopes_of(
    path: str,
    options: Options,
    prepared: Callable[[Trace], Trace] = lambda trace: trace,
    *,
    digest: str | None = None,
) -> Iterator[Scope]:
    """The part that the options choose of each process in a file, whose trace is prepared before; `digest` is that of its bytes, where it is
    known. Raises what `tracekit.read_all` and `scope.select` raise.
    """
    for trace in read_all(path, limits=options.limits, cache=options.cache, digest=digest):
        chosen = choose_ranges(recategorise(trace, options.comm_patterns), options.ranges)
        yield select(prepared(chosen), window=options.window, step=options.step)
