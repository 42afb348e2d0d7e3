"""The cause of idle time in the sentences of the verdict, from the tables of the analysis `idle`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
import polars as pl

from tracekit.analyses.idle.host_code import HOST_CODE, formats_text, sampled_most
from tracekit.analyses.parts import DeviceParts
from tracekit.analyses.result import Result
from tracekit.analyses.rules.idle_time import Blocked, caused_idle
from tracekit.analyses.scope import Scope
from tracekit.facts.idle_names import PYTHON_FILE, QUEUED
from tracekit.facts.stack_names import PARTS_OF_STEP
from tracekit.facts.units import NS_PER_US, format_ns, format_share
from tracekit.names import called_from, short_frame, shorten_name

__all__ = [
    "IDLE_PHRASES",
    "MOSTLY",
    "HostCode",
    "host_code",
    "in_long_gaps",
    "largest_queued",
    "main_cause",
    "where",
]

MOSTLY: Final = 0.5
"""The headline names a line, layer or operator if half of the cause's time lies there."""

LONG_GAP_NS: Final = 500 * NS_PER_US
"""A launch with its operator costs the host some 10 µs. If most of the time lies in gaps longer than this, they have another cause."""

PART: Final = 0.15
"""If no place has half of a cause's time, those from this share on are named."""

ENCLOSING: Final = 0.95
"""A frame or range that is open for longer than this part of the window is no place in it."""

LONGEST: Final = 72
"""Characters of a name in the headline."""

_SAMPLED: Final = " according to samples"
_POOLED: Final = r"#(?![A-Za-z])"
"""Ranges that differ in numbers only are one range, with # for the numbers. (Names as `Optimizer.step#AdamW.step` have a # of their own.)"""

IDLE_PHRASES: Final = {
    "synchronisation": "in calls that wait for the device",
    "data_loading": "for data",
    "allocation": "for memory allocation",
    "launch_api": "in launch calls",
    "compilation": "for compilation",
    "module_loading": "for loading code onto the device",
    "operator_dispatch": "for operator dispatch",
    "library_call": "in library calls",
    "python": "for Python code",
    "host_code": "for host code",
    "profiler_overhead": "for the profiler",
    "collective_bookkeeping": "for the start of collectives",
    "launch_latency": "between a launch and its start on the device",
}
"""The host's activity while the device waited for it."""

BLOCKED_PHRASES: Final[dict[Blocked, str]] = {
    "waits": "in which the host waits for something else",
    "sleeps": "in which the host sleeps",
}
"""The same of code that runs nothing."""


def main_cause(
    results: Mapping[str, Result], parts: DeviceParts, *, frames: bool, computing_ns: int, blocked: Blocked
) -> str:
    """`, including 31.0 % for Python code, mostly in train.py(42): step`; empty if no cause on the host is known.

    The share is that of the basis, less the cause's part of what the recording adds. `frames`: the trace has frames of Python code.
    `computing_ns`: the part of operator dispatch in which operators compute on the processor.
    `blocked`: what the host does in its code, if it runs nothing.
    """
    # Waiting for the loader is a loss of its own.
    causes = [row for row in _host_causes(results, parts.device_id) if row[0] != "data_loading"]
    if not causes or not parts.basis:
        return ""
    cause, ns = causes[0]
    place = where(results, cause, parts.device_id)
    unseen = cause in HOST_CODE and not place and not frames
    computing = cause == "operator_dispatch" and computing_ns >= MOSTLY * ns
    phrase = "for operators that compute on the processor" if computing else IDLE_PHRASES[cause]
    phrase = BLOCKED_PHRASES[blocked] if blocked and cause in HOST_CODE else phrase
    code = "Python or other code" if cause == "python" else "host code"
    what = f"in {code} that is not recorded" if unseen else f"{phrase}{place}"
    return f", including {format_share(parts.program_ns(ns) / parts.basis)} {what}"


class HostCode(msgspec.Struct, frozen=True):
    """The host's main cause of idle time, if it is code: its name, its time in ns, and ` in FRAME`, or empty if no place has most of it."""

    words: str
    ns: int
    place: str
    formats: bool
    """Samples show that it mostly formats text."""
    cause: str
    """The cause's name in the tables."""
    blocked: Blocked
    """What the host does instead, if it runs nothing."""


def host_code(results: Mapping[str, Result], parts: DeviceParts, blocked: Blocked) -> HostCode | None:
    """The code of the host for which the device waits most, less its part of what the recording adds; None if its main cause is another."""
    causes = _host_causes(results, parts.device_id)
    if not causes or causes[0][0] not in HOST_CODE:
        return None
    cause, ns = causes[0]
    functions = results["idle"].tables().get("by_function")
    place, formats = where(results, cause, parts.device_id), formats_text(functions) is not None
    return HostCode(IDLE_PHRASES[cause], parts.program_ns(ns), place, formats, cause, blocked)


def in_long_gaps(scope: Scope, results: Mapping[str, Result], device_id: int) -> bool:
    """Whether most of the host's main cause of idle time lies in gaps of which it takes long: no launch takes as long."""
    causes = _host_causes(results, device_id)
    if not causes:
        return False
    mine = pl.col("device_id") == device_id
    return caused_idle(scope, causes[0][0], wanted=mine, below=LONG_GAP_NS).ns < MOSTLY * causes[0][1]


def largest_queued(results: Mapping[str, Result], device_id: int) -> str:
    """The cause of most of a device's idle time with queued work."""
    rows = results["idle"].tables()["by_cause"]["device_id", "cause", "total_ns"].rows()
    sums = {cause: ns for device, cause, ns in rows if device == device_id}
    return max(QUEUED, key=lambda cause: sums.get(cause, 0))


def _host_causes(results: Mapping[str, Result], device_id: int) -> list[tuple[str, int]]:
    """The causes on the host, largest first, each with its time in ns."""
    rows = results["idle"].tables()["by_cause"]["device_id", "cause", "total_ns"].rows()
    causes = [row[1:] for row in rows if row[0] == device_id and row[1] in IDLE_PHRASES]
    return sorted(causes, key=lambda row: row[1], reverse=True)


def where(results: Mapping[str, Result], cause: str, device_id: int, *, explain: bool = True) -> str:
    """`, mostly in train.py(42): step (aten::item)`: where most of a cause's time lies; empty if that is unknown.

    The place is the innermost call of Python code, and the line of the user's code that led to it; else the few calls that
    have most of the time together; else the range, else the layer. What encloses nearly the whole window is no place. The
    operator or API call follows in parentheses, and if no line is known, so does what most samples show. `explain`: so does what # means.
    """
    call = _call(results, cause, device_id)
    several = _several_calls(results, cause, device_id) if call is None else ""
    frame, range_, layer, operator = (
        _most(results, by, cause) for by in ("frame", "range", "layer", "operator")
    )
    api = call if call is not None and not re.match(PYTHON_FILE, call) else None
    if range_ and _encloses(results, "range", range_):
        layer = None if layer and layer.rsplit("/", 1)[-1] == range_ else layer
        range_ = None
    if frame and (api or call is None) and _encloses(results, "frame", frame):
        frame = None
    if frame and cause == "operator_dispatch" and frame.endswith(": <module>"):
        frame = None  # the loop of the script; the operators say more
    frame = None if several else called_from(None if api else call, frame)
    # If the range is a layer, the path of the layer names it.
    in_range, number = None, ""
    if range_ and not (layer and layer.rsplit("/", 1)[-1] == range_):
        number = "# stands for a number" if re.search(_POOLED, range_) else ""
        in_range = f'{"ranges" if number else "range"} "{_short(range_)}"'
    in_layer = _in_layer(layer) if layer else None
    place = several or frame or in_range or in_layer
    sampled = _sampled(results) if cause in HOST_CODE and not (several or frame) else None
    number = number if explain and place == in_range else ""
    inner = ", ".join(part for part in (_short(operator or api), sampled) if part)
    inner = "; ".join(part for part in (number, inner) if part)
    if place and inner:
        return f", mostly in {place} ({inner})"
    return f", mostly in {place or inner}" if place or inner else _part(results, cause)


def _encloses(results: Mapping[str, Result], by: str, name: str) -> bool:
    """Whether a frame or range is open for nearly the whole window."""
    rows = results["idle"].tables()[f"by_{by}"].filter(pl.col(by) == name)
    return bool(rows.height and (rows["open_share"][0] or 0.0) >= ENCLOSING)


def _several_calls(results: Mapping[str, Result], cause: str, device_id: int) -> str:
    """`A (10.1 ms) and B (9.04 ms)`: the few calls that have most of a cause's time together; empty if there are none."""
    rows = results["idle"].tables().get("by_call")
    if rows is None:
        return ""
    mine = rows.filter((pl.col("device_id") == device_id) & (pl.col("cause") == cause))
    return _listed([(_name_of_call(call), ns) for call, ns in mine["call", "total_ns"].rows()])


def _name_of_call(call: str) -> str:
    return short_frame(call) if re.match(PYTHON_FILE, call) else shorten_name(call, LONGEST)


def _listed(parts: list[tuple[str, int]]) -> str:
    """`A (10.1 ms), B (9.04 ms) and C (7.02 ms)`; empty for no parts."""
    texts = [f"{name} ({format_ns(ns)})" for name, ns in parts]
    return " and ".join(part for part in (", ".join(texts[:-1]), *texts[-1:]) if part)


def _part(results: Mapping[str, Result], cause: str) -> str:
    """` in the optimizer (40.0 ms) and layer X (30.0 ms)`: the few parts of a step or layers that have most of a cause's time together,
    else ` (21.0 ms of that in aten::empty)`: the operator with the most of it; empty if it has little.
    """
    parts = _parts_of_step(results, cause)
    if parts:
        return f", mostly in {_listed(parts)}"
    table = results["idle"].tables().get("by_operator")
    rows = None if table is None else table.filter((pl.col("cause") == cause) & (pl.col("total_ns") > 0))
    if rows is None or not rows.height:
        return ""
    top = rows.sort("total_ns", descending=True, maintain_order=True)
    share = top["total_ns"][0] / rows["total_ns"].sum()
    if share < PART or top["operator"][0] is None:
        return ""
    return f" ({format_ns(top['total_ns'][0])} of that in {shorten_name(top['operator'][0], LONGEST)})"


def _parts_of_step(results: Mapping[str, Result], cause: str) -> list[tuple[str, int]]:
    """The parts of a step and layers that have much of a cause's time each and most of it together, with their times in ns."""
    rows = results["idle"].tables()["by_layer"].filter(pl.col("cause") == cause)
    total = int(rows["total_ns"].sum())
    large = rows.filter((pl.col("total_ns") >= PART * total) & pl.col("layer").is_not_null())
    large = large.sort("total_ns", descending=True, maintain_order=True)
    parts = [
        (words, ns)
        for layer, ns in large["layer", "total_ns"].rows()
        if (words := _in_layer(layer)) is not None
    ]
    return parts if len(parts) > 1 and sum(ns for _, ns in parts) >= MOSTLY * total else []


def _call(results: Mapping[str, Result], cause: str, device_id: int) -> str | None:
    rows = results["idle"].tables()["by_cause"]["device_id", "cause", "call"].rows()
    return next((call for *of, call in rows if of == [device_id, cause]), None)


def _sampled(results: Mapping[str, Result]) -> str | None:
    """What at least half of the samples outside recorded calls show: a function, or else the formatting of text; None if nothing."""
    functions = results["idle"].tables().get("by_function")
    sampled = sampled_most(functions)
    if sampled is not None and sampled[1] >= MOSTLY:
        return f"{shorten_name(sampled[0], LONGEST)}{_SAMPLED}"
    formatting = formats_text(functions)
    return formatting and f"samples show {formatting} and other text formatting"


def _most(results: Mapping[str, Result], by: str, cause: str) -> str | None:
    table = results["idle"].tables().get(f"by_{by}")
    if table is None:
        return None
    found = [(ns, name) for each, ns, name in table["cause", "total_ns", by].rows() if each == cause]
    total = sum(ns for ns, _ in found)
    ns, name = max(found, key=lambda row: row[0], default=(0, None))
    return name if total and ns >= MOSTLY * total else None


def _short(name: str | None) -> str:
    return shorten_name(name, LONGEST) if name else ""


def _in_layer(layer: str) -> str | None:
    """The words for a layer or a part of a step; None for other rows of the tree."""
    return f"layer {_short(layer)}" if not layer.startswith("<") else PARTS_OF_STEP.get(layer)
