"""What is made of many traces, each where it is read: in this process, in others, or on other machines.

Any `concurrent.futures.Executor` will do. A worker gets a path or an address and plain options, and gives back bytes, such as those
of a bounded summary. A trace that cannot be read is a row with its error; if a worker dies, its traces are tried again.

What reads and analyses is imported once the workers have started, because both take half a second.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from tracekit.errors import TracekitError, UnreadableTraceError, UsageError
from tracekit.files import keep_inputs, roomy_place, scratch_folder
from tracekit.limits import Limits
from tracekit.range_filter import RangeFilter

if TYPE_CHECKING:
    from tracekit.analyses.ranks import Summary
    from tracekit.analyses.scope import Window

__all__ = [
    "Answer",
    "Maker",
    "Options",
    "Outcome",
    "Progress",
    "cores",
    "interrupts_later",
    "make",
    "summarise",
]

_TRIES: Final = 3
_MOST_CALLS: Final = 4_000_000
"""So many calls of all ranks together are compared in one process; a million takes it half a GB."""
_LEAST_CALLS: Final = 500
"""So many of each rank at least."""
_GRACE_S: Final = 5
"""So long a broken pool may take to give up what it has."""
_LOOK_S: Final = 0.2
_FEW: Final = 4
"""Fewer traces are read before other processes have started."""
_DIED: Final = "the process that read it died"


@dataclass(frozen=True, slots=True)
class Options:
    """How each trace is read, and which part of it is summarised (as in `tracekit.read_all` and `scope.select`)."""

    limits: Limits = field(default_factory=Limits)
    cache: bool = False
    window: Window = "steps"
    step: str | None = None
    comm_patterns: tuple[str, ...] = ()
    """Kernels whose name matches one of these regular expressions count as communication."""
    ranges: RangeFilter | None = None
    """The named ranges that count as layers; None: all."""
    most_calls: int | None = None
    """So many calls of a rank are compared with those of others at most; None: as many as fit into the process that compares."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file: a summary for each of its processes, or the one line of its error."""

    path: str
    summaries: tuple[Summary, ...] = ()
    error: str | None = None
    misused: bool = False
    """Whether the error is that the options do not fit the trace."""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was made of one file, a packed thing for each of its processes, or the one line of its error."""

    path: str
    packed: tuple[bytes, ...] = ()
    error: str | None = None
    remedy: str = ""
    misused: bool = False


Maker = Callable[[str, Options], Iterable[bytes]]
"""Makes the packed things of a file; a function of a module, because workers find it by its name."""

Progress = Callable[[int, int], None]
"""Called with the numbers of answers so far, and of files."""


def summarise(
    paths: Sequence[str],
    options: Options | None = None,
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """The outcome of each file, in their order; the arguments and errors are those of `make`.

    >>> from pathlib import Path
    >>> files = sorted(str(path) for path in Path("sample_traces/bert_cpu_ddp").glob("*.gz"))
    >>> [one.summaries[0].facts.rank for one in summarise(files)]
    [0, 1]
    """
    chosen = options or Options()
    if chosen.most_calls is None:
        chosen = replace(chosen, most_calls=max(_LEAST_CALLS, _MOST_CALLS // max(len(paths), 1)))
    answers = make(paths, _summaries, chosen, executor=executor, jobs=jobs, progress=progress)
    from tracekit.analyses.ranks import Summary  # noqa: PLC0415 - see above

    return [
        Outcome(one.path, tuple(map(Summary.unpacked, one.packed)), one.error, one.misused, one.remedy)
        for one in answers
    ]


def make(
    paths: Sequence[str],
    maker: Maker,
    options: Options | None = None,
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Answer]:
    """What the maker makes of each file, in their order; a path may be an address (https://, s3://, gs://).

    The workers of `executor` make them (of Dask: `client.get_executor()`); they need tracekit and the same paths. Without it
    `jobs` processes do, by default one for each core, or this one for a few files. What a file or a worker does raises
    nothing. Raises UsageError if the executor itself ends.
    """
    wanted = list(dict.fromkeys(paths))
    keep_inputs(map(Path, wanted))
    ask = _Asking(maker, options or Options(), len(wanted), progress or (lambda _done, _all: None))
    count = min(jobs or cores(), len(wanted))
    if executor is None and (count <= 1 or (jobs is None and len(wanted) < _FEW)):
        ask.here(wanted)
    else:
        ask.workers(wanted, executor, count)
    return [ask.answer(path) for path in wanted]


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why nothing was made of a file."""

    line: str
    remedy: str = ""
    misused: bool = False


_Made = list[bytes] | _Fault


def _work(path: str, maker: Maker, options: Options) -> _Made:
    """Runs in a worker."""
    try:
        return list(maker(path, options))
    except UnreadableTraceError as error:
        return _Fault(error.fault, error.remedy)
    except TracekitError as error:
        return _Fault(str(error), misused=isinstance(error, UsageError))
    except Exception as error:  # noqa: BLE001 - one rank must not take the others down; its row says what happened
        return _Fault(f"a fault in tracekit ({type(error).__name__}: {error})")


def _summaries(path: str, options: Options) -> Iterator[bytes]:
    from tracekit.job.parts import summaries  # noqa: PLC0415 - see above

    return summaries(path, options)


class _Asking:
    """The answers so far. Of what workers leave without one the fault stands beside."""

    def __init__(self, maker: Maker, options: Options, size: int, progress: Progress) -> None:
        self._maker, self._options, self._size, self._progress = maker, options, size, progress
        self._answers: dict[str, _Made] = {}
        self._lost: dict[str, _Fault] = {}

    def answer(self, path: str) -> Answer:
        """The answer for a file."""
        made = self._answers.get(path) or self._lost.get(path) or _Fault(_DIED)
        if isinstance(made, _Fault):
            return Answer(path, (), " ".join(made.line.split()), made.remedy, made.misused)
        return Answer(path, tuple(made))

    def here(self, paths: Sequence[str]) -> None:
        """Read the files in this process."""
        for path in paths:
            self._came(path, _work(path, self._maker, self._options))

    def workers(self, paths: Sequence[str], executor: Executor | None, count: int) -> None:
        """Let workers read them. What a dead one had is asked again, at last alone, so that a file that kills takes no other with it."""
        for attempt in range(_TRIES):
            left = [path for path in paths if path not in self._answers]
            alone = attempt == _TRIES - 1 and executor is None
            for batch in [[path] for path in left] if alone else [left] if left else []:
                if executor is not None:
                    self._collect(executor, batch)
                    continue
                with _processes(min(count, len(batch))) as pool:
                    self._collect(pool, batch)

    def _came(self, path: str, answer: _Made) -> None:
        self._answers[path] = answer
        self._progress(len(self._answers), self._size)

    def _collect(self, executor: Executor, paths: Sequence[str]) -> None:
        """Ask for these files and take the answers as they come; of a broken pool those that still come."""
        came: SimpleQueue[Future[_Made]] = SimpleQueue()
        left: dict[Future[_Made], str] = {}
        # A pool that breaks meanwhile takes no more; what it did not take is asked again.
        with suppress(BrokenExecutor, OSError), interrupts_later():
            for path in paths:
                future = executor.submit(_work, path, self._maker, self._options)
                left[future] = path
                future.add_done_callback(came.put)
        broken = False
        try:
            from tracekit.job import parts  # noqa: F401, PLC0415 - who asked needs it for the answers

            while left and (done := _next(came, _GRACE_S if broken else None)) is not None:
                path = left.pop(done)
                if done.cancelled():
                    raise UsageError(
                        f"the workers' scheduler has ended, and {len(left) + 1:,} of {self._size:,} traces are not read",
                        remedy="start it and this command again",
                    )
                fault = done.exception()
                if fault is None:
                    self._came(path, done.result())
                else:
                    broken = broken or isinstance(fault, BrokenExecutor)
                    self._lost[path] = _why(fault)
        finally:
            if not isinstance(executor, _Pool):
                for future in left:
                    future.cancel()


def _next(came: SimpleQueue[Future[_Made]], most_s: float | None) -> Future[_Made] | None:
    """The next future that came; None if none does for so long.

    The wait is one of short ones, because Ctrl-C may reach another thread and wake none.
    """
    until = None if most_s is None else time.monotonic() + most_s
    while until is None or time.monotonic() < until:
        with suppress(Empty):
            return came.get(timeout=_LOOK_S)
    return None


def _why(fault: BaseException) -> _Fault:
    """Each kind of executor has its own error for a worker that died; another one says what a worker lacks."""
    if isinstance(fault, BrokenExecutor) or type(fault).__name__ == "KilledWorker":
        return _Fault(_DIED)
    return _Fault(f"no worker could read it ({type(fault).__name__}: {str(fault)[:200]})")


# -- processes of this machine ------------------------------------------------------------------------


class _Pool(ProcessPoolExecutor):
    """A pool of this module, which ends its processes; it cannot do so while futures are cancelled."""


@contextmanager
def _processes(count: int) -> Iterator[Executor]:
    """A pool of processes that end with the block, and their temporary files with them."""
    others = set(multiprocessing.active_children())
    threads = str(max(1, cores() // count))
    with scratch_folder(roomy_place()) as scratch, _environment(POLARS_MAX_THREADS=threads, TMPDIR=scratch):
        pool = _Pool(count, multiprocessing.get_context("spawn"), _watch_parent)
        try:
            yield pool
        finally:
            # A pool whose worker dies while it starts another one does not end that one, and would wait for it forever.
            for child in set(multiprocessing.active_children()) - others:
                child.kill()
            pool.shutdown()


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """These variables for the processes that are started in the block: Polars' threads of all would compete for the same cores,
    and it reads their number when it is imported.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _watch_parent() -> None:
    """Runs first in each process of a pool, which would wait forever for a parent that was killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Ctrl-C counts behind the block; processes that are started in it never see one, since their pool ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # whose start would end the block's effect
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
