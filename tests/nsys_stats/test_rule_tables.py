"""The rules of `nsys analyze`, on planted traces and against sums made nanosecond by nanosecond."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from stats_made import Made, drawn

from tracekit.analyses.nsys_stats.gaps import device_work, regions_of, usage
from tracekit.analyses.nsys_stats.tables import Options, report, table

MS = 1_000_000
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def copies() -> Made:
    made = Made()
    made.work(PAGEABLE, 10, 7, launch=(1, 2), call="cudaMemcpyAsync", kind="memcpy", bytes=100)
    made.work(
        "Memcpy HtoD (Pinned -> Device)",
        20,
        9,
        launch=(3, 4),
        call="cudaMemcpyAsync",
        kind="memcpy",
        bytes=100,
    )
    made.work(PAGEABLE, 30, 5, launch=(5, 6), call="cudaMemcpy", kind="memcpy", bytes=65_536)
    made.work(PAGEABLE, 40, 6, launch=(7, 8), call="cudaMemcpy", kind="memcpy", bytes=65_537)
    made.work(
        "Memcpy DtoH (Device -> Pageable)", 50, 3, launch=(9, 60), call="cudaMemcpy", kind="memcpy", bytes=4
    )
    made.work(
        "Memcpy DtoD (Device -> Device)",
        70,
        8,
        launch=(61, 62),
        call="cudaMemcpy",
        kind="memcpy",
        bytes=1 << 20,
    )
    made.work(
        "Memcpy DtoH (Device -> Pageable)", 80, 2, launch=(63, 64), call="cudaMemcpyAsync", kind="memcpy"
    )
    made.work("Memset (Device)", 90, 1, launch=(65, 66), call="cudaMemset", kind="memset", bytes=4)
    made.work("Memset (Pinned)", 91, 4, launch=(67, 68), call="cudaMemset", kind="memset", bytes=4)
    made.work("Memset (Managed)", 95, 5, launch=(69, 70), call="cudaMemset", kind="memset", bytes=4)
    made.work("Memset (Pinned)", 101, 5, launch=(71, 72), call="cudaMemsetAsync", kind="memset", bytes=4)
    made.work("Memset (Pinned)", 107, 5, kind="memset", bytes=4)
    return made


def test_asynchronous_copies_of_pageable_memory() -> None:
    found = report(copies().trace(), "cuda_memcpy_async")
    assert found.select(
        "Duration (ns)", "Start (ns)", "Src Kind", "Dst Kind", "Bytes (MB)", "API Name"
    ).rows() == [
        (7, 10, "Pageable", "Device", 0.0001, "cudaMemcpyAsync"),
        (2, 80, "Device", "Pageable", None, "cudaMemcpyAsync"),
    ]


def test_copies_that_block() -> None:
    """Not those of 64 KB or less to the device, and none inside a device."""
    found = report(copies().trace(), "cuda_memcpy_sync").select("Duration (ns)", "Src Kind", "Dst Kind")
    assert found.rows() == [(6, "Pageable", "Device"), (3, "Device", "Pageable")]


def test_fills_that_block() -> None:
    made = table(copies().trace(), "cuda_memset_sync")
    assert made.frame.select("Duration (ns)", "Memory Kind").rows() == [(5, "Managed"), (4, "Pinned")]
    assert "of 1 no call is recorded" in made.answer


def test_waits() -> None:
    made = Made()
    for place, name in enumerate(
        (
            *(
                "cudaDeviceSynchronize",
                "cudaStreamSynchronize_ptsz",
                "hipStreamSynchronize",
                "cudaEventSynchronize",
            ),
            *("cuStreamSynchronize", "cudaLaunchKernel"),
        )
    ):
        made.span(name, 10 * place, 10 * place + place + 1, kind="runtime")
    found = report(made.trace(), "cuda_api_sync")
    assert found.select("Duration (ns)", "API Name").rows() == [
        (3, "hipStreamSynchronize"),
        (2, "cudaStreamSynchronize_ptsz"),
        (1, "cudaDeviceSynchronize"),
    ]
    limited = table(made.trace(), "cuda_api_sync", Options(rows=2))
    assert limited.frame.height == 2
    assert "the first 2 of 3 rows" in limited.answer
    assert report(made.trace(), "cuda_api_sync", Options(rows=0)).height == 3


def gaps() -> Made:
    made = Made()
    made.work("k", 0, 10 * MS)
    made.work("k", 510 * MS, 10 * MS)  # 500 ms after the last
    made.work("k", 1_019 * MS, 10 * MS)  # 499 ms
    made.work("k", 2_029 * MS, 10 * MS)  # 1000 ms, in which the profiler gets in the way
    made.work("other device", 0, MS, device=1)
    made.span("Buffer Flush", 1_629 * MS, 1_630 * MS, kind="overhead")
    return made


def test_gaps() -> None:
    found = report(gaps().trace(), "gpu_gaps")
    assert found.rows() == [
        (1, 600 * MS, 1_029 * MS, 1, 0, 1),
        (2, 500 * MS, 10 * MS, 1, 0, 1),
    ]
    shorter = report(gaps().trace(), "gpu_gaps", Options(gap_ms=399))
    assert shorter["Duration (ns)"].to_list() == [600 * MS, 500 * MS, 499 * MS, 399 * MS]


def test_gaps_are_of_each_process() -> None:
    """What another process does on the device does not fill them."""
    one, other = Made(1, origin_ns=0), Made(2, origin_ns=0)
    one.work("k", 0, MS)
    one.work("k", 900 * MS, MS)
    other.work("k", 0, 900 * MS)
    found = report([one.trace(), other.trace()], "gpu_gaps")
    assert found.select("Duration (ns)", "PID").rows() == [(899 * MS, 1)]


def test_little_use() -> None:
    made = Made()
    for start in range(0, 300, 10):
        long = start < 100 or start >= 200
        made.work("k", start * MS, (9 if long else 2) * MS)
    made.work("k", 299 * MS, MS)
    found = report(made.trace(), "gpu_time_util")
    assert found.rows() == [(1, pytest.approx(20.0), 100 * MS, 100 * MS, 1, 0, 1)]
    all_of_it = report(made.trace(), "gpu_time_util", Options(threshold=100))
    assert all_of_it["Duration (ns)"].sum() < 300 * MS  # the last chunk is full
    assert report(made.trace(), "gpu_time_util", Options(threshold=20)).height == 0


def test_use_of_several_streams_adds_up() -> None:
    made = Made()
    for stream in (1, 2):
        made.work("k", 0, 40, stream_id=stream)
        made.work("k", 80, 20, stream_id=stream)
    found = report(made.trace(), "gpu_time_util", Options(chunks=5, threshold=250))
    assert found.select("In-Use (%)", "Start (ns)", "Duration (ns)").rows() == [
        (pytest.approx(120.0), 0, 100)
    ]


def test_usage_against_every_nanosecond() -> None:
    dice = random.Random(5)
    for _ in range(50):
        start = np.array([dice.randint(0, 80) for _ in range(dice.randint(1, 30))])
        end = start + np.array([dice.randint(0, 30) for _ in start])
        edges = np.array(sorted({dice.randint(0, 120) for _ in range(dice.randint(2, 6))}))
        busy = np.zeros(200, dtype=np.int64)
        for begin, finish in zip(start, end, strict=True):
            busy[begin:finish] += 1
        expected = [int(busy[low:high].sum()) for low, high in pairwise(edges)]
        assert usage(start, end, edges).tolist() == expected


def test_usage_of_times_whose_sum_exceeds_64_bits() -> None:
    late = 2**62
    start = late + np.arange(40) * 10
    assert usage(start, start + 5, np.array([late, late + 200, late + 400])).tolist() == [100, 100]


def test_regions_weigh_their_chunks() -> None:
    for seed in range(20):
        for work in device_work([drawn(seed)]):
            regions = regions_of(work, 7, 101.0)
            if work.last - work.first < 7:
                continue
            # Nothing runs outside, and chunks that are full are left out.
            total = int((work.end - work.start).sum() + (work.overhead_end - work.overhead_start).sum())
            assert int(regions["used"].sum()) <= total
            assert (regions["end"] > regions["start"]).all()
            assert (regions["start"][1:] > regions["end"][:-1]).all()  # neighbours are one region


def test_a_trace_of_one_instant() -> None:
    made = Made()
    made.work("k", 5, 0)
    assert report(made.trace(), "gpu_gaps").height == 0
    assert report(made.trace(), "gpu_time_util").height == 0
