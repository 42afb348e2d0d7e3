"""Clocks, matching and blame against planted truths and slow oracles."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest
from synthetic.job import LATENCY, simulate

from tracekit.analyses.ranks.align import Alignment
from tracekit.analyses.ranks.blame import blame_of
from tracekit.analyses.ranks.clocks import clocks_of, with_messages
from tracekit.analyses.ranks.matching import by_time, missing_calls
from tracekit.analyses.ranks.own_clock import together_since
from tracekit.analyses.ranks.waits import waits_of

INTS = pl.Int64


@pytest.mark.parametrize("seed", range(6))
def test_offsets_of_16_ranks_are_recovered_to_a_microsecond(seed: int) -> None:
    rng = random.Random(seed)
    job = simulate(seed=seed, ranks=16)
    match = {key: number for number, key in enumerate({(c.group, c.sequence): 0 for c in job.calls})}
    # Ranks leave a collective within 800 ns of each other; each file begins at another time of its own clock.
    begins = [rng.randrange(10**9) for _ in range(16)]
    rows = [
        (
            c.rank,
            c.name,
            c.end + job.offsets[c.rank] - begins[c.rank] + rng.randrange(800),
            match[c.group, c.sequence],
        )
        for c in job.calls
    ]
    calls = pl.DataFrame(rows, schema=("at", "name", "end", "match"), orient="row")
    made = clocks_of(calls, calls["match"], np.array(begins) - begins[0])
    first = job.offsets[0]
    errors = [offset - (first - ahead) for offset, ahead in zip(made["offset_ns"], job.offsets, strict=True)]
    assert max(map(abs, errors)) < 1_000
    assert all(abs(error) <= unsure for error, unsure in zip(errors, made["uncertainty_ns"], strict=True))
    shifts = [begin - begins[0] + first - ahead for begin, ahead in zip(begins, job.offsets, strict=True)]
    assert max(abs(got - true) for got, true in zip(made["shift_ns"], shifts, strict=True)) < 1_000


def test_a_drift_of_the_clock_is_in_the_uncertainty() -> None:
    ends = np.arange(2_000) * 1_000_000
    drifted = ends + (ends * 50e-6).astype(np.int64)
    calls = pl.DataFrame(
        {"at": np.repeat([0, 1], 2_000), "end": np.concatenate([ends, drifted])}
    ).with_columns(name=pl.lit("all_reduce"))
    match = pl.Series(np.tile(np.arange(2_000), 2))
    made = clocks_of(calls, match, np.zeros(2, dtype=np.int64)).row(1, named=True)
    errors = np.abs(drifted + made["offset_ns"] - ends)
    assert np.mean(errors <= made["uncertainty_ns"]) >= 0.9
    assert made["uncertainty_ns"] <= errors.max()


def test_a_rank_that_is_late_out_of_one_collective_keeps_its_offset() -> None:
    """One of ten calls that ended 60 µs late made the range larger than the offset, which was thrown away."""
    ends = np.arange(10) * 1_000_000
    ahead = ends + 40_000 + np.arange(10) % 3 * 100
    ahead[4] += 60_000
    calls = pl.DataFrame({"at": np.repeat([0, 1], 10), "end": np.concatenate([ends, ahead])}).with_columns(
        name=pl.lit("all_reduce")
    )
    made = clocks_of(calls, pl.Series(np.tile(np.arange(10), 2)), np.zeros(2, dtype=np.int64)).row(
        1, named=True
    )
    assert (made["offset_ns"], made["uncertainty_ns"]) == (-40_100, 200)


def test_messages_both_ways_relate_clocks_that_no_collective_does() -> None:
    """The clocks of the stages of a pipeline were 3 ms apart, were said to agree to 1 µs, and half of the messages matched nothing."""
    truth = [0, 200_000, 100_000, 300_000]
    ahead = {0: 0, 1: 3_000_000}
    rows = []
    for match, (sender, start) in enumerate(zip((0, 1, 0, 1), truth, strict=True)):
        rows += [
            (at, "send" if at == sender else "recv", start + ahead[at], start + 40_000 + ahead[at], match)
            for at in (0, 1)
        ]
    calls = pl.DataFrame(rows, schema=("at", "name", "start", "end", "match"), orient="row")
    clocks = clocks_of(calls, calls["match"], np.zeros(2, dtype=np.int64))
    made = with_messages(clocks, calls, calls["match"])
    assert made.row(1, named=True) == {
        "at": 1,
        "shift_ns": -3_000_000,
        "offset_ns": -3_000_000,
        "uncertainty_ns": 40_000,
        "calls": 0,
        "first": 0,
    }
    one_way = calls.filter(pl.col("match") % 2 == 0)
    assert with_messages(clocks, one_way, one_way["match"]).equals(clocks)


def test_the_surest_way_counts_and_parts_without_one_are_null() -> None:
    # 0 and 2 meet in calls that end 40 µs apart at times; both meet 1 in calls that end together. 3 and 4 meet each other alone.
    pairs = [
        (0, 2, [100_000, 140_000, 120_000]),
        (0, 1, [0, 10, 5]),
        (1, 2, [90_000, 90_010, 90_005]),
        (3, 4, [7_000, 7_000, 7_000]),
    ]
    rows = [(at, 1_000_000 * (10 * place + number) + late * (at == second), 10 * place + number)
            for place, (first, second, lates) in enumerate(pairs) for number, late in enumerate(lates) for at in (first, second)]  # fmt: skip
    calls = pl.DataFrame(rows, schema=("at", "end", "match"), orient="row").with_columns(
        name=pl.lit("barrier")
    )
    made = clocks_of(calls, calls["match"], np.zeros(6, dtype=np.int64))
    assert made["offset_ns"].to_list() == [0, 0, -90_005, 0, -7_000, None]
    assert made["uncertainty_ns"].to_list() == [0, 10, 20, 0, 0, None]


def one_by_one(calls: pl.DataFrame, shift: np.ndarray) -> list[int | None]:
    """`by_time` as it is defined, call by call."""
    kinds = calls.select(pl.struct("key", "name", "size").rank("dense")).to_series().to_list()
    rows = [
        (kind, start + int(shift[at]) + duration, row, at, duration)
        for row, (kind, (at, start, duration)) in enumerate(zip(kinds, calls.select("at", "start", "duration_ns").rows(), strict=True))
    ]  # fmt: skip
    number, current, kind_now, first_end, members = [0] * len(rows), -1, None, 0, set[int]()
    for kind, end, row, at, duration in sorted(rows, key=lambda one: one[:3]):
        if kind != kind_now or at in members or end - duration > first_end:
            current, kind_now, first_end, members = current + 1, kind, end, set()
        members.add(at)
        number[row] = current
    return [one if number.count(one) > 1 else None for one in number]


def with_kind(calls: pl.DataFrame) -> pl.DataFrame:
    kind = pl.struct("key", "name", "size").rank("dense").cast(pl.Int64)
    return calls.with_columns(kind.alias("kind"))


@pytest.mark.parametrize("apart", [1, 10**16])
def test_matching_by_time_is_that_of_call_by_call(apart: int) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        ranks, count = rng.randrange(1, 6), rng.randrange(1, 50)
        columns = {
            "at": [rng.randrange(ranks) for _ in range(count)],
            "start": [rng.randrange(60) * apart for _ in range(count)],
            "duration_ns": [rng.randrange(12) * apart for _ in range(count)],
            "key": [rng.choice("ab") for _ in range(count)],
            "name": [rng.choice("xy") for _ in range(count)],
            "size": [rng.choice([None, 5, 6]) for _ in range(count)],
        }
        calls = pl.DataFrame(columns, schema_overrides={"size": INTS}).sort(
            "at", "start", maintain_order=True
        )
        shift = np.array([rng.randrange(-5, 5) for _ in range(ranks)])
        groups: dict[int, int] = {}
        made = [
            None if one is None else groups.setdefault(one, len(groups))
            for one in by_time(with_kind(calls), shift).to_list()
        ]
        groups = {}
        assert made == [
            None if one is None else groups.setdefault(one, len(groups)) for one in one_by_one(calls, shift)
        ]


def test_equal_calls_in_flight_at_once_were_mixed_up() -> None:
    """The first rank is early with both of its equal buckets; both ranks leave each of them together."""
    calls = pl.DataFrame(
        {
            "at": [0, 0, 1, 1],
            "start": [0, 5, 50, 55],
            "duration_ns": [100, 105, 51, 56],
            "key": ["g"] * 4,
            "name": ["all_reduce"] * 4,
            "size": [8] * 4,
        }
    )
    first, second, third, fourth = by_time(with_kind(calls), np.zeros(2, dtype=np.int64))
    assert (first, second) == (third, fourth)
    assert first != second


def test_blame_follows_a_delay_back_to_where_it_arose() -> None:
    # Rank 2 is 30 late before the first collective; 1 waits for it there, and so comes 30 late to a collective with 0. Then 1 adds 7 itself.
    rows = [
        (1, 1, 100, 135), (1, 2, 130, 135), (1, 3, 100, 135),
        (2, 1, 145, 150), (2, 0, 115, 150), (2, 4, 114, 150),
        (3, 1, 167, 170), (3, 0, 160, 170), (3, 4, 160, 170),
    ]  # fmt: skip
    before = [(0, rank, 0, 90) for rank in range(5)]
    ready = pl.col("start").max().over("match")
    key = pl.col("match").replace_strict({0: "all", 1: "a", 2: "b", 3: "b"})
    calls = pl.DataFrame(before + rows, schema=("match", "at", "start", "end"), orient="row").with_columns(
        ready.alias("ready"), *((ready - pl.col("start")).alias(name) for name in ("wait_ns", "blocked_ns")), key.alias("key"),
        *(pl.lit(None, dtype=INTS).alias(name) for name in ("step", "bytes", "source", "destination")),
        name=pl.lit("all_reduce"), held=pl.lit(value=True), is_last=pl.col("start") == ready, behind=-1, alone=pl.lit(value=False), row=pl.int_range(pl.len()),
    )  # fmt: skip
    collectives = pl.DataFrame(
        [(0, 0, 0, 0), (1, 100, 2, 30), (2, 114, 1, 30), (3, 160, 1, 7)],
        schema=("match", "start", "last", "alone_ns"),
        orient="row",
    )
    collectives = collectives.with_columns(together_since(calls, collectives))
    assert collectives["since"].to_list() == [None, 0, 0, 2]
    late = collectives.select("match", pl.col("last").alias("late"), "alone_ns")
    blame = blame_of(calls, collectives, late, np.zeros(5, dtype=np.int64))
    assert blame.drop("late").rows() == [(1, 1, 2, 30, 30), (2, 1, 2, 30, 30), (3, 3, 1, 7, 7)]


def test_waits_of_calls_that_run_at_once_count_once() -> None:
    """Two buckets of gradients wait for one rank at a time: their waits summed to 140 % of the window, and its speed to 0."""
    rows = [
        (match, at, start, ready + 5)
        for match, starts in ((1, (100, 104, 150)), (2, (120, 118, 190)), (3, (300, 310, 290)))
        for ready in (max(starts),)
        for at, start in enumerate(starts)
    ]
    calls = pl.DataFrame(rows, schema=("match", "at", "start", "end"), orient="row").with_columns(
        (pl.col("end") - pl.col("start")).alias("duration_ns"),
        *(pl.lit(1).alias(name) for name in ("bytes", "bus_bytes", "step")),
        pl.lit(3).alias("group_size"),
        *(pl.lit("g").alias(name) for name in ("key", "name", "group")),
        *(
            pl.lit(None, dtype=INTS).alias(name)
            for name in ("source", "destination", "exposed_ns", "held_ns")
        ),
        pl.col("match").alias("stream_id"),
        pl.col("start").alias("came"),
    )
    waits = waits_of(Alignment(calls, pl.DataFrame(), pl.DataFrame(), numbered=True))
    # Rank 0 waits from 100 to 150, from 120 to 190 and from 300 to 310; rank 1 from 104 and 118.
    assert waits.ranks["wait_ns"].to_list() == [90 + 10, 86, 20]
    # Without the last rank, rank 1 would be done with the second one at 123, not 195: 46 for the first, and the rest.
    assert waits.collectives["alone_ns"].to_list() == [46, 26, 10]
    # Rank 2 is 48 later than the middle of the others to the first one, as far as they wait 46, and by 23 more to the second one.
    assert waits.ranks["caused_ns"].to_list() == [0, 10, 46 + 23]


def test_a_call_that_one_rank_of_two_lost_is_missing_and_a_send_is_not() -> None:
    rows = [
        (at, "all_reduce", start, start + 5, match)
        for match, start in ((1, 0), (2, 20), (4, 60))
        for at in (0, 1)
    ]
    rows += [(0, "all_reduce", 40, 45, None), (0, "send", 50, 55, None)]
    calls = pl.DataFrame(rows, schema=("at", "name", "start", "end", "match"), orient="row").with_columns(
        key=pl.lit("g"), size=pl.lit(None, dtype=INTS), sequence=pl.lit(None, dtype=INTS)
    )
    assert missing_calls(calls).rows() == [("g", "all_reduce", None, 1)]
    other = pl.DataFrame(
        [(1, "all_reduce", 47, 49, None)], schema=calls.drop("key", "size", "sequence").schema, orient="row"
    )
    none = pl.lit(None, dtype=INTS)
    both = pl.concat([calls, other.with_columns(key=pl.lit("g"), size=none, sequence=none)])
    # Two calls that do not overlap may be one collective on clocks that are wrong.
    assert missing_calls(both).height == 0


def test_the_simulated_latency_is_what_the_oracles_take_for_granted() -> None:
    job = simulate(seed=1, ranks=4, columns=2, steps=1)
    assert all(call.end == call.ready + LATENCY[call.name] for call in job.calls)
