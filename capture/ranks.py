"""A capture on several ranks: one process each on this machine, and one manifest of them all. It imports no torch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tracekit.capture.output import write_capture
from tracekit.capture.plan import Plan
from tracekit.errors import OutOfMemoryError, TracekitError, UsageError
from tracekit.manifest import Manifest

__all__ = ["record_ranks"]

_POLL_SECONDS: Final = 0.05
_GRACE_SECONDS: Final = 10
_SIGKILL: Final = getattr(signal, "SIGKILL", 9)  # Windows has no such name
_START: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tracekit.capture.rank_process import main; main(sys.argv[2:])"


def record_ranks(plan: Plan, folder: Path, progress: Callable[[str], None]) -> Manifest:
    """Run the plan on its ranks and return the manifest of all their runs, which is written into `folder`.

    Raises the error of the first rank that failed, once the others are stopped; OutOfMemoryError when a step of any
    rank did not fit the memory. What was finished on all ranks stays.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".ranks-") as scratch_name:
        scratch = Path(scratch_name)
        port = _free_port()
        processes = [_start(plan, folder, scratch, rank, port) for rank in range(plan.settings.ranks)]
        failed: int | None = None
        try:
            failed = _wait(processes, scratch, progress)
            codes = [process.poll() for process in processes]
        finally:
            _stop(processes)
            manifest = _merged(scratch, plan)
            if manifest is not None:
                if failed is not None or not _complete(manifest, plan):
                    manifest = msgspec.structs.replace(
                        manifest, stopped=manifest.stopped or "a rank stopped early"
                    )
                manifest = write_capture(folder, manifest)
        if failed is not None:
            raise _error_of(failed, codes, scratch)
    if manifest is None:
        raise TracekitError("the ranks ended without a result")
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
    words = [
        sys.executable,
        "-c",
        _START,
        msgspec.json.encode(sys.path).decode(),
        msgspec.json.encode(plan).decode(),
        str(folder),
        str(scratch),
        str(rank),
    ]
    return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _wait(
    processes: list[subprocess.Popen[bytes]], scratch: Path, progress: Callable[[str], None]
) -> int | None:
    """Wait for all ranks, telling what the first one does; returns the first that failed, None when all went well."""
    told = 0
    while True:
        codes = [process.poll() for process in processes]
        lines = _lines(scratch / "progress")
        for line in lines[told:]:
            progress(line)
        told = len(lines)
        for rank, code in enumerate(codes):
            if code:
                return rank
        if all(code == 0 for code in codes):
            return None
        time.sleep(_POLL_SECONDS)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []  # the first rank has said nothing yet


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """End what still runs, gently first: a rank that is interrupted writes down what it has finished."""
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


def _complete(manifest: Manifest, plan: Plan) -> bool:
    recorded = {run.level for run in manifest.runs}
    return all(level in recorded for level in plan.levels if level != "metrics")


def _error_of(failed: int, codes: list[int | None], scratch: Path) -> TracekitError:
    # The rank that ran out of memory takes others with it, which may be seen to end first.
    for rank, code in enumerate(codes):
        full = scratch / f"memory{rank}"
        if full.exists():
            return OutOfMemoryError(f"rank {rank}: {full.read_text('utf-8').strip()}")
        if code == -_SIGKILL:
            return OutOfMemoryError(
                f"rank {rank}: the system killed it, as it does when memory runs out",
                remedy="lower --batch, --size or --ranks",
            )
    path = scratch / f"error{failed}"
    if path.exists():
        return UsageError(f"rank {failed}: {path.read_text('utf-8').strip()}")
    return TracekitError(f"rank {failed}: it was killed, or crashed")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
