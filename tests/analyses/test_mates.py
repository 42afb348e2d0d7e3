"""With whom a stage of a pipeline is compared: with the ranks that have its layers."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from synthetic.job import Fault, simulate, write_job

import tracekit
from tracekit.analyses.ranks import Summary, align, stragglers_of, summary_of, waits_of, worst_beside
from tracekit.analyses.ranks.mates import Mates
from tracekit.analyses.ranks.summary import packed_frame
from tracekit.analyses.scope import select

STAGES, STEPS = 4, 4
SLOW = Fault(rank=5, kind="compute", ns=300_000, layer=1)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Summary]:
    """Two replicas of four stages, each with layers of its own; the ranks of a replica meet after each layer, those of a stage at the end."""
    job = simulate(
        seed=8, ranks=2 * STAGES, columns=STAGES, steps=STEPS, faults=(SLOW,), in_row=("all_reduce",)
    )
    paths = write_job(job, tmp_path_factory.mktemp("stages"))
    made = []
    for rank, path in enumerate(paths):
        one = summary_of(select(tracekit.read(path)))
        named = pl.col("what").str.replace("block", f"stage{rank % STAGES}")
        work = one.work.with_columns(pl.when(kind="layer").then(named).otherwise("what").alias("what"))
        made.append(replace(one, packed_work=packed_frame(work)))
    return made


def test_a_stage_is_compared_with_its_replica(stages: list[Summary]) -> None:
    """What a stage took longer for was all that it computes: 17.6 ms "longer than on the others", of which one has the layer, for 14.4 ms."""
    aligned = align(stages)
    waits = waits_of(aligned)
    worst = stragglers_of(stages, aligned, waits).sort("caused_ns").row(-1, named=True)
    assert (worst["at"], worst["kind"], worst["what"]) == (SLOW.rank, "layer", "stage1.1")
    assert worst["longer_ns"] == pytest.approx(STEPS * SLOW.ns, rel=0.02)
    pair = worst_beside(stages, aligned, waits, SLOW.rank)
    assert pair is None or pair.fast == SLOW.rank - STAGES


def test_a_stage_without_a_replica_is_compared_with_none(stages: list[Summary]) -> None:
    """The first difference was a layer that the other rank does not have: 608 µs against 0 ns."""
    alone = stages[STAGES:]
    aligned, late = align(alone), SLOW.rank - STAGES
    waits = waits_of(aligned)
    worst = stragglers_of(alone, aligned, waits).sort("caused_ns").row(-1, named=True)
    assert (worst["at"], worst["kind"]) == (late, None)
    assert worst["caused_ns"] > 0.9 * STEPS * SLOW.ns
    assert worst_beside(alone, aligned, waits, late) is None
    chosen = worst_beside(alone, aligned, waits, late, 0)
    assert chosen is not None
    assert "layer" not in chosen.items["kind"].to_list()


def test_a_rank_that_runs_a_layer_more_is_compared_with_the_others(stages: list[Summary]) -> None:
    """It takes longer for that layer, though no other rank has it."""
    shared = {"kind": "layer", "where": "forward", "call": 0, "step": 0, "first": 0, "count": 1, "flops": 0}
    rows = {at: [{**shared, "what": "a", "ns": 10}] for at in range(3)}
    rows[0].append({**shared, "what": "extra", "ns": 90})
    rows[2][0]["what"] = "b"
    made = [replace(stages[at], packed_work=packed_frame(pl.DataFrame(each))) for at, each in rows.items()]
    mates = Mates(made)
    assert mates.same(0, 1)
    assert mates.same(1, 0)
    assert not mates.same(0, 2)
    assert mates.of(0, [2], near=[2, 1]) == [1]
    assert mates.of(2, [0], near=[0, 1]) == []
