"""The joint view of a simulated job: its words, tables and figure, and how large it is for thousands of ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl
import pytest
from synthetic.job import Fault, simulate, write_job

import tracekit
from tracekit.analyses.ranks import Summary, Waits, summary_of
from tracekit.analyses.ranks.blame import BLAME
from tracekit.analyses.ranks.summary import packed_frame
from tracekit.analyses.scope import select
from tracekit.job import Job, RankSet, job_of
from tracekit.job.late import Late, Slow, late_of, slow_of
from tracekit.job.rank_set import Member
from tracekit.report.build import build_report
from tracekit.report.figures import encode
from tracekit.report.formats import Format, Page, render_reports
from tracekit.report.html.charts import chart
from tracekit.report.job import job_section, latest

FAULT = Fault(rank=5, kind="compute", ns=300_000, layer=1)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    paths = write_job(simulate(seed=1, ranks=8, faults=(FAULT,)), tmp_path_factory.mktemp("job"))
    return [Member(str(path), summary_of(select(tracekit.read(path)))) for path in paths]


@pytest.fixture(scope="module")
def job(members: list[Member]) -> Job:
    return job_of(RankSet(tuple(members), 8))


def many(members: list[Member], ranks: int) -> Job:
    """The job again and again, each time in process groups of its own."""
    made = []
    for rank in range(ranks):
        one = members[rank % len(members)]
        facts = msgspec.structs.replace(
            one.summary.facts, rank=rank, world_size=ranks, name=f"rank-{rank}.json"
        )
        again = pl.format("{} of {}", pl.col("group"), pl.lit(rank // len(members)))
        calls = one.summary.calls.with_columns(again.alias("group"))
        made.append(replace(one, summary=replace(one.summary, facts=facts, calls=calls)))
    return job_of(RankSet(tuple(made), ranks))


@pytest.mark.slow
def test_the_answer_says_why_and_what_came_first(job: Job) -> None:
    section = job_section(job)
    assert section.answer.startswith(
        "Rank 5 keeps the others waiting for 1.20 ms (21.4 % of the window). On it, layer block.1 takes"
    )
    assert re.search(r"is layer block.1 in the forward pass: 45\d µs against 15\d µs\.", section.answer)
    table = section.table("beside")
    assert table is not None
    assert table.title == "Rank 5 beside rank 7, before the all_reduce of step 7: largest differences"
    assert [column.title for column in table.columns[:5]] == [
        "item",
        "where",
        "rank 5",
        "rank 7",
        "difference",
    ]


@pytest.mark.parametrize(
    ("count", "flops", "said"),
    [
        (2, 2, "It runs 2.0 times as many kernels there, with 2.0 times as many FLOPs. Before"),
        (2, None, "It runs 2.0 times as many kernels there. Before"),
        (1, 3, "It runs as many kernels there, but on larger inputs: they have 3.0 times as many FLOPs. Before"),
        (0.5, 4, "It runs fewer kernels there, but on larger inputs: they have 4.0 times as many FLOPs. Before"),
        (0.5, 1, "longer than on the others. Before"),
        (1, 1, "It has no more to compute there than the others, so it computes more slowly. Before"),
        (1, None, "longer than on the others. Before"),
        (1, 0.5, "longer than on the others. Before"),
    ],
)  # fmt: skip
def test_whether_the_late_rank_has_more_to_do(
    members: list[Member], count: float, flops: float | None, said: str
) -> None:
    """Of a layer that ran twice on one rank, or on larger inputs, the answer said only that it takes longer."""
    made = []
    for one in members:
        there = (pl.col("what") == "block.1") & (one.rank == FAULT.rank)
        each = pl.lit(0 if flops is None else 1_000)
        planted = one.summary.work.with_columns(
            (pl.col("count") * pl.when(there).then(4 * count).otherwise(4)).cast(pl.Int64).alias("count"),
            pl.when(there).then(each * pl.col("count") * (flops or 0)).otherwise(each * pl.col("count")).cast(pl.Int64).alias("flops"),
        )  # fmt: skip
        made.append(replace(one, summary=replace(one.summary, packed_work=packed_frame(planted))))
    answer = job_section(job_of(RankSet(tuple(made), 8))).answer
    assert said in answer


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (["train.py(7): log"], "(Python, mostly in train.py(7): log). Before"),
        (["train.py(7): log", "<optimizer>", "train.py(9): save"], "(Python). Before"),
        ([None], "(Python). Before"),
    ],
)
def test_where_the_late_rank_is_idle(members: list[Member], places: list[str | None], said: str) -> None:
    """The cause had no place, though most of it was in one line."""
    made = []
    for one in members:
        planted = one.summary.work
        if one.rank == FAULT.rank:
            slow = pl.col("what") == "block.1"
            idle = pl.lit("idle").alias("kind"), pl.lit("python").alias("what")
            more = [
                planted.filter(slow).with_columns(*idle, pl.lit(place, pl.String).alias("where"))
                for place in places
            ]
            planted = pl.concat([planted.filter(~slow), *more])
        made.append(replace(one, summary=replace(one.summary, packed_work=packed_frame(planted))))
    answer = job_section(job_of(RankSet(tuple(made), 8))).answer
    assert said in answer


def test_the_first_difference_has_a_row_beside_many_larger_ones(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer named a difference that the table did not show, since six others were larger."""
    pair = job.beside(5)
    assert pair is not None
    sizes = [10 if at == 2 else 1_000 + at for at in range(9)]
    items = pl.DataFrame(
        {
            "kind": "operator",
            "what": [f"aten::op{at}" for at in range(9)],
            "where": "forward",
            "first": range(9),
            "late_ns": sizes,
            "fast_ns": 0,
            "longer_ns": sizes,
        }
    )
    monkeypatch.setattr(Job, "beside", lambda *_: replace(pair, items=items, first=2))
    section = job_section(job)
    assert "aten::op2" in section.answer
    table = section.table("beside")
    assert table is not None
    assert table.frame["what"].to_list() == [f"aten::op{at}" for at in (2, 4, 5, 6, 7, 8)]


@pytest.mark.slow
def test_a_long_all_to_all_is_a_wait_for_another_rank(tmp_path: Path) -> None:
    slow = Fault(rank=6, kind="compute", ns=7_600_000, layer=0)
    made = simulate(seed=5, ranks=8, columns=8, steps=1, faults=(slow,), in_row=("all_to_all",))
    read = [Member(str(path), summary_of(select(tracekit.read(path)))) for path in write_job(made, tmp_path)]
    job = job_of(RankSet(tuple(read), 8))
    first = job.waits.collectives.row(0, named=True)
    assert (first["name"], first["latency_ns"], first["last"]) == ("all_to_all", 60_000, 6)
    waits = job.waits.calls.filter(pl.col("match") == first["match"]).sort("at")["wait_ns"]
    assert waits[0] == pytest.approx(slow.ns, rel=0.01)
    answer = job_section(job).answer
    assert answer.startswith("Rank 6 keeps the others waiting for 7.6")
    assert (
        "Before the all_to_all of step 5 that waits longest for it, the first difference from rank" in answer
    )
    assert "is layer block.0 in the forward pass: 7.75 ms against 15" in answer


@pytest.mark.slow
def test_two_late_ranks_are_both_named(tmp_path: Path) -> None:
    """Of an even job, one rank was blamed for the waits that another caused as well."""
    faults = tuple(Fault(rank=rank, kind="data", ns=ns) for rank, ns in ((1, 600_000), (6, 500_000)))
    made = write_job(simulate(seed=9, ranks=8, faults=faults), tmp_path)
    read = [Member(str(path), summary_of(select(tracekit.read(path)))) for path in made]
    answer = job_section(job_of(RankSet(tuple(read), 8))).answer
    assert answer.startswith("Ranks 1 and 6 keep others waiting, each in groups of its own, for ")


def test_who_is_late_at_the_same_times_and_in_turn() -> None:
    """Ranks of one slow node were told to keep the others waiting "at other times", or not at all, since none of them alone does; ranks that
    are late one after the other in each step "at the same times", for half of what is lost.
    """

    def told(*steps: tuple[int, ...], group: str = "all", of_step: int = 1) -> Late | None:
        """Each step has a collective (or so many), after which all go on together; by how much (ms) each of eight ranks makes it wait."""
        rows = [
            {
                "match": step,
                "late": at,
                "origin": step,
                "at": at,
                "ns": int(ms * 1e6),
                "longer_ns": int(ms * 1e6),
            }
            for step, late in enumerate(steps)
            for at, ms in enumerate(late)
        ]
        caused = [int(sum(late[at] for late in steps) * 1e6) for at in range(8)]
        table = pl.DataFrame({"at": range(8), "caused_ns": caused})
        count = range(len(steps))
        times = {"start": [10_000_000 * at for at in count], "skew_ns": 9_000_000}
        since = pl.Series("since", [None, *count[:-1]], dtype=pl.Int64)
        met = pl.DataFrame(
            {"match": count, "step": [at // of_step for at in count], "group": group, **times, "since": since}
        )
        waits = Waits(met, pl.DataFrame(), pl.DataFrame(), pl.DataFrame(rows, schema=BLAME))
        return late_of(table, waits, 100_000_000)

    node = (0, 0, 0, 0, 3, 3, 3, 3)
    assert told(node, node, node) == Late((4, 5, 6, 7), apart=False, others=(), turns=False)
    assert told((9, 0, 0, 0, 0, 0, 0, 0), (0, 8, 0, 0, 0, 0, 0, 0)) == Late(
        (0,), apart=False, others=(1,), turns=False
    )
    assert told(*[tuple(6 * (at == step) for at in range(8)) for step in range(8)]) == Late(
        (0,), apart=False, others=(), turns=True
    )
    # In each step one after the other, which adds up.
    first, second = (5, 0, 0, 0, 0, 0, 0, 0), (0, 0, 4, 0, 0, 0, 0, 0)
    assert told(first, second, first, second, of_step=2) == Late((0,), apart=False, others=(2,), turns=False)
    both = (5, 0, 4, 0, 0, 0, 0, 0)
    assert told(both, (0,) * 8, both, (0,) * 8, of_step=2) == Late(
        (0, 2), apart=False, others=(), turns=False
    )
    # 3 % of the window, in each step alike, in one step of eight, and so while others are late nearly as long.
    assert told(*[(0.375, 0, 0, 0, 0, 0, 0, 0)] * 8) == Late((0,), apart=False, others=(), turns=False)
    once, twice = (3, 0, 0, 0, 0, 0, 0, 0), (0, 1, 0, 0, 0, 0, 0, 0)
    assert told(once, *[(0,) * 8] * 7) == Late((0,), apart=False, others=(), turns=False)
    assert told(once, twice, *[(0,) * 8] * 6) is None
    assert told(*[(0.1,) * 8] * 8) is None


def test_slow_links_are_told_where_all_ranks_are_there() -> None:
    """Of calls of 0.3 and 4 ms the page said that they take 0.3 ms, and that slower ranks may be waited for."""
    row = {"name": "all_reduce", "group": "0", "bytes": 4_000_000, "ranks": 8, "group_size": 8}
    latency = [300_000] * 9 + [4_000_000] * 9
    calls = pl.DataFrame({**row, "latency_ns": latency, "match": range(18)})
    waits = Waits(calls, pl.DataFrame(), pl.DataFrame(), pl.DataFrame())
    found = Slow("all_reduce", 4_000_000, 18, 9, 300_000, 4_000_000, 9 * 3_700_000, 9, one_group=False)
    assert slow_of(waits, 60_000_000) == found
    assert slow_of(waits, 6_000_000_000) is None
    assert slow_of(replace(waits, collectives=calls.with_columns(ranks=7)), 60_000_000) is None
    # A group whose links are always slow has no fast calls of its own.
    groups = pl.Series("group", [*map(str, range(9)), *["9"] * 9])
    apart = replace(waits, collectives=calls.with_columns(groups))
    assert slow_of(apart, 60_000_000) == replace(found, one_group=True)


@pytest.mark.slow
def test_two_ranks_are_compared_as_asked(job: Job) -> None:
    pair = job.beside(5, 4)
    assert pair is not None
    assert (pair.late, pair.fast) == (5, 4)
    assert pair.first is not None
    assert pair.items["what"][pair.first] == "block.1"
    assert job.beside(5, 0) is None  # they share no process group


def test_a_chosen_rank_whose_delays_nothing_explains(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """No collective was said to wait for it, though the table said for how long they do."""
    monkeypatch.setattr(Job, "beside", lambda *_: None)
    answer = job_section(job, (0, None)).answer
    assert answer.startswith("Rank 0 delays others by 10.8 µs, but what it does before that hardly differs")


@pytest.mark.slow
def test_a_rank_without_a_trace_may_be_the_late_one(members: list[Member]) -> None:
    answer = job_section(job_of(RankSet(tuple(members[:5] + members[6:]), 8))).answer
    # In each of 4 steps the all-reduce after block.1 takes 300 µs longer, since rank 5 comes so late.
    assert answer.startswith(
        "A rank without a trace may keep the others waiting: collectives with such ranks take 1.19 ms"
    )
    assert "There is no trace of rank 5." in answer


@pytest.mark.slow
def test_a_rank_is_not_named_that_waits_in_a_group_of_which_it_alone_has_a_trace(tmp_path: Path) -> None:
    """Rank 4, whose only peer in its row is the slow one, came late to its column: it was said to keep the others waiting."""
    made = simulate(seed=5, ranks=8, columns=2, faults=(FAULT,), in_row=("all_reduce",))
    paths = [path for path in write_job(made, tmp_path) if path.name != "rank-5.json"]
    read = [Member(str(path), summary_of(select(tracekit.read(path)))) for path in paths]
    job = job_of(RankSet(tuple(read), 8))
    answer = job_section(job).answer
    assert answer.startswith(
        "A rank without a trace may keep the others waiting: collectives with such ranks take 1.2"
    )
    assert job.table.filter(pl.col("rank") == 4)["caused_ns"][0] < 0.1 * 4 * FAULT.ns
    assert job.table["speed"].min() > 0.95


@pytest.mark.slow
def test_ranks_with_different_numbers_of_steps(members: list[Member]) -> None:
    short = members[3].summary
    fewer = replace(members[3], summary=replace(short, steps=short.steps.head(2)))
    answer = job_section(job_of(RankSet((*members[:3], fewer, *members[4:]), 8))).answer
    assert "Only 2 of 4 steps are in all traces, so times of whole windows do not compare." in answer


def test_in_which_steps_a_rank_is_compared_that_has_more_of_them(members: list[Member]) -> None:
    """With uneven inputs a rank loads data in steps that the others lack: 60.7 ms were told of a delay of 119 ms, as if they were all."""
    ends = [
        one if one.rank == FAULT.rank else replace(one, summary=_until(one.summary, 6)) for one in members
    ]
    answer = job_section(job_of(RankSet(tuple(ends), 8))).answer
    assert re.search(
        r"layer block\.1 takes (59|60|61)\d µs longer than on the others, in the 2 of 4 late steps that others have, too\.",
        answer,
    )
    fewer = replace(members[0], summary=_until(members[0].summary, 6))
    assert "late steps" not in job_section(job_of(RankSet((fewer, *members[1:]), 8))).answer


def _until(summary: Summary, last: int) -> Summary:
    """Its steps and their work up to this one."""
    kept = pl.col("step") <= last
    work = packed_frame(summary.work.filter(kept))
    return replace(summary, steps=summary.steps.filter(kept), packed_work=work)


@pytest.mark.slow
def test_the_heat_map_is_drawn_as_it_is(job: Job) -> None:
    section = job_section(job)
    (figure,) = section.figures
    drawn = chart(figure)
    for shape, data in zip(drawn.maps, figure.data["maps"], strict=True):
        painted = {}
        for opacity, path in shape.paths:
            for run in path.split("M")[1:]:
                place, length, _ = run.split("h")
                x, y = map(int, place.split())
                painted |= {(x + step, y): float(opacity) for step in range(int(length.split("v")[0]))}
        for y, row in enumerate(data["rows"]):
            assert all(
                abs(painted.get((x, y), 0) - value / 100) <= 1 / 16 for x, value in enumerate(row["percent"])
            )
    assert encode(figure, "svg").startswith(b"<?xml")
    text = render_reports(Format.table, [], Page(80), section)
    assert "rank 5  " in text
    assert "░" in text


@pytest.mark.slow
def test_a_job_of_many_ranks_stays_small(members: list[Member]) -> None:
    trace = tracekit.read(members[5].path)
    report = build_report(trace)
    sizes = []
    for ranks in (64, 1_024):
        section = job_section(many(members, ranks))
        page = render_reports(Format.html, [(report, trace)], Page(), section)
        sizes.append(len(page.encode()))
        assert all(20 < len(one["rows"]) <= 32 for one in section.figures[0].data["maps"])
        table = section.table("ranks")
        assert table is not None
        assert table.frame["caused_ns"].is_sorted(descending=True)
        text = render_reports(Format.table, [(report, trace)], Page(), section)
        assert f"Ranks  20 of {ranks:,}" in text
        extremes = section.table("extremes")
        assert extremes is not None
        assert extremes.frame["speed"].to_list() == [table.frame["speed"].min(), 1.0]
    assert sizes[1] < 600_000
    assert sizes[1] < 1.2 * sizes[0]


@pytest.mark.parametrize(
    ("slow", "told"), [(0, "Without its waits, rank 0 takes longest"), (None, "No rank keeps")]
)
def test_the_first_stage_of_a_pipeline_without_collectives_is_told_by_its_own_time(
    job: Job, slow: int | None, told: str
) -> None:
    """It receives nothing that it passes on, so no message says what it takes longer: no rank kept the others waiting, it was said."""
    own = [3e6 if at == slow else 2e6 for at in range(8)]
    table = job.table.with_columns(pl.Series("own_ns", own), pl.lit(0, pl.Int64).alias("caused_ns"))
    sends = job.waits.collectives.with_columns(pl.lit("send").alias("name"))
    stages = replace(job, table=table, waits=replace(job.waits, collectives=sends))
    answer = job_section(stages).answer
    assert answer.startswith(told)
    assert "In messages, a rank waits" in answer
    assert latest(stages) == (slow or 0)


def test_waits_in_messages_are_not_said_to_be_in_collectives(job: Job) -> None:
    """Of an even pipeline "in collectives, a rank waits 52.3 % of the time" was said, nearly all of which were waits for messages."""
    table = job.table.with_columns(pl.lit(0, pl.Int64).alias("caused_ns"))
    calls = job.waits.collectives
    for names, told in (
        (pl.lit("send"), "In messages, a rank waits"),
        (pl.when(pl.int_range(pl.len()) == 0).then(pl.lit("send")).otherwise("name"), "In collectives and messages, a rank"),
        (pl.col("name"), "In collectives, a rank waits"),
    ):  # fmt: skip
        waits = replace(job.waits, collectives=calls.with_columns(names.alias("name")))
        assert told in job_section(replace(job, table=table, waits=waits)).answer


def test_one_rank_that_is_early_is_told(job: Job) -> None:
    """Of eight ranks of which one is faster "no rank keeps the others waiting", and one waits 45 % of the time: it was not said which."""
    waits = [9 if at == 3 else 0 for at in range(8)]
    most = int(job.table["compared_ns"][0] / 20)
    table = job.table.with_columns(
        pl.Series("wait_ns", [each * most for each in waits]), pl.lit(0, pl.Int64).alias("caused_ns")
    )
    answer = job_section(replace(job, table=table)).answer
    assert "In collectives, rank 3 comes early and waits for others 45.0 % of the time" in answer
