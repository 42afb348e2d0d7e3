"""What each section draws, taken from its tables (see `tracekit.report.model.Figure` for the shapes).

Long series are thinned: each stretch of time keeps its greatest value, so that peaks stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import polars as pl

from tracekit.analyses.steps import PARTS
from tracekit.facts.stack_names import PHASES
from tracekit.groups import are_known, falling, groups
from tracekit.report.model import Figure
from tracekit.report.roofline_figure import roofline_figures

__all__ = ["MAX_BARS", "MAX_POINTS", "figures_of", "thin"]

MAX_POINTS: Final = 1500
"""Points of one series; more would be finer than the page."""

MAX_BARS: Final = 240
"""Steps drawn one by one."""

LEAST_BOX: Final = 0.0005
"""A layer with a smaller part of the time is not drawn: it would be thinner than a line."""

DEEPEST_BOX: Final = 24
"""Levels of layers that are drawn."""

BREAKDOWN_PARTS: Final = (
    ("compute_ns", "compute"),
    ("exposed_communication_ns", "exposed communication"),
    ("exposed_memory_ns", "exposed copies"),
    ("idle_ns", "idle"),
)

Frames = dict[str, pl.DataFrame]


def figures_of(section: str, tables: Frames, *, on_cpu: bool = False) -> tuple[Figure, ...]:
    """The figures of a section; none for a section that draws nothing or has no rows."""
    makers: dict[str, tuple[str, Callable[[pl.DataFrame], Iterator[Figure]]]] = {
        "breakdown": ("devices", _breakdown),
        "steps": ("table", _steps),
        "idle": ("streams", partial(_idle, on_cpu=on_cpu)),
        "layers": ("by_phase", lambda phases: _icicle(tables["tree"], phases)),
        "kernels": ("by_category", _categories),
        "roofline": ("operators", lambda _: roofline_figures(tables)),
        "launches": ("queue", _queue),
        "overlap": ("positions", _within_step),
        "memory": ("timeline", _memory),
    }
    if section not in makers:
        return ()
    name, maker = makers[section]
    frame = tables.get(name)
    return () if frame is None or not frame.height else tuple(maker(frame))


def _stack(frame: pl.DataFrame, labels: list[str], parts: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    rows = [
        {"label": label, "parts": [{"label": title, "value": row[key]} for key, title in parts]}
        for label, row in zip(labels, frame.iter_rows(named=True), strict=True)
    ]
    return {"unit": "ns", "rows": rows}


def _breakdown(frame: pl.DataFrame) -> Iterator[Figure]:
    labels = [_device(number) for number in frame["device_id"].to_list()]
    yield Figure("breakdown", "Where the time went", "stack", _stack(frame, labels, BREAKDOWN_PARTS))


def _steps(frame: pl.DataFrame) -> Iterator[Figure]:
    frame = frame.head(MAX_BARS)
    parts = tuple((f"{part}_ns", part.replace("_", " ")) for part in PARTS)
    labels = [str(name) for name in frame["name"].to_list()]
    yield Figure("steps", "What happens in each step", "stack", _stack(frame, labels, parts))


def _idle(frame: pl.DataFrame, *, on_cpu: bool) -> Iterator[Figure]:
    if not int(frame["idle_ns"].sum()):
        return
    parts = (
        ("busy_ns", "busy"),
        ("host_wait_ns", "between operators" if on_cpu else "host wait"),
        ("kernel_wait_ns", "kernel wait"),
        ("other_ns", "other wait"),
        ("unknown_ns", "unknown"),
    )
    frame = frame.sort("busy_ns", descending=True).head(12)
    labels = [
        f"thread {stream}" if device < 0 else f"device {device}, stream {stream}"
        for device, stream in frame[["device_id", "stream_id"]].rows()
    ]
    yield Figure(
        "waits",
        f"What each {'thread' if on_cpu else 'stream'} did between its first and last activity",
        "stack",
        _stack(frame, labels, parts),
    )


def _categories(frame: pl.DataFrame) -> Iterator[Figure]:
    bars = [{"label": label, "value": value} for label, value in frame[["category", "total_ns"]].rows()]
    yield Figure("categories", "Time by category", "bars", {"unit": "ns", "bars": bars})


def _icicle(tree: pl.DataFrame, phases: pl.DataFrame) -> Iterator[Figure]:
    """The phases side by side, and below each its layers, every one as wide as its time."""
    total = int(phases["device_ns"].sum())
    if not total:
        return
    nodes: list[dict[str, Any]] = []
    at = 0
    times = dict(phases[["phase", "device_ns"]].rows())
    for phase in PHASES:
        value = times.get(phase, 0)
        if value:
            nodes.append({"label": phase, "kind": phase, "depth": 0, "start": at, "value": value})
            nodes += _boxes(tree, phase, at, LEAST_BOX * total)
        at += value
    yield Figure("layers", "Layers by phase", "icicle", {"unit": "ns", "total": total, "nodes": nodes})


def _boxes(frame: pl.DataFrame, phase: str, start: int, least: float) -> Iterator[dict[str, Any]]:
    """The layers of a phase: each begins where the one beside it ends, the first of them where the one above does."""
    free = [start]  # by depth, where the next box begins
    for name, depth, value in frame[["name", "depth", f"{phase}_ns"]].rows():
        if value <= 0:
            continue
        at = free[depth]
        free[depth] += value
        del free[depth + 1 :]
        free.append(at)
        if value >= least and depth < DEEPEST_BOX:
            yield {"label": name, "kind": phase, "depth": depth + 1, "start": at, "value": value}


def _queue(frame: pl.DataFrame) -> Iterator[Figure]:
    streams = groups(frame["device_id"].to_numpy(), frame["stream_id"].to_numpy())
    time, length, rows = frame["time"].to_numpy(), frame["length"].to_numpy(), streams.rows()
    series: list[dict[str, Any]] = []
    for at in falling(-streams.greatest(length))[:8]:
        device, stream = (int(key[at]) for key in streams.keys)
        x, y = thin(time[rows[at]], length[rows[at]])
        series.append({"label": f"device {device}, stream {stream}", "x": x, "y": y})
    data = {"unit": "count", "series": series}
    yield Figure("queue", "Launched and not yet started", "line", data)


def _within_step(frame: pl.DataFrame) -> Iterator[Figure]:
    """What part of each fiftieth of a step the devices communicate; the last point is where the step ends."""
    starts = frame["mean_start_ns"].to_numpy()
    width = float(starts[1] - starts[0])
    if width <= 0:
        return
    x = [*starts.round().astype(int).tolist(), round(float(starts[-1]) + width)]
    series = []
    for column, label in (("mean_communication_ns", "communicating"), ("mean_exposed_ns", "exposed")):
        y = (frame[column].to_numpy() / width).clip(0, 1).tolist()
        series.append({"label": label, "x": x, "y": [*y, y[-1]]})
    yield Figure(
        "within_step", "Communication within the mean step", "line", {"unit": "ratio", "series": series}
    )


def _memory(frame: pl.DataFrame) -> Iterator[Figure]:
    """One figure a device: host and device memory differ too much in size to share a scale."""
    devices = groups(frame["device_id"].to_numpy())
    rows, time = devices.rows(), frame["time"].to_numpy()
    for at in np.argsort(devices.first):
        series = []
        for column in ("allocated", "reserved"):
            values = frame[column][rows[at]]
            known = are_known(values)
            values = values.filter(pl.Series(known))
            if (values != 0).any():
                x, y = thin(time[rows[at]][known], values.to_numpy())
                series.append({"label": column, "x": x, "y": y})
        where = _device(int(devices.keys[0][at]))
        if series:
            name = f"memory_{where.replace(' ', '_')}"
            yield Figure(name, f"Memory over time, {where}", "line", {"unit": "bytes", "series": series})


def thin(x: Any, y: Any, points: int = MAX_POINTS) -> tuple[list[int], list[int]]:
    """At most `points` of a series: of each stretch of time the greatest value, and the last point of all.

    >>> thin([0, 1, 2, 3, 4, 5], [0, 9, 1, 1, 2, 0], points=3)
    ([1, 4, 5], [9, 2, 0])
    """
    times, values = np.asarray(x, dtype=np.int64), np.asarray(y)
    if times.size <= points:
        return times.tolist(), values.tolist()
    edges = np.linspace(0, times.size - 1, points, dtype=np.int64)
    starts, ends = edges[:-1], edges[1:]
    best = [int(low + values[low:high].argmax()) for low, high in zip(starts, ends, strict=True)]
    kept = np.array([*best, times.size - 1])
    return times[kept].tolist(), values[kept].tolist()


def _device(number: int) -> str:
    return "host" if number < 0 else f"device {number}"
