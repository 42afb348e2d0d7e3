"""The late rank of a real training of four processes with gloo, and the layer that is slow on it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tracekit.analyses.ranks import summary_of
from tracekit.analyses.scope import select
from tracekit.job import job_of, rank_sets
from tracekit.job.rank_set import Member
from tracekit.report.job import job_section, latest

pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[1] / "synthetic" / "ddp.py"
RANKS, SLOW_RANK, SLOW_LAYER = 4, 2, "Sequential_0.Block_1"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ddp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder)],
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


@pytest.mark.slow
def test_the_slow_rank_and_the_slow_layer_are_named(traces: list[Path]) -> None:
    (ranks,) = rank_sets([Member(str(path), summary_of(select(tracekit.read(path)))) for path in traces])
    job = job_of(ranks)
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
