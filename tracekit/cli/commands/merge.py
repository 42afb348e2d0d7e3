"""`tracekit merge`: the traces of a job's ranks as one file for Perfetto."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import options as flags
from tracekit.cli.options import Reading, with_flags
from tracekit.cli.output import emit, say
from tracekit.cli.sources import expanded, tell_unread
from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.facts.terminal_text import printable
from tracekit.facts.units import count_of
from tracekit.files import keep_inputs, refuse_input

if TYPE_CHECKING:
    from tracekit.job import Job, RankSet

__all__ = ["merge"]


class MergeKind(str, Enum):
    """What is written."""

    perfetto = "perfetto"
    chrome = "chrome"


_SUFFIXES = {MergeKind.perfetto: (".tar",), MergeKind.chrome: (".json", ".json.gz")}


@with_flags
def merge(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Traces of a job's ranks from PyTorch's profiler (.json, .json.gz), their addresses (https://, s3://, gs://), or folders of them.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write: .tar, or with --to chrome .json or .json.gz.",
        ),
    ],
    to: Annotated[
        MergeKind,
        flags.flag(
            "Write Perfetto's archive of the traces, or one Chrome trace with the waits between ranks.",
            "--to",
            of=MergeKind,
        ),
    ] = MergeKind.perfetto,
    ranks: Annotated[
        str | None, typer.Option(metavar="LIST", help="Merge only these ranks, such as 0-3,7.")
    ] = None,
    *,
    no_cache: flags.NoCache = False,
    no_size_limit: flags.NoSizeLimit = False,
) -> None:
    """Merge the traces of a job into one file, on one clock."""
    if not output.name.endswith(_SUFFIXES[to]):
        other = (
            "give --to chrome" if output.name.endswith(_SUFFIXES[MergeKind.chrome]) else "choose such a name"
        )
        raise UsageError(
            f"--to {to.value} writes a {' or '.join(_SUFFIXES[to])} file", path=output, remedy=other
        )
    wanted = None if ranks is None else _numbers(ranks)
    paths = expanded(traces)
    keep_inputs(paths)
    refuse_input(output)  # said before the traces are read
    reading = Reading(max_events=0, no_cache=no_cache, no_size_limit=no_size_limit)
    job = _job(paths, reading, wanted)
    from tracekit.merge import parts_of, write_archive, write_chrome
    from tracekit.report.job_set import oddities_of

    parts = parts_of(job, wanted)
    if to is MergeKind.perfetto:
        write_archive(parts, output, limits=reading.limits)
        more = ""
    else:
        arrows = write_chrome(job, parts, output, limits=reading.limits)
        more = f", {count_of(arrows, 'arrow')} to ranks that waited"
    if wanted is None and (odd := oddities_of(job)):
        say(f"tracekit: {odd}")
    emit(
        printable(
            f"{output}: {count_of(len(parts), 'trace')}{more}{_clocks(job, {part.at for part in parts})}"
        ),
        None,
    )


def _job(paths: Sequence[Path], reading: Reading, wanted: set[int] | None) -> Job:
    """The one job of these files; what cannot be read is said."""
    from tracekit.job import Options, job_of, rank_sets, summarise
    from tracekit.job.rank_set import Member

    options = Options(reading.limits, not reading.no_cache, "trace")
    outcomes = summarise([str(path) for path in paths], options)
    failed = [one for one in outcomes if one.error is not None]
    if len(failed) == len(outcomes):
        raise UnreadableTraceError(
            failed[0].error or "", path=failed[0].path, remedy="check the other files too"
        )
    tell_unread([(one.path, one.error or "") for one in failed])
    members = [Member(one.path, summary) for one in outcomes for summary in one.summaries]
    found = rank_sets(members)
    if not found:
        raise UsageError(
            "no two of these traces are ranks of one job"
            if len(members) > 1
            else "there are not two traces to merge",
            path=paths[0],
            remedy="give the traces of a job's ranks, or their folder",
        )
    from tracekit.report.job_set import files_of, other_jobs

    if len(found) > 1:
        raise UsageError(f"the traces are of {len(found)} jobs", remedy=f"give only {files_of(found, 0)}")
    if told := other_jobs(found, members):
        say(f"tracekit: {told}")
    _refuse_absent(found[0], wanted or set())
    # All ranks are compared: those that are merged may wait for others, and their clocks are related through others.
    return job_of(found[0])


def _refuse_absent(ranks: RankSet, wanted: set[int]) -> None:
    """Raises UsageError for a rank that is not there."""
    there = {member.rank for member in ranks.members}
    if absent := sorted(wanted - there):
        listed = ", ".join(str(rank) for rank in sorted(rank for rank in there if rank is not None))
        raise UsageError(
            f"there is no trace of rank {absent[0]}",
            remedy=f"choose from {listed or 'none: the ranks are unknown'}",
        )


def _numbers(text: str) -> set[int]:
    """`0-3,7` as numbers. Raises UsageError for anything else."""
    made: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        if match is None:
            raise UsageError(f"--ranks {text} is not a list of ranks", remedy="write it like 0-3,7")
        made |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return made


def _clocks(job: Job, places: set[int]) -> str:
    """How well the clocks of these ranks agree; empty for one trace."""
    clocks = job.aligned.clocks
    aligned = replace(job.aligned, clocks=clocks.filter(clocks["at"].is_in(sorted(places))))
    unsure = aligned.clocks["uncertainty_ns"]
    known, without = unsure.drop_nulls().to_list(), unsure.null_count()
    if unsure.len() == 1:
        return ""
    if not known:
        utc = all(job.ranks.members[at].summary.facts.origin_utc_ns is not None for at in places)
        return f"; no collective relates their clocks, so {'they are as the files say' if utc else 'their places are a guess'}"
    from tracekit.report.job_words import agreement_of

    return f"; {agreement_of(aligned)}" + (
        f", but no collective relates the clocks of {count_of(without, 'trace')}" if without else ""
    )
