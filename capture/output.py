"""Writing a capture: the traces without names of the machine, and all files completely or not at all."""

from __future__ import annotations

import gzip
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tracekit.errors import TracekitError, UnreadableTraceError, UsageError
from tracekit.facts.capture_names import LAYER_METADATA_KEY
from tracekit.facts.step_names import STEP_PREFIX
from tracekit.files import scratch_folder
from tracekit.manifest import MANIFEST_FILE, Level, Manifest, Run, is_manifest, read_manifest

if TYPE_CHECKING:  # it imports torch and this module
    from tracekit.capture.sessions import Recorded

__all__ = [
    "CHUNK",
    "SCRATCH_PREFIX",
    "copy_part",
    "forget_older_traces",
    "new_folder",
    "pack_trace",
    "prepare_folder",
    "put_capture",
    "reason_of",
    "trace_file",
    "without_paths",
    "write_capture",
    "write_trace",
]

SCRATCH_PREFIX = ".capture-"
"""Prefix of folders that hold files until they are complete."""


_EVENTS = b'"traceEvents"'
_DROPPED_KEYS = frozenset({"host_name", "traceName"})  # the machine, and the path of the profiler's file
# A Python frame is named `path(line): function`. Of an absolute path, the file and its folder are enough to
# recognise it, and do not reveal the user. Where tracekit's own code lies in a checkout, its package is named as well.
_ABSOLUTE_FRAME = rb'"(?:[A-Za-z]:)?[/\\][^"\n]*?((?:[^"/\\\n]+[/\\]+)?[^"/\\\n]+\.pyx?\(\d+\): )'
_OWN_FOLDER = msgspec.json.encode(str(Path(__file__).parent))[:-1]
_OWN_PACKAGE = b'"tracekit/capture'
CHUNK = 1 << 20
_OWN_TRACE = re.compile(r"trace(-ML|-metrics)?(-rank\d+)?\.json\.gz")
_FOLDERS = re.compile(r"(?<![\w.~])(?:[A-Za-z]:)?[/\\](?:[^\s'\"/\\:;,]+[/\\]+)+")


def without_paths(text: str) -> str:
    """The text without the folders of absolute paths, which can reveal the user.

    >>> without_paths("/home/me/net.py: cannot open '/data/x/train.txt'; use a/b/c")
    "net.py: cannot open 'train.txt'; use a/b/c"
    """
    return _FOLDERS.sub("", text)


def reason_of(error: BaseException) -> str:
    """Why a recording stopped, for its manifest: one short line without folders.

    >>> reason_of(ValueError("no such file: /home/me/x")), reason_of(KeyboardInterrupt())
    ('ValueError: no such file: x', 'interrupted')
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = str(error) if isinstance(error, TracekitError) else f"{type(error).__name__}: {error}"
    return without_paths(" ".join(text.split()))[:200].removesuffix(":")


def trace_file(level: Level, rank: int, ranks: int) -> str:
    """The name of the trace of a level on a rank.

    >>> trace_file("MLG", 0, 1), trace_file("ML", 0, 1), trace_file("MLG", 3, 4)
    ('trace.json.gz', 'trace-ML.json.gz', 'trace-rank3.json.gz')
    """
    parts = [*([] if level == "MLG" else [level]), *([f"rank{rank}"] if ranks > 1 else [])]
    return f"{'-'.join(['trace', *parts])}.json.gz"


def prepare_folder(folder: Path) -> Path:
    """Create `folder` if it is missing and return it, so that a long run does not fail at its end.

    Raises `UsageError` if it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write there ({error.strerror})", path=folder) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError("cannot write there (no permission)", path=folder)
    return folder


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """`folder`, created if it is missing, and removed again if the block fails and leaves it empty.

    Raises `UsageError` if it cannot be written to, holds files of those names that are no capture's, or another capture is being
    written there.
    """
    was_there, owner = folder.exists(), os.getpid()
    try:
        _refuse_foreign(prepare_folder(folder))
        with _locked(folder, owner):
            yield folder
    except BaseException:
        if not was_there and os.getpid() == owner:
            with suppress(OSError):  # it is not empty, or it was never created
                folder.rmdir()
        raise


def _refuse_foreign(folder: Path) -> None:
    """Raise UsageError if a capture would replace a trace, or a manifest, that no capture has written."""
    if is_manifest(folder / MANIFEST_FILE):
        return
    names = sorted(path.name for path in folder.iterdir())
    taken = [name for name in names if name == MANIFEST_FILE or _OWN_TRACE.fullmatch(name)]
    if taken:
        fault = f"it holds {taken[0]}, which is of no capture and would be replaced"
        raise UsageError(fault, path=folder, remedy="choose another folder with -o")


@contextmanager
def _locked(folder: Path, owner: int) -> Iterator[None]:
    """Two captures at once would leave the traces of one and the manifest of the other.

    The system drops the lock when the process ends, however it ends. A process that the code in the block forked
    has the same lock, and must not drop it.
    """
    try:
        import fcntl  # noqa: PLC0415 - Windows has none
    except ImportError:
        yield
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    "another capture is being written there",
                    path=folder,
                    remedy="wait for its end, or choose another folder with -o",
                ) from None
        yield
    finally:
        if os.getpid() == owner:
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # also for what was forked and still runs
        os.close(lock)


def forget_older_traces(folder: Path, manifest: Manifest) -> None:
    """Remove the traces of an earlier capture in the same folder, which the manifest no longer names."""
    named = {run.trace for run in manifest.runs}
    for file in folder.iterdir():
        if _OWN_TRACE.fullmatch(file.name) and file.name not in named:
            file.unlink()


def write_capture(folder: Path, manifest: Manifest, recorded: Recorded | None = None) -> Manifest:
    """Write the recording as the trace of the manifest's last run, and the manifest; return the manifest as written.

    Both files are complete before either gets its name, so a failure leaves an older capture unchanged. A folder that was
    removed meanwhile is made again. Raises `TracekitError` if the profiler wrote a file without events.
    """
    run = manifest.runs[-1] if manifest.runs else None
    with scratch_folder(prepare_folder(folder), prefix=SCRATCH_PREFIX) as scratch_name:
        scratch = Path(scratch_name)
        if recorded is not None and run is not None and run.trace is not None:
            run = msgspec.structs.replace(run, trace_defect=_export(scratch, run.trace, recorded))
            manifest = msgspec.structs.replace(manifest, runs=[*manifest.runs[:-1], run])
        put_capture(scratch, folder, manifest)
    return manifest


def put_capture(drafts: Path, folder: Path, manifest: Manifest) -> None:
    """Move the manifest's traces that lie in the folder `drafts`, and then the manifest, into `folder`."""
    (prepare_folder(drafts) / MANIFEST_FILE).write_bytes(manifest.to_json())
    traces = [run.trace for run in manifest.runs if run.trace is not None and (drafts / run.trace).exists()]
    prepare_folder(folder)
    with suppress(UnreadableTraceError):
        # A kill between two moves must not leave an older manifest beside a newer trace of that name.
        if not {run.trace for run in read_manifest(folder / MANIFEST_FILE).runs}.isdisjoint(traces):
            (folder / MANIFEST_FILE).replace(drafts / f"older-{MANIFEST_FILE}")
    for name in (*traces, MANIFEST_FILE):
        (drafts / name).replace(folder / name)


def write_trace(folder: Path, run: Run, recorded: Recorded) -> Run:
    """Write only the trace of a run, completely or not at all; return the run with the defect of the trace, if any."""
    if run.trace is None:
        return run
    with scratch_folder(prepare_folder(folder), prefix=SCRATCH_PREFIX) as scratch_name:
        run = msgspec.structs.replace(run, trace_defect=_export(Path(scratch_name), run.trace, recorded))
        (Path(scratch_name) / str(run.trace)).replace(folder / str(run.trace))
    return run


def _export(scratch: Path, name: str, recorded: Recorded) -> str | None:
    exported = scratch / "exported.json"
    recorded.export(str(exported))
    if not exported.exists():
        # The profiler reports no error if it could not write.
        raise UsageError(
            "the profiler could not write its trace", remedy="make room on the disk, or write elsewhere"
        )
    layers = recorded.layers
    added = {} if layers is None else {LAYER_METADATA_KEY: msgspec.json.encode(layers)}
    return pack_trace(exported, scratch / name, added, recorded.unfinished)


def pack_trace(
    source: Path, target: Path, added: Mapping[str, bytes], unfinished: int | None = None
) -> str | None:
    """Compress the profiler's JSON file `source` into `target`, with the top-level keys of `added`.

    The range of the step with the number `unfinished` gets another name, so that no reader takes it for a whole step.

    The values of `added` are JSON. The keys that name the machine are left out, and absolute paths in Python
    frames are shortened; all other bytes of the events stay the same. The file is mapped, not loaded.

    Returns None, or the reason why the events are not valid JSON. A quotation mark in the name of one of the user's
    ranges is enough for that; the recording is kept, because readers can repair it. Raises
    `TracekitError` if there are no events.
    """
    with (
        source.open("rb") as file,
        target.open("xb") as raw_target,
        # No file name and no time in the gzip header: they would say where and when it was packed.
        gzip.GzipFile(filename="", mode="wb", fileobj=raw_target, mtime=0, compresslevel=9) as packed,
    ):
        # Not a context manager: while an exception holds views of it, closing it would raise another exception.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header, events = _split(content)
        kept = {key: bytes(value) for key, value in header.items() if key not in _DROPPED_KEYS}
        packed.write(b"{\n")
        for key, value in {**kept, **added}.items():
            packed.write(msgspec.json.encode(key) + b": " + value + b",\n")
        packed.write(b'"traceEvents": ')
        _write_events(packed, content, events, unfinished)
        packed.write(b"\n}\n")
        defect = _defect(content)
        content.close()
    return defect


def _split(content: mmap.mmap) -> tuple[dict[str, msgspec.Raw], range]:
    """Return the keys before the events, and the position of the events' array.

    The profiler writes every key before the events, except `traceName`. The events themselves are not
    parsed, because they may not be valid JSON.
    """
    mark = content.find(_EVENTS)
    while mark >= 0:
        header = _object(content[:mark].rstrip().removesuffix(b",") + b"}")
        if header is not None:
            name = content.rfind(b'"traceName"', mark)
            begin = content.find(b"[", mark)
            end = content.rfind(b"]", mark, name if name >= 0 else len(content)) + 1
            if mark < begin < end:
                return header, range(begin, end)
        mark = content.find(_EVENTS, mark + 1)
    raise TracekitError("the profiler wrote a file without events")


def _object(text: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return None


def _defect(content: mmap.mmap) -> str | None:
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except msgspec.MsgspecError as error:
        return str(error)
    return None


def _write_events(target: gzip.GzipFile, content: mmap.mmap, events: range, unfinished: int | None) -> None:
    position, step = events.start, f'"{STEP_PREFIX}{unfinished}"'.encode()
    changed = re.compile(_ABSOLUTE_FRAME + (b"" if unfinished is None else b"|" + step))
    for name in changed.finditer(content, events.start, events.stop):
        copy_part(target, content, range(position, name.start()))
        if name[0].startswith(_OWN_FOLDER):
            target.write(_OWN_PACKAGE + name[0].removeprefix(_OWN_FOLDER))
        else:
            target.write(b'"' + (name[1] or b"unfinished " + step[1:]))
        position = name.end()
    copy_part(target, content, range(position, events.stop))


def copy_part(target: gzip.GzipFile, content: mmap.mmap, part: range) -> None:
    """Write the bytes of `part` of the content, `CHUNK` of them at a time."""
    for start in part[::CHUNK]:
        target.write(content[start : min(start + CHUNK, part.stop)])
