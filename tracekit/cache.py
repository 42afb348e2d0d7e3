"""Parsed traces on disk, keyed by the content of the file, so that a second look is fast.

An entry is a folder with one Parquet file a frame and `meta.json`. It is written beside its place and renamed
into it, so that a crash leaves nothing half-written and two processes cannot disturb each other. A damaged
entry is read again from the source and replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from tracekit.trace import FRAMES, DeviceInfo, Meta, Trace

__all__ = ["cache_root", "clear", "load", "store"]

_LIMIT_BYTES: Final = 4 << 30


def cache_root() -> Path:
    """`$TRACEKIT_CACHE_DIR`, else the user's cache folder (`$XDG_CACHE_HOME` or ~/.cache) with `tracekit` in it."""
    if own := os.environ.get("TRACEKIT_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tracekit"


def load(digest: str, path: str | os.PathLike[str]) -> Trace | None:
    """The cached trace with this digest, as if it had just been read from `path`; None when there is none."""
    entry = cache_root() / digest
    try:
        meta = _meta_from(json.loads((entry / "meta.json").read_text("utf-8")))
        frames = {name: _frame(entry / f"{name}.parquet") for name in FRAMES}
        trace = Trace(meta=replace(meta, path=os.fspath(path)), **frames)  # type: ignore[arg-type]
        os.utime(entry)
    except (OSError, ValueError, TypeError, KeyError, pl.exceptions.PolarsError):
        return None  # absent, damaged or of another version: the source is read instead
    return trace


def store(digest: str, trace: Trace) -> bool:
    """Keep a trace; False when the disk does not allow it, which costs nothing but the next run's time."""
    root = cache_root()
    temporary: Path | None = None
    try:
        root.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=root))
        for name in FRAMES:
            frame: pl.DataFrame | None = getattr(trace, name)
            if frame is not None:
                frame.write_parquet(temporary / f"{name}.parquet", compression="lz4", statistics=False)
        meta = asdict(trace.meta) | {"captured": sorted(trace.meta.captured), "path": ""}
        (temporary / "meta.json").write_text(json.dumps(meta), "utf-8")
        entry = root / digest
        if entry.exists():
            shutil.rmtree(entry, ignore_errors=True)
        temporary.rename(entry)
        _prune(root, keep=digest)
    except (OSError, pl.exceptions.PolarsError):
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        return False
    return True


def clear() -> int:
    """Remove all entries; returns how many bytes they held."""
    root = cache_root()
    if not root.is_dir():
        return 0
    freed = 0
    for entry in root.iterdir():
        freed += _size(entry)
        shutil.rmtree(entry, ignore_errors=True)
    return freed


def _prune(root: Path, keep: str) -> None:
    """Drop the entries that were not used for longest while the whole is too large."""
    entries = sorted(
        (e for e in root.iterdir() if e.is_dir() and e.name != keep), key=lambda e: e.stat().st_mtime
    )
    total = sum(_size(entry) for entry in entries) + _size(root / keep)
    for entry in entries:
        if total <= _LIMIT_BYTES:
            return
        total -= _size(entry)
        shutil.rmtree(entry, ignore_errors=True)


def _size(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.glob("*") if file.is_file())


def _frame(path: Path) -> pl.DataFrame | None:
    return pl.read_parquet(path) if path.exists() else None


def _meta_from(raw: dict[str, Any]) -> Meta:
    devices = tuple(
        DeviceInfo(**{**entry, "compute_capability": _pair(entry["compute_capability"])})
        for entry in raw["devices"]
    )
    return Meta(
        **{
            **raw,
            "devices": devices,
            "captured": frozenset(raw["captured"]),
            "process_ids": tuple(raw["process_ids"]),
        }
    )


def _pair(value: list[int] | None) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])
