"""What a trace of one rank shows of collectives that need not take so long: waits that smaller ones tell, gradients reduced in vain,
and where the reductions start.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.calls import calls_of
from tracekit.analyses.collectives import collectives
from tracekit.analyses.optimizer import optimizer_ranges, ranges_named
from tracekit.analyses.scope import Scope, launch_times, step_at
from tracekit.facts.stack_names import CLEARS_GRADIENTS, GRADIENT_REDUCTION_LAYER
from tracekit.facts.units import format_bytes, format_ns
from tracekit.groups import at_rows, kept
from tracekit.spans import Int64Array

__all__ = [
    "SEVERAL",
    "accumulating",
    "of_buckets",
    "reduced_in_vain",
    "slower_than_smaller",
    "where_launched",
]

SLOWER: Final = 5.0
"""A larger collective has the higher bandwidth; if it has a fifth of that of a smaller one, it does something else than to send."""
LEAST_SENT: Final = 1_000_000
"""In bytes: smaller ones take about as long as their latency."""
OFTENER: Final = 2
"""The first or last update may lie outside the recording."""
SEVERAL: Final = 2
"""One reduction before the end of the backward pass may be of one parameter; buckets that overlap are more."""
MOST: Final = 0.5
"""In half of the steps or more."""
SPLIT_BYTES: Final = 2_000_000
"""A smaller bucket takes about as long as its latency, so that two halves take longer; DistributedDataParallel's first has 1 MiB."""
LAST_BUCKET_SHARE: Final = 0.5


class Slower(msgspec.Struct, frozen=True):
    """What slow collectives take more than at the bandwidth of smaller ones, in ns, as far as nothing hides it; and that in a sentence."""

    exposed_ns: int
    text: str


def slower_than_smaller(scope: Scope) -> Slower | None:
    """The collectives of a group that have far less bandwidth than smaller ones of their kind in the same group; None if there are none."""
    rows = collectives(scope).by_size.drop_nulls(["bytes", "bus_gbps"])
    rows = rows.filter(rows["bytes"] >= LEAST_SENT).sort("bytes")
    found = []
    for _, alike in rows.group_by("name", "group", "group_size", maintain_order=True):
        rate, best = alike["bus_gbps"].to_numpy(), alike["bus_gbps"].cum_max().to_numpy()
        for at in np.flatnonzero(rate * SLOWER < best).tolist():
            row, fast = alike.row(at, named=True), alike.row(int(np.argmax(rate[:at])), named=True)
            # The shortest call has this rate; at the better one, each of them would take so much of it.
            waited = int(row["total_ns"] - row["count"] * row["min_ns"] * rate[at] / best[at])
            found.append((min(waited, row["exposed_ns"]), waited, row, fast))
    if not found:
        return None
    _, waited, row, fast = max(found, key=lambda one: one[0])
    return Slower(
        sum(exposed for exposed, *_ in found),
        f" {row['name'].capitalize()} of {format_bytes(row['bytes'])} reaches {row['bus_gbps']:.3g} GB/s, while "
        f"{format_bytes(fast['bytes'])} reaches {fast['bus_gbps']:.3g} GB/s: about {format_ns(waited)} of its "
        f"{format_ns(row['total_ns'])} may be spent waiting for another rank.",
    )


def reduced_in_vain(scope: Scope) -> tuple[str, str] | None:
    """How often gradients are reduced, and how often parameters are updated, if that is far less often; else None.

    Of steps that are one micro-batch each these are numbers of steps, else of passes of DistributedDataParallel and of updates. Also None if
    a gradient scaler looks at the gradients in a step without an update, since it may have left the update out, and if
    every step or pass clears them, so that none accumulate.
    """
    if scope.window != "steps":
        return None
    updates = optimizer_ranges(scope)["start"].to_numpy()
    updated = _steps_with(scope, updates)
    reduced = _reductions(scope)["step"].n_unique()
    passes, _ = _passes(scope)
    in_steps, in_passes = 0 < OFTENER * updated.size <= reduced, 0 < OFTENER * updates.size <= passes
    if not in_steps and not in_passes:
        return None
    scaled, cleared = (_starts(scope, pattern) for pattern in (_SCALER, CLEARS_GRADIENTS))
    if np.setdiff1d(_steps_with(scope, scaled), updated).size:
        return None
    if in_steps and _steps_with(scope, cleared).size < reduced:
        return f"{reduced} steps", str(updated.size)
    return (f"{passes} passes", f"{updates.size} updates") if in_passes and cleared.size < passes else None


def accumulating(scope: Scope) -> str:
    """How to accumulate gradients; over more passes if DistributedDataParallel already reduces those of several at once."""
    reducing, passes = _passes(scope)
    several = 0 < OFTENER * reducing <= passes
    return "over more micro-batches than now" if several else "under DistributedDataParallel's no_sync()"


def _passes(scope: Scope) -> tuple[int, int]:
    """The number of passes of DistributedDataParallel that reduce gradients, and of all."""
    return scope.once(_passes, lambda: _counted_passes(scope))


def _counted_passes(scope: Scope) -> tuple[int, int]:
    forward = np.sort(_starts(scope, _FORWARD))
    after = np.searchsorted(forward, launch_times(scope.trace, _reductions(scope)), side="right")
    return np.unique(after[after > 0]).size, forward.size


def _reductions(scope: Scope) -> pl.DataFrame:
    """The activities that reduce gradients; on processors the operators that queue them."""
    rows = attributed(scope)
    layer = at_rows(attribution(scope).layers["path"], rows["layer_id"])
    return kept(rows, (rows["class"] == "communication") & (layer == GRADIENT_REDUCTION_LAYER))


def _starts(scope: Scope, pattern: str) -> Int64Array:
    """The starts of the operators and ranges whose names match."""
    starts: Int64Array = attribution(scope).model.stack.start[ranges_named(scope, pattern)]
    return starts


def _steps_with(scope: Scope, times: Int64Array) -> Int64Array:
    """The numbers of the steps in which one of these times (ns) lies."""
    return step_at(scope.steps, times).drop_nulls().unique().to_numpy()


_SCALER: Final = r"^aten::_amp_(foreach_non_finite_check_and_unscale|update_scale)_$"
_FORWARD: Final = r"^DistributedDataParallel\.forward$"


def where_launched(scope: Scope, name: str) -> Literal["", "backward", "after_update"]:
    """Where most steps launch the collectives of this name: `SEVERAL` of them before the last work of the backward pass, or all
    after an update of the parameters and without a backward pass after that; else empty, also without steps.
    """
    if scope.window != "steps":
        return ""
    calls = calls_of(scope).table.filter(pl.col("name") == name).drop_nulls("launched")
    work = attributed(scope)
    work = kept(work, (work["phase"].cast(pl.String) == "backward") & (work["class"] == "compute"))
    backward, updates = launch_times(scope.trace, work), optimizer_ranges(scope)["start"].to_numpy()
    begins = scope.steps["start"].to_numpy()
    step, launched = np.searchsorted(begins, calls["launched"].to_numpy(), side="right"), calls["launched"]
    last, updated = (_latest(begins, times) for times in (backward, updates))
    steps, of = np.unique(step, return_inverse=True)
    before = np.bincount(of, weights=launched.to_numpy() < last[step], minlength=steps.size)
    after = (launched.to_numpy() > updated[step]) & (updated > last)[step]
    if steps.size and np.mean(before >= SEVERAL) >= MOST:
        return "backward"
    return "after_update" if steps.size and np.mean(after) > MOST else ""


def _latest(begins: Int64Array, times: Int64Array) -> Int64Array:
    """The latest of these times (ns) in each step, by its number from 1 on; what is before all of them has 0."""
    latest = np.full(begins.size + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, np.searchsorted(begins, times, side="right"), times)
    return latest


def of_buckets(scope: Scope) -> str:
    """What the sizes and times of the buckets of gradients say about `bucket_cap_mb`; empty if they do not say it.

    The last bucket of a step ends after the backward pass, so nothing hides it. If it has `LAST_BUCKET_SHARE` of the exposed time
    and `SPLIT_BYTES` or more, it should be smaller.
    """
    rows = calls_of(scope).table.filter(pl.col("layer") == GRADIENT_REDUCTION_LAYER)
    steps = rows.group_by("step", maintain_order=True).agg(
        pl.len(),
        pl.col("bytes").last(),
        pl.col("exposed_ns").last().alias("last"),
        pl.col("exposed_ns").sum(),
    )
    if not steps.height or steps["bytes"].null_count() or int(steps["bytes"].min() or 0) < SPLIT_BYTES:  # type: ignore[arg-type]
        return ""
    if int(steps["last"].sum()) < LAST_BUCKET_SHARE * int(steps["exposed_ns"].sum()):
        return ""
    size = format_bytes(int(steps["bytes"].max() or 0))  # type: ignore[arg-type]
    one = f"All gradients are in one bucket ({size}), which is reduced only once the last gradient is ready"
    last = f"Most of the exposed time is the last bucket ({size}), with no computation left to hide it"
    return f"{one if int(steps['len'].max() or 0) == 1 else last}: lower bucket_cap_mb. "  # type: ignore[arg-type]
