"""The start of a recording: the device is empty when the first step begins, so this step shows waits that all later ones hide."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analyses.scope import Scope, step_spans
from tracekit.groups import kept
from tracekit.spans import Int64Array

__all__ = ["first_kernel", "split_start", "without_start"]


def first_kernel(scope: Scope) -> int:
    """Where the first step has its first kernel, if the device is empty when the step begins: no kernel of the trace starts before it,
    and nothing launched before it keeps the device busy. Else, without several steps and without a device, the window's begin.
    """
    return scope.once(first_kernel, lambda: _first_kernel(scope))


def _first_kernel(scope: Scope) -> int:
    steps, rows = scope.steps, scope.trace.device[["kind", "start"]]
    if (
        scope.on_cpu
        or scope.window != "steps"
        or steps.height < 2
        or scope.start != steps["start"][0]
        or not rows.height
    ):
        return scope.start
    kernels = kept(rows, ~rows["kind"].is_in(["memcpy", "memset"]))["start"]
    first = kernels.min() if kernels.len() else None
    return max(first, scope.start) if isinstance(first, int) else scope.start


def without_start(scope: Scope, table: pl.DataFrame) -> pl.DataFrame:
    """Steps with their `span_start` and `span_ns`, of which the first begins with its first kernel, if that is the recording's."""
    begin, length = table["span_start"].to_numpy().copy(), table["span_ns"].to_numpy()
    end = begin + length
    begin[:1] = np.clip(first_kernel(scope), begin[:1], end[:1])
    return table.with_columns(span_start=pl.Series(begin), span_ns=pl.Series(end - begin))


def split_start(scope: Scope, pieces: pl.DataFrame) -> tuple[Int64Array, int]:
    """The time of these pieces (`start`, `duration_ns`) in each step, and what the first step has only since the device was empty.

    Before its first kernel, the first step counts as much as a median later one.
    """
    begin = step_spans(scope)["span_start"].to_numpy()
    start, ns = pieces["start"].to_numpy(), pieces["duration_ns"].to_numpy()
    step = np.maximum(np.searchsorted(begin, start, side="right") - 1, 0)
    sums = np.bincount(step, weights=ns, minlength=begin.size).astype(np.int64)
    at_start = int(ns[start < first_kernel(scope)].sum())
    once = at_start - min(at_start, round(float(np.median(sums[1:])))) if at_start else 0
    sums[:1] -= once
    return sums, once
