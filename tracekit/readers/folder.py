"""The traces in a folder: of a capture those of its manifest, of another one the files in it and below it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.facts.capture_names import INDEX_FILE, MANIFEST_FILE
from tracekit.manifest import is_manifest, traces_in, usable_manifest_beside
from tracekit.readers import KINETO, format_of
from tracekit.readers.kineto.source import Source

__all__ = ["runs_below", "traces_below"]

_CHROME: Final = (".json", ".json.gz", ".json.zst")
_SNIFFED_BYTES: Final = 256 << 10
_DEEPEST: Final = 5
_MOST_FILES: Final = 20_000


def traces_below(folder: Path) -> list[Path]:
    """The traces in the folder and in folders below it, in order of their names; an export in the form of a folder is one.

    A file that is called as a trace beside it, but for numbers, counts as one: what is wrong with it, its reader says. Links to
    folders and hidden folders are left out. Raises UnreadableTraceError when there is none, when there are more files than a
    folder of traces has, and for a manifest of another version in the folder itself.
    """
    closed: list[OSError] = []
    found = list(_found(folder, closed.append))
    names = set(found)
    # A report of Nsight Systems whose export lies beside it needs no second one.
    traces = [
        path for path in found if path.suffix != ".nsys-rep" or path.with_suffix(".sqlite") not in names
    ]
    if not traces and closed:
        fault = f"it cannot be read ({reason_of(closed[0])})"
        raise UnreadableTraceError(fault, path=closed[0].filename or folder, remedy="check its permissions")
    if not traces:
        remedy = "give a trace (.json, .json.gz, .sqlite, .nsys-rep) or a folder with some"
        fault = f"the folder holds no trace, nor do folders up to {_DEEPEST} levels below it"
        raise UnreadableTraceError(fault, path=folder, remedy=remedy)
    return traces


def runs_below(folder: Path, tell: Callable[[UnreadableTraceError], object] | None = None) -> list[Path]:
    """The folders of captures and of sweeps in this folder and below it, in order of their names; those in a sweep belong to it.

    `tell` is called for each folder beside them whose manifest is damaged, or that has traces and no manifest. Raises
    UnreadableTraceError when there is no run, or when there are more files than a folder of runs has.
    """
    runs: list[Path] = []
    faults: list[UnreadableTraceError] = []
    seen = 0
    for name, folders, files in os.walk(folder):
        here = Path(name)
        seen += len(files)
        _check_count(seen, folder)
        is_run = INDEX_FILE in files or (MANIFEST_FILE in files and is_manifest(here / MANIFEST_FILE))
        runs += [here] if is_run else []
        if not is_run and (fault := _no_run(here, files)) is not None:
            faults.append(fault)
        folders[:] = [] if is_run else _inner(here, folder, folders)
    if not runs:
        damaged = [fault for fault in faults if Path(fault.path or "").name == MANIFEST_FILE]
        why = f"there is neither {MANIFEST_FILE} nor {INDEX_FILE} in it, or in a folder of it"
        remedy = "name the folder of a tracekit capture or sweep, or a trace file"
        raise damaged[0] if damaged else UnreadableTraceError(why, path=folder, remedy=remedy)
    if tell is not None:
        for each in faults:
            tell(each)
    return runs


def _no_run(folder: Path, files: Sequence[str]) -> UnreadableTraceError | None:
    """Why a folder that looks like that of a run is none."""
    if MANIFEST_FILE in files:
        try:
            usable_manifest_beside(folder / MANIFEST_FILE)
        except UnreadableTraceError as error:
            return error
    trace = next((each for each in sorted(files) if _is_trace(folder / each)), None)
    if trace is None:
        return None
    fault = f"no {MANIFEST_FILE} beside it tells its settings"
    return UnreadableTraceError(fault, path=folder / trace, remedy="capture with tracekit")


def _check_count(seen: int, folder: Path) -> None:
    if seen > _MOST_FILES:
        fault = f"the folder holds more than {_MOST_FILES:,} files"
        raise UnreadableTraceError(fault, path=folder, remedy="name the traces, or a folder below it")


def _inner(here: Path, top: Path, folders: Sequence[str]) -> list[str]:
    """The folders to look into next: none too deep below the top, and no hidden one."""
    deep = len(here.relative_to(top).parts) >= _DEEPEST
    return [] if deep else sorted(each for each in folders if not each.startswith("."))


def _found(folder: Path, tell: Callable[[OSError], None]) -> Iterator[Path]:
    """The traces; `tell` is called for a folder that cannot be read."""
    seen = 0
    for name, folders, files in os.walk(folder, onerror=tell):
        here = Path(name)
        captured = _captured(here, below=here != folder) if MANIFEST_FILE in files else []
        if captured:
            folders.clear()
            yield from captured
            continue
        seen += len(files)
        _check_count(seen, folder)
        own = _among([here / each for each in sorted(files) if _is_file(here / each, tell)])
        if not own and format_of(here) is not KINETO:
            folders.clear()
            yield here
            continue
        yield from own
        folders[:] = _inner(here, folder, folders)


def _is_file(path: Path, tell: Callable[[OSError], None]) -> bool:
    """Whether it is an ordinary file; of a folder that may be listed and not entered nothing is known, which is told."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        if not path.is_symlink():
            tell(error)
        return False
    except (OSError, ValueError):
        return False


def _captured(folder: Path, *, below: bool) -> list[Path]:
    """The traces of a capture; below the folder that was named, a manifest that cannot be used says nothing."""
    try:
        return traces_in(folder) if is_manifest(folder / MANIFEST_FILE) else []
    except UnreadableTraceError:
        if not below:
            raise
        return []


def _among(files: Sequence[Path]) -> list[Path]:
    """The traces of these files, and what is called as they are."""
    traces = {path for path in files if _is_trace(path)}
    called = {_numberless(path) for path in traces}
    return [path for path in files if path in traces or _numberless(path) in called]


def _numberless(path: Path) -> str:
    return re.sub(r"\d+", "0", re.sub(r"\.(gz|zst)$", "", path.name, flags=re.IGNORECASE))


def _is_trace(path: Path) -> bool:
    """Whether a file is a trace by its name, and if it is JSON, by its first events."""
    if not path.name.lower().endswith(_CHROME):
        return path.suffix.lower() in (".sqlite", ".nsys-rep", ".qdrep")
    try:
        with closing(Source(path)) as source:
            head = next(source.blocks(), b"")[:_SNIFFED_BYTES]
    except UnreadableTraceError:
        return False
    return b'"traceEvents"' in head or b'"ph"' in head
