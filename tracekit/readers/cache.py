"""Parsed traces on disk, keyed by the content of the file, so that a second look is fast.

An entry is a folder with one Parquet file a frame, `meta.json`, and `sums.json` with the entry's name and the sizes and
checksums of the others. It is written beside its place and renamed into it, so that a crash leaves nothing half-written
and two processes cannot disturb each other. An entry that is damaged, that was renamed or that holds links is read
again from the source and replaced. The checksums are no signature: who may write to the cache may change the figures.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import polars as pl
from isal import isal_zlib

from tracekit.files import cache_root, scratch_folder
from tracekit.readers.assemble import lean
from tracekit.readers.common.trace_frames import rank_in_name
from tracekit.trace import FRAMES, DeviceInfo, Excerpt, Meta, Trace

__all__ = ["clear", "load", "store"]

_LIMIT_BYTES: Final = 4 << 30
_ENTRY: Final = re.compile(r"[0-9a-f]{64}(\.[0-9]+)?(-rank[0-9]+)?(-[0-9]+)?|\.tracekit-[0-9a-z_]{8}\.tmp")
_SUMS: Final = "sums.json"
_ALWAYS: Final = ("host.parquet", "device.parquet", "threads.parquet", "health.parquet")
_LARGEST_SUMS: Final = 1 << 16
_FAILURES: Final = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,  # no home folder is known; JSON is nested too deep
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)


def load(digest: str, path: str | os.PathLike[str], *, max_events: int | None = None) -> list[Trace] | None:
    """All traces of the file with this digest, as if they had just been read from `path`; None when one is missing.

    With `max_events` each is the whole trace if it has no more rows, else the excerpt made for this number.
    """
    first = _part(digest, 0, path, max_events)
    if first is None:
        return None
    others = (_part(digest, part, path, max_events) for part in range(1, first.meta.parts))
    traces = [first, *(trace for trace in others if trace is not None)]
    return traces if len(traces) == first.meta.parts else None


def _part(digest: str, part: int, path: str | os.PathLike[str], max_events: int | None) -> Trace | None:
    """The trace of this number in the file."""
    key = _key(digest, part, path)
    whole = _load(key, path, max_events)
    return whole or (None if max_events is None else _load(f"{key}-{max_events}", path, None))


def _key(digest: str, part: int, path: str | os.PathLike[str]) -> str:
    """The name of an entry: the content decides, and the rank in the file's name, which the reader uses as well."""
    rank = rank_in_name(path)
    named = "" if rank is None else f"-rank{rank}"
    return f"{digest}.{part}{named}" if part else f"{digest}{named}"


def _load(key: str, path: str | os.PathLike[str], most_rows: int | None) -> Trace | None:
    try:
        entry = cache_root() / key
        sums = _sums(entry)
        fields = json.loads(_verified(entry, "meta.json", sums))
        if fields.pop("rows") > (most_rows or math.inf):
            return None
        meta = _meta_from(fields)
        frames = {name: _frame(entry, f"{name}.parquet", sums) for name in FRAMES}
        frames["health"] = _of_name(frames["health"], Path(path).name)
        trace = Trace(meta=replace(meta, path=os.fspath(path)), **frames)  # type: ignore[arg-type]
    except _FAILURES:
        return None  # absent, damaged or of another version: the source is read instead
    with suppress(OSError):  # of a cache that may only be read
        os.utime(entry)
    return trace


def _of_name(health: Any, name: str) -> Any:
    """The health of a file that now has this name, in which no rank is known."""
    rank = pl.when(pl.col("kind") == "unknown_rank").then(pl.lit(name))
    return health.with_columns(rank.otherwise("example").alias("example"))


def store(digest: str, traces: Sequence[Trace], *, max_events: int | None = None) -> bool:
    """Keep the traces of a file; False when the disk does not allow it, which costs nothing but the next run's time.

    `max_events` is the number with which they were read, if that made them excerpts.
    """
    try:
        root = cache_root()
        root.mkdir(parents=True, exist_ok=True)
        kept = {_store(root, digest, trace, max_events) for trace in traces}
    except _FAILURES:
        return False
    with suppress(FileNotFoundError):  # another process removes entries at this moment
        _prune(root, keep=kept)
    return True


def _store(root: Path, digest: str, trace: Trace, max_events: int | None) -> str:
    """Write the entry of a trace; returns its name."""
    key = _key(digest, trace.meta.part, trace.meta.path)
    key = key if trace.meta.excerpt is None else f"{key}-{max_events}"
    with scratch_folder(root) as scratch:
        draft = Path(scratch, "entry")
        draft.mkdir(0o700)
        _fill(draft, key, trace)
        with suppress(FileNotFoundError):  # whatever is there goes, and no link is followed
            (root / key).rename(Path(scratch, "old"))
        draft.rename(root / key)
    return key


def _fill(entry: Path, key: str, trace: Trace) -> None:
    frames = {name: frame for name in FRAMES if (frame := getattr(trace, name)) is not None}
    for name, frame in frames.items():
        frame.write_parquet(entry / f"{name}.parquet", compression="lz4", statistics=False)
    rows = sum(frame.height for frame in frames.values())
    meta = asdict(trace.meta) | {"captured": sorted(trace.meta.captured), "path": "", "rows": rows}
    (entry / "meta.json").write_text(json.dumps(meta), "utf-8")
    sums = {file.name: [file.stat().st_size, isal_zlib.crc32(file.read_bytes())] for file in entry.iterdir()}
    (entry / _SUMS).write_text(json.dumps({"entry": key, "files": sums}), "utf-8")


def clear() -> int:
    """Remove all entries; returns how many bytes they held."""
    root = cache_root()
    if not root.is_dir():
        return 0
    freed = 0
    for entry in list(_entries(root)):
        freed += _size(entry)
        shutil.rmtree(entry, ignore_errors=True)
    return freed


def _prune(root: Path, keep: set[str]) -> None:
    """Drop the entries that were not used for longest while the whole is too large."""
    sizes = {entry: _size(entry) for entry in _entries(root)}
    total = sum(sizes.values())
    if total <= _LIMIT_BYTES:
        return
    for entry in sorted((e for e in sizes if e.name not in keep), key=lambda e: e.stat().st_mtime):
        if total <= _LIMIT_BYTES:
            return
        total -= sizes[entry]
        shutil.rmtree(entry, ignore_errors=True)


def _entries(root: Path) -> Iterator[Path]:
    """The cache's own folders. Whatever else lies beside them, in a folder that a user named, is his."""
    with os.scandir(root) as found:
        yield from (
            root / entry.name
            for entry in found
            if _ENTRY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )


def _size(entry: Path) -> int:
    with os.scandir(entry) as files:
        return sum(file.stat().st_size for file in files if file.is_file())


def _sums(entry: Path) -> dict[str, tuple[int, int]]:
    """The size and checksum of each file of an entry."""
    file = entry / _SUMS
    if entry.is_symlink() or not _is_plain(file, at_most=_LARGEST_SUMS):
        raise ValueError(f"{entry.name} is not tracekit's own")
    sums = json.loads(file.read_text("utf-8"))
    if sums["entry"] != entry.name:
        raise ValueError(f"{entry.name} is another entry")
    return dict(sums["files"])


def _is_plain(file: Path, at_most: int) -> bool:
    """Whether it is a file and not larger: a link may lead to a device that has no end."""
    status = file.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_size <= at_most


def _frame(entry: Path, name: str, sums: dict[str, tuple[int, int]]) -> pl.DataFrame | None:
    if name not in sums and name not in _ALWAYS and not (entry / name).exists():
        return None  # this trace has no such frame
    return lean(pl.read_parquet(io.BytesIO(_verified(entry, name, sums))))


def _verified(entry: Path, name: str, sums: dict[str, tuple[int, int]]) -> bytes:
    """The bytes of a file that is as it was written: Parquet itself would give other numbers for a flipped bit."""
    size, checksum = sums[name]
    file = entry / name
    data = file.read_bytes() if _is_plain(file, at_most=size) else b""
    if (len(data), isal_zlib.crc32(data)) != (size, checksum):
        raise ValueError(f"{name} is damaged")
    return data


def _meta_from(raw: dict[str, Any]) -> Meta:
    devices = tuple(
        DeviceInfo(**{**entry, "compute_capability": _pair(entry["compute_capability"])})
        for entry in raw["devices"]
    )
    return Meta(
        **{
            **raw,
            "devices": devices,
            "excerpt": None if raw["excerpt"] is None else Excerpt(**raw["excerpt"]),
            "captured": frozenset(raw["captured"]),
            "process_ids": tuple(raw["process_ids"]),
            "domains": tuple(raw["domains"]),
            "groups": tuple(map(tuple, raw["groups"])),
        }
    )


def _pair(value: list[int] | None) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])
