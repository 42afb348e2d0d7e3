"""The functions of the package's front door."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tracekit import cache as parsed
from tracekit.digest import digest_of
from tracekit.errors import UnreadableTraceError
from tracekit.limits import Limits
from tracekit.manifest import MANIFEST_FILE, manifest_beside, traces_in
from tracekit.trace import Trace

__all__ = ["read"]


def read(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    cache: bool = False,
    digest: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Read a trace file of any known format, or the one trace of a capture's folder.

    All of it is read, unless `limits` sets `max_events`. With `cache`, the parsed frames are kept on disk (see `tracekit.cache`) and used the next time, whatever the
    file's name; `digest` is the file's `digest_of`, if the caller has it already. `progress` is called with (plain bytes decoded so far, size of the file in bytes). Raises
    UnreadableTraceError when the file is missing, is not a trace, or is damaged beyond repair.
    """
    file = _trace_file(Path(path))
    if cache and digest is None:
        digest = digest_of(file)
    manifest = manifest_beside(file)
    trace = _read(file, limits, cache=cache, digest=digest, progress=progress)
    return trace if manifest is None else replace(trace, manifest=manifest)


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
    cache: bool,
    digest: str | None,
    progress: Callable[[int, int], None] | None,
) -> Trace:
    most = limits.max_events if limits is not None else None
    if cache and digest is not None and (known := parsed.load(digest, path, max_events=most)) is not None:
        return known
    from tracekit.readers.kineto import read_kineto  # noqa: PLC0415 - 60 ms that a cached trace does not need

    trace = read_kineto(path, limits=limits, progress=progress)
    if cache and digest is not None:
        parsed.store(digest, trace, max_events=most)
    return trace
