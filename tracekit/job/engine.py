"""The summaries of many traces, each made where its trace is read: in this process, in others, or on other machines.

Any `concurrent.futures.Executor` will do. A worker gets a path and plain options, and gives back a bounded summary. A
trace that cannot be read is a row with its error; if a worker dies, its traces are tried again.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tracekit.analyses.ranks import Summary, summary_of
from tracekit.analyses.scope import Window, select
from tracekit.api import read_all
from tracekit.errors import TracekitError, UnreadableTraceError
from tracekit.limits import Limits

__all__ = ["Options", "Outcome", "summarise"]

_TRIES: Final = 3
_GRACE_S: Final = 5
"""So long a broken pool may take to give up what it has."""
_FEW: Final = 4
"""Fewer traces are read before other processes have started."""


@dataclass(frozen=True, slots=True)
class Options:
    """How each trace is read, and which part of it is summarised (as in `tracekit.read_all` and `scope.select`)."""

    limits: Limits = field(default_factory=Limits)
    cache: bool = False
    window: Window = "steps"
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file: a summary for each of its processes, or the one line of its error."""

    path: str
    summaries: tuple[Summary, ...] = ()
    error: str | None = None


def summarise(
    paths: Sequence[str],
    options: Options | None = None,
    *,
    executor: Executor | None = None,
    jobs: int | None = None,
) -> list[Outcome]:
    """The outcome of each file, in their order.

    The workers of `executor` make them (of Dask: `client.get_executor()`); they need tracekit and the same paths. Without it
    `jobs` processes do, by default one for each core, or this one for a few files. What a file or a worker does raises
    nothing.

    >>> from pathlib import Path
    >>> files = sorted(str(path) for path in Path("sample_traces/bert_cpu_ddp").glob("*.gz"))
    >>> [one.summaries[0].facts.rank for one in summarise(files)]
    [0, 1]
    """
    options, wanted = options or Options(), list(dict.fromkeys(paths))
    count = min(jobs or _cores(), len(wanted))
    if executor is None and (count <= 1 or (jobs is None and len(wanted) < _FEW)):
        answers: dict[str, _Answer] = {path: _work(path, options) for path in wanted}
    else:
        answers = _asked(wanted, options, executor, count)
    made = {path: _outcome(path, answer) for path, answer in answers.items()}
    return [made[path] for path in wanted]


_Answer = list[bytes] | str


def _work(path: str, options: Options) -> _Answer:
    """The packed summaries of a file, or why there are none. Runs in a worker."""
    try:
        traces = read_all(path, limits=options.limits, cache=options.cache)
        return [
            summary_of(select(trace, window=options.window, step=options.step)).packed() for trace in traces
        ]
    except UnreadableTraceError as error:
        return error.fault
    except TracekitError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - one rank must not take the others down; its row says what happened
        return f"a fault in tracekit ({type(error).__name__}: {error})"


def _outcome(path: str, answer: _Answer) -> Outcome:
    if isinstance(answer, str):
        return Outcome(path, error=" ".join(answer.split()))
    return Outcome(path, tuple(Summary.unpacked(one) for one in answer))


def _asked(
    paths: Sequence[str], options: Options, executor: Executor | None, count: int
) -> dict[str, _Answer]:
    """The answers of workers. What a dead one had is asked again, at last alone, so that a file that kills takes no other with it."""
    answers: dict[str, _Answer] = {}
    lost: dict[str, _Answer] = {}
    for attempt in range(_TRIES):
        left = [path for path in paths if path not in answers]
        alone = attempt == _TRIES - 1 and executor is None
        for batch in [[path] for path in left] if alone else [left] if left else []:
            if executor is not None:
                came, failed = _collected(executor, batch, options)
            else:
                came, failed = _in_processes(min(count, len(batch)), batch, options)
            answers |= came
            lost |= failed
    return lost | answers


_Answers = tuple[dict[str, _Answer], dict[str, _Answer]]


def _in_processes(count: int, paths: Sequence[str], options: Options) -> _Answers:
    """The same as `_collected`, of processes of this one."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _one_thread)
    try:
        return _collected(pool, paths, options)
    finally:
        # A pool whose worker dies while it starts another one does not end that one, and would wait for it forever.
        for child in set(multiprocessing.active_children()) - others:
            child.kill()
        pool.shutdown()


def _collected(executor: Executor, paths: Sequence[str], options: Options) -> _Answers:
    """The answers that came, and why others did not: their worker died, or could not begin."""
    futures: dict[Future[_Answer], str] = {}
    # A pool that breaks meanwhile takes no more; what it did not take is among the lost.
    with suppress(BrokenExecutor, OSError):
        for path in paths:
            futures[executor.submit(_work, path, options)] = path
    left, broken = set(futures), False
    while left:
        done, left = wait(left, timeout=_GRACE_S if broken else None, return_when=FIRST_COMPLETED)
        if broken and not done:
            break
        broken = broken or any(isinstance(_fault(one), BrokenExecutor) for one in done)
    faults = {path: _fault(future) for future, path in futures.items()}
    came: dict[str, _Answer] = {
        path: future.result() for future, path in futures.items() if faults[path] is None
    }
    return came, {path: _why(faults.get(path)) for path in paths if path not in came}


def _fault(future: Future[_Answer]) -> BaseException | None:
    """Why a future has no answer; None if it has one."""
    if not future.done() or future.cancelled():
        return BrokenExecutor()
    return future.exception()


def _why(fault: BaseException | None) -> str:
    """Each kind of executor has its own error for a worker that died; another one says what a worker lacks."""
    if fault is None or isinstance(fault, BrokenExecutor):
        return "the process that read it died"
    return f"no worker could read it ({type(fault).__name__}: {str(fault)[:200]})"


def _one_thread() -> None:
    """Polars' threads of all workers would compete for the same cores; it reads this when it is first imported."""
    os.environ["POLARS_MAX_THREADS"] = "1"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
