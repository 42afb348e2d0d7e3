"""Which traces are the ranks of one job."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from tracekit.analyses.ranks import Summary
from tracekit.classes import dataclass
from tracekit.readers.common.trace_frames import place_in_name

__all__ = ["Member", "RankSet", "rank_sets"]


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A trace, where it was read, and its summary."""

    path: str
    summary: Summary

    @property
    def rank(self) -> int | None:
        """None if neither the file nor its name says it."""
        return self.summary.facts.rank

    @property
    def kind(self) -> tuple[int | None, str | None]:
        """The size and the backend of its job."""
        return self.summary.facts.world_size, self.summary.facts.backend


@dataclass(frozen=True, slots=True, eq=False)
class RankSet:
    """The traces of one job, one for each rank, in their order; those without a rank last."""

    members: tuple[Member, ...]
    world_size: int | None
    repeated: tuple[int, ...] = ()
    """Ranks of which there are more traces of this time; the first one by name counts."""
    copies: int = 0
    """Files that say the same as another one; they do not count."""

    @property
    def missing(self) -> list[int]:
        """The ranks of which there is no trace, as far as the size of the job and the ranks of all traces are known."""
        there = {member.rank for member in self.members}
        return (
            [rank for rank in range(self.world_size or 0) if rank not in there] if None not in there else []
        )

    @property
    def folder(self) -> str | None:
        """The name of the folder that holds all of it; None if there are several."""
        folders = {Path(member.path).parent for member in self.members}
        return folders.pop().name if len(folders) == 1 else None


def rank_sets(members: Sequence[Member]) -> list[RankSet]:
    """The jobs, the largest first.

    Traces that give the job one size and one backend, and of which no two have the same rank, are one job; so are those that give none, if they are missing
    ranks of the only other one, of its time. Where ranks come again, those
    of each folder are one, and in a folder those that were recorded at the same time (by the UTC of their origins), whose names give
    one replica or agree but for numbers, or that began together. A trace alone is no job.
    """
    kinds: dict[tuple[int | None, str | None], list[Member]] = {}
    for member in members:
        kinds.setdefault(member.kind, []).append(member)
    _adopt(kinds)
    jobs = [
        job
        for (size, _), kind in kinds.items()
        for together in _apart(kind)
        if len((job := _ordered(together, size)).members) > 1
    ]
    return sorted(jobs, key=lambda job: -len(job.members))


def _adopt(kinds: dict[tuple[int | None, str | None], list[Member]]) -> None:
    """Let traces that do not tell their job, such as exports of Nsight Systems beside traces of PyTorch, join the only one that does, whose missing
    ranks they are, if they were recorded at its time.
    """
    unknown = [kind for kind in kinds if kind[0] is None]
    known = [kind for kind in kinds if kind[0] is not None]
    if not unknown or len(known) != 1:
        return
    job = kinds[known[0]]
    begin, end = _recorded(job)
    for kind in unknown:
        ranks = {member.rank for member in job}
        mine = kinds[kind]
        own = [member.rank for member in mine if member.rank is not None]
        low, high = _recorded(mine)
        fits = (
            len(own) == len(set(own)) == len(mine) and not ranks & set(own) and max(own) < (known[0][0] or 0)
        )
        if fits and None not in (begin, end, low, high) and low <= end and begin <= high:  # type: ignore[operator]
            job += kinds.pop(kind)


def _recorded(members: Sequence[Member]) -> tuple[int | None, int | None]:
    """From when until when they were recorded, by UTC; None where one does not say."""
    facts = [member.summary.facts for member in members]
    begins = [one.origin_utc_ns for one in facts if one.origin_utc_ns is not None]
    if len(begins) < len(facts):
        return None, None
    ends = [begin + one.window_start_ns + one.window_ns for begin, one in zip(begins, facts, strict=True)]
    return min(begins), max(ends)


def _apart(kind: list[Member]) -> Iterator[list[Member]]:
    if not _repeated(kind):
        yield kind
        return
    folders: dict[Path, list[Member]] = {}
    for member in kind:
        folders.setdefault(Path(member.path).parent, []).append(member)
    for together in folders.values():
        for same_time in _by_time(together) if _repeated(together) else [together]:
            for replica in _by_replica(same_time) if _repeated(same_time) else [same_time]:
                yield from _at_one_time(replica) if _repeated(replica) else [replica]


def _by_replica(members: list[Member]) -> Iterator[list[Member]]:
    """Those whose names give the same replica: each has ranks from 0 on."""
    replicas: dict[int | None, list[Member]] = {}
    for member in members:
        replicas.setdefault(place_in_name(member.path).get("dp"), []).append(member)
    yield from replicas.values()


def _at_one_time(members: list[Member]) -> list[list[Member]]:
    """The jobs that ran at one time, each with its ranks once: those whose names agree but for numbers, else those that began together; all of them, if
    neither tells them apart.
    """
    named: dict[str, list[Member]] = {}
    for member in members:
        named.setdefault(re.sub(r"\d+", "", Path(member.path).name), []).append(member)
    jobs = max(Counter(member.rank for member in members if member.rank is not None).values())
    facts = [member.summary.facts for member in members]
    begun = list[list[Member]]()
    if all(one.origin_utc_ns is not None for one in facts):
        begins = [(one.origin_utc_ns or 0) + one.window_start_ns for one in facts]
        order = sorted(range(len(members)), key=lambda at: begins[at])
        gaps = sorted(range(1, len(order)), key=lambda at: begins[order[at - 1]] - begins[order[at]])[
            : jobs - 1
        ]
        edges = [0, *sorted(gaps), len(order)]
        begun = [[members[at] for at in order[first:until]] for first, until in pairwise(edges)]
    for parts in ([*named.values()], begun):
        if len(parts) > 1 and min(map(len, parts)) > 1 and not any(map(_repeated, parts)):
            return parts
    return [members]


def _by_time(members: list[Member]) -> Iterator[list[Member]]:
    """Those that were recorded at the same time; all of them, if one does not say when that was."""
    facts = [member.summary.facts for member in members]
    if any(one.origin_utc_ns is None for one in facts):
        yield members
        return
    together: list[Member] = []
    until = None
    for begin, end, _, member in sorted(
        (one.origin_utc_ns or 0, (one.origin_utc_ns or 0) + one.window_ns, at, members[at])
        for at, one in enumerate(facts)
    ):
        if until is not None and begin > until:
            yield together
            together = []
        together.append(member)
        until = end if until is None else max(until, end)
    yield together


def _ordered(members: list[Member], size: int | None) -> RankSet:
    ordered = sorted(members, key=lambda member: (member.rank is None, member.rank or 0, member.path))
    distinct = _distinct(ordered)
    seen: set[int] = set()
    kept = []
    for member in distinct:
        if member.rank is None or member.rank not in seen:
            kept.append(member)
        if member.rank is not None:
            seen.add(member.rank)
    return RankSet(tuple(kept), size, tuple(_repeated(distinct)), len(ordered) - len(distinct))


def _distinct(members: Sequence[Member]) -> list[Member]:
    """The first of those that say the same, whatever the files are called."""
    seen: dict[object, list[Member]] = {}
    kept = []
    for member in members:
        facts = member.summary.facts
        # A file that says how large its job is says its rank too; else the rank is that of its name, and a copy has another name.
        said = None if facts.world_size is None else facts.rank
        same = seen.setdefault(msgspec.structs.replace(facts, name="", rank=said), [])
        if not any(member.summary.calls.equals(other.summary.calls) for other in same):
            same.append(member)
            kept.append(member)
    return kept


def _repeated(members: Sequence[Member]) -> list[int]:
    counts = Counter(member.rank for member in members if member.rank is not None)
    return sorted(rank for rank, count in counts.items() if count > 1)
