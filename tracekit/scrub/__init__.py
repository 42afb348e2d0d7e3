"""A copy of an Nsight Systems export that tells nothing of the machine and the person it was recorded by.

Everything is copied table by table into a new database, by allow lists (`tracekit.scrub.private_names`): numbers, and the
names that the program and NVIDIA's libraries gave. Values that are left out, such as the host's name, are then looked for
in the texts that are kept, and replaced there. Frames that tracekit reads are the same before and after, but for names in
which such a value stood.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.errors import TracekitError, UnreadableTraceError, UsageError
from tracekit.readers.common.store import roomy_place
from tracekit.readers.digest import changes_beside
from tracekit.scrub.copy import Copy
from tracekit.scrub.plan import Removed
from tracekit.scrub.private_names import MARKER
from tracekit.scrub.staged import (
    Forms,
    database_of_folder,
    database_of_utf16,
    texts_still_told,
    write_folder,
)
from tracekit.scrub.values import held_by

__all__ = ["Removed", "Scrubbed", "rehearse", "scrub"]

_MAGIC: Final = b"SQLite format 3\0"
_OPERATIONS: Final = 200_000
"""Of SQLite's machine, between two looks at whether Ctrl-C was pressed: some milliseconds."""

_SHORTEST: Final = 3
"""Characters of a text that may be named for replacement."""

_CERTAIN: Final = 8
"""Bytes that do not stand in a file by chance."""

_EXPORT_AGAIN: Final = "give a file that `nsys export --type sqlite` wrote"
_ENCODINGS: Final = {2: "UTF-16le", 3: "UTF-16be"}
_ENCODING_AT: Final = 56
"""Where the header of a database tells the encoding of its texts."""


@dataclass(frozen=True)
class Scrubbed:
    """What `scrub` did.

    `path` is the copy, None after `rehearse`. `removed` lists every table and column that lost something. `values` is the
    number of values that were looked for in the texts that were kept, `common` how many of each kind were too short or too
    common for that.
    """

    path: Path | None
    bytes_before: int
    bytes_after: int
    removed: tuple[Removed, ...]
    values: int
    common: dict[str, int] = field(default_factory=dict)


def scrub(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    replace: Iterable[str] = (),
    keep: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Scrubbed:
    """Write a copy of an export without what tells of its machine and user; an existing file `target` is replaced.

    Of a database (`.sqlite`) the copy is one, in UTF-8, of a folder of Parquet files a folder. `replace` are further texts
    to be replaced wherever they stand, `keep` values that are left where they stand in names. `progress` is called with the
    name of each table. The target is written whole or not at all.

    Raises UnreadableTraceError when the source is no such export or is damaged, and UsageError when the target cannot be
    written or is the source.
    """
    source, target, replace = Path(source), Path(os.path.realpath(target)), tuple(replace)
    _check(source, target)
    _check_texts(replace)
    work = _Work(source, target)
    try:
        copy = work.copied(replace, keep, progress or (lambda _table: None))
        _put(work.made, target)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a message that quotes what is damaged
        raise _told(error, source, target) from error
    except OSError as error:
        raise _unwritable(error.strerror or type(error).__name__, target) from error
    finally:
        work.clean()
    return Scrubbed(
        target,
        _size(source),
        _size(target),
        (*work.left_out, *copy.removed),
        len(copy.values.found),
        {str(kind): count for kind, count in copy.values.common.items()},
    )


def rehearse(
    source: str | os.PathLike[str],
    *,
    replace: Iterable[str] = (),
    keep: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Scrubbed:
    """What `scrub` would do: the copy is made, searched, and deleted. Arguments and errors are those of `scrub`."""
    with tempfile.TemporaryDirectory(prefix="tracekit-", dir=roomy_place()) as folder:
        done = scrub(source, Path(folder) / "copy", replace=replace, keep=keep, progress=progress)
    return _without_path(done)


def _without_path(done: Scrubbed) -> Scrubbed:
    return replace(done, path=None)


class _Work:
    """The temporary files of one run, beside the target: the source in a form that can be attached, the copy of that, and
    of a folder the folder.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self.source = source
        self.left_out: list[Removed] = []
        self._form: Forms | None = None
        stem = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}")
        self._staged, self._copy = Path(f"{stem}.in"), Path(f"{stem}.tmp")
        self.made = Path(f"{stem}.out") if source.is_dir() else self._copy

    def copied(self, also: Iterable[str], keep: Iterable[str], progress: Callable[[str], None]) -> Copy:
        """Make the copy. Raises TracekitError when something that was removed still stands in it."""
        # Made first, with the user's umask, so that a folder that cannot be written is told as such.
        self._copy.open("xb").close()
        with closing(_opened(self._attachable(progress), self._copy)) as database:
            copy = Copy(database, also, keep, progress)
            if not copy.plans:
                fault = "it is no export of Nsight Systems"
                raise UnreadableTraceError(fault, path=self.source, remedy=_EXPORT_AGAIN)
            copy.write()
            held = set(held_by(self._copy, copy.values.found))
            # Among billions of numbers the bytes of a short value stand by chance, and what the user named may be the
            # name of a column: of those, texts alone are asked.
            unsure = {value for value in copy.values.found if _is_unsure(copy, value)}
            held = (held - unsure) | set(copy.still_told(sorted(held & unsure)))
            if self._form is not None:
                held |= self._written(database, copy, unsure, progress)
        if held:
            raise TracekitError(
                f"{len(held)} values that were removed still stand in the copy, which was not kept",
                path=self.source,
                remedy="report this",
            )
        return copy

    def _attachable(self, progress: Callable[[str], None]) -> Path:
        """The source, or where it is of another form, a database with the same tables."""
        encoding = None if self.source.is_dir() else _utf16(self.source)
        if not self.source.is_dir() and encoding is None:
            return self.source
        # It holds all that the source does.
        os.close(os.open(self._staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(_database(self._staged)) as staged:
            staged.execute("BEGIN")
            if encoding is not None:
                self.left_out = database_of_utf16(self.source, staged, encoding, progress)
            else:
                self._form, self.left_out = database_of_folder(self.source, staged, progress)
            staged.execute("COMMIT")
        return self._staged

    def _written(
        self, database: sqlite3.Connection, copy: Copy, unsure: set[str], progress: Callable[[str], None]
    ) -> set[str]:
        """Write the folder; returns the values that still stand in its texts or bytes."""
        self.made.mkdir()
        database.set_progress_handler(None, 0)
        try:
            write_folder(database, self._form or {}, self.made, progress)
        except pl.exceptions.PolarsError as error:
            raise _unwritable(str(error).splitlines()[0][:120], self.made) from error
        certain = [value for value in copy.values.found if value not in unsure]
        whole = {plan.name for plan in copy.plans if plan.rows == "all"}
        told = texts_still_told(
            self.made, lambda table: list(copy.values.found) if table in whole else certain
        )
        return told.union(*(held_by(file, certain) for file in self.made.iterdir()))

    def clean(self) -> None:
        """Remove what is left of the temporary files."""
        for file in (self._staged, self._copy):
            for suffix in ("", "-journal"):
                with suppress(OSError):
                    file.with_name(file.name + suffix).unlink(missing_ok=True)
        if self.made != self._copy:
            shutil.rmtree(self.made, ignore_errors=True)


def _is_unsure(copy: Copy, value: str) -> bool:
    return len(value.encode()) < _CERTAIN or copy.values.is_asked_for(value)


def _check_texts(replace: tuple[str, ...]) -> None:
    for text in replace:
        if len(text) < _SHORTEST or text.lower() in MARKER:
            raise UsageError(
                f"{text!r} cannot be replaced",
                remedy=f"name {_SHORTEST} characters or more, and no part of {MARKER}",
            )


def _check(source: Path, target: Path) -> None:
    if source.is_dir():
        _check_folder(source, target)
        return
    try:
        if source.exists() and not source.is_file():
            raise UnreadableTraceError("it is no file", path=source, remedy=_EXPORT_AGAIN)
        with source.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        fault = f"it cannot be opened ({error.strerror or type(error).__name__})"
        raise UnreadableTraceError(fault, path=source, remedy="check the path") from error
    if magic != _MAGIC:
        raise UnreadableTraceError("it is no SQLite database", path=source, remedy=_EXPORT_AGAIN)
    if beside := changes_beside(source):
        fault = f"it is being written: {beside.name} lies beside it"
        raise UnreadableTraceError(fault, path=source, remedy="let the export end")
    if target.exists():
        if target.samefile(source):
            raise UsageError("the copy would replace its source", path=source, remedy="name another file")
        if not target.is_file():
            raise UsageError("it is no file", path=target, remedy="name a file to write to")


def _check_folder(source: Path, target: Path) -> None:
    if next(source.glob("*.parquet"), None) is None:
        fault = "it is a folder without Parquet files"
        raise UsageError(
            fault, path=source, remedy="give an export: a .sqlite, or a folder of --type parquetdir"
        )
    if target.suffix == ".sqlite":
        raise UsageError("the copy of a folder is a folder", path=target, remedy="name one, without .sqlite")
    if Path(os.path.realpath(source)) in (target, *target.parents):
        raise UsageError("the copy would lie in its source", path=source, remedy="name another folder")
    if target.exists() and (not target.is_dir() or next(target.iterdir(), None) is not None):
        raise UsageError("it is there already", path=target, remedy="name a new folder")


def _utf16(source: Path) -> str | None:
    with source.open("rb") as file:
        file.seek(_ENCODING_AT)
        return _ENCODINGS.get(int.from_bytes(file.read(4), "big"))


def _size(path: Path) -> int:
    return (
        sum(file.stat().st_size for file in path.glob("*.parquet")) if path.is_dir() else path.stat().st_size
    )


def _opened(source: Path, temporary: Path) -> sqlite3.Connection:
    database = _database(temporary)
    try:
        database.execute("ATTACH ? AS src", (f"{source.absolute().as_uri()}?mode=ro&immutable=1",))
        # A callback in Python, so that Ctrl-C ends a statement that runs for minutes.
        database.set_progress_handler(lambda: 0, _OPERATIONS)
    except BaseException:
        database.close()
        raise
    return database


def _database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path.absolute().as_uri(), uri=True, isolation_level=None)
    try:
        database.text_factory = bytes
        for pragma in ("trusted_schema=off", "cell_size_check=on", "journal_mode=off", "synchronous=off"):
            database.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        database.close()
        raise
    return database


def _put(made: Path, target: Path) -> None:
    for path in made.iterdir() if made.is_dir() else (made,):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    if target.is_dir():
        target.rmdir()  # it is empty
    elif target.exists():
        made.chmod(target.stat().st_mode & 0o7777)
    made.replace(target)


def _told(error: Exception, source: Path, target: Path) -> BaseException:
    text = str(error) if isinstance(error, sqlite3.Error) else "it is damaged"
    if "interrupted" in text:
        return KeyboardInterrupt()
    if "full" in text:
        return _unwritable("the disk is full", target)
    return UnreadableTraceError(f"SQLite cannot read it ({text})", path=source, remedy=_EXPORT_AGAIN)


def _unwritable(reason: str, target: Path) -> UsageError:
    return UsageError(
        f"cannot write the copy ({reason})", path=target, remedy="choose another place, or make room"
    )
