"""Nsight Systems exports that are odd, broken or hostile, each by name.

An entry of ODD writes its file into a folder and returns its path. `READABLE` are those that hold something that
can be told; of the others one clear error is all that can be asked.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl

from .nsys_export import BACKTRACE, PID, Program, tables_of, write_parquetdir, write_sqlite
from .nsys_schema import NEWEST

MAIN = PID
Maker = Callable[[Path], Path]
ODD: dict[str, Maker] = {}
READABLE: set[str] = set()
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


def odd(*, readable: bool) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        ODD[maker.__name__] = maker
        READABLE.update([maker.__name__] * readable)
        return maker

    return register


def small(*, launches: int = 4, pid: int = PID) -> Program:
    """One step with two layers: launches of 10 µs, kernels of 5 µs, a copy and a synchronisation."""
    program = Program()
    where = {"tid": MAIN, "pid": pid}
    program.device(pid=pid)
    program.process("python", pid=pid)
    program.push_pop("ProfilerStep#0", 0, 1_000_000, **where)
    for i in range(launches):
        at = 20_000 + 100_000 * i
        program.push_pop(f"layer{i % 2}", at, at + 90_000, **where)
        program.push_pop(
            f"aten::mm, seq = {i}, op_id = {i}", at + 1_000, at + 80_000, registered=False, **where
        )
        program.call("cudaLaunchKernel_v7000", at + 10_000, at + 20_000, correlation=10 + i, **where)
        program.kernel("gemm<float>", at + 30_000, at + 35_000, correlation=10 + i, pid=pid)
    program.call("cudaMemcpyAsync_v3020", 900_000, 905_000, correlation=90, **where)
    program.memcpy("HtoD", "Pinned", "Device", 910_000, 912_000, bytes_=4096, correlation=90, pid=pid)
    program.call("cudaStreamSynchronize_v3020", 920_000, 990_000, correlation=91, **where)
    program.sync(3, 921_000, 989_000, correlation=91, pid=pid)
    return program


def _edited(folder: Path, script: str, program: Program | None = None, version: str = NEWEST) -> Path:
    path = write_sqlite(program or small(), folder / "t.sqlite", version)
    base = sqlite3.connect(path)
    base.executescript(script)
    base.close()
    return path


# -- what was not recorded ---------------------------------------------------------------------------


@odd(readable=True)
def ranges_only(folder: Path) -> Path:
    program = Program()
    program.push_pop("forward", 0, 900, tid=MAIN)
    program.push_pop("inner", 100, 200, tid=MAIN)
    return write_sqlite(program, folder / "t.sqlite")


@odd(readable=True)
def device_only(folder: Path) -> Path:
    program = Program()
    program.kernel("gemm", 0, 500, correlation=1)
    return write_sqlite(program, folder / "t.sqlite")


@odd(readable=True)
def calls_only(folder: Path) -> Path:
    program = Program()
    program.call("cudaMalloc_v3020", 0, 500, correlation=1, tid=MAIN)
    return write_sqlite(program, folder / "t.sqlite")


@odd(readable=True)
def whole_graphs_only(folder: Path) -> Path:
    program = Program()
    program.call("cudaGraphLaunch_v10000", 0, 500, correlation=1, tid=MAIN)
    program.graph(7, 600, 9_000, correlation=1)
    return write_sqlite(program, folder / "t.sqlite")


@odd(readable=False)
def nothing_but_the_device_and_processes(folder: Path) -> Path:
    program = Program()
    program.device()
    program.process("python")
    return write_sqlite(program, folder / "t.sqlite")


@odd(readable=True)
def no_strings(folder: Path) -> Path:
    return _edited(folder, "DROP TABLE StringIds;")


@odd(readable=True)
def dangling_strings(folder: Path) -> Path:
    return _edited(folder, "DELETE FROM StringIds WHERE id % 2;")


@odd(readable=True)
def strings_twice(folder: Path) -> Path:
    script = (
        "ALTER TABLE StringIds RENAME TO old; CREATE TABLE StringIds (id INTEGER, value TEXT);"
        "INSERT INTO StringIds SELECT * FROM old UNION ALL SELECT id, value || '!' FROM old; DROP TABLE old;"
    )
    return _edited(folder, script)


@odd(readable=False)
def no_rows(folder: Path) -> Path:
    tables = tables_of(small())
    return _edited(folder, "".join(f'DELETE FROM "{table}";' for table in tables))


@odd(readable=False)
def no_tables(folder: Path) -> Path:
    return _edited(folder, "".join(f'DROP TABLE "{table}";' for table in tables_of(small())))


@odd(readable=False)
def another_database(folder: Path) -> Path:
    path = folder / "t.sqlite"
    base = sqlite3.connect(path)
    base.executescript("CREATE TABLE places (id INTEGER, url TEXT); INSERT INTO places VALUES (1, 'x');")
    base.close()
    return path


@odd(readable=False)
def no_bytes(folder: Path) -> Path:
    path = folder / "t.sqlite"
    path.write_bytes(b"")
    return path


@odd(readable=False)
def text(folder: Path) -> Path:
    path = folder / "t.sqlite"
    path.write_text("this is no database\n" * 500)
    return path


@odd(readable=False)
def magic_only(folder: Path) -> Path:
    path = folder / "t.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4_000)
    return path


# -- tables that are none ----------------------------------------------------------------------------


@odd(readable=True)
def a_view_without_end(folder: Path) -> Path:
    columns = "i AS start, i + 1 AS end, 59 AS eventType, 'x' AS text, 0 AS globalTid, NULL AS textId, 0 AS domainId"
    script = f"DROP TABLE NVTX_EVENTS; CREATE VIEW NVTX_EVENTS AS {ENDLESS} SELECT {columns} FROM n;"
    return _edited(folder, script)


@odd(readable=True)
def kernels_without_end(folder: Path) -> Path:
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    script = (
        f"DROP TABLE {kernels}; CREATE VIEW {kernels} AS {ENDLESS} SELECT i AS start, i + 1 AS end FROM n;"
    )
    return _edited(folder, script)


@odd(readable=False)
def nothing_but_a_view(folder: Path) -> Path:
    drops = "".join(f'DROP TABLE "{table}";' for table in tables_of(small()))
    return _edited(folder, f"{drops} CREATE VIEW StringIds AS {ENDLESS} SELECT i AS id, 'x' AS value FROM n;")


@odd(readable=True)
def a_computed_column(folder: Path) -> Path:
    """Each value of it would take forever, or all memory."""
    column = "text2 TEXT GENERATED ALWAYS AS (hex(zeroblob(900000000))) VIRTUAL"
    return _edited(folder, f"ALTER TABLE NVTX_EVENTS ADD COLUMN {column};")


@odd(readable=True)
def a_computed_name(folder: Path) -> Path:
    script = (
        "ALTER TABLE StringIds RENAME TO old;"
        "CREATE TABLE StringIds (id INTEGER, value TEXT GENERATED ALWAYS AS (hex(zeroblob(90000000))) VIRTUAL);"
        "INSERT INTO StringIds (id) SELECT id FROM old; DROP TABLE old;"
    )
    return _edited(folder, script)


def without_row_ids(folder: Path, *tables: str) -> Path:
    """Tables with the same rows, but ordered by their own first columns: a form that nsys never writes."""
    path = write_sqlite(small(), folder / "t.sqlite")
    with closing(sqlite3.connect(path)) as base, base:
        for table in tables:
            names = [row[1] for row in base.execute(f'PRAGMA table_info("{table}")')]
            shown = ", ".join(map('"{}"'.format, names))
            base.execute(f'ALTER TABLE "{table}" RENAME TO old')
            base.execute(f'CREATE TABLE "{table}" ({shown}, n INTEGER, PRIMARY KEY (n)) WITHOUT ROWID')
            base.execute(f'INSERT INTO "{table}" SELECT *, rowid FROM old')
            base.execute("DROP TABLE old")
    return path


@odd(readable=True)
def kernels_without_row_ids(folder: Path) -> Path:
    return without_row_ids(folder, "CUPTI_ACTIVITY_KIND_KERNEL")


@odd(readable=False)
def nothing_with_row_ids(folder: Path) -> Path:
    return without_row_ids(folder, *tables_of(small()))


# -- values ------------------------------------------------------------------------------------------


@odd(readable=True)
def texts_where_numbers_belong(folder: Path) -> Path:
    script = (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 1;"
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 'x', streamId = x'00ff' WHERE rowid = 2;"
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = 'wide', demangledName = 'name' WHERE rowid = 3;"
        "UPDATE NVTX_EVENTS SET globalTid = x'0102', end = 'late' WHERE rowid = 2;"
        "UPDATE NVTX_EVENTS SET text = x'00ff00', textId = 'seven' WHERE rowid = 3;"
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = 1.5, start = 1e300 WHERE rowid = 2;"
        "UPDATE TARGET_INFO_GPU SET smCount = 'many', totalMemory = -1, clockRate = x'ff';"
    )
    return _edited(folder, script)


@odd(readable=True)
def texts_in_every_row(folder: Path) -> Path:
    script = (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'a', end = 'b'; UPDATE NVTX_EVENTS SET start = 'c';"
    )
    return _edited(folder, script)


@odd(readable=True)
def numbers_that_are_too_large(folder: Path) -> Path:
    most = 2**63 - 1
    script = (
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = {most} WHERE rowid = 1;"
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = -{most}, end = {most}, gridX = {most}, gridY = {most},"
        f" staticSharedMemory = {most}, dynamicSharedMemory = {most} WHERE rowid = 2;"
        f"UPDATE NVTX_EVENTS SET start = -{most}, end = {most} WHERE rowid = 1;"
        f"UPDATE NVTX_EVENTS SET globalTid = -1 WHERE rowid = 2;"
        f"UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = {most}, copyKind = {most}, srcKind = -5;"
        f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = {most} WHERE rowid = 1;"
    )
    return _edited(folder, script)


@odd(readable=True)
def negative_durations(folder: Path) -> Path:
    script = (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 50 WHERE rowid = 1;"
        "UPDATE NVTX_EVENTS SET end = start - 50 WHERE rowid = 2;"
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = start - 50 WHERE rowid = 2;"
        "UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET end = start - 50;"
    )
    return _edited(folder, script)


@odd(readable=True)
def times_before_the_session(folder: Path) -> Path:
    return _edited(folder, "UPDATE NVTX_EVENTS SET start = start - 9000000000, end = end - 9000000000;")


@odd(readable=True)
def ranges_that_never_end(folder: Path) -> Path:
    return _edited(folder, "UPDATE NVTX_EVENTS SET end = NULL WHERE rowid % 2;")


@odd(readable=True)
def no_process(folder: Path) -> Path:
    script = (
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL; UPDATE NVTX_EVENTS SET globalTid = NULL;"
    )
    return _edited(folder, script)


@odd(readable=True)
def columns_that_lack(folder: Path) -> Path:
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId",
        "NVTX_EVENTS": "start, end, text, eventType",
    }
    script = "".join(
        f"ALTER TABLE {table} RENAME TO old; CREATE TABLE {table} AS SELECT {columns} FROM old; DROP TABLE old;"
        for table, columns in tables.items()
    )
    return _edited(folder, script)


@odd(readable=True)
def kernels_without_times(folder: Path) -> Path:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    script = f"ALTER TABLE {table} RENAME TO old; CREATE TABLE {table} AS SELECT deviceId FROM old; DROP TABLE old;"
    return _edited(folder, script)


@odd(readable=True)
def backtraces(folder: Path) -> Path:
    program = small()
    for row in list(program.tables["CUPTI_ACTIVITY_KIND_RUNTIME"]):
        program.tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append({**row, "eventClass": BACKTRACE})
    return write_sqlite(program, folder / "t.sqlite")


# -- texts -------------------------------------------------------------------------------------------


@odd(readable=True)
def bytes_that_are_no_text(folder: Path) -> Path:
    script = (
        "UPDATE StringIds SET value = CAST(x'67ff656d6d' AS TEXT) WHERE rowid % 2;"
        "UPDATE NVTX_EVENTS SET text = CAST(x'c3286dff00fe' AS TEXT) WHERE text IS NOT NULL;"
        "UPDATE META_DATA_EXPORT SET value = CAST(x'ff' AS TEXT);"
    )
    return _edited(folder, script)


@odd(readable=True)
def utf_16(folder: Path) -> Path:
    return write_sqlite(small(), folder / "t.sqlite", encoding="UTF-16be")


@odd(readable=True)
def very_long_names(folder: Path) -> Path:
    program = small()
    program.push_pop("y" * 1_000_000, 30_000, 31_000, tid=MAIN, registered=False)
    program.push_pop("{'Module': '" + "a." * 500_000 + "'}", 21_000, 100_000, tid=MAIN)
    program.kernel("k" * 1_000_000, 60_000, 61_000, correlation=10)
    return write_sqlite(program, folder / "t.sqlite")


@odd(readable=True)
def zero_characters(folder: Path) -> Path:
    program = small()
    program.push_pop("a\0b, op_id = 5", 30_000, 31_000, tid=MAIN, registered=False)
    program.push_pop("\x1b[2J\x1b]0;title\x07<script>alert(1)</script>", 21_000, 100_000, tid=MAIN)
    program.push_pop("", 22_000, 99_000, tid=MAIN)
    program.push_pop(None, 23_000, 98_000, tid=MAIN)
    return write_sqlite(program, folder / "t.sqlite")


# -- files beside the file ---------------------------------------------------------------------------


@odd(readable=False)
def write_ahead_log(folder: Path) -> Path:
    """In WAL mode; its last rows are in the log beside it, as a program that was killed leaves them."""
    source = write_sqlite(small(), folder / "source.sqlite")
    base = sqlite3.connect(source)
    base.executescript("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;")
    base.executescript("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 1;")
    for suffix in ("", "-wal"):
        shutil.copy(f"{source}{suffix}", folder / f"t.sqlite{suffix}")
    base.close()
    return folder / "t.sqlite"


@odd(readable=True)
def write_ahead_mode_without_a_log(folder: Path) -> Path:
    return _edited(folder, "PRAGMA journal_mode = WAL;")


@odd(readable=False)
def hot_journal(folder: Path) -> Path:
    """A journal beside it that says to put old pages back."""
    source = write_sqlite(small(launches=100), folder / "source.sqlite")
    base = sqlite3.connect(source, isolation_level=None)
    base.executescript(
        "PRAGMA cache_size = 1; PRAGMA cache_spill = 1; BEGIN; UPDATE NVTX_EVENTS SET start = start + 1;"
    )
    for suffix in ("", "-journal"):
        shutil.copy(f"{source}{suffix}", folder / f"t.sqlite{suffix}")
    base.close()
    return folder / "t.sqlite"


# -- folders of Parquet ------------------------------------------------------------------------------


@odd(readable=False)
def empty_folder(folder: Path) -> Path:
    (folder / "t").mkdir()
    return folder / "t"


@odd(readable=True)
def parquet_without_strings(folder: Path) -> Path:
    path = write_parquetdir(small(), folder / "t")
    (path / "StringIds.parquet").unlink()
    return path


@odd(readable=True)
def parquet_of_other_types(folder: Path) -> Path:
    path = write_parquetdir(small(), folder / "t")
    for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"):
        file = path / f"{table}.parquet"
        pl.read_parquet(file).with_columns(
            pl.col("start").cast(pl.Float64),
            pl.col("end").cast(pl.UInt64),
            pl.col("eventType", "globalTid").cast(pl.String)
            if table == "NVTX_EVENTS"
            else pl.col("deviceId").cast(pl.UInt32),
        ).write_parquet(file)
    return path


@odd(readable=False)
def parquet_that_is_damaged(folder: Path) -> Path:
    path = write_parquetdir(small(), folder / "t")
    for file in path.iterdir():
        file.write_bytes(file.read_bytes()[:-40])
    return path


@odd(readable=False)
def parquet_with_one_damaged_table(folder: Path) -> Path:
    path = write_parquetdir(small(), folder / "t")
    (path / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 no PAR1")
    return path
