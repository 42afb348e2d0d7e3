"""The traces in a folder: of a capture those of its manifest, of another one the files in it and below it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Final

from tracekit.errors import UnreadableTraceError
from tracekit.facts.capture_names import MANIFEST_FILE
from tracekit.manifest import is_manifest, traces_in
from tracekit.readers import KINETO, format_of
from tracekit.readers.kineto.source import Source

__all__ = ["broken_beside", "traces_below"]

_CHROME: Final = (".json", ".json.gz", ".json.zst")
_SNIFFED_BYTES: Final = 256 << 10
_DEEPEST: Final = 5
_MOST_FILES: Final = 20_000


def traces_below(folder: Path) -> list[Path]:
    """The traces in the folder and in folders below it, in order of their names; an export in the form of a folder is one.

    Links to folders and hidden folders are left out. Raises UnreadableTraceError when there is none, when there are more
    files than a folder of traces has, and for a manifest of another version in the folder itself.
    """
    found = list(_found(folder))
    names = set(found)
    # A report of Nsight Systems whose export lies beside it needs no second one.
    traces = [
        path for path in found if path.suffix != ".nsys-rep" or path.with_suffix(".sqlite") not in names
    ]
    if not traces:
        remedy = "give a trace (.json, .json.gz, .sqlite, .nsys-rep) or a folder with some"
        raise UnreadableTraceError("the folder holds no trace", path=folder, remedy=remedy)
    return traces


def broken_beside(traces: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The files beside these traces that are called as they are, but for numbers, and are none: each with what is wrong with it."""
    there = set(traces)
    for folder, own in groupby(traces, lambda path: path.parent):
        called = {_numberless(path) for path in own if path.name.lower().endswith(_CHROME)}
        for path in sorted(folder.iterdir()) if called else ():
            if (
                path not in there
                and _numberless(path) in called
                and path.is_file()
                and (fault := _fault(path))
            ):
                yield path, fault


def _numberless(path: Path) -> str:
    return re.sub(r"\d+", "0", re.sub(r"\.(gz|zst)$", "", path.name, flags=re.IGNORECASE))


def _fault(path: Path) -> str | None:
    """Why a file of JSON is no trace; None if it is one."""
    try:
        with closing(Source(path)) as source:
            head = next(source.blocks(), b"")[:_SNIFFED_BYTES]
    except UnreadableTraceError as error:
        return error.fault
    return None if b'"traceEvents"' in head or b'"ph"' in head else "it is not a JSON trace"


def _found(folder: Path) -> Iterator[Path]:
    seen = 0
    for name, folders, files in os.walk(folder):
        here = Path(name)
        captured = _captured(here, below=here != folder) if MANIFEST_FILE in files else []
        if captured:
            folders.clear()
            yield from captured
            continue
        if format_of(here) is not KINETO:
            folders.clear()
            yield here
            continue
        deep = len(here.relative_to(folder).parts) >= _DEEPEST
        folders[:] = [] if deep else sorted(each for each in folders if not each.startswith("."))
        seen += len(files)
        if seen > _MOST_FILES:
            fault = f"the folder holds more than {_MOST_FILES:,} files"
            raise UnreadableTraceError(fault, path=folder, remedy="name the traces, or a folder below it")
        yield from (here / each for each in sorted(files) if _is_trace(here / each))


def _captured(folder: Path, *, below: bool) -> list[Path]:
    """The traces of a capture; below the folder that was named, a manifest that cannot be used says nothing."""
    try:
        return traces_in(folder) if is_manifest(folder / MANIFEST_FILE) else []
    except UnreadableTraceError:
        if not below:
            raise
        return []


def _is_trace(path: Path) -> bool:
    """Whether a file is a trace by its name, and if it is JSON, by its first events."""
    if not path.is_file():
        return False
    if not path.name.lower().endswith(_CHROME):
        return path.suffix.lower() in (".sqlite", ".nsys-rep", ".qdrep")
    return _fault(path) is None
