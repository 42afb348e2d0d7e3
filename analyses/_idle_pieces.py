"""The idle time of devices in pieces of one cause each."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.idle import idle
from tracekit.analyses.scope import Scope

__all__ = ["idle_pieces"]


def idle_pieces(scope: Scope) -> pl.DataFrame:
    """`device_id`, `start`, `duration_ns`, `cause`, `span_id` (what the host did), `ended_by` (activity), `layer_id`."""
    if scope.on_cpu:
        return pl.DataFrame(
            schema={
                "device_id": pl.Int64,
                "start": pl.Int64,
                "duration_ns": pl.Int64,
                "cause": pl.String,
                "span_id": pl.Int64,
                "ended_by": pl.Int64,
                "layer_id": pl.Int64,
            }
        )
    gaps = idle(scope.trace, scope=scope, top=10**9).device_gaps
    return gaps.select(
        "device_id",
        "start",
        "duration_ns",
        pl.col("category").cast(pl.String).str.replace("_", " ").alias("cause"),
        pl.lit(None, dtype=pl.Int64).alias("span_id"),
        pl.col("activity_id").alias("ended_by"),
        pl.lit(None, dtype=pl.Int64).alias("layer_id"),
    )
