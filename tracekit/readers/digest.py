"""The content of a file as a short key, and where what is known of it lies; imports nothing heavy."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

__all__ = ["cache_root", "changes_beside", "digest_of"]

_FORMAT: Final = "5"
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
