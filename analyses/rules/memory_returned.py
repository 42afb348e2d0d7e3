"""A rule about copies of what goes to the host and comes back: activations, or what the optimizer works on, kept in host memory."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.memory import Memory
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, bounded, longest, of_time
from tracekit.analyses.scope import Scope
from tracekit.facts.stack_names import DEVICE_TO_HOST, HOST_TO_DEVICE
from tracekit.facts.units import count_of, format_bytes, format_ns
from tracekit.groups import kept
from tracekit.intervals import IntervalSet
from tracekit.name_table import NameTable

__all__ = ["RETURNED_COPIES"]

ALIKE: Final = 0.1
"""The batch and results go one way only; they are a small part beside what is moved away and back."""
LEAST_COPIES_PER_STEP: Final = 4
"""One copy of results and one of a batch may have the same size by chance."""


def returned_copies(scope: Scope, _result: Memory) -> Evidence | None:
    """In every step as many bytes go to the host as come back later, so what is copied away is used again, or its update is.

    At stake is the time in which a device only runs these copies.

    Fires when, in each step, the bytes of both directions differ by at most `ALIKE` and those to the host come first, there are
    `LEAST_COPIES_PER_STEP` copies in each direction, and copies alone take `WARNING_SHARE` of the window.
    """
    if scope.window != "steps" or scope.on_cpu:
        return None
    copies = kept(scope.activities, scope.activities["kind"] == "memcpy")
    names = NameTable(copies["name"])
    away, back_again = names.matching(DEVICE_TO_HOST), names.matching(HOST_TO_DEVICE)
    copies = copies.with_columns(pl.Series("away", away)).filter(pl.Series(away | back_again))
    if not copies.height or copies["bytes"].has_nulls():
        return None
    device = int(copies["device_id"].mode().sort()[0])
    copies = copies.filter(pl.col("device_id") == device).sort("start")
    region = IntervalSet.of(copies["start"].to_numpy(), copies["end"].to_numpy()).clip(scope.start, scope.end)
    alone = (region - scope.intervals(device, "compute", "communication")).measure
    if alone < WARNING_SHARE * scope.duration or not _come_back(copies, scope.steps.height):
        return None
    both = [copies.filter(pl.col("away") == away) for away in (True, False)]
    moved, back = (
        f"{count_of(rows.height, 'copy', 'copies')} {verb} {format_bytes(int(rows['bytes'].sum()))} in "
        f"{format_ns(int(rows['duration'].sum()))}"
        for rows, verb in zip(both, ("to the host move", "back move"), strict=True)
    )
    return Evidence(
        title="Copies to the host and back, with the same number of bytes each way in every step, keep the device from computing for "
        f"{of_time(alone, scope)}",
        text=f"{moved}, and {back}. For {format_ns(alone)}, the device does nothing but copy.",
        ns_at_stake=bounded(alone, scope),
        stretches=longest(copies),
    )


def _come_back(copies: pl.DataFrame, steps: int) -> bool:
    """Whether each step copies as many bytes to the device as to the host, after them."""
    signed = pl.when("away").then("bytes").otherwise(-pl.col("bytes"))
    sums = (
        copies.drop_nulls("step")
        .group_by("step")
        .agg(
            pl.col("bytes").sum().alias("total"),
            signed.sum().abs().alias("unlike"),
            signed.cum_sum().min().alias("least"),
            pl.col("away").sum().alias("away"),
            (~pl.col("away")).sum().alias("back"),
        )
    )
    fits = sums.select(
        (2 * pl.col("unlike") <= ALIKE * pl.col("total"))
        & (-2 * pl.col("least") <= ALIKE * pl.col("total"))
        & (pl.min_horizontal("away", "back") >= LEAST_COPIES_PER_STEP)
    ).to_series()
    return bool(sums.height == steps and fits.all())


RETURNED_COPIES = Rule(
    id="returned_copies",
    analysis="memory",
    evidence=returned_copies,
    runs="device",
    advice=Advice(
        "Keep the data on the device if they fit. Otherwise, use pinned buffers that are allocated once (pin_memory=True), and "
        "copy on a separate stream, alongside computation.\n"
        "[training] Recomputing activations (torch.utils.checkpoint) may take less time than copying them.",
        plain="Keep the data on the device if they fit. Otherwise, use pinned buffers that are allocated once, and copy on a "
        "separate stream, alongside computation.",
    ),
    answers=frozenset({"memory-copy-bound"}),
    explains=frozenset({"pageable_copies"}),
)
