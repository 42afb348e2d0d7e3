"""The work of a scope in pieces, each with its FLOPs, its bytes, its time, and the sources of these.

A piece is an operator with a model (`analyses.flops`) and all kernels that it launched; a kernel that hardware counters measured; or
a copy or fill inside the device's memory, whose bytes the profiler recorded. Counters come before a model if they measured all
kernels of an operator; copies and fills they never measure, so these are then pieces of their own. Else the model counts for the whole operator: a part by counters and the rest by a model would count work
twice. The figures of a piece stand at its longest kernel that is more than a copy, and its time, `piece_ns`, is that of all its kernels, with the copies and
fills between them.

Copies between host and device, and communication, have figures but no roof: a link bounds them, and not the device.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.counters.analysis import (
    COUNTED,
    has_ranges,
    join_launches,
    linked,
    measured_ranges,
    with_counters,
)
from tracekit.analyses.flops import counted
from tracekit.analyses.flops.count import WIDENED
from tracekit.analyses.scope import Scope, launch_times, step_at
from tracekit.classify import categorise
from tracekit.facts.kernel_rules import TF32
from tracekit.groups import Groups, any_known, are_known, at_rows, groups, none_to_null, or_none
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, take
from tracekit.trace import Schema

__all__ = ["ANALYTIC", "PIECE_SCHEMA", "RECORDED", "pieces"]

ANALYTIC: Final = "analytic"
RECORDED: Final = "recorded"
"""The source of the bytes of copies and fills: the profiler."""

_INSIDE: Final = r"(?i)DtoD|Device-to-Device"
"""Names of copies inside the memory of a device: each byte is read and written."""

PIECE_SCHEMA: Final[Schema] = {
    "flops": pl.Int64,
    "source": pl.Categorical(),
    "bytes": pl.Int64,
    "bytes_source": pl.Categorical(),
    "l2_bytes": pl.Int64,
    "l1_bytes": pl.Int64,
    "precision": pl.Categorical(),
    "unit": pl.Categorical(),
    "piece_ns": pl.Int64,
}
"""Of each activity what stands at it; null but at one kernel of a piece. FLOPs or bytes that are not captured are null there,
too. `unit` is `matrix` or `vector`, or `link` if one bounds the work. `piece_ns` is null where times were not recorded, or are those of replays for counters.
"""

_MOST_PER_NS: Final = 1e9
"""FLOPs, a thousand times what the fastest devices do, or bytes, a million times: the record is damaged."""

_PLACE: Final = (
    *("name", "category", "kind", "device_id", "call", "operator", "op_id", "layer_id", "recomputed"),
    "duration",
)


def pieces(scope: Scope) -> pl.DataFrame:
    """One row per activity of the scope: where it belongs (`name`, `category`, `kind`, `device_id`; `op_id` and `operator`, the
    operator whose model counts around it, else the innermost; `layer_id`, `recomputed`), its `call` and `duration`, and the
    columns of PIECE_SCHEMA.
    """
    return scope.once(pieces, lambda: _pieces(scope))


def _pieces(scope: Scope) -> pl.DataFrame:
    replays = has_ranges(scope.trace)
    if replays and scope.on_cpu:
        rows = _of_ranges(scope)
    else:
        ranges = measured_ranges(scope.trace) if replays else None
        rows = with_counters(_of_activities(scope), ranges, linked(scope.trace))
    return _in_pieces(_with_models(rows, scope), timed=not replays)


def _of_activities(scope: Scope) -> pl.DataFrame:
    """The activities in the order of their launches."""
    places = attribution(scope).activities
    columns = (
        "activity_id",
        "name",
        "category",
        "kind",
        "device_id",
        "step",
        "launch_id",
        "op_id",
        "duration",
    )
    possible = pl.col("bytes") <= _MOST_PER_NS * pl.max_horizontal("duration", 1)
    rows = scope.activities[[*columns, "bytes", "occupancy"]].with_columns(
        pl.when(possible).then("bytes"),
        *places[["layer_id", "recomputed", "operator"]],
        pl.coalesce("launch_id", "op_id").fill_null(-1).alias("anchor"),
        pl.col("launch_id" if scope.on_cpu else "activity_id").alias("call"),
        pl.Series("launched", launch_times(scope.trace, scope.activities)),
    )
    return rows.sort("launched", "activity_id") if scope.trace.counters is not None else rows


def _of_ranges(scope: Scope) -> pl.DataFrame:
    """The launches of a trace that holds the counters of kernels, but not the kernels."""
    ranges = join_launches(scope.trace)
    if ranges is None:
        return with_counters(_of_activities(scope), None, linked(scope.trace))
    if scope.window == "steps":
        opened = step_at(scope.steps, at_rows(scope.trace.host["start"], ranges["launch_id"]).to_numpy())
        ranges = ranges.filter(opened.is_not_null())
    model = attribution(scope).model
    launch = ranges["launch_id"].to_numpy()
    places = model.places(launch)
    operator = take(model.stack.operator, launch)
    kinds = pl.Series(["kernel"] * ranges.height, dtype=pl.String)
    rows = ranges.with_columns(
        none_to_null(operator).alias("op_id"),
        none_to_null(places.layer).alias("layer_id"),
        pl.Series("recomputed", places.recomputed),
        *(pl.col("launch_id").alias(name) for name in ("anchor", "call")),
        *(pl.lit(None, pl.Int64).alias(name) for name in ("duration", "bytes", "device_id")),
        pl.when(pl.col("flops").is_not_null()).then(pl.lit(COUNTED)).alias("flops_source"),
    ).with_columns(at_rows(scope.trace.host["name"], operator).alias("operator"))
    quiet = pl.repeat(False, ranges.height, dtype=pl.Boolean, eager=True)
    category = categorise(kinds, rows["name"], rows["operator"].cast(pl.String), quiet)
    return rows.with_columns(category.alias("category"), kinds.alias("kind"))


def _with_models(rows: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    """The rows with the `owner`, the operator around the launch that counts, and the figures of its model; `inside` marks copies
    inside the memory of a device.
    """
    host = scope.trace.host
    work = counted(scope)
    names = NameTable(rows["name"].cast(pl.Categorical()))
    copy = (rows["kind"] == "memcpy").to_numpy()
    inside = copy & names.matching(_INSIDE)
    owner = np.where(copy & ~inside, -1, take(work.owner, rows["anchor"].to_numpy()))
    op = np.where(owner >= 0, owner, or_none(rows["op_id"]))
    figures = work.of(owner)
    flops, read, written = figures["flops"], figures["read"], figures["written"]
    moved = np.where((read >= 0) & (written >= 0), read + written, -1)
    took = _time_of_owners(owner, rows["duration"])
    flops, moved = (np.where(each > _MOST_PER_NS * took, -1, each) for each in (flops, moved))
    owned = none_to_null(owner)
    matrix = figures["matrix"] == 1
    precision = at_rows(pl.Series([*work.names, None], dtype=pl.Categorical), figures["precision"])
    return rows.with_columns(
        owned.alias("owner"),
        none_to_null(flops).alias("model_flops"),
        none_to_null(moved).alias("model_bytes"),
        precision.alias("precision"),
        pl.Series("matrix", matrix),
        pl.Series("tf32", matrix & names.matching(TF32)),
        pl.Series("inside", inside),
        none_to_null(op).alias("op_id"),
        at_rows(host["name"], owned).zip_with(pl.Series(owner >= 0), rows["operator"]).alias("operator"),
    )


def _time_of_owners(owner: Int64Array, duration: pl.Series) -> npt.NDArray[np.float64]:
    """For each row the time of all rows of its owner in ns, at least 1; infinity where no time is recorded."""
    if not any_known(duration):
        return np.full(owner.size, np.inf)
    total = np.bincount(owner + 1, weights=or_none(duration, 0))
    return np.maximum(total[owner + 1], 1.0)


def _in_pieces(rows: pl.DataFrame, *, timed: bool) -> pl.DataFrame:
    """The rows, with the figures of each piece at its longest kernel that is more than a copy; of equal ones at the first."""
    flops, moved = _by_model(rows, "model_flops", "flops"), _by_model(rows, "model_bytes", "dram_bytes")
    piece = np.where(flops | moved, or_none(rows["owner"]), -1 - np.arange(rows.height))
    # What only moves data (a bias to the output of a product, a change of layout) computes nothing of what the model counts.
    copies = (_moves(rows) | (rows["category"] == "copy").fill_null(value=False)).to_numpy()
    whole = groups(piece)
    first, shared = whole.first.copy(), np.flatnonzero(whole.counts[whole.of] > 1)
    order = shared[np.lexsort((-or_none(rows["duration"], 0)[shared], copies[shared], whole.of[shared]))]
    order = order[np.flatnonzero(np.diff(whole.of[order], prepend=-1))]
    first[whole.of[order]] = order
    by_model = {"flops_by_model": flops[first], "bytes_by_model": moved[first]}
    unmeasured = _moves(rows).to_numpy()
    sums = [_sums(rows[name], whole, unmeasured) for name in _COUNTED]
    sums.append(_sums(rows["duration"], whole))
    figures = rows[list(_TOLD)][first].with_columns(
        *sums, **{name: pl.Series(those) for name, those in by_model.items()}
    )
    at = np.full(rows.height, -1)
    at[first] = np.arange(first.size)
    # Slice by slice: what is worked out between takes as much as all else there is of the rows.
    parts = [part.select(_figures(timed=timed)) for part in figures.iter_slices(_SLICE)]
    del figures, sums
    told, places = pl.concat(parts or [pl.DataFrame(schema=PIECE_SCHEMA)]), none_to_null(at)
    # Nulls that are made, unlike those that are gathered, take no memory.
    found = rows[list(_PLACE)].hstack(
        [at_rows(column, places) if any_known(column) else column.clear(rows.height) for column in told]
    )
    return found if timed else found.with_columns(pl.lit(None, pl.Int64).alias("duration"))


def _by_model(rows: pl.DataFrame, model: str, counter: str) -> BoolArray:
    """Of which rows the model tells: where it tells something, and counters did not measure all kernels of the operator."""
    told = are_known(rows[model])
    if any_known(rows[counter]):
        kernel = ~pl.col("kind").is_in(_MOVES)
        measured = kernel.any() & (pl.col(counter).is_not_null() | ~kernel).all()
        told &= ~rows.select(measured.over("owner")).to_series().to_numpy()
    return told


_MOVES: Final = ("memcpy", "memset")


def _moves(rows: pl.DataFrame) -> pl.Series:
    """Which rows are copies and fills by the device's own means, which counters do not measure."""
    return rows["kind"].is_in(_MOVES)


_SLICE: Final = 1 << 16
_TOLD: Final = (
    *(
        "kind",
        "category",
        "inside",
        "bytes",
        "owner",
        "matrix",
        "tf32",
        "precision",
        "model_flops",
        "model_bytes",
    ),
    *("flops_source", "dram_source", "flops_precision", "flops_unit"),
)
"""The columns from which `_figures` makes those of PIECE_SCHEMA, beside the sums of a piece."""
_COUNTED: Final = ("flops", "dram_bytes", "l2_bytes", "l1_bytes")


def _sums(values: pl.Series, pieces: Groups, optional: BoolArray | None = None) -> pl.Series:
    """The sum of each piece; null if one of its values is, but for those of `optional` rows beside others."""
    if not any_known(values):
        return values.head(pieces.size)
    sums = pl.Series(values.name, pieces.sums(or_none(values, 0)))
    if not values.null_count():
        return sums
    null = values.is_null().to_numpy()
    lacking = null if optional is None else null & ~optional
    lacks = (pieces.sums(lacking) > 0) | (pieces.sums(null) == pieces.counts)
    return sums.set(pl.Series(lacks), None)


@cache
def _figures(*, timed: bool) -> list[pl.Expr]:
    """The columns of PIECE_SCHEMA, one row for each piece."""
    fill, copy = pl.col("kind") == "memset", pl.col("kind") == "memcpy"
    link = (copy & ~pl.col("inside")) | (pl.col("category") == "communication")
    by_model, moved_by_model = pl.col("flops_by_model"), pl.col("bytes_by_model")
    of_model = pl.col("owner").is_not_null() & (by_model | moved_by_model)
    recorded = (fill | copy) & pl.col("bytes").is_not_null() & ~of_model
    counted, traffic = pl.col("flops").is_not_null(), pl.col("dram_bytes").is_not_null()
    is_tf32 = pl.col("tf32") & (pl.col("precision") == "fp32")
    by_counter = counted & ~by_model & pl.col("flops_precision").is_not_null()
    columns = {
        "flops": pl.when(recorded).then(0).when(by_model).then("model_flops").otherwise("flops"),
        "source": pl.when(recorded)
        .then(_word(RECORDED))
        .when(by_model)
        .then(_word(ANALYTIC))
        .when(counted)
        .then(_encoded("flops_source")),
        "bytes": pl.when(recorded)
        .then(pl.col("bytes") * pl.when("inside").then(2).otherwise(1))
        .when(moved_by_model)
        .then("model_bytes")
        .otherwise("dram_bytes"),
        "bytes_source": pl.when(recorded)
        .then(_word(RECORDED))
        .when(moved_by_model)
        .then(_word(ANALYTIC))
        .when(traffic)
        .then(_encoded("dram_source")),
        "l2_bytes": pl.col("l2_bytes"),
        "l1_bytes": pl.col("l1_bytes"),
        "precision": pl.when(by_counter)
        .then(_encoded("flops_precision"))
        .when(is_tf32)
        .then(_word("tf32"))
        .when(~pl.col("matrix") & pl.col("precision").is_in(WIDENED))
        .then(_word("fp32"))
        .otherwise("precision"),
        "unit": pl.when(link)
        .then(_word("link"))
        .when(by_counter)
        .then(_encoded("flops_unit"))
        .when("matrix")
        .then(_word("matrix"))
        .when(pl.col("owner").is_not_null())
        .then(_word("vector")),
        "piece_ns": pl.col("duration") if timed else pl.lit(None),
    }
    return [columns[name].cast(kind).alias(name) for name, kind in PIECE_SCHEMA.items()]


def _word(text: str) -> pl.Expr:
    return pl.lit(text).cast(pl.Categorical)


def _encoded(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.Categorical)
