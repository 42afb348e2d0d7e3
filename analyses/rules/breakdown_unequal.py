"""A rule about equal communication that takes different times, since one rank waits for another."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.calls import calls_of, of_one_rank
from tracekit.analyses.rules.device_collectives import waits_of, worst_device
from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, longest
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_count, format_ns, format_share

__all__ = ["LEAST_EQUAL", "UNEQUAL", "UNEQUAL_COLLECTIVES", "ranks_on_time"]

# -- unequal_collectives ----------------------------------------------------------------------------

UNEQUAL: Final = 3.0
"""Equal collectives differ by some tens of percent on a shared network; a rank that is late makes them several times as long."""
LEAST_EQUAL: Final = 3
"""Of two, nobody can say which one is unusual."""

_BETWEEN_TWO: Final = {
    "recv": ("receives", "the rank that sends"),
    "send": ("sends", "the rank that receives"),
    "send_recv": ("exchanges", "the other rank"),
}
"""What moves data from one rank to another, in words, and whom it waits for: not for the last of all ranks."""
_PIPELINE: Final = Advice(
    "[training] In a pipeline, a stage waits until the stage before it (in the backward pass, the one after it) has a result: "
    "give the stages equal work, and split each batch into more micro-batches, which shortens the waits at the beginning and the "
    "end of a step.\n"
    "[!training] In a pipeline, a stage waits until the one before it has a result: give the stages equal work, and keep more "
    "batches in flight.\n"
    "[!compared] Compare the ranks: record all of them over the same steps.",
    plain="Compare the ranks: record all of them at the same time. This one waits until another has a result: give them equal work, "
    "and send results in smaller parts.",
)


_NETWORK: Final = Advice(
    "Look at what else uses the network at those times (checkpoints, data from a network drive, other jobs), and at links that are slower than the others.",
    plain="No rank is late: look at what else uses the network at those times.",
)
_MOSTLY: Final = 0.5
"""Of what unequal collectives take longer, so much at least is a wait if ranks are late."""


def ranks_on_time(scope: Scope, ns: int) -> bool:
    """Whether a joint view found that the rank waits for others much less than this time."""
    return scope.compared is not None and _MOSTLY * ns >= scope.compared


def unequal_collectives(scope: Scope, result: Breakdown) -> Evidence | None:
    """Collectives of the same kind and size take very different times, so that part of them may be a wait for another rank.

    Collectives are equal if the profile recorded the same number of elements, type and group for them. Without such
    records, those are compared that have the same name and the same place among the collectives of their step, if every
    step has the same collectives. One process alone cannot tell a wait from a slow network. At stake is what equal
    collectives take more than the shortest of them, without computation beside them (DEFINITIONS §8: over ranks, the
    shortest duration is the latency). A send or receive waits for one other rank, so its advice is that for a pipeline.

    Fires when the longest of `LEAST_EQUAL` or more equal collectives takes `UNEQUAL` times as long as the shortest, and
    `WARNING_SHARE` of the window is at stake, unless all groups have one rank.
    """
    worst = worst_device(result)
    if worst is None or of_one_rank(calls_of(scope).table):
        return None
    device, exposed, _, window = worst
    waits = waits_of(scope, device, unequal=UNEQUAL, least=LEAST_EQUAL)
    if waits is None:
        return None
    at_stake = min(int(waits["exposed_wait"].sum()), exposed)
    if at_stake < WARNING_SHARE * window:
        return None
    # Ranks that were on time, as the joint view found, leave the network.
    on_time = ranks_on_time(scope, at_stake)
    worst_key = (
        waits.group_by("key")
        .agg(
            pl.len(),
            pl.col("duration").min().alias("least"),
            pl.col("duration").max().alias("most"),
            pl.col("exposed_wait").sum(),
            pl.col("name").first().cast(pl.String),
            pl.col("recorded").first(),
            pl.col("kind").first(),
        )
        .sort("exposed_wait", "key")
        .row(-1, named=True)
    )
    alike = "of the same size" if worst_key["recorded"] else "at the same place in their steps"
    between_two = _BETWEEN_TWO.get(worst_key["kind"] or "")
    what, whom = between_two or ("collectives", "slower ranks")
    may_be = (
        "is lost where the links or the network are slow" if on_time else f"may be spent waiting for {whom}"
    )
    shows = (
        f"By the joint view, this rank waits for others {format_ns(scope.compared or 0)} in all, so the network is slow at times."
        if on_time
        else "The trace covers one process, so it does not show whether another rank arrived late or the network was slow."
    )
    name = worst_key["kind"] if between_two else worst_key["name"].partition("(")[0]
    least, most = worst_key["least"], worst_key["most"]
    return Evidence(
        title=f"Equal {what} take {format_ns(least)} to {format_ns(most)}; {format_share(at_stake / window)} of the time "
        f"{may_be}",
        text=f"{format_count(worst_key['len'])} {name} calls {alike} take between {format_ns(least)} and {format_ns(most)} (1 : "
        f"{most / max(least, 1):.1f}). Beyond what the shortest of them takes, equal {what} take {format_ns(at_stake)} with no "
        f"computation alongside. {shows}",
        advice=_PIPELINE if between_two else _NETWORK if on_time else None,
        ns_at_stake=at_stake,
        stretches=longest(waits, by="exposed_wait"),
    )


UNEQUAL_COLLECTIVES = Rule(
    id="unequal_collectives",
    analysis="breakdown",
    evidence=unequal_collectives,
    runs="device",
    advice=Advice(
        "[!compared] Compare the ranks: record all of them over the same steps. The rank with the shortest collectives arrives last, and the "
        "others wait for it.\n[compared] See in the joint view for which rank the others wait.\nGive it less work, or the same amount (equal batches and sequence lengths, even sharding), and look "
        "at its data loading and its clock. If all ranks take long at the same time, the network is slow.",
        plain=(
            "Compare the ranks: record all of them at the same time. The rank with the shortest collectives arrives last, and "
            "the others wait for it; give it less work. If all take long at the same time, the network is slow."
        ),
    ),
    answers=frozenset({"communication-bound"}),
    explains=frozenset({"step_variability"}),
)
