"""The joint view of a command's traces, if they are the ranks of a job."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.analyses.ranks import summary_of
from tracekit.analyses.scope import Scope
from tracekit.cli.output import say
from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.facts.distribution import how_to_install
from tracekit.job import Options, job_of, rank_sets, summarise
from tracekit.job.rank_set import Member
from tracekit.report.job import job_section, latest
from tracekit.report.job_set import other_jobs

if TYPE_CHECKING:
    from tracekit.report.model import Section

__all__ = ["Joint", "of_files", "of_scopes"]


@dataclass(frozen=True, slots=True)
class Joint:
    """A job: its section, and the path and rank of the trace to look at first."""

    section: Section
    path: str
    rank: int | None


def of_scopes(scopes: Sequence[Scope]) -> Joint | None:
    """The job of these parts of traces; None if they are none."""
    if len(scopes) == 1:
        return None
    return _joint([Member(scope.trace.meta.path, summary_of(scope)) for scope in scopes], 0)


def of_files(
    paths: Sequence[Path], options: Options, jobs: int | None, scheduler: str | None
) -> Joint | None:
    """The job of these files, which workers read; None if they are none. What cannot be read is said.

    Raises UnreadableTraceError if none of them can be read, and UsageError for a scheduler that does not answer.
    """
    with _executor(scheduler) as executor:
        outcomes = summarise([str(path) for path in paths], options, executor=executor, jobs=jobs)
    failed = [one for one in outcomes if one.error is not None]
    if len(failed) == len(outcomes):
        raise UnreadableTraceError(
            failed[0].error or "", path=failed[0].path, remedy="check the other files too"
        )
    for one in failed:
        say(f"tracekit: left out: {one.path}: {one.error}")
    return _joint([Member(one.path, summary) for one in outcomes for summary in one.summaries], len(failed))


def _joint(members: Sequence[Member], errors: int) -> Joint | None:
    found = rank_sets(members)
    if not found:
        return None
    job = job_of(found[0])
    if not job.waits.collectives.height and found[0].world_size is None:
        return None
    section = job_section(job, errors=errors)
    if more := other_jobs(found):
        section = replace(section, answer=f"{section.answer} {more}")
    first = found[0].members[latest(job)]
    return Joint(section, first.path, first.rank)


@contextmanager
def _executor(scheduler: str | None) -> Iterator[Executor | None]:
    """Dask's workers at this address or in this file; None without."""
    if scheduler is None:
        yield None
        return
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise UsageError("--scheduler needs Dask", remedy=how_to_install("distributed")) from error
    if "://" not in scheduler and not Path(scheduler).is_file():
        raise UsageError(
            f"--scheduler {scheduler} is no file", remedy="give tcp://HOST:PORT or the scheduler's file"
        )
    where = {"address": scheduler} if "://" in scheduler else {"scheduler_file": scheduler}
    try:
        client = distributed.Client(**where, timeout=10)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {scheduler}", remedy="start one with: dask scheduler"
        ) from error
    with client:
        yield client.get_executor(pure=False)
