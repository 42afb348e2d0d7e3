"""The joint view of a command's traces, if they are the ranks of a job."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.classes import dataclass
from tracekit.cli.options import Reading, Selection
from tracekit.cli.sources import shown, tell_unread
from tracekit.cli.workers import Workers
from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.job.engine import Options, summarise

if TYPE_CHECKING:
    from tracekit.analyses.scope import Scope
    from tracekit.job import Job
    from tracekit.job.rank_set import Member
    from tracekit.report.model import Section

__all__ = ["Compare", "Joint", "of_files", "of_scopes", "options_of", "reading_progress"]

Compare = tuple[int, int | None]
"""A rank, and the one to set it beside: None is the fastest."""

_PROGRESS_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Joint:
    """A job: its section, and the path, rank and name of the trace to look at first."""

    job: Job
    section: Section
    path: str
    rank: int | None
    name: str
    members: tuple[Member, ...]
    """All traces that were read."""

    def waited(self, path: str, name: str) -> int:
        """For how long (ns) the rank of the trace that was read there, and has this name, waits for others in collectives; 0 if it is not of the job."""
        waits = self.job.table.sort("at")["wait_ns"].fill_null(0).to_list()
        return sum(
            wait
            for member, wait in zip(self.job.ranks.members, waits, strict=True)
            if (member.path, member.summary.facts.name) == (path, name)
        )


def of_scopes(
    scopes: Sequence[Scope], unread: Sequence[tuple[str, str]], compare: Compare | None
) -> Joint | None:
    """The job of these parts of traces, beside which are files that cannot be read; None if they are none."""
    if len(scopes) == 1:
        return None
    from tracekit.analyses.ranks import summary_of
    from tracekit.job.rank_set import Member

    return _joint([Member(scope.trace.meta.path, summary_of(scope)) for scope in scopes], unread, compare)


def of_files(
    paths: Sequence[Path], selection: Selection, reading: Reading, workers: Workers, compare: Compare | None
) -> tuple[Joint | None, list[Path]]:
    """The job of these files, which workers read, None if they are none; and the files that can be read. What cannot is said.

    Raises UnreadableTraceError if none of them can be read, and UsageError for flags that do not fit them and for a scheduler
    that does not answer.
    """
    # The workers of a scheduler have another working directory.
    wanted = [str(path.absolute() if workers.dask and path.exists() else path) for path in paths]
    progress = reading_progress()
    try:
        with workers.executor(len(wanted)) as executor:
            outcomes = summarise(
                wanted,
                options_of(selection, reading),
                executor=executor,
                jobs=workers.jobs,
                progress=progress,
            )
    finally:
        progress(0, 0)
    failed = [one for one in outcomes if one.error is not None]
    if len(failed) == len(outcomes):
        fault, path = failed[0].error or "", shown(Path(failed[0].path))
        if failed[0].misused:
            raise UsageError(fault)
        raise UnreadableTraceError(fault, path=path, remedy="check the other files too")
    unread = [(one.path, one.error or "") for one in failed]
    tell_unread(unread)
    readable = [path for path, one in zip(paths, outcomes, strict=True) if one.error is None]
    from tracekit.job.rank_set import Member

    members = [Member(one.path, summary) for one in outcomes for summary in one.summaries]
    return _joint(members, unread, compare), readable


def options_of(selection: Selection, reading: Reading) -> Options:
    """The flags as workers take them."""
    return Options(
        reading.limits,
        not reading.no_cache,
        selection.window.value,
        selection.step,
        tuple(selection.comm_pattern or ()),
        selection.ranges.filter,
    )


def _joint(
    members: Sequence[Member], failed: Sequence[tuple[str, str]], compare: Compare | None
) -> Joint | None:
    from tracekit.job import job_of, rank_sets
    from tracekit.report.job import job_section, latest
    from tracekit.report.job_set import other_jobs
    from tracekit.report.job_unread import unread_sentence, unread_table

    found = rank_sets(members)
    if not found:
        return None
    job = job_of(found[0])
    if not job.waits.collectives.height and found[0].world_size is None:
        return None
    chosen = None if compare is None else _places(job, compare)
    section = job_section(job, chosen)
    more = [other_jobs(found, members)]
    if failed:
        unread = unread_table(failed)
        section = replace(section, tables=(*section.tables, unread))
        more.append(unread_sentence(unread))
    first = found[0].members[latest(job) if chosen is None else chosen[0]]
    answer = " ".join(filter(None, [section.answer, *more]))
    return Joint(
        job, replace(section, answer=answer), first.path, first.rank, first.summary.facts.name, tuple(members)
    )


def _places(job: Job, compare: Compare) -> tuple[int, int | None]:
    """Where these ranks stand in the table of the job. Raises UsageError if one has no trace."""
    places = dict(job.table.select("rank", "at").drop_nulls().rows())
    for rank in compare:
        if rank is not None and rank not in places:
            raise UsageError(
                f"--compare: there is no trace of rank {rank}",
                remedy="choose from the ranks of the joint view",
            )
    return places[compare[0]], None if compare[1] is None else places[compare[1]]


def reading_progress() -> Callable[[int, int], None]:
    """A line with the number of ranks that were read, on a terminal only; called with (0, 0) it wipes itself."""
    last = time.monotonic()
    wanted = sys.stderr.isatty()

    def report(done: int, size: int) -> None:
        nonlocal last
        now = time.monotonic()
        if wanted and (not size or now - last >= _PROGRESS_EVERY_S):
            last = now
            sys.stderr.write(f"\r\033[K{f'reading: {done:,} of {size:,} traces' if size else ''}")
            sys.stderr.flush()

    return report
