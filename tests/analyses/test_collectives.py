"""What collectives move and how fast: against nccl-tests' formulas by hand, and calls that only the host makes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from paths import PUBLIC_NSYS
from planted import A100 as PLANTED
from planted import MS, US, Planted, finding
from synthetic.job import simulate, write_job
from synthetic.nsys_export import PID, global_id, write_sqlite
from synthetic.nsys_odd import small

import tracekit
from tracekit.analyses.collectives import Collectives, collectives
from tracekit.analyses.overlap import overlap
from tracekit.readers.assemble import conform
from tracekit.report import formats
from tracekit.report.build import build_report
from tracekit.trace import COLLECTIVE_SCHEMA, Trace

A100 = replace(PLANTED, name="NVIDIA A100-SXM4-80GB")
ELEMENTS = 1_000_000
"""Of floats: 4 MB in a call of 1 ms are 4 GB/s."""


def recorded(*calls: dict[str, Any], rank: int | None = 1, kernel: str = "ncclDevKernel(args)") -> Trace:
    """Calls of 1 ms among 4 ranks, with these fields of their records."""
    made = Planted()
    for number in range(len(calls)):
        at = number * 2 * MS
        made.span("op", "record_param_comms", at, at + 9 * US)
        made.activity(kernel, at + MS, MS, stream=20, launch=at + US)
    trace = made.trace(devices=(A100,))
    spans = trace.host.filter(pl.col("name").cast(pl.String) == "record_param_comms")["span_id"].to_list()
    base = {"group": "0", "group_size": 4, "group_ranks": "[0, 1, 2, 3]", "dtype": "Float"}
    rows = [{"span_id": span, **base, **call} for span, call in zip(spans, calls, strict=True)]
    known = conform(pl.DataFrame(rows, infer_schema_length=None), COLLECTIVE_SCHEMA)
    return replace(trace, collectives=known, meta=replace(trace.meta, rank=rank))


def of(*calls: dict[str, Any], **how: Any) -> Collectives:
    return collectives(recorded(*calls, **how))


@pytest.mark.parametrize(
    ("record", "into", "out", "algorithm", "bus"),
    [
        ("allreduce", ELEMENTS, ELEMENTS, 4.0, 6.0),  # 2 · 3 / 4
        ("_allgather_base", ELEMENTS // 4, ELEMENTS, 4.0, 3.0),  # 3 / 4, of what a rank has afterwards
        ("_reduce_scatter_base", ELEMENTS, ELEMENTS // 4, 4.0, 3.0),  # 3 / 4, of what it had
        ("all_to_all", ELEMENTS, ELEMENTS, 4.0, 3.0),
        ("broadcast", ELEMENTS, ELEMENTS, 4.0, 4.0),
        ("reduce", ELEMENTS, ELEMENTS, 4.0, 4.0),
        ("gather", ELEMENTS // 4, ELEMENTS, 4.0, 3.0),  # of what the root has afterwards
        ("scatter", ELEMENTS, ELEMENTS // 4, 4.0, 3.0),
        ("send", ELEMENTS, ELEMENTS, 4.0, 4.0),
        ("recv", ELEMENTS, ELEMENTS, 4.0, 4.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(
    record: str, into: int, out: int, algorithm: float, bus: float
) -> None:
    (row,) = of({"name": record, "elements_in": into, "elements_out": out}).by_size.to_dicts()
    assert (row["algorithm_gbps"], row["bus_gbps"]) == (algorithm, bus)


def test_a_group_of_one_rank_exchanges_nothing() -> None:
    """A real run of one rank reported a highest bus bandwidth of 0 B/s, and how much of its communication was hidden."""
    call = {
        "name": "broadcast",
        "elements_in": ELEMENTS,
        "elements_out": ELEMENTS,
        "group_size": 1,
        "group_ranks": "[0]",
    }
    result = of(call, rank=0)
    (row,) = result.by_size.to_dicts()
    assert (row["algorithm_gbps"], row["bus_gbps"], row["link_share"]) == (None, None, None)
    assert (
        result.answer
        == "1 call of broadcast moves 4.00 MB within a group of one rank, so nothing is exchanged."
    )
    assert overlap(recorded(call, rank=0)).answer.endswith(
        "Its groups have one rank each, so nothing is exchanged."
    )
    found = finding(recorded(call, rank=0), "breakdown", "exposed_communication")
    assert found is not None
    assert found.advice.endswith("skip these calls when a run has only one rank.")
    assert of(call, {**call, "group_size": 4}).answer.endswith(
        "The highest bus bandwidth is 4.00 GB/s (broadcast of 4.00 MB)."
    )


def test_an_uneven_all_to_all_counts_what_leaves_or_reaches_the_rank() -> None:
    # Rank 1 keeps 400 k of 1 M and sends 600 k; it gets 700 k, of which 400 k are its own.
    split = {"split_in": "[1, 4, 2, 3]", "split_out": "[1, 4, 1, 1]"}
    (row,) = of(
        {"name": "all_to_allv", "elements_in": ELEMENTS, "elements_out": 700_000, **split}
    ).by_size.to_dicts()
    assert (row["algorithm_gbps"], row["bus_gbps"]) == (4.0, 2.4)


def test_uneven_sizes_that_never_come_again_are_one_row() -> None:
    calls = [
        {"name": "all_to_allv", "elements_in": ELEMENTS * size, "elements_out": ELEMENTS}
        for size in (1, 2, 6)
    ]
    (row,) = (
        of(*calls, {"name": "allreduce", "elements_in": 1}).by_size.filter(pl.col("count") == 3).to_dicts()
    )
    assert (row["name"], row["bytes"], row["total_ns"], row["algorithm_gbps"]) == (
        "all_to_all",
        8_000_000,
        3 * MS,
        4.0,
    )
    assert of(*calls, *calls).by_size["count"].to_list() == [2, 2, 2]


def test_a_barrier_moves_nothing_and_a_call_without_a_group_has_no_bus_bandwidth() -> None:
    found = of(
        {"name": "barrier", "elements_in": 1, "elements_out": 1},
        {"name": "allreduce", "elements_in": ELEMENTS, "group": None, "group_size": None},
    ).by_size
    assert found.sort("name").select("name", "bytes", "bus_gbps").rows() == [
        ("all_reduce", 4 * ELEMENTS, None),
        ("barrier", None, None),
    ]


@pytest.mark.parametrize(
    ("fields", "kernel", "share"),
    [
        ({}, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 0.02),  # 6 of 300 GB/s
        ({"group_size": 16}, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", None),  # more than one machine
        ({"group_size": None}, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", None),
        ({}, "ncclDevKernel_AllReduce_Sum_f32_NVLS_SIMPLE(args)", None),  # the switch sums
        (
            {"elements_in": 100 * ELEMENTS},
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)",
            None,
        ),  # above the peak
        ({"name": "send"}, "ncclDevKernel_SendRecv(args)", None),
    ],
)
def test_the_share_of_the_link(fields: dict[str, Any], kernel: str, share: float | None) -> None:
    call = {"name": "allreduce", "elements_in": ELEMENTS, **fields}
    assert of(call, kernel=kernel).by_size["link_share"].to_list() == [share]


def test_pairs_of_sends_and_receives() -> None:
    sent = {"name": "send", "elements_in": ELEMENTS, "peer": 3}
    found = of(
        sent, {**sent, "elements_in": ELEMENTS // 2}, {"name": "recv", "elements_in": ELEMENTS, "peer": 0}
    )
    assert found.pairs is not None
    assert found.pairs.rows() == [(1, 3, 2, 6_000_000, 2 * MS, 4.0), (0, 1, 1, 4_000_000, MS, 4.0)]
    assert of({"name": "send", "elements_in": ELEMENTS}).pairs is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [form for form in formats.Format if formats.Can.REPORT in form.can and formats.Can.FILES not in form.can],
)
def test_ranks_that_send_are_numbers_in_every_format(form: formats.Format) -> None:
    """The source of FLOPs is a text, and the column of that name made every report of a pipeline a fault."""
    trace = recorded({"name": "send", "elements_in": ELEMENTS, "peer": 3})
    text = formats.render_reports(form, [(build_report(trace), trace)], formats.Page())
    assert "send" in text


def test_peers_by_the_range_are_those_of_the_group() -> None:
    made = Planted()
    made.span("annotation", "nccl:recv 1<-0", 0, 9 * US)
    made.activity("ncclDevKernel_SendRecv(args)", MS, MS, launch=US)
    found = collectives(made.trace()).calls
    assert found.select("name", "source", "destination").rows() == [("recv", 0, 1)]


@pytest.mark.parametrize(("second", "peers"), [(2, [2, 3]), (30, [None, None])])
def test_peers_of_gloo_are_those_of_the_operator_that_queued_the_call(
    second: int, peers: list[int | None]
) -> None:
    """The ranges begin after 10 and 20 µs; if the second operator comes later, it is not sure which one queued which."""
    made = Planted()
    for at, peer, begin in ((0, 2, 10), (second, 3, 20)):
        inputs = {"shapes": "[[[1000]], [], [], []]", "concrete_inputs": f'["", "", "{peer}", "0"]'}
        made.span("op", "c10d::send", at * US, (at + 1) * US, **inputs)
        made.span(
            "annotation", "gloo:send", begin * US, (begin + 5) * US, 2, shapes="[[1000]]", dtypes='["float"]'
        )
    trace = made.trace(devices=())
    found = collectives(replace(trace, meta=replace(trace.meta, rank=1))).calls
    sources = [None if peer is None else 1 for peer in peers]
    assert found.select("bytes", "source", "destination").rows() == list(
        zip([4_000] * 2, sources, peers, strict=True)
    )


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([{"pg_size": 4, "ranks": [0, 1, 2, 3]}], (4, 4 * 4_000, 12_000.0)),
        ([{"pg_size": 4}, {"pg_size": 2}], (None, None, None)),  # the call may be of either
        ([{"pg_size": 2}], (None, None, None)),
        ("damaged", (None, None, None)),
        (None, (None, None, None)),
    ],
)
def test_an_all_gather_of_the_only_group_has_a_size(
    tmp_path: Path, groups: Any, expected: tuple[int | None, int | None, float | None]
) -> None:
    """Its bytes were unknown, though the file lists one group of all ranks, and the input of this one was recorded."""
    args = {"Input Dims": [[10, 100]], "Input type": ["float"]}
    call = {
        "ph": "X", "cat": "user_annotation", "name": "gloo:all_gather", "pid": 1, "tid": 2, "ts": 1, "dur": 5, "args": args,
    }  # fmt: skip
    info = {"backend": "gloo", "rank": 1, "world_size": 4, "pg_config": groups}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": [call]}))
    found = collectives(tracekit.read(path)).calls
    assert found.select("group_size", "bytes", "bus_bytes").row(0) == expected


@pytest.mark.parametrize("peer", ["9999999999999999999", "²", "1" * 5000, "-1"])
def test_a_damaged_number_of_a_rank_is_none(peer: str) -> None:
    """19 nines were no Int64, which ended the report."""
    made = Planted()
    inputs = {"shapes": "[[[1000]], [], [], []]", "concrete_inputs": f'["", "", "{peer}", "0"]'}
    made.span("op", "c10d::send", 0, US, **inputs)
    made.span("annotation", "gloo:send", 10 * US, 15 * US, 2, shapes="[[1000]]", dtypes='["float"]')
    found = collectives(made.trace(devices=())).calls
    assert found.select("source", "destination").rows() == [(None, None)]


def test_kineto_records_name_the_other_rank(tmp_path: Path) -> None:
    def record(at: int, **args: Any) -> dict[str, Any]:
        known = {
            "In msg nelems": 8,
            "Out msg nelems": 8,
            "dtype": "Float",
            "Process Group Name": "0",
            "Group size": 4,
            **args,
        }
        return {
            "ph": "X",
            "cat": "cpu_op",
            "name": "record_param_comms",
            "pid": 1,
            "tid": 1,
            "ts": at,
            "dur": 5,
            "args": known,
        }

    events = [
        record(1, **{"Collective name": "send", "Dst Rank": 3}),
        record(11, **{"Collective name": "recv", "Src Rank": 2}),
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (trace,) = tracekit.read_all(path)
    assert trace.collectives is not None
    assert trace.collectives.select("name", "peer").rows() == [("send", 3), ("recv", 2)]


def test_mpi_tables_of_nsight(tmp_path: Path) -> None:
    program = small()
    thread = {"globalTid": global_id(PID, 4242)}
    program.add("MPI_P2P_EVENTS", start=300, end=400, textId="MPI_Send", size=1_000, remoteRank=2, **thread)
    program.add(
        "MPI_COLLECTIVES_EVENTS", start=500, end=900, textId="MPI_Allreduce", size=64, recvSize=64, **thread
    )
    program.add(
        "MPI_P2P_EVENTS", start=920, end=930, textId="MPI_Send_init", size=1_000, remoteRank=2, **thread
    )
    found = collectives(tracekit.read(write_sqlite(program, tmp_path / "t.sqlite"))).calls
    assert found.select(
        "name", "bytes", "destination", "device_id", "duration_ns", "exposed_ns", "kernels"
    ).rows() == [
        ("send", 1_000, 2, -1, 100, None, 0),
        ("all_reduce", 64, None, -1, 400, None, 0),
    ]


@pytest.mark.parametrize("path", [path for path in PUBLIC_NSYS if path.stem == "saxpy_mpi_a100"])
def test_mpi_ranges_of_a_public_export(path: Path) -> None:
    found = collectives(tracekit.read(path))
    assert found.answer.startswith("12 calls (8 send, 4 recv).")
    assert found.by_size["exposed_ns"].null_count() == 2


@pytest.mark.parametrize("operators", ["with the records", "without them", "none"])
def test_kernels_repeat_the_record_of_their_operator(tmp_path: Path, operators: str) -> None:
    """A trace whose record operators are gone, or say nothing, lost sizes, groups and numbers of its collectives."""
    job = simulate(ranks=4, columns=2, steps=1)
    events = job.events[1]
    whole = tracekit.read(write_job(job, tmp_path)[1])
    said: dict[int, dict[str, Any]] = {}
    for number, event in enumerate(events):
        if "Collective name" in event["args"]:
            said[events[number + 1]["args"]["correlation"]] = event["args"] | {"External id": number}
            event["args"] = said[max(said)] if operators == "with the records" else {}
    for event in events:
        if event["cat"] == "kernel":
            event["args"] |= said.get(event["args"]["correlation"], {})
    if operators == "none":
        job.events[1] = [event for event in events if event["name"] != "record_param_comms"]
    folder = tmp_path / "of kernels"
    folder.mkdir()
    trace = tracekit.read(write_job(job, folder)[1])
    assert whole.collectives is not None
    assert trace.collectives is not None
    assert trace.collectives.height == whole.collectives.height == len(said) > 0
    columns = [
        "name",
        "group",
        "group_ranks",
        "sequence",
        "dtype",
        "bytes",
        "bus_bytes",
        "start",
        "duration_ns",
    ]
    assert collectives(trace).calls.select(columns).equals(collectives(whole).calls.select(columns))


def test_receives_that_are_posted_at_once_last_until_they_are_done() -> None:
    """Ranges of one thread that overlap were cut where the next one begins: receives ended before their sends."""
    made = Planted()
    made.span("op", "aten::mm", 0, 20 * MS)
    for number in range(3):
        at = number * 100 * US
        made.span("op", "c10d::recv_", 20 * MS + at, 20 * MS + at + 30 * US, shapes="[[[1000]]]")
        made.span(
            "annotation", "gloo:recv", 20 * MS + at + 20 * US, (25 + 5 * number) * MS, shapes="[[1000]]"
        )
    calls = collectives(made.trace(devices=())).calls
    assert calls["end"].to_list() == [25 * MS, 30 * MS, 35 * MS]
    assert calls["start"].to_list() == [20 * MS + 20 * US + number * 100 * US for number in range(3)]


def test_when_a_rank_comes_to_a_call_and_what_the_call_holds_up() -> None:
    """Two calls in a stream of their own: the first runs beside a product, and another product waits for the second one."""
    made = Planted()
    made.activity("gemm", 100 * US, MS, launch=0)
    made.activity("ncclDevKernel(args)", 200 * US, 2 * MS, stream=20, launch=20 * US)
    made.activity("gemm", 1_100 * US, 400 * US, launch=40 * US)
    made.activity("ncclDevKernel(args)", 2_200 * US, 800 * US, stream=20, launch=60 * US)
    made.activity("gemm", 3_000 * US, 100 * US, launch=2_500 * US)
    first, second = collectives(made.trace(devices=(A100,))).calls.rows(named=True)
    # It waits for nothing that was launched after it; the second one stood behind the first.
    assert [call["came"] for call in (first, second)] == [200 * US, 1_500 * US]
    assert [call["exposed_ns"] for call in (first, second)] == [700 * US, 800 * US]
    # The last product was launched late, and nothing stood in the queue before.
    assert [call["held_ns"] for call in (first, second)] == [0, 490 * US]
    made.call("cudaStreamSynchronize", 1_000 * US, 1_500 * US)
    again = collectives(made.trace(devices=(A100,))).calls
    assert again["held_ns"].to_list() == [700 * US, 790 * US]
