"""Exports that once made the reader hang, grow or fail, each named after what it did."""

from __future__ import annotations

import os
import sqlite3
import struct
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from synthetic.nsys_export import PID, Program, global_id, write_parquetdir, write_sqlite
from synthetic.nsys_odd import MAIN, small

import tracekit
from tracekit.errors import UnreadableTraceError
from tracekit.scrub import scrub

SECONDS = 30
"""For a whole process that takes one or two; before, each took for ever."""
MEMORY = 3 << 30
MANY = 140_000
"""More rows than a page of the reader has."""
FEWER, LONG = 40_000, 56_000
"""Rows, and the length of a text, which fill the memory together; where pages do not matter, this takes half the time."""
PROCESS = 1 << 24


def edited(folder: Path, script: str, program: Program | None = None) -> Path:
    path = write_sqlite(program or small(), folder / "t.sqlite")
    base = sqlite3.connect(path)
    base.executescript(script)
    base.close()
    return path


def filled(columns: str, values: str, rows: int = MANY) -> str:
    """SQL that adds ranges."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
    head = f"{numbers} INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid{columns})"
    return f"{head} SELECT i, i + 1, 59, {global_id(PID, MAIN)}{values} FROM n;"


def reported(path: Path) -> tuple[int, str]:
    """The exit code and the messages of a report in a process with bounded time and memory."""
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({MEMORY}, {MEMORY}))\n"
        "from tracekit.cli.main import main\n"
        f"main(['report', {str(path)!r}, '--no-cache'])"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert "Traceback" not in ran.stderr
    return ran.returncode, ran.stderr


# -- databases ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("value", ["'9'", "7"])
def test_a_column_that_is_called_like_the_row_id_is_none(value: str, tmp_path: Path) -> None:
    path = edited(tmp_path, "ALTER TABLE NVTX_EVENTS ADD COLUMN _rowid_;" + filled(", _rowid_", f", {value}"))
    assert reported(path) == (0, "")
    ranges = tracekit.read(path).host.filter(pl.col("kind") == "annotation")
    assert ranges.filter(pl.col("duration") == 1).height == MANY


def test_a_table_whose_row_id_cannot_be_asked_for_is_not_captured(tmp_path: Path) -> None:
    words = "; ".join(f"ALTER TABLE NVTX_EVENTS ADD COLUMN {word}" for word in ("_rowid_", "ROWID", "oid"))
    trace = tracekit.read(edited(tmp_path, words))
    assert set(trace.host["kind"].cast(pl.String)) == {"runtime"}


@pytest.mark.slow
def test_rows_with_the_first_and_the_last_possible_id_are_read(tmp_path: Path) -> None:
    ids = {1: -(2**63), 2: 2**63 - 1}
    script = ";".join(
        f"UPDATE NVTX_EVENTS SET _rowid_ = {new} WHERE _rowid_ = {old}" for old, new in ids.items()
    )
    (tmp_path / "plain").mkdir()
    plain = tracekit.read(edited(tmp_path / "plain", ""))
    assert tracekit.read(edited(tmp_path, script)).host.height == plain.host.height


@pytest.mark.slow
def test_views_of_views_are_not_resolved(tmp_path: Path) -> None:
    views = ["CREATE VIEW v0 AS SELECT 1 AS a"]
    views += [f"CREATE VIEW v{i} AS SELECT x.a FROM v{i - 1} x, v{i - 1} y" for i in range(1, 400)]
    assert reported(edited(tmp_path, ";".join(views))) == (0, "")


@pytest.mark.slow
def test_a_long_default_is_not_repeated_for_every_row(tmp_path: Path) -> None:
    text = "x" * LONG
    columns = "; ".join(
        f"ALTER TABLE NVTX_EVENTS RENAME COLUMN {name} TO {name}0;"
        f"ALTER TABLE NVTX_EVENTS ADD COLUMN {name} TEXT DEFAULT '{text}'"
        for name in ("text", "jsonText")
    )
    path = edited(tmp_path, filled("", "", FEWER) + columns)
    assert path.stat().st_size < 20e6
    assert reported(path) == (0, "")
    assert scrub(path, tmp_path / "copy.sqlite").bytes_after < 20e6


@pytest.mark.slow
@pytest.mark.parametrize("old", [b"jsonText TEXT", b"OSRT_API", b'"domainId"'])
def test_names_of_columns_and_tables_that_are_no_text_are_replaced(old: bytes, tmp_path: Path) -> None:
    path = write_sqlite(small(), tmp_path / "t.sqlite")
    data = path.read_bytes()
    old = old if old in data else b'"start"'
    path.write_bytes(data.replace(old, old[:2] + b"\xff" + old[3:]))
    assert reported(path)[0] in (0, 3)


def circular(path: Path, table: str) -> Path:
    """The same file, with the first page of a table's rows at many places in the tree of its pages."""
    base = sqlite3.connect(path)
    (root,) = base.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    (size,) = base.execute("PRAGMA page_size").fetchone()
    base.close()
    data = bytearray(path.read_bytes())
    at = (root - 1) * size
    assert data[at] == 5, "the table is too small to have a tree"
    cells = struct.unpack_from(">H", data, at + 3)[0]
    children = [at + struct.unpack_from(">H", data, at + 12 + 2 * i)[0] for i in range(cells)]
    first = data[children[0] : children[0] + 4]
    # A copy of the root between the root and its leaves, as every child, ten levels deep.
    for _ in range(10):
        copy = bytes(data[at : at + size])
        data += copy
        number = struct.pack(">I", len(data) // size)
        for offset in (*[child - at for child in children], 8):
            data[at + offset : at + offset + 4] = number
    assert first
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("table", ["NVTX_EVENTS", "StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_pages_in_a_circle_end(table: str, tmp_path: Path) -> None:
    program = small(launches=3000)
    program.tables["StringIds"] = [{"id": 10_000 + i, "value": f"name {i}"} for i in range(3000)]
    path = circular(write_sqlite(program, tmp_path / "t.sqlite"), table)
    code, err = reported(path)
    assert code == 3
    assert "the SQLite database is damaged" in err
    with pytest.raises(UnreadableTraceError, match="damaged"):
        tracekit.read(path)
    with pytest.raises(UnreadableTraceError, match="damaged"):
        scrub(path, tmp_path / "copy.sqlite")
    assert list(tmp_path.iterdir()) == [path]


# -- rows that belong together in very many ways -----------------------------------------------------


def many_processes(rows: int = MANY, *, named: bool) -> pl.DataFrame:
    """Launches with one correlation id, each in a process of its own."""
    number = pl.int_range(rows, eager=True)
    return pl.DataFrame(
        {"start": 1000 * number, "end": 1000 * number + 100, "globalTid": number * PROCESS + MAIN}
    ).with_columns(pl.lit(1 if named else None, pl.Int64).alias("nameId"), pl.lit(5).alias("correlationId"))


def parquet(folder: Path, **tables: pl.DataFrame) -> Path:
    path = folder / "t"
    path.mkdir()
    for table, rows in tables.items():
        rows.write_parquet(path / f"{table}.parquet")
    return path


@pytest.mark.slow
def test_a_correlation_id_that_many_processes_use_makes_no_pairs(tmp_path: Path) -> None:
    calls = many_processes(FEWER, named=False)
    kernels = calls.select("start", "end", "correlationId").with_columns(deviceId=0, streamId=7)
    tables = {"CUPTI_ACTIVITY_KIND_RUNTIME": calls, "CUPTI_ACTIVITY_KIND_KERNEL": kernels}
    path = parquet(tmp_path, **tables)
    assert reported(path) == (0, "")
    trace = tracekit.read(path)
    assert trace.device["launch_id"].is_not_null().all()
    assert trace.host.height == trace.device.height == FEWER


@pytest.mark.slow
def test_many_processes_beside_the_one_that_works_are_counted_at_once(tmp_path: Path) -> None:
    kernels = many_processes(named=False).tail(1).with_columns(globalPid=(MANY - 1) * PROCESS)
    tables = {
        "CUPTI_ACTIVITY_KIND_RUNTIME": many_processes(named=True),
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
    }
    trace = tracekit.read(parquet(tmp_path, **tables))
    (left_out,) = trace.health.filter(pl.col("kind") == "other_process").select("count", "example").rows()
    shown = f"{MANY - 1:,} processes: 0, 1, 2, 3, 4, 5, 6, 7 and {MANY - 9} more"
    assert left_out == (MANY - 1, shown)
    assert trace.host.height == 1


@pytest.mark.slow
def test_too_many_processes_are_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    kernels = many_processes(named=False).rename({"globalTid": "globalPid"})
    code, err = reported(parquet(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=kernels))
    assert (code, str(tmp_path) in err) == (3, True)


@pytest.mark.slow
def test_too_many_devices_are_told(tmp_path: Path) -> None:
    kernels = many_processes(named=False).with_columns(
        deviceId=pl.int_range(pl.len()), globalPid=PID * PROCESS
    )
    code, err = reported(parquet(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=kernels))
    assert (code, f"{MANY:,} devices" in err) == (3, True)


# -- times -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kernels_that_end_at_no_time_are_reported(tmp_path: Path) -> None:
    assert reported(edited(tmp_path, "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN end")) == (0, "")


# -- folders of Parquet ------------------------------------------------------------------------------

KINDS = {
    "list": pl.Series([[1, 2]]),
    "struct": pl.Series([{"a": 1}]),
    "array": pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2)),
    "bytes": pl.Series([b"\xff\x00"]),
    "category": pl.Series(["x"], dtype=pl.Categorical),
    "moment": pl.Series([5], dtype=pl.Datetime("ns")),
    "span": pl.Series([5], dtype=pl.Duration("us")),
    "decimal": pl.Series(["5.25"]).cast(pl.Decimal(38, 2)),
    "wide": pl.Series([2**100], dtype=pl.Int128),
    "nothing": pl.Series([None]),
    "not_a_number": pl.Series([float("nan")]),
}
PLACES = {
    "NVTX_EVENTS": ("start", "textId", "text", "eventType", "globalTid"),
    "StringIds": ("id", "value"),
    "CUPTI_ACTIVITY_KIND_KERNEL": ("deviceId", "start"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(4)
def test_columns_of_other_types_are_null(kind: str, tmp_path: Path) -> None:
    path = write_parquetdir(small(), tmp_path / "t")
    for table, columns in PLACES.items():
        file = path / f"{table}.parquet"
        plain = file.read_bytes()
        for column in list(columns)[list(KINDS).index(kind) % 3 :: 3]:
            rows = pl.read_parquet(file)
            odd = KINDS[kind].new_from_index(0, rows.height).alias(column)
            rows.with_columns(odd).write_parquet(file)
            (trace,) = tracekit.read_all(path)
            assert trace.host.height >= 4
            assert trace.device.height >= 1
            file.write_bytes(plain)


def test_bytes_of_parquet_are_texts_and_counted_where_they_are_none(tmp_path: Path) -> None:
    path = write_parquetdir(small(), tmp_path / "t")
    strings = pl.read_parquet(path / "StringIds.parquet")
    raw = [f"{text} ".encode() + b"\xff" for text in strings["value"]]
    strings.with_columns(pl.Series("value", raw)).write_parquet(path / "StringIds.parquet")
    (trace,) = tracekit.read_all(path)
    assert "layer0 \ufffd" in trace.host["name"].cast(pl.String).to_list()
    assert trace.health.filter(pl.col("kind") == "invalid_utf8")["count"].sum() > 0


@pytest.mark.slow
def test_rows_that_take_no_space_are_refused(tmp_path: Path) -> None:
    rows = pl.DataFrame({"start": [5], "end": [6], "eventType": [59]}).clear().clear(5_000_000)
    code, err = reported(parquet(tmp_path, NVTX_EVENTS=rows))
    assert (code, "5,000,000 rows" in err) == (3, True)


@pytest.mark.slow
def test_a_text_that_parquet_holds_once_is_not_held_for_every_row(tmp_path: Path) -> None:
    ranges = many_processes(FEWER, named=True).drop("nameId")
    ranges = ranges.with_columns(eventType=59, text=pl.lit("x" * LONG))
    path = parquet(tmp_path, NVTX_EVENTS=ranges)
    assert sum(file.stat().st_size for file in path.iterdir()) < 5e6
    assert reported(path) == (0, "")


@pytest.mark.slow
def test_long_names_of_metrics_are_not_held_for_every_sample(tmp_path: Path) -> None:
    program = small()
    for number in range(9):
        program.metric(f"{number}{'x' * 16_000}", [(at, at) for at in range(0, MANY // 9)])
    path = write_sqlite(program, tmp_path / "t.sqlite")
    assert reported(path) == (0, "")
    counters = tracekit.read(path).counters
    assert counters is not None
    assert counters["series"].n_unique() == 9
    assert counters["series"].cast(pl.String).str.len_chars().max() == 256


# -- names -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_long_name_of_very_many_rows_is_cut(tmp_path: Path) -> None:
    ranges = many_processes(FEWER, named=True)
    ranges = ranges.with_columns(eventType=59, textId=1 + pl.int_range(pl.len()) % 2)
    strings = pl.DataFrame({"id": [1, 2], "value": ["x" * LONG, "x" * (LONG - 1)]})
    path = parquet(tmp_path, NVTX_EVENTS=ranges.drop("nameId"), StringIds=strings)
    assert reported(path) == (0, "")
    names = tracekit.read(path).host["name"].cast(pl.String).unique()
    assert names.len() == 2
    assert names.str.len_chars().max() < 1024


def test_a_long_name_of_few_rows_is_not_cut(tmp_path: Path) -> None:
    program = small()
    program.push_pop("x" * 16_000, 0, 10, tid=MAIN)
    trace = tracekit.read(write_sqlite(program, tmp_path / "t.sqlite"))
    assert "x" * 16_000 in trace.host["name"].cast(pl.String)


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 50_000])
def test_stacks_are_no_longer_than_their_rows(chains: int, tmp_path: Path) -> None:
    row = pl.int_range(250_000, eager=True)
    frames = pl.DataFrame({"id": row % chains, "symbol": row % 2 + 1, "stackDepth": row // chains})
    sampled = pl.DataFrame({"start": pl.int_range(1000, eager=True)}).with_columns(id=0, globalTid=MAIN)
    path = parquet(
        tmp_path,
        SAMPLING_CALLCHAINS=frames,
        COMPOSITE_EVENTS=sampled,
        StringIds=pl.DataFrame({"id": [1, 2], "value": ["in" * 1200, "out" * 1200]}),
        NVTX_EVENTS=many_processes(named=False).head(9).with_columns(eventType=59),
    )
    assert reported(path) == (0, "")
    (trace,) = tracekit.read_all(path)
    assert trace.samples is not None
    stack = trace.samples["stack"].cast(pl.String)
    assert stack.n_unique() == 1
    assert stack[0].count(";") + 1 == min(250_000 // chains, 1024)


# -- files -------------------------------------------------------------------------------------------


def test_a_path_that_is_no_utf_8_is_opened(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff?#%41.sqlite")
    path.write_bytes(write_sqlite(small(), tmp_path / "t.sqlite").read_bytes())
    assert tracekit.read(path).device.height == 5


@pytest.mark.slow
def test_a_pipe_is_no_database(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.sqlite")
    code, err = reported(tmp_path / "t.sqlite")
    assert (code, "it is not a file" in err) == (3, True)


def test_a_log_beside_a_file_that_was_read_before_is_not_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    path = write_sqlite(small(), tmp_path / "t.sqlite")
    tracekit.read(path, cache=True)
    (tmp_path / "t.sqlite-wal").write_bytes(b"changes")
    with pytest.raises(UnreadableTraceError, match="is writing it"):
        tracekit.read(path, cache=True)
