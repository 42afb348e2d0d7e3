"""A capture on several ranks: one process each on this machine, and one manifest for all of them. It imports no torch."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tracekit import errors
from tracekit.capture.output import SCRATCH_PREFIX, put_capture, without_paths
from tracekit.capture.plan import Plan
from tracekit.capture.processes import SIGKILL, ending, words_of
from tracekit.errors import OutOfMemoryError, TracekitError, WorkloadError
from tracekit.files import scratch_folder
from tracekit.manifest import Manifest

__all__ = ["Failure", "error_file", "error_of", "record_ranks"]

_POLL_SECONDS: Final = 0.05
_GRACE_SECONDS: Final = 10


class Failure(msgspec.Struct, frozen=True):
    """The reason why a rank failed, as it writes it: the name of a class in `tracekit.errors`, one line, tracebacks or "".

    `own_part` is the `own_part` of a WorkloadError.
    """

    kind: str
    text: str
    traceback: str = ""
    own_part: str = ""


def error_file(scratch: Path, rank: int) -> Path:
    """The file in which a rank writes why it failed."""
    return scratch / f"error{rank}.json"


def record_ranks(plan: Plan, folder: Path, progress: Callable[[str], None]) -> Manifest:
    """Run the plan on its ranks and return the manifest of all their runs, which is written into `folder`.

    Raises the error of the rank that failed first, once the others are stopped; OutOfMemoryError if a step of any
    rank did not fit into memory. Levels that all ranks have finished stay.
    """
    # What ranks say is not in `folder`: if its disk is full, they must still be able to write so. Their traces wait in it
    # for the manifest, so that they never stand beside that of an older capture.
    with scratch_folder() as scratch_name, scratch_folder(folder, prefix=SCRATCH_PREFIX) as drafts_name:
        scratch, drafts = Path(scratch_name), Path(drafts_name)
        port = _free_port()
        processes: list[subprocess.Popen[bytes]] = []
        error: TracekitError | None = None
        try:
            processes += (_start(plan, drafts, scratch, rank, port) for rank in range(plan.settings.ranks))
            failed = _wait(processes, scratch, progress)
            codes = [process.poll() for process in processes]
            error = None if failed is None else error_of(failed, codes, scratch)
        except KeyboardInterrupt:
            _keep_finished(processes, scratch, plan, (drafts, folder), stopped="interrupted")
            raise
        finally:
            _stop(processes)
        why = None if error is None else without_paths(str(error))
        manifest = _keep_finished(processes, scratch, plan, (drafts, folder), stopped=why)
    if error is not None:
        raise error
    if manifest is None:
        raise TracekitError("the ranks ended without a result")
    return manifest


def _keep_finished(
    processes: list[subprocess.Popen[bytes]],
    scratch: Path,
    plan: Plan,
    folders: tuple[Path, Path],
    *,
    stopped: str | None,
) -> Manifest | None:
    """End the ranks and put the levels that all have finished from the first folder into the second, with their manifest.

    Returns the manifest; None if there are no such levels.
    """
    _stop(processes)
    manifest = _merged(scratch, plan)
    if manifest is None or (stopped and not manifest.runs):
        return None
    manifest = msgspec.structs.replace(manifest, stopped=stopped)
    put_capture(*folders, manifest)
    return manifest


def _start(plan: Plan, folder: Path, scratch: Path, rank: int, port: int) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(plan.settings.ranks),
    }
    words = words_of("tracekit.capture.ranks.process", plan, folder, scratch, rank)
    return subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is for this process, which ends the ranks, also while they are still starting
    )


def _wait(
    processes: list[subprocess.Popen[bytes]], scratch: Path, progress: Callable[[str], None]
) -> int | None:
    """Wait for all ranks and report the progress of the first; returns the rank that failed first, or None."""
    lines_out = 0
    while True:
        codes = [process.poll() for process in processes]
        lines = _lines(scratch / "progress")
        for line in lines[lines_out:]:
            progress(line)
        lines_out = len(lines)
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            return min(failed, key=lambda rank: _failed_at(scratch, rank))
        if all(code == 0 for code in codes):
            return None
        time.sleep(_POLL_SECONDS)


def _failed_at(scratch: Path, rank: int) -> int:
    """The time at which a rank wrote its error. If one rank fails, the others fail a moment later because it is missing.

    A rank without an error was killed. Another rank's error cannot have caused that, so it comes first.
    """
    path = error_file(scratch, rank)
    return path.stat().st_mtime_ns if path.exists() else 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []  # the first rank has written nothing yet


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the ranks that still run, first by an interrupt, after which a rank writes the levels that it has finished."""
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        if process.poll() is None:
            process.terminate()
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(_POLL_SECONDS)
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _merged(scratch: Path, plan: Plan) -> Manifest | None:
    """The first rank's manifest with the runs of all ranks; only levels that every rank has finished count."""
    parts = []
    for rank in range(plan.settings.ranks):
        path = scratch / f"rank{rank}.json"
        if not path.exists():
            return None
        parts.append(msgspec.json.decode(path.read_bytes(), type=Manifest))
    runs = []
    for level in plan.levels:
        of_level = [run for part in parts for run in part.runs if run.level == level]
        if len(of_level) == len(parts):
            runs += of_level
    skipped = sum(part.skipped_samples for part in parts)
    return msgspec.structs.replace(parts[0], runs=runs, skipped_samples=skipped)


def error_of(failed: int, codes: list[int | None], scratch: Path) -> TracekitError:
    """The error to raise if rank `failed` is the first that was seen to fail; `codes` are the exit codes of all ranks."""
    # The rank that ran out of memory makes others fail, whose end may be seen first.
    for rank, code in enumerate(codes):
        failure = _failure(scratch, rank)
        if failure is not None and failure.kind == OutOfMemoryError.__name__:
            return _raised(rank, failure)
        if code == -SIGKILL:
            return OutOfMemoryError(
                f"rank {rank}: the system killed it, as it does when memory runs out",
                remedy="lower --batch, --size or --ranks",
            )
    failure = _failure(scratch, failed)
    return (
        _raised(failed, failure)
        if failure
        else TracekitError(f"rank {failed}: {ending(codes[failed], missing='word')}")
    )


def _failure(scratch: Path, rank: int) -> Failure | None:
    path = error_file(scratch, rank)
    return msgspec.json.decode(path.read_bytes(), type=Failure) if path.exists() else None


def _raised(rank: int, failure: Failure) -> TracekitError:
    """The error that a rank wrote, as the same class, with the rank's traceback as its cause."""
    kind = getattr(errors, failure.kind, TracekitError)
    error: TracekitError = kind(f"rank {rank}: {failure.text}")
    if isinstance(error, WorkloadError):
        error.traceback = failure.own_part
    error.__cause__ = _InAnotherProcess(failure.traceback) if failure.traceback else None
    return error


class _InAnotherProcess(Exception):  # noqa: N818 - it carries the text of an error, and is none itself
    """The traceback of a rank, so that it is shown in the same place as the traceback of a single process."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
