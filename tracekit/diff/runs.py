"""Runs as a comparison takes them, and the bytes of a file that keeps some: digests, and no events."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated, Final

import msgspec

from tracekit.classes import dataclass
from tracekit.digest import Digest
from tracekit.errors import TracekitError, UnreadableTraceError

__all__ = ["LARGEST", "MARK", "VERSION", "Kept", "Run", "RunSet", "date_of", "keep", "kept"]

VERSION: Final = 1
"""Of the file; rises when a field changes its meaning. Digests have a version of their own."""
MARK: Final = b'{"tracekit_runs":'
"""How every version of the file begins."""
LARGEST: Final = 256 << 20
_LONGEST_HEAD: Final = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run of a program: the digests of its ranks, or of the processes in its file, in their order."""

    name: str
    """The end of its path: two parts at most, so that it tells no home folder."""
    digests: tuple[Digest, ...]
    changed_ns: int | None = None
    """When its file was last changed, in UTC; None at an address."""

    @property
    def recorded_ns(self) -> int | None:
        """When its profile began, in UTC; None if the profile does not say it."""
        return min(
            (at for one in self.digests if (at := one.facts.recorded_utc_ns) is not None), default=None
        )


@dataclass(frozen=True, slots=True, eq=False)
class RunSet:
    """One side of a comparison: runs of one program, which are pooled."""

    name: str
    """As the user called it, for one line."""
    runs: tuple[Run, ...]
    left_out: tuple[TracekitError, ...] = ()
    """Why files of it are not in its runs; each names its file."""


class _RunHead(msgspec.Struct, frozen=True):
    name: str
    changed_ns: int | None
    sizes: list[Annotated[int, msgspec.Meta(ge=1, lt=LARGEST)]]
    """Bytes of each digest."""


class _Head(msgspec.Struct, frozen=True):
    """The first line of the file. The digests follow, one after the other."""

    tracekit_runs: int
    saved_ns: int
    runs: Annotated[list[_RunHead], msgspec.Meta(min_length=1)]
    sha256: str
    """Of all digests."""


class _Versioned(msgspec.Struct, frozen=True):
    tracekit_runs: int


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Runs from a file, and when it was saved, in ns of UTC."""

    runs: tuple[Run, ...]
    saved_ns: int


def date_of(ns: int) -> str:
    """An instant of UTC to the minute; empty for one that no calendar has.

    >>> date_of(1_795_211_461_442_606_413)
    '2026-11-20 21:51'
    """
    try:
        return f"{datetime.fromtimestamp(ns / 1e9, tz=timezone.utc):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return ""


def keep(runs: Sequence[Run]) -> bytes:
    """The bytes of a file with these runs, of which there is at least one.

    >>> import tracekit
    >>> from tracekit.digest import digest_of
    >>> run = Run("cnn", (digest_of(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")),))
    >>> data = keep([run])
    >>> kept(data).runs[0].name, len(data) < 20_000
    ('cnn', True)
    """
    packed = [[one.packed() for one in run.digests] for run in runs]
    heads = [
        _RunHead(run.name, run.changed_ns, [*map(len, own)]) for run, own in zip(runs, packed, strict=True)
    ]
    body = b"".join(each for own in packed for each in own)
    head = _Head(VERSION, time.time_ns(), heads, hashlib.sha256(body).hexdigest())
    return msgspec.json.encode(head) + b"\n" + body


def kept(data: bytes) -> Kept:
    """What `keep` made bytes of.

    Raises UnreadableTraceError, without a path, for bytes of another version, damaged ones and any others.
    """
    line, _, body = data.partition(b"\n")
    try:
        if len(line) > _LONGEST_HEAD:
            raise _damaged("its first line is too long")
        version = msgspec.json.decode(line, type=_Versioned).tracekit_runs
        if version != VERSION:
            remedy = "use a newer tracekit" if version > VERSION else "save it again"
            raise UnreadableTraceError(f"it has version {version}, not {VERSION}", remedy=remedy)
        head = msgspec.json.decode(line, type=_Head)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise _damaged(str(error)) from error
    if hashlib.sha256(body).hexdigest() != head.sha256:
        raise _damaged("its bytes are not those that were saved")
    if sum(map(sum, (run.sizes for run in head.runs))) != len(body):
        raise _damaged("it has another length")
    runs, at = [], 0
    for one in head.runs:
        digests = []
        for size in one.sizes:
            digests.append(Digest.unpacked(body[at : at + size]))
            at += size
        runs.append(Run(one.name, tuple(digests), one.changed_ns))
    return Kept(tuple(runs), head.saved_ns)


def _damaged(how: str) -> UnreadableTraceError:
    return UnreadableTraceError(f"no valid file of saved runs ({how})", remedy="save it again")
