"""The oracle is right: on cases by hand, by the laws it must obey, and on public traces."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from . import Activity, HostSpan, derive, oracle, random_activities, random_spans

REAL_TRACES = Path(__file__).parents[3] / "shared" / "traces"


def test_sets_of_time_by_hand() -> None:
    intervals = [(0, 5), (3, 8), (8, 9), (20, 21), (4, 4)]
    assert oracle.union(intervals) == [(0, 9), (20, 21)]
    assert oracle.measure(intervals) == 10
    assert oracle.intersection(intervals, [(2, 4), (7, 30)]) == [(2, 4), (7, 9), (20, 21)]
    assert oracle.difference([(0, 30)], intervals) == [(9, 20), (21, 30)]
    assert oracle.coverage([(0, 5), (3, 8)]) == [(0, 3, 1), (3, 5, 2), (5, 8, 1)]
    assert oracle.measure([]) == 0


def make_activity(
    index: int, cls: str, start: int, end: int, *, stream: int = 7, launch: int | None = None
) -> Activity:
    kind = "memcpy" if cls == "memory" else "kernel"
    activity = Activity(index, kind, cls, "", "Memcpy HtoD x", 0, stream, start, end - start, index)
    if launch is not None:
        activity.launch_start_ns, activity.launch_end_ns = launch, launch + 2
    return activity


def test_breakdown_by_hand() -> None:
    rows = [
        make_activity(0, "compute", 0, 10),
        make_activity(1, "communication", 5, 20),
        make_activity(2, "memory", 15, 25),
        make_activity(3, "compute", 30, 40),
    ]
    b = oracle.breakdown(rows, (0, 50))
    assert (b.compute, b.exposed_communication, b.exposed_memory, b.idle) == (20, 10, 5, 15)
    assert (b.overlap, b.communication, b.busy, b.kernels, b.non_compute) == (5, 15, 35, 30, 15)
    assert oracle.breakdown(rows, (8, 32)).compute == 4


def test_stream_idle_by_hand() -> None:
    us = 1000
    rows = [
        make_activity(0, "compute", 0, 10 * us, launch=0),
        make_activity(1, "compute", 20 * us, 30 * us, launch=11 * us),  # launched after 10: host
        make_activity(2, "compute", 35 * us, 40 * us, launch=30 * us),  # launched exactly at the end: kernel
        make_activity(3, "compute", 70 * us, 80 * us, launch=1 * us),  # 30 µs is not below 30 µs: other
        make_activity(4, "compute", 81 * us, 82 * us),  # no launch record
        make_activity(5, "compute", 0, 1, stream=8, launch=0),
    ]
    assert oracle.stream_idle(rows) == {
        (0, 7): {"host_wait": 10 * us, "kernel_wait": 6 * us, "other": 30 * us},
        (0, 8): {"host_wait": 0, "kernel_wait": 0, "other": 0},
    }


def test_nesting_by_hand() -> None:
    rows = [(0, 10), (0, 10), (2, 5), (4, 8), (4, 8), (9, 12)]  # the third and the last overlap others partly
    spans = [HostSpan(i, 1, 1, "op", "x", start, end - start) for i, (start, end) in enumerate(rows)]
    spans.append(HostSpan(6, 2, 1, "op", "same thread id, other process", 3, 1))
    assert oracle.parents(spans) == [None, 0, 1, 1, 3, None, None]
    assert oracle.depths(oracle.parents(spans)) == [0, 1, 2, 2, 3, 0, 0]
    assert [oracle.innermost_at(spans, (1, 1), t) for t in (0, 3, 4, 8, 9, 11, 12)] == [
        1,
        2,
        4,
        1,
        5,
        5,
        None,
    ]
    assert oracle.self_times(spans) == [0, 4, 3, 0, 4, 3, 1]


def test_statistics_by_hand() -> None:
    assert oracle.statistics([4, 1, 3, 2]) == pytest.approx(
        {
            "count": 4,
            "total": 10,
            "mean": 2.5,
            "median": 2.5,
            "p95": 3.85,
            "min": 1,
            "max": 4,
            "std": 1.2909944487,
        }
    )
    assert oracle.statistics([7])["std"] == 0.0
    rows = [make_activity(0, "memory", 0, 10), make_activity(1, "memory", 10, 20)]
    rows[0].bytes, rows[1].bytes = 100, 300
    assert oracle.memcpy_table(rows) == {
        "HtoD": {"count": 2, "bytes": 400, "total": 20, "bandwidth_gbps": 20.0}
    }


@pytest.mark.parametrize("seed", range(20))
def test_random_shapes_obey_the_laws(seed: int) -> None:
    rng = random.Random(seed)
    spans = random_spans(rng, 30)
    found = oracle.parents(spans)
    assert all(
        parent is None or spans[parent].start_ns <= s.start_ns for s, parent in zip(spans, found, strict=True)
    )
    assert all(s.end_ns <= spans[p].end_ns for s, p in zip(spans, found, strict=True) if p is not None)
    assert all(0 <= own <= s.dur_ns for own, s in zip(oracle.self_times(spans), spans, strict=True))
    activities = random_activities(rng, 40)
    window = oracle.trace_window(activities)
    for device in (0, 1):
        b = oracle.breakdown(activities, window, device)
        gaps = oracle.idle_gaps(activities, device, window)
        assert b.compute + b.exposed_communication + b.exposed_memory + b.idle == window[1] - window[0]
        assert sum(end - start for start, end, _ in gaps) == b.idle


# -- the oracle on public traces --------------------------------------------------------------------


@pytest.mark.skipif(not REAL_TRACES.exists(), reason="the public traces are not here")
@pytest.mark.parametrize(
    "name",
    [
        "a100_alexnet",
        "mi250_minitoy",
        "h100_bert_small",
        "mi300_bert_small",
        "vllm_decode_cuda_graph",
        "ddp_rank0",
    ],
)
def test_breakdown_of_public_traces(name: str) -> None:
    rows = json.loads((REAL_TRACES / "expected.json").read_text())
    trace = f"kineto/{name}.json.gz"
    (expected,) = [r["values"] for r in rows if r["trace"] == trace and r["table"] == "temporal"]
    activities = derive(REAL_TRACES / trace, host=False).activities
    found = oracle.breakdown(activities, oracle.trace_window(activities))
    assert len(activities) == expected["n_gpu"]
    assert found.window == round(expected["span_us"] * 1000)
    assert found.busy == round(expected["busy_us"] * 1000)
    assert found.idle == round(expected["idle_us"] * 1000)
    assert found.compute == round(expected["compute_us"] * 1000)
    assert found.communication == round(expected["comm_us"] * 1000)
    assert found.overlap == round(expected["comm_comp_overlap_us"] * 1000)
