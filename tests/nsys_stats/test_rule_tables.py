"""The rules of `nsys analyze` on planted traces."""

from __future__ import annotations

import pytest
from stats_made import Made

from tracekit.analyses.nsys_stats.catalogue import ELSEWHERE
from tracekit.analyses.nsys_stats.tables import report, table
from tracekit.errors import UsageError

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
    limited = table(made.trace(), "cuda_api_sync", 2)
    assert limited.frame.height == 2
    assert limited.answer == "The first 2 of 3 rows."
    assert report(made.trace(), "cuda_api_sync", 0).height == 3


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_rule_that_another_command_answers_names_it(name: str) -> None:
    with pytest.raises(UsageError) as error:
        report(copies().trace(), name)
    assert "tracekit" in str(error.value.remedy)
