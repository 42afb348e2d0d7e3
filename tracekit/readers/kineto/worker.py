"""The helper process of `pool`: blocks of events come in on stdin, packed frames go out on stdout."""

from __future__ import annotations

import gc
import os
import signal

import msgspec

from tracekit.readers.kineto.events import decode_array
from tracekit.readers.kineto.frames import RawFrames
from tracekit.readers.kineto.pool import read_message, write_message
from tracekit.readers.kineto.salvage import Defects

__all__ = ["decode_block", "main"]


def decode_block(block: bytes) -> bytes:
    """The packed frames of a block; empty if it does not decode, and the parent then reads it."""
    try:
        events = decode_array(b"[" + block + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    raw = RawFrames(Defects())
    raw.add(events)
    return raw.pack()


def main() -> None:
    """Serve until stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its helpers itself
    gc.disable()  # records form no cycles, and there are millions of them
    source, sink = os.dup(0), os.dup(1)
    while (block := read_message(source)) is not None:
        write_message(sink, decode_block(block))
