"""The user's part of a traceback: from the user's own file on, without the frames of tracekit above it."""

from __future__ import annotations

import os
import re
import runpy
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

import tracekit

__all__ = ["own_frames", "own_part", "own_text"]

_TRACEKIT: Final = tuple(
    f"{os.path.realpath(Path(file).parent)}{os.sep}" for file in (tracekit.__file__, __file__)
)
_IMPORTING: Final = "<frozen importlib"
_RUNNING: Final = ("<frozen runpy>", runpy.__file__)
_IN_LOADER: Final = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal (?=Traceback )")


def own_text(error: BaseException) -> str:
    r"""What an error says in one line; of one in a process of a DataLoader, whose text is a traceback, the last line.

    >>> own_text(ValueError("two\nlines"))
    'ValueError: two lines'
    """
    text = str(error)
    worker = _IN_LOADER.match(text)
    if worker is None:
        return " ".join(f"{type(error).__name__}: {text}".split())
    return f"{text.strip().splitlines()[-1].strip()} (in loader process {worker[1]})"


def own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that are tracekit's, and without those at its top by which Python runs a module."""
    own: TracebackType | None = None
    for each in reversed([*_links(trace)]):
        if not os.path.realpath(each.tb_frame.f_code.co_filename).startswith(_TRACEKIT):
            each.tb_next = own
            own = each
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_RUNNING):
        own = own.tb_next
    return own


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def own_part(error: BaseException, file: Path | None) -> str:
    """The traceback of an error as Python prints it, from the first frame in `file` on, in each error of its chain.

    Without a frame in `file`, the frames of tracekit and of the import at its top are left out. Empty if no frame
    is left: then tracekit's own loop raised the error, and its text is enough.
    """
    own = None if file is None else os.path.realpath(file)
    summary = traceback.TracebackException.from_exception(error)
    for part in _chain(summary):
        del part.stack[: _first_own(part.stack, own)]
    if worker := _IN_LOADER.match(str(error)):
        return _cut(str(error)[worker.end() :], own)
    frames = any(part.stack for part in _chain(summary)) or isinstance(error, SyntaxError)
    return "".join(summary.format()) if frames else ""


def _first_own(stack: traceback.StackSummary, own: str | None) -> int:
    files = [
        frame.filename if frame.filename.startswith("<") else os.path.realpath(frame.filename)
        for frame in stack
    ]
    if own in files:
        return files.index(own)
    foreign = (i for i, name in enumerate(files) if not name.startswith((*_TRACEKIT, _IMPORTING)))
    return next(foreign, len(files))


def _chain(error: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """The error with its causes and contexts."""
    queue = [error]
    while queue:
        part = queue.pop()
        yield part
        queue += [linked for linked in (part.__cause__, part.__context__) if linked is not None]


def _cut(text: str, own: str | None) -> str:
    """A traceback as text, without the frames before the first frame in the file `own`."""
    lines = text.rstrip().splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith(f'  File "{own}", ')), 1)
    return "\n".join([*lines[:1], *lines[first:], ""])
