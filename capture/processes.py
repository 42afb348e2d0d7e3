"""Processes that a capture starts for a rank or for a run of a sweep: their command lines and their ends."""

from __future__ import annotations

import signal
import sys
from typing import Final

import msgspec

from tracekit.capture.plan import Plan

__all__ = ["SIGKILL", "ending", "words_of"]

SIGKILL: Final = getattr(signal, "SIGKILL", 9)  # Windows has no such name
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main(sys.argv[2:])"
)


def words_of(module: str, plan: Plan, *more: object) -> list[str]:
    """The command line of a process with the import path of this one; it calls `main` of the module with the plan and `more`."""
    return [
        *(sys.executable, "-c", _START.format(module=module)),
        *(msgspec.json.encode(each).decode() for each in (sys.path, plan)),
        *map(str, more),
    ]


def ending(code: int | None, *, missing: str) -> str:
    """The end of a process that did not write the `missing` file, in words.

    >>> ending(-11, missing="result"), ending(3, missing="result")
    ('it crashed (SIGSEGV)', 'it ended with exit code 3 and no result')
    """
    if code is not None and code < 0:
        names = {member.value: member.name for member in signal.Signals}
        return f"it crashed ({names.get(-code, f'signal {-code}')})"
    return f"it ended with exit code {code} and no {missing}"
