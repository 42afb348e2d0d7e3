"""CUDA graphs that were recorded as a whole: what runs in them is not in the trace."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_ns, format_share

__all__ = ["RULE"]

MOST_IN_GRAPHS: Final = 0.05
"""Above this the kernels that are in the trace no longer say where the time goes."""


def evidence(scope: Scope, result: Kernels) -> Evidence | None:
    """Fires when activities of the kind `graph` hold more than `MOST_IN_GRAPHS` of the summed time."""
    rows = scope.activities.filter(pl.col("kind") == "graph")
    total = int(rows["duration"].sum())
    if not result.total_ns or total / result.total_ns <= MOST_IN_GRAPHS:
        return None
    return Evidence(
        title=f"{format_share(total / result.total_ns)} of the device time is in CUDA graphs recorded as a whole",
        text=f"{format_ns(total)} of {format_ns(result.total_ns)} in replays of graphs, {rows.height} in all, whose kernels are not captured.",
        severity="warning",
    )


RULE = Rule(
    id="whole_graphs",
    analysis="kernels",
    evidence=evidence,
    advice=Advice(
        "Record their kernels: nsys profile --cuda-graph-trace=node.",
    ),
)
