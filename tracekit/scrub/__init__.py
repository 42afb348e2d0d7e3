"""A copy of an Nsight Systems export that tells nothing of the machine and the person it was recorded by.

Everything is copied table by table into a new database, by allow lists (`tracekit.facts.nsys_private`): numbers, and the
names that the program and NVIDIA's libraries gave. Values that are left out, such as the host's name, are then looked for
in the texts that are kept, and replaced there. Frames that tracekit reads are the same before and after, but for names in
which such a value stood.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tracekit.digest import changes_beside
from tracekit.errors import TracekitError, UnreadableTraceError, UsageError
from tracekit.facts.nsys_private import MARKER
from tracekit.scrub._copy import Copy, Removed
from tracekit.scrub._values import held_by

__all__ = ["Removed", "Scrubbed", "scrub"]

_MAGIC: Final = b"SQLite format 3\0"
_OPERATIONS: Final = 200_000
"""Of SQLite's machine, between two looks at whether Ctrl-C was pressed: some milliseconds."""

_SHORTEST: Final = 3
"""Characters of a text that may be named for replacement."""

_CERTAIN: Final = 8
"""Bytes that do not stand in a file by chance."""

_EXPORT_AGAIN: Final = "give a file that `nsys export --type sqlite` wrote"


@dataclass(frozen=True)
class Scrubbed:
    """What `scrub` did.

    `removed` lists every table and column that lost something. `values` is the number of values that were looked for in
    the texts that were kept, `common` how many of each kind were too short or too common for that.
    """

    path: Path
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
    """Write a copy of an export (`.sqlite`) without what tells of its machine and user; an existing `target` is replaced.

    `replace` are further texts to be replaced wherever they stand, `keep` values that are left where they stand in names.
    `progress` is called with the name of each table. The target is written whole or not at all.

    Raises UnreadableTraceError when the source is no such export or is damaged, and UsageError when the target cannot be
    written or is the source.
    """
    source, target, replace = Path(source), Path(os.path.realpath(target)), tuple(replace)
    _check(source, target)
    _check_texts(replace)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        copy = _copied(source, temporary, replace, keep, progress)
        _put(temporary, target)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a message that quotes what is damaged
        raise _told(error, source, target) from error
    except OSError as error:
        raise _unwritable(error.strerror or type(error).__name__, target) from error
    finally:
        for suffix in ("", "-journal"):
            with suppress(OSError):
                temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)
    return Scrubbed(
        target,
        source.stat().st_size,
        target.stat().st_size,
        tuple(copy.removed),
        len(copy.values.found),
        {str(kind): count for kind, count in copy.values.common.items()},
    )


def _copied(
    source: Path,
    temporary: Path,
    replace: tuple[str, ...],
    keep: Iterable[str],
    progress: Callable[[str], None] | None,
) -> Copy:
    """The copy, of which is known that nothing in it tells what was removed."""
    with closing(_opened(source, temporary)) as database:
        copy = Copy(database, replace, keep, progress or (lambda _table: None))
        if not copy.plans:
            fault = "it is an SQLite database, but no export of Nsight Systems"
            raise UnreadableTraceError(fault, path=source, remedy=_EXPORT_AGAIN)
        copy.write()
        held = held_by(temporary, copy.values.found)
        # Among billions of numbers the bytes of a short value stand by chance, and what the user named may be the
        # name of a column: of those, texts alone are asked.
        unsure = [
            value for value in held if len(value.encode()) < _CERTAIN or copy.values.is_asked_for(value)
        ]
        held = [value for value in held if value not in unsure] + copy.still_told(unsure)
    if held:
        raise TracekitError(
            f"{len(held)} values that were removed still stand in the copy, which was not kept",
            path=source,
            remedy="report this",
        )
    return copy


def _check_texts(replace: tuple[str, ...]) -> None:
    for text in replace:
        if len(text) < _SHORTEST or text.lower() in MARKER:
            raise UsageError(
                f"{text!r} cannot be replaced",
                remedy=f"name {_SHORTEST} characters or more, and no part of {MARKER}",
            )


def _check(source: Path, target: Path) -> None:
    try:
        if source.is_dir():
            raise UsageError(
                "it is a folder",
                path=source,
                remedy="a folder of Parquet files cannot be scrubbed: " + _EXPORT_AGAIN,
            )
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


def _opened(source: Path, temporary: Path) -> sqlite3.Connection:
    # Made first, with the user's umask, so that a folder that cannot be written is told as such.
    temporary.open("xb").close()
    database = sqlite3.connect(temporary.absolute().as_uri(), uri=True, isolation_level=None)
    try:
        database.text_factory = bytes
        for pragma in ("trusted_schema=off", "cell_size_check=on", "journal_mode=off", "synchronous=off"):
            database.execute(f"PRAGMA {pragma}").fetchall()
        database.execute("ATTACH ? AS src", (f"{source.absolute().as_uri()}?mode=ro&immutable=1",))
        # A callback in Python, so that Ctrl-C ends a statement that runs for minutes.
        database.set_progress_handler(lambda: 0, _OPERATIONS)
    except BaseException:
        database.close()
        raise
    return database


def _put(temporary: Path, target: Path) -> None:
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    if target.exists():
        temporary.chmod(target.stat().st_mode & 0o7777)
    temporary.replace(target)


def _told(error: Exception, source: Path, target: Path) -> BaseException:
    text = str(error) if isinstance(error, sqlite3.Error) else "it is damaged"
    if "interrupted" in text:
        return KeyboardInterrupt()
    if "full" in text:
        return _unwritable("the disk is full", target)
    if "encoding" in text:
        return UnreadableTraceError("its texts are UTF-16", path=source, remedy=_EXPORT_AGAIN)
    return UnreadableTraceError(f"SQLite cannot read it ({text})", path=source, remedy=_EXPORT_AGAIN)


def _unwritable(reason: str, target: Path) -> UsageError:
    return UsageError(
        f"cannot write the copy ({reason})", path=target, remedy="choose another place, or make room"
    )
