"""Files are written whole or not at all: a reader never sees half a report, and a failure leaves the old one."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracekit.errors import UsageError
from tracekit.facts.capture_names import MANIFEST_FILE

if TYPE_CHECKING:
    import tempfile

__all__ = [
    "cache_root",
    "changes_beside",
    "digest_of",
    "is_special",
    "keep_inputs",
    "machines_folder",
    "make_directory",
    "parse_toml",
    "read_small",
    "refuse_input",
    "roomy_place",
    "scratch_folder",
    "write_all",
    "write_bytes",
    "write_chunks",
    "write_text",
]


_INPUTS: Final[set[tuple[int, int]]] = set()
"""The files that this process reads, by device and inode, so that links lead to the same."""


def keep_inputs(paths: Iterable[Path]) -> None:
    """From now on, refuse to write over these files, the manifests beside them, or the files in these folders that are read."""
    for path in paths:
        with suppress(OSError, ValueError):  # what cannot be looked at cannot be read either
            folder = path if path.is_dir() else path.parent
            for file in [*(path.glob("*.parquet") if folder is path else [path]), folder / MANIFEST_FILE]:
                if file.exists():
                    status = file.stat()
                    _INPUTS.add((status.st_dev, status.st_ino))


def write_text(path: str | os.PathLike[str], data: str) -> Path:
    """Write text as UTF-8 and return the path; see `write_chunks`."""
    # A file name in a trace may hold half of a surrogate pair, which UTF-8 cannot say.
    return write_bytes(path, data.encode("utf-8", errors="replace"))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file and return its path; see `write_chunks`."""
    return write_chunks(path, (data,))


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> Path:
    """Write a file piece by piece, under another name until it is whole, and return its path.

    A link is replaced, not followed, since anyone may have put it there; what is no ordinary file (a pipe, `/dev/stdout`) is
    written to directly.
    Raises UsageError when it cannot be written, or is an input (`keep_inputs`); then the file that was there is
    untouched and nothing is left behind.
    """
    target = Path(os.path.abspath(path))  # noqa: PTH100 - links stay
    try:
        _check(target, path)
        if is_special(target):
            with target.open(
                "ab"
            ) as special:  # the shell has emptied what it sends /dev/stdout to, or was told not to
                special.writelines(chunks)
        else:
            with scratch_folder(target.parent) as scratch:
                draft = _written(Path(scratch, "draft"), chunks)
                _put(draft, target)
    except BrokenPipeError:  # who read the pipe has enough
        raise
    except OSError as error:
        raise _refusal(error, path) from error
    return Path(path)


def write_all(folder: str | os.PathLike[str], files: Iterable[tuple[str, bytes]]) -> tuple[Path, ...]:
    """Write files by their names into a folder, which is made if it is not there, and return their paths.

    None has its name before all are written, so that a full disk leaves what was there as it was. A link in the folder is
    replaced, not followed. Raises UsageError when one cannot be written, or is an input.
    """
    new = not os.path.lexists(folder)
    place = make_directory(folder)
    targets: tuple[Path, ...] = ()
    try:
        with scratch_folder(place) as scratch:
            drafts = [_written(Path(scratch, name), (data,)) for name, data in files]
            targets = tuple(place / draft.name for draft in drafts)
            for target in targets:
                _check(target, target)
            for draft, target in zip(drafts, targets, strict=True):
                _put(draft, target)
    except BaseException as error:  # also a Ctrl-C
        if new:
            with suppress(OSError):
                for target in targets:
                    target.unlink(missing_ok=True)
                place.rmdir()
        if isinstance(error, OSError):
            raise _refusal(error, place) from error
        raise
    return targets


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether something is there that is no ordinary file and no folder: a pipe, a terminal, `/dev/stdout` wherever it leads."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return False
    if str(path).startswith(("/dev/std", "/dev/fd/", "/proc/")):
        return not stat.S_ISDIR(mode)
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def make_directory(path: str | os.PathLike[str]) -> Path:
    """Make a directory with its parents, if it is not there. Raises UsageError when that fails, or an input is there."""
    directory = Path(path)
    try:
        if not directory.is_dir():
            refuse_input(path)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(error, path) from error
    return directory


def roomy_place() -> str | None:
    """A folder for large temporary files: the user's choice, else a folder on disk, because /tmp may be in memory."""
    if os.environ.get("TMPDIR"):
        return None
    return "/var/tmp" if os.access("/var/tmp", os.W_OK | os.X_OK) else None  # noqa: S108 - with a folder of our own in it


def scratch_folder(
    place: str | os.PathLike[str] | None = None, *, prefix: str = ".tracekit-"
) -> tempfile.TemporaryDirectory[str]:
    """A new folder in a folder (else in the system's place for temporary files), which its `with` block removes.

    Only its user may open it, so that nobody can plant a link in it. What killed processes left beside it over a day
    ago is removed as well. Raises OSError when it cannot be made.
    """
    import tempfile  # noqa: PLC0415 - it takes as long as an answer from the cache

    _clear_leftovers(Path(place or tempfile.gettempdir()))

    class Scratch(tempfile.TemporaryDirectory[str]):
        def cleanup(self) -> None:
            try:
                super().cleanup()
            except BaseException:  # a Ctrl-C at that moment
                shutil.rmtree(self.name, ignore_errors=True)
                raise

    own = f"{prefix}{os.urandom(4).hex()}"
    try:
        return Scratch(prefix=own, suffix=".tmp", dir=place)
    except BaseException:  # a Ctrl-C behind its making
        for made in Path(place or tempfile.gettempdir()).glob(f"{own}*"):
            with suppress(OSError):
                made.rmdir()
        raise


_LEFTOVER: Final = re.compile(r"\.(tracekit|capture|nsys)-[0-9a-z_]{8,16}\.tmp")
_KEPT_S: Final = 86_400


def _clear_leftovers(place: Path) -> None:
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if (
                _LEFTOVER.fullmatch(entry.name)
                and entry.is_dir(follow_symlinks=False)
                and _changed_at(entry.path) < time.time() - _KEPT_S
            ):
                shutil.rmtree(entry.path, ignore_errors=True)


def _changed_at(folder: str) -> float:
    """When the folder, or what lies in it, was last changed."""
    with os.scandir(folder) as entries:
        inside = [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    return max([Path(folder).stat().st_mtime, *inside])


def _check(target: Path, path: str | os.PathLike[str]) -> None:
    """Raise UsageError if the file, which the user calls `path`, is an input; OSError if it is a folder."""
    if os.path.isdir(target):  # noqa: PTH112 - which raises nothing for a link to where the user may not go
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    refuse_input(path, target)


def refuse_input(path: str | os.PathLike[str], target: Path | None = None) -> None:
    """Raise UsageError if the file at the path, or at `target`, which the user calls so, is an input (`keep_inputs`)."""
    with suppress(
        OSError, ValueError
    ):  # what cannot be looked at cannot be written either, and that is said then
        status = (target or Path(path)).stat()
        if (status.st_dev, status.st_ino) in _INPUTS:
            fault = "it is an input of this command, and would be lost"
            raise UsageError(fault, path=path, remedy="choose another place with -o")


def _written(draft: Path, chunks: Iterable[bytes]) -> Path:
    # The mode follows the user's umask, as for any file he makes.
    with draft.open("xb") as stream:
        stream.writelines(chunks)
        stream.flush()
        os.fsync(stream.fileno())
    return draft


def _put(draft: Path, target: Path) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISREG(mode := target.lstat().st_mode):
            draft.chmod(stat.S_IMODE(mode))
    os.replace(draft, target)  # noqa: PTH105 - tests make this very call fail


def _refusal(error: OSError, path: str | os.PathLike[str]) -> UsageError:
    reason = error.strerror or type(error).__name__
    return UsageError(
        f"it cannot be written ({reason})", path=path, remedy="choose another place with -o, or make room"
    )


# -- the content of a file as a short key, and where what is known of it lies --

_FORMAT: Final = "16"
"""Raised whenever the frames or the reader's meaning change, so that old cache entries are not used."""

_BLOCK: Final = 4 << 20


def cache_root() -> Path:
    """`$TRACEKIT_CACHE_DIR`, else the user's cache folder (`$XDG_CACHE_HOME` or ~/.cache) with `tracekit` in it."""
    if own := os.environ.get("TRACEKIT_CACHE_DIR"):
        return Path(own)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification of that variable has programs ignore a path that is not absolute.
    return (base if base.is_absolute() else Path.home() / ".cache") / "tracekit"


def machines_folder() -> Path:
    """Where measurements of machines lie by default. Raises UsageError when no home folder is known, and no variable names another."""
    try:
        return cache_root() / "machines"
    except RuntimeError as error:
        raise UsageError("no home folder is known", remedy="name a file with -o") from error


def changes_beside(path: Path) -> Path | None:
    """The journal or log that lies beside an SQLite database and holds changes to it; None when there is none."""
    for suffix in ("-journal", "-wal"):
        beside = path.with_name(path.name + suffix)
        if beside.is_file() and beside.stat().st_size:
            return beside
    return None


def digest_of(path: Path) -> str | None:
    """The SHA-256 digest of a file's bytes, or of a folder's Parquet files; None when it cannot be read (the reader then says why).

    None as well for a database with changes beside it, which is more than its bytes. Processors have instructions for it, so that it is twice as fast as BLAKE2b there.
    """
    import hashlib  # noqa: PLC0415 - what is not to be cached needs none

    digest = hashlib.sha256(_FORMAT.encode())
    try:
        # A pipe can be read only once, and some devices have no end.
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files or not all(each.is_file() for each in files) or changes_beside(path):
            return None
        for each in files:
            if each != path:
                digest.update(f"\0{each.name}\0{each.stat().st_size}\0".encode("utf-8", "surrogateescape"))
            with each.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
    except (OSError, ValueError):
        return None
    return digest.hexdigest()


def read_small(path: Path, *, at_most: int) -> bytes:
    """The content of a file that nobody named: nothing is waited for, and nothing without an end is read.

    Raises OSError if there is none, if it is no ordinary file (a pipe, a device), or if it has more bytes.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    if status.st_size > at_most:
        raise OSError(errno.EFBIG, f"larger than {at_most >> 20} MiB", str(path))
    with path.open("rb") as file:
        return file.read(at_most + 1)


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML document, by a library where Python has none of its own.

    >>> parse_toml("a = 1")
    {'a': 1}

    Raises ValueError for a text that is no TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - few commands read TOML
    else:
        import tomli as tomllib  # noqa: PLC0415
    return tomllib.loads(text)
