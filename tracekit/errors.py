"""The errors that tracekit raises, and the exit code of each.

TracekitError
├── UsageError                2   a flag, a name or an output path is wrong
│   ├── MissingDependencyError 2  an optional package is not installed
│   └── OutOfMemoryError       2  a step does not fit the memory
├── UnreadableTraceError      3   the input is missing, damaged beyond repair or not a trace
├── WorkloadError             1   code that is not tracekit's own raised, while it was being recorded
├── GateFailedError           1   a comparison exceeded its limit
└── InconclusiveError         4   what was asked for as a file was not captured
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

from tracekit.facts.terminal_text import printable

__all__ = [
    "GateFailedError",
    "InconclusiveError",
    "MissingDependencyError",
    "OutOfMemoryError",
    "TracekitError",
    "UnreadableTraceError",
    "UsageError",
    "WorkloadError",
    "nearest",
    "not_a_pattern",
    "reason_of",
]


class TracekitError(Exception):
    """A failure that a user can act on: which file, what is wrong, what to do.

    `str()` of it is one line that cannot steer a terminal, whatever the parts hold.

    >>> str(UnreadableTraceError("the file is empty", path="a.json", remedy="capture it again"))
    'a.json: the file is empty; capture it again'
    """

    exit_code = 1

    def __init__(self, fault: str, *, path: str | os.PathLike[str] | None = None, remedy: str = "") -> None:
        self.fault = fault
        self.path = None if path is None else os.fspath(path)
        self.remedy = remedy
        super().__init__(fault)

    def __str__(self) -> str:
        text = f"{self.path}: {self.fault}" if self.path else self.fault
        if self.remedy:
            text += f"; {self.remedy}"
        return " ".join(printable(text).split())


class GateFailedError(TracekitError):
    """A comparison exceeded the limit that was set for it."""

    exit_code = 1


class UsageError(TracekitError):
    """A flag, a name or an output path that cannot be used."""

    exit_code = 2


class MissingDependencyError(UsageError):
    """An optional package that this command needs is not installed."""


class OutOfMemoryError(UsageError):
    """A step of a workload does not fit the memory of its device; smaller settings might."""


class UnreadableTraceError(TracekitError):
    """The input is missing, is not a trace, or is damaged beyond repair."""

    exit_code = 3


class WorkloadError(TracekitError):
    """Code that is not tracekit's own raised, while it was being recorded; `__cause__` is what it raised.

    `traceback` is the part of its traceback that its author needs to see; empty when there is none.
    """

    def __init__(
        self, fault: str, *, path: str | os.PathLike[str] | None = None, remedy: str = "", traceback: str = ""
    ) -> None:
        super().__init__(fault, path=path, remedy=remedy)
        self.traceback = traceback


class InconclusiveError(TracekitError):
    """The data cannot answer the question that was asked."""

    exit_code = 4


def reason_of(error: Exception) -> str:
    """What the system says is wrong, without the number and the path that it says with it.

    >>> reason_of(OSError(5, "Input/output error", "a.json")), reason_of(ValueError("embedded null byte"))
    ('Input/output error', 'embedded null byte')
    """
    return getattr(error, "strerror", None) or str(error)


def not_a_pattern(option: str, pattern: str, error: Exception) -> UsageError:
    """The error of an option whose value should be a regular expression and is none."""
    told, _, _ = " ".join(str(error).split()).partition(" This error occurred")  # Polars tells where, too
    _, _, why = told.rpartition("error: ")
    remedy = r"write it as for grep -E, with a backslash before signs that stand for themselves: \[ or \("
    return UsageError(f"{option} {pattern!r} is not a regular expression ({why})", remedy=remedy)


def nearest(word: str, names: Iterable[str], otherwise: str = "") -> str:
    """The remedy for a name that does not exist: a question with the names that are most like it, else `otherwise`.

    >>> nearest("idel", ["idle", "kernels"]), nearest("gpu", ["idle", "kernels"], "choose one of idle, kernels")
    ('did you mean idle?', 'choose one of idle, kernels')
    """
    by_case = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), by_case)
    return f"did you mean {' or '.join(by_case[name] for name in close)}?" if close else otherwise
