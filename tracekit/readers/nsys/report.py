"""Reports of Nsight Systems (`.nsys-rep`, once `.qdrep`): NVIDIA's own program turns them into a readable export.

The format of a report is not public. If `nsys` is on the PATH, it writes an export into a private folder, which is
removed once the export was read. The flags are those of NVIDIA's public user guide (`nsys export`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Final

from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.files import scratch_folder
from tracekit.limits import Limits
from tracekit.readers.format import Progress
from tracekit.readers.nsys.reader import read_nsys
from tracekit.readers.nsys.vocabulary import REPORT_SUFFIXES, SQLITE_MAGIC
from tracekit.trace import Trace

__all__ = ["export_report", "is_report", "read_report"]

_POLL_SECONDS: Final = 0.05
_GRACE_SECONDS: Final = 10
_TAIL_BYTES: Final = 4096
_LONGEST_LINE: Final = 300
_LONGEST_STEM: Final = 200


def is_report(path: Path) -> bool:
    """True if a file has the name of a report of Nsight Systems and is not an export with that name.

    >>> is_report(Path("profile.nsys-rep")), is_report(Path("profile.sqlite"))
    (True, False)
    """
    return path.name.lower().endswith(REPORT_SUFFIXES) and not _is_database(path)


def read_report(path: Path, limits: Limits, progress: Progress | None = None) -> list[Trace]:
    """The traces of a report's export, under the name of the report. Raises what `export_report` and `read_nsys` raise."""
    with export_report(path, progress) as export:
        traces = read_nsys(export, limits, progress)
    size = path.stat().st_size
    return [
        replace(trace, meta=replace(trace.meta, path=os.fspath(path), size_bytes=size)) for trace in traces
    ]


@contextmanager
def export_report(path: Path, progress: Progress | None = None) -> Iterator[Path]:
    """Let nsys export a report, and yield the SQLite file, which is removed afterwards.

    `progress` is called with (bytes of the export so far, bytes of the report). There is no time limit; Ctrl-C ends nsys.
    Raises UnreadableTraceError if the report is missing, nsys is not on the PATH, or it wrote no export.
    """
    size = _size(path)
    nsys = shutil.which("nsys")
    if nsys is None:
        raise UnreadableTraceError(
            "only nsys can read this report of Nsight Systems, and nsys is not on the PATH",
            path=path,
            remedy=f"export it on a machine with nsys: nsys export --type sqlite {quote(path.name)}",
        )
    with scratch_folder() as folder:
        place = Path(folder)
        # The name of the report may contain the rank, so the export keeps it. nsys would take % for a variable.
        export = place / f"{path.stem[:_LONGEST_STEM].replace('%', '_')}.sqlite"
        # Absolute paths, so that nsys does not take a name that begins with a dash for a flag.
        words = [
            *(os.path.abspath(nsys), "export", "--type=sqlite"),  # noqa: PTH100 - a link keeps its name
            *(f"--output={export}", "--force-overwrite=true", os.path.abspath(path)),  # noqa: PTH100
        ]
        with (place / "stdout").open("wb") as said, (place / "stderr").open("wb") as complained:
            code = _run(words, place, (said.fileno(), complained.fileno()), _reporter(export, size, progress))
        if code or not _is_database(export):
            reason = _last_line(place / "stderr") or _last_line(place / "stdout")
            outcome = f"nsys ended with exit code {code}" if code else "nsys wrote no export"
            raise UnreadableTraceError(
                f"it could not be exported: {outcome}" + (f" ({reason})" if reason else ""),
                path=path,
                remedy=f"use the nsys that recorded it: nsys export --type sqlite {quote(path.name)}",
            )
        yield export


def _size(path: Path) -> int:
    try:
        if not path.is_file():
            raise UnreadableTraceError("no such file", path=path, remedy="check the path")
        with path.open("rb") as file:
            if not file.read(1):
                raise UnreadableTraceError("the file is empty", path=path, remedy="record it again")
            return os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:
        raise UnreadableTraceError(f"it cannot be opened ({reason_of(error)})", path=path) from error


def _reporter(export: Path, size: int, progress: Progress | None) -> Callable[[], None]:
    def tell() -> None:
        if progress is not None:
            with suppress(OSError):  # nsys has not begun to write, or has just moved it
                progress(export.stat().st_size, size)

    return tell


def _run(words: list[str], folder: Path, streams: tuple[int, int], tell: Callable[[], None]) -> int:
    """Wait for nsys and return its exit code; nsys is ended if the wait ends early.

    It runs in its own process group, so that its child processes end with it, and in the private folder, so that all
    files that it writes are removed.
    """
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            start_new_session=True,
        )
    except OSError as error:
        raise UnreadableTraceError(
            f"nsys cannot be run ({error.strerror or error})", path=words[0]
        ) from error
    try:
        # Polling: once Polars is loaded, Ctrl-C no longer ends a blocking wait.
        while (code := process.poll()) is None:
            tell()
            time.sleep(_POLL_SECONDS)
    except BaseException:
        _end(process)
        raise
    return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
            return


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        return False


def _last_line(path: Path) -> str:
    """The last line that is not blank, without control characters for a terminal."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
        text = file.read().decode("utf-8", "replace")
    lines = [
        "".join(c if c.isprintable() else " " for c in line) for line in text.replace("\r", "\n").split("\n")
    ]
    shown = [" ".join(line.split()) for line in lines if line.strip()]
    return shown[-1][:_LONGEST_LINE] if shown else ""
