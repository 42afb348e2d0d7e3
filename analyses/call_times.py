"""When a call of communication could have started, and how long it kept its device from computing."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analyses.attribution.attribute import attribution
from tracekit.analyses.idle.gaps import YOUNG_LAUNCH_NS
from tracekit.analyses.scope import Scope
from tracekit.groups import or_none
from tracekit.intervals import IntervalSet

__all__ = ["came", "exposure_of"]


def came(rows: pl.DataFrame) -> pl.Series:
    """`came` of each activity (`analyses.calls.CALLS`), as far as its launch tells it; `rows` are activities with `class` and `launched`."""
    computes, linked = (rows["class"] != "communication").to_numpy(), or_none(rows["launch_id"]) >= 0
    device, launched, start, end = (rows[name].to_numpy() for name in ("device_id", "launched", "start", "end"))  # fmt: skip
    found = np.minimum(launched, start)
    for one in np.unique(device):
        mine = np.flatnonzero((device == one) & computes & linked)
        mine = mine[np.argsort(launched[mine], kind="stable")]
        calls = np.flatnonzero((device == one) & ~computes & linked)
        done = np.append(found.min(initial=0), np.maximum.accumulate(end[mine]))
        before = done[np.searchsorted(launched[mine], launched[calls])]
        found[calls] = np.minimum(np.maximum(found[calls], before), start[calls])
    return pl.Series("came", found)


def exposure_of(scope: Scope, rows: pl.DataFrame, calls: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """`exposed_ns` and `held_ns` (`analyses.calls.CALLS`) of the `calls` among the rows, which are all activities."""
    exposed = calls["duration"].to_numpy().copy()
    held = exposed.copy()
    of, begin, end = (calls[name].to_numpy() for name in ("device_id", "start", "end"))
    device, starts, launched = (rows[name].to_numpy() for name in ("device_id", "start", "launched"))
    computes = (rows["class"] != "communication").to_numpy()
    queued = computes & (starts > launched + YOUNG_LAUNCH_NS)
    stack = attribution(scope).model.stack
    waits = np.flatnonzero(stack.awaits_device())
    host = IntervalSet.of(stack.start[waits], stack.end[waits])
    for one in scope.device_ids:
        mine, compute = of == one, scope.intervals(one, "compute")
        exposed[mine] -= compute.coverage(begin[mine], end[mine])
        kept_waiting = queued & (device == one)
        waited = IntervalSet.of(launched[kept_waiting] + YOUNG_LAUNCH_NS, starts[kept_waiting]) | host
        held[mine] = (waited - compute).coverage(begin[mine], end[mine])
    return pl.Series("exposed_ns", exposed), pl.Series("held_ns", exposed if scope.on_cpu else held)
