"""A job: its ranks on one clock, their collectives, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.analyses.ranks import (
    Alignment,
    Beside,
    Heat,
    Summary,
    Waits,
    align,
    heat_of,
    stragglers_of,
    waits_of,
    worst_beside,
)
from tracekit.classes import dataclass
from tracekit.job.rank_set import RankSet

__all__ = ["Job", "job_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """What the ranks show together."""

    ranks: RankSet
    aligned: Alignment
    waits: Waits
    table: pl.DataFrame
    """One row per rank, in their order: `at`, `rank`, `trace`, the parts of its window (`window_ns`, `compute_share`,
    `exposed_communication_share`, `idle_share`), `overlap_share`, the part of its communication beside which it computes, `compared_ns`, the part of the window whose calls were compared with those of the other ranks,
    the columns of `ranks.stragglers.STRAGGLERS`, and its clock: `offset_ns`, `uncertainty_ns`.
    """
    heat: Heat | None
    """When the ranks were busy, communicated and waited; None if they were not recorded at one time."""

    @property
    def compared_ns(self) -> int:
        """The part of a rank's window whose calls were compared, in the middle of the ranks."""
        return int(self.table["compared_ns"].median() or 0)  # type: ignore[arg-type]

    @property
    def cut(self) -> bool:
        """Whether a rank has more calls than were compared."""
        return any(member.summary.cut for member in self.ranks.members)

    def beside(self, late: int, fast: int | None = None) -> Beside | None:
        """A rank (its place in the table) beside another one, before the collective of both for which the first keeps others waiting longest; without `fast`
        beside the fastest rank of that collective, if their difference explains the delay. None if there is no such collective.
        """
        summaries = [member.summary for member in self.ranks.members]
        return worst_beside(summaries, self.aligned, self.waits, late, fast)


def job_of(ranks: RankSet) -> Job:
    """The joint view of the ranks."""
    summaries = [member.summary for member in ranks.members]
    aligned = align(summaries)
    waits = waits_of(aligned)
    late = stragglers_of(summaries, aligned, waits)
    clocks = aligned.clocks[["at", "offset_ns", "uncertainty_ns"]]
    table = (
        _parts(ranks, _compared(summaries, aligned))
        .join(late, on="at", how="left")
        .join(clocks, on="at", how="left")
        .sort("at")
    )
    return Job(ranks, aligned, waits, table, heat_of(summaries, aligned, waits))


def _compared(summaries: Sequence[Summary], aligned: Alignment) -> list[int]:
    """Of each rank `Job.table`'s `compared_ns`."""
    whole = [one.facts.window_ns for one in summaries]
    if not any(one.cut for one in summaries):
        return whole
    ends = dict(aligned.calls.group_by("at").agg(pl.col("end").max()).rows())
    begins = aligned.clocks["shift_ns"] + pl.Series([one.facts.window_start_ns for one in summaries])
    return [min(ends.get(at, begins[at] + most) - begins[at], most) for at, most in enumerate(whole)]


def _parts(ranks: RankSet, compared: Sequence[int]) -> pl.DataFrame:
    rows: Sequence[dict[str, object]] = [
        {
            "at": at,
            "rank": member.rank,
            "trace": member.summary.facts.name,
            "window_ns": member.summary.facts.window_ns,
            "compared_ns": compared[at],
            "overlap_share": 1 - member.summary.facts.exposed_communication_ns / communication
            if communication
            else None,
            **{
                f"{part}_share": getattr(member.summary.facts, f"{part}_ns") / whole if whole else None
                for part in ("compute", "exposed_communication", "idle")
            },
        }
        for at, member in enumerate(ranks.members)
        for whole in (member.summary.facts.window_ns * max(member.summary.facts.active_devices, 1),)
        for communication in (member.summary.facts.communication_ns,)
    ]
    return pl.DataFrame(rows, schema={
        "at": pl.Int64, "rank": pl.Int64, "trace": pl.String, "window_ns": pl.Int64, "compared_ns": pl.Int64, "overlap_share": pl.Float64, "compute_share": pl.Float64,
        "exposed_communication_share": pl.Float64, "idle_share": pl.Float64,
    })  # fmt: skip
