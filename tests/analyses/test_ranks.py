"""The ranks of a job against a simulated one, whose clocks, groups, splits and late ranks are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from planted import MS, US, Planted
from synthetic.job import LATENCY, Fault, Job, simulate, write_job

import tracekit
from tracekit.analyses.collectives import collectives
from tracekit.analyses.ranks import (
    Alignment,
    Summary,
    align,
    heat_of,
    stragglers_of,
    summary_of,
    waits_of,
    worst_beside,
)
from tracekit.analyses.ranks.causes import _times_inputs
from tracekit.analyses.ranks.summary import (
    MOST_CALLS,
    MOST_STEPS,
    MOST_WORK,
    packed,
    packed_frame,
    unpacked,
)
from tracekit.analyses.scope import select

SLOW = Fault(rank=6, kind="compute", ns=400_000, layer=2)


def summaries(job: Job, folder: Path, **how: bool) -> list[Summary]:
    made = [summary_of(select(tracekit.read(path))) for path in write_job(job, folder, **how)]
    return unpacked(packed(made))


@pytest.fixture(scope="module")
def job() -> Job:
    return simulate(seed=3, ranks=8, faults=(SLOW,))


@pytest.fixture(scope="module")
def ranks(job: Job, tmp_path_factory: pytest.TempPathFactory) -> list[Summary]:
    return summaries(job, tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def aligned(ranks: list[Summary]) -> Alignment:
    return align(ranks)


def truth(job: Job) -> pl.DataFrame:
    rows = [(c.group, c.sequence, c.rank, c.start, c.end, c.ready, c.elements) for c in job.calls]
    schema = ("group", "sequence", "at", "start", "end", "ready", "elements")
    return pl.DataFrame(rows, schema=schema, orient="row").sort("group", "sequence", "at")


@pytest.mark.slow
@pytest.mark.parametrize(("utc", "sequence"), [(True, True), (False, True), (True, False), (False, False)])
def test_clocks_are_recovered(job: Job, tmp_path: Path, utc: bool, sequence: bool) -> None:
    made = align(summaries(job, tmp_path, utc=utc, sequence=sequence))
    first = job.offsets[0]
    # A clock that is ahead gives later times: what is added takes that away.
    assert made.clocks["offset_ns"].to_list() == [first - ahead for ahead in job.offsets]
    assert made.numbered == sequence
    assert made.calls["match"].null_count() == 0
    assert made.missing.height == 0
    sizes = made.calls.group_by("match").agg(pl.len(), pl.col("group_size").first())
    assert (sizes["len"] == sizes["group_size"]).all()


@pytest.mark.slow
def test_every_call_is_matched_and_timed(job: Job, aligned: Alignment) -> None:
    got = aligned.calls.select("group", "sequence", "at", "start", "end", "name", "bytes", "match")
    both = got.sort("group", "sequence", "at").join(
        truth(job), on=["group", "sequence", "at"], suffix="_true", maintain_order="left"
    )
    assert both.height == len(job.calls)
    reduced = both.filter(pl.col("name") == "all_reduce")
    assert reduced.height
    assert (reduced["bytes"] == 4 * reduced["elements"]).all()
    shift = (both["start"] - both["start_true"]).unique()
    assert shift.len() == 1
    assert ((both["end"] - both["end_true"]) == shift[0]).all()
    assert both.group_by("match").agg(pl.struct("group", "sequence").n_unique().alias("n"))["n"].max() == 1


@pytest.mark.slow
def test_waits_and_bandwidths(job: Job, aligned: Alignment) -> None:
    waits = waits_of(aligned)
    by_rank = truth(job).group_by("at").agg((pl.col("ready") - pl.col("start")).sum()).sort("at")
    assert waits.ranks["wait_ns"].to_list() == by_rank["ready"].to_list()
    assert waits.collectives["latency_ns"].to_list() == [LATENCY[name] for name in waits.collectives["name"]]
    reduced = waits.collectives.filter(pl.col("name") == "all_reduce")
    assert (
        reduced["bus_gbps"] - reduced["bytes"] * 2 * (1 - 1 / reduced["ranks"]) / LATENCY["all_reduce"]
    ).abs().max() < 1e-12
    blamed = waits.blame.group_by("match", "late").agg(pl.col("ns").sum()).join(waits.collectives, on="match")
    most = pl.when(pl.col("late") == pl.col("last")).then("alone_ns").otherwise("skew_ns")
    assert blamed.filter(pl.col("ns") > most).is_empty()
    assert blamed["ns"].sum() > 0.98 * waits.collectives["alone_ns"].sum()
    late = waits.ranks.sort("caused_ns", descending=True)
    assert late["at"][0] == SLOW.rank
    assert late["caused_ns"][0] > 0.9 * SLOW.ns * 4


@pytest.mark.slow
def test_an_uneven_all_to_all_keeps_what_stays_on_the_rank(job: Job, aligned: Alignment) -> None:
    call = next(c for c in job.calls if c.name == "all_to_all" and c.rank == 5)
    everyone = [c for c in job.calls if (c.group, c.sequence) == (call.group, call.sequence)]
    sent = sum(call.splits) - call.splits[1]  # rank 5 is the second of its row
    received = sum(c.splits[1] for c in everyone) - call.splits[1]
    row = aligned.calls.filter(
        (pl.col("at") == 5) & (pl.col("group") == call.group) & (pl.col("sequence") == call.sequence)
    )
    assert row["bus_bytes"].to_list() == [pytest.approx(4 * max(sent, received))]


@pytest.mark.slow
def test_a_rank_that_lost_a_collective(ranks: list[Summary]) -> None:
    lost = ranks[3].calls.with_row_index().filter(pl.col("name") == "all_reduce")["index"][7]
    cut = replace(
        ranks[3], calls=ranks[3].calls.with_row_index().filter(pl.col("index") != lost).drop("index")
    )
    made = align([*ranks[:3], cut, *ranks[4:]])
    assert made.missing.select("name", "at").rows() == [("all_reduce", 3)]


def stretched(frame: pl.DataFrame, height: int, rng: np.random.Generator) -> pl.DataFrame:
    """So many rows, in which no two have the same times."""
    rows = pl.concat([frame] * -(-height // frame.height)).head(height)
    times = ("launched", "start", "end", "duration_ns", "exposed_ns", "first", "ns")
    return rows.with_columns(
        (pl.col(name) + pl.Series(rng.integers(0, 10**9, height))).alias(name)
        for name in times
        if name in rows.columns
    )


@pytest.mark.slow
def test_a_summary_is_small(ranks: list[Summary], tmp_path: Path) -> None:
    assert max(len(packed([one])) for one in ranks) < 40_000
    one = summaries(simulate(seed=4, ranks=2, columns=1, steps=60), tmp_path)[0]
    assert one.work["step"].n_unique() == MOST_STEPS
    # As long as one can be, with times as a real trace has them.
    rng = np.random.default_rng(0)
    long = replace(
        one,
        calls=stretched(one.calls, MOST_CALLS, rng),
        packed_work=packed_frame(stretched(one.work, MOST_WORK, rng)),
    )
    assert 400_000 < len(packed([long])) < 1_000_000


@pytest.mark.slow
def test_when_the_ranks_worked_and_waited(job: Job, ranks: list[Summary], aligned: Alignment) -> None:
    heat = heat_of(ranks, aligned, waits_of(aligned))
    assert heat is not None
    bins = heat.parts["wait"].shape[1]
    for at, one in enumerate(ranks):
        parts = {name: values[at].astype(float) * heat.bin_ns / 100 for name, values in heat.parts.items()}
        rounding = bins * heat.bin_ns / 200
        assert parts["busy"].sum() == pytest.approx(one.facts.compute_ns, abs=rounding)
        assert parts["communication"].sum() == pytest.approx(one.facts.exposed_communication_ns, abs=rounding)
        waited = [0.0] * bins
        for call in (call for call in job.calls if call.rank == at):
            for place in range(bins):
                low = job.origins[0] + heat.start + place * heat.bin_ns
                waited[place] += max(0.0, min(call.ready, low + heat.bin_ns) - max(call.start, low))
        # A percentage is rounded, and the last bin may be a part.
        assert max(abs(parts["wait"] - waited)) <= heat.bin_ns / 100


@pytest.mark.slow
def test_two_ranks_without_a_common_collective(ranks: list[Summary], aligned: Alignment) -> None:
    waits = waits_of(aligned)
    assert worst_beside(ranks, aligned, replace(waits, blame=waits.blame.clear()), 6) is None


def test_names_and_sizes_of_calls() -> None:
    calls = collectives(tracekit.read("sample_traces/bert_cpu_ddp/trace-rank0.json.gz")).calls
    assert calls.filter(pl.col("name") == "all_reduce")["bytes"].to_list() == [153_608] * 3
    assert calls["duration_ns"].sum() >= calls["exposed_ns"].sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "what", "where"),
    [
        (SLOW, "layer", "block.2", "forward"),
        (Fault(rank=3, kind="data", ns=700_000), "idle", "data_loading", "<data>"),
        (Fault(rank=0, kind="host", ns=500_000, layer=0), "idle", "python", "block.0"),
        (Fault(rank=15, kind="compute", ns=60_000, layer=0), "layer", "block.0", "forward"),
    ],
)
def test_the_late_rank_and_why(tmp_path: Path, fault: Fault, kind: str, what: str, where: str) -> None:
    known = fault.kind != "data"
    made = summaries(
        simulate(seed=fault.rank, ranks=16, faults=(fault,)), tmp_path, utc=known, sequence=known
    )
    aligned = align(made)
    waits = waits_of(aligned)
    table = stragglers_of(made, aligned, waits)
    worst = table.sort("caused_ns", descending=True).row(0, named=True)
    pair = worst_beside(made, aligned, waits, fault.rank)
    assert pair is not None
    assert pair.first is not None
    first = pair.items.row(pair.first, named=True)
    assert (first["kind"], first["what"], first["where"]) == (kind, what, where)
    assert first["longer_ns"] == pytest.approx(fault.ns, rel=0.2)
    assert (worst["at"], worst["kind"], worst["what"]) == (fault.rank, kind, what)
    assert worst["speed"] == table["speed"].min()
    assert table["speed"].is_between(0, 1).all()
    assert worst["longer_ns"] == pytest.approx(4 * fault.ns, rel=0.2)


def test_a_rank_with_fewer_steps_is_compared_over_those_that_all_have(
    ranks: list[Summary], aligned: Alignment
) -> None:
    """Where later steps are shorter, a rank whose trace ends before them looked slow."""
    waits = waits_of(aligned)
    shorter = pl.when(pl.int_range(pl.len()) < 2).then("time_ns").otherwise(pl.col("time_ns") // 2)
    uneven = [
        replace(one, steps=one.steps.head(2) if at == 3 else one.steps.with_columns(shorter.alias("time_ns")))
        for at, one in enumerate(ranks)
    ]
    scores = ["own_ns", "speed", "steadiness"]
    wanted = stragglers_of([replace(one, steps=one.steps.head(2)) for one in ranks], aligned, waits)
    assert stragglers_of(uneven, aligned, waits)[scores].equals(wanted[scores])


@pytest.mark.parametrize(
    ("late", "others", "times"),
    [
        ("[[1000000, 128], [159744]]", "[[1000000, 128], [53248]]", 3.0),
        ("[[512, 1024], [1024, 4096]]", "[[512, 1024], [1024, 4096]]", 1.0),
        ("[[512, 64], [32]]", "[[256, 64], [64]]", None),  # one is larger, one smaller
        ("[[512], []]", "[[512, 1], []]", None),
        (None, "[[512]]", None),
        ("[[", "[[512]]", None),
    ],
)
def test_larger_inputs_are_told_where_flops_are_not_known(
    late: str | None, others: str, times: float | None
) -> None:
    """Of a lookup of three times as many rows it was not said whether the device is slow or the rank has more to do."""
    item = {"kind": "layer", "what": "bags", "where": "forward", "ns": 5}
    work = [{"at": at, **item, "shapes": late if at == 1 else others} for at in range(4)]
    assert _times_inputs(pl.DataFrame(work, schema_overrides={"shapes": pl.String}), 1) == times


@pytest.mark.slow
def test_two_late_ranks(tmp_path: Path) -> None:
    faults = (Fault(rank=1, kind="compute", ns=300_000, layer=1), Fault(rank=6, kind="data", ns=900_000))
    made = summaries(simulate(seed=9, ranks=8, faults=faults), tmp_path)
    aligned = align(made)
    worst = stragglers_of(made, aligned, waits_of(aligned)).sort("caused_ns", descending=True).head(2)
    assert dict(worst.select("at", "what").rows()) == {1: "block.1", 6: "data_loading"}


@pytest.mark.slow
def test_an_even_job_has_no_late_rank(tmp_path: Path) -> None:
    made = summaries(simulate(seed=2, ranks=8), tmp_path)
    aligned = align(made)
    table = stragglers_of(made, aligned, waits_of(aligned))
    assert table["speed"].min() > 0.95
    assert table["caused_ns"].max() < 0.05 * made[0].facts.window_ns


def test_a_step_begins_where_the_device_has_done_the_one_before() -> None:
    """`tracekit scaling` said 7.41 ms for steps of 35.2 ms, since the host had launched them all long before the device was done."""
    made = Planted()
    for step in range(3):
        made.step(step, step * 2 * MS, (step + 1) * 2 * MS)
        made.activity("gemm", step * 10 * MS + 50 * US, 10 * MS, launch=step * 2 * MS + 10 * US)
    times = summary_of(select(made.trace())).steps["time_ns"].to_list()
    assert times == [10 * MS + 50 * US, 10 * MS, 10 * MS]
