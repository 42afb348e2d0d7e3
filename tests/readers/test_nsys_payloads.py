"""What ranges carry in binary form: by the schemas of the file, in the rows themselves or in tables of their own."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from paths import PUBLIC_NSYS
from synthetic.nsys_export import PID, Program, global_id, write_parquetdir, write_sqlite
from synthetic.nsys_odd import small

import tracekit
from tracekit.trace import Trace

MAIN, NCCL = 4242, 1
GROUP, BYTES = 0xF3A1_0000_DEAD_BEEF, 3 * 2**30
INIT, REDUCE, GATHER = 16_777_218, 16_777_223, 16_777_220
UINT64, INT, SIZE, DOUBLE, OTHER_SCHEMA = 18, 5, 22, 20, 16_777_232

Entry = tuple[int, str | None, int | None]  # type, name, offset


def registered(program: Program, schema: int, size: int, entries: Iterable[Entry], **more: Any) -> None:
    """A schema as exports of NCCL's ranges hold them: the offset of the first entry is null."""
    entries = list(entries)
    schema_row = {"type": 1, "numEntries": len(entries), "payloadSize": size, **more}
    program.add("NVTX_PAYLOAD_SCHEMAS", domainId=NCCL, schemaId=schema, **schema_row)
    for at, (kind, name, offset) in enumerate(entries):
        row = {"domainId": NCCL, "schemaId": schema, "idx": at, "type": kind, "name": name, "offset": offset}
        program.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", **row)


def nccl() -> Program:
    """A program whose process has registered NCCL's schemas twice, as two communicators do."""
    program = small()
    program.domain(NCCL, "NCCL", 0, tid=MAIN)
    for _ in range(2):
        group: Entry = (UINT64, "NCCL communicator ID", None)
        ranks: list[Entry] = [(INT, "No. of ranks", 8), (INT, "Rank", 12), (INT, "CUDA device", 16)]
        registered(program, INIT, 24, [group, *ranks])
        reduce: list[Entry] = [(SIZE, "Message size [bytes]", 8), (OTHER_SCHEMA, "Reduction operation", 16)]
        registered(program, REDUCE, 24, [group, *reduce])
        registered(program, GATHER, 16, [group, (SIZE, "Message size [bytes]", 8)])
    return program


def packed(schema: int, payload: bytes, *, domain: int = NCCL, size: int | None = None) -> bytes:
    head = struct.pack("<QQQQ", domain, schema, len(payload) if size is None else size, 32)
    return head + payload


def communicating(program: Program) -> Program:
    made = packed(INIT, struct.pack("<QiiiI", GROUP, 8, 3, 3, 0))
    program.push_pop("ncclCommInitRankConfig", 400, 450, tid=MAIN, domain=NCCL, binaryData=made)
    reduce = packed(REDUCE, struct.pack("<QQQ", GROUP, BYTES, 0))
    program.push_pop("ncclAllReduce", 500, 600, tid=MAIN, domain=NCCL, binaryData=reduce)
    gather = packed(GATHER, struct.pack("<QQ", 7, 4096))
    program.push_pop("ncclAllGather", 600, 700, tid=MAIN, domain=NCCL, binaryData=gather)
    return program


def read(path: Path) -> Trace:
    (trace,) = tracekit.read_all(path)
    return trace


def payloads(trace: Trace, name: str) -> list[Any]:
    found = trace.host.filter(pl.col("name").cast(str) == name)["payload"].cast(str).to_list()
    return [None if text is None else json.loads(text) for text in found]


def unread(trace: Trace) -> int:
    return int(trace.health.filter(pl.col("kind") == "unread_payload")["count"].sum())


@pytest.mark.quick(1)
@pytest.mark.parametrize("write", [write_sqlite, write_parquetdir])
def test_collectives_have_the_size_and_the_group_of_their_bytes(tmp_path: Path, write: Any) -> None:
    trace = read(write(communicating(nccl()), tmp_path / "t.sqlite"))
    assert trace.collectives is not None
    told = trace.collectives.select("name", "group", "group_size", "elements_in", "dtype").rows()
    assert told == [
        ("allreduce", str(GROUP), 8, BYTES, "byte"),
        ("allgather", "7", None, 4096, "byte"),
    ]
    made = {"NCCL communicator ID": GROUP, "No. of ranks": 8, "Rank": 3, "CUDA device": 3}
    assert payloads(trace, "ncclCommInitRankConfig") == [made]
    assert unread(trace) == 0


@pytest.mark.slow
def test_bytes_that_sqlite_holds_as_text_are_the_same(tmp_path: Path) -> None:
    path = write_sqlite(communicating(nccl()), tmp_path / "t.sqlite")
    expected = read(path).collectives
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("update NVTX_EVENTS set binaryData = cast(binaryData as text)")
        assert base.execute("select distinct typeof(binaryData) from NVTX_EVENTS").fetchall() == [
            ("null",),
            ("text",),
        ]
    found = read(path).collectives
    assert found is not None
    assert found.equals(expected)


WHOLE = struct.pack("<QQ", 7, 4096)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "raw",
    [
        packed(GATHER, WHOLE, domain=2),  # of another domain than its row
        packed(GATHER + 1_000, WHOLE),  # no such schema
        packed(GATHER + (1 << 32), WHOLE),  # nor this one, whose lower half is known
        packed(GATHER, WHOLE, size=24),  # the head tells another size
        packed(GATHER, WHOLE[:12]),
        packed(GATHER, WHOLE) + b"more",
        packed(GATHER, WHOLE)[:32],
        packed(GATHER, WHOLE)[:20],
        b"\x00",
    ],
)
def test_bytes_that_do_not_agree_with_their_schema_tell_nothing(tmp_path: Path, raw: bytes) -> None:
    program = communicating(nccl())
    program.push_pop("ncclAllGather", 800, 900, tid=MAIN, domain=NCCL, binaryData=raw)
    trace = read(write_sqlite(program, tmp_path / "t.sqlite"))
    assert trace.collectives is not None
    assert trace.collectives["elements_in"].to_list() == [BYTES, 4096, None]
    assert payloads(trace, "ncclAllGather")[-1] is None
    assert unread(trace) == 1


def test_where_two_processes_number_their_schemas_differently_nothing_is_told(tmp_path: Path) -> None:
    program = communicating(nccl())
    registered(
        program, GATHER, 16, [(SIZE, "Message size [bytes]", None), (UINT64, "NCCL communicator ID", 8)]
    )
    registered(program, REDUCE, 32, [(UINT64, "NCCL communicator ID", None)])
    trace = read(write_sqlite(program, tmp_path / "t.sqlite"))
    assert trace.collectives is not None
    assert trace.collectives["elements_in"].to_list() == [None, None]
    assert unread(trace) == 2


def test_only_numbers_at_a_known_place_are_read(tmp_path: Path) -> None:
    program = small()
    entries: list[Entry] = [
        (DOUBLE, 'loss "now"', None),
        (INT, "array", 8),
        (INT, "no place", None),
        (INT, None, 12),
        (INT, "beyond", 14),
        (UINT64, "before", -4),
        (999, "unknown type", 8),
        (INT, "step", 12),
        (INT, "step", 8),
    ]
    registered(program, 42, 16, entries)
    program.tables["NVTX_PAYLOAD_SCHEMA_ENTRIES"][1]["flags"] = 1 << 4
    raw = packed(42, struct.pack("<dii", 0.25, 11, 12))
    program.push_pop("train", 500, 600, tid=MAIN, domain=NCCL, binaryData=raw)
    trace = read(write_sqlite(program, tmp_path / "t.sqlite"))
    assert payloads(trace, "train") == [{'loss "now"': 0.25, "step": 12}]


@pytest.mark.quick(1)
@pytest.mark.parametrize("change", [{"type": 2}, {"type": None}, {"payloadSize": None}, {"payloadSize": -16}])
def test_schemas_without_a_fixed_layout_are_not_guessed(tmp_path: Path, change: dict[str, Any]) -> None:
    program = communicating(nccl())
    for row in program.tables["NVTX_PAYLOAD_SCHEMAS"]:
        row.update(change)
    trace = read(write_sqlite(program, tmp_path / "t.sqlite"))
    assert trace.collectives is not None
    assert trace.collectives["elements_in"].null_count() == 2
    assert unread(trace) == 3


def test_text_of_json_comes_before_bytes_and_bytes_before_a_number(tmp_path: Path) -> None:
    program = nccl()
    raw = packed(GATHER, WHOLE)
    row = {"tid": MAIN, "domain": NCCL, "uint64Value": 5}
    program.push_pop("ncclSend", 500, 600, binaryData=raw, jsonText='{"Message size [bytes]":9}', **row)
    program.push_pop("ncclSend", 600, 700, binaryData=raw, **row)
    program.push_pop("ncclSend", 700, 800, **row)
    trace = read(write_sqlite(program, tmp_path / "t.sqlite"))
    wanted = [{"Message size [bytes]": 9}, {"NCCL communicator ID": 7, "Message size [bytes]": 4096}, 5]
    assert payloads(trace, "ncclSend") == wanted


def test_a_communicator_that_was_made_twice_with_other_ranks_has_no_size(tmp_path: Path) -> None:
    program = communicating(nccl())
    made = packed(INIT, struct.pack("<QiiiI", GROUP, 4, 0, 0, 0))
    program.push_pop("ncclCommInitRankConfig", 460, 470, tid=MAIN, domain=NCCL, binaryData=made)
    found = read(write_sqlite(program, tmp_path / "t.sqlite")).collectives
    assert found is not None
    assert found["group_size"].to_list() == [None, None]


# -- tables of their own: nsys export --dynamic-tables=all -------------------------------------------


def dynamic(path: Path, *, translated: bool = True) -> Path:
    """The payloads of `nccl()` in tables, where a user did not ask for their bytes."""
    program = nccl()
    for start, name in (
        (400, "ncclCommInitRank"),
        (500, "ncclAllReduce"),
        (600, "ncclAllGather"),
        (700, "ncclAllGather"),
    ):
        program.push_pop(name, start, start + 50, tid=MAIN, domain=NCCL)
    write_sqlite(program, path)
    process = global_id(PID)
    group, size = ("NCCL_communicator_ID", "Message_size__bytes_") if translated else ("a", "b")
    signed = GROUP - (1 << 64)
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("alter table NVTX_EVENTS add column eventId integer")
        base.execute("update NVTX_EVENTS set eventId = start + 1")
        if translated:
            base.execute("create table NVTX_EXPORT_TRANSLATION (originalName text, sanitizedName text)")
            names = [
                ("NCCL communicator ID", group),
                ("Message size [bytes]", size),
                ("No. of ranks", "No__of_ranks"),
            ]
            base.executemany("insert into NVTX_EXPORT_TRANSLATION values (?, ?)", names)
        for schema, rows in {
            REDUCE: [(501, signed, BYTES)],
            GATHER: [(601, 7, 4096), (999_999, 7, 1)],
        }.items():
            table = f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{process}_{NCCL}_{schema}"
            base.execute(f'create table "{table}" (eventId integer, "{group}" integer, "{size}" integer)')
            base.executemany(f'insert into "{table}" values (?, ?, ?)', rows)
        table = f"DYNAMIC_NVTXPAYLOAD_DATATYPE_{process}_{NCCL}_{INIT}"
        base.execute(f'create table "{table}" (eventId integer, "{group}" integer, "No__of_ranks" integer)')
        base.execute(f'insert into "{table}" values (401, {signed}, 8)')
    return path


def test_payloads_in_tables_of_their_own(tmp_path: Path) -> None:
    trace = read(dynamic(tmp_path / "t.sqlite"))
    assert trace.collectives is not None
    told = trace.collectives.select("name", "group", "group_size", "elements_in").rows()
    assert told == [
        ("allreduce", str(GROUP), 8, BYTES),
        ("allgather", "7", None, 4096),
        ("allgather", None, None, None),
    ]
    assert trace.health.filter(pl.col("kind").is_in(["unread_payload", "unread_table"])).is_empty()


@pytest.mark.slow
def test_columns_whose_titles_are_not_told_are_not_guessed(tmp_path: Path) -> None:
    found = read(dynamic(tmp_path / "t.sqlite", translated=False)).collectives
    assert found is not None
    assert found["elements_in"].null_count() == 3


# -- a public file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("public", [p for p in PUBLIC_NSYS if p.stem == "fsdp_2gpu"], ids=lambda p: p.stem)
def test_the_schemas_of_a_real_export_of_two_processes(tmp_path: Path, public: Path) -> None:
    """It holds NCCL's schemas, twice, and no bytes, which here are planted as they lay it out."""
    path = tmp_path / "t.sqlite"
    path.write_bytes(public.read_bytes())
    schemas = {"ncclSend": 16_777_226, "ncclRecv": 16_777_225}
    with closing(sqlite3.connect(path)) as base, base:
        (numbered,) = base.execute("select count(distinct schemaId) from NVTX_PAYLOAD_SCHEMAS").fetchone()
        rows = base.execute(
            "select n.rowid, value, start from NVTX_EVENTS n join StringIds on textId = id"
        ).fetchall()
        for row, name, start in rows:
            if name in schemas:
                raw = packed(schemas[name], struct.pack("<QQi4x", GROUP, start, 1))
                base.execute("update NVTX_EVENTS set binaryData = ? where rowid = ?", (raw, row))
    assert numbered == 8
    found = 0
    for trace in tracekit.read_all(path):
        assert trace.collectives is not None
        assert (trace.collectives["group"] == str(GROUP)).all()
        # The size is the time on the session's clock: what it should be for this very row.
        assert trace.collectives["elements_in"].equals(trace.collectives["start"] + trace.meta.origin_ns)
        assert unread(trace) == 0
        found += trace.collectives.height
    assert found == sum(name in schemas for _, name, _ in rows) == 264
