"""One run of a sweep in its own process, so that no run inherits another's memory, caches or crash.

It imports no torch; the process that it starts does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from tracekit.capture.plan import Plan
from tracekit.capture.processes import SIGKILL, ending, words_of
from tracekit.capture.run import run
from tracekit.errors import OutOfMemoryError, TracekitError
from tracekit.files import scratch_folder
from tracekit.sweep_index import Status

__all__ = ["GRACE_SECONDS", "Outcome", "command", "main", "run_plan"]

GRACE_SECONDS: Final = 10
_POLL_SECONDS: Final = 0.1
_KILLED: Final = frozenset({-SIGKILL, 128 + SIGKILL})
_LONGEST_ERROR: Final = 300


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run: its `status`, one line if it did not succeed, and the `seconds` that its process took."""

    status: Status
    error: str | None = None
    seconds: float = 0.0


def command(plan: Plan, folder: Path, result: Path) -> list[str]:
    """The command line of the process that records the plan into `folder` and writes its `Outcome` as JSON to `result`."""
    return words_of("tracekit.capture.sweep.process", plan, folder, result)


def run_plan(plan: Plan, folder: Path, *, timeout: float | None = None) -> Outcome:
    """Record the plan into `folder` and return its outcome; the process is stopped after `timeout` seconds.

    A process that the system killed (SIGKILL) counts as out of memory, because Linux does this when memory runs out.
    If this function is left early, for example by Ctrl-C, it first ends the process and all processes that it started.
    """
    with scratch_folder() as scratch_name:
        result, stderr = Path(scratch_name) / "result.json", Path(scratch_name) / "stderr"
        began = time.monotonic()
        code = _wait(command(plan, folder, result), stderr, timeout)
        seconds = time.monotonic() - began
        outcome = _outcome(code, result, stderr)
        if code is None:
            outcome = Outcome(status="failed", error=f"timed out after {timeout:g} s")
    return msgspec.structs.replace(outcome, seconds=seconds)


def _wait(words: Sequence[str], stderr: Path, timeout: float | None) -> int | None:
    """Run the process to its end and return its exit code; None after the timeout. No child process is left running."""
    with stderr.open("wb") as errors:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # a group that can be ended as a whole, and that a terminal's Ctrl-C does not reach
        )
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while process.poll() is None:
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                # Polling: once Polars is loaded, Ctrl-C no longer ends a blocking wait.
                time.sleep(_POLL_SECONDS)
            return process.returncode
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its ranks and loaders, first by an interrupt, after which they write the finished levels."""
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
    finally:
        if hasattr(os, "killpg"):
            # The processes that are left: a loader whose parent was killed would wait for work forever.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, SIGKILL)
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _outcome(code: int | None, result: Path, stderr: Path) -> Outcome:
    if result.exists():
        return msgspec.json.decode(result.read_bytes(), type=Outcome)
    if code in _KILLED:
        return Outcome(status="out of memory", error="the system killed it, as it does when memory runs out")
    lines = [line.strip() for line in stderr.read_text("utf-8", "replace").splitlines() if line.strip()]
    last = f": {lines[-1]}" if lines else ""
    return Outcome(status="failed", error=f"{ending(code, missing='result')}{last}"[:_LONGEST_ERROR])


def main(arguments: Sequence[str]) -> None:
    """Record one plan: `arguments` are the plan as JSON, the folder, and the file for the `Outcome`.

    A fault in tracekit itself ends the process with a traceback, whose last line becomes the error of the run.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    plan = msgspec.json.decode(arguments[0], type=Plan)
    folder, result = Path(arguments[1]), Path(arguments[2])
    try:
        run(
            plan.workload,
            folder,
            settings=plan.settings,
            options=plan.options,
            levels=plan.levels,
            data=None if plan.data is None else Path(plan.data),
        )
        outcome = Outcome(status="done")
    except OutOfMemoryError as error:
        outcome = Outcome(status="out of memory", error=str(error))
    except TracekitError as error:
        outcome = Outcome(status="failed", error=str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    temporary = result.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(outcome))
    temporary.replace(result)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
