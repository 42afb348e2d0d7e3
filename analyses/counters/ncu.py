"""Nsight Compute's metrics given to the kernels of a trace: by name, grid, block and order of the launches.

Nsight Compute runs the program again, one kernel after the other, each several times and at fixed clocks. So times tell
nothing; what it measured is joined to the trace by a key and by order:

* Key: the kernel's name, grid and block; the device and the process too, where numbers of both sides are the same and there are
  several. A name is compared as it is if all names of this function that Nsight Compute has are in the trace, else by
  its signature, else by its bare name (`tracekit.analyses.counters.kernel_spelling`).
* As many launches of a key on both sides: the k-th is the k-th, in the order of the launches.
* As many launches in Nsight Compute's table as in each step of the trace: the k-th is the k-th of every step. Without
  steps the same holds when the launches of the trace spell the whole table, of several keys, over and over.
* Otherwise (`--launch-count`, another number of steps) the mean of the key's launches counts for all of the trace, if they agree
  within TOLERANCE; if not, the key's metrics are left out.

Each table of each file is joined by itself. What was joined to an activity is not replaced by a later table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from tracekit.analyses.counters.kernel_spelling import base_of, signature_of
from tracekit.analyses.scope import launch_times, select
from tracekit.classes import dataclass
from tracekit.counted_work import WORK_SCHEMA
from tracekit.facts.gpu_metrics import DURATIONS, REGISTERS, WORK
from tracekit.health import HealthLog
from tracekit.readers.ncu import NcuReport, values_as_counters
from tracekit.trace import COUNTER_SCHEMA, HEALTH_SCHEMA, Trace

__all__ = ["TOLERANCE", "NcuMatch", "join_ncu", "with_ncu"]

TOLERANCE: Final = 0.05
"""The traffic of the same launch differs by some percent from run to run, because the contents of caches differ."""

_MOST_ROWS: Final = 4_000_000
"""With more values, only those are kept that a figure needs."""
_KNOWN: Final = "|".join(
    (WORK, *(f"^{name.replace('.', chr(92) + '.')}$" for name in (*DURATIONS, REGISTERS)))
)
_SIZES: Final = r"(\d+)\D+(\d+)\D+(\d+)"
_KEY: Final = ("key", "grid", "block", "device", "process")


@dataclass(frozen=True, slots=True, eq=False)
class NcuMatch:
    """The `trace` with joined metrics, and the numbers of launches and kernels.

    `measured` launches are in the tables. `unmatched` of them have a key that no kernel of the trace has, and
    `ambiguous` have a key whose launches differ. Of the `kernels` of the trace, `linked` have metrics; `by_mean` of
    these have the mean of several launches, or the values of the only one.
    """

    trace: Trace
    measured: int
    unmatched: int
    ambiguous: int
    kernels: int
    linked: int
    by_mean: int


def with_ncu(trace: Trace, *reports: NcuReport) -> Trace:
    """The trace with the metrics of Nsight Compute as counters of its kernels: rows of `counters` with `activity_id`.

    What was joined before stays. What fits nothing is counted in the trace's `health` (kinds `ncu_*`).

    >>> import tracekit
    >>> trace = tracekit.read("sample_traces/cnn_cpu/trace.json.gz")
    >>> with_ncu(trace).equals(trace)
    True
    """
    return join_ncu(trace, *reports).trace if reports else trace


def join_ncu(trace: Trace, *reports: NcuReport) -> NcuMatch:
    """The result of `with_ncu`, with the numbers of joined launches and kernels."""
    kernels = _kernels(trace)
    joined: list[_Joined] = []
    rows: list[pl.DataFrame] = []
    for report in reports:
        for _, table in report.kernels.group_by("table", maintain_order=True):
            joined.append(one := _join(kernels, table))
            rows.append(_values(one, table, report.metrics))
    values = pl.concat(rows) if rows else pl.DataFrame(schema=_VALUES)
    values = _without_known(
        values.unique(["activity_id", "series"], keep="first", maintain_order=True), trace
    )
    mean = pl.concat([one.means for one in joined]).n_unique("activity_id") if joined else 0
    match = NcuMatch(
        trace=trace,
        measured=sum(one.launches for one in joined),
        unmatched=sum(one.unmatched.height for one in joined),
        ambiguous=sum(one.ambiguous.height for one in joined),
        kernels=kernels.height,
        linked=_linked(trace, values),
        by_mean=mean,
    )
    return replace(match, trace=_with_rows(trace, kernels, values, _health(match, joined), reports))


_VALUES: Final = {"activity_id": pl.Int64, "series": pl.String, "value": pl.Float64}


@dataclass(frozen=True, slots=True, eq=False)
class _Joined:
    """One table: `pairs` (`activity_id`, `profile_id`), `means` (`activity_id`, `group`) and `groups` (`group`,
    `profile_id`); of the table's launches those that are `unmatched` or `ambiguous`.
    """

    launches: int
    pairs: pl.DataFrame
    means: pl.DataFrame
    groups: pl.DataFrame
    unmatched: pl.DataFrame
    ambiguous: pl.DataFrame


def _without_known(values: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """The values without those that the trace has already."""
    if trace.counters is None:
        return values
    present = trace.counters.filter(pl.col("activity_id").is_not_null())
    present = present.select("activity_id", pl.col("series").cast(pl.String)).unique()
    return values.join(present, on=["activity_id", "series"], how="anti", maintain_order="left")


def _linked(trace: Trace, values: pl.DataFrame) -> int:
    """The number of activities with metrics."""
    before = None if trace.counters is None else trace.counters["activity_id"].drop_nulls()
    ids = values["activity_id"] if before is None else pl.concat([before, values["activity_id"]])
    return ids.n_unique()


def _kernels(trace: Trace) -> pl.DataFrame:
    """The kernels of the whole trace in the order of their launches."""
    rows = select(trace, window="trace").activities.filter(pl.col("kind") == "kernel")
    if not trace.has_device:
        rows = rows.clear()
    text = rows.with_columns(
        pl.col("name").cast(pl.String),
        *(_size(pl.col(name).cast(pl.String)).alias(name) for name in ("grid", "block")),
        pl.Series("launched", launch_times(trace, rows), dtype=pl.Int64),
    )
    return text.sort("launched", "start", "activity_id").select(
        *("activity_id", "name", "grid", "block", "device_id", "process_id", "step", "start", "duration")
    )


def _size(text: pl.Expr) -> pl.Expr:
    return pl.format("{},{},{}", *(text.str.extract(_SIZES, part) for part in (1, 2, 3)))


def _join(kernels: pl.DataFrame, table: pl.DataFrame) -> _Joined:
    names = _name_keys(kernels["name"].unique().to_list(), table["name"].unique().to_list())
    also = [name for name in ("device_id", "process_id") if _tells(kernels[name], table[name])]
    mine = _keyed(kernels, names[0], also).filter(pl.col("key").is_not_null())
    theirs = _keyed(table.with_columns(_size(pl.col(n)).alias(n) for n in ("grid", "block")), names[1], also)
    keys = list(_KEY)
    theirs = theirs.with_columns(pl.len().over(keys).alias("measured"), _turn(keys))
    mine = mine.join(
        theirs.select(*keys, "measured").unique(), on=keys, nulls_equal=True, maintain_order="left"
    )
    kernel_keys = mine.select(keys).unique()
    unmatched = theirs.join(kernel_keys, on=keys, how="anti", nulls_equal=True)
    theirs = theirs.join(kernel_keys, on=keys, how="semi", nulls_equal=True, maintain_order="left")
    aligned = _aligned(mine, theirs)
    pairs = aligned.drop_nulls("turn").join(
        theirs.select(*keys, "turn", "profile_id"), on=[*keys, "turn"], nulls_equal=True
    )
    rest = aligned.filter("by_mean")
    agreed = _agreeing(theirs.join(rest.select(keys).unique(), on=keys, how="semi", nulls_equal=True))
    groups = agreed.filter("agree").with_row_index("group").with_columns(pl.col("group").cast(pl.Int64))
    means = rest.join(groups, on=keys, nulls_equal=True)
    return _Joined(
        launches=table.height,
        pairs=pairs[["activity_id", "profile_id"]],
        means=means[["activity_id", "group"]],
        groups=theirs.join(groups, on=keys, nulls_equal=True)[["group", "profile_id"]],
        unmatched=unmatched[["profile_id", "name"]],
        ambiguous=theirs.join(agreed.filter(~pl.col("agree")), on=keys, how="semi", nulls_equal=True).select(
            "profile_id", "name"
        ),
    )


def _name_keys(ours: Sequence[str], theirs: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """For each name of the trace and of the table the key by which they are compared; null for a null name."""
    mine, other = _spelled(ours), _spelled(theirs)
    matches = other.with_columns(
        pl.col("name").is_in(mine["name"].implode()).alias("exact"),
        pl.col("signature").is_in(mine["signature"].implode()).alias("signed"),
    )
    level = matches.group_by("base").agg(
        pl.when(pl.col("exact").all())
        .then(pl.lit("name"))
        .when(pl.col("signed").all())
        .then(pl.lit("signature"))
        .otherwise(pl.lit("base"))
        .alias("level")
    )
    keys = [
        side.join(level, on="base", how="left").select(
            "name",
            pl.when(pl.col("level") == "name")
            .then("name")
            .when(pl.col("level") == "signature")
            .then("signature")
            .when(pl.col("level") == "base")
            .then("base")
            .alias("key"),
        )
        for side in (mine, other)
    ]
    return keys[0], keys[1]


def _spelled(names: Sequence[str]) -> pl.DataFrame:
    # Names are few, however many launches there are.
    rows = [(name, signature_of(name), base_of(name)) for name in names]
    return pl.DataFrame(rows, schema=dict.fromkeys(("name", "signature", "base"), pl.String), orient="row")


def _tells(ours: pl.Series, theirs: pl.Series) -> bool:
    """Whether a number means the same on both sides, and distinguishes launches."""
    mine, other = set(ours.drop_nulls().unique()), set(theirs.drop_nulls().unique())
    return bool(mine & other) and max(len(mine), len(other)) > 1


def _keyed(rows: pl.DataFrame, names: pl.DataFrame, also: Sequence[str]) -> pl.DataFrame:
    parts = [
        (pl.col(column) if column in also else pl.lit(None, dtype=pl.Int64)).alias(name)
        for column, name in (("device_id", "device"), ("process_id", "process"))
    ]
    return rows.join(names, on="name", how="left", maintain_order="left").with_columns(parts)


def _turn(keys: list[str]) -> pl.Expr:
    return pl.int_range(pl.len(), dtype=pl.Int64).over(keys).alias("turn")


def _aligned(mine: pl.DataFrame, theirs: pl.DataFrame) -> pl.DataFrame:
    """The kernels of the trace with the `turn` of the measured launch; null with `by_mean` if the order does not match
    them.
    """
    keys = list(_KEY)
    repeats = _repeats(mine, theirs)
    in_step = pl.col("step").is_not_null()
    per_step = pl.when(in_step).then(pl.len().over([*keys, "step"]))
    rows = mine.with_columns(
        pl.len().over(keys).alias("many"),
        _turn(keys),
        pl.int_range(pl.len(), dtype=pl.Int64).over([*keys, "step"]).alias("step_turn"),
        per_step.alias("per_step"),
    ).with_columns(
        (
            (pl.col("per_step").min().over(keys) == pl.col("measured"))
            & (pl.col("per_step").max().over(keys) == pl.col("measured"))
        )
        .fill_null(value=False)
        .alias("steady")
    )
    by_turn = (
        pl.when(pl.col("many") == pl.col("measured"))
        .then("turn")
        .when(pl.col("steady") & in_step)
        .then("step_turn")
        .when(pl.lit(repeats))
        .then(pl.col("turn") % pl.col("measured"))
    )
    by_mean = (pl.col("many") != pl.col("measured")) & ~pl.col("steady") & ~pl.lit(repeats)
    return rows.with_columns(by_turn.alias("turn"), by_mean.alias("by_mean"))


def _repeats(mine: pl.DataFrame, theirs: pl.DataFrame) -> bool:
    """Whether the launches of the trace repeat those of the table in the same order; a single key would match any
    number of them.
    """
    if not theirs.height or mine.height % theirs.height or mine.height == theirs.height:
        return False
    keys = list(_KEY)
    codes = theirs.select(keys).unique(maintain_order=True).with_row_index("code")
    if codes.height < 2:
        return False
    ours, other = (
        side.join(codes, on=keys, how="left", nulls_equal=True, maintain_order="left")["code"].to_numpy()
        for side in (mine, theirs)
    )
    return bool((ours.reshape(-1, other.size) == other).all())


def _agreeing(theirs: pl.DataFrame) -> pl.DataFrame:
    """Each key with `agree`: whether its launches did the same work, as far as it was measured."""
    keys = list(_KEY)
    same = []
    for name, kind in WORK_SCHEMA.items():
        if kind is pl.String:
            continue
        value = pl.col(name).cast(pl.Float64)
        whole = (value.null_count() == 0) | (value.null_count() == pl.len())
        most = pl.lit(TOLERANCE) if name == "occupancy" else TOLERANCE * value.max()
        same.append(whole & (value.max() - value.min() <= most).fill_null(value=True))
    return theirs.group_by(keys, maintain_order=True).agg(pl.all_horizontal(same).alias("agree"))


def _values(joined: _Joined, table: pl.DataFrame, metrics: pl.DataFrame) -> pl.DataFrame:
    """`activity_id`, `series` and `value` of all kernels that get metrics."""
    mine = metrics.filter(pl.col("profile_id").is_in(table["profile_id"].implode()))
    mine = mine.with_columns(values_as_counters(mine))
    each = max(mine.height // max(table.height, 1), 1)
    if (joined.pairs.height + joined.means.height) * each > _MOST_ROWS:
        mine = mine.filter(pl.col("metric").str.contains(_KNOWN))
    direct = joined.pairs.join(mine, on="profile_id", maintain_order="left")
    sizes = joined.groups.group_by("group").agg(pl.len().alias("size"))
    averaged = (
        joined.groups.join(mine, on="profile_id", maintain_order="left")
        .group_by("group", "metric", maintain_order=True)
        .agg(pl.col("value").mean(), pl.len().alias("count"))
        .join(sizes, on="group", maintain_order="left")
        .filter(pl.col("count") == pl.col("size"))
    )
    shared = joined.means.join(averaged, on="group", maintain_order="left")
    columns = ["activity_id", pl.col("metric").alias("series"), "value"]
    return pl.concat([direct.select(columns), shared.select(columns)])


def _health(match: NcuMatch, joined: Sequence[_Joined]) -> pl.DataFrame:
    log = HealthLog()
    for one in joined:
        for kind, rows in (("ncu_unmatched", one.unmatched), ("ncu_ambiguous", one.ambiguous)):
            log.count(kind, rows.height, rows["name"][0] if rows.height else "")
    log.count("ncu_mean", match.by_mean)
    log.count("ncu_not_measured", match.kernels - match.linked)
    return log.frame()


def _with_rows(
    trace: Trace, kernels: pl.DataFrame, values: pl.DataFrame, log: pl.DataFrame, reports: Sequence[NcuReport]
) -> Trace:
    # How many kernels lack metrics is known anew.
    before = trace.health.filter(pl.col("kind") != "ncu_not_measured")
    health = pl.concat([before, *(report.health for report in reports), log])
    health = health.group_by("kind", maintain_order=True).agg(
        pl.col("count").sum() if name == "count" else pl.col(name).first()
        for name in HEALTH_SCHEMA
        if name != "kind"
    )
    health = health.select(list(HEALTH_SCHEMA))
    if not values.height:
        return replace(trace, health=health)
    rows = values.join(
        kernels[["activity_id", "name", "start", "duration"]], on="activity_id", maintain_order="left"
    )
    added = rows.select(pl.col(name).cast(kind) for name, kind in COUNTER_SCHEMA.items())
    counters = added if trace.counters is None else pl.concat([trace.counters, added])
    captured = trace.meta.captured | {"counters"}
    return replace(
        trace,
        health=health,
        counters=counters.sort("start", maintain_order=True),
        meta=replace(trace.meta, captured=captured),
    )
