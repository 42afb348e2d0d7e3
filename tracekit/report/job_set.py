"""What is odd about the traces of a job, in words: ranks that are unknown, missing or there twice, other jobs, other times, other steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.facts.units import NS_PER_S, count_of, format_count
from tracekit.job import Job, RankSet
from tracekit.job.rank_set import Member
from tracekit.names import clean, shorten_name

__all__ = ["files_of", "oddities_of", "other_jobs"]

_MOST_LISTED: Final = 8
_LONGEST: Final = 40
_FEW: Final = 10
"""Fewer minutes, hours or days are told with a tenth."""
_FAR_APART_NS: Final = 60 * NS_PER_S
"""Clocks of one job, and the times at which its ranks begin to record, do not differ by so much."""


def oddities_of(job: Job) -> str:
    """One sentence for each; empty if there are none."""
    parts = (
        _unknown(job.ranks),
        _absent(job.ranks),
        _again(job.ranks),
        _apart(job.ranks),
        _steps(job.ranks),
        _incomplete(job),
        _silent(job),
        _lost(job),
    )
    return " ".join(filter(None, parts))


def other_jobs(found: Sequence[RankSet], members: Sequence[Member]) -> str:
    """That there are other jobs than the first of these, and how to see them, and traces of no job; empty if there are none."""
    kinds = {job.members[0].kind for job in found}
    names = [shorten_name(clean(Path(one.path).name), _LONGEST) for one in members if one.kind not in kinds]
    told = []
    if len(found) > 1:
        size = count_of(len(found[0].members), "rank")
        told.append(
            f"The traces are of {len(found)} jobs, of which this is one, of {size}; give only {files_of(found, 1)} to see another."
        )
    if names:
        traces = count_of(len(names), "trace records", "traces record")
        more = ", …" if len(names) > _MOST_LISTED else ""
        told.append(
            f"{traces} another number of ranks or backend, or none, and {'does' if len(names) == 1 else 'do'} not count: {', '.join(names[:_MOST_LISTED])}{more}."
        )
    return " ".join(told)


def files_of(found: Sequence[RankSet], place: int) -> str:
    """Where the traces of one of these jobs are: their folder if it has no other, else the name of the first."""
    folder = found[place].folder
    if folder is not None and sum(one.folder in (folder, None) for one in found) == 1:
        return f"the folder {clean(folder)}"
    return f"the files like {shorten_name(clean(Path(found[place].members[0].path).name), _LONGEST)}"


def _unknown(ranks: RankSet) -> str:
    count = sum(member.rank is None for member in ranks.members)
    size = ranks.world_size
    if not count:
        return ""
    first = (
        "No trace says"
        if count == len(ranks.members)
        else f"{count_of(count, 'trace')} {'do' if count > 1 else 'does'} not say"
    )
    told = (
        f"{first} which rank it is."
        if count == len(ranks.members) or count == 1
        else f"{first} which ranks they are."
    )
    if size and len(ranks.members) > size:
        return f"{told} The job has {count_of(size, 'rank')}: check whether all traces are from one run."
    return told


def _absent(ranks: RankSet) -> str:
    missing = ranks.missing
    if not missing or len(missing) > _MOST_LISTED:
        return ""
    return f"There is no trace of {_listed(missing)}."


def _again(ranks: RankSet) -> str:
    parts = []
    if ranks.copies:
        what = (
            "1 file is a copy of another one and does"
            if ranks.copies == 1
            else f"{ranks.copies} files are copies of others and do"
        )
        parts.append(f"{what} not count.")
    if ranks.repeated:
        parts.append(
            f"There are several traces of {_listed(list(ranks.repeated))}; the first by name counts."
        )
    return " ".join(parts)


def _apart(ranks: RankSet) -> str:
    """Whether the clocks say that not all was recorded at one time."""
    facts = [member.summary.facts for member in ranks.members]
    spans = sorted(
        (one.origin_utc_ns, one.origin_utc_ns + one.window_ns)
        for one in facts
        if one.origin_utc_ns is not None
    )
    if len(spans) < 2:
        return ""
    gap = max(later[0] - earlier[1] for earlier, later in pairwise(spans))
    if gap < _FAR_APART_NS:
        return ""
    return f"By their clocks, some of the traces were recorded {_long(gap)} after others: check whether all are from one run."


def _long(ns: int) -> str:
    """A time of minutes and more.

    >>> _long(90 * NS_PER_S), _long(7_500 * NS_PER_S), _long(86_400 * 3 * NS_PER_S)
    ('1.5 minutes', '2.1 hours', '3 days')
    """
    seconds = ns / NS_PER_S
    size, unit = next(
        (one for one in ((86_400, "day"), (3_600, "hour")) if seconds >= 2 * one[0]), (60, "minute")
    )
    count = round(seconds / size, 1)
    return f"{count} {unit}s" if count < _FEW and count % 1 else count_of(round(count), unit)


def _steps(ranks: RankSet) -> str:
    """Whether the traces hold the same steps."""
    steps = [set(member.summary.steps["step"].to_list()) for member in ranks.members]
    having = [one for one in steps if one]
    if not having or len(steps) < 2:
        return ""
    common, every = set.intersection(*having), set.union(*having)
    bare = len(steps) - len(having)
    told = f"{count_of(bare, 'trace')} {'have' if bare > 1 else 'has'} no step. " if bare else ""
    if common == every:
        return told.rstrip()
    if not common:
        return f"{told}The traces have no step in common."
    return f"{told}Only {format_count(len(common))} of {count_of(len(every), 'step')} {'is' if len(common) == 1 else 'are'} in all traces, so times of whole windows do not compare."


def _incomplete(job: Job) -> str:
    broken = [at for at, member in enumerate(job.ranks.members) if member.summary.facts.incomplete]
    many = "traces" if len(broken) > 1 else "trace"
    return (
        f"The {many} of {_who(job, broken)} lack{'' if len(broken) > 1 else 's'} records." if broken else ""
    )


def _silent(job: Job) -> str:
    """Ranks that take part in no collective, if others do."""
    if not job.waits.collectives.height:
        return ""
    taking = set(job.waits.ranks.filter(pl.col("collectives") > 0)["at"].to_list())
    bare = [at for at in range(len(job.ranks.members)) if at not in taking]
    without = [at for at in bare if not job.ranks.members[at].summary.facts.all_calls]
    apart = [at for at in bare if at not in without]
    told = []
    if without:
        told.append(
            f"The {'trace' if len(without) == 1 else 'traces'} of {_who(job, without)} {'holds' if len(without) == 1 else 'hold'} no collective."
        )
    if apart:
        told.append(f"No call of {_who(job, apart)} is part of a collective of other ranks.")
    return " ".join(told)


def _lost(job: Job) -> str:
    lost = job.aligned.missing
    if not lost.height:
        return ""
    calls = f"{count_of(lost.height, 'call')} of a collective {'is' if lost.height == 1 else 'are'} missing"
    return f"{calls} on {_who(job, lost['at'].unique().sort().to_list())}, which took part before and after."


def _who(job: Job, places: Sequence[int]) -> str:
    """The ranks at these places, or the names of their traces."""
    members = [job.ranks.members[at] for at in places]
    ranks = [member.rank for member in members if member.rank is not None]
    if len(ranks) == len(members):
        return _listed(ranks)
    names = [shorten_name(member.summary.facts.name, _LONGEST) for member in members]
    return ", ".join(names[:_MOST_LISTED]) + (", …" if len(names) > _MOST_LISTED else "")


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_LISTED])) + (", …" if len(ranks) > _MOST_LISTED else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
