"""Which traces are the ranks of one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracekit.analyses.ranks import Summary

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


@dataclass(frozen=True, slots=True, eq=False)
class RankSet:
    """The traces of one job by rank, those without a rank last."""

    members: tuple[Member, ...]
    world_size: int | None

    @property
    def missing(self) -> list[int]:
        """The ranks of which there is no trace, as far as the size of the job is known."""
        there = {member.rank for member in self.members}
        return [rank for rank in range(self.world_size or 0) if rank not in there]

    @property
    def repeated(self) -> list[int]:
        """The ranks of which there are several traces."""
        counts = Counter(member.rank for member in self.members if member.rank is not None)
        return sorted(rank for rank, count in counts.items() if count > 1)

    @property
    def label(self) -> str:
        """The folder that holds all of it."""
        folders = {str(Path(member.path).parent) for member in self.members}
        return folders.pop() if len(folders) == 1 else ""


def rank_sets(members: Sequence[Member]) -> list[RankSet]:
    """The jobs, the largest first.

    Traces of one size of the job and one backend, of which no two have the same rank, are one job; otherwise those of each
    folder are. A trace without a rank belongs to the others of its folder. A trace alone is no job.
    """
    kinds: dict[tuple[int | None, str | None], list[Member]] = {}
    for member in members:
        facts = member.summary.facts
        kinds.setdefault((facts.world_size, facts.backend), []).append(member)
    jobs = [job for (size, _), kind in kinds.items() for job in _jobs(kind, size)]
    return sorted(jobs, key=lambda job: -len(job.members))


def _jobs(kind: list[Member], size: int | None) -> Iterator[RankSet]:
    ranks = [member.rank for member in kind if member.rank is not None]
    folders: dict[str, list[Member]] = {}
    for member in kind:
        folder = "" if len(set(ranks)) == len(ranks) else str(Path(member.path).parent)
        folders.setdefault(folder, []).append(member)
    for together in folders.values():
        if len(together) > 1:
            ordered = sorted(together, key=lambda m: (m.rank is None, m.rank or 0, m.path))
            yield RankSet(tuple(ordered), size)
