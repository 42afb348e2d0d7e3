"""The functions of the package's front door."""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import tracekit
from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.files import digest_of
from tracekit.health import with_defect
from tracekit.limits import Limits
from tracekit.manifest import MANIFEST_FILE, traces_in, usable_manifest_beside
from tracekit.readers import FORMATS, format_of
from tracekit.readers import cache as parsed
from tracekit.readers.format import Progress
from tracekit.trace import Trace

__all__ = ["read", "read_all"]


def read(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    cache: bool = False,
    digest: str | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read a trace file of any known format, that of an address (https://, s3://, gs://), or the one of a capture's folder.

    All of it is read, unless `limits` sets `max_events`. With `cache`, the parsed frames are kept on disk (see
    `tracekit.readers.cache`) and used the next time, whatever the file's name; `digest` is the file's `digest_of`, if the
    caller has it already. `progress` is called with (plain bytes decoded so far, size of the file in bytes). Raises
    UnreadableTraceError when the file is missing, is not a trace, is damaged beyond repair, or holds several processes
    (see `read_all`).
    """
    traces = read_all(path, limits=limits, cache=cache, digest=digest, progress=progress)
    if len(traces) > 1:
        processes = ", ".join(str(trace.meta.process_id or "unknown") for trace in traces[:8])
        fault = f"it holds the traces of {len(traces)} processes ({processes})"
        raise UnreadableTraceError(fault, path=path, remedy="use tracekit.read_all")
    return traces[0]


def read_all(
    path: str | os.PathLike[str],
    *,
    limits: Limits | None = None,
    cache: bool = False,
    digest: str | None = None,
    progress: Progress | None = None,
) -> list[Trace]:
    """Read all traces of a file: one per process that worked on a device, in order of the process id.

    An Nsight Systems export may hold several; a file of PyTorch's profiler holds one. The arguments and errors are those of
    `read`.

    >>> [trace.meta.rank for trace in read_all("sample_traces/cnn_cpu/trace.json.gz")]
    [None]
    """
    if ":" in os.fspath(path):
        from tracekit.readers.remote import address_of  # noqa: PLC0415 - 15 ms that a file does not need

        if (address := address_of(path)) is not None:
            return _read_remote(address, limits, cache=cache, progress=progress)
    file, limits = _trace_file(Path(path)), limits or Limits()
    key = _of_version(digest or digest_of(file)) if cache else None
    traces = None if key is None else _cached(key, file, limits)
    if traces is None:
        found = format_of(file)
        traces = found.read(file, limits, progress)
        if (
            key is not None and found in FORMATS
        ):  # the code of another package's reader may change without notice
            apart = len(traces) > 1 and not traces[-1].device.height
            parsed.store(_key(key, limits) if apart else key, traces, max_events=limits.max_events)
    return _with_manifest(traces, file)


def _with_manifest(traces: list[Trace], file: Path) -> list[Trace]:
    """The traces with the manifest beside the file; if it cannot be used, their health says so."""
    try:
        manifest = usable_manifest_beside(file)
    except UnreadableTraceError as error:
        fault = error.fault
        return [replace(one, health=with_defect(one.health, "unused_manifest", fault)) for one in traces]
    return traces if manifest is None else [replace(trace, manifest=manifest) for trace in traces]


def _read_remote(
    address: str, limits: Limits | None, *, cache: bool, progress: Progress | None
) -> list[Trace]:
    """The traces of the file at an address, which is fetched each time; errors and traces name the address."""
    from tracekit.readers.remote import fetched, masked  # noqa: PLC0415

    with fetched(address) as file:
        try:
            traces = read_all(file, limits=limits, cache=cache, progress=progress)
        except UnreadableTraceError as error:
            raise UnreadableTraceError(error.fault, path=masked(address), remedy=error.remedy) from error
    return [replace(trace, meta=replace(trace.meta, path=masked(address))) for trace in traces]


def _cached(digest: str, file: Path, limits: Limits) -> list[Trace] | None:
    """The traces from the cache; if all processes are wanted, those of a file that leaves none out will do."""
    own = parsed.load(_key(digest, limits), file, max_events=limits.max_events)
    if own is not None or not limits.all_processes:
        return own
    traces = parsed.load(digest, file, max_events=limits.max_events) or []
    complete = not any((trace.health["kind"] == "other_process").any() for trace in traces)
    return traces if traces and complete else None


def _of_version(digest: str | None) -> str | None:
    """The key of what this version reads in a file with this digest: another one may find more in it, or less."""
    return None if digest is None else sha256(f"{digest} by {tracekit.__version__}".encode()).hexdigest()


def _key(digest: str, limits: Limits) -> str:
    """The key of a file in the cache, another one if all its processes are read."""
    return sha256(f"{digest} with all processes".encode()).hexdigest() if limits.all_processes else digest


def _trace_file(path: Path) -> Path:
    try:
        if not (path / MANIFEST_FILE).is_file():
            return path
    except (OSError, ValueError) as error:
        fault = f"it cannot be read ({reason_of(error)})"
        raise UnreadableTraceError(fault, path=path, remedy="check the path") from error
    files = traces_in(path)
    if len(files) > 1:
        raise UnreadableTraceError(f"it holds the traces of {len(files)} ranks", path=path, remedy="name one")
    return files[0]
