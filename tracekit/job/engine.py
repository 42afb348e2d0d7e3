"""What is made of many traces, each where it is read: in this process, in others, or on other machines.

Any `concurrent.futures.Executor` will do. A worker gets a path or an address and plain options, and gives back bytes, such as those
of a bounded summary. Of many ranks it reads several and joins their summaries, so that the process that collects them has few answers to
join. A trace that cannot be read is a row with its error; if a worker dies, its traces are tried again, each alone.

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
from dataclasses import field, replace
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tracekit.classes import dataclass
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
_LEAST_TASKS: Final = 512
"""Workers get so many tasks at least, where there are so many traces: enough for each of them to be busy to the end."""
_MOST_JOINED: Final = 32
"""So many traces in one task at most: what a worker joins is lost with it."""
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
    joined = min(_MOST_JOINED, max(1, len(paths) // _LEAST_TASKS))
    ask = _Asking(_Task(_summaries, chosen, _join, joined), _summaries_in, progress)
    return [
        Outcome(path, (), made.line, made.misused, made.remedy)
        if isinstance(made, _Fault)
        else Outcome(path, tuple(made))
        for path, made in ask.all(paths, executor, jobs)
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
    ask = _Asking(_Task(maker, options or Options(), list), list[bytes], progress)
    return [
        Answer(path, (), made.line, made.remedy, made.misused)
        if isinstance(made, _Fault)
        else Answer(path, tuple(made))
        for path, made in ask.all(paths, executor, jobs)
    ]


@dataclass(frozen=True, slots=True)
class _Fault:
    """Why nothing was made of a file."""

    line: str
    remedy: str = ""
    misused: bool = False


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Task:
    """What a worker does with its files."""

    maker: Maker
    options: Options
    join: Callable[[list[bytes]], Any]
    """Makes one thing, which travels, of what was made of all the files."""
    files: int = 1
    """So many are read in one task the first time."""

    def of(self, paths: Sequence[str]) -> tuple[list[int | _Fault], Any]:
        """How many things were made of each file, and all of them, joined. Runs in a worker."""
        made = [self._of(path) for path in paths]
        counts = [one if isinstance(one, _Fault) else len(one) for one in made]
        return counts, self.join([each for one in made if not isinstance(one, _Fault) for each in one])

    def _of(self, path: str) -> list[bytes] | _Fault:
        try:
            return list(self.maker(path, self.options))
        except UnreadableTraceError as error:
            return _Fault(error.fault, error.remedy)
        except TracekitError as error:
            return _Fault(str(error), misused=isinstance(error, UsageError))
        except Exception as error:  # noqa: BLE001 - one rank must not take the others down; its row says what happened
            return _Fault(f"a fault in tracekit ({type(error).__name__}: {error})")


def _summaries(path: str, options: Options) -> Iterator[bytes]:
    from tracekit.job.parts import summaries  # noqa: PLC0415 - see above

    return summaries(path, options)


def _join(packed: list[bytes]) -> bytes:
    from tracekit.analyses.ranks.summary import joined  # noqa: PLC0415 - see above

    return joined(packed)


def _summaries_in(packed: bytes) -> list[Summary]:
    from tracekit.analyses.ranks.summary import unpacked  # noqa: PLC0415 - see above

    return unpacked(packed)


_Reply = tuple[list[int | _Fault], Any]


class _Asking(Generic[_T]):
    """The answers so far. Of what workers leave without one the fault stands beside."""

    def __init__(self, task: _Task, separate: Callable[[Any], list[_T]], progress: Progress | None) -> None:
        self._task, self._separate = task, separate
        self._progress = progress or (lambda _done, _all: None)
        self._size = 0
        self._answers: dict[str, list[_T] | _Fault] = {}
        self._lost: dict[str, _Fault] = {}

    def all(
        self, paths: Sequence[str], executor: Executor | None, jobs: int | None
    ) -> list[tuple[str, list[_T] | _Fault]]:
        """What was made of each file, once, in their order (see `make`)."""
        wanted = list(dict.fromkeys(paths))
        self._size = len(wanted)
        keep_inputs(map(Path, wanted))
        count = min(jobs or cores(), len(wanted))
        if executor is None and (count <= 1 or (jobs is None and len(wanted) < _FEW)):
            for path in wanted:
                self._came([path], self._task.of([path]))
        else:
            self._workers(wanted, executor, count)
        return [(path, self._answer(path)) for path in wanted]

    def _answer(self, path: str) -> list[_T] | _Fault:
        made = self._answers.get(path) or self._lost.get(path) or _Fault(_DIED)
        return replace(made, line=" ".join(made.line.split())) if isinstance(made, _Fault) else made

    def _workers(self, paths: Sequence[str], executor: Executor | None, count: int) -> None:
        """Let workers read them. What a dead one had is asked again, at last alone, so that a file that kills takes no other with it."""
        for attempt in range(_TRIES):
            left = [path for path in paths if path not in self._answers]
            size = 1 if attempt else self._task.files
            tasks = [left[at : at + size] for at in range(0, len(left), size)]
            alone = attempt == _TRIES - 1 and executor is None
            for batch in [[task] for task in tasks] if alone else [tasks] if tasks else []:
                if executor is not None:
                    self._collect(executor, batch)
                    continue
                with _processes(min(count, len(batch))) as pool:
                    self._collect(pool, batch)

    def _came(self, paths: Sequence[str], reply: _Reply) -> None:
        counts, joined = reply
        made = iter(self._separate(joined))
        for path, count in zip(paths, counts, strict=True):
            self._answers[path] = count if isinstance(count, _Fault) else list(islice(made, count))
        self._progress(len(self._answers), self._size)

    def _collect(self, executor: Executor, tasks: Sequence[Sequence[str]]) -> None:
        """Ask for these tasks and take the answers as they come; of a broken pool those that still come."""
        came: SimpleQueue[Future[_Reply]] = SimpleQueue()
        left: dict[Future[_Reply], Sequence[str]] = {}
        # A pool that breaks meanwhile takes no more; what it did not take is asked again.
        with suppress(BrokenExecutor, OSError), interrupts_later():
            for paths in tasks:
                future = executor.submit(self._task.of, paths)
                left[future] = paths
                future.add_done_callback(came.put)
        broken = False
        try:
            from tracekit.job import parts  # noqa: F401, PLC0415 - who asked needs it for the answers

            while left and (done := _next(came, _GRACE_S if broken else None)) is not None:
                paths = left.pop(done)
                if done.cancelled():
                    raise UsageError(
                        f"the workers' scheduler has ended, and {self._size - len(self._answers):,} of {self._size:,} traces are not read",
                        remedy="start it and this command again",
                    )
                fault = done.exception()
                if fault is None:
                    self._came(paths, done.result())
                else:
                    broken = broken or isinstance(fault, BrokenExecutor)
                    self._lost |= dict.fromkeys(paths, _why(fault))
        finally:
            if not isinstance(executor, _Pool):
                for future in left:
                    future.cancel()


def _next(came: SimpleQueue[Future[_Reply]], most_s: float | None) -> Future[_Reply] | None:
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
    """A pool of this module, which ends its processes; it cannot do so while futures are cancelled.

    All its processes start before its thread does, as they do where processes are forked: a worker that dies while another one
    starts would break that thread, which goes through the processes.
    """

    def __init__(self, count: int, context: BaseContext, first: Callable[[], None]) -> None:
        super().__init__(count, context, first)
        self._safe_to_dynamically_spawn_children = False


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
            # Those of a broken pool may have been left, and it would wait for them forever.
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
