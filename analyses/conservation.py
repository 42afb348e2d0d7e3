"""The laws of conservation: parts of a time sum to it exactly, in ns (DEFINITIONS §3 to §5).

A law that does not hold is a fault of tracekit, never of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.idle import idle
from tracekit.analyses.kernels import kernels
from tracekit.analyses.scope import Scope, once
from tracekit.trace import Trace

__all__ = ["Law", "conservation"]

_PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
_WAITS = ("host_wait_ns", "kernel_wait_ns", "other_ns", "unknown_ns")


@dataclass(frozen=True, slots=True)
class Law:
    """A law, and whether a scope obeys it."""

    law: str
    holds: bool


def conservation(of: Scope | Trace) -> tuple[Law, ...]:
    """Whether the parts of every window sum to it.

    >>> import tracekit
    >>> all(law.holds for law in conservation(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")))
    True
    """
    return once(of, _conservation)


def _conservation(scope: Scope) -> tuple[Law, ...]:
    devices, streams, table = breakdown(scope).devices, idle(scope).streams, kernels(scope)
    by_name, by_category = (int(frame["total_ns"].sum()) for frame in (table.by_name, table.by_category))
    return (
        Law(
            "compute + exposed communication + exposed memory + idle = window, on every device",
            _sums(devices, _PARTS, "window_ns"),
        ),
        Law("idle by category = idle, on every stream", _sums(streams, _WAITS, "idle_ns")),
        Law(
            "kernels by name = kernels by category = device time",
            by_name == by_category == int(scope.activities["duration"].sum()),
        ),
    )


def _sums(frame: pl.DataFrame, parts: tuple[str, ...], whole: str) -> bool:
    return bool((frame.select(parts).sum_horizontal() == frame[whole]).all())
