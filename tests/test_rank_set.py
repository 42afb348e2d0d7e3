"""Which rank a file is of by its name, and which traces are one job."""

from __future__ import annotations

import pytest

from tracekit.readers.common.trace_frames import place_in_name, rank_in_name


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
