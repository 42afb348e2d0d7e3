"""Processes that a capture starts for a rank or for a run of a sweep: their command lines and their ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Final, NoReturn

import msgspec

from tracekit.capture.plan import Plan

__all__ = ["SIGKILL", "end_with_parent", "ending", "leave", "words_of"]

SIGKILL: Final = getattr(signal, "SIGKILL", 9)  # Windows has no such name
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tracekit.capture.processes import end_with_parent; end_with_parent(); "
    "from {module} import main; main(sys.argv[2:])"
)


def words_of(module: str, plan: Plan, *more: object) -> list[str]:
    """The command line of a process with the import path of this one; it calls `main` of the module with the plan and `more`.

    Its stdin is to be a pipe: see `end_with_parent`.
    """
    return [
        *(sys.executable, "-c", _START.format(module=module)),
        *(msgspec.json.encode(each).decode() for each in (sys.path, plan)),
        *map(str, more),
    ]


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, also by a kill: its end of the pipe at stdin is closed then.

    The code that runs in this process finds nothing at stdin.
    """
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        os.read(pipe, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def leave(code: int) -> NoReturn:
    """End this process as Python does, but without what C++ does at the end, where threads that hang or are gone can stop it."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads of the user's code
    atexit._run_exitfuncs()  # its exit handlers, which os._exit skips
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)


def ending(code: int | None, *, missing: str) -> str:
    """The end of a process that did not write the `missing` file, in words.

    >>> ending(-11, missing="result"), ending(3, missing="result")
    ('it crashed (SIGSEGV)', 'it ended with exit code 3 and no result')
    """
    if code is not None and code < 0:
        names = {member.value: member.name for member in signal.Signals}
        return f"it crashed ({names.get(-code, f'signal {-code}')})"
    return f"it ended with exit code {code} and no {missing}"
