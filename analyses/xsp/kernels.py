"""The kernels of a run, call by call: the layer and the operator of each, its time, its work, and the sources of these.

Times come from the run at level MLG. FLOPs, DRAM bytes and occupancy come from Nsight Compute if its metrics were joined
(`analyses.counters.ncu`), else from hardware counters (`analyses.counters.join`), else FLOPs come from shapes (`analyses.flops`)
and occupancy from the profiler's estimate. If an operator launches several kernels, its longest kernel has its FLOPs, the others 0.

In a trace without a device, a row is a call of an operator, and its duration is the self time.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.counters.analysis import (
    COUNTED,
    join_launches,
    linked,
    measured_ranges,
    with_counters,
)
from tracekit.analyses.flops import counted
from tracekit.analyses.flops.count import WIDENED
from tracekit.analyses.scope import Scope
from tracekit.analyses.stated import in_schema
from tracekit.analyses.xsp.catalogue import COLUMNS
from tracekit.analyses.xsp.layers import FORWARD_METHODS
from tracekit.analyses.xsp.runs import UNATTRIBUTED, XspRun, paths_of, placed, steps_of
from tracekit.facts.stack_names import PHASES
from tracekit.groups import at_rows
from tracekit.spans import take
from tracekit.statistics import trimmed

__all__ = ["kernel_calls", "union_by"]

_SHOWN = (
    "run name kind layer type phase operator grid block duration_ns flops flops_source dram_read_bytes "
    "dram_write_bytes dram_bytes dram_source occupancy occupancy_source precision"
)
CALLS = {
    **{name: COLUMNS[name][0] for name in _SHOWN.split()},
    "unit": pl.String(),  # matrix or vector, of the operator; null for none
    "step": pl.Int64(),
    "order": pl.Int64(),  # position in the step
    "turn": pl.Int64(),  # number of kernels of its name before it in its step, layer and phase
}
_NO_ARITHMETIC = ("memcpy", "memset")


def kernel_calls(run: XspRun) -> pl.DataFrame:
    """One row per kernel (copy, fill) of the steps, in the order of the launches in each step: the columns of CALLS.

    Without a run at level MLG, the kernels of the counter run, without durations; empty without both.
    """
    scope = run.kernels or run.counters
    if scope is None:
        return pl.DataFrame(schema=CALLS)
    if run.kernels is None and not scope.trace.has_device:
        rows = _ranges(scope)
    else:
        ranges = None if run.counters is None else measured_ranges(run.counters.trace)
        rows = with_counters(_recorded(scope), ranges, linked(scope.trace))
    if run.kernels is None:
        rows = rows.with_columns(pl.lit(None, pl.Int64).alias("duration_ns"))
    rows = _with_flops(rows, scope)
    if run.precision == "tf32":
        rows = rows.with_columns(
            pl.when(pl.col("unit") != "vector")
            .then(pl.col("precision").replace("fp32", "tf32"))
            .otherwise("precision")
            .alias("precision")
        )
    rows = rows.with_columns(
        pl.lit(run.label).alias("run"),
        pl.int_range(pl.len()).over("step").alias("order"),
        pl.int_range(pl.len()).over("step", "layer", "phase", "name").alias("turn"),
    )
    return in_schema(rows, CALLS)


def union_by(run: XspRun, keys: list[str], *, forward: bool = False) -> pl.DataFrame:
    """For each group of kernels the time `gpu_ns` in a step in which at least one of them runs: trimmed means over steps.

    With `forward`, only for kernels that a call of their layer launched. Null without a run at level MLG.
    """
    if run.kernels is None:
        return pl.DataFrame(schema=dict.fromkeys(keys, pl.String) | {"gpu_ns": pl.Float64})
    rows = placed(run.kernels)
    if forward:
        rows = rows.filter(pl.col("method").cast(pl.String).is_in(FORWARD_METHODS))
    ordered = rows.with_columns(pl.lit(run.label).alias("run")).sort("start", "end")
    before = pl.col("end").cum_max().shift(1).fill_null(pl.col("start"))
    fresh = (pl.col("end") - pl.max_horizontal("start", before)).clip(lower_bound=0)
    steps = ordered.group_by(*keys, "step").agg(fresh.sum().alias("gpu_ns"))
    return steps.group_by(keys).agg(trimmed("gpu_ns")).with_columns(pl.col(keys).cast(pl.String))


def _recorded(scope: Scope) -> pl.DataFrame:
    rows = placed(scope)
    if scope.on_cpu:  # an operator that calls others has several pieces
        rows = (
            rows.group_by("launch_id", maintain_order=True)
            .agg(pl.exclude("launch_id", "duration").first(), pl.col("duration").sum())
            .sort("launched", "activity_id")
        )
    return rows.with_columns(
        pl.col("name").cast(pl.String),
        pl.coalesce("launch_id", "op_id").fill_null(-1).alias("anchor"),
        pl.col("duration").alias("duration_ns"),
    )


def _ranges(scope: Scope) -> pl.DataFrame:
    """Rows from the ranges of counters alone: kernels with names and operators, but no times."""
    model = attribution(scope).model
    ranges = join_launches(scope.trace)
    if ranges is None:
        return pl.DataFrame(schema={"anchor": pl.Int64, **CALLS})
    launch = ranges["launch_id"].to_numpy()
    places = model.places(launch)
    paths = paths_of(scope, places.layer)
    rows = ranges.with_columns(
        paths["layer"].fill_null(UNATTRIBUTED),
        paths["type"],
        steps_of(scope, model.stack.start[launch]),
        pl.Series("anchor", launch),
        pl.Series("op_id", take(model.stack.nesting.nearest_ancestor(model.stack.of_kind("op")), launch)),
        pl.lit("kernel").alias("kind"),
        pl.Series("phase", [PHASES[number] for number in places.phase.tolist()], dtype=pl.String),
        *(
            pl.when(pl.col(name).is_not_null()).then(pl.lit(COUNTED)).alias(f"{name}_source")
            for name in ("occupancy", "flops")
        ),
    )
    operators = scope.trace.host.select(pl.col("span_id").alias("op_id"), pl.col("name").alias("operator"))
    return rows.filter(pl.col("step").is_not_null()).join(
        operators, on="op_id", how="left", maintain_order="left"
    )


def _with_flops(rows: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """`flops` of kernels without a counter: the FLOPs of the counted operator around the launch, at its longest kernel."""
    work = counted(scope)
    owner = take(work.owner, rows["anchor"].to_numpy())
    owner = np.where(take(work.flops, owner) >= 0, owner, -1)  # of some operators only the bytes are known
    precision = np.where(owner >= 0, take(work.precision, owner), -1)
    names = pl.Series("precision", [*work.names, None])
    matrix = (owner >= 0) & work.matrix[owner] if work.matrix.size else owner >= 0
    rows = rows.with_columns(
        pl.Series("owner", owner),
        pl.Series("of_operator", take(work.flops, owner)),
        at_rows(names, precision % names.len()),
        pl.when(pl.Series(matrix))
        .then(pl.lit("matrix"))
        .when(pl.Series(owner >= 0))
        .then(pl.lit("vector"))
        .alias("unit"),
    )
    widened = (pl.col("unit") == "vector") & pl.col("precision").is_in(WIDENED)
    rows = rows.with_columns(pl.when(widened).then(pl.lit("fp32")).otherwise("precision").alias("precision"))
    # Copies do no arithmetic; among equal kernels the first counts.
    works = ~pl.col("kind").cast(pl.String).is_in(_NO_ARITHMETIC) & (pl.col("owner") >= 0)
    length = pl.when(works).then(pl.col("duration_ns").fill_null(0))
    longest = length.rank("ordinal", descending=True).over("owner") == 1
    analytic = pl.when(works).then(pl.when(longest).then("of_operator").otherwise(0))
    return rows.with_columns(
        pl.coalesce("flops_source", pl.when(works).then(pl.lit("analytic"))).alias("flops_source"),
        pl.coalesce("flops", analytic).alias("flops"),
    )
