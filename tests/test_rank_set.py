"""Which rank a file is of by its name, and which traces are one job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from commands import run
from synthetic.job import simulate, write_job

import tracekit
from tracekit.analyses.ranks import Summary, align, summary_of
from tracekit.analyses.scope import select
from tracekit.job import job_of, rank_sets
from tracekit.job.rank_set import Member
from tracekit.readers.common.trace_frames import place_in_name, rank_in_name
from tracekit.report.job_set import oddities_of, other_jobs


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-3.json.gz", 3),  # Megatron
        ("rank3_trace.json", 3),  # torchtitan
        ("rank_3.1700000000000.pt.trace.json", 3),
        ("worker3_trace.json", 3),
        ("worker3.1700000000000.pt.trace.json", 3),
        ("profile_812_node_1_rank_9_on_host7.nsys-rep", 9),
        ("report_rank12.sqlite", 12),
        ("rank0.1700000000000.pt.trace.json.gz", 0),  # vLLM
        ("dp0_pp1_tp3_dcp0_ep3_rank7.1700000000000.pt.trace.json.gz", 7),
        ("dp0_pp0_tp3_dcp0_ep3.pt.trace.json.gz", 3),
        ("dp1_pp0_tp0_dcp0_ep4_rank0.1700000000000.pt.trace.json.gz", None),  # of the second engine
        ("1748591221.4-TP-3.trace.json.gz", 3),  # SGLang
        ("1748591221.4-TP-3-DECODE.trace.json.gz", 3),
        ("1748591221.4-TP-3-EP-1.trace.json.gz", 3),
        ("1748591221.4-TP-0-DP-0-PP-0-EP-0.trace.json.gz", 0),
        ("1748591221.4-TP-3-DP-1.trace.json.gz", None),
        ("1748591221.4-TP-3-PP-1.trace.json.gz", None),
        ("node17_20113.1700000000000.pt.trace.json.gz", None),  # TensorBoard: HOST_PID.TIME
        ("job-worker-3_20113.1700000000000.pt.trace.json.gz", None),
        ("trace_local_rank0.json", None),
        ("tp_rank1.json", None),
        ("report3.nsys-rep", None),  # nsys counts its reports
        ("frank3.json", None),
        ("trace.json", None),
    ],
)
def test_rank_in_the_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_places_of_a_grid_are_distinct() -> None:
    names = [f"17.5-TP-{tp}-DP-{dp}.trace.json.gz" for tp in range(4) for dp in range(2)]
    assert len({tuple(place_in_name(name).items()) for name in names}) == 8


# -- sets of traces: one simulated job, altered in its summaries -----------------------------------


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[Member]:
    folder = tmp_path_factory.mktemp("four")
    paths = write_job(simulate(seed=1, ranks=4, columns=2), folder)
    return [Member(str(path), summary_of(select(tracekit.read(path)))) for path in paths]


def renamed(member: Member, name: str, **facts: Any) -> Member:
    changed = msgspec.structs.replace(member.summary.facts, **facts)
    return Member(str(Path(member.path).with_name(name)), replace(member.summary, facts=changed))


def shifted(member: Member, name: str, ns: int) -> Member:
    """The same a time later, and not quite the same."""
    facts = member.summary.facts
    return renamed(
        member, name, origin_utc_ns=(facts.origin_utc_ns or 0) + ns, compute_ns=facts.compute_ns + 1
    )


def told(*members: Member) -> str:
    found = rank_sets(members)
    return " ".join(filter(None, (oddities_of(job_of(found[0])), other_jobs(found, members))))


def of_calls(member: Member, keep: pl.Expr) -> Member:
    calls = member.summary.calls.with_row_index().filter(keep).drop("index")
    facts = msgspec.structs.replace(member.summary.facts, all_calls=calls.height)
    return Member(member.path, replace(member.summary, calls=calls, facts=facts))


HOUR = 3_600 * 10**9


@pytest.mark.slow
def test_a_whole_job_has_nothing_odd(four: list[Member]) -> None:
    assert told(*four) == ""


@pytest.mark.slow
def test_what_is_odd_about_a_set_is_said(four: list[Member]) -> None:
    first, second, third, fourth = four
    assert told(first, second, fourth) == "There is no trace of rank 2."
    assert told(*four, renamed(third, "other.json")) == "1 file is a copy of another one and does not count."
    assert (
        told(*four, shifted(third, "other.json", 0))
        == "There are several traces of rank 2; the first by name counts."
    )
    unknown = [renamed(member, f"x{at}.json", rank=None) for at, member in enumerate(four)]
    assert told(*unknown) == "No trace says which rank it is."
    assert told(*four[:3], unknown[3]) == "1 trace does not say which rank it is."
    extra = [*unknown, shifted(unknown[3], "x4.json", 0)]
    assert "The job has 4 ranks: check whether all traces are from one run." in told(*extra)
    assert (
        told(*four[:3], of_calls(fourth, pl.lit(value=False))) == "The trace of rank 3 holds no collective."
    )
    lost = (pl.col("name") == "all_reduce").cum_sum() != 7
    assert told(first, of_calls(second, lost | (pl.col("name") != "all_reduce")), third, fourth) == (
        "1 call of a collective is missing on rank 1, which took part before and after."
    )
    late = [shifted(member, Path(member.path).name, HOUR) for member in four[2:]]
    assert told(*four[:2], *late) == (
        "By their clocks, some of the traces were recorded 60 minutes after others: check whether all are from one run."
    )


@pytest.mark.slow
def test_steps_that_differ(four: list[Member]) -> None:
    def of_steps(member: Member, *steps: int) -> Member:
        kept = member.summary.steps.filter(pl.col("step").is_in(steps))
        return Member(member.path, replace(member.summary, steps=kept))

    assert told(*four[:3], of_steps(four[3], 6, 7)).startswith("Only 2 of 4 steps are in all traces")
    assert told(*four[:3], of_steps(four[3])) == "1 trace has no step."
    apart = [of_steps(member, 5 + at) for at, member in enumerate(four)]
    assert told(*apart) == "The traces have no step in common."


@pytest.mark.slow
def test_other_jobs_and_how_to_see_them(four: list[Member]) -> None:
    later = [shifted(member, f"later-{at}.json", HOUR) for at, member in enumerate(four)]
    assert "of 2 jobs, of which this is one, of 4 ranks" in told(*four, *later)
    assert "give only the files like later-0.json to see another" in told(*four, *later)
    small = [
        renamed(member, f"small-{at}.json", world_size=2, compute_ns=1) for at, member in enumerate(four[:2])
    ]
    found = rank_sets([*small, *four])
    assert [(len(one.members), one.world_size) for one in found] == [(4, 4), (2, 2)]
    assert told(*four, small[0]) == (
        "1 trace records another number of ranks or backend, or none, and does not count: small-0.json."
    )


@pytest.mark.slow
def test_two_jobs_that_ran_at_one_time_stay_apart(four: list[Member]) -> None:
    """Ranks 0 and 1 of one and ranks 2 and 3 of the other were made one job, in which nobody was late."""
    begin = four[0].summary.facts.origin_utc_ns or 10**18
    hosts = [
        renamed(member, f"host{(at // 2 + job) % 2}_{100 * job + at}.pt.trace.json", origin_utc_ns=begin + 3_000_000 * job + at, compute_ns=job)
        for job in range(2) for at, member in enumerate(four)
    ]  # fmt: skip
    assert [[member.summary.facts.compute_ns for member in one.members] for one in rank_sets(hosts)] == [
        [0] * 4,
        [1] * 4,
    ]
    named = [
        renamed(member, f"{job}_rank{at}.json", origin_utc_ns=begin, compute_ns=ord(job))
        for job in "ab"
        for at, member in enumerate(four)
    ]
    assert [[member.summary.facts.compute_ns for member in one.members] for one in rank_sets(named)] == [
        [97] * 4,
        [98] * 4,
    ]


@pytest.mark.slow
def test_ranks_that_did_the_same_at_the_same_time_are_no_copies(four: list[Member]) -> None:
    """Of eight ranks, each with its number in its file, six were copies of others, and there was no trace of them."""
    alike = [renamed(four[0], f"rank{at}.json", rank=at, world_size=4) for at in range(4)]
    (one,) = rank_sets(alike)
    assert ([member.rank for member in one.members], one.copies) == ([0, 1, 2, 3], 0)


@pytest.mark.slow
def test_records_that_a_rank_lacks_are_said(four: list[Member]) -> None:
    broken = renamed(four[2], "rank-2.json", incomplete=True)
    assert told(*four[:2], broken, four[3]) == "The trace of rank 2 lacks records."


@pytest.mark.slow
def test_replicas_of_a_server_are_jobs_of_their_own_and_places_stay_distinct(four: list[Member]) -> None:
    pairs = [
        renamed(four[tp], f"17.5-TP-{tp}-DP-{dp}.json", compute_ns=dp) for dp in range(2) for tp in range(2)
    ]
    assert [[Path(member.path).name for member in one.members] for one in rank_sets(pairs)] == [
        [f"17.5-TP-{tp}-DP-{dp}.json" for tp in range(2)] for dp in range(2)
    ]
    grid = [
        renamed(four[tp], name, rank=rank_in_name(name), world_size=None, compute_ns=dp)
        for tp in range(4)
        for dp in range(2)
        for name in (f"17.5-TP-{tp}-DP-{dp}.json",)
    ]
    (one,) = rank_sets(grid)
    assert [member.rank for member in one.members] == [0, 1, 2, 3, None, None, None, None]
    assert (one.missing, one.repeated, one.copies) == ([], (), 0)


@pytest.mark.slow
def test_broken_files_of_a_folder_are_said(
    four: list[Member], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for member in four[:3]:
        (tmp_path / Path(member.path).name).write_bytes(Path(member.path).read_bytes())
    (tmp_path / "rank-3.json.gz").write_bytes(b"")
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "ranks.parquet").write_bytes(b"PAR1")  # a table of tracekit's, not an export
    line = f"tracekit: left out: {tmp_path / 'rank-3.json.gz'}: the file is empty\n"
    for _ in range(2):  # also if the answer is at hand
        code, out, err = run(capsys, "report", tmp_path, "-f", "json")
        assert (code, err) == (0, line)
        job = json.loads(out)["job"]
        assert job["tables"]["unread"] == [
            {"rank": 3, "trace": "rank-3.json.gz", "error": "the file is empty"}
        ]
        assert "There is no trace of rank 3. 1 file could not be read: rank-3.json.gz." in job["answer"]
    code, out, err = run(capsys, "collectives", tmp_path)
    assert (code, err, out.count("══ rank-")) == (0, line, 3)


@pytest.mark.slow
def test_without_a_common_clock_and_step_nothing_is_matched(four: list[Member]) -> None:
    def other_steps(member: Member, later: int, utc: int | None) -> Summary:
        moved = pl.col("step") + later
        calls = member.summary.calls.with_columns(moved, pl.lit(None, dtype=pl.Int64).alias("sequence"))
        facts = msgspec.structs.replace(member.summary.facts, origin_utc_ns=utc)
        return replace(
            member.summary, facts=facts, calls=calls, steps=member.summary.steps.with_columns(moved)
        )

    bare = align([other_steps(member, 10 * at, None) for at, member in enumerate(four)])
    assert bare.calls["match"].null_count() == bare.calls.height
    assert bare.clocks["offset_ns"].null_count() == 4
    utc = align(
        [other_steps(member, 10 * at, member.summary.facts.origin_utc_ns) for at, member in enumerate(four)]
    )
    assert utc.calls["match"].null_count() < utc.calls.height


def test_exports_of_nsight_are_the_missing_ranks_of_the_job_of_their_time(four: list[Member]) -> None:
    """They tell neither the size of their job nor its backend: two of four ranks were another job, and nobody was late."""
    other = [renamed(one, Path(one.path).name, world_size=None, backend=None) for one in four[2:]]
    (job,) = rank_sets([*four[:2], *other])
    assert [member.rank for member in job.members] == [0, 1, 2, 3]
    assert (job.world_size, job.missing) == (4, [])
    late = [shifted(one, Path(one.path).name, 3_600_000_000_000) for one in other]
    assert len(rank_sets([*four[:2], *late])) == 2
    again = [renamed(one, Path(one.path).name, rank=rank) for rank, one in enumerate(other)]
    assert len(rank_sets([*four[:2], *again])) == 2
