"""Operators by the shapes of their inputs, with the time of one call before and after changes, as schedulers read it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit.analyses.roofline.rated import rated_pieces
from tracekit.analyses.what_if.draft import Draft

__all__ = ["operators"]


def operators(drafts: Sequence[Draft]) -> pl.DataFrame | None:
    """The operators by shapes, with the time of a call before and after (`WhatIf.operators`); None where none were recorded."""
    calls = [found for draft in drafts if (found := _calls(draft)) is not None]
    if not calls:
        return None
    number = pl.struct("rank", "op_id").n_unique()
    return (
        pl.concat(calls)
        .group_by("operator", "shapes", "dtypes")
        .agg(
            number.cast(pl.Int64).alias("calls"),
            *(
                pl.when(pl.col(name).is_not_null().any())
                .then((pl.col(name).sum() / number).round())
                .cast(pl.Int64)
                .alias(name)
                for name in ("bytes", "flops")
            ),
            (pl.col("duration").sum() / number).round().cast(pl.Int64).alias("call_ns"),
            (pl.col("after").sum() / number).round().cast(pl.Int64).alias("call_after_ns"),
        )
        .sort(
            pl.col("calls") * pl.col("call_ns"),
            "operator",
            "shapes",
            "dtypes",
            descending=[True, False, False, False],
            nulls_last=True,
        )
    )


def _calls(draft: Draft) -> pl.DataFrame | None:
    """The calls of operators of a rank with the time `after` the changes; None where none were recorded."""
    made, scope = draft.made, draft.made.scope
    inputs = scope.trace.host[["shapes", "dtypes"]]
    rows = rated_pieces(scope)[["operator", "op_id", "call", "duration", "bytes", "flops"]]
    rows = rows.filter(pl.col("op_id").is_not_null())
    if not rows.height:
        return None
    if scope.on_cpu:
        after = pl.DataFrame({"call": draft.host.op, "ns": (draft.host.end - draft.host.start) * draft.left})
        after = after.group_by("call").agg(pl.col("ns").sum().alias("after"))
    else:
        at = np.flatnonzero(made.activity >= 0)
        ids = made.lines.rows["activity_id"].gather(made.activity[at])
        after = pl.DataFrame({"call": ids, "after": draft.duration[at]})
    calls = rows.with_columns(
        pl.lit(draft.rank, pl.Int64).alias("rank"),
        pl.col("operator").cast(pl.String),
        *(inputs[name].gather(rows["op_id"]).cast(pl.String) for name in inputs.columns),
    ).join(after, on="call", how="left")
    if scope.on_cpu:  # an operator has several rows, its time after the changes stands for all
        calls = calls.with_columns(pl.col("after") / pl.len().over("call"))
    return calls
