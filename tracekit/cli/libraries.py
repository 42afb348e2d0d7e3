"""What the libraries are told before they are imported, by the sizes of the files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["bytes_of", "is_file", "suit_libraries"]

_M_TRIM_THRESHOLD: Final = -1  # of malloc.h
_M_MMAP_THRESHOLD: Final = -3
_RETURNED_BYTES: Final = 32 << 20
_LARGE_BYTES: Final = 128 << 20
_SMALL_BYTES: Final = 64 << 20
_PACKED: Final = 10
"""About as many times as large is what a compressed file holds."""


def is_file(path: Path) -> bool:
    """Whether it is a file that can be asked about."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False  # the reader says what is wrong with it


def bytes_of(files: Sequence[Path]) -> int:
    """About how many bytes these files hold."""
    return sum(path.stat().st_size * (_PACKED if path.suffix == ".gz" else 1) for path in files)


def suit_libraries(paths: Sequence[Path]) -> None:
    """Let Polars and NumPy use threads and memory as suits files of this size; both read it when they are imported, and not later.

    For small files threads cost more than they gain. Of large ones, both allocators give freed memory back to the system
    soon. Any sooner costs far more: each array's pages are then given by the system again, at a third of a report's time.
    The C library's, which NumPy uses, keeps blocks as large as the largest that was ever freed, unless it is told a size
    (glibc; others have no such call).
    """
    files = [path for path in paths if is_file(path)]
    size = bytes_of(files)
    if size > _LARGE_BYTES:
        import ctypes

        with suppress(AttributeError, OSError, TypeError):
            library = ctypes.CDLL(None)
            library.mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)
            library.mallopt(_M_TRIM_THRESHOLD, _RETURNED_BYTES // 2)
    if "polars" in sys.modules:
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # they take longer to start than they ever work
    if size > _LARGE_BYTES:
        os.environ.setdefault("_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:200,muzzy_decay_ms:0")
    # One file is read after the other. Of a pipe or an address the size is not known.
    if max((bytes_of([path]) for path in files), default=0) <= _SMALL_BYTES and len(files) == len(paths):
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
