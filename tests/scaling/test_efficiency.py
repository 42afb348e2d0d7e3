"""The parts of the lost efficiency sum to it exactly, and are those of a simulated job and of a computation by hand."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic.job import Fault, Job, simulate, write_job

from tracekit.job import summarise
from tracekit.job.rank_set import Member
from tracekit.scaling import PARTS, Run, runs_of, same_program, scaling_of
from tracekit.scaling.efficiency import losses_of

KEYS = [(part, cause) for part in PARTS for cause in (("python", "") if part == "idle" else ("",))]


def run(ranks: int, step_ns: int, samples: int | None, name: str = "", **shares: Fraction) -> Run:
    parts = {(part, ""): share for part, share in shares.items()}
    rest = 1 - sum(parts.values(), Fraction())
    return Run(
        name=name or f"r{ranks}", ranks=ranks, step_times=(step_ns,) * 3, samples=samples, shares={("compute", ""): rest, **parts}
    )  # fmt: skip


@st.composite
def some_runs(draw: st.DrawFn) -> list[Run]:
    runs = []
    for at, ranks in enumerate(draw(st.lists(st.integers(1, 64), min_size=1, max_size=5))):
        weights = draw(st.lists(st.integers(1, 10**12), min_size=len(KEYS), max_size=len(KEYS)))
        whole = sum(weights)
        shares = {key: Fraction(weight, whole) for key, weight in zip(KEYS, weights, strict=True)}
        times = tuple(draw(st.lists(st.integers(1, 10**12), min_size=1, max_size=4)))
        samples = draw(st.integers(1, 10**6))
        runs.append(Run(name=str(at), ranks=ranks, step_times=times, samples=samples, shares=shares))
    return runs


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(some_runs())
def test_losses_sum_to_what_is_lost(runs: list[Run]) -> None:
    made = scaling_of(runs)
    for row in made.table.iter_rows(named=True):
        parts = [row[f"{part}_loss_share"] for part in PARTS]
        assert sum(parts) == pytest.approx(row["lost_share"], abs=1e-9 * max(map(abs, parts)))
        assert row["lost_share"] == pytest.approx(1 - row["efficiency"])
        mine = made.losses.filter(pl.col("run") == row["run"])["loss_share"]
        assert mine.sum() == pytest.approx(row["lost_share"], abs=1e-9 * max(map(abs, parts)))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(*[st.dictionaries(st.sampled_from(KEYS), st.fractions(min_value=Fraction(1, 10**9)), min_size=1)] * 2)
def test_losses_are_exact(
    base: dict[tuple[str, str], Fraction], cost: dict[tuple[str, str], Fraction]
) -> None:
    assert sum(losses_of(base, cost).values()) == 1 - sum(base.values()) / sum(cost.values())


def test_strong_scaling_by_hand() -> None:
    # 100 ms for 64 samples on 1 rank: 80 ms compute, 20 idle. On 4 ranks 40 ms: 24 compute, 10 communication, 6 waits.
    one = run(1, 100_000_000, 64, idle=Fraction(1, 5))
    four = run(4, 40_000_000, 64, exposed_communication=Fraction(1, 4), waits=Fraction(3, 20))
    made = scaling_of([one, four])
    row = made.table.row(1, named=True)
    assert (made.kind, row["speedup"], row["efficiency"], row["throughput_per_s"]) == (
        "strong",
        2.5,
        0.625,
        1600,
    )
    # 4 ranks spend 160 ms where 100 would do: 96 on compute (16 more), none idle (20 less), 40 and 24 on the rest.
    lost = {part: row[f"{part}_loss_share"] for part in ("compute", "idle", "exposed_communication", "waits")}
    assert lost == pytest.approx(
        {"compute": 0.1, "idle": -0.125, "exposed_communication": 0.25, "waits": 0.15}
    )


def test_weak_mixed_and_unknown_batches() -> None:
    weak = scaling_of([run(2, 100, 16), run(4, 125, 32)])
    assert (weak.kind, weak.table["speedup"][1], weak.table["efficiency"][1]) == ("weak", 1.6, 0.8)
    assert scaling_of([run(1, 100, 16), run(4, 125, 32)]).kind == "mixed"
    unknown = [run(1, 100, None), run(4, 50, None)]
    assert scaling_of(unknown).kind == "unknown"
    assert scaling_of(unknown).table["efficiency"].null_count() == 2
    assumed = scaling_of(unknown, without_batch="strong")
    assert (assumed.kind, assumed.table["efficiency"][1], assumed.table["samples"][1]) == (
        "strong",
        0.5,
        None,
    )
    assert scaling_of(unknown, without_batch="weak").table["efficiency"][1] == 2.0
    partly = scaling_of([run(1, 100, 8), run(2, 60, 8), run(4, 50, None)])
    assert (partly.kind, partly.table["efficiency"].null_count()) == ("strong", 1)


def test_several_runs_on_the_fewest_ranks_are_one_measure() -> None:
    made = scaling_of([run(1, 90, 8, "a"), run(1, 110, 8, "b"), run(2, 50, 8)])
    assert made.table["efficiency"].to_list() == pytest.approx([100 / 90, 100 / 110, 1.0])


def test_the_scatter_of_steps_gives_an_interval() -> None:
    all_of_it = {("compute", ""): Fraction(1)}
    wild = Run(name="w", ranks=2, step_times=(40, 50, 60, 70, 80), samples=8, shares=all_of_it)
    ends = scaling_of([run(1, 100, 8), wild]).table.row(1, named=True)
    assert 100 / 160 <= ends["efficiency_low"] < ends["efficiency"] < ends["efficiency_high"] <= 100 / 80
    two_steps = Run(name="w", ranks=2, step_times=(40, 50), samples=8, shares=all_of_it)
    assert scaling_of([run(1, 100, 8), two_steps]).table["efficiency_low"].null_count() == 2


@pytest.mark.parametrize(("four", "limited"), [(26, False), (45, True), (52, True)])
def test_a_batch_that_is_too_small(four: int, limited: bool) -> None:
    # 100 ms for 64 samples on 1 rank and 50 on 2; on 4 the batch halves again, the time does not.
    made = scaling_of([run(ranks, step, 64) for ranks, step in ((1, 100), (2, 50), (4, four))])
    if limited:
        assert made.batch_limit is not None
        assert (made.batch_limit.ranks, made.batch_limit.before, made.batch_limit.after) == (4, 32, 16)
        assert made.batch_limit.left == pytest.approx(four / 50)
    else:
        assert made.batch_limit is None
    assert (
        scaling_of([run(1, 100, 8), run(2, 150, 16)]).batch_limit is None
    )  # weak: the batch of a rank stays


# -- runs from traces ------------------------------------------------------------------------------


def test_a_job_of_one_rank_waits_for_none(tmp_path: Path) -> None:
    """Its collectives stood with waits, so beside more ranks they were a gain of their own and the others' a loss."""
    (made,) = runs_of([members(tmp_path / "one", simulate(ranks=1, columns=1, steps=2))])
    parts = {part for part, _ in made.shares}
    assert "exposed_communication" in parts
    assert not parts & {"waits", "exposed_communication_and_waits"}


def members(folder: Path, job: Job) -> list[Member]:
    folder.mkdir()
    paths = [str(path) for path in write_job(job, folder)]
    return [Member(one.path, summary) for one in summarise(paths, jobs=1) for summary in one.summaries]


@pytest.mark.slow
def test_shares_are_those_of_a_simulated_job(tmp_path: Path) -> None:
    job = simulate(seed=4, ranks=4, columns=4, steps=3, faults=(Fault(2, "compute", 300_000, 1),))
    (made,) = runs_of([members(tmp_path / "four", job)])
    assert (made.ranks, made.missing, made.samples, len(made.step_times)) == (4, (), None, 3)
    assert sum(made.shares.values()) == 1
    # Nothing computes beside a call, so all of it is exposed. The windows are nearly the steps.
    whole = sum(event["dur"] for events in job.events for event in events if event["name"].startswith("ProfilerStep"))  # fmt: skip
    waits = sum(call.ready - call.start for call in job.calls) / whole
    transfer = sum(call.end - call.ready for call in job.calls) / whole
    compute = (
        sum(event["dur"] for events in job.events for event in events if "sgemm" in event["name"]) / whole
    )
    assert float(made.shares["waits", ""]) == pytest.approx(waits, rel=0.02)
    assert float(made.shares["exposed_communication", ""]) == pytest.approx(transfer, rel=0.02)
    assert float(made.shares["compute", ""]) == pytest.approx(compute, rel=0.02)
    sizes = made.messages.filter(pl.col("name") == "all_reduce")["bytes"].to_list()
    assert sizes == [4 * 4_096 * layer for layer in (1, 2, 3, 4)]  # groups of one rank share nothing


@pytest.mark.slow
def test_which_traces_are_which_run(tmp_path: Path) -> None:
    two, four = (members(tmp_path / name, simulate(seed=at, ranks=at, columns=at, steps=2)) for name, at in (("two", 2), ("four", 4)))  # fmt: skip
    both = runs_of([[*four, *two]])  # a folder of runs
    assert [(one.name, one.ranks, one.missing) for one in both] == [("two", 2, ()), ("four", 4, ())]
    assert [(one.ranks, one.missing) for one in runs_of([four[:1]])] == [(4, (1, 2, 3))]
    assert [one.ranks for one in runs_of([[*two, *two]])] == [2]
    assert same_program(both) == (both, [])
    assert scaling_of(both, without_batch="weak").kind == "weak"


def test_runs_of_other_programs_are_set_apart() -> None:
    bert, other = (Run(name=name, ranks=ranks, step_times=(1,), program=name) for name, ranks in (("bert", 1), ("cnn", 1)))  # fmt: skip
    more = Run(name="bert2", ranks=2, step_times=(1,), program="bert")
    assert same_program([other, bert, more]) == ([bert, more], [other])
    assert same_program([other, more]) == ([more], [other])  # the one on more ranks
    layers = [Run(name=str(at), ranks=at, step_times=(1,), layers=frozenset(kinds)) for at, kinds in ((1, "abc"), (2, "abcd"), (4, "xyz"), (8, ""))]  # fmt: skip
    same, others = same_program(layers)
    assert ([one.ranks for one in same], [one.ranks for one in others]) == ([1, 2, 8], [4])
