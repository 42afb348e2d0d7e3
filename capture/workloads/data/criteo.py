"""Rows of advertising clicks in the layout of the Criteo data sets: made up, or read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from tracekit.capture.workloads.data.samples import SkipCounter, bounded_zipf, hashed_uniform
from tracekit.errors import UsageError

__all__ = [
    "CHUNK_BYTES",
    "DENSE",
    "KAGGLE_ROWS",
    "LONGEST_BLOCK",
    "TABLES",
    "TERABYTE_ROWS",
    "ClickBatch",
    "ClickRow",
    "CriteoFile",
    "SyntheticClicks",
    "collate_clicks",
    "parse_row",
]

DENSE = 13
TABLES = 26
# Distinct values of the 26 categories: of the Kaggle set, and of the terabyte set when ids are hashed to 40 million.
# fmt: off
KAGGLE_ROWS = (
    1_460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194,
    27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)
TERABYTE_ROWS = (
    39_884_406, 39_043, 17_289, 7_420, 20_263, 3, 7_120, 1_543, 63, 38_532_951, 2_953_546, 403_346, 10,
    2_208, 11_938, 155, 4, 976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935, 12_972, 108, 36,
)
# fmt: on

_FIELDS = 1 + DENSE + TABLES
_SYNTHETIC_ROWS = 1_000_000
_CLICK_SHARE = 0.256
_ZIPF_EXPONENT = 1.1
_DENSE_MU, _DENSE_SIGMA = 1.0, 2.0
_STRIDE = 64  # rows between two indexed places of a file; to read one row takes at most this many
CHUNK_BYTES = 1 << 22
LONGEST_BLOCK = 1 << 20
_MOST_BAD_IN_A_ROW = 10_000

ClickRow = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]
ClickBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def collate_clicks(rows: Sequence[ClickRow]) -> ClickBatch:
    """Return dense features (batch, 13) and labels (batch,) as 32-bit floats, and ids (batch, 26) as int64."""
    dense, ids, labels = zip(*rows, strict=True)
    return (
        torch.from_numpy(np.concatenate(dense).reshape(-1, DENSE)),
        torch.from_numpy(np.concatenate(ids).reshape(-1, TABLES)),
        torch.from_numpy(np.concatenate(labels)),
    )


class SyntheticClicks(Dataset[ClickRow]):
    """Rows whose ids are Zipf-distributed within each category, as most clicks fall on few values.

    Dense features are log(1 + x) of a log-normal x. Low ids are popular, as in files whose ids were
    numbered in order of appearance. A row depends on its index and the seed alone.
    """

    def __init__(self, categories: Sequence[int], table_rows: Sequence[int], seed: int) -> None:
        """Draw from `categories` values; an id is the value modulo the `table_rows` of its table."""
        self.categories = np.array(categories, dtype=np.int64)
        self.table_rows = np.array(table_rows, dtype=np.int64)
        self.seed = seed

    def __len__(self) -> int:
        return _SYNTHETIC_ROWS

    def __getitem__(self, index: int) -> ClickRow:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[ClickRow]:
        """Return many rows at once, as torch's loader requests; each row depends only on its index."""
        uniform = hashed_uniform(self.seed, np.array(indices, dtype=np.int64), TABLES + 2 * DENSE + 1)
        ids = bounded_zipf(uniform[:, :TABLES], self.categories, _ZIPF_EXPONENT) % self.table_rows
        radius = np.sqrt(-2 * np.log(uniform[:, TABLES : TABLES + DENSE]))
        normal = radius * np.cos(2 * np.pi * uniform[:, TABLES + DENSE : -1])  # Box and Muller's
        dense = np.log1p(np.exp(_DENSE_MU + _DENSE_SIGMA * normal)).astype(np.float32)
        labels = (uniform[:, -1:] < _CLICK_SHARE).astype(np.float32)
        return list(zip(dense, ids, labels, strict=True))


def parse_row(line: bytes, table_rows: Sequence[int]) -> ClickRow | None:
    """Return the row in a line of a Criteo file, None if the line is malformed.

    A line is a label (0 or 1), 13 integers and 26 hexadecimal numbers, separated by tabs; any but the label may be
    empty, which counts as 0. A dense feature is log(1 + x), x at least 0; an id is taken modulo its table's rows.
    """
    fields = line.rstrip(b"\r\n").split(b"\t")
    if len(fields) != _FIELDS or fields[0] not in {b"0", b"1"}:
        return None
    try:
        counts = [max(float(int(field)), 0.0) if field else 0.0 for field in fields[1 : 1 + DENSE]]
        ids = [
            int(field, 16) % rows if field else 0
            for field, rows in zip(fields[1 + DENSE :], table_rows, strict=True)
        ]
    except (ValueError, OverflowError):
        return None
    return (
        np.log1p(np.array(counts)).astype(np.float32),
        np.array(ids, dtype=np.int64),
        np.array([fields[0] == b"1"], dtype=np.float32),
    )


class CriteoFile(Dataset[ClickRow]):
    """The rows of a Criteo file, read from disk; only the place of every 64th is kept in memory.

    A malformed row is replaced by the next valid row and counted in `skipped`, once for each request.
    """

    def __init__(self, path: Path, table_rows: Sequence[int]) -> None:
        """Find the rows of `path`, a file or a folder with a `train.txt`.

        Raises `UsageError` if it cannot be read, is compressed, or does not begin like such a file.
        """
        self.path = path / "train.txt" if path.is_dir() else path
        self.table_rows = tuple(table_rows)
        self.skipped = SkipCounter()
        if self.path.suffix == ".gz":
            raise UsageError(
                "a compressed file does not allow access to single rows",
                path=path,
                remedy=f"gunzip {quote(path.name)}",
            )
        try:
            self._offsets, self._count = _find_rows(self.path)
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", path=self.path, remedy="name a Criteo train.txt"
            ) from error
        if not self._count:
            raise UsageError("the file is empty", path=self.path, remedy="name a Criteo train.txt")
        self._sound_row(0, {})

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> ClickRow:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[ClickRow]:
        """Return many rows, as torch's loader requests; neighbours are read together."""
        blocks: dict[int, list[bytes]] = {}
        rows = []
        for index in indices:
            if not -self._count <= index < self._count:
                raise IndexError(index)
            place = index % self._count
            row = parse_row(self._line(place, blocks), self.table_rows)
            if row is None:
                self.skipped.add()
                row = self._sound_row(place + 1, blocks)
            rows.append(row)
        return rows

    def _sound_row(self, start: int, blocks: dict[int, list[bytes]]) -> ClickRow:
        for place in range(start, start + min(self._count, _MOST_BAD_IN_A_ROW)):
            row = parse_row(self._line(place % self._count, blocks), self.table_rows)
            if row is not None:
                return row
        raise UsageError(
            f"no row of {_FIELDS} tab-separated fields from row {start % self._count + 1} on",
            path=self.path,
            remedy="name a Criteo train.txt: label, 13 integers, 26 hexadecimal ids",
        )

    def _line(self, place: int, blocks: dict[int, list[bytes]]) -> bytes:
        block, within = divmod(place, _STRIDE)
        if block not in blocks:
            start, end = int(self._offsets[block]), int(self._offsets[block + 1])
            with self.path.open("rb") as file:
                file.seek(start)
                blocks[block] = file.read(end - start).split(b"\n")
        return blocks[block][within]


def _find_rows(path: Path) -> tuple[NDArray[np.int64], int]:
    """Return the start of each 64th row, followed by the end of the file, and the number of rows."""
    parts = [np.zeros(1, dtype=np.int64)]
    position = newlines = last_newline_end = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            ends = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + position + 1
            first = -(newlines + 1) % _STRIDE  # row n begins where newline n ends
            parts.append(ends[first::_STRIDE])
            newlines += len(ends)
            position += len(chunk)
            last_newline_end = int(ends[-1]) if len(ends) else last_newline_end
            if position - last_newline_end > LONGEST_BLOCK:
                break
    places = np.append(np.concatenate(parts), position)
    if np.diff(places).max(initial=0) > LONGEST_BLOCK:
        raise UsageError(
            "its lines are too long for Criteo rows", path=path, remedy="name a Criteo train.txt"
        )
    return places, newlines + (last_newline_end < position)
