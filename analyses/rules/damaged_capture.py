"""The file is damaged or its clocks disagree, so the figures are only as good as what is left."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.rules.rule import Advice, Evidence, Rule
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count, format_share

__all__ = ["RULE"]

EARLY_SHARE: Final = 0.01
"""A few activities before their launch are rounding; from one in a hundred on the clocks are apart."""

_MATTERS: Final = (
    "absurd_duration",
    "missing_duration",
    "negative_duration",
    "event_without_time",
)
"""Defects of severity warning that change times."""


def evidence(scope: Scope, _result: Breakdown) -> Evidence | None:
    """Fires on every defect of severity error, and on those that shift or falsify times."""
    trace = scope.trace
    health = trace.health
    early = int(health.filter(pl.col("kind") == "activity_before_launch")["count"].sum())
    late_clocks = trace.device.height > 0 and early / trace.device.height >= EARLY_SHARE
    rows = health.filter(
        (pl.col("severity") == "error")
        | pl.col("kind").is_in(_MATTERS)
        | (pl.lit(late_clocks) & (pl.col("kind") == "activity_before_launch"))
    )
    if not rows.height:
        return None
    broken = (rows["severity"] == "error").any()
    listed = "; ".join(
        f"{format_count(count)} × {meaning}" for count, meaning in rows.select("count", "meaning").rows()
    )
    apart = f" ({format_share(early / trace.device.height)} of the activities)" if late_clocks else ""
    return Evidence(
        title=f"The trace has {rows.height} kind{'s' if rows.height != 1 else ''} of damage that can falsify times",
        text=f"{listed}{apart}.",
        severity="warning" if broken or late_clocks else "info",
    )


RULE = Rule(
    id="damaged_capture",
    analysis="breakdown",
    evidence=evidence,
    advice=Advice(
        "Record again with fewer active steps, let export_chrome_trace finish before the process ends, "
        "and keep the clocks of host and device in step (a current driver and profiler).",
    ),
)
