"""The updates of an optimizer, and what one pass over its data takes: a fused optimizer takes no less."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.scope import Scope
from tracekit.analyses.stalls import stalls
from tracekit.facts.kernel_rules import OPTIMIZER_UPDATE
from tracekit.groups import at_rows, kept
from tracekit.name_table import NameTable
from tracekit.spans import Int64Array

__all__ = [
    "UNFUSED",
    "in_place_calls",
    "one_pass",
    "optimizer_ranges",
    "ranges_named",
    "unfusable",
    "updates_groups",
    "usual_passes",
]

_IN_PLACE: Final = r"^aten::\w*[^_]_$"
_FUSED: Final = r"(?i)multi_tensor|_foreach_|_fused_|fused_?adam|fusedsgd|fused_?lamb|^triton_"

UNFUSED: Final = ~pl.col("name").cast(pl.String).str.contains(_FUSED)
"""Whether an activity updates one parameter."""


def one_pass(scope: Scope) -> int:
    """The arithmetic of one pass of the costliest in-place operator of the optimizer, in ns.

    That is what its calls take more than the shortest of them, which does little but start. Operators that make new tensors do not
    count, because much of their time goes to memory that a fused optimizer does not need.
    """
    if not _in_place(scope).height:
        return 0
    calls = _in_place(scope).join(stalls(scope), on="activity_id", how="anti").group_by("operator", "op_id")
    by_name = (
        calls.agg(pl.col("duration").sum())
        .group_by("operator")
        .agg(pl.len(), (pl.col("duration") - pl.col("duration").min()).sum().alias("ns"))
    )
    # An operator that runs several times for a parameter makes as many passes; most run once.
    usual = pl.col("len").quantile(0.5, interpolation="lower")
    once = by_name.select(pl.col("ns") * (usual / pl.col("len")).clip(upper_bound=1)).to_series()
    return round(float(once.max() or 0))  # type: ignore[arg-type]


def usual_passes(scope: Scope) -> tuple[int, int]:
    """What one pass of the costliest in-place operator of the optimizer takes usually, and what all of its in-place operators take
    together, their calls included, in ns: of each shape the median counts for all calls.
    """
    if not _in_place(scope).height:
        return 0, 0
    shapes = scope.trace.host.select(pl.col("span_id").alias("op_id"), "shapes")
    calls = _in_place(scope).group_by("operator", "op_id").agg(pl.col("duration").sum())
    took = (
        pl.when(pl.col("shapes").is_null())
        .then(pl.col("duration").mean())
        .otherwise(pl.col("duration").median())
    )
    alike = calls.join(shapes, on="op_id").with_columns(took.over("operator", "shapes").alias("usual"))
    by_name = alike.group_by("operator").agg(pl.len(), pl.col("usual").sum())
    most = pl.col("len").quantile(0.5, interpolation="lower")
    once = by_name.select(pl.col("usual") * (most / pl.col("len")).clip(upper_bound=1)).to_series()
    return round(float(once.max() or 0)), round(float(by_name["usual"].sum()))  # type: ignore[arg-type]


def in_place_calls(scope: Scope) -> int:
    """How often the optimizer updates a parameter: the calls of the in-place operator that has most of them usually."""
    counts = _in_place(scope).group_by("operator").agg(pl.col("op_id").n_unique())
    return round(float(counts["op_id"].median() or 0)) if counts.height else 0  # type: ignore[arg-type]


def updates_groups(scope: Scope) -> bool:
    """Whether most of the optimizer's kernels update many parameters at once (`foreach=True`)."""
    rows = attributed(scope)
    rows = kept(rows, rows["category"] == "optimizer")
    return bool(rows.height) and rows.filter(UNFUSED).height < rows.height / 2


def _in_place(scope: Scope) -> pl.DataFrame:
    """The optimizer's activities in operators that work in place, with the `operator`'s name."""
    return scope.once(_in_place, lambda: _find_in_place(scope))


def _find_in_place(scope: Scope) -> pl.DataFrame:
    rows = kept(attributed(scope), attributed(scope)["category"] == "optimizer")
    operator = at_rows(scope.trace.host["name"], rows["op_id"]).alias("operator")
    return kept(rows.with_columns(operator), NameTable(operator).matching(_IN_PLACE))


def optimizer_ranges(scope: Scope) -> pl.DataFrame:
    """The ranges in which an optimizer steps: `name`, `start`, `duration` in ns."""
    return scope.once(
        optimizer_ranges,
        lambda: scope.trace.host[["name", "start", "duration"]][ranges_named(scope, OPTIMIZER_UPDATE)],
    )


def ranges_named(scope: Scope, pattern: str) -> Int64Array:
    """The host spans of the scope's operators and ranges whose names match."""
    spans: Int64Array = scope.host("op", "annotation", columns=["span_id"])["span_id"].to_numpy()
    return spans[attribution(scope).model.stack.names.matching(pattern)[spans]]


def unfusable(scope: Scope) -> list[str]:
    """The optimizers of `torch.optim`, if none of them has a fused implementation; else empty."""
    names = optimizer_ranges(scope)["name"].cast(pl.String).str.extract(_CLASS).drop_nulls().unique().sort()
    return names.to_list() if names.is_in(_NOT_FUSABLE).all() else []


_CLASS: Final = r"^Optimizer\.step#(\w+)\.step$"
_NOT_FUSABLE: Final = ("ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
