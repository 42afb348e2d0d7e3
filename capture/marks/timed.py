"""Ranges by the host's clock, without a profiler, as the level ML records them.

They cost about a microsecond each, so that they hardly change the latency of a layer. On a GPU they say when
the host called a layer, not when the device ran it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from tracekit.capture.marks.layer_table import Layer
from tracekit.capture.marks.names import ROOT_LAYER, Phase, phase_range_name, printable, step_range_name
from tracekit.capture.marks.ranges import Range, RangeKind

__all__ = ["TimedMarks"]

_PROCESS = 0
"""Not the real number, which describes the machine and not the run."""


class TimedMarks:
    """Collects ranges while `recording` is set, and writes them as a trace.

    `rows` are the ranges that have ended: name, start, end (ns of the host's clock), thread, arguments.
    """

    kind: RangeKind = "timed"

    def __init__(self) -> None:
        self.recording = False
        self.rows: list[tuple[str, int, int, int, dict[str, Any] | None]] = []
        self._arguments: dict[int, dict[str, Any]] = {}

    def step(self, number: int) -> Range:
        """A range with the profiler's name of the step."""
        return _Timed(self, step_range_name(number), None)

    def phase(self, phase: Phase) -> Range:
        """A range named after the phase."""
        return _Timed(self, phase_range_name(phase), None)

    def layer(self, layer: Layer) -> Range:
        """A range named after the layer, with the same arguments as in a profile."""
        arguments = self._arguments.get(layer.id)
        if arguments is None:
            arguments = self._arguments[layer.id] = {
                "layer": printable(layer.name or ROOT_LAYER),
                "layer_id": layer.id,
                "module": printable(layer.type),
            }
        return _Timed(self, layer.range_name, arguments)

    def export(self, path: str) -> None:
        """Write the ranges as Chrome-format JSON; times are µs with three decimals, so they are exact to the ns."""
        rows = sorted(self.rows, key=lambda row: (row[1], -row[2]))
        first = rows[0][1] if rows else 0
        events = [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": name,
                "pid": _PROCESS,
                "tid": thread,
                "ts": _microseconds(start - first),
                "dur": _microseconds(end - start),
                **({"args": arguments} if arguments else {}),
            }
            for name, start, end, thread, arguments in rows
        ]
        Path(path).write_bytes(msgspec.json.encode({"schemaVersion": 1, "traceEvents": events}))


class _Timed:
    """One range; a class with slots costs a third of a generator, and there is one for each call of each module."""

    __slots__ = ("_arguments", "_marks", "_name", "_start")

    def __init__(self, marks: TimedMarks, name: str, arguments: dict[str, Any] | None) -> None:
        self._marks, self._name, self._arguments = marks, name, arguments

    def __enter__(self) -> None:
        self._start = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        if self._marks.recording:
            end = time.perf_counter_ns()
            self._marks.rows.append(
                (self._name, self._start, end, threading.get_native_id(), self._arguments)
            )


def _microseconds(ns: int) -> msgspec.Raw:
    return msgspec.Raw(f"{ns // 1000}.{ns % 1000:03d}".encode())
