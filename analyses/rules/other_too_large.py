"""Too much device time in kernels of no known category (DEFINITIONS §2: more than 5 % is a finding)."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_ns, format_share

__all__ = ["RULE"]

MOST_OTHER: Final = 0.05
"""Above this the table by category no longer says where the time goes."""


def evidence(scope: Scope, result: Kernels) -> Evidence | None:
    """Fires when the category `other` holds more than `MOST_OTHER` of the summed time; graphs recorded as a whole, of which
    `whole_graphs` tells, left out.
    """
    graphs = scope.activities.filter(pl.col("kind") == "graph")["name"].unique()
    rows = result.by_name.filter(
        (pl.col("category") == "other") & ~pl.col("name").is_in(graphs.cast(pl.String).implode())
    )
    total = int(rows["total_ns"].sum())
    if not result.total_ns or total / result.total_ns <= MOST_OTHER:
        return None
    what = "operators' self time" if scope.on_cpu else "device time"
    top = "; ".join(
        f"{_plain(name)} {format_ns(time)}" for name, time in rows.select("name", "total_ns").head(3).rows()
    )
    return Evidence(
        title=f"{format_share(total / result.total_ns)} of the {what} is in no known category",
        text=f"{format_ns(total)} of {format_ns(result.total_ns)} in {rows.height} names; the largest: {top}.",
    )


def _plain(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:79]}…"


RULE = Rule(
    id="other_too_large",
    analysis="kernels",
    evidence=evidence,
    advice=Advice(
        "Look these up in the kernel table; wrap your own kernels in torch.library.custom_op or "
        "torch.profiler.record_function with a telling name so that they are counted where they belong.",
        plain=(
            "Look these up in the kernel table; a range (NVTX) with a telling name around their launch groups"
            " them."
        ),
    ),
)
