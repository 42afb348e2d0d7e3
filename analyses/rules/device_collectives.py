"""The collectives of a device, as the rules about communication need them: what each sends, equal ones that take different times."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.calls import RECORD, by_kernel
from tracekit.analyses.scope import Scope
from tracekit.facts.collectives import ELEMENT_BYTES
from tracekit.groups import kept, with_series
from tracekit.intervals import IntervalSet

__all__ = ["collectives_of", "exposed_time", "waits_of", "worst_device"]


def collectives_of(scope: Scope, device: int) -> pl.DataFrame:
    """The communication of a device by start, with what was recorded of it.

    Beside the columns of the scope's activities: `sent`, the bytes that this rank puts in, and `what`, the recorded kind, group,
    elements and type of the collective as a text; null where the profile did not record them.
    """
    rows = scope.activities
    rows = kept(rows, (rows["class"] == "communication") & (rows["device_id"] == device))
    recorded = scope.trace.collectives
    if not rows.height or recorded is None or not recorded.height:
        nothing = [None] * rows.height
        rows = with_series(rows, pl.Series("sent", nothing, pl.Int64), pl.Series("what", nothing, pl.String))
        return rows.sort("start", "activity_id") if rows.height else rows
    size = pl.col("dtype").cast(pl.String).replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    text = [
        pl.col(name).cast(pl.String) for name in ("name", "group", "elements_in", "elements_out", "dtype")
    ]
    known = pl.col("elements_in").is_not_null()
    records = (
        recorded.with_columns(RECORD.alias("said_by"))
        .drop_nulls("said_by")
        .unique("said_by", keep="none")
        .select(
            "said_by",
            (pl.col("elements_in") * size).alias("sent"),
            pl.when(known).then(pl.concat_str(text, separator=" ", ignore_nulls=True)).alias("what"),
        )
    )
    by_operator = pl.col("op_id").is_in(recorded["span_id"].drop_nulls().implode())
    said_by = pl.when(by_operator).then("op_id").otherwise(by_kernel(pl.col("activity_id")))
    # An operator that starts several collectives says nothing about a single one.
    alone = pl.len().over("said_by") == 1
    return (
        rows.with_columns(said_by.alias("said_by"))
        .join(records, on="said_by", how="left", maintain_order="left")
        .with_columns(pl.when(alone).then(name).alias(name) for name in ("sent", "what"))
        .drop("said_by")
        .sort("start", "activity_id")
    )


def waits_of(scope: Scope, device: int, *, unequal: float, least: int) -> pl.DataFrame | None:
    """Equal collectives of a device, `least` or more, of which the longest takes `unequal` times as long as the shortest; None if there are none.

    `key` (equal ones have the same), `recorded` (their sizes are), `name`, `kind` (as recorded, or null), `start`, `duration`, and `exposed_wait`: what each takes more than the shortest
    of its equals, at most the time in which no computation runs beside it, in ns.
    """
    return scope.once(("collective_waits", device), lambda: _unequal(scope, device, unequal, least))


def _unequal(scope: Scope, device: int, ratio: float, least: int) -> pl.DataFrame | None:
    rows = collectives_of(scope, device)
    if not rows.height:
        return None
    if not rows["what"].null_count():
        rows = rows.with_columns(
            pl.lit(value=True).alias("recorded"),
            pl.concat_str(pl.col("name").cast(pl.String), "what").alias("key"),
        )
    else:
        keys = _places(scope, rows, least)
        if keys is None:
            return None
        rows = rows.with_columns(pl.lit(value=False).alias("recorded"), keys.alias("key"))
    shortest, longest = (getattr(pl.col("duration"), which)().over("key") for which in ("min", "max"))
    unequal = (pl.len().over("key") >= least) & (longest >= ratio * shortest) & (shortest > 0)
    rows = rows.filter(unequal)
    if not rows.height:
        return None
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    hidden = scope.intervals(device, "compute").coverage(start, end)
    longer = pl.col("duration") - pl.col("duration").min().over("key")
    wait = pl.min_horizontal(longer, pl.col("duration") - pl.Series(hidden))
    kind = pl.col("what").str.split(" ").list.first().alias("kind")
    return rows.select("key", "recorded", "name", kind, "start", "duration", wait.alias("exposed_wait"))


def _places(scope: Scope, rows: pl.DataFrame, least: int) -> pl.Series | None:
    """The name of each collective with its number among those of its step; None unless all steps have the same names."""
    if scope.window != "steps" or scope.steps.height < least or not rows.height:
        return None
    name = pl.col("name").cast(pl.String)
    number = pl.int_range(pl.len()).over("step", "name")
    keys = rows.with_columns(pl.format("{} {}", name, number).alias("key"))
    same = keys.group_by("key").len()["len"] == scope.steps.height
    return keys["key"] if same.all() else None


def exposed_time(scope: Scope, device: int, rows: pl.DataFrame) -> IntervalSet:
    """The time in which these activities of a device run, and none of its computation."""
    region = IntervalSet.of(rows["start"].to_numpy(), rows["end"].to_numpy()).clip(scope.start, scope.end)
    return region - scope.intervals(device, "compute")


def worst_device(result: Breakdown) -> tuple[int, int, int, int] | None:
    """The device with the most exposed communication: its number, that time, all its communication, the window; in ns."""
    if not result.devices.height:
        return None
    row = min(
        result.devices.iter_rows(named=True),
        key=lambda one: (-one["exposed_communication_ns"], one["device_id"]),
    )
    return row["device_id"], row["exposed_communication_ns"], row["communication_ns"], row["window_ns"]
