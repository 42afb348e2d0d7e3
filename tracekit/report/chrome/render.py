"""A trace with tracks of layers, idle time and the critical path added, for Perfetto and other viewers of Chrome's format.

The original is copied byte by byte; the tracks go to the front of its event array. Their category is one that
tracekit's reader leaves out, so that a trace with them reads as the original does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from isal import isal_zlib

from tracekit.errors import UsageError
from tracekit.files import write_chunks
from tracekit.limits import Limits
from tracekit.readers import format_named
from tracekit.readers.kineto.events import plain_bytes
from tracekit.report.chrome.tracks import FIRST_MARK, tracks
from tracekit.trace import Trace

__all__ = ["gzipped", "write"]

_GZIP: Final = 31
"""A window of 32 kB, with the header of a gzip file, which zlib then writes without a time."""


def write(trace: Trace, output: str | os.PathLike[str], *, limits: Limits | None = None) -> dict[str, int]:
    """Write the trace's own file with the tracks to `output`, gzipped when that ends in `.gz`.

    Returns how many of each kind were added. Raises UsageError when `output` is no JSON file, is the trace itself or
    cannot be written, or the trace has the tracks already, and UnreadableTraceError when it cannot be read again.
    """
    source, target = Path(trace.meta.path), Path(output)
    if not target.name.endswith((".json", ".json.gz")):
        raise UsageError(
            "a Chrome trace is a .json or .json.gz file", path=target, remedy="choose such a name"
        )
    writer = format_named(trace.meta.format)
    if not writer.is_chrome:
        raise UsageError(
            f"a file of {writer.title} is not a Chrome trace and cannot be turned into one",
            path=source,
            remedy="see its timeline with tracekit view --html, or export its frames without --to",
        )
    if not source.is_file():
        raise UsageError("it cannot be read twice", path=source, remedy="give a file")
    if target.exists() and target.samefile(source):
        raise UsageError("that is the trace itself", path=target, remedy="choose another name with -o")
    with plain_bytes(source, limits) as (head, blocks):
        beyond = b""
        while not beyond.strip() and (more := next(blocks, b"")):
            beyond += more
        if beyond.lstrip().startswith(FIRST_MARK.encode()):
            raise UsageError(
                "it has tracekit's tracks already", path=source, remedy="give the original trace"
            )
        lines, counts = tracks(trace)
        added = ",\n".join(lines).encode()
        if added and not beyond.lstrip().startswith(b"]"):
            added += b","
        chunks = chain((head, b"\n" if added else b"", added, beyond), blocks)
        write_chunks(target, gzipped(chunks) if target.suffix == ".gz" else chunks)
    return counts


def gzipped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks as one gzip file without a time in it."""
    packer = isal_zlib.compressobj(2, isal_zlib.DEFLATED, _GZIP)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()
