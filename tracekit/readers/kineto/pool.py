"""Decoders that work beside the caller: threads of the native one, else helper processes for a large file, one per core.

The native decoder holds no lock of Python's, so it runs in threads. Helpers are plain subprocesses that run `main` and communicate over pipes. Unlike multiprocessing's, they never run the
caller's main module again, so that `tracekit.read` works in a script without an `if __name__ == "__main__"`.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import msgspec
import polars as pl

from tracekit.readers.kineto import native
from tracekit.readers.kineto.frames import RawFrames
from tracekit.readers.kineto.records import decode_array
from tracekit.readers.kineto.salvage import Defects
from tracekit.readers.kineto.source import BLOCK_BYTES

__all__ = ["Caller", "Pool", "Threads", "decode_block", "decoder_pool", "main"]

_MOST_HELPERS: Final = 8
_HELPERS_WORTH_BYTES: Final = 128 << 20
"""Below this the start of the helpers (0.4 s of CPU each) costs more than it gains."""

_THREADS: Final = 2
_THREADS_WORTH_BYTES: Final = 2 * BLOCK_BYTES
"""A file of fewer blocks has nothing to decode beside another."""

_LENGTH_BYTES: Final = 8
_START: Final = "import json,sys; sys.path[:] = json.loads(sys.argv[1]); from tracekit.readers.kineto.pool import main; main()"


class Threads:
    """Takes blocks of events; each answer is the natively decoded block, or empty if the decoder left it."""

    def __init__(self) -> None:
        self.depth = _THREADS + 1
        self._threads = ThreadPoolExecutor(_THREADS)

    def submit(self, text: bytearray, end: int) -> Future[native.Block | bytes]:
        """Decode text[:end], events that are separated by commas; the text must stay as it is until the answer has been used."""
        return self._threads.submit(_natively, text, end)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)


class Caller:
    """Decodes blocks natively as `Threads` does, but at once, where threads are not worth their start."""

    depth: Final = 0

    def submit(self, text: bytearray, end: int) -> Future[native.Block | bytes]:
        """See `Threads`."""
        answer: Future[native.Block | bytes] = Future()
        answer.set_result(_natively(text, end))
        return answer


def _natively(text: bytearray, end: int) -> native.Block | bytes:
    columns = native.decode(text, end)
    return b"" if columns is None or columns.ended else columns


class Pool:
    """Takes blocks of events; each answer is packed frames, or empty if the block does not decode."""

    def __init__(self, helpers: int) -> None:
        self.depth = helpers + 1
        self._threads = ThreadPoolExecutor(helpers)
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all = [_start() for _ in range(helpers)]
        for helper in self._all:
            self._idle.put(helper)

    def submit(self, text: bytearray, end: int) -> Future[bytes]:
        """Decode text[:end], events that are separated by commas, in a helper."""
        return self._threads.submit(self._ask, bytes(memoryview(text)[:end]))

    def close(self) -> None:
        """End the helpers."""
        for helper in self._all:
            helper.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for helper in self._all:
            helper.communicate()

    def _ask(self, block: bytes) -> bytes:
        helper = self._idle.get()
        try:
            if helper.stdin is None or helper.stdout is None:
                return b""
            _write_message(helper.stdin.fileno(), block)
            return _read_message(helper.stdout.fileno()) or b""
        except OSError:
            return b""  # a helper that died: its block is read in this process
        finally:
            self._idle.put(helper)


@contextmanager
def decoder_pool(plain_bytes: int) -> Iterator[Pool | Threads | Caller | None]:
    """What decodes a file with so much JSON: threads, or the caller for a small file, if the native decoder is there; else as many
    helpers as Polars has threads, or None for a small file.

    Where Polars has one thread, as in each of several processes that read at once, there is neither a second thread nor a helper.
    """
    helpers = min(pl.thread_pool_size(), _MOST_HELPERS)
    natively = native.is_built()
    worth = _THREADS_WORTH_BYTES if natively else _HELPERS_WORTH_BYTES
    if helpers < 2 or plain_bytes < worth or not (natively or sys.executable):
        yield Caller() if natively else None
        return
    pool = Threads() if natively else Pool(helpers)
    try:
        yield pool
    finally:
        pool.close()


def _start() -> subprocess.Popen[bytes]:
    # The pool already has one process per core.
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", _START, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=environment,
    )


def _write_message(descriptor: int, payload: bytes) -> None:
    """Write a payload with its length before it."""
    for part in (len(payload).to_bytes(_LENGTH_BYTES, "little"), payload):
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


def _read_message(descriptor: int) -> bytes | None:
    """The next payload; None if the other side has ended."""
    head = _read_exactly(descriptor, _LENGTH_BYTES)
    return None if head is None else _read_exactly(descriptor, int.from_bytes(head, "little"))


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


# -- in the helper -----------------------------------------------------------------------------------


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
    while (block := _read_message(source)) is not None:
        _write_message(sink, decode_block(block))
