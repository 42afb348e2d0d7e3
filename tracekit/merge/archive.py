"""Perfetto's archive of several traces: a TAR with the traces and a manifest that relates their clocks.

The format is that of https://perfetto.dev/docs/reference/perfetto-manifest, version 1. Perfetto gives no machine and no clock to a
member that is itself compressed, so the members are unpacked. A Chrome trace has a clock of its own; `offset_ns` is what the time of
a file's clock has to be moved by to be that of the file named by `sync_to`. The clock of the first file is that of the whole, and what
would come before its zero is dropped: so the reference of the parts comes first.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from tracekit.errors import UnreadableTraceError
from tracekit.files import write_chunks
from tracekit.limits import Limits
from tracekit.merge.part import Part
from tracekit.readers.kineto.source import Source

__all__ = ["manifest_of", "members_of", "write_archive"]

MANIFEST: Final = "perfetto_manifest.json"
_LONGEST: Final = 80
"""Perfetto's own archives have names of up to 99 characters."""
_PACKED: Final = re.compile(r"\.(gz|zst|zip)$", re.IGNORECASE)


def write_archive(
    parts: Sequence[Part], output: str | os.PathLike[str], *, limits: Limits | None = None
) -> None:
    """Write the archive, whole or not at all; equal input gives equal bytes.

    Raises UnreadableTraceError for a trace that cannot be unpacked, and UsageError if the file cannot be written or is one of the traces.
    """
    write_chunks(output, _tar(parts, limits or Limits()))


def members_of(parts: Sequence[Part]) -> list[tuple[str, Part]]:
    """The members by their names, in the order in which Perfetto reads them: by name."""
    first = min(parts, key=lambda part: part.offset_ns)
    ordered = [first, *(part for part in parts if part is not first)]
    digits = len(str(len(ordered) - 1))
    return [(f"{place:0{digits}}-{_name(part)}", part) for place, part in enumerate(ordered)]


def manifest_of(members: Sequence[tuple[str, Part]]) -> dict[str, object]:
    """The manifest: the rank of each file as its machine, and its clock against that of the first file."""
    first, reference = members[0]
    files: list[dict[str, object]] = []
    for name, part in members:
        entry: dict[str, object] = {"path": name, "machine": {"name": part.label}}
        if part is not reference:
            entry["clocks"] = {"sync_to": {"file": first}, "offset_ns": part.offset_ns}
        files.append(entry)
    return {"perfetto_manifest": {"version": 1, "files": files}}


def _name(part: Part) -> str:
    """The file's name without a suffix of compression; members of a TAR have names without a folder here."""
    return _PACKED.sub("", part.path.name).encode("ascii", "replace").decode().replace("?", "_")[-_LONGEST:]


def _tar(parts: Sequence[Part], limits: Limits) -> Iterator[bytes]:
    members = members_of(parts)
    text = json.dumps(manifest_of(members), indent=1).encode()
    yield from _member(MANIFEST, len(text), iter((text,)))
    for name, part in members:
        # The size stands before the data, so that a trace is unpacked twice rather than kept.
        size = sum(map(len, _plain(part, limits)))
        written = 0
        for block in _member(name, size, _plain(part, limits)):
            written += len(block)
            yield block
        if written != tarfile.BLOCKSIZE + _padded(size):
            raise UnreadableTraceError("it changed while it was read", path=part.path, remedy="try again")
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, size: int, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """A member with its header. Nothing in it says who wrote it, or when."""
    info = tarfile.TarInfo(name)
    info.size = size
    yield info.tobuf(tarfile.GNU_FORMAT)
    yield from blocks
    yield bytes(_padded(size) - size)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _plain(part: Part, limits: Limits) -> Iterator[bytes]:
    with closing(Source(part.path, limits)) as source:
        yield from source.blocks()
