"""One file read with the native decoder and without it, whole or only up to the raw frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl

import tracekit
from tracekit.errors import TracekitError
from tracekit.readers.kineto import native, source
from tracekit.readers.kineto.events import EventStream
from tracekit.readers.kineto.frames import RawFrames
from tracekit.readers.kineto.records import decode_array
from tracekit.readers.kineto.salvage import Defects
from tracekit.trace import FRAMES, Trace

RAW = (
    *("host", "device", "syncs", "memory", "counters"),
    *("collectives", "kernel_collectives", "flow_starts", "flow_ends"),
)

__all__ = ["block_differences", "differences", "raw_differences", "read"]


def read(path: Path, *, natively: bool, block_bytes: int = source.BLOCK_BYTES) -> Trace | str:
    """The trace, or the error's line."""
    with _set_up(natively=natively, block_bytes=block_bytes):
        try:
            return tracekit.read(path)
        except TracekitError as error:
            return str(error)


@contextmanager
def _set_up(*, natively: bool, block_bytes: int) -> Iterator[None]:
    decoder = native.decoder if natively else None
    with mock.patch.object(native, "decoder", decoder), mock.patch.object(source, "BLOCK_BYTES", block_bytes):
        yield


def differences(path: Path, block_bytes: int = source.BLOCK_BYTES) -> list[str]:
    """What is not equal: frames, among them health, and what is known of the file."""
    one, other = (read(path, natively=natively, block_bytes=block_bytes) for natively in (True, False))
    if isinstance(one, str) or isinstance(other, str):
        return [] if one == other else [f"natively {one}, else {other}"]
    found = [] if one.meta == other.meta else [f"natively {one.meta}, else {other.meta}"]
    for name in FRAMES:
        found += _unequal(name, getattr(one, name), getattr(other, name))
    return found


def _unequal(name: str, mine: pl.DataFrame | None, theirs: pl.DataFrame | None) -> list[str]:
    if mine is None or theirs is None:
        return [] if mine is theirs else [f"{name} is there in one"]
    if mine.schema != theirs.schema or mine.height != theirs.height:
        return [f"{name}: {mine.shape} {mine.schema}, else {theirs.shape} {theirs.schema}"]
    return [f"{name}.{key}" for key in mine.columns if not mine[key].equals(theirs[key])]


def raw_differences(path: Path, block_bytes: int) -> list[str]:
    """The same of what all else is made of: raw frames with their rows in order, names, defects and the header."""
    one, other = (_raw(path, natively=natively, block_bytes=block_bytes) for natively in (True, False))
    return _different(one, other)


_Collected = tuple[dict[str, pl.DataFrame | None], list[Any]]


def _different(one: _Collected, other: _Collected) -> list[str]:
    (frames, others), (their_frames, their_others) = one, other
    found = [
        f"natively {mine}, else {theirs}"
        for mine, theirs in zip(others, their_others, strict=True)
        if mine != theirs
    ]
    for name in RAW:
        found += _unequal(name, frames.get(name), their_frames.get(name))
    return found


def _raw(path: Path, *, natively: bool, block_bytes: int) -> _Collected:
    with _set_up(natively=natively, block_bytes=block_bytes):
        try:
            with closing(source.Source(path)) as opened:
                stream = EventStream(opened, as_columns=True)
                raw = RawFrames(stream.defects)
                for batch in stream.batches(None):
                    assert not isinstance(batch, bytes)
                    raw.add(batch)
        except TracekitError as error:
            return {}, [str(error)] * 5
    return _collected(raw, repr(stream.header))


def _collected(raw: RawFrames, header: str = "") -> _Collected:
    defects = raw.defects
    others = [raw.event_count, raw.processes, raw.threads, (defects.counts, defects.examples), header]
    return {name: raw.frame(name) for name in RAW}, others


def block_differences(text: bytes) -> list[str] | None:
    """The same of one block, which need not be a file's; None if the native decoder leaves it."""
    block = native.decode(text, len(text))
    if block is None:
        return None
    raw, records = RawFrames(Defects()), RawFrames(Defects())
    raw.add(block)
    records.add(decode_array(b"[" + text[: block.used] + (b"" if block.ended else b"]")))
    return _different(_collected(raw), _collected(records))
