"""Tables, columns and codes of Nsight Systems exports, as NVIDIA's public reference of the schema has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from synthetic.nsys_export import PID, Program, global_id, write_parquetdir, write_sqlite
from synthetic.nsys_odd import small

import tracekit
from tracekit.cli.main import main
from tracekit.readers.nsys import vocabulary as facts
from tracekit.trace import Trace

MAIN = 4242
EPOCH = 1_700_000_000_000_000_000


def add_table(path: Path, table: str, columns: str, *rows: Mapping[str, Any]) -> None:
    """Add rows to a table, which is made when it is not there."""
    names = [column.split()[0] for column in columns.split(", ")]
    with closing(sqlite3.connect(path)) as base, base:
        base.execute(f'create table if not exists "{table}" ({columns})')
        marks = ", ".join("?" * len(names))
        told = ", ".join(f'"{name}"' for name in names)
        base.executemany(
            f'insert into "{table}" ({told}) values ({marks})',
            [[row.get(name) for name in names] for row in rows],
        )


def add_strings(path: Path, **numbers: int) -> None:
    """Add texts to StringIds under these numbers."""
    add_table(path, "StringIds", "id, value", *({"id": at, "value": text} for text, at in numbers.items()))


def read(path: Path) -> Trace:
    (trace,) = tracekit.read_all(path)
    return trace


def unread(trace: Trace) -> str | None:
    """What is said of tables that are not read."""
    found = trace.health.filter(pl.col("kind") == "unread_table")
    return str(found["example"][0]) if found.height else None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_sqlite(small(), tmp_path / "t.sqlite")


# -- processes and time ------------------------------------------------------------------------------


def test_the_rank_is_that_of_a_thread_of_the_process(path: Path) -> None:
    rows = [{"globalTid": global_id(PID, MAIN), "rank": 5}, {"globalTid": global_id(PID + 1, 1), "rank": 6}]
    add_table(path, "MPI_RANKS", "globalTid, rank", *rows)
    assert read(path).meta.rank == 5


def test_times_that_the_export_made_those_of_the_epoch_are_not_shifted_again(tmp_path: Path) -> None:
    def made(name: str, shift: int, normalised: str) -> tuple[int | None, int]:
        program = Program()
        program.session(EPOCH, 0, 10**9)
        program.call("cudaLaunchKernel_v7000", shift + 100, shift + 120, correlation=1, tid=MAIN)
        program.kernel("gemm", shift + 300, shift + 400, correlation=1)
        file = write_sqlite(program, tmp_path / name)
        row = {"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": normalised}
        add_table(file, "META_DATA_EXPORT", "name, value", row)
        trace = read(file)
        return trace.meta.origin_utc_ns, int(trace.device["start"][0])

    assert made("session.sqlite", 0, "false") == (EPOCH + 100, 200)
    assert made("utc.sqlite", EPOCH, "true") == (EPOCH + 100, 200)


# -- codes -------------------------------------------------------------------------------------------


def test_codes_are_what_the_file_says_they_are(path: Path) -> None:
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("delete from ENUM_CUDA_MEMCPY_OPER")
        base.execute("delete from ENUM_CUDA_MEM_KIND")
        base.execute("update CUPTI_ACTIVITY_KIND_MEMCPY set copyKind = 40, srcKind = 50, dstKind = 2")
    add_table(
        path,
        "ENUM_CUDA_MEMCPY_OPER",
        "id, name, label",
        {"id": 40, "name": "x", "label": "Unified Host-to-Device"},
    )
    add_table(
        path, "ENUM_CUDA_MEM_KIND", "id, name, label", {"id": 50, "name": "x", "label": "Managed Static"}
    )
    copies = read(path).device.filter(pl.col("kind") == "memcpy")
    assert copies["name"].cast(str).unique().to_list() == ["Memcpy Unified HtoD (Managed Static -> Device)"]


@pytest.mark.parametrize(("code", "name"), sorted(facts.COPY_KINDS.items()))
def test_the_labels_of_copies_give_the_names_that_are_known(code: int, name: str) -> None:
    whole = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
    start, _, pair = name.rpartition(" ")
    label = f"{start} {whole[pair[0]]}-to-{whole[pair[-1]]}".strip()
    _, long, short = facts.COPY_KIND_LABELS
    assert pl.Series([label]).str.replace(long, short).item() == name, code


def test_the_kind_of_a_wait_of_an_old_report_is_in_the_deprecated_column(path: Path) -> None:
    columns = "start, end, deviceId, contextId, streamId, correlationId, globalPid, deprecatedSyncType, syncType, eventId"
    row = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": global_id(PID), "eventId": 0}
    old = {**row, "start": 1, "end": 2, "deprecatedSyncType": 4, "syncType": 0}
    new = {**row, "start": 3, "end": 4, "deprecatedSyncType": None, "syncType": 3}
    add_table(path, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", columns, old, new)
    syncs = read(path).syncs
    assert syncs is not None
    assert syncs["name"].cast(str).to_list()[:2] == ["Context Sync", "Stream Sync"]


def test_an_overhead_without_a_name_has_the_label_of_its_type(path: Path) -> None:
    columns = "start, end, eventClass, globalTid, correlationId, nameId, overheadType"
    row = {"eventClass": 103, "globalTid": global_id(PID, MAIN)}
    rows = [{**row, "start": 20 + code, "end": 20 + code, "overheadType": code} for code in (7, 8)]
    add_strings(path, **{"Lazy loading of gemm": 900})
    rows.append({**row, "start": 40, "end": 41, "overheadType": 7, "nameId": 900})
    add_table(path, "CUPTI_ACTIVITY_KIND_OVERHEAD", columns, *rows)
    label = {"id": 7, "name": "x", "label": "Lazy function loading (CUDA)"}
    add_table(path, "ENUM_CUPTI_OVERHEAD_TYPE", "id, name, label", label)
    host = read(path).host.filter(pl.col("kind") == "overhead").sort("start")
    assert host["name"].cast(str).to_list() == [
        "Lazy function loading (CUDA)",
        "<unnamed>",
        "Lazy loading of gemm",
    ]


# -- tables ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "table", ["UCP_SUBMIT_EVENTS", "UCP_PROGRESS_EVENTS", "UCP_EVENTS", "MPI_P2P_EVENTS"]
)
def test_calls_of_libraries_of_communication_are_operators(path: Path, table: str) -> None:
    add_strings(path, send=900)
    row = {"start": 10, "end": None, "globalTid": global_id(PID, MAIN), "textId": 900}
    add_table(path, table, "start, end, globalTid, textId", row)
    trace = read(path)
    found = trace.host.filter(pl.col("name") == "send")
    assert found["kind"].to_list() == ["op"]
    assert found["duration"][0] > 0, "it was open when recording ended"
    assert unread(trace) is None


def test_imported_ranges_have_a_table_of_their_own(path: Path) -> None:
    row = {"globalTid": global_id(PID, MAIN), "sourceId": 1}
    add_table(
        path,
        "NVTXT_EVENTS",
        "start, end, eventType, sourceId, text, globalTid",
        {**row, "start": 10, "end": 20, "eventType": 70, "text": "imported"},
        {**row, "start": 11, "end": 21, "eventType": 71, "text": "spanning"},
        {**row, "start": 12, "end": None, "eventType": 65, "text": "mark"},
    )
    trace = read(path)
    assert trace.host.filter(pl.col("name") == "imported")["duration"].to_list() == [10]
    assert trace.ranges is not None
    assert trace.ranges.filter(pl.col("name").is_in(["spanning", "mark"]))["kind"].to_list() == [
        "start_end",
        "mark",
    ]
    assert unread(trace) is None


EVENTS = (
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS CUDA_UM_GPU_PAGE_FAULT_EVENTS CUDA_GPU_MEMORY_POOL_EVENTS CUDA_HOST_CALLBACK"
    " CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS CUPTI_ACTIVITY_KIND_GRAPH_HOST_NODE_AND_HOST_LAUNCH GENERIC_EVENTS"
    " ETW_EVENTS SOC_METRICS SCHED_EVENTS SYSCALL OSRT_FILE_ACCESS_EVENTS NET_NIC_METRIC NET_IB_SWITCH_METRIC"
    " NET_IB_SWITCH_CONGESTION_EVENT PMU_EVENTS UNCORE_PMU_EVENTS BANDWIDTH_USAGE_EVENTS FECS_EVENTS"
    " PERF_EVENT_SOC_OR_CPU_METRIC_EVENT PERF_EVENT_SOC_OR_CPU_RAW_EVENT OPENMP_EVENT_KIND_TASK"
    " CUPTI_ACTIVITY_KIND_OPENACC_DATA VULKAN_API DX12_API GPU_VIDEO_ENGINE_WORKLOAD NVVIDEO_DECODER_API"
    " GPU_MEMORY_USAGE_EVENTS CUPTI_ACTIVITY_KIND_BLOCK_TRACE CUPTI_ACTIVITY_KIND_WARP_PHASE_TRACE"
)
DESCRIPTIONS = (
    "GENERIC_EVENT_SOURCES GENERIC_EVENT_TYPES GENERIC_EVENT_TYPE_FIELDS GENERIC_EVENT_TYPE_FIELD_MAP"
    " GENERIC_EVENT_DATA ETW_PROVIDERS ETW_TASKS NIC_ID_MAP NET_IB_DEVICE_INFO NET_IB_DEVICE_PORT_INFO"
    " NET_IB_DEVICE_TYPE_MAP NVTX_SCOPES NVTX_PAYLOAD_ENUMS NVTX_PAYLOAD_SCHEMA_RELATIONS NVTX_EVENTS_PAYLOAD_SCHEMAS"
    " NVTX_EXPORT_TRANSLATION DYNAMIC_NVTXPAYLOAD_DATATYPE_71183_1_16777223 NVTXT_META_EVENTS UCP_WORKERS"
    " MPI_COMMUNICATORS OSRT_ARGUMENTS OSRT_FILE_ACCESS_DESCRIPTORS OSRT_CALLCHAINS SYSCALL_CALLCHAINS CUDA_CALLCHAINS"
    " PMU_EVENT_REQUESTS PMU_EVENT_COUNTERS UNCORE_PMU_EVENT_VALUES BANDWIDTH_USAGE_VALUES ENUM_CUPTI_JIT_ENTRY_TYPE"
    " TARGET_INFO_CUDA_CONTEXT_INFO TARGET_INFO_GPU_METRICS ANALYSIS_FILE META_DATA_CAPTURE DIAGNOSTIC_EVENT"
    " UnwindMethodType PROCESSES ProcessStreams ThreadNames"
)


@pytest.mark.quick(3)
@pytest.mark.parametrize("table", EVENTS.split())
@pytest.mark.sampled(8)
def test_events_that_are_not_read_are_named(path: Path, table: str) -> None:
    add_table(path, table, "start, value", {"start": 1}, {"start": 2})
    trace = read(path)
    assert unread(trace) == f"{table} (2)"
    assert trace.health.filter(pl.col("kind") == "unread_table")["count"].to_list() == [2]


def test_all_tables_that_are_not_read_are_named_with_their_rows(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in ("OPENACC_DATA_EVENTS", "SCHED_EVENTS"):
        add_table(path, table, "start, value", {"start": 1}, {"start": 2})
    with pytest.raises(SystemExit):
        main(["doctor", str(path)])
    assert "OPENACC_DATA_EVENTS (2), SCHED_EVENTS (2)" in capsys.readouterr().out


@pytest.mark.quick(3)
@pytest.mark.parametrize("table", DESCRIPTIONS.split())
@pytest.mark.sampled(8)
def test_what_describes_other_tables_is_not_counted_as_unread(path: Path, table: str) -> None:
    add_table(path, table, "a, b", {"a": 1}) if table not in _there(path) else None
    assert unread(read(path)) is None


def _there(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as base:
        return {name for (name,) in base.execute("select name from sqlite_master")}


@pytest.mark.parametrize("write", [write_sqlite, write_parquetdir])
def test_a_registered_name_stands_behind_an_empty_text(tmp_path: Path, write: Any) -> None:
    program = small()
    for start, name in ((10, "registered"), (30, None)):
        row = {"start": start, "end": start + 7, "eventType": 59, "globalTid": global_id(PID, MAIN)}
        program.add("NVTX_EVENTS", **row, text="", textId=name, domainId=0)
    host = read(write(program, tmp_path / "t.sqlite")).host
    names = host.filter(pl.col("duration") == 7).sort("start")["name"].cast(str).to_list()
    assert names == ["registered", "<unnamed>"]


# -- what ranges carry -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        '{"NCCL communicator ID":13886823741,"Message size [bytes]":16777216,"Reduction operation":"Sum"}',
        '{"NCCL communicator ID": "13,886,823,741", "Message size [bytes]": "16,777,216"}',
        '{"Message size [bytes]" : 16777216, "NCCL communicator ID" : 13886823741}',
    ],
)
def test_the_size_and_group_of_a_collective_in_every_form(tmp_path: Path, payload: str) -> None:
    program = small()
    program.domain(1, "NCCL", 0, tid=MAIN)
    program.push_pop("ncclAllReduce", 500, 600, tid=MAIN, domain=1, jsonText=payload)
    found = read(write_sqlite(program, tmp_path / "t.sqlite")).collectives
    assert found is not None
    assert found.select("group", "elements_in").row(0) == ("13886823741", 16_777_216)


# -- texts that PyTorch writes -----------------------------------------------------------------------


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aten::mm", ("op", "aten::mm", None, None, None)),
        ("aten::mm, seq = 3", ("op", "aten::mm", 3, None, None)),
        ("aten::mm, seq = -1", ("op", "aten::mm", None, None, None)),
        ("aten::mm, op_id = 9", ("op", "aten::mm", None, 9, None)),
        ("aten::mm, sizes = [[2, 3], []]", ("op", "aten::mm", None, None, "[[2, 3], []]")),
        (
            "aten::mm, seq = 3, op_id = 9, sizes = [[2], [2]], input_op_ids = [(4, 0), (8, 1)]",
            ("op", "aten::mm", 3, 9, "[[2], [2]]"),
        ),
        ("My::Function, sizes = [[2]]", ("op", "My::Function", None, None, "[[2]]")),
        ("tiles, sizes = [1, 2]", ("annotation", "tiles, sizes = [1, 2]", None, None, None)),
        ("tiles, sizes = [[1, 2", ("annotation", "tiles, sizes = [[1, 2", None, None, None)),
    ],
)
def test_every_form_of_an_emitted_name(
    tmp_path: Path, text: str, expected: tuple[str, str, int | None, int | None, str | None]
) -> None:
    program = small()
    program.push_pop(text, 3_000_000, 3_000_100, tid=MAIN)
    host = read(write_sqlite(program, tmp_path / "t.sqlite")).host.filter(
        pl.col("start") == pl.col("start").max()
    )
    found = host.select("kind", "name", "sequence", "external_id", "shapes").with_columns(
        pl.col("kind", "name", "shapes").cast(pl.String)
    )
    assert found.row(0) == expected
