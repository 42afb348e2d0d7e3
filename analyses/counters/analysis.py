"""What hardware counters and counter tracks measured, and which kernel each range of counters belongs to."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.result import NotCaptured, Result, TableView
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.counted_work import COUNTED, WORK_SCHEMA, work_of
from tracekit.facts.launch_apis import GRAPH_LAUNCH, KERNEL_LAUNCH
from tracekit.facts.units import count_of
from tracekit.groups import any_known
from tracekit.readers import flag_for, how_to_record
from tracekit.trace import Trace

__all__ = [
    "COUNTED",
    "MEASURED",
    "NCU_SUFFIX",
    "TABLES",
    "UNNAMED",
    "Counters",
    "counters",
    "has_ranges",
    "how_to_record_device",
    "join_kernels",
    "join_launches",
    "linked",
    "measured_kernels",
    "measured_ranges",
    "replayed",
    "with_counters",
]

TABLES: Final = {
    "series": TableView("Counters", "series samples total mean min max", main=True),
    "by_name": TableView(
        "Counters by kernel or track",
        "name series samples total mean min max",
        short="name series samples total mean",
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Counters(Result):
    """Samples and measured ranges of counters, in the units of each. Both tables are None when no counter was recorded."""

    series: pl.DataFrame | None
    """Per counter `series` the number of `samples` and `total`, `mean`, `min`, `max`."""
    by_name: pl.DataFrame | None
    """The same per `name` (the track, or the kernel that a measured range covers) and `series`."""


def counters(scope: Scope | Trace) -> Counters:
    """Counter samples and measured ranges of the whole file.

    >>> import tracekit
    >>> counters(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).series is None
    True
    """
    return once(scope, _counters)


def _counters(scope: Scope) -> Counters:
    trace = scope.trace
    rows = trace.counters
    if rows is None or not rows.height:
        return Counters(
            answer="The trace has no counters.",
            not_captured=NotCaptured("no counters", _remedy(trace)),
            series=None,
            by_name=None,
        )
    text = rows.with_columns(pl.col("name", "series").cast(pl.String))
    series = text.group_by("series").agg(*_summary()).sort("series")
    of_range = text["duration"].is_not_null()
    where = " and ".join(
        f"{before}{count_of(count, what)}"
        for before, what, chosen in (("", "track", ~of_range), ("kernels of ", "name", of_range))
        if (count := text.filter(chosen)["name"].n_unique())
    )
    measured = rows["activity_id"].drop_nulls().n_unique()
    ncu = f" Nsight Compute measured {count_of(measured, 'kernel')} of the trace." if measured else ""
    return Counters(
        answer=f"The trace has {count_of(series.height, 'counter')} for {where}.{ncu}",
        series=series,
        by_name=text.group_by("name", "series").agg(*_summary()).sort("name", "series"),
    )


def _remedy(trace: Trace) -> str:
    """Of NVIDIA's devices, newer builds of torch give no counters, and Nsight Compute does."""
    record = how_to_record("counters", trace.meta.format)
    if not any("NVIDIA" in device.name for device in trace.meta.devices):
        return record
    return f"give an Nsight Compute table (--ncu), or {record}"


def _summary() -> list[pl.Expr]:
    value = pl.col("value")
    return [
        pl.len().cast(pl.Int64).alias("samples"),
        value.sum().alias("total"),
        value.mean().alias("mean"),
        value.min().alias("min"),
        value.max().alias("max"),
    ]


# -- kernels that counters were measured over -------------------------------------------------------
#
# Which kernel each range of hardware counters was measured over, and what the counters say about it.
#
# CUPTI's range profiler replays every kernel once for each pass and writes one range per kernel: its name (or
# `__missing__`), its counters, and times that are only spread evenly over the recording. So a range is joined by name
# and order, never by time: the k-th range of a name is the k-th launch of that name. Where the profile holds no kernels,
# only the calls that launched them, ranges and calls of the whole file are joined in order if they are equally many.
#
# Counters that another recording measured for single activities (Nsight Compute's, `analyses.ncu_join`) name the activity
# in `counters.activity_id`; nothing is left to be joined, and they say nothing of how the trace itself was recorded.
# What the counters tell is said in `tracekit.counted_work`.

UNNAMED: Final = "__missing__"
"""The name that the profiler gives to a range whose kernel it does not know."""

MEASURED: Final = WORK_SCHEMA
"""The figures from the counters of a range; null if the counters were not recorded."""

NCU_SUFFIX: Final = " (ncu)"
"""The suffix of `dram_source` for figures that Nsight Compute measured."""


def replayed(counters: pl.DataFrame | None) -> pl.DataFrame | None:
    """The counters that were measured over ranges during the recording of the trace; None if there are none."""
    if counters is None:
        return None
    rows = counters.filter(pl.col("duration").is_not_null() & pl.col("activity_id").is_null())
    return rows if rows.height else None


def has_ranges(trace: Trace) -> bool:
    """Whether counters were measured kernel by kernel, so that the times of the trace are those of replays."""
    return replayed(trace.counters) is not None


def how_to_record_device(trace: Trace) -> str:
    """What records the work of a device: in a counter run, a profile without counters, since the kernels are only measured."""
    if has_ranges(trace):
        return f"profile without {flag_for('counters', trace.meta.format)}"
    return how_to_record("device", trace.meta.format)


def measured_ranges(trace: Trace) -> pl.DataFrame:
    """One row per range, in order: `range` (from 0), `name`, `start` (ns) and the columns of MEASURED.

    >>> import tracekit
    >>> measured_ranges(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).height
    0
    """
    schema = {"range": pl.Int64, "name": pl.String, "start": pl.Int64, **MEASURED}
    rows = replayed(trace.counters)
    if rows is None:
        return pl.DataFrame(schema=schema)
    work = work_of(rows.with_columns(pl.col("name", "series").cast(pl.String)), ["start", "name"])
    return (
        work.sort("start", maintain_order=True)
        .with_row_index("range")
        .select(pl.col(name).cast(kind) for name, kind in schema.items())
    )


def linked(trace: Trace) -> pl.DataFrame:
    """One row per activity for which another recording measured counters: `activity_id` and the columns of MEASURED.

    `dram_source` says that Nsight Compute measured it. Empty when there are none.

    >>> import tracekit
    >>> linked(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")).height
    0
    """
    schema = {"activity_id": pl.Int64, **MEASURED}
    if trace.counters is None or not any_known(trace.counters["activity_id"]):
        return pl.DataFrame(schema=schema)
    rows = trace.counters.filter(pl.col("activity_id").is_not_null())
    work = work_of(rows.with_columns(pl.col("name", "series").cast(pl.String)), ["activity_id", "name"])
    return work.with_columns(pl.col("dram_source") + NCU_SUFFIX).select(
        pl.col(name).cast(kind) for name, kind in schema.items()
    )


def join_kernels(ranges: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """The columns of MEASURED, one row per row of `kernels` (`name`, `step`), which are in the order of their launches.

    Ranges join the kernels of a name if there are as many of both, or as many ranges as kernels in each step; then each
    step gets the same. If all ranges and all kernels are equally many and no name contradicts, ranges without a name
    join by position. Other rows are null.
    """
    mine = kernels.select(pl.col("name").cast(pl.String), "step").with_row_index("row")
    names = ranges["name"]
    if ranges.height == mine.height and bool(((names == mine["name"]) | (names == UNNAMED)).all()):
        return ranges.select(list(MEASURED))
    mine = mine.with_columns(
        pl.len().over("name").alias("many"),
        pl.len().over("name", "step").alias("per_step"),
        pl.int_range(pl.len()).over("name").alias("turn"),
        pl.int_range(pl.len()).over("name", "step").alias("step_turn"),
    ).with_columns(
        (pl.col("per_step").min().over("name") == pl.col("per_step").max().over("name")).alias("steady")
    )
    theirs = ranges.filter(pl.col("name") != UNNAMED).with_columns(
        pl.int_range(pl.len()).over("name").alias("turn"), pl.len().over("name").alias("ranges")
    )
    counts = theirs[["name", "ranges"]].unique()
    mine = mine.join(counts, on="name", how="left", maintain_order="left")
    by_turn = (
        pl.when(pl.col("many") == pl.col("ranges"))
        .then("turn")
        .when(pl.col("steady") & (pl.col("per_step") == pl.col("ranges")))
        .then("step_turn")
    )
    mine = mine.with_columns(by_turn.cast(pl.Int64).alias("turn"))
    joined = mine.join(theirs, on=["name", "turn"], how="left", maintain_order="left", suffix="_of_range")
    return joined.select(pl.col(name).cast(kind) for name, kind in MEASURED.items())


def join_launches(trace: Trace) -> pl.DataFrame | None:
    """The ranges of a trace without kernels: `launch_id` (host.span_id) beside the columns of `measured_ranges`.

    None if the numbers of launch calls and ranges differ, so that they cannot be matched, or if graphs were launched,
    whose kernels have no calls of their own.
    """
    ranges = measured_ranges(trace)
    calls = trace.host.filter(pl.col("kind") == "runtime").with_columns(pl.col("name").cast(pl.String))
    if calls["name"].str.contains(GRAPH_LAUNCH).any():
        return None
    calls = calls.filter(pl.col("name").str.contains(KERNEL_LAUNCH)).sort("start", "span_id")
    if not ranges.height or calls.height != ranges.height:
        return None
    return ranges.with_columns(calls["span_id"].alias("launch_id"))


def with_counters(rows: pl.DataFrame, ranges: pl.DataFrame | None, ncu: pl.DataFrame) -> pl.DataFrame:
    """The rows with the columns of MEASURED and their sources: Nsight Compute (`linked`), else counters (`measured_ranges`); for
    occupancy else the profiler's estimate.

    The rows are activities (`activity_id`, `kind`, `name`, `step`, `occupancy`) in the order of their launches.
    """
    if not ncu.height and (ranges is None or not ranges.height):
        estimated = pl.when(pl.col("occupancy").is_not_null()).then(pl.lit("estimate"))
        return rows.with_columns(*_UNMEASURED, estimated.alias("occupancy_source"))
    kernels = rows.filter(pl.col("kind") == "kernel")
    counted = pl.DataFrame(schema=MEASURED).clear(kernels.height)
    if ranges is not None and ranges.height:
        counted = join_kernels(ranges, kernels)
    counted = counted.with_columns(kernels["activity_id"])
    both = (
        rows.select("activity_id", pl.col("occupancy").alias("estimate"))
        .join(ncu, on="activity_id", how="left", maintain_order="left")
        .join(counted, on="activity_id", how="left", maintain_order="left", suffix="_counted")
    )
    # The bytes of a launch come from one source, because they belong together.
    of_ncu = pl.col("dram_bytes").is_not_null()
    traffic = [name for name in MEASURED if name.startswith("dram_")]
    estimated = pl.when(pl.col("estimate").is_not_null()).then(pl.lit("estimate"))
    figures = both.select(
        pl.coalesce("flops", "flops_counted").alias("flops"),
        _source("flops").alias("flops_source"),
        *(pl.when(of_ncu).then(name).otherwise(f"{name}_counted").alias(name) for name in traffic),
        *(
            pl.coalesce(name, f"{name}_counted").alias(name)
            for name in ("l2_bytes", "l1_bytes", "flops_precision", "flops_unit")
        ),
        pl.coalesce("occupancy", "occupancy_counted", "estimate").alias("occupancy"),
        pl.coalesce(_source("occupancy"), estimated).alias("occupancy_source"),
    )
    return rows.with_columns(figures.get_columns())


_UNMEASURED: Final = [
    pl.lit(None, kind).alias(name)
    for name, kind in {**MEASURED, "flops_source": pl.String}.items()
    if name != "occupancy"
]


def _source(figure: str) -> pl.Expr:
    return (
        pl.when(pl.col(figure).is_not_null())
        .then(pl.lit(COUNTED + NCU_SUFFIX))
        .when(pl.col(f"{figure}_counted").is_not_null())
        .then(pl.lit(COUNTED))
    )


# -- kernels by name --------------------------------------------------------------------------------
#
# The work of kernels by name, as Nsight Compute measured it, over the time that they take in the trace.


def measured_kernels(scope: Scope) -> pl.DataFrame | None:
    """One row per `name` of the kernels of the scope with joined metrics, by their time; None if there are none.

    `count` kernels have the name, and `measured` of them have metrics; `total_ns` is the time of the measured kernels
    in the trace. `flops` and `dram_bytes` are sums over them, null if one of them lacks the figure; `dram_source` is
    the source of the bytes. `intensity` is FLOPs over bytes, `tflops` and `bandwidth_gbps` are over `total_ns`,
    `occupancy` is weighted by duration.
    """
    metrics = linked(scope.trace)
    if not metrics.height or scope.on_cpu:
        return None
    rows = (
        scope.activities.filter(pl.col("kind") == "kernel")
        .select("activity_id", pl.col("name").cast(pl.String), "duration")
        .join(metrics.with_columns(pl.lit(value=True).alias("joined")), on="activity_id", how="left")
    )
    is_joined = pl.col("joined").is_not_null()
    grouped = rows.group_by("name").agg(
        pl.len().cast(pl.Int64).alias("count"),
        is_joined.sum().cast(pl.Int64).alias("measured"),
        pl.col("duration").filter(is_joined).sum().alias("total_ns"),
        _whole("flops", is_joined),
        _whole("dram_bytes", is_joined),
        pl.col("dram_source").drop_nulls().unique().sort().str.join("+").alias("dram_source"),
        _weighted(is_joined),
    )
    busy, moved = pl.col("total_ns") > 0, pl.col("dram_bytes") > 0
    return (
        grouped.filter(pl.col("measured") > 0)
        .select(
            *("name", "count", "measured", "total_ns", "flops", "dram_bytes"),
            pl.when(pl.col("dram_bytes").is_not_null()).then("dram_source").alias("dram_source"),
            pl.when(moved).then(pl.col("flops") / pl.col("dram_bytes")).alias("intensity"),
            # FLOPs a nanosecond are 10⁹ a second; so are bytes.
            pl.when(busy).then(pl.col("flops") / pl.col("total_ns") / 1e3).alias("tflops"),
            pl.when(busy).then(pl.col("dram_bytes") / pl.col("total_ns")).alias("bandwidth_gbps"),
            "occupancy",
        )
        .sort("total_ns", "name", descending=[True, False])
    )


def _whole(name: str, of: pl.Expr) -> pl.Expr:
    values = pl.col(name).filter(of)
    return pl.when(values.null_count() == 0).then(values.sum()).alias(name)


def _weighted(of: pl.Expr) -> pl.Expr:
    has_value = of & pl.col("occupancy").is_not_null()
    value, weight = pl.col("occupancy").filter(has_value), pl.col("duration").filter(has_value)
    return pl.when(weight.sum() > 0).then((value * weight).sum() / weight.sum()).alias("occupancy")
