"""Which calls are one message or one collective, against pipelines and buckets whose pairs are known."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import polars as pl
import pytest

import tracekit
from tracekit.analyses.calls import CALLS
from tracekit.analyses.ranks import Alignment, Summary, align, summary_of, waits_of
from tracekit.analyses.scope import select
from tracekit.intervals import IntervalSet

MS = 1_000_000
SIZE = 4_096


@pytest.fixture(scope="module")
def one() -> Summary:
    return summary_of(select(tracekit.read("sample_traces/bert_cpu_ddp/trace-rank0.json.gz")))


def aligned(
    one: Summary, ranks: int, calls: list[dict[str, Any]], groups: tuple[tuple[int, ...], ...] = ()
) -> Alignment:
    """The ranks of a job on one clock with these calls only; their files list those of the groups in which they are."""
    known = {"group_ranks": None, "bytes": SIZE, "bus_bytes": float(SIZE), "step": 1}
    made = []
    for at in range(ranks):
        rows = [
            {**known, **call, "duration_ns": call["end"] - call["start"], "launched": call["start"]}
            for call in calls
            if call["at"] == at
        ]
        frame = pl.DataFrame([{key: row.get(key) for key in CALLS} for row in rows], schema=CALLS)
        facts = msgspec.structs.replace(
            one.facts,
            rank=at,
            world_size=ranks,
            name=f"rank{at}",
            groups=tuple(each for each in groups if at in each),
        )
        made.append(replace(one, facts=facts, calls=frame.sort("start")))
    return align(made)


def pipeline(seed: int, ranks: int = 4, steps: int = 3, parts: int = 5) -> list[dict[str, Any]]:
    """Each rank receives a part, works on it and sends it on; a send is over when it is received, or at once if it is `buffered`."""
    rng = random.Random(seed)
    now = [rng.randrange(MS) for _ in range(ranks)]
    calls = []
    for step in range(steps):
        for part in range(parts):
            for rank in range(ranks):
                now[rank] += rng.randrange(MS // 10, 2 * MS)
                if rank + 1 == ranks:
                    continue
                name = (step * parts + part) * ranks + rank
                send, receive = now[rank], now[rank + 1] + rng.randrange(MS // 10)
                received = max(send, receive) + 50_000
                buffered = rng.random() < 0.5 and send + 20_000 < receive
                done = send + 20_000 if buffered else received
                both = {"source": rank, "destination": rank + 1, "step": step, "message": name}
                calls.append({"at": rank, "name": "send", "start": send, "end": done, **both})
                calls.append({"at": rank + 1, "name": "recv", "start": receive, "end": received, **both})
                now[rank], now[rank + 1] = done, received
    return calls


@pytest.mark.parametrize("seed", range(5))
def test_sends_are_matched_with_their_receives(one: Summary, seed: int) -> None:
    """Sends were matched with sends that overlap, and receives with receives, so that the waits of a pipeline were those of nobody."""
    calls = pipeline(seed)
    made = aligned(one, 4, calls)
    messages = {(call["at"], call["start"]): call["message"] for call in calls}
    got: dict[int, set[int]] = {}
    shift = made.clocks["shift_ns"][0]
    for at, start, match in made.calls[["at", "start", "match"]].rows():
        got.setdefault(match, set()).add(messages[at, start - shift])
    assert all(len(one) == 1 for one in got.values())
    assert len(got) == len(calls) // 2
    waits = waits_of(made)
    truth = [0, 0, 0, 0]
    for send, receive in zip(calls[::2], calls[1::2], strict=True):
        truth[receive["at"]] += max(0, send["start"] - receive["start"])
        truth[send["at"]] += max(0, receive["start"] - send["start"]) if send["end"] == receive["end"] else 0
    assert waits.ranks["wait_ns"].to_list() == truth
    assert waits.collectives["name"].unique().to_list() == ["send"]
    assert waits.collectives["latency_ns"].unique().to_list() == [50_000]
    # Both its neighbours may wait for a rank at one time: that is one delay. Nobody is late for whom nobody waited.
    late: dict[int, IntervalSet] = {}
    for send, receive in zip(calls[::2], calls[1::2], strict=True):
        first, last = sorted((send, receive), key=lambda call: call["start"])
        if first["end"] > last["start"]:
            waited = IntervalSet.of([first["start"]], [last["start"]])
            late[last["at"]] = late.get(last["at"], IntervalSet.of([], [])) | waited
    assert waits.collectives["alone_ns"].sum() == sum(each.measure for each in late.values())


def test_messages_whose_numbers_differ_are_not_guessed(one: Summary) -> None:
    calls = pipeline(1)
    lost = next(call for call in calls if call["name"] == "recv" and call["at"] == 2 and call["step"] == 1)
    made = aligned(one, 4, [call for call in calls if call is not lost])
    alone = made.calls.filter(pl.col("match").is_null())[["source", "step"]].unique().rows()
    assert alone == [(1, 1)]


def test_a_message_is_not_received_before_it_is_sent(one: Summary) -> None:
    """Traces of two times have as many messages each."""
    both = {"source": 0, "destination": 1}
    calls = [
        {"at": 0, "name": "send", "start": 10 * MS, "end": 11 * MS, **both},
        {"at": 1, "name": "recv", "start": 2 * MS, "end": 3 * MS, **both},
    ]
    assert aligned(one, 2, calls).calls["match"].null_count() == 2


def test_collectives_of_one_size_that_overlap_are_matched_in_order(one: Summary) -> None:
    """Of buckets of one size that overlap, a rank's second one was matched with the other rank's first."""
    rng = random.Random(3)
    calls = []
    for step in range(4):
        before = [step * 40 * MS] * 3
        for number in range(12):
            before = [start + rng.randrange(1, 2 * MS) for start in before]  # a queue keeps its order
            calls += [
                {"at": at, "name": "all_reduce", "group": "dp", "group_size": 3, "step": step, "start": start,
                 "end": max(before) + 2 * MS + rng.randrange(2 * MS), "number": (step, number)}
                for at, start in enumerate(before)
            ]  # fmt: skip
    made = aligned(one, 3, calls)
    number = {(call["at"], call["start"]): call["number"] for call in calls}
    shift = made.clocks["shift_ns"].to_list()
    got: dict[int, set[tuple[int, int]]] = {}
    for at, start, match in made.calls[["at", "start", "match"]].rows():
        got.setdefault(match, set()).add(number[at, start - shift[at]])
    assert all(len(one) == 1 for one in got.values())
    assert len(got) == 48


def reduced(number: int, *ranks: int, **more: Any) -> list[dict[str, Any]]:
    """An all-reduce of these ranks, none of which says its group."""
    start = number * 5 * MS
    return [
        {"at": at, "name": "all_reduce", "start": start + at * 1_000, "end": start + 2 * MS, **more}
        for at in ranks
    ]


def sets(made: Alignment) -> list[list[int]]:
    """The ranks of each collective."""
    found = made.calls.drop_nulls("match").group_by("match", maintain_order=True).agg(pl.col("at").sort())
    return sorted(found["at"].to_list())


def test_collectives_of_ranks_that_share_no_group_are_none(one: Summary) -> None:
    """Without recorded groups, collectives of two groups at one time were one of three or four ranks."""
    calls = [*reduced(1, 0, 1), *reduced(1, 2, 3)]
    pairs = ((0, 1), (2, 3))
    assert sets(aligned(one, 4, calls)) == [[0, 1, 2, 3]]
    assert sets(aligned(one, 4, calls, pairs)) == [[0, 1], [2, 3]]
    # Of a mesh there are two ways.
    assert sets(aligned(one, 4, calls, (*pairs, (0, 2), (1, 3)))) == []
    assert sets(aligned(one, 4, [*calls, *reduced(2, 0, 1, 2, 3)], (*pairs, (0, 1, 2, 3))))[0] == [0, 1, 2, 3]


def test_a_call_that_one_rank_lacks_is_missing_where_all_ranks_are_one_group(one: Summary) -> None:
    """On gloo, whose ranges tell no group, a lost collective was not told."""
    calls = [each for number in range(5) for each in reduced(number, 0, 1, 2, group_size=3)]
    lost = next(each for each in calls if each["at"] == 1 and each["start"] > 10 * MS)
    left = [each for each in calls if each is not lost]
    assert aligned(one, 3, left).missing[["name", "at"]].rows() == [("all_reduce", 1)]
    assert aligned(one, 3, [{**each, "group_size": None} for each in left]).missing.height == 0
    # A root may be gone before the others come.
    gone = [{**each, "name": "broadcast"} for each in left]
    assert aligned(one, 3, gone).missing.height == 0
