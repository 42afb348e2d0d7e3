"""Host API calls one by one, for rules that must look behind the totals by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import texts
from tracekit.facts.units import NS_PER_MS
from tracekit.spans import nesting_of

if TYPE_CHECKING:
    from tracekit.analyses.launches import Launches
    from tracekit.analyses.scope import Scope

__all__ = ["CONTEXT_CREATION_NS", "LONG_CALL_NS", "calls_with_roles", "outermost_operators"]

LONG_CALL_NS: Final = NS_PER_MS
"""A launch takes 5 to 10 µs and a query less; a hundred times that is work done once."""
CONTEXT_CREATION_NS: Final = 100 * NS_PER_MS
"""No allocation takes this long; a `cudaFree(0)` that creates the device's context does."""


def calls_with_roles(scope: Scope, result: Launches) -> pl.DataFrame:
    """One row per API call of the scope: `span_id`, `name`, `role`, `start`, `duration`, `end` in ns."""
    rows = scope.host("runtime", columns=["span_id", "name", "start", "duration"])
    return rows.select(
        "span_id",
        texts(rows["name"]).alias("name"),
        "start",
        "duration",
        (pl.col("start") + pl.col("duration")).alias("end"),
    ).join(result.calls.select("name", "role"), on="name", how="left", maintain_order="left")


def outermost_operators(scope: Scope, span_ids: pl.Series) -> pl.Series:
    """For each span the operator that encloses it, the outermost of an unbroken chain; null outside operators.

    `aten::_local_scalar_dense` inside `aten::item` inside `aten::is_nonzero` gives `aten::is_nonzero`.
    """
    host = scope.trace.host
    is_op = (host["kind"] == "op").to_numpy()
    nesting = nesting_of(host)
    found = (
        nesting.nearest_ancestor(is_op)[span_ids.to_numpy()]
        if span_ids.len()
        else np.empty(0, dtype=np.int64)
    )
    while found.size:
        above = np.where(found >= 0, nesting.parent[np.maximum(found, 0)], -1)
        climb = (above >= 0) & is_op[np.maximum(above, 0)]
        if not climb.any():
            break
        found = np.where(climb, above, found)
    names = (
        host["name"].cast(pl.String).gather(np.maximum(found, 0))
        if host.height
        else pl.Series([], dtype=pl.String)
    )
    return (
        pl.DataFrame({"n": names, "known": found >= 0})
        .select(pl.when("known").then("n").alias("operator"))
        .to_series()
    )
