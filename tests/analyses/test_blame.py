"""Who is blamed for waits, on jobs whose truth is known: how much longer they last with a slow rank than without."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest

from tracekit.analyses.ranks import Waits, waits_of
from tracekit.analyses.ranks.align import Alignment

LATENCY = 10_000
SCHEMA = {
    **dict.fromkeys(("match", "at"), pl.Int64), **dict.fromkeys(("key", "name", "group"), pl.String),
    **dict.fromkeys(("group_size", "source", "destination", "step", "stream_id", "came", "start", "end", "duration_ns", "exposed_ns", "held_ns", "bytes", "bus_bytes"), pl.Int64),
}  # fmt: skip


@dataclass
class Job:
    """The calls of some ranks on one clock, and when each rank is done."""

    ranks: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    step: int = 0

    def meet(
        self,
        starts: dict[int, int],
        name: str = "all_reduce",
        key: str = "all",
        *,
        beside: bool = False,
        **what: int,
    ) -> int:
        """All of them start a call, which ends when the last one has come and the data has moved. When that is. They
        compute `beside` it; who sends always does.
        """
        end = max(starts.values()) + LATENCY
        match = self.rows[-1]["match"] + 1 if self.rows else 0
        for at, start in starts.items():
            names = {"name": name} if name != "send" else {"name": "send" if at == what["source"] else "recv"}
            row = {
                "match": match, "at": at, "key": key, **names, "group": key, "group_size": len(starts), "step": self.step, "start": start, "end": end,
                "duration_ns": end - start,
                "exposed_ns": 0 if beside or at == what.get("source") else end - start, "bytes": 8, "bus_bytes": 8, "source": None, "destination": None,
            }  # fmt: skip
            held = {"held_ns": row["exposed_ns"], "came": start, "stream_id": 0}
            self.rows.append({**row, **held, **what})
        return end

    def without(self, rank: int) -> Job:
        """The same without the trace of a rank: a call that no other rank shares is matched with none."""
        rows = pl.DataFrame(self.rows, SCHEMA).filter(pl.col("at") != rank)
        shared = pl.when(pl.len().over("match") > 1).then("match").alias("match")
        return Job(self.ranks, rows.with_columns(shared).rows(named=True))

    def waits(self) -> Waits:
        """What the analysis says."""
        calls = pl.DataFrame(self.rows, SCHEMA).sort("start", "at")
        aligned = Alignment(calls, pl.DataFrame(), pl.DataFrame(), numbered=True, begins=(0,) * self.ranks)
        return waits_of(aligned)

    def caused(self) -> dict[int, int]:
        """Rank by rank, for how long the others wait for it."""
        found = self.waits()
        most = pl.when(pl.col("late") == pl.col("last")).then("alone_ns").otherwise("skew_ns")
        blamed = found.blame.group_by("match", "late").agg(pl.col("ns").sum())
        assert blamed.join(found.collectives, on="match").filter(pl.col("ns") > most).is_empty()
        return dict(found.ranks["at", "caused_ns"].rows())


def buckets(late_ns: int, steps: int = 3) -> tuple[Job, int]:
    """Four ranks whose backward pass hides all reductions but the last one; rank 1 starts each step late."""
    job, now = Job(4), 0
    for job.step in range(steps):
        begin = [now + (late_ns if at == 1 else 0) for at in range(4)]
        free = 0
        for bucket in range(1, 7):
            ready = {at: max(begin[at] + bucket * 100_000, free) for at in range(4)}
            free = job.meet(ready, beside=bucket < 6)
        now = free
    return job, now


def test_a_delay_that_shows_in_many_buckets_counts_once() -> None:
    """A rank that came 150 µs late to each step was blamed for 1.3 ms a step: at each bucket the others seemed to wait for it anew."""
    job, span = buckets(60_000)
    lost = span - buckets(0)[1]
    caused = job.caused()
    assert caused[1] == pytest.approx(lost, rel=0.01)
    assert sum(caused.values()) == caused[1]
    assert sum(buckets(0)[0].caused().values()) == 0


def pipeline(
    slow: int | None = None, more_ns: int = 0, stages: int = 4, parts: int = 4, steps: int = 3
) -> tuple[Job, int]:
    """Stages that pass micro-batches on, all forward passes before the backward ones; at the end of a step all of them meet."""
    job, free = Job(stages), [0] * stages

    def passes(order: range, ns: int) -> None:
        came: dict[tuple[int, int], int] = {}
        for part in range(parts):
            for at in order:
                begin = max(free[at], came.get((at, part), 0))
                free[at] = begin + ns + (more_ns if at == slow else 0)
                if (there := at + order.step) in order:
                    came[there, part] = job.meet(
                        {at: free[at], there: free[there]},
                        "send",
                        f"{min(at, there)}",
                        source=at,
                        destination=there,
                    )

    for job.step in range(steps):
        passes(range(stages), 100_000)
        passes(range(stages - 1, -1, -1), 200_000)
        free = [job.meet(dict(enumerate(free)))] * stages
    return job, free[0]


def test_nobody_is_blamed_for_how_long_a_pipeline_takes_to_fill() -> None:
    """Of equal stages one was said to keep the others waiting for a quarter of the time."""
    job, span = pipeline()
    assert max(job.caused().values()) < 0.02 * span


@pytest.mark.parametrize("slow", range(4))
def test_the_slow_stage_of_a_pipeline_is_blamed(slow: int) -> None:
    """Where receives are asked for early, the way back went in circles and ended at any rank."""
    job, span = pipeline(slow, 80_000)
    lost = span - pipeline()[1]
    caused = job.caused()
    worst = max(caused, key=lambda at: caused[at])
    assert worst == slow
    assert 0.5 * lost < caused[slow] < 1.5 * lost
    assert sum(ns for at, ns in caused.items() if at != slow) < 0.2 * lost


def test_ranks_without_a_collective_in_common_have_no_blame() -> None:
    """A report of a folder whose traces share no collective ended in a fault."""
    calls = pl.DataFrame(schema=SCHEMA)
    assert waits_of(
        Alignment(calls, pl.DataFrame(), pl.DataFrame(), numbered=False, begins=(0, 0))
    ).ranks.is_empty()


@pytest.mark.parametrize("seed", range(40))
def test_any_calls_have_blame_that_is_no_more_than_the_waits(seed: int) -> None:
    """Groups in any order, calls that overlap, receives before their sends, times of one value, ranks without a step."""
    rng = random.Random(seed)
    job = Job(rng.randrange(1, 7))
    for _ in range(rng.randrange(40)):
        job.step = rng.choice([None, 0, 0, 1])  # type: ignore[assignment]
        ranks = rng.sample(range(job.ranks), rng.randrange(1, job.ranks + 1))
        starts = {at: rng.choice([0, 10_000, 50_000, rng.randrange(10**6)]) for at in ranks}
        if len(ranks) == 2 and rng.random() < 0.5:
            job.meet(starts, "send", "p", source=ranks[0], destination=ranks[1])
        else:
            job.meet(
                starts, rng.choice(["all_reduce", "broadcast"]), rng.choice("abc"), beside=rng.random() < 0.3
            )
    assert all(ns >= 0 for ns in job.caused().values())


def test_clocks_that_lie_years_apart_have_their_order() -> None:
    """A hundred ranks on clocks three years apart overflowed the numbers that order their calls."""
    job, far = Job(100), 3 * 365 * 86_400 * 10**9
    for at in range(0, 100, 2):
        for number in range(3):
            job.meet(
                {
                    at: at // 2 * far + number * 1_000_000,
                    at + 1: at // 2 * far + number * 1_000_000 + 5_000 * (number == 1),
                },
                key=f"{at}",
            )
    assert [ns for ns in job.caused().values() if ns] == [5_000] * 50


def overlapped(
    late_ns: int, transfer_ns: int, bucket_ns: int = 100_000, steps: int = 3, slow_bucket_ns: int = 0
) -> tuple[Job, int]:
    """Four ranks that reduce six buckets of gradients in a stream of their own while they compute, and meet at the end of each step. Rank 1
    begins each step late, or computes its third bucket longer.
    """
    job, now = Job(4), 0
    for job.step in range(steps):
        came = {}
        for at in range(4):
            begin = now + (late_ns if at == 1 else 0)
            more = slow_bucket_ns if at == 1 else 0
            came[at] = [begin + bucket * bucket_ns + (more if bucket > 2 else 0) for bucket in range(1, 7)]
        free = 0
        for bucket in range(6):
            starts = {at: max(came[at][bucket], free) for at in range(4)}
            end = max(starts.values()) + transfer_ns
            for at, start in starts.items():
                job.meet({at: start})
                computes = max(0, min(came[at][-1], end) - start)
                job.rows[-1] |= {
                    "match": 6 * job.step + bucket, "group_size": 4, "came": came[at][bucket], "end": end, "duration_ns": end - start,
                    "exposed_ns": end - start - computes, "held_ns": end - start - computes,
                }  # fmt: skip
            free = end
        now = free
    return job, now


@pytest.mark.parametrize("transfer_ns", [10_000, 60_000, 100_000, 150_000])
@pytest.mark.parametrize("late_ns", [20_000, 100_000, 400_000, 2_000_000])
def test_a_rank_that_is_late_to_overlapped_buckets_is_blamed_for_what_the_job_loses(
    late_ns: int, transfer_ns: int
) -> None:
    """The others computed while they waited for the first bucket, and then only moved data that they would have moved while they computed: "no rank
    keeps the others waiting" was said of a loss of a quarter of the step.
    """
    job, span = overlapped(late_ns, transfer_ns)
    lost = span - overlapped(0, transfer_ns)[1]
    caused = job.caused()
    assert caused[1] == pytest.approx(lost, rel=0.05)
    assert sum(ns for at, ns in caused.items() if at != 1) == 0


@pytest.mark.parametrize("transfer_ns", [60_000, 150_000])
def test_a_bucket_that_takes_longer_on_one_rank_is_what_the_job_loses(transfer_ns: int) -> None:
    job, span = overlapped(0, transfer_ns, slow_bucket_ns=300_000)
    lost = span - overlapped(0, transfer_ns)[1]
    assert job.caused()[1] == pytest.approx(lost, rel=0.1)


def test_a_wait_without_queued_work_keeps_no_rank_from_computing() -> None:
    """Where the host was late itself, each small bucket seemed to hold it up: equal ranks were blamed for 7 % of the window."""
    job, now = Job(2), 0
    for job.step in range(20):
        starts = {at: now + (30_000 if at == job.step % 2 else 0) for at in range(2)}
        job.meet(starts)
        for row in job.rows[-2:]:
            row["held_ns"] = 0
        now += 200_000
    assert sum(job.caused().values()) == 0


def test_each_rank_of_a_slow_node_is_blamed_for_what_the_others_lose() -> None:
    """Of four ranks that are late together each came hardly later than the next one, so the last one alone was blamed, for 2 µs."""
    job, now = Job(8), 0
    for job.step in range(5):
        now = job.meet({at: now + 200_000 + (100_000 + 500 * at if at > 3 else 700 * at) for at in range(8)})
    caused = job.caused()
    assert all(caused[at] == pytest.approx(5 * 100_000, rel=0.05) for at in range(4, 8))
    assert sum(caused[at] for at in range(4)) == 0
    # One of three is late, not two: the first one is early.
    job, now = Job(3), 0
    for job.step in range(5):
        now = job.meet({0: now, 1: now + 100_000, 2: now + 101_000})
    assert max(job.caused().values()) <= 5 * 1_000


def grid(slow: int, more_ns: int, steps: int = 5, layers: int = 4) -> Job:
    """Pairs of ranks meet after each layer, and their halves at the end of a step; one rank is slow in one layer."""
    job, done = Job(4), [0] * 4
    for job.step in range(steps):
        for layer in range(layers):
            come = [
                now + 300_000 + (more_ns if at == slow and layer == 2 else 0) for at, now in enumerate(done)
            ]
            for pair in (0, 2):
                members = {at: come[at] for at in (pair, pair + 1)}
                done[pair] = done[pair + 1] = job.meet(members, key=f"tensor {pair}")
        for half in (0, 1):
            both = {at: done[at] for at in (half, half + 2)}
            done[half] = done[half + 2] = job.meet(both, key=f"data {half}", bytes=16)
    return job


def test_a_rank_that_waits_for_one_without_a_trace_is_not_blamed() -> None:
    """Its own calls showed that it waited, in a group of which it alone had a trace: it was named, with 23 % of the window."""
    made = grid(slow=3, more_ns=1_500_000).without(3)
    assert max(made.caused().values()) == 0
    unseen = dict(made.waits().ranks["at", "unseen_ns"].rows())
    assert unseen == {0: 0, 1: 5 * 1_500_000, 2: 5 * 1_500_000}
    assert made.waits().collectives["ranks"].to_list() == [2] * (5 * 4 + 5)
    # The slow rank itself waits for nobody there.
    assert grid(slow=2, more_ns=1_500_000).without(3).caused() == {0: 0, 1: 0, 2: 5 * 1_500_000}


def test_a_message_between_two_traces_is_no_wait_for_a_rank_without_one() -> None:
    """Of a pipeline with more stages than a message has ranks, messages were said to be with ranks of no trace."""
    job = Job(3)
    for number in range(4):
        now = number * 1_000_000
        for at in (0, 1):
            begin = {at: now + 100_000 * number, at + 1: now}
            job.meet(begin, "send", "stages", source=at, destination=at + 1, group_size=3)
    assert job.without(2).waits().ranks["unseen_ns"].to_list() == [0, 0]
