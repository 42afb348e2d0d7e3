"""The cause of idle time in the sentences of the verdict, from the tables of the analysis `idle`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.analyses.idle.host_code import HOST_CODE, sampled_most
from tracekit.analyses.result import Result
from tracekit.facts.idle_names import PYTHON_FILE
from tracekit.facts.units import NS_PER_US, format_share
from tracekit.names import short_frame, shorten_name

__all__ = ["MOSTLY", "HostCode", "host_code", "in_long_gaps", "main_cause", "where"]

MOSTLY: Final = 0.5
"""The headline names a line, layer or operator if half of the cause's time lies there."""

LONG_GAP_NS: Final = 500 * NS_PER_US
"""A launch with its operator costs the host some 10 µs. If gaps are longer than this on average, they have another cause."""

PART: Final = 0.15
"""If no place has half of a cause's time, the largest operator is named from this share on."""

LONGEST: Final = 72
"""Characters of a name in the headline."""

_PARTS_OF_STEP: Final = {
    "<forward>": "the forward pass",
    "<DistributedDataParallel>": "the forward pass of DistributedDataParallel",
    "<loss>": "the loss",
    "<backward>": "the backward pass",
    "<optimizer>": "the optimizer",
}
"""What stands for work in no layer."""

_SAMPLED: Final = " according to samples"

_PHRASES: Final = {
    "synchronisation": "in calls that wait for the device",
    "data_loading": "for data",
    "allocation": "for memory allocation",
    "launch_api": "in launch calls",
    "compilation": "for compilation",
    "module_loading": "for the loading of code to the device",
    "operator_dispatch": "for operator dispatch",
    "library_call": "in library calls",
    "python": "for Python code",
    "host_code": "for host code",
    "profiler_overhead": "for the profiler",
    "collective_bookkeeping": "for the start of collectives",
    "launch_latency": "between a launch and its start on the device",
}
"""The host's activity while the device waited for it."""


def main_cause(results: Mapping[str, Result], device_id: int, basis: int) -> str:
    """`, including 31.0 % for Python code in train.py(42): step`; empty if no cause on the host is known.

    The share is that of the basis (ns).
    """
    causes = _host_causes(results, device_id)
    if not causes or not basis:
        return ""
    cause, ns, _ = causes[0]
    if cause == "data_loading":  # the name of the loss already says so
        return where(results, cause, device_id)
    place = where(results, cause, device_id)
    unseen = " that was not recorded" if cause in HOST_CODE and not place else ""
    return f", including {format_share(ns / basis)} {_PHRASES[cause]}{unseen}{place}"


@dataclass(frozen=True, slots=True)
class HostCode:
    """The host's main cause of idle time, if it is code: its time in ns, and ` in FRAME`, or empty if nothing shows where."""

    ns: int
    place: str
    sampled: bool
    """Only samples show the place, not what was called."""


def host_code(results: Mapping[str, Result], device_id: int) -> HostCode | None:
    """The code of the host for which the device waits most; None if its main cause is another."""
    causes = _host_causes(results, device_id)
    if not causes or causes[0][0] not in HOST_CODE:
        return None
    place = where(results, causes[0][0], device_id)
    return HostCode(causes[0][1], place, place.endswith(_SAMPLED))


def in_long_gaps(results: Mapping[str, Result], device_id: int) -> bool:
    """Whether the host's main cause of idle time lies in gaps that are long on average: no launch takes as long."""
    causes = _host_causes(results, device_id)
    return bool(causes) and causes[0][1] > LONG_GAP_NS * causes[0][2] > 0


def _host_causes(results: Mapping[str, Result], device_id: int) -> list[tuple[str, int, int]]:
    """The causes on the host, largest first, each with its time in ns and its number of gaps."""
    mine = (pl.col("device_id") == device_id) & pl.col("cause").is_in(list(_PHRASES))
    causes = results["idle"].tables()["by_cause"].filter(mine).select("cause", "total_ns", "gaps")
    return causes.sort("total_ns", descending=True, maintain_order=True).rows()


def where(results: Mapping[str, Result], cause: str, device_id: int) -> str:
    """` in train.py(42): step (aten::item)`: where most of a cause's time lies; empty if that is unknown.

    The place is the innermost call of Python code, and the line of the user's code that led to it; else the range, else
    the layer. The operator or API call follows in parentheses, and if no line is known, so does the function that most
    samples show.
    """
    frame, range_, layer, operator = (
        _most(results, by, cause) for by in ("frame", "range", "layer", "operator")
    )
    call = _call(results, cause, device_id)
    api = call if call is not None and not re.match(PYTHON_FILE, call) else None
    frame = _called(None if api else call, frame)
    in_layer = f"layer {layer}" if layer and not layer.startswith("<") else _PARTS_OF_STEP.get(layer or "")
    # If the range is a layer, the path of the layer names it.
    in_range = f"range {range_}" if range_ and not (layer and layer.rsplit("/", 1)[-1] == range_) else None
    place = frame or in_range or in_layer
    sampled = _sampled(results) if cause in HOST_CODE and not frame else None
    inner = ", ".join(part for part in (operator or api, sampled) if part)
    if place and inner:
        return f" in {place} ({inner})"
    return f" in {place or inner}" if place or inner else _part(results, cause)


def _part(results: Mapping[str, Result], cause: str) -> str:
    """`, 21.0 % of that in aten::empty`: the operator with the most of a cause's time; empty if it has little."""
    table = results["idle"].tables().get("by_operator")
    rows = None if table is None else table.filter((pl.col("cause") == cause) & (pl.col("total_ns") > 0))
    if rows is None or not rows.height:
        return ""
    top = rows.sort("total_ns", descending=True, maintain_order=True)
    share = top["total_ns"][0] / rows["total_ns"].sum()
    if share < PART or top["operator"][0] is None:
        return ""
    return f", {format_share(share)} of that in {shorten_name(top['operator'][0], LONGEST)}"


def _call(results: Mapping[str, Result], cause: str, device_id: int) -> str | None:
    rows = results["idle"].tables()["by_cause"]
    calls = rows.filter((pl.col("device_id") == device_id) & (pl.col("cause") == cause))["call"]
    return calls[0] if calls.len() else None


def _called(call: str | None, frame: str | None) -> str | None:
    """A call, and the line of the user's code that led to it; None without both."""
    if call is None or frame is None or call == frame:
        one = call or frame
        return None if one is None else short_frame(one)
    return f"{short_frame(call)}, called from {short_frame(frame)}"


def _sampled(results: Mapping[str, Result]) -> str | None:
    """The function of at least half of the samples that were taken outside recorded calls; None if there is none."""
    sampled = sampled_most(results["idle"].tables().get("by_function"))
    if sampled is None or sampled[1] < MOSTLY:
        return None
    return f"{shorten_name(sampled[0], LONGEST)}{_SAMPLED}"


def _most(results: Mapping[str, Result], by: str, cause: str) -> str | None:
    table = results["idle"].tables().get(f"by_{by}")
    if table is None:
        return None
    rows = table.filter(pl.col("cause") == cause).sort("total_ns", descending=True, maintain_order=True)
    total = int(rows["total_ns"].sum())
    if not total or int(rows["total_ns"][0]) < MOSTLY * total or rows[by][0] is None:
        return None
    return rows[by][0] if by == "frame" else shorten_name(rows[by][0], LONGEST)
