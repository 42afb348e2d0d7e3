"""What a trace of one rank shows of collectives that need not take so long: waits that smaller ones tell, gradients reduced in vain."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tracekit.analyses.calls import calls_of
from tracekit.analyses.collectives import collectives
from tracekit.analyses.optimizer import optimizer_ranges
from tracekit.analyses.scope import Scope
from tracekit.facts.stack_names import GRADIENT_REDUCTION_LAYER
from tracekit.facts.units import format_bytes, format_ns

__all__ = ["reduced_in_vain", "slower_than_smaller"]

SLOWER: Final = 5.0
"""A larger collective has the higher bandwidth; if it has a fifth of that of a smaller one, it does something else than to send."""
LEAST_SENT: Final = 1_000_000
"""In bytes: smaller ones take about as long as their latency."""
OFTENER: Final = 2
"""The first or last update may lie outside the recording."""


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
        f" {row['name'].capitalize()} of {format_bytes(row['bytes'])} reaches {row['bus_gbps']:.3g} GB/s, and of {format_bytes(fast['bytes'])} "
        f"{fast['bus_gbps']:.3g} GB/s: about {format_ns(waited)} of its {format_ns(row['total_ns'])} may be a wait for another rank.",
    )


def reduced_in_vain(scope: Scope) -> tuple[int, int] | None:
    """In how many steps gradients are reduced, and in how many of them parameters are updated, if these are far fewer; else None."""
    if scope.window != "steps":
        return None
    updates = optimizer_ranges(scope)["start"].to_numpy()
    starts, ends = scope.steps["start"].to_numpy(), scope.steps["end"].to_numpy()
    step = np.searchsorted(starts, updates, side="right") - 1
    updated = np.unique(step[(step >= 0) & (updates < ends[np.maximum(step, 0)])]).size
    calls = calls_of(scope).table
    reduced = calls["step"].filter(calls["layer"] == GRADIENT_REDUCTION_LAYER).n_unique()
    return (reduced, updated) if 0 < OFTENER * updated <= reduced else None
