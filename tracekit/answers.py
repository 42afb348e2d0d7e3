"""Texts that were made before: the same question about the same file is answered without reading it again.

A question is the content of the files, what was asked about them, and the code that answers. Its answer lies in the
folder that the cache keeps for the first file. This module imports nothing heavy, so that a known answer costs
little more than the start of Python.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import tracekit
import tracekit.analyses
from tracekit.analyses.registry import ENTRY_POINT_GROUP
from tracekit.extensions import entry_points_of, registered_in
from tracekit.files import cache_root, scratch_folder

__all__ = ["MOST_ANSWERS", "Question", "code_state"]

_SUM_DIGITS: Final = 8
MOST_ANSWERS: Final = 64
"""Answers that are kept of one file; the oldest go first."""


class Question:
    """A question: `digests` of the files' contents (None for one that cannot be kept), and everything that matters for
    the answer.

    `subject` must differ between any two questions with different answers.
    """

    def __init__(self, digests: Sequence[str | None], *subject: object) -> None:
        self._place: Path | None = None
        if not digests or None in digests:
            return
        import hashlib  # noqa: PLC0415 - what is not to be kept needs none

        key = hashlib.sha256(
            repr((digests, subject, *code_state())).encode("utf-8", "surrogatepass")
        ).hexdigest()
        with suppress(RuntimeError):  # no home folder is known
            self._place = cache_root() / str(digests[0]) / f"answer-{key}.txt"

    def answer(self) -> str | None:
        """The text that `keep` stored; None if there is none, or it is damaged."""
        data = self.data()
        try:
            return None if data is None else data.decode("utf-8")
        except ValueError:
            return None

    def keep(self, text: str) -> None:
        """Remember the answer, where the disk allows it and nothing but tracekit's own code has made it."""
        with suppress(ValueError):  # it is no Unicode
            self.keep_data(text.encode("utf-8"))

    def data(self) -> bytes | None:
        """What `keep_data` stored; None if there is nothing, or it is damaged."""
        if self._place is None:
            return None
        try:
            if self._place.parent.is_symlink() or not stat.S_ISREG(self._place.lstat().st_mode):
                return None
            stored = self._place.read_bytes()
        except (OSError, ValueError):
            return None
        data = stored[_SUM_DIGITS:]
        return data if self._sum_of(data) == stored[:_SUM_DIGITS] else None

    @property
    def is_kept(self) -> bool:
        """Whether an answer will be remembered: the files are, and no other package has a part in it."""
        return self._place is not None and not _has_plugins()

    def keep_data(self, data: bytes) -> None:
        """The same as `keep` for an answer that is no text."""
        if self._place is None or not self.is_kept:
            return
        with suppress(OSError, ValueError):
            folder = self._place.parent
            folder.mkdir(parents=True, exist_ok=True)
            if folder.is_symlink():
                return
            with scratch_folder(folder) as scratch:
                draft = Path(scratch, "answer")
                draft.write_bytes(self._sum_of(data) + data)
                draft.replace(self._place)
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        if self._place is None:
            return
        answers = sorted(self._place.parent.glob("answer-*.txt"), key=lambda file: file.stat().st_mtime)
        for file in answers[:-MOST_ANSWERS]:
            file.unlink(missing_ok=True)

    def _sum_of(self, data: bytes) -> bytes:
        """The checksum of an answer to this question: a file that was renamed answers another one."""
        name = b"" if self._place is None else os.fsencode(self._place.name)
        return f"{zlib.crc32(data, zlib.crc32(name)):0{_SUM_DIGITS}x}".encode()


def code_state() -> Iterator[object]:
    """The identity of this state of the program: its version, its files, and the other installed packages."""
    yield tracekit.__version__
    yield from _files()
    # An installed package may bring analyses of its own: to install one changes the folder.
    for entry in sys.path:
        yield from [_state(Path(entry))] if entry.endswith("-packages") else registered_in(entry)


@cache
def _files() -> list[tuple[str, int, int]]:
    """Those of tracekit as they are at the first question: what runs has been read from them."""
    folders = (Path(module.__file__ or "").parent for module in (tracekit, tracekit.analyses))
    return sorted(state for folder in folders for state in _below(str(folder)))


def _below(folder: str) -> Iterator[tuple[str, int, int]]:
    """The files below a folder but for what Python compiles; of hundreds, paths as texts take half of the time."""
    with suppress(OSError), os.scandir(folder) as entries:
        for each in entries:
            if not each.is_dir():
                yield _state(each)
            elif each.name != "__pycache__" and not each.is_symlink():
                yield from _below(each.path)


def _state(path: Path | os.DirEntry[str]) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:
        return os.fspath(path), 0, 0
    return os.fspath(path), status.st_size, status.st_mtime_ns


def _has_plugins() -> bool:
    """Whether another package registers analyses or readers, whose code may change without notice."""
    from tracekit.readers import ENTRY_POINT_GROUP as OF_READERS  # noqa: PLC0415 - an answer that is kept needs none

    return any(map(entry_points_of, (ENTRY_POINT_GROUP, OF_READERS)))
