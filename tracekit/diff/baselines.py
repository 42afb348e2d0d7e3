"""Baselines: runs saved under a name, in a folder of the project, to compare later runs with."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tracekit.classes import dataclass
from tracekit.diff.runs import LARGEST, Run, RunSet, keep
from tracekit.diff.sides import read_kept
from tracekit.errors import UnreadableTraceError, UsageError, nearest, reason_of
from tracekit.files import write_all

__all__ = ["FOLDER", "SUFFIX", "VARIABLE", "Baseline", "baselines", "folder", "load", "names", "path_of", "remove", "save", "stored"]  # fmt: skip

VARIABLE: Final = "TRACEKIT_BASELINES"
FOLDER: Final = Path(".tracekit", "baselines")
SUFFIX: Final = ".runs"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]{0,99}")
_ELSEWHERE: Final = f"set {VARIABLE} to a folder of yours"


@dataclass(frozen=True, slots=True, eq=False)
class Baseline:
    """Runs that were saved, and when: ns in UTC."""

    name: str
    runs: tuple[Run, ...]
    saved_ns: int
    path: Path


def folder() -> Path:
    """Where baselines lie: `$TRACEKIT_BASELINES`, else the nearest `.tracekit/baselines` from the working directory upwards, as git finds
    its own; else that in the working directory, which need not be there yet.
    """
    if own := os.environ.get(VARIABLE):
        return Path(own)
    here = Path.cwd()
    places = (above / FOLDER for above in (here, *here.parents))
    return next((place for place in places if place.is_dir()), here / FOLDER)


def path_of(name: str) -> Path:
    """The file of a baseline, which need not be there. Raises UsageError for what is no name.

    >>> path_of("main").name
    'main.runs'
    """
    if not _NAME.fullmatch(name):
        remedy = "use up to 100 letters, digits and . _ - + = @, and begin with a letter or digit"
        raise UsageError(f"{name!r} is not a name for a baseline", remedy=remedy)
    return folder() / f"{name}{SUFFIX}"


def save(name: str, runs: Sequence[Run]) -> Path:
    """Keep these runs under a name, instead of what was there, and return the file.

    The file is there whole or not at all; of several writers at once one is the last. Raises UsageError for what is no name, and
    when it cannot be written.
    """
    path, data = path_of(name), keep(runs)
    if len(data) > LARGEST:
        fault = f"{len(runs)} runs are more than a baseline holds ({LARGEST >> 20} MiB)"
        raise UsageError(fault, remedy="save fewer runs, or fewer steps of them")
    try:
        return write_all(path.parent, [(path.name, data)])[0]
    except UsageError as error:
        why = getattr(error.__cause__, "strerror", None) or error.fault
        raise UsageError(f"the baseline cannot be saved ({why})", path=path, remedy=_ELSEWHERE) from error


def load(name: str) -> RunSet:
    """The runs of a baseline as a side of a comparison. Raises what `stored` raises."""
    return RunSet(name, stored(name).runs)


def stored(name: str) -> Baseline:
    """A baseline.

    Raises UsageError if none has this name, and UnreadableTraceError if its file is damaged, or of another version.
    """
    path = path_of(name)
    if not path.is_file():
        raise _none(name)
    return _read(path)


def baselines() -> Iterator[Baseline | UnreadableTraceError]:
    """All baselines by name, and of those that cannot be read why."""
    for path in sorted(folder().glob(f"*{SUFFIX}")):
        if _NAME.fullmatch(path.stem):
            try:
                yield _read(path)
            except UnreadableTraceError as error:
                yield error


def names() -> list[str]:
    """The names of all baselines, readable or not."""
    return sorted(path.stem for path in folder().glob(f"*{SUFFIX}"))


def remove(name: str) -> Path:
    """Delete a baseline, damaged or not, and return what was its file. Raises UsageError if there is none, or it cannot be deleted."""
    path = path_of(name)
    try:
        path.unlink()
    except FileNotFoundError as error:
        raise _none(name) from error
    except OSError as error:
        raise UsageError(
            f"it cannot be removed ({reason_of(error)})", path=path, remedy="check its permissions"
        ) from error
    return path


def _read(path: Path) -> Baseline:
    found = read_kept(path)
    return Baseline(path.stem, found.runs, found.saved_ns, path)


def _none(name: str) -> UsageError:
    there = names()
    remedy = nearest(name, there, f"there {'is' if len(there) == 1 else 'are'} {', '.join(there[:8])}" if there else "save one with tracekit baseline save")  # fmt: skip
    return UsageError(f"there is no baseline {name!r} in {folder()}", remedy=remedy)
