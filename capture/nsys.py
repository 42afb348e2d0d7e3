"""A capture under Nsight Systems: the program runs itself again under `nsys profile`. It imports no torch.

nsys takes the place of torch's profiler, because a GPU allows only one profiler. If MLG is among the levels, ML runs
instead, and nsys records its ranges with the kernels. On a GPU the profile holds only the recorded steps of that level;
a CPU run cannot tell nsys when these begin, so the profile holds the whole run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from tracekit.capture.output import prepare_folder, write_capture
from tracekit.errors import MissingDependencyError, TracekitError, UsageError
from tracekit.files import scratch_folder
from tracekit.manifest import MANIFEST_FILE, Level, read_manifest

__all__ = ["PROFILE_FILE", "collects", "command", "levels_under_nsys", "noted", "profile", "under_nsys"]

PROFILE_FILE: Final = "profile.nsys-rep"
_VARIABLE: Final = "TRACEKIT_UNDER_NSYS"
"""Environment variable: the file in which the program under nsys writes its progress."""

_BEGUN, _FINISHED = "begun", "finished"
_POLL_SECONDS: Final = 0.1
_GRACE_SECONDS: Final = 60
"""The time that nsys has to write its profile after a Ctrl-C."""


def levels_under_nsys(levels: Sequence[Level]) -> tuple[Level, ...]:
    """The levels that run if the user asks for `levels`. Raises UsageError if none of them has ranges to record.

    >>> levels_under_nsys(("M", "MLG", "metrics"))
    ('M', 'ML', 'metrics')
    """
    runnable: dict[Level, None] = {"ML" if level == "MLG" else level: None for level in levels}
    if "ML" not in runnable:
        raise UsageError("nsys has nothing to record at these levels", remedy="add MLG to --levels")
    return tuple(runnable)


def under_nsys() -> bool:
    """True if `profile` started this process or an ancestor of it."""
    return _VARIABLE in os.environ


def collects(level: Level, device_type: str) -> bool:
    """True if nsys must be told when the recorded steps of this level begin and end."""
    return under_nsys() and level == "ML" and device_type == "cuda"


def command(nsys: str, words: Sequence[str], folder: Path, *, on_gpu: bool) -> list[str]:
    """The command line that runs the program `words` under `nsys` and writes `PROFILE_FILE` into `folder`."""
    window = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if on_gpu else []
    return [
        *(nsys, "profile", "-t", "cuda,nvtx,osrt,cudnn,cublas"),
        *window,
        *("--cuda-graph-trace=node", "--force-overwrite=true"),
        *("-o", str(folder / PROFILE_FILE.removesuffix(".nsys-rep"))),
        *words,
    ]


def profile(words: Sequence[str], folder: Path, *, on_gpu: bool) -> int:
    """Run the capture `words`, which writes into `folder`, under nsys; return the exit code for this process.

    0: the profile exists, and the manifest names it. Another code: the capture has failed and has printed why; if nsys
    wrote a profile anyway, also after a Ctrl-C, the manifest names it. stdout of both goes to stderr.

    Raises `MissingDependencyError` if nsys is not on the PATH, and `TracekitError` if nsys itself failed.
    """
    nsys = shutil.which("nsys")
    if nsys is None:
        raise MissingDependencyError(
            "nsys is not on the PATH",
            remedy="install Nsight Systems from https://developer.nvidia.com/nsight-systems",
        )
    folder = prepare_folder(folder)
    paths = folder / MANIFEST_FILE, folder / PROFILE_FILE
    before = [_written_at(path) for path in paths]
    with scratch_folder(folder, prefix=".nsys-") as scratch:
        note = Path(scratch) / "outcome"
        try:
            code = _run(command(nsys, words, folder, on_gpu=on_gpu), note)
        finally:
            fresh = [_written_at(path) not in (None, old) for path, old in zip(paths, before, strict=True)]
            if all(fresh):
                _name_profile(folder)
        outcome = note.read_text("utf-8") if note.exists() else ""
    if outcome == _BEGUN:
        return code or 1
    _check_nsys(code, finished=outcome == _FINISHED, wrote=fresh[1])
    return 0


@contextmanager
def noted() -> Iterator[None]:
    """Context of a capture: tells the `profile` that started this process that it has begun, and that it succeeded."""
    path = os.environ.get(_VARIABLE)
    if path is not None:
        Path(path).write_text(_BEGUN, "utf-8")
    yield
    if path is not None:
        Path(path).write_text(_FINISHED, "utf-8")


def _check_nsys(code: int, *, finished: bool, wrote: bool) -> None:
    if not finished:
        raise TracekitError(
            f"nsys ended with exit code {code} before the capture began", remedy="see its messages above"
        )
    if code:
        raise TracekitError(
            f"nsys ended with exit code {code} after the capture", remedy="see its messages above"
        )
    if not wrote:
        raise TracekitError("nsys wrote no profile", remedy="see its messages above")


def _run(words: list[str], note: Path) -> int:
    """Wait for nsys and return its exit code.

    It has its own process group, so that this process forwards a Ctrl-C to it and its program exactly once: after a
    second Ctrl-C nsys writes no profile. Raises KeyboardInterrupt once nsys has ended.
    """
    process = subprocess.Popen(
        words,
        env={**os.environ, _VARIABLE: str(note)},
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )
    try:
        # Polling: once Polars is loaded, Ctrl-C no longer ends a blocking wait.
        while (code := process.poll()) is None:
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        _end(process)
        raise
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(_GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _name_profile(folder: Path) -> None:
    manifest = read_manifest(folder / MANIFEST_FILE)
    write_capture(folder, msgspec.structs.replace(manifest, nsys=PROFILE_FILE))


def _written_at(path: Path) -> int | None:
    return path.stat().st_mtime_ns if path.exists() else None
