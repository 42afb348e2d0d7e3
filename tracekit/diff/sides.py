"""From paths to the runs of a comparison. Traces of all sides are read at once, by as many processes as there are cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from glob import glob
from pathlib import Path
from typing import Final

import msgspec

from tracekit.answers import Question
from tracekit.classes import dataclass
from tracekit.diff.runs import LARGEST, MARK, Kept, Run, RunSet, kept
from tracekit.digest import Digest, digest_of
from tracekit.digest.model import Plain, Versioned, check_version
from tracekit.errors import UnreadableTraceError, UsageError, reason_of
from tracekit.facts.capture_names import INDEX_FILE, MANIFEST_FILE
from tracekit.files import digest_of as file_digest
from tracekit.job.engine import Answer, Options, Progress, cores, make
from tracekit.job.parts import scopes_of
from tracekit.names import clean
from tracekit.readers.folder import traces_below

__all__ = ["read_kept", "read_sides"]

_REPORT_MARK: Final = b'"schema_version"'
_HEAD_BYTES: Final = 64
_LARGEST_REPORT: Final = 1 << 30
_PACKED: Final = (".gz", ".zst", ".zip")
_PACKED_TIMES: Final = 10
"""So many times larger is what was compressed."""
_WORTH_WORKERS: Final = 100 << 20
"""It takes as long to read so many bytes as to start other processes."""


def read_sides(
    sides: Sequence[Sequence[str | os.PathLike[str]]],
    options: Options | None = None,
    *,
    rank: int | None = None,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[RunSet]:
    """The runs of each side, from its paths.

    A path is a trace of any format, its address, the folder of a capture, a folder or a pattern of traces, a whole report in JSON, or
    a file of saved runs. The traces of one path, or in one folder, whose ranks are all known and differ are one run; others are a run
    each. With `rank` only the digests of this rank count. `options`, `executor`, `jobs` and `progress` are those of
    `tracekit.job.engine.make`; without `jobs` few and small files are read in this process.

    Raises UnreadableTraceError if nothing of a side can be read; what else cannot is in `left_out`. Raises UsageError if the options do
    not fit a side.

    >>> base, new = read_sides([["sample_traces/bert_cpu"], ["sample_traces/bert_cpu_ddp"]])
    >>> [len(run.digests) for run in (*base.runs, *new.runs)]
    [1, 2]
    """
    pieces = [[_files(os.fspath(path)) for path in side] for side in sides]
    files = list(dict.fromkeys(path for side in pieces for piece in side for path in piece.files))
    saved = [path for path in files if _begins(path, MARK)]
    others = [path for path in files if path not in saved]
    if jobs is None and executor is None:
        jobs = cores() if sum(map(_plain_bytes, others)) > _WORTH_WORKERS else 1
    answers = make(others, _packed, options, executor=executor, jobs=jobs, progress=progress)
    found: dict[str, _File] = {one.path: _of_answer(one) for one in answers}
    found |= {path: _of_kept(path) for path in saved}
    return [_side(side, found, rank) for side in pieces]


# -- what a path stands for ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """A path as it was given, and the files that it stands for, or why there are none."""

    path: str
    files: tuple[str, ...] = ()
    fault: UnreadableTraceError | None = None


def _files(path: str) -> _Piece:
    if path == "-":
        fault = "runs are not read from standard input"
        return _Piece(path, fault=UnreadableTraceError(fault, path=path, remedy="give a file"))
    try:
        if ":" in path:
            from tracekit.readers.remote import address_of, traces_at  # noqa: PLC0415 - 15 ms that a file does not need

            if (address := address_of(path)) is not None:
                return _Piece(path, tuple(traces_at(address)))
        matches = [path] if os.path.lexists(path) else sorted(glob(path)) or [path]  # noqa: PTH207 - it may be absolute
        return _Piece(path, tuple(each for match in matches for each in _in_folder(match)))
    except UnreadableTraceError as error:
        return _Piece(path, fault=error)
    except (OSError, ValueError) as error:  # a path that cannot be one
        return _Piece(path, fault=UnreadableTraceError(f"it cannot be read ({reason_of(error)})", path=path))


def _in_folder(path: str) -> list[str]:
    """The path, or the traces in that folder; of one without traces the reports and saved runs."""
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    if (folder / INDEX_FILE).is_file():
        remedy = "name the folders of runs of one configuration, or see all with tracekit compare"
        raise UnreadableTraceError(
            "it is a sweep, whose runs differ in their settings", path=path, remedy=remedy
        )
    try:
        return list(map(str, traces_below(folder)))
    except UnreadableTraceError:
        files = (each for each in sorted(folder.iterdir()) if each.is_file() and each.name != MANIFEST_FILE)
        beside = list(map(str, files))
        if results := [each for each in beside if _begins(each, MARK) or _is_report(each)]:
            return results
        raise


def _begins(path: str, mark: bytes) -> bool:
    return _head(path).startswith(mark)


def _is_report(path: str) -> bool:
    return path.endswith(".json") and _REPORT_MARK in _head(path)


def _head(path: str) -> bytes:
    """The first bytes of an ordinary file; nothing of what is none."""
    try:
        if not Path(path).is_file():  # a pipe can be read once
            return b""
        with Path(path).open("rb") as file:
            return file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return b""  # its reader says what is wrong with it


def _plain_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size * (_PACKED_TIMES if path.endswith(_PACKED) else 1)
    except (OSError, ValueError):
        return 0


# -- what a file holds --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """A trace or a report with the digests of its processes, a file of saved runs, or the fault of one."""

    path: str
    digests: tuple[Digest, ...] = ()
    kept: Kept | None = None
    fault: UnreadableTraceError | UsageError | None = None

    @property
    def changed_ns(self) -> int | None:
        try:
            return Path(self.path).stat().st_mtime_ns
        except (OSError, ValueError):
            return None


def _packed(path: str, options: Options) -> Iterable[bytes]:
    """Makes the digests of a trace or a report, or takes those of the trace that were made before; runs in a worker."""
    if _is_report(path):
        return [one.packed() for one in _of_report(Path(path))]
    file = Path(path)
    digest = file_digest(file) if options.cache and "://" not in path else None
    question = Question(
        [digest], "digests", options, str(file.absolute()), file_digest(file.parent / MANIFEST_FILE)
    )
    if (data := question.data()) is not None:
        return msgspec.msgpack.decode(data, type=list[bytes])
    made = [digest_of(scope).packed() for scope in scopes_of(path, options, digest=digest)]
    question.keep_data(msgspec.msgpack.encode(made))
    return made


class _Report(msgspec.Struct, frozen=True):
    """What of a report in JSON is a digest; of several reports each has one."""

    digest: Plain | None = None
    reports: list[_Report] = []


class _AnyReport(msgspec.Struct, frozen=True):
    digest: Versioned | None = None
    reports: list[_AnyReport] = []


def _of_report(path: Path) -> Iterator[Digest]:
    if path.stat().st_size > _LARGEST_REPORT:
        raise UnreadableTraceError("the report is too large", path=path, remedy="name its trace")
    text = path.read_bytes()
    try:
        of_any = msgspec.json.decode(text, type=_AnyReport)
        for one in of_any.reports or [of_any]:
            if one.digest is None:
                fault, remedy = "the report has no digest to compare", "write it with tracekit report -o FILE.json, without --only"  # fmt: skip
                raise UnreadableTraceError(fault, path=path, remedy=remedy)
            check_version(one.digest.version)
        whole = msgspec.json.decode(text, type=_Report)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise UnreadableTraceError(
            f"not a valid report ({error})", path=path, remedy="write it again"
        ) from error
    return (Digest.of_plain(one.digest) for one in whole.reports or [whole] if one.digest is not None)


def read_kept(path: Path) -> Kept:
    """The runs in a file of saved ones. Raises UnreadableTraceError when there are none, or it is damaged."""
    try:
        if path.stat().st_size > LARGEST:
            raise UnreadableTraceError(
                "too large for a file of saved runs", path=path, remedy="save it again"
            )
        return kept(path.read_bytes())
    except OSError as error:
        fault = f"it cannot be read ({reason_of(error)})"
        raise UnreadableTraceError(fault, path=path, remedy="check the path") from error
    except UnreadableTraceError as error:
        raise UnreadableTraceError(error.fault, path=path, remedy=error.remedy) from error


def _of_kept(path: str) -> _File:
    try:
        return _File(path, kept=read_kept(Path(path)))
    except UnreadableTraceError as error:
        return _File(path, fault=error)


def _of_answer(answer: Answer) -> _File:
    if answer.error is not None:
        if answer.misused:
            return _File(answer.path, fault=UsageError(answer.error))
        fault = UnreadableTraceError(answer.error, path=_shown(answer.path), remedy=answer.remedy)
        return _File(answer.path, fault=fault)
    return _File(answer.path, tuple(map(Digest.unpacked, answer.packed)))


# -- which files are one run --------------------------------------------------------------------------


def _side(pieces: Sequence[_Piece], found: dict[str, _File], rank: int | None) -> RunSet:
    seen: set[object] = set()
    files = [[found[path] for path in piece.files if _is_new(path, seen)] for piece in pieces]
    faults = [piece.fault for piece in pieces if piece.fault is not None]
    misfits = [each.fault for own in files for each in own if each.fault is not None]
    runs = [run for own in _joined(files) for run in _runs(own)]
    if not runs:
        raise [*faults, *misfits][0]
    if rank is not None:
        runs = _of_rank(runs, rank)
    return RunSet(", ".join(_shown(piece.path) for piece in pieces), tuple(runs), (*faults, *misfits))


def _is_new(path: str, seen: set[object]) -> bool:
    """Whether the file was not named before, also by another path: a run counts once."""
    try:
        status = Path(path).stat()
        key: object = status.st_dev, status.st_ino
    except (OSError, ValueError):
        key = path
    fresh = key not in seen
    seen.add(key)
    return fresh


def _joined(pieces: Iterable[list[_File]]) -> list[list[_File]]:
    """The pieces; files that were named one by one are one piece if they lie in one folder."""
    joined: list[list[_File]] = []
    folders: dict[str, list[_File]] = {}
    for own in pieces:
        folder = _folder(own[0].path) if len(own) == 1 else None
        if folder is not None and folder in folders:
            folders[folder] += own
        else:
            joined.append(list(own))
            if folder is not None:
                folders[folder] = joined[-1]
    return joined


def _runs(files: Sequence[_File]) -> Iterator[Run]:
    for one in files:
        yield from one.kept.runs if one.kept is not None else ()
    traces = [one for one in files if one.digests]
    folders: dict[str, list[_File]] = {}
    for one in traces:
        folders.setdefault(_folder(one.path), []).append(one)
    for together in [traces] if _are_ranks(traces) else folders.values():
        for ranks in [together] if _are_ranks(together) else [[one] for one in together]:
            digests = sorted(
                (each for one in ranks for each in one.digests), key=lambda each: each.facts.rank or 0
            )
            times = [one.changed_ns for one in ranks if one.changed_ns is not None]
            name = _folder(ranks[0].path) if len(ranks) > 1 else ranks[0].path
            yield Run(_end_of(name), tuple(digests), max(times, default=None))


def _are_ranks(files: Sequence[_File]) -> bool:
    facts = [each.facts for one in files for each in one.digests]
    ranks, sizes = {one.rank for one in facts}, {one.world_size for one in facts}
    return len(files) > 1 and None not in ranks and len(ranks) == len(facts) and len(sizes) == 1


def _of_rank(runs: Sequence[Run], rank: int) -> list[Run]:
    chosen = [
        Run(run.name, own, run.changed_ns)
        for run in runs
        if (own := tuple(each for each in run.digests if each.facts.rank == rank))
    ]
    if not chosen:
        known = sorted(
            {each.facts.rank for run in runs for each in run.digests if each.facts.rank is not None}
        )
        ranks = f"the ranks are {', '.join(map(str, known))}" if known else "no rank is known"
        raise UsageError(f"no trace has rank {rank}", remedy=ranks)
    return chosen


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _end_of(path: str) -> str:
    """The last two parts of a path."""
    whole = path if ":" in path else os.path.abspath(path)  # noqa: PTH100 - links stay
    return clean("/".join(_shown(whole).rstrip("/").split("/")[-2:]))


def _shown(path: str) -> str:
    """The path as it may be printed: an address without what is secret in it."""
    if "://" not in path:
        return path
    from tracekit.readers.remote import masked  # noqa: PLC0415 - as above

    return masked(path)
