"""Helper processes that decode blocks of a large file, one per core.

They are plain subprocesses that run `worker` and communicate over pipes. Unlike multiprocessing's, they never run the
caller's main module again, so that `tracekit.read` works in a script without an `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

__all__ = ["Pool", "decoder_pool", "read_message", "write_message"]

_WORTH_BYTES: Final = 128 << 20
"""Below this the start of the helpers (0.4 s of CPU each) costs more than it gains."""

_MOST_HELPERS: Final = 8
_LENGTH_BYTES: Final = 8
_START: Final = "import json,sys; sys.path[:] = json.loads(sys.argv[1]); from tracekit.readers.kineto.worker import main; main()"


class Pool:
    """Takes blocks of events; each answer is packed frames, or empty if the block does not decode."""

    def __init__(self, helpers: int) -> None:
        self.depth = helpers + 1
        self._threads = ThreadPoolExecutor(helpers)
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all = [_start() for _ in range(helpers)]
        for helper in self._all:
            self._idle.put(helper)

    def submit(self, block: bytes) -> Future[bytes]:
        """Decode a block of events (separated by commas) in a helper."""
        return self._threads.submit(self._ask, block)

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
            write_message(helper.stdin.fileno(), block)
            return read_message(helper.stdout.fileno()) or b""
        except OSError:
            return b""  # a helper that died: its block is read in this process
        finally:
            self._idle.put(helper)


@contextmanager
def decoder_pool(plain_bytes: int) -> Iterator[Pool | None]:
    """A pool for a file of this size; None if one process is faster."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if plain_bytes < _WORTH_BYTES or cores < 2 or not sys.executable:
        yield None
        return
    pool = Pool(min(cores, _MOST_HELPERS))
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


def write_message(descriptor: int, payload: bytes) -> None:
    """Write a payload with its length before it."""
    for part in (len(payload).to_bytes(_LENGTH_BYTES, "little"), payload):
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


def read_message(descriptor: int) -> bytes | None:
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
