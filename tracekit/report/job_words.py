"""The answer of a job's joint view, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from tracekit.analyses.ranks import Alignment, Beside
from tracekit.analyses.ranks.matching import UNKNOWN_GROUP
from tracekit.facts.collectives import MESSAGES
from tracekit.facts.stack_names import NO_LAYERS
from tracekit.facts.units import NS_PER_US, count_of, format_bytes, format_count, format_ns, format_share
from tracekit.job import Job
from tracekit.job.late import FELT, Late, late_of, slow_of
from tracekit.report.job_set import oddities_of
from tracekit.report.job_why import amount_of, item_name, why_of

__all__ = [
    "PAIR",
    "agreement_of",
    "answer_of",
    "call_name",
    "longest_alone",
    "question_of",
    "several",
    "who",
]

_LONGER: Final = 1.05
"""A stage that takes so many times as long as the others without its waits is told."""
PAIR: Final = 2
_MOST_NAMED: Final = 6
_EARLY: Final = 3
_LONG_WAIT: Final = 0.1
"""A rank that waits for so much of the time, and so many times as long as the middle of the others, comes early."""


def question_of(job: Job) -> str:
    """What the section answers."""
    size = job.table.height
    return f"Which of the {format_count(size)} ranks {'does the other' if size == PAIR else 'do the others'} wait for?"


def answer_of(job: Job, pair: Beside | None, chosen: tuple[int, int | None] | None = None) -> str:
    """Who delays the others and why, on what this rests, and what is odd; first how the `chosen` ranks (their places) compare, if any are."""
    who_and_why = (_late(job, pair),) if chosen is None else (_compared(job, pair, *chosen), _late(job, None))
    return " ".join(filter(None, (*who_and_why, _rests_on(job), oddities_of(job))))


def who(row: dict[str, Any]) -> str:
    """The rank of a row of `Job.table` inside a sentence."""
    return f"rank {row['rank']}" if row["rank"] is not None else f"the rank of {row['trace']}"


def several(ranks: Sequence[int]) -> str:
    """The numbers of two or more ranks, in order, inside a sentence.

    >>> several([2, 5]), several([4, 5, 6, 7]), several([0, 2, 3]), several(range(1, 40, 2))
    ('ranks 2 and 5', 'ranks 4 to 7', 'ranks 0, 2 and 3', 'ranks 1, 3, 5, 7, 9, 11 and 14 more')
    """
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    shown = list(map(str, ranks if len(ranks) <= _MOST_NAMED + 1 else ranks[:_MOST_NAMED]))
    left = len(ranks) - len(shown)
    last = f"{left} more" if left else shown.pop()
    return f"ranks {', '.join(shown)} and {last}"


def _late(job: Job, pair: Beside | None) -> str:
    """Who delays the others, by how much, and by what."""
    if not job.waits.collectives.height:
        return (
            "The traces share no collective or message that could be matched, so they do not show who waits for whom: check whether they "
            "are from one run and one time."
        )
    window, of_window = job.compared_ns, "of the compared time" if job.cut else "of the window"
    late = late_of(job.table, job.waits, window)
    caused = 0 if late is None else job.table["caused_ns"][late.ranks[0]]
    others = "the other" if job.table.height == PAIR else "the others"
    unseen = max(job.table["unseen_ns"].fill_null(0).to_list())
    if job.ranks.missing and unseen >= max(FELT * window, caused, 1):
        return (
            f"A rank without a trace may keep the others waiting: collectives with such ranks take {format_ns(unseen)} "
            f"({format_share(unseen / window)} {of_window}) longer in all than the shortest of their kind."
        )
    if late is None:
        return _nobody(job, window)
    absent = "A rank without a trace may keep them waiting too." if job.ranks.missing else ""
    row = job.table.row(late.ranks[0], named=True)
    amount = f"for {format_ns(caused)} ({format_share(caused / (row['compared_ns'] or window))} {of_window})"
    if late.turns:
        told = f"No rank stands out: they take turns at coming late. The others wait longest for {who(row)}, {amount}."
        return " ".join(filter(None, (told, _slow(job, window), absent)))
    first = _first(job, pair)
    it = who(row) if len(late.ranks) > 1 else None
    slow = _slow(job, window)
    why = "" if row["kind"] is None and (first or slow) else _why(job, row, others, it)
    more = amount_of(row, others, on_cpu=job.ranks.members[row["at"]].summary.facts.on_cpu)
    parts = (_who_is_late(job, late, others, amount), why, more, first, _turns(job, late, others))
    return " ".join(filter(None, (*parts, slow, absent)))


def _why(job: Job, row: dict[str, Any], others: str, it: str | None) -> str:
    """What the rank takes longer for, than which ranks, and in which steps if others do not have all of them."""
    layer = row["kind"] == "layer" and row["what"] not in NO_LAYERS
    than = f"{others} that have it" if layer and _sent(job).any() and job.table.height > PAIR else others
    told = why_of(row, than, it, on_cpu=job.ranks.members[row["at"]].summary.facts.on_cpu)
    if row["kind"] is None or row["steps"] == row["late_steps"]:
        return told
    whose = "the other has" if others == "the other" else "others have"
    return f"{told[:-1]}, in the {row['steps']} of {row['late_steps']} late steps that {whose}, too."


def _nobody(job: Job, window: int) -> str:
    """That nobody keeps the others waiting, and how long ranks wait."""
    most = format_share(max(job.table["wait_ns"].fill_null(0).to_list()) / window if window else 0.0)
    missing = bool(job.ranks.missing)
    one = "rank with a trace" if missing else "rank"
    absent = "The traces do not show waits for a rank without a trace." if missing else ""
    told = _alone(job) or f"No {one} keeps the others waiting for long."
    sent = _sent(job)
    where = "messages" if sent.all() else "collectives and messages" if sent.any() else "collectives"
    waits = _early(job, where) or f"In {where}, a rank waits for others {most} of the time at most."
    return " ".join(filter(None, (told, waits, _slow(job, window), absent)))


def _sent(job: Job) -> pl.Series:
    """Which of the collectives are messages."""
    return job.waits.collectives["name"].is_in(MESSAGES)


def _early(job: Job, where: str) -> str:
    """That one rank waits much longer than the others, since most of them come later than it; empty if none does."""
    rows = job.table.drop_nulls("wait_ns").sort("wait_ns", descending=True)
    shares = (rows["wait_ns"] / rows["compared_ns"].clip(lower_bound=1)).to_list()
    middle = sorted(shares[1:])[(len(shares) - 1) // 2] if len(shares) > PAIR else 1.0
    if not shares or shares[0] < max(_EARLY * middle, _LONG_WAIT):
        return ""
    return (
        f"In {where}, {who(rows.row(0, named=True))} comes early and waits for others {format_share(shares[0])} of the time, the middle of "
        f"the others {format_share(middle)}."
    )


def _who_is_late(job: Job, late: Late, others: str, amount: str) -> str:
    rows = [job.table.row(at, named=True) for at in late.ranks]
    if len(rows) == 1:
        name = who(rows[0])
        return f"{name[0].upper()}{name[1:]} keeps {others} waiting {amount}."
    numbers = [row["rank"] for row in rows]
    names = f"{format_count(len(rows))} ranks" if None in numbers else several(sorted(numbers))
    how = (
        "others waiting, each in groups of its own," if late.apart else f"{others} waiting at the same times,"
    )
    return f"{names[0].upper()}{names[1:]} keep {how} {amount} at most."


def _slow(job: Job, window: int) -> str:
    """That some collectives are slow although no rank is late to them; empty if none are."""
    slow = slow_of(job.waits, window)
    if slow is None:
        return ""
    size = "" if not slow.bytes else f" of {format_bytes(slow.bytes)}"
    on_cpu = any(member.summary.facts.on_cpu for member in job.ranks.members)
    to = "to busy cores or the network" if on_cpu else "to the links or the network"
    ranks = job.aligned.calls.filter(pl.col("match") == slow.match)["at"].to_list() if slow.one_group else []
    numbers = [job.table["rank"][at] for at in ranks]
    named = len(numbers) > 1 and None not in numbers
    which = f" of {several(sorted(numbers))}" if named else ""
    return (
        f"Once all ranks are there, {format_count(slow.slow)} of {format_count(slow.calls)} calls of {slow.name}{size} take "
        f"{format_ns(slow.slow_ns)}, others {format_ns(slow.usual_ns)}: {format_ns(slow.lost_ns)} in all are lost {to}{which}."
    )


def longest_alone(job: Job) -> tuple[int, float] | None:
    """Of stages of a pipeline that never meet, of which some have no messages to compare: the place of the one that takes longest without its waits, and
    the time of a step in the middle of the others (ns); None if nobody takes longer, or if ranks meet in collectives.
    """
    rows = job.table.drop_nulls("own_ns").sort("own_ns", descending=True)
    middle = rows["own_ns"][1:].median()
    if not job.waits.collectives["name"].is_in(MESSAGES).all() or not isinstance(middle, float):
        return None
    return (rows["at"][0], middle) if rows["own_ns"][0] >= _LONGER * middle > 0 else None


def _alone(job: Job) -> str:
    """That stage in words; empty if there is none."""
    if (found := longest_alone(job)) is None:
        return ""
    at, middle = found
    longest, usual = format_ns(round(job.table["own_ns"][at])), format_ns(round(middle))
    whom = "the other" if job.table.height == PAIR else "the middle of the others"
    return f"Without its waits, {who(job.table.row(at, named=True))} takes longest: {longest} a step, against {usual} of {whom}."


def _turns(job: Job, late: Late, others: str) -> str:
    """Whether another rank keeps the others waiting about as long, at other times."""
    if not late.others:
        return ""
    second = job.table.row(late.others[0], named=True)
    whom = who(job.table.row(late.ranks[0], named=True)) if others == "the other" else others
    return f"At other times, {who(second)} keeps {whom} waiting, for {format_ns(second['caused_ns'])} in all."


def _first(job: Job, pair: Beside | None) -> str:
    """What first differs before the collective that is delayed longest; empty if nothing explains it."""
    if pair is None or pair.first is None:
        return ""
    fast = who(job.table.row(pair.fast, named=True))
    return (
        f"Before the {call_name(job, pair)}, the first difference from {fast} is {_item(pair, pair.first)}."
    )


def _compared(job: Job, pair: Beside | None, late: int, fast: int | None) -> str:
    """How two ranks compare that the reader chose."""
    one = who(job.table.row(late, named=True))
    if pair is None:
        other = "" if fast is None else f" that {who(job.table.row(fast, named=True))} takes part in"
        caused = job.table["caused_ns"][late] or 0
        if caused and fast is None:
            return f"{one[0].upper()}{one[1:]} delays others by {format_ns(caused)}, but what it does before that hardly differs from the fastest rank."
        return f"The traces show no collective{other} that waits for {one}."
    other = who(job.table.row(pair.fast, named=True))
    before = f"Before the {call_name(job, pair)}, {one} takes"
    if pair.longer_ns <= 0:
        return f"{before} no longer than {other}."
    differs = (
        "and no single thing takes much of it"
        if pair.first is None
        else f"first for {_item(pair, pair.first)}"
    )
    return f"{before} {format_ns(pair.longer_ns)} longer than {other}, {differs}."


def call_name(job: Job, pair: Beside, *, which: bool = True) -> str:
    """The collective before which two ranks are compared, inside a sentence after `the`; with `which` of several it is."""
    calls = job.waits.collectives
    call = calls.row(by_predicate=pl.col("match") == pair.match, named=True)
    alike = calls.filter((pl.col("name") == call["name"]) & pl.col("step").eq_missing(call["step"]))
    of_step = "" if call["step"] is None else f" of step {call['step']}"
    waiting = job.aligned.calls.filter((pl.col("match") == pair.match) & (pl.col("at") != pair.late))
    delays = job.waits.blame.filter(pl.col("at") == pair.late).sort("ns", "match", descending=[True, False])
    longest = not delays.height or delays["origin"][0] == pair.match
    told = " that waits longest for it" if longest else " that waits for it, too"
    return f"{waiting['name'][0]}{of_step}{told if which and alike.height > 1 else ''}"


def _item(pair: Beside, place: int) -> str:
    item = pair.items.row(place, named=True)
    name = item_name(item["kind"], item["what"], item["where"])
    return f"{name}: {format_ns(item['late_ns'])} against {format_ns(item['fast_ns'])}"


def _rests_on(job: Job) -> str:
    """How many ranks and collectives this is about, and how well the clocks agree."""
    size = job.table["wait_ns"].drop_nulls().len() or job.table.height
    world = max(job.ranks.world_size or 0, job.table.height)
    ranks = (
        f"{format_count(size)} of {format_count(world)} ranks"
        if world > size
        else "both ranks"
        if size == PAIR
        else f"all {format_count(size)} ranks"
    )
    names = job.waits.collectives["name"]
    sent = int(_sent(job).sum())
    count = names.len() - sent
    calls = job.aligned.calls
    unknown = calls.filter(pl.col("key") == UNKNOWN_GROUP, ~pl.col("name").is_in(MESSAGES)).height
    how = (
        "by recorded numbers"
        if job.aligned.numbered
        else "by size and time, since their groups were not recorded"
        if unknown
        else "by group, size and time"
    )
    matched = [f"{count_of(count, 'collective')}, matched {how}"] if count else []
    matched += (
        [f"{count_of(sent, 'message')}, matched by {'its' if sent == 1 else 'their'} order between two ranks"]
        if sent
        else []
    )
    clocks = f"; {agreement_of(job.aligned)}" if count and job.table["uncertainty_ns"].count() else ""
    return f"This is based on {' and '.join([ranks, *matched])}{clocks}.{_cut(job)}"


def agreement_of(aligned: Alignment) -> str:
    """How well the clocks agree, which collectives or messages relate."""
    related = aligned.clocks.drop_nulls("first")
    agree = f"clocks agree to {_within(max(related['uncertainty_ns'].to_list()))}"
    parts = related["first"].n_unique()
    if parts == 1:
        return agree
    return f"{agree} within each of {format_count(parts)} parts of the job, which no collective and no messages both ways connect, so times of one say little of those of another"


def _cut(job: Job) -> str:
    """That not all calls were compared; empty if they were."""
    if not job.cut:
        return ""
    most = max(member.summary.facts.all_calls for member in job.ranks.members)
    window = int(job.table["window_ns"].median() or 0)  # type: ignore[arg-type]
    share = format_share(job.compared_ns / window) if window else "part"
    return f" A rank has up to {count_of(most, 'call')}, of which the first were compared: those of {share} of the window."


def _within(ns: int) -> str:
    return format_ns(ns) if ns >= NS_PER_US else "less than 1 µs"
