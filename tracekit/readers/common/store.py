"""The store of raw frames: in memory, and above a number of rows in files of a temporary folder."""

from __future__ import annotations

import io
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import TracekitError, UsageError
from tracekit.files import roomy_place, scratch_folder

__all__ = ["FrameStore", "TimeSample"]

_FLUSHES: Final = 4
"""Once frames go to disk, they are written each time the allowed rows divided by this number are in memory, and no file has more."""

_SAMPLES: Final = 1 << 20


class TimeSample:
    """A sample of the starts of all rows: every n-th start, with a larger n for more rows."""

    def __init__(self) -> None:
        self._every = 1
        self._kept: list[npt.NDArray[np.int64]] = []
        self._size = 0

    def add(self, starts: pl.Series) -> None:
        """Add the starts of a frame, except nulls."""
        known = starts.drop_nulls() if starts.null_count() else starts
        taken = known.to_numpy()[:: self._every]
        self._kept.append(taken)
        self._size += taken.size
        while self._size > _SAMPLES:
            self._every *= 2
            self._kept = [np.concatenate(self._kept)[::2]]
            self._size = self._kept[0].size

    def sorted(self) -> npt.NDArray[np.int64]:
        """The sample, sorted."""
        return np.sort(np.concatenate(self._kept)) if self._kept else np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class FrameStore:
    """Frames by name. With `most_rows`, at most about that many rows are in memory, the others on disk."""

    most_rows: int | None = None
    rows: int = 0
    sample: TimeSample = field(default_factory=TimeSample)
    _held: dict[str, list[pl.DataFrame]] = field(default_factory=lambda: defaultdict(list))
    _held_rows: int = 0
    _files: dict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    _folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def overflowed(self) -> bool:
        """True if some frames are on disk."""
        return self._folder is not None

    def add(self, name: str, frame: pl.DataFrame) -> None:
        """Add rows to a frame. Raises TracekitError if the rows do not fit on the disk."""
        self._held[name].append(frame)
        self.rows += frame.height
        self._held_rows += frame.height
        if self.most_rows is None:
            return
        if "start" in frame.columns:
            self.sample.add(frame["start"])
        if self._held_rows > (self._rows_of_a_file if self.overflowed else self.most_rows):
            self._flush()

    @property
    def _rows_of_a_file(self) -> int:
        return max(1, (self.most_rows or self._held_rows) // _FLUSHES)

    def packed(self) -> dict[str, bytes]:
        """The frames in memory as Arrow files."""
        buffers = {}
        for name, frames in self._held.items():
            buffer = io.BytesIO()
            _joined(frames).rechunk().write_ipc(buffer, compression="uncompressed")
            buffers[name] = buffer.getvalue()
        return buffers

    def take(self, name: str) -> pl.DataFrame | None:
        """All rows of this name that are in memory, or None. The store does not keep them."""
        frames = self._held.pop(name, [])
        if not frames:
            return None
        joined = _joined(frames)
        frames.clear()
        # Column by column, so that there are never two copies of everything; rows are gathered from many pieces in three times the time.
        return pl.DataFrame([joined.drop_in_place(column).rechunk() for column in joined.columns])

    def parts(self, name: str, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """The rows of this name piece by piece, also from disk; only these columns, if they exist."""
        for file in self._files.get(name, []):
            there = pl.read_ipc_schema(file)
            wanted = None if columns is None else [column for column in columns if column in there]
            with file.open("rb") as stream:
                yield pl.read_ipc(stream, columns=wanted)
        for frame in self._held.get(name, []):
            yield frame if columns is None else frame.select(c for c in columns if c in frame.columns)

    def keep_only(
        self, choose: dict[str, Callable[[pl.DataFrame], pl.Expr]], most: int, path: str | os.PathLike[str]
    ) -> int:
        """Keep in memory the rows of each named frame that `choose` selects; returns their number.

        Raises UsageError, about the file `path`, if they are more than `most`.
        """
        self._flush()
        kept: dict[str, list[pl.DataFrame]] = defaultdict(list)
        count = 0
        for name, wanted in choose.items():
            for part in self.parts(name):
                chosen = part.filter(wanted(part))
                count += chosen.height
                if count > most:
                    raise UsageError(
                        f"its events lie too close together in time to read fewer than {most:,} of them",
                        path=path,
                        remedy="raise --max-events, or read all with --max-events 0",
                    )
                if chosen.height:
                    kept[name].append(chosen)
        self.close()
        self._held, self._held_rows = kept, count
        return count

    def close(self) -> None:
        """Remove the files on disk."""
        if self._folder is not None:
            self._folder.cleanup()
        self._folder = None
        self._files.clear()

    def _flush(self) -> None:
        try:
            if self._folder is None:
                self._folder = scratch_folder(roomy_place())
            for name, frames in self._held.items():
                for piece in _joined(frames).iter_slices(self._rows_of_a_file):
                    file = Path(self._folder.name) / f"{name}-{len(self._files[name])}.arrow"
                    piece.write_ipc(file, compression="lz4")
                    self._files[name].append(file)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise TracekitError(
                f"there is no room to put a large trace aside while it is read ({error})",
                remedy="set TMPDIR to a folder with room",
            ) from error
        self._held = defaultdict(list)
        self._held_rows = 0


def _joined(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed", rechunk=False)
