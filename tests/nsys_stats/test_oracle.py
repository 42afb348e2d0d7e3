"""Every report against the same report made row by row in plain Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import PUBLIC, SAMPLES
from stats_brute import REPORTS
from stats_made import comparable, drawn

import tracekit
from tracekit.analyses.nsys_stats.tables import table
from tracekit.trace import Trace

LARGEST = 122_000
"""Bytes of the largest trace of which plain Python makes all reports in a few seconds."""
REAL = [SAMPLES[0], *(path for path in PUBLIC if path.stat().st_size < LARGEST)]


def agrees(traces: list[Trace], name: str) -> bool:
    """Whether there was anything to compare."""
    made = table(traces, name)
    if made.not_captured is not None:
        assert not made.frame.height
        return False
    assert comparable(made.frame.to_dicts()) == comparable(REPORTS[name](traces))
    return made.frame.height > 0


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", REPORTS)
def test_random_traces(name: str) -> None:
    compared = [agrees([drawn(seed, origin_ns=1_000)], name) for seed in range(4)]
    assert sum(compared) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.sampled(4)
def test_many_random_traces(name: str) -> None:
    compared = [agrees([drawn(seed, origin_ns=1_000)], name) for seed in range(4, 9)]
    assert sum(compared) > 2


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", REPORTS)
def test_several_processes_together(name: str) -> None:
    """Also when two of them have the same number, as ranks in containers do."""
    traces = [drawn(100, 1, origin_ns=500), drawn(101, 1, origin_ns=80), drawn(102, 2, origin_ns=0)]
    assert agrees(traces, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", REAL, ids=lambda path: path.name if "trace" not in path.name else path.parent.name
)
@pytest.mark.sampled(4)
def test_real_traces(path: Path) -> None:
    trace = tracekit.read(path)
    compared = {name for name in REPORTS if agrees([trace], name)}
    kinds = set(trace.host["kind"].unique())
    assert "nvtx_sum" in compared or not kinds & {"annotation", "step", "module"}
    if trace.has_device:
        assert {"cuda_gpu_kern_sum", "cuda_gpu_sum"} <= compared
    assert "cuda_api_sum" in compared or "runtime" not in kinds


@pytest.mark.slow
@pytest.mark.skipif(not PUBLIC, reason="no public traces beside the checkout")
def test_two_ranks_of_a_run_share_a_clock() -> None:
    traces = [tracekit.read(path) for path in PUBLIC if path.name.startswith("ddp_rank")]
    for name in ("cuda_kern_exec_trace", "cuda_gpu_mem_time_sum", "nvtx_kern_sum"):
        assert agrees(traces, name)
