"""The calls of all ranks on one clock, those of one collective together."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.analyses.ranks.clocks import clocks_of, in_utc, origins, with_messages
from tracekit.analyses.ranks.matching import (
    all_calls,
    at_one_time,
    by_sequence,
    by_step,
    by_time,
    in_groups,
    messages,
    missing_calls,
)
from tracekit.analyses.ranks.summary import Summary
from tracekit.classes import dataclass
from tracekit.facts.collectives import MESSAGES
from tracekit.groups import groups, with_series

__all__ = ["Alignment", "align"]


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """The ranks of a job on one clock."""

    calls: pl.DataFrame
    """The calls of all ranks by start, with `at` (the place of the summary), `key` (of the group) and `match`, the number of the
    collective, null for a call that is part of none. `start` and `end` are ns on the clock of the job.
    """
    clocks: pl.DataFrame
    """One row per rank (`ranks.clocks.CLOCKS`)."""
    missing: pl.DataFrame
    """`key`, `name`, `match` (null if one rank alone has it), `at`: collectives of a group that a rank took part in before and after, but of
    which it has no call.
    """
    numbered: bool
    """Whether the profiler recorded the numbers of the calls that were matched; else their times tell."""
    begins: tuple[int, ...] = ()
    """When the window of each rank begins, on the clock of the job; empty if it is not known."""


def align(summaries: Sequence[Summary]) -> Alignment:
    """The calls of the ranks on the clock of the first one.

    Recorded numbers of calls are used where there are any. Else a first comparison of clocks rests on the order within
    steps. Where these clocks agree with that order it stands; the other calls are matched if they overlap. Without UTC, ranks that have steps but none in
    common have no clock in common either, and calls that seem to overlap are not matched. Sends are matched with receives by their order between two ranks.
    """
    calls, origin = all_calls(summaries), origins(summaries)
    match = by_sequence(calls)
    numbered = match.is_not_null().any()
    rest = match.is_null() & (calls["sequence"].is_null() | calls["group"].is_null())
    rest &= ~calls["name"].is_in(MESSAGES)
    if rest.any():
        step = by_step(calls)
        first = clocks_of(calls, match if numbered else step, origin)
        step = at_one_time(calls, step.set(~rest, None), first["shift_ns"].to_numpy())
        match = _next(match, step)
        alone = calls.filter(rest & step.is_null())
        if not in_utc(summaries):
            clock = _clock_of(summaries, first).to_numpy()[alone["at"].to_numpy()]
            alone = with_series(alone, pl.Series("kind", groups(alone["kind"].to_numpy(), clock).of))
        timed = by_time(alone, first["shift_ns"].to_numpy())
        match = _next(
            match,
            pl.Series([None] * calls.height, dtype=pl.Int64).scatter(
                (rest & step.is_null()).arg_true(), timed
            ),
        )
        match = in_groups(calls, match, summaries)
    clocks = clocks_of(calls, match, origin)
    shift = clocks["shift_ns"].to_numpy()
    if clocks.select(pl.coalesce("first", "at").n_unique()).item() > 1:
        clocks = with_messages(clocks, calls, messages(calls, shift, timed=False))
        shift = clocks["shift_ns"].to_numpy()
    match = _next(match, messages(calls, shift))
    moved = calls.with_columns(
        pl.col("came", "start", "end") + pl.Series(shift[calls["at"].to_numpy()]), match.alias("match")
    )
    missing = missing_calls(moved)
    return Alignment(
        moved.drop("size", "kind", "place").sort("start", "at", maintain_order=True),
        clocks,
        missing,
        bool(numbered),
        tuple(
            int(at) + one.facts.window_start_ns for at, one in zip(clocks["shift_ns"], summaries, strict=True)
        ),
    )


def _next(match: pl.Series, more: pl.Series) -> pl.Series:
    """The matches, and where there is none yet the others, in numbers of their own."""
    base = int(match.max() or 0) + 1  # type: ignore[arg-type]
    return match.zip_with(match.is_not_null(), more + base)


def _clock_of(summaries: Sequence[Summary], clocks: pl.DataFrame) -> pl.Series:
    """A number for each rank that those share whose clocks are related; ranks without steps are taken to have that of their files."""
    has_steps = pl.Series([one.steps.height > 0 for one in summaries])
    return clocks.select(pl.when(has_steps).then(pl.coalesce("first", "at")).otherwise(-1)).to_series()
