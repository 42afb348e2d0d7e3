"""Reading the traces that a command was given, with progress on a terminal's stderr."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.errors import UsageError
from tracekit.facts.capture_names import MANIFEST_FILE
from tracekit.limits import Limits
from tracekit.range_filter import RangeFilter
from tracekit.readers.digest import digest_of

if TYPE_CHECKING:
    from tracekit.readers.ncu import NcuReport
    from tracekit.trace import Trace

__all__ = [
    "attached",
    "digests_of",
    "expanded",
    "limits_of",
    "load",
    "load_all",
    "load_file",
    "manifest_digests",
    "read_reports",
]

_M_MMAP_THRESHOLD: Final = -3  # of malloc.h
_RETURNED_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 128 << 20
_LONG_HASH_BYTES: Final = 256 << 20
"""The digest of less than this is known before Polars could be imported."""

_PROGRESS_AFTER_S: Final = 0.5
_PROGRESS_EVERY_S: Final = 0.1


def expanded(paths: Sequence[Path]) -> list[Path]:
    """The same paths, with the folder of a capture replaced by its traces, one a rank.

    Raises UnreadableTraceError for a folder with a damaged manifest.
    """
    found: list[Path] = []
    for path in paths:
        if _is_capture(path):
            from tracekit.manifest import traces_in

            found += traces_in(path)
        else:
            found.append(path)
    return found


def _is_capture(path: Path) -> bool:
    try:
        return (path / MANIFEST_FILE).is_file()
    except (OSError, ValueError):
        return False  # the reader says what is wrong with it


def manifest_digests(paths: Sequence[Path]) -> list[str | None]:
    """The digest of what may say more of each trace: the manifest beside it, None where there is none."""
    return [digest_of(path.parent / MANIFEST_FILE) for path in paths]


def digests_of(paths: Sequence[Path], *, no_cache: bool) -> list[str | None]:
    """The digest of each file's content, one after the other; None for what is not to be cached."""
    _give_memory_back(paths)
    if no_cache:
        return [None] * len(paths)
    with ThreadPoolExecutor(1) as beside:
        # A pipe cannot be read twice, and a device has no end.
        hashing = [beside.submit(digest_of, path) if _is_regular(path) else None for path in paths]
        if sum(path.stat().st_size for path, it in zip(paths, hashing, strict=True) if it) > _LONG_HASH_BYTES:
            # Hashing releases the interpreter, so that it hides the import of Polars, which is needed most times.
            import tracekit.api  # noqa: F401
        return [it.result() if it else None for it in hashing]


def _give_memory_back(paths: Sequence[Path]) -> None:
    """Of large files, let both allocators return freed memory at once: a third less of it, for a tenth more time.

    That of Polars reads this when Polars is imported, and not later. That of NumPy (the C library's) keeps blocks as
    large as the largest that was ever freed, unless it is told a size (glibc; others have no such call).
    """
    if sum(path.stat().st_size for path in paths if _is_regular(path)) <= _LARGE_BYTES:
        return
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)
    if "polars" not in sys.modules:
        os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")


def limits_of(*, no_size_limit: bool, max_events: int) -> Limits:
    """What the flags say about how much is read."""
    return Limits(enforced=not no_size_limit, max_events=max_events or None)


def load_file(
    path: Path,
    *,
    limits: Limits,
    digest: str | None = None,
    comm_patterns: Sequence[str] | None = None,
) -> list[Trace]:
    """The traces of one file, one per process; through the cache when its digest is given.

    Raises UnreadableTraceError when it cannot be read and UsageError when a pattern is no regular expression.
    """
    import tracekit.api

    progress = _progress(path)
    try:
        traces = tracekit.api.read_all(
            path,
            limits=limits,
            cache=digest is not None,
            digest=digest,
            progress=progress,
        )
    finally:
        progress(-1, 0)
    return [_with_patterns(trace, comm_patterns) for trace in traces] if comm_patterns else traces


def load(
    path: Path,
    *,
    limits: Limits,
    digest: str | None = None,
    process: int | None = None,
    ranges: RangeFilter | None = None,
) -> Trace:
    """The one trace of a file, or that of a process of it; of its named ranges `ranges` count as layers.

    Raises UnreadableTraceError when it cannot be read, UsageError when it holds several processes and none is named, or
    `ranges` leaves none.
    """
    traces = load_file(path, limits=limits, digest=digest)
    chosen = _of_process(traces, process)
    if len(chosen) > 1:
        raise UsageError(
            f"it holds {len(chosen)} processes", path=path, remedy=f"name one: --process {_listed(chosen)}"
        )
    return _with_ranges(chosen[0], ranges)


def _of_process(traces: list[Trace], process: int | None) -> list[Trace]:
    """The traces of this process, all when none is named. Raises UsageError when there is no such process."""
    if process is None:
        return traces
    chosen = [trace for trace in traces if process in trace.meta.process_ids]
    if not chosen:
        raise UsageError(f"no trace is of process {process}", remedy=f"choose of {_listed(traces)}")
    return chosen


def _listed(traces: list[Trace]) -> str:
    return ", ".join(str(each) for trace in traces for each in trace.meta.process_ids) or "not known"


def _is_regular(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False  # the reader says what is wrong with it


def load_all(
    paths: Sequence[Path],
    *,
    digests: Sequence[str | None],
    rank: int | None,
    process: int | None = None,
    limits: Limits,
    comm_patterns: Sequence[str] | None = None,
    ranges: RangeFilter | None = None,
) -> list[Trace]:
    """The traces of these files, all processes of each; with `rank` or `process`, only the one of that.

    Raises UsageError when no trace, or more than one, is of that rank, when none is of that process, and when `ranges`
    leaves none of the named ranges of a trace.
    """
    traces = [
        trace
        for path, digest in zip(paths, digests, strict=True)
        for trace in load_file(path, limits=limits, digest=digest, comm_patterns=comm_patterns)
    ]
    traces = _of_process(traces, process)
    if rank is None:
        return [_with_ranges(trace, ranges) for trace in traces]
    chosen = [trace for trace in traces if trace.meta.rank == rank]
    if len(chosen) == 1:
        return [_with_ranges(chosen[0], ranges)]
    found = ", ".join(f"{t.meta.name}: {'unknown' if t.meta.rank is None else t.meta.rank}" for t in traces)
    fault = f"{'no trace is' if not chosen else 'several traces are'} of rank {rank}"
    raise UsageError(fault, remedy=f"the ranks are {found}")


def read_reports(paths: Sequence[Path] | None) -> list[NcuReport]:
    """The tables of Nsight Compute in these files. Raises UnreadableTraceError for one that holds none."""
    if not paths:
        return []
    from tracekit.readers.ncu import read_ncu

    return [read_ncu(path) for path in paths]


def attached(trace: Trace, reports: Sequence[NcuReport]) -> tuple[Trace, bool]:
    """The trace with the metrics of the reports, and whether any kernel has them; if none has, stderr says so."""
    if not reports:
        return trace, True
    from tracekit.analyses.counters.ncu import join_ncu

    match = join_ncu(trace, *reports)
    if not match.linked:
        name = "".join(letter if letter.isprintable() else "?" for letter in trace.meta.name)
        sys.stderr.write(
            f"warning: {name}: of {match.measured:,} launches that Nsight Compute measured none fits one of the "
            f"{match.kernels:,} kernels of the trace ({match.unmatched:,} by name, grid and block, {match.ambiguous:,} by "
            "their number)\n"
        )
    return match.trace, match.linked > 0


def _with_patterns(trace: Trace, patterns: Sequence[str]) -> Trace:
    """The same trace with the categories found again, with more names of collectives."""
    from tracekit.classify import recategorise

    return recategorise(trace, patterns)


def _with_ranges(trace: Trace, ranges: RangeFilter | None) -> Trace:
    """The same trace, of whose named ranges these count as layers."""
    if ranges is None:
        return trace
    from tracekit.analyses.attribution.layer_ranges import choose_ranges

    return choose_ranges(trace, ranges)


def _progress(path: Path) -> Callable[[int, int], None]:
    """A line with the share of the file that was read, on a terminal only; called with −1 it wipes itself."""
    began = shown = time.monotonic()
    visible = False
    wanted = sys.stderr.isatty()
    name = "".join(letter if letter.isprintable() else "?" for letter in path.name)

    def report(plain_bytes: int, _file_bytes: int) -> None:
        nonlocal shown, visible
        if not wanted:
            return
        now = time.monotonic()
        if plain_bytes < 0:
            if visible:
                sys.stderr.write("\r\033[K")
                sys.stderr.flush()
            return
        if now - began < _PROGRESS_AFTER_S or now - shown < _PROGRESS_EVERY_S:
            return
        shown, visible = now, True
        rate = plain_bytes / (now - began) / 1e6
        sys.stderr.write(f"\r\033[Kreading {name}: {plain_bytes / 1e6:,.0f} MB, {rate:,.0f} MB/s")
        sys.stderr.flush()

    return report
