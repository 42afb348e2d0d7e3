"""What the verdict says about the cause of idle time, from the tables of the analysis `idle`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from tracekit.analyses.idle.host_code import HOST_CODE, sampled_most
from tracekit.analyses.result import Result
from tracekit.facts.units import NS_PER_US, format_share
from tracekit.names import shorten_name

__all__ = ["MOSTLY", "in_long_gaps", "main_cause", "where"]

MOSTLY: Final = 0.5
"""A line, layer or operator is named when half of the cause's time lies there."""

LONG_GAP_NS: Final = 500 * NS_PER_US
"""A launch costs the host some 10 µs, with all that an operator does around it: where gaps are longer than this on average,
something else keeps it.
"""

LONGEST: Final = 72
"""Characters of a name in the headline."""

_PHRASES: Final = {
    "synchronisation": "in calls that wait for the device",
    "data_loading": "for data",
    "allocation": "for memory to be allocated",
    "launch_api": "in launch calls",
    "compilation": "for compilation",
    "operator_dispatch": "for operators to be dispatched",
    "library_call": "in calls of libraries",
    "python": "for Python",
    "host_code": "for host code outside recorded calls",
    "profiler_overhead": "for the profiler",
    "collective_bookkeeping": "for collectives to be started",
    "launch_latency": "between launch and start",
}
"""What the host did while it was late."""


def main_cause(results: Mapping[str, Result], device_id: int, basis: int) -> str:
    """`, 31.0 % for Python in train.py(42): step`; nothing where no cause of the host's is known. Of the basis, in ns."""
    causes = _host_causes(results, device_id)
    if not causes or not basis:
        return ""
    cause, ns, _ = causes[0]
    if cause == "data_loading":  # the loss itself is called that
        return where(results, cause)
    return f", {format_share(ns / basis)} {_PHRASES[cause]}{where(results, cause)}"


def in_long_gaps(results: Mapping[str, Result], device_id: int) -> bool:
    """Whether the host's main cause of idle time lies in gaps that are long on average: no launch takes as long."""
    causes = _host_causes(results, device_id)
    return bool(causes) and causes[0][1] > LONG_GAP_NS * causes[0][2] > 0


def _host_causes(results: Mapping[str, Result], device_id: int) -> list[tuple[str, int, int]]:
    """The causes of the host's, the largest first: each with its time in ns and its number of gaps."""
    mine = (pl.col("device_id") == device_id) & pl.col("cause").is_in(list(_PHRASES))
    causes = results["idle"].tables()["by_cause"].filter(mine).select("cause", "total_ns", "gaps")
    return causes.sort("total_ns", descending=True, maintain_order=True).rows()


def where(results: Mapping[str, Result], cause: str) -> str:
    """` in train.py(42): step (aten::item)`: the line of code or the range, else the layer, and the operator, of most of a
    cause; and the function that samples found, where no line is known.
    """
    frame, range_, layer, operator = (
        _most(results, by, cause) for by in ("frame", "range", "layer", "operator")
    )
    known = f"layer {layer}" if layer and not layer.startswith("<") else None
    # A range that is a layer is named by the layer's path.
    marked = f"range {range_}" if range_ and not (layer and layer.rsplit("/", 1)[-1] == range_) else None
    place = frame or marked or known
    sampled = _sampled(results) if cause in HOST_CODE and not frame else None
    inner = ", ".join(part for part in (operator, sampled) if part)
    if place and inner:
        return f" in {place} ({inner})"
    return f" in {place or inner}" if place or inner else ""


def _sampled(results: Mapping[str, Result]) -> str | None:
    """The function in which half of the samples found the host outside recorded calls."""
    sampled = sampled_most(results["idle"].tables().get("by_function"))
    if sampled is None or sampled[1] < MOSTLY:
        return None
    return f"{shorten_name(sampled[0], LONGEST)}, as samples show"


def _most(results: Mapping[str, Result], by: str, cause: str) -> str | None:
    table = results["idle"].tables().get(f"by_{by}")
    if table is None:
        return None
    rows = table.filter(pl.col("cause") == cause).sort("total_ns", descending=True, maintain_order=True)
    total = int(rows["total_ns"].sum())
    if not total or int(rows["total_ns"][0]) < MOSTLY * total or rows[by][0] is None:
        return None
    return shorten_name(rows[by][0], LONGEST)
