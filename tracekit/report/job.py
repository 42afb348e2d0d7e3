"""The joint view of a job's ranks as a section: who the others wait for and why, and how fast the collectives are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import polars as pl

from tracekit.analyses.ranks import Beside
from tracekit.analyses.ranks.matching import UNEVEN
from tracekit.facts.idle_names import cause_name
from tracekit.facts.stack_names import NO_LAYERS
from tracekit.job import Job
from tracekit.job.late import FELT, late_of
from tracekit.report.job_heat import heat_figure, heat_table
from tracekit.report.job_why import place_name
from tracekit.report.job_words import (
    answer_of,
    call_name,
    longest_alone,
    question_of,
)
from tracekit.report.model import Section, Table, table_of

__all__ = ["calls_table", "job_section", "latest"]

MOST_RANKS: Final = 1_000
"""Rows of the table of ranks."""
_IN_ORDER: Final = 8
_MOST_SIZES: Final = 8
"""Up to so many ranks stand in their order; of more, those that delay others most come first."""
_MOST_ITEMS: Final = 6
"""Rows in which two ranks stand side by side."""
_LEAST_ITEM: Final = 0.01
"""A difference of less than this part of the largest one has no row."""

_TITLES: Final = {
    "exposed_communication_share": "only communicating",
    "compute_share": "computing",
    "idle_share": "idle",
    "wait_ns": "waits",
    "caused_ns": "delays others",
    "unseen_ns": "waits for ranks without a trace",
    "offset_ns": "clock behind",
    "uncertainty_ns": "clock unsure",
    "reason": "longer than on others",
    "latency_ns": "latency",
    "longest_ns": "longest",
    "skew_ns": "skew",
    "algorithm_gbps": "algorithm bandwidth",
    "bus_gbps": "bus bandwidth",
    "longer_ns": "difference",
    "place": "where",
}


def job_section(job: Job, chosen: tuple[int, int | None] | None = None) -> Section:
    """The section of a job; of two `chosen` ranks (places in `Job.table`, the second the fastest if None) it says how they compare.

    Its tables are `ranks` (one row per rank), `extremes` (of many ranks the slowest and the fastest), `beside` (the late rank beside a fast one),
    `collectives` (by name and size; where ranks move different amounts, the middle one), and `heat`, its figure as numbers.
    """
    late = latest(job)
    pair = job.beside(*chosen) if chosen else job.beside(late) if _is_felt(job, late) else None
    ranks, figure = _ranks_table(job), heat_figure(job)
    tables = (
        ranks,
        _extremes_table(ranks),
        None if pair is None else _beside_table(job, pair),
        _collectives_table(job),
        heat_table(job, figure),
    )
    return Section(
        "job",
        question_of(job),
        answer_of(job, pair, chosen),
        tables=tuple(table for table in tables if table is not None),
        figures=() if figure is None else (figure,),
    )


def latest(job: Job) -> int:
    """The place of the rank that the others wait for longest, or that takes longest (`longest_alone`); without waits the first."""
    caused = job.table["caused_ns"].fill_null(-1).to_list()
    late = caused.index(max(caused))
    alone = None if _is_felt(job, late) else longest_alone(job)
    return late if alone is None else alone[0]


def _is_felt(job: Job, late: int) -> bool:
    unseen = 0 if not job.ranks.missing else max(job.table["unseen_ns"].fill_null(0).to_list())
    found = late_of(job.table, job.waits, job.compared_ns)
    return found is not None and not found.turns and (job.table["caused_ns"][late] or 0) >= unseen


def _reason(row: dict[str, Any]) -> str:
    """What a rank takes longer for, in a cell; empty if that is not known."""
    if row["kind"] in (None, "compute"):
        return "" if row["kind"] is None else "all that it computes"
    return cause_name(row["what"]) if row["kind"] == "idle" else NO_LAYERS.get(row["what"], row["what"])


def _ranks_table(job: Job) -> Table:
    reasons = [
        _reason(row) if (row["caused_ns"] or 0) >= FELT * job.compared_ns else ""
        for row in job.table.iter_rows(named=True)
    ]
    hidden = {"at", "kind", "what", "where"} | ({"compared_ns"} if not job.cut else set())
    frame = job.table.with_columns(pl.Series("reason", reasons, dtype=pl.String)).drop(hidden)
    if frame.height > _IN_ORDER:
        frame = frame.sort("caused_ns", descending=True, nulls_last=True, maintain_order=True)
    shown: tuple[str, ...] = (
        "rank", "trace", "caused_ns", "reason", "wait_ns", "compute_share", "exposed_communication_share", "idle_share", "speed",
    )  # fmt: skip
    if frame["rank"].null_count() == 0:
        shown = tuple(name for name in shown if name != "trace")
    return _table("ranks", "Ranks", frame, shown)


def _extremes_table(ranks: Table) -> Table | None:
    """The slowest and the fastest of many ranks."""
    there = ranks.frame.drop_nulls("speed").sort("speed", maintain_order=True)
    if ranks.frame.height <= _IN_ORDER or not there.height:
        return None
    frame = pl.concat([there.head(1), there.tail(1)])
    return replace(
        ranks, name="extremes", title="The slowest and the fastest rank", frame=frame, total_rows=2
    )


def _beside_table(job: Job, pair: Beside) -> Table:
    """What differs most between the two ranks, and what first does, in order of time."""
    rows = (job.table.row(at, named=True) for at in (pair.late, pair.fast))
    late, fast = (row["trace"] if row["rank"] is None else f"rank {row['rank']}" for row in rows)
    size = pl.col("longer_ns").abs()
    first = pl.col("index").eq_missing(pl.lit(pair.first, dtype=pl.UInt32))
    most = pair.items.with_row_index().sort(first, size, descending=True).head(_MOST_ITEMS)
    frame = (
        most.filter(first | (size >= _LEAST_ITEM * size.max()))
        .sort("index")
        .select("kind", "what", "where", "late_ns", "fast_ns", "longer_ns")
    )
    items = [
        f"idle: {cause_name(what)}" if kind == "idle" else NO_LAYERS.get(what, what)
        for kind, what in frame[["kind", "what"]].rows()
    ]
    places = [place_name(what, where) for what, where in frame[["what", "where"]].rows()]
    frame = frame.select(
        pl.Series("item", items, dtype=pl.String),
        pl.Series("place", places, dtype=pl.String),
        "late_ns",
        "fast_ns",
        "longer_ns",
        "kind",
        "what",
        "where",
    )
    title = f"{late[0].upper() if late.startswith('rank ') else late[0]}{late[1:]} beside {fast}, before the {call_name(job, pair, which=False)}: largest differences"
    titles = {**_TITLES, "late_ns": late, "fast_ns": fast}
    return replace(
        table_of("beside", title, frame, "item place late_ns fast_ns longer_ns", titles),
        hidden=("kind", "what", "where"),
    )


def _collectives_table(job: Job) -> Table:
    found = job.waits.collectives
    waits = job.waits.calls.group_by("match").agg(pl.col("wait_ns").sum())
    latency = pl.col("latency_ns")
    moved = job.aligned.calls.group_by("match").agg((pl.col("bytes").n_unique() == 1).alias("even"))
    # Sizes that hardly ever come again are one row, and so is what moves other sizes on each rank.
    sizes = ~pl.col("name").is_in(list(UNEVEN)) | pl.col("even") & (
        pl.col("bytes").n_unique().over("name", "ranks", "even") <= _MOST_SIZES
    )
    frame = (
        found.join(waits, on="match", how="left")
        .join(moved, on="match", how="left")
        .with_columns(pl.max_horizontal("ranks", "group_size").alias("ranks"))
        .group_by("name", "ranks", pl.when(sizes).then("bytes").alias("size"))
        .agg(
            pl.col("bytes").median().round().cast(pl.Int64),
            pl.col("group").n_unique().cast(pl.Int64).alias("groups"),
            pl.len().cast(pl.Int64).alias("count"),
            latency.median().round().cast(pl.Int64),
            latency.max().alias("longest_ns"),
            pl.col("skew_ns").median().round().cast(pl.Int64),
            pl.col("wait_ns").sum(),
            pl.col("algorithm_gbps").median(),
            pl.col("bus_gbps").median(),
        )
        .drop("size")
        .sort("wait_ns", "name", "bytes", descending=[True, False, False])
    )
    shown = (
        "name",
        "ranks",
        "groups",
        "bytes",
        "count",
        "latency_ns",
        "longest_ns",
        "skew_ns",
        "wait_ns",
        "bus_gbps",
    )
    least = "; of what ranks without a trace take part in, latencies are at most and bandwidths at least this"
    title = f"Collectives by size{least if job.ranks.missing else ''}"
    return _table("collectives", title, frame, shown)


def calls_table(job: Job) -> Table:
    """The part of each rank in each collective: who waited, for how long, and who came last."""
    of_all = ("match", "last", "latency_ns", "skew_ns", "algorithm_gbps", "bus_gbps")
    calls = job.aligned.calls.drop_nulls("match").select(
        "match", "at", "name", "group", "step", "bytes", "exposed_ns"
    )
    frame = (
        job.waits.calls.join(calls, on=["match", "at"], how="left", maintain_order="left")
        .join(job.waits.collectives.select(of_all), on="match", how="left", maintain_order="left")
        .join(job.table.select("at", "rank"), on="at", how="left", maintain_order="left")
        .with_columns((pl.col("at") == pl.col("last")).alias("came_last"))
        .sort("start", "at")
        .select(
            pl.col("match").alias("collective"), "name", "group", "step", "rank", "start", "end", "bytes", "exposed_ns", "wait_ns", "blocked_ns",
            "came_last", "latency_ns", "skew_ns", "algorithm_gbps", "bus_gbps",
        )
    )  # fmt: skip
    return table_of("calls", "Calls of the ranks", frame, "collective name rank wait_ns", _TITLES)


def _table(name: str, title: str, frame: pl.DataFrame, shown: tuple[str, ...]) -> Table:
    return replace(table_of(name, title, frame.head(MOST_RANKS), shown, _TITLES), total_rows=frame.height)
