"""A rule for runs without a device: calls that stand still in one step, since something else has the processors."""

from __future__ import annotations

from tracekit.analyses.rules.rule import WARNING_SHARE, Advice, Evidence, Rule, longest
from tracekit.analyses.scope import Scope
from tracekit.analyses.stalls import code_stalls, stalled_ns, stalls
from tracekit.analyses.steps import Steps
from tracekit.facts.units import count_of, format_ns, format_share

__all__ = ["STALLED_CALLS"]


def stalled_calls(scope: Scope, _result: Steps) -> Evidence | None:
    """Without a device: single calls of different operators take far longer than the same calls in other steps.

    The rule compares the time of each stretch of an operator (its self time) with the median of the stretch that has the same
    place among those of its name in the other steps. No Python runs in such a stretch, so it stands still only if the
    operating system gives the processor to something else: it then takes three times as long, and 1 ms more. Where operators
    stand still, the code between the same two operators counts as well, up to twice the longest stall of an operator.
    Collectives do not count, and of two steps both must hold stalls. At stake is what all this takes more; other findings
    about operators and the code between them leave it out.

    Fires when calls of three operators stand still, for `WARNING_SHARE` of the window with the code between them.
    """
    stalled, at_stake = stalls(scope).sort("ns"), stalled_ns(scope)
    if not stalled.height or at_stake < WARNING_SHARE * scope.duration:
        return None
    calls = stalled.drop_nulls("activity_id")
    slowest, between, more = calls.row(-1, named=True), code_stalls(scope), calls["more"].to_numpy()
    also = f", {format_ns(between)} of it between operators" if between else ""
    return Evidence(
        title=f"The program stalled for {format_share(at_stake / scope.duration)} of the time",
        text=f"{count_of(calls['call'].n_unique(), 'call')} of {calls['name'].n_unique()} operators stalled for "
        f"{format_ns(more.min())} to {format_ns(more.max())}, as the same calls in other steps show. Together, they took "
        f"{format_ns(at_stake)} longer than usual{also}. The longest stretch is in a call of {slowest['name']}: {format_ns(slowest['ns'])}, "
        f"usually {format_ns(slowest['usual'])}.",
        ns_at_stake=at_stake,
        stretches=longest(stalled, by="more", length="ns"),
    )


STALLED_CALLS = Rule(
    id="stalled_calls",
    analysis="steps",
    evidence=stalled_calls,
    runs="processor",
    advice=Advice(
        "Something else was probably using the cores meanwhile: other programs, or more threads and ranks than there are cores. Record "
        "again on a quiet machine, or give each rank cores of its own (taskset, torch.set_num_threads). The times of single "
        "operators and layers in this trace say little.",
        plain="Something else was probably using the cores meanwhile. Record again on a quiet machine, or give the program cores of its own "
        "(taskset).",
    ),
    pattern="the program stalled for {share} of the time: single calls took many times as long as the same calls in other "
    "steps, probably because something else was using the cores",
)
