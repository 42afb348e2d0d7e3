"""The joint view of a job's ranks as a section: who the others wait for and why, and how fast the collectives are."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.idle.causes import cause_name
from tracekit.analyses.ranks.matching import UNEVEN
from tracekit.analyses.result import column_of
from tracekit.facts.stack_names import NO_LAYERS
from tracekit.facts.units import NS_PER_US, count_of, format_ns, format_share
from tracekit.job import Job
from tracekit.names import clean_frame, shorten_name
from tracekit.report.job_set import oddities_of
from tracekit.report.model import Column, Section, Table

__all__ = ["job_section", "latest"]

FELT: Final = 0.02
"""A delay of less than this part of the window is not worth a name."""
_LONGEST: Final = 60
PAIR: Final = 2

_TITLES: Final = {
    "exposed_communication_share": "only communicating",
    "compute_share": "computing",
    "idle_share": "idle",
    "wait_ns": "waits",
    "caused_ns": "delays others",
    "offset_ns": "clock behind",
    "uncertainty_ns": "clock unsure",
    "reason": "longer than on others",
    "latency_ns": "latency",
    "skew_ns": "skew",
    "algorithm_gbps": "algorithm bandwidth",
    "bus_gbps": "bus bandwidth",
    "ranks": "ranks",
}


def job_section(job: Job, *, errors: int = 0) -> Section:
    """The section of a job; of so many of its files (`errors`) there is no summary.

    Its tables are `ranks` (one row per rank) and `collectives` (by name and size; where ranks move different amounts, the middle one).
    """
    size = job.table.height
    answer = " ".join(filter(None, (_late(job), _rests_on(job, errors), oddities_of(job))))
    return Section(
        "job",
        f"Which of the {size} ranks {'does the other' if size == PAIR else 'do the others'} wait for?",
        answer,
        tables=(_ranks_table(job), _collectives_table(job)),
    )


def latest(job: Job) -> int:
    """The place of the rank that the others wait for longest; without waits the first."""
    return int(job.table["caused_ns"].fill_null(-1).arg_max() or 0)


def _late(job: Job) -> str:
    """Who delays the others, by how much, and by what."""
    if not job.waits.collectives.height:
        return (
            "The traces share no collective that could be matched, so they do not show who waits for whom: see whether they "
            "are of one run and one time."
        )
    window = int(job.table["window_ns"].median() or 0)  # type: ignore[arg-type]
    row = job.table.sort("caused_ns", descending=True, nulls_last=True).row(0, named=True)
    caused = row["caused_ns"] or 0
    share = caused / window if window else 0.0
    others = "the other" if job.table.height == PAIR else "the others"
    if share < FELT:
        most = format_share(max(job.table["wait_ns"].fill_null(0).to_list()) / window if window else 0.0)
        return f"No rank keeps the others waiting for long. In collectives, a rank waits for others {most} of the time at most."
    first = (
        f"{_who(row)} keeps {others} waiting for {format_ns(caused)} ({format_share(share)} of the window)."
    )
    on_cpu = job.ranks.members[row["at"]].summary.facts.on_cpu
    return f"{first} {_why(row, others, on_cpu=on_cpu)}"


def _who(row: dict[str, object]) -> str:
    return f"Rank {row['rank']}" if row["rank"] is not None else f"The rank of {row['trace']}"


def _why(row: dict[str, object], others: str, *, on_cpu: bool) -> str:
    if row["kind"] is None:
        return f"The traces do not show what takes longer on it than on {others}."
    longer, what = format_ns(int(str(row["longer_ns"]))), str(row["what"])
    if row["kind"] == "idle" and on_cpu:
        return f"It spends {longer} longer than {others} outside operators ({cause_name(what)})."
    if row["kind"] == "idle":
        theirs = "theirs" if others == "the others" else "the other's"
        return f"Its device is idle for {longer} longer than {theirs} ({cause_name(what)})."
    layer = NO_LAYERS.get(what) or f"layer {shorten_name(what, _LONGEST)}"
    return f"On it, {layer} takes {longer} longer than on {others}."


def _rests_on(job: Job, errors: int) -> str:
    """How many ranks and collectives this is about, and how well the clocks agree."""
    size, world = job.table.height, job.ranks.world_size
    ranks = f"{size} of {world} ranks" if world and world > size else f"all {size} ranks"
    count = job.waits.collectives.height
    matched = count_of(count, "collective") if count else ""
    how = "by recorded numbers" if job.aligned.numbered else "by group, size and time"
    unsure = job.table["uncertainty_ns"].drop_nulls().to_list()
    clocks = f"; clocks agree to {_within(max(unsure))}" if unsure and count else ""
    parts = [f"This rests on {ranks}" + (f" and {matched}, matched {how}{clocks}" if count else "")]
    if errors:
        parts.append(f"{count_of(errors, 'file')} could not be read")
    return "; ".join(parts) + "."


def _within(ns: int) -> str:
    return format_ns(ns) if ns >= NS_PER_US else "less than 1 µs"


def _ranks_table(job: Job) -> Table:
    window = int(job.table["window_ns"].median() or 0)  # type: ignore[arg-type]
    reasons = [
        "" if row["kind"] is None or (row["caused_ns"] or 0) < FELT * window else cause_name(row["what"]) if row["kind"] == "idle" else NO_LAYERS.get(row["what"], row["what"])
        for row in job.table.iter_rows(named=True)
    ]  # fmt: skip
    frame = job.table.with_columns(pl.Series("reason", reasons, dtype=pl.String)).drop("at", "kind", "what")
    shown: tuple[str, ...] = (
        "rank", "trace", "caused_ns", "reason", "wait_ns", "compute_share", "exposed_communication_share", "idle_share", "speed",
    )  # fmt: skip
    if frame["rank"].null_count() == 0:
        shown = tuple(name for name in shown if name != "trace")
    return _table("ranks", "Ranks", frame, shown)


def _collectives_table(job: Job) -> Table:
    found = job.waits.collectives
    waits = job.waits.calls.group_by("match").agg(pl.col("wait_ns").sum())
    latency = pl.col("latency_ns")
    uneven = pl.col("name").is_in(list(UNEVEN))
    frame = (
        found.join(waits, on="match", how="left")
        .group_by("name", "ranks", pl.when(~uneven).then("bytes").alias("size"))
        .agg(
            pl.col("bytes").median().round().cast(pl.Int64),
            pl.col("group").n_unique().cast(pl.Int64).alias("groups"),
            pl.len().cast(pl.Int64).alias("count"),
            latency.min(),
            pl.col("skew_ns").median().round().cast(pl.Int64),
            pl.col("wait_ns").sum(),
            pl.col("algorithm_gbps").max(),
            pl.col("bus_gbps").max(),
        )
        .drop("size")
        .sort("wait_ns", "name", "bytes", descending=[True, False, False])
    )
    shown = ("name", "ranks", "groups", "bytes", "count", "latency_ns", "skew_ns", "wait_ns", "bus_gbps")
    return _table("collectives", "Collectives by size", frame, shown)


def _table(name: str, title: str, frame: pl.DataFrame, shown: tuple[str, ...]) -> Table:
    columns = []
    for key, dtype in frame.schema.items():
        column = column_of(key, dtype)
        columns.append(Column(key, _TITLES.get(key, column.title), column.unit))
    return Table(name, title, clean_frame(frame), tuple(columns), frame.height, short=shown)
