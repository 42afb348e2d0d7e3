"""Real jobs of four processes with gloo: the late rank of a training, and the layer that is slow on it; waits for shards; the messages of a pipeline."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.analyses.graph.joint import joint_graph
from tracekit.analyses.graph.parts import parts_of
from tracekit.analyses.ranks import summary_of
from tracekit.analyses.scope import select
from tracekit.job import Job, job_of, rank_sets
from tracekit.job.rank_set import Member
from tracekit.report.job import job_section, latest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[1] / "synthetic" / "ddp.py"
RANKS, SLOW_RANK, SLOW_LAYER = 4, 2, "Sequential_0.Block_1"


def run(folder: Path, job: str) -> list[Path]:
    """The traces of its ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), job],
            env={**shared, "RANK": str(rank)},
            stderr=subprocess.DEVNULL,
        )
        for rank in range(RANKS)
    ]
    try:
        assert [one.wait(timeout=300) for one in running] == [0] * RANKS
    finally:
        for one in running:
            one.kill()
    return sorted(folder.glob("*.json"))


def job_in(traces: list[Path]) -> Job:
    (ranks,) = rank_sets([Member(str(path), summary_of(select(tracekit.read(path)))) for path in traces])
    return job_of(ranks)


@pytest.mark.slow
def test_the_slow_rank_and_the_slow_layer_are_named(tmp_path: Path) -> None:
    job = job_in(run(tmp_path, "training"))
    late = latest(job)
    row = job.table.row(late, named=True)
    assert (row["rank"], row["kind"]) == (SLOW_RANK, "layer")
    assert SLOW_LAYER in row["what"]
    pair = job.beside(late)
    assert pair is not None
    assert pair.first is not None
    most = pair.items.sort("longer_ns").row(-1, named=True)
    assert (most["kind"], SLOW_LAYER in most["what"]) == ("layer", True)
    answer = job_section(job).answer
    assert answer.startswith(f"Rank {SLOW_RANK} keeps the others waiting")
    assert SLOW_LAYER in answer
    assert row["times_operators"] > 10


@pytest.mark.slow
def test_ranks_that_wait_for_shards_do_not_compute(tmp_path: Path) -> None:
    """They wait inside operators, so most of the time they computed and waited at once, and no collective linked them."""
    traces = run(tmp_path, "sharded")
    job = job_in(traces)
    row = job.table.row(latest(job), named=True)
    assert (row["rank"], row["kind"]) == (SLOW_RANK, "layer")
    assert "Block_1" in row["what"]
    others = job.table.filter(pl.col("rank") != SLOW_RANK)
    assert (others["compute_share"] + others["wait_ns"] / others["window_ns"]).max() < 0.9
    assert joint_graph([select(tracekit.read(path)) for path in traces]).alike > 0


@pytest.mark.slow
def test_the_messages_of_a_pipeline(tmp_path: Path) -> None:
    """Each has a size of its own, which tells its send and its receive."""
    traces = run(tmp_path, "pipeline")
    job = job_in(traces)
    calls = job.aligned.calls
    assert calls["match"].null_count() == 0
    each = calls.group_by("match").agg(
        pl.col("name").sort(), pl.col("bytes").n_unique(), pl.col("bytes").first().alias("size")
    )
    assert each["name"].to_list() == [["recv", "send"]] * (3 * 3 * 4)
    assert each["bytes"].unique().to_list() == [1]
    assert each["size"].n_unique() == each.height
    assert "36 messages, matched by their order between two ranks" in job_section(job).answer
    joint = joint_graph([select(tracekit.read(path)) for path in traces])
    assert int(joint.replayed[-1]) == joint.end
    # That a rank waits for a message is found by time; a busy machine may delay what it does next.
    assert joint.alike >= 24
    parts = parts_of(joint)
    waiting = parts.filter(pl.col("name").cast(pl.String).str.contains("wait"))
    received = parts.filter(pl.col("cause") == "communication")
    assert waiting["duration_ns"].sum() < received["duration_ns"].sum()
