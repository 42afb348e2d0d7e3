"""A copy of an Nsight Systems export without information about the machine and the person that recorded it.

The copy holds only what tracekit reads: the tables and columns that `tracekit.readers.nsys.columns` lists, read by the
reader and written anew. The frames of the copy are those of the original, except for names with a private word or a
home folder.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.files import roomy_place, scratch_folder
from tracekit.readers.nsys.columns import COLUMNS
from tracekit.readers.nsys.tables import open_tables
from tracekit.scrub.copy import Kept, copied
from tracekit.scrub.words import MARKER, Cleaner, private_words
from tracekit.scrub.write import FolderWriter, SqliteWriter

__all__ = ["Kept", "Scrubbed", "rehearse", "scrub"]

_SHORTEST: Final = 3
"""The least number of characters of a text that a user may name for replacement."""


@dataclass(frozen=True)
class Scrubbed:
    """The result of `scrub`.

    `path` is the copy, None after `rehearse`. `kept` lists the tables of the copy, `left_out` those that are not in it.
    `words` is the number of private words that were searched for in the texts.
    """

    path: Path | None
    bytes_before: int
    bytes_after: int
    kept: tuple[Kept, ...]
    left_out: tuple[str, ...]
    words: int


def scrub(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    replace: Iterable[str] = (),
    keep: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Scrubbed:
    """Write a copy of an export without information about its machine and user; an existing file `target` is replaced.

    The copy of a database (`.sqlite`) is a database in UTF-8, and that of a folder of Parquet files is a folder.
    `replace` are further words to replace in all texts, `keep` are words that stay. `progress` is called with the name
    of each table. The target is written completely or not at all.

    Raises UnreadableTraceError if the source is no such export or is damaged, and UsageError if the target cannot be
    written or is the source.
    """
    source, target, replace = Path(source), Path(os.path.realpath(target)), tuple(replace)
    _check(source, target, replace)
    try:
        with closing(open_tables(source)) as tables, scratch_folder(target.parent) as scratch:
            if not COLUMNS.keys() & set(tables.names()):
                fault, remedy = "it is not an Nsight Systems export", "give a file that nsys export wrote"
                raise UnreadableTraceError(fault, path=source, remedy=remedy)
            words = private_words(tables, keep)
            draft = Path(scratch, "copy")
            with closing((FolderWriter if source.is_dir() else SqliteWriter)(draft)) as writer:
                kept = copied(tables, writer, Cleaner(replace, words), progress or (lambda _table: None))
            left_out = sorted(set(tables.names()) - {one.table for one in kept})
            _put(draft, target)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error).split("\n", maxsplit=1)[0][
            :120
        ]
        fault, remedy = f"cannot write the copy ({reason})", "choose another place, or make room"
        raise UsageError(fault, path=target, remedy=remedy) from error
    return Scrubbed(
        target, _size(source), _size(target), tuple(kept), tuple(left_out), len(replace) + len(words)
    )


def rehearse(
    source: str | os.PathLike[str],
    *,
    replace: Iterable[str] = (),
    keep: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Scrubbed:
    """The result that `scrub` would have: the copy is written and deleted. Arguments and errors are those of `scrub`."""
    with scratch_folder(roomy_place()) as folder:
        done = scrub(source, Path(folder) / "copy", replace=replace, keep=keep, progress=progress)
    return dataclasses.replace(done, path=None)


def _check(source: Path, target: Path, replace: tuple[str, ...]) -> None:
    for text in replace:
        if len(text) < _SHORTEST or text.lower() in MARKER:
            remedy = f"name {_SHORTEST} characters or more that are not part of {MARKER}"
            raise UsageError(f"{text!r} cannot be replaced", remedy=remedy)
    if not source.exists():
        raise UnreadableTraceError("no such file", path=source, remedy="check the path")
    if source.is_dir():
        _check_folder(source, target)
    elif target.exists():
        if target.samefile(source):
            raise UsageError("the copy would replace its source", path=source, remedy="name another file")
        if not target.is_file():
            raise UsageError("it is not a file", path=target, remedy="name a file to write to")


def _check_folder(source: Path, target: Path) -> None:
    if next(source.glob("*.parquet"), None) is None:
        remedy = "give an export: a .sqlite, or a folder of --type parquetdir"
        raise UsageError("it is a folder without Parquet files", path=source, remedy=remedy)
    if target.suffix == ".sqlite":
        raise UsageError("the copy of a folder is a folder", path=target, remedy="name one, without .sqlite")
    if Path(os.path.realpath(source)) in (target, *target.parents):
        raise UsageError("the copy would lie in its source", path=source, remedy="name another folder")
    if target.exists() and (not target.is_dir() or next(target.iterdir(), None) is not None):
        raise UsageError("it exists already", path=target, remedy="name a new folder")


def _put(draft: Path, target: Path) -> None:
    for path in draft.iterdir() if draft.is_dir() else (draft,):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    if target.is_dir():
        target.rmdir()  # it is empty
    elif target.exists():
        draft.chmod(target.stat().st_mode & 0o7777)
    draft.replace(target)


def _size(path: Path) -> int:
    files = path.glob("*.parquet") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files)
