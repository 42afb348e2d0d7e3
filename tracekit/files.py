"""Files are written whole or not at all: a reader never sees half a report, and a failure leaves the old one."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tracekit.errors import UsageError

__all__ = [
    "cache_root",
    "changes_beside",
    "digest_of",
    "keep_inputs",
    "make_directory",
    "write_bytes",
    "write_chunks",
    "write_text",
]


_INPUTS: Final[set[tuple[int, int]]] = set()
"""The files that this process reads, by device and inode, so that links lead to the same."""


def keep_inputs(paths: Iterable[Path]) -> None:
    """From now on, refuse to write over these files, or over the files in these folders that are read."""
    for path in paths:
        with suppress(OSError, ValueError):  # what cannot be looked at cannot be read either
            for file in path.glob("*.parquet") if path.is_dir() else [path]:
                status = file.stat()
                _INPUTS.add((status.st_dev, status.st_ino))


def write_text(path: str | os.PathLike[str], data: str) -> Path:
    """Write text as UTF-8 and return the path; see `write_bytes`."""
    # A file name in a trace may hold half of a surrogate pair, which UTF-8 cannot say.
    return write_bytes(path, data.encode("utf-8", errors="replace"))


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write a file through a temporary one beside it, and return its path; see `write_chunks`."""
    return write_chunks(path, (data,))


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> Path:
    """Write a file piece by piece through a temporary one beside it, and return its path.

    A link is followed, and what is no ordinary file (a pipe, `/dev/stdout`) is written to directly. Raises UsageError when
    it cannot be written, or is an input (`keep_inputs`); then the file that was there is untouched and nothing is left
    behind.
    """
    target = Path(os.path.realpath(path))
    try:
        if _is_input(target):
            raise UsageError(
                "it is an input of this command, and would be lost",
                path=path,
                remedy="choose another place with -o",
            )
        if target.exists() and not target.is_file() and not target.is_dir():
            with target.open("wb") as special:
                special.writelines(chunks)
        else:
            _replace(target, chunks)
    except OSError as error:
        raise _refusal(error, path) from error
    return Path(path)


def make_directory(path: str | os.PathLike[str]) -> Path:
    """Make a directory with its parents, if it is not there. Raises UsageError when that fails."""
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(error, path) from error
    return directory


def _is_input(target: Path) -> bool:
    if not target.is_file():
        return False
    status = target.stat()
    return (status.st_dev, status.st_ino) in _INPUTS


def _replace(target: Path, chunks: Iterable[bytes]) -> None:
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        # "x" fails on a file that is there; the mode follows the user's umask, as for any file he makes.
        with temporary.open("xb") as stream:
            stream.writelines(chunks)
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o7777)
        os.replace(temporary, target)  # noqa: PTH105 - tests make this very call fail
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _refusal(error: OSError, path: str | os.PathLike[str]) -> UsageError:
    reason = error.strerror or type(error).__name__
    return UsageError(
        f"cannot write the report ({reason})", path=path, remedy="choose another place with -o, or make room"
    )


# -- the content of a file as a short key, and where what is known of it lies --

_FORMAT: Final = "8"
"""Raised whenever the frames or the reader's meaning change, so that old cache entries are not used."""

_BLOCK: Final = 4 << 20


def cache_root() -> Path:
    """`$TRACEKIT_CACHE_DIR`, else the user's cache folder (`$XDG_CACHE_HOME` or ~/.cache) with `tracekit` in it."""
    if own := os.environ.get("TRACEKIT_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tracekit"


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
