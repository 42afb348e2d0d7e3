"""The kernels of a run, call by call: which layer and operator each is of, its time, its work, and what tells it.

Times come from the run at level MLG. FLOPs, DRAM bytes and occupancy come from Nsight Compute where its metrics were joined
(`analyses.ncu_join`), else from hardware counters (`analyses.counter_join`), FLOPs else from shapes (`analyses.flops`),
occupancy else from the profiler's own estimate. The FLOPs of an operator that launches several kernels stand at the longest of them, 0 at the others.

On a trace without a device an operator's call is a row, and its self time the duration.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed
from tracekit.analyses.counters.join import (
    COUNTED,
    MEASURED,
    NCU_SUFFIX,
    join_kernels,
    join_launches,
    linked,
    measured_ranges,
)
from tracekit.analyses.flops import counted_operators
from tracekit.analyses.scope import launch_times
from tracekit.analyses.xsp.layers import FORWARD_METHODS
from tracekit.analyses.xsp.runs import Recording, XspRun
from tracekit.facts.stack_names import PHASES
from tracekit.spans import Int64Array, take

__all__ = ["UNATTRIBUTED", "kernel_calls", "kernel_pieces"]

UNATTRIBUTED = "<unattributed>"
"""Stands for the layer of kernels of which no layer is known."""

CALLS = {
    "step": pl.Int64,
    "name": pl.String,
    "kind": pl.String,
    "layer": pl.String,
    "type": pl.String,
    "phase": pl.String,
    "operator": pl.String,
    "order": pl.Int64,
    "grid": pl.String,
    "block": pl.String,
    "duration_ns": pl.Int64,
    "flops": pl.Int64,
    "flops_source": pl.String,
    "dram_read_bytes": pl.Int64,
    "dram_write_bytes": pl.Int64,
    "dram_bytes": pl.Int64,
    "dram_source": pl.String,
    "occupancy": pl.Float64,
    "occupancy_source": pl.String,
    "precision": pl.String,
}


def kernel_pieces(recording: Recording) -> pl.DataFrame:
    """One row per activity of the steps: `step`, `name`, `layer`, `forward` (launched in a call of the layer), `start`
    and `end` in ns. They are what unions are made of.
    """
    rows = _placed(recording)
    forward = pl.col("method").cast(pl.String).is_in(FORWARD_METHODS)
    return rows.select(
        "step", pl.col("name").cast(pl.String), "layer", forward.alias("forward"), "start", "end"
    )


def kernel_calls(run: XspRun) -> pl.DataFrame:
    """One row per kernel (copy, fill) of the steps, in the order of the launches in each step: the columns of CALLS.

    Without a run at level MLG those of the run for counters, without durations; none when there is neither.
    """
    if run.kernels is not None:
        counters = run.counters
        ranges = None if counters is None else measured_ranges(counters.trace)
        rows = _with_counters(_recorded(run.kernels), ranges, linked(run.kernels.trace))
        recording = run.kernels
    elif run.counters is not None:
        recording, rows = run.counters, _measured(run.counters)
    else:
        return pl.DataFrame(schema=CALLS)
    rows = _with_flops(rows, recording)
    if run.precision == "tf32":
        rows = rows.with_columns(pl.col("precision").replace("fp32", "tf32"))
    return rows.select(pl.col(name).cast(kind) for name, kind in CALLS.items())


def _placed(recording: Recording) -> pl.DataFrame:
    """The activities with their layers, in the order of their launches."""
    rows = attributed(recording.scope)
    paths = recording.paths(rows["layer_id"].fill_null(-1).to_numpy())
    at = launch_times(recording.trace, rows)
    step = (
        rows["step"] if recording.scope.steps.height else pl.Series("step", [0] * rows.height, dtype=pl.Int64)
    )
    return (
        rows.with_columns(
            paths["layer"].fill_null(UNATTRIBUTED),
            paths["type"],
            pl.Series("launched", at),
            step.alias("step"),
        )
        .filter(pl.col("step").is_not_null())
        .sort("launched", "start", "activity_id")
    )


def _recorded(recording: Recording) -> pl.DataFrame:
    rows = _placed(recording)
    if recording.scope.on_cpu:  # an operator that calls others comes in several pieces
        rows = (
            rows.group_by("launch_id", maintain_order=True)
            .agg(pl.exclude("launch_id", "duration").first(), pl.col("duration").sum())
            .sort("launched", "activity_id")
        )
    anchor = pl.coalesce("launch_id", "op_id").fill_null(-1).alias("anchor")
    return _named(rows, recording).with_columns(
        anchor,
        pl.int_range(pl.len()).over("step").alias("order"),
        pl.col("duration").alias("duration_ns"),
    )


def _named(rows: pl.DataFrame, recording: Recording) -> pl.DataFrame:
    operators = recording.trace.host.select(
        pl.col("span_id").alias("op_id"), pl.col("name").cast(pl.String).alias("operator")
    )
    return rows.join(operators, on="op_id", how="left", maintain_order="left").with_columns(
        pl.col("name").cast(pl.String)
    )


def _with_counters(rows: pl.DataFrame, ranges: pl.DataFrame | None, ncu: pl.DataFrame) -> pl.DataFrame:
    """The rows with the columns of MEASURED and their sources: of Nsight Compute, else of the counters; occupancy else
    the profiler's estimate.
    """
    estimate = rows["occupancy"]
    by_ranges = _of_ranges(rows, ranges)
    by_ncu = rows.select("activity_id").join(ncu, on="activity_id", how="left", maintain_order="left")
    counted = by_ranges.rename({name: f"{name}_counted" for name in MEASURED})
    sides = by_ncu.with_columns(*counted.get_columns(), estimate.alias("estimate"))
    # The bytes of a launch come from one side, as they belong together.
    from_ncu = pl.col("dram_bytes").is_not_null()
    traffic = [name for name in MEASURED if name.startswith("dram_")]
    found = sides.select(
        pl.coalesce("flops", "flops_counted").alias("flops"),
        _source("flops").alias("flops_source"),
        *(pl.when(from_ncu).then(name).otherwise(f"{name}_counted").alias(name) for name in traffic),
        pl.coalesce("occupancy", "occupancy_counted", "estimate").alias("occupancy"),
        pl.coalesce(
            _source("occupancy"), pl.when(pl.col("estimate").is_not_null()).then(pl.lit("estimate"))
        ).alias("occupancy_source"),
    )
    return rows.with_columns(found.get_columns())


def _source(figure: str) -> pl.Expr:
    return (
        pl.when(pl.col(figure).is_not_null())
        .then(pl.lit(COUNTED + NCU_SUFFIX))
        .when(pl.col(f"{figure}_counted").is_not_null())
        .then(pl.lit(COUNTED))
    )


def _of_ranges(rows: pl.DataFrame, ranges: pl.DataFrame | None) -> pl.DataFrame:
    """The columns of MEASURED of each row, by the ranges of counters."""
    if ranges is None or not ranges.height:
        return pl.DataFrame(schema=MEASURED).clear(rows.height)
    is_kernel = (rows["kind"] == "kernel").to_numpy()
    joined = join_kernels(ranges, rows.filter(is_kernel))
    number = pl.Series("at", np.where(is_kernel, np.cumsum(is_kernel) - 1, -1))
    found = joined.with_row_index("at").with_columns(pl.col("at").cast(pl.Int64))
    return number.to_frame().join(found, on="at", how="left", maintain_order="left").select(list(MEASURED))


def _measured(recording: Recording) -> pl.DataFrame:
    """Rows from the ranges of counters alone: kernels with names and operators, but no times."""
    trace, model = recording.trace, recording.found.model
    if trace.has_device:
        rows = _with_counters(_recorded(recording), measured_ranges(trace), linked(trace))
        return rows.with_columns(pl.lit(None, dtype=pl.Int64).alias("duration_ns"))
    ranges = join_launches(trace)
    if ranges is None:
        schema = {"anchor": pl.Int64, "activity_id": pl.Int64, **CALLS}
        return pl.DataFrame(schema=schema)
    launch = ranges["launch_id"].to_numpy()
    places = model.places(launch)
    ops = take(model.stack.nesting.nearest_ancestor(model.stack.of_kind("op")), launch)
    paths = recording.paths(places.layer)
    at = model.stack.start[launch]
    known = pl.col("occupancy").is_not_null()
    rows = ranges.with_columns(
        paths["layer"].fill_null(UNATTRIBUTED),
        paths["type"],
        recording.step_of(at).alias("step"),
        pl.Series("anchor", launch),
        pl.Series("op_id", ops),
        pl.col("range").alias("activity_id"),
        pl.lit("kernel").alias("kind"),
        pl.Series("phase", _phases(places.phase)),
        *(pl.lit(None, dtype=kind).alias(name) for name, kind in _UNTIMED.items()),
        pl.when(known).then(pl.lit(COUNTED)).alias("occupancy_source"),
        pl.when(pl.col("flops").is_not_null()).then(pl.lit(COUNTED)).alias("flops_source"),
    ).filter(pl.col("step").is_not_null())
    return _named(rows, recording).with_columns(pl.int_range(pl.len()).over("step").alias("order"))


_UNTIMED = {"grid": pl.String, "block": pl.String, "duration_ns": pl.Int64}


def _phases(numbers: Int64Array) -> list[str]:
    return [PHASES[number] for number in numbers.tolist()]


def _with_flops(rows: pl.DataFrame, recording: Recording) -> pl.DataFrame:
    """`flops` where no counter tells them: those of the counted operator around the launch, at its longest kernel."""
    counted = counted_operators(recording.trace.host, recording.found.model.stack.nesting)
    owner = take(counted.owner, rows["anchor"].to_numpy())
    names = pl.Series("names", [*counted.names, None])
    rows = rows.with_columns(
        pl.Series("owner", owner),
        pl.Series("of_operator", take(counted.flops, owner)),
        names.gather(np.where(owner >= 0, take(counted.precision, owner), -1) % names.len()).alias(
            "precision"
        ),
    )
    # Copies do no arithmetic; and of equals the first counts.
    works = ~pl.col("kind").cast(pl.String).is_in(["memcpy", "memset"]) & (pl.col("owner") >= 0)
    rank = (
        pl.when(works).then(pl.col("duration_ns").fill_null(0)).rank("ordinal", descending=True).over("owner")
    )
    analytic = pl.when(works).then(pl.when(rank == 1).then("of_operator").otherwise(0))
    return rows.with_columns(
        pl.coalesce("flops_source", pl.when(works).then(pl.lit("analytic"))).alias("flops_source"),
        pl.coalesce("flops", analytic).alias("flops"),
    )
