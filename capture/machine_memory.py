"""The bandwidth of a processor's caches and memory, measured with NumPy.

A call into a library takes longer than a pass over a first-level cache. So one call makes many passes: the reduction of an
array that is repeated along its first axis, without a copy (stride 0), adds the same row to the same result again and again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cache", "caches_of", "seconds_of_a_pass", "update_rates", "usable_cpus", "working_sets"]

_CACHES: Final = Path("/sys/devices/system/cpu")
_PER_ELEMENT: Final = 12  # bytes that `y += x` moves: x and y are read, y is written, 4 bytes each
_TRIAL_BYTES: Final = 1.5e8
"""Of a trial of one thread, and the more for each the more start together: about a millisecond, so that some trials fall
between the turns of other programs."""
_MOST_TOGETHER: Final = 8
_ONE_PASS: Final = 16 << 20
"""A pass over an array of this size is a trial by itself."""
_LEAST_TRIALS: Final = 5
_SHORT_PASSES: Final = 100_000
"""Of arrays of a few numbers: about a millisecond."""
_LINE: Final = 4096  # bytes: a page, which begins with a line of any size
_SMALLEST_DRAM: Final = 256 << 20
"""A virtual machine may hide the last cache."""
_BEYOND_CACHES: Final = 4
"""An array for the memory is so many times as large as all last-level caches."""
_SHARE_OF_MEMORY: Final = 8
"""At most one part in so many of the free memory is used."""


class Cache(NamedTuple):
    """A cache of one level: its size, and how many of the CPUs share it."""

    size: int  # bytes
    shared: int


def usable_cpus() -> int:
    """The number of CPUs that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def caches_of(folder: Path = _CACHES) -> dict[str, Cache]:
    """The data caches of a CPU, from `L1` on, as Linux describes them; empty where it does not."""
    try:
        found = [_described(entry) for entry in sorted(folder.glob("cpu0/cache/index*"))]
    except (OSError, ValueError):  # a virtual machine may describe its caches in part
        return {}
    return {level: cache for kind, level, cache in found if kind != "Instruction"}


def _described(entry: Path) -> tuple[str, str, Cache]:
    names = ("type", "level", "size", "shared_cpu_list")
    kind, level, size, shared = ((entry / name).read_text("ascii").strip() for name in names)
    return kind, f"L{int(level)}", Cache(int(size.removesuffix("K")) << 10, _listed(shared))


def _listed(text: str) -> int:
    """The number of CPUs in a list of the kernel's.

    >>> _listed("0-3,8")
    5
    """
    ranges = [part.partition("-") for part in text.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def working_sets(
    caches: Mapping[str, Cache], threads: int, cpus: int, free_bytes: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """The sizes of arrays, in bytes for each thread, that show each level; and why a level cannot be shown.

    A set for a cache fits half of a thread's part of it, if all threads that may share it do, and is twice as large as
    the cache before it.

    >>> sizes, missing = working_sets({"L1": Cache(32 << 10, 1), "L2": Cache(1 << 20, 1)}, 2, 2, 1 << 34)
    >>> {level: [size >> 10 for size in each] for level, each in sizes.items()}, missing
    ({'L1': [8, 16], 'L2': [256, 512], 'DRAM': [131072]}, {})
    """
    sets: dict[str, tuple[int, ...]] = {}
    missing: dict[str, str] = {}
    before = 0
    for level, cache in sorted(caches.items()):
        part = cache.size // min(cache.shared, threads)
        sizes = {size for size in (max(part // 4, 2 * before), part // 2) if 2 * before <= size <= part // 2}
        if level == "L1":
            sizes = {part // 4, part // 2}
        if sizes:
            sets[level] = tuple(sorted(sizes))
        else:
            missing[level] = "a thread's part of it is hardly larger than the cache before it"
        before = part
    if not caches:
        missing["caches"] = "the system does not say how large they are"
    last = max(caches.items(), default=("", Cache(0, 1)))[1]
    needed = max(_SMALLEST_DRAM, _BEYOND_CACHES * last.size * -(-cpus // last.shared))
    if needed <= free_bytes // _SHARE_OF_MEMORY:
        sets["DRAM"] = (needed // threads,)
    else:
        missing["DRAM"] = (
            f"arrays beyond the caches need {_SHARE_OF_MEMORY * needed >> 20} MiB of free memory"
        )
    return sets, missing


def seconds_of_a_pass() -> float:
    """What a pass takes beside its updates: the least time of one over arrays of a few numbers."""
    x, y = _filled(1, 1), _filled(1, 0)
    spans = [_timed(x, y, _SHORT_PASSES) for _ in range(_LEAST_TRIALS)]
    return min(end - began for began, end in spans) / _SHORT_PASSES


def update_rates(set_bytes: int, threads: int, seconds: float, fixed: float = 0.0) -> list[float]:
    """Bytes/s of all threads together in each of several trials, with arrays `x` and `y` of `set_bytes` together per thread.

    Of each pass `fixed` seconds are no update, such as `seconds_of_a_pass`.

    >>> all(rate > 0 for rate in update_rates(1 << 16, 1, 0.01))
    True
    """
    elements = max(set_bytes // 8, 1)
    moved = _TRIAL_BYTES * min(threads, _MOST_TOGETHER)
    passes = 1 if set_bytes >= _ONE_PASS else max(round(moved / (elements * _PER_ELEMENT)), 1)
    trials = _Trials(threads, elements * _PER_ELEMENT * passes, time.perf_counter() + seconds, fixed * passes)

    def work(number: int) -> None:
        try:
            # Made by the thread itself, so that the memory lies close to it on machines with several sockets.
            x, y = _filled(elements, 1), _filled(elements, 0)
            while trials.another():
                trials.spans[number] = _timed(x, y, passes)
        except BaseException as error:  # noqa: BLE001 - it is raised by the caller's thread
            trials.fail(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    except BaseException:  # Ctrl-C, or no more threads: those that run wait for the others
        trials.fail()
        raise
    if trials.failures:
        raise trials.failures[0]
    return trials.rates[1:]  # the first one warms up


class _Trials:
    """The trials that threads make together: all begin the next one when all have ended the one before."""

    def __init__(self, threads: int, moved: float, until: float, fixed: float) -> None:
        self.spans: list[tuple[float, float] | None] = [None] * threads
        self.rates: list[float] = []
        self.failures: list[BaseException] = []
        self._moved, self._until, self._fixed, self._over = moved * threads, until, fixed, False
        self._together = threading.Barrier(threads, self._between)

    def another(self) -> bool:
        """Wait for all threads; whether there is another trial. Raises BrokenBarrierError when one of them failed."""
        self._together.wait()
        return not self._over

    def fail(self, *errors: BaseException) -> None:
        """Let no thread wait any longer."""
        self.failures += errors
        self._together.abort()

    def _between(self) -> None:
        """What the last thread does before all go on."""
        spans = [span for span in self.spans if span is not None]
        if spans:
            taken = max(end for _, end in spans) - min(began for began, _ in spans)
            self.rates.append(self._moved / max(taken - self._fixed, taken / 2))
        self._over = len(self.rates) > _LEAST_TRIALS and time.perf_counter() > self._until


def _timed(x: NDArray[np.float32], y: NDArray[np.float32], passes: int) -> tuple[float, float]:
    """When updates of `y` by so many passes over both arrays began and ended."""
    repeated = np.broadcast_to(x, (passes, x.size))
    began = time.perf_counter()
    if passes > 2:
        np.add.reduce(repeated, axis=0, out=y)
    else:
        for _ in range(passes):
            np.add(y, x, out=y)
    return began, time.perf_counter()


def _filled(elements: int, value: float) -> NDArray[np.float32]:
    """An array that begins with a line of the cache: loads across two lines take twice as long."""
    raw = np.empty(elements * 4 + _LINE, np.uint8)
    begin = -raw.ctypes.data % _LINE
    array = raw[begin : begin + elements * 4].view(np.float32)
    array[:] = value
    return array
