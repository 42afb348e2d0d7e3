"""The functions of the package's front door."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tracekit.errors import UnreadableTraceError
from tracekit.limits import Limits
from tracekit.manifest import MANIFEST_FILE, manifest_beside, traces_in
from tracekit.readers import cache as parsed
from tracekit.readers.digest import digest_of
from tracekit.trace import Trace

__all__ = ["read", "read_all"]


def read(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    cache: bool = False,
    digest: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read a trace file of any known format, or the one trace of a capture's folder.

    All of it is read, unless `limits` sets `max_events`. With `cache`, the parsed frames are kept on disk (see `tracekit.readers.cache`) and used the next time, whatever the
    file's name; `digest` is the file's `digest_of`, if the caller has it already. `progress` is called with (plain bytes decoded so far, size of the file in bytes). Raises
    UnreadableTraceError when the file is missing, is not a trace, is damaged beyond repair, or holds several processes (see `read_all`).
    """
    found = read_all(path, limits=limits, cache=cache, digest=digest, progress=progress)
    if len(found) > 1:
        processes = ", ".join(str(trace.meta.process_ids[0]) for trace in found[:8])
        fault = f"it holds the traces of {len(found)} processes ({processes})"
        raise UnreadableTraceError(fault, path=path, remedy="use tracekit.read_all")
    return found[0]


def read_all(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    cache: bool = False,
    digest: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trace]:
    """Read all traces of a file: one per process that worked on a device, in order of the process id.

    An Nsight Systems export may hold several; files of other formats hold one. The arguments and errors are those of `read`.

    >>> [trace.meta.rank for trace in read_all("sample_traces/cnn_cpu/trace.json.gz")]
    [None]
    """
    file = _trace_file(Path(path))
    if cache and digest is None:
        digest = digest_of(file)
    manifest = manifest_beside(file)
    traces = _read(file, limits, digest=digest if cache else None, progress=progress)
    return traces if manifest is None else [replace(trace, manifest=manifest) for trace in traces]


def _trace_file(path: Path) -> Path:
    if not (path / MANIFEST_FILE).is_file():
        return path
    found = traces_in(path)
    if len(found) > 1:
        raise UnreadableTraceError(f"it holds the traces of {len(found)} ranks", path=path, remedy="name one")
    return found[0]


def _read(
    path: Path,
    limits: Limits | None,
    *,
    digest: str | None,
    progress: Callable[[int, int], None] | None,
) -> list[Trace]:
    most = limits.max_events if limits is not None else None
    if digest is not None and (known := _cached(digest, path, most)) is not None:
        return known
    traces = _parsed(path, limits, progress)
    if digest is not None:
        for trace in traces:
            parsed.store(digest, trace, max_events=most)
    return traces


def _cached(digest: str, path: Path, most: int | None) -> list[Trace] | None:
    """All traces of the file, or None when one of them is not in the cache."""
    first = parsed.load(digest, path, max_events=most)
    if first is None:
        return None
    others = [parsed.load(digest, path, max_events=most, part=part) for part in range(1, first.meta.parts)]
    return None if None in others else [first, *(trace for trace in others if trace is not None)]


def _parsed(path: Path, limits: Limits | None, progress: Callable[[int, int], None] | None) -> list[Trace]:
    # Each reader is imported where it is needed: 60 ms that a cached trace does not need.
    from tracekit.readers.nsys import is_nsys, read_nsys  # noqa: PLC0415
    from tracekit.readers.nsys.rep import export_report, is_report  # noqa: PLC0415

    if is_report(path):
        with export_report(path, progress) as export:
            return [_named(trace, path) for trace in read_nsys(export, limits=limits, progress=progress)]
    if is_nsys(path):
        return read_nsys(path, limits=limits, progress=progress)
    from tracekit.readers.kineto import read_kineto  # noqa: PLC0415

    return [read_kineto(path, limits=limits, progress=progress)]


def _named(trace: Trace, path: Path) -> Trace:
    """The trace of an export under the name of the report that it was made from."""
    return replace(trace, meta=replace(trace.meta, path=os.fspath(path), size_bytes=path.stat().st_size))
