"""A small Nsight Systems export with something private in every place where such a file can hold it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from synthetic.nsys_export import PID, Program, global_id, write_sqlite
from synthetic.nsys_odd import MAIN, small
from synthetic.nsys_schema import NEWEST, Column, schema

HOST, USER, TOKEN = "kestrel-node17", "jdoremi", "tok_9f8e7d6c5b4a"
HOME, FOLDER = f"/home/{USER}", "/scratch/projects/moonshot"
WORDS = (HOST, USER, HOME, FOLDER, TOKEN)
"""What the file says of machine and user; must not stand in names either."""

PLANTED = "zqprivate"
"""How every word begins that is planted in a column."""

OTHER = 777
"""A process that does no work on a device."""

FOREIGN = {
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ANALYSIS_FILE": "id INTEGER PRIMARY KEY, filename TEXT NOT NULL, content TEXT NOT NULL, globalPid INTEGER",
    "ProcessStreams": "globalPid INTEGER NOT NULL, filenameId INTEGER NOT NULL, contentId INTEGER NOT NULL",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER, severity INTEGER, text TEXT NOT NULL, globalPid INTEGER",
    "GENERIC_EVENTS": "rawTimestamp INTEGER, typeId INTEGER, data TEXT",
    "SCHED_EVENTS": "start INTEGER, cpu INTEGER, globalTid INTEGER",
    "TARGET_INFO_NIC_INFO": "GUID INTEGER, stateName TEXT, nicId INTEGER, name TEXT",
    "MPI_RANKS": "globalTid INTEGER, rank INTEGER",
    "CUBLAS_EVENTS": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
    "notes": "id INTEGER PRIMARY KEY, remark TEXT",
}
"""Tables of real exports that no generated one has, and one of somebody's own."""

ODDITIES = (
    "ALTER TABLE OSRT_API ADD COLUMN remark TEXT DEFAULT 'zqprivate default of a column'",
    "ALTER TABLE OSRT_API ADD COLUMN other INTEGER /* zqprivate comment in the schema */",
    "CREATE VIEW lookalike AS SELECT 'zqprivate view' AS value",
    "CREATE TRIGGER spoil AFTER INSERT ON StringIds BEGIN DELETE FROM NVTX_EVENTS; END",
    "CREATE INDEX by_name ON PROCESSES (name)",
    "CREATE TABLE CUDA_MADE_EVENTS (start INTEGER, made TEXT AS ('zqprivate computed') STORED)",
    "INSERT INTO CUDA_MADE_EVENTS (start) VALUES (5)",
    "ALTER TABLE NVTX_EVENTS ADD COLUMN zqprivateX",
    "CREATE TABLE gone (a TEXT)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
    "INSERT INTO gone SELECT 'zqprivate row of a table that was dropped ' || i FROM n",
    "DROP TABLE gone",
    "INSERT INTO DIAGNOSTIC_EVENT VALUES (2, 1, 'zqprivate row that was deleted', 0)",
    "DELETE FROM DIAGNOSTIC_EVENT WHERE timestamp = 2",
    "ANALYZE",
)
"""What no export holds, but a database can."""

SHOWN = r"^(TARGET_INFO_GPU\.name|TARGET_INFO_GPU_METRICS\.metricName|ENUM_\w+\.label)$"
"""Texts that NVIDIA's tools give, and that are kept as they are."""


def program(names: Iterable[str] = ()) -> Program:
    """Launches with kernels, samples, OS calls, metrics, names of threads and domains; `names` are further ranges."""
    made = small()
    for number, name in enumerate(names):
        made.push_pop(name, 900 + number, 990_000 - number, tid=MAIN, registered=bool(number % 2))
    made.domain(1, "NCCL", 0, tid=MAIN)
    made.nvtx(39, "MPI Rank 3", 0, None, tid=MAIN)
    made.thread("python3", tid=MAIN)
    made.thread("pt_autograd_0", tid=MAIN + 1)
    made.os_call("pthread_cond_wait", 2_000, 9_000, tid=MAIN)
    made.sample(["run", "main"], 3_000, tid=MAIN)
    made.metric("SMs Active [%]", [(4_000, 55), (5_000, 56)])
    made.session(1_754_324_972_242_076_786, 0, 1_000_000)
    made.overhead("CUPTI overhead", 10, 20, tid=MAIN)
    return made


def private_export(path: Path, names: Iterable[str] = (), *, script: str = "") -> dict[str, str]:
    """Write an export to `path`, and run `script` in it; returns the words that were planted, by `TABLE.column`."""
    write_sqlite(program(names), path, NEWEST)
    with closing(sqlite3.connect(path)) as base:
        for table, columns in schema(NEWEST).items():
            declared = ", ".join(column.sql for column in columns)
            base.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ({declared})')
        for table, declared in FOREIGN.items():
            base.execute(f"CREATE TABLE IF NOT EXISTS {table} ({declared})")
        planted = dict(_planted(base))
        for table, row in _told_of_the_machine():
            _insert(base, table, row)
        for statement in ODDITIES:
            base.execute(statement)
        base.commit()
        base.executescript(script)
    return planted


def _told_of_the_machine() -> Iterator[tuple[str, dict[str, object]]]:
    variables = {
        "HOSTNAME": HOST,
        "USER": USER,
        "HOME": HOME,
        "PWD": FOLDER,
        "HF_TOKEN": TOKEN,
        "TOKENIZERS": "4",
    }
    environment = ";".join(f"{name}={value}" for name, value in variables.items())
    machine = {"globalVid": 1, "devStateName": f"Remote {HOST}", "nameEnum": 1}
    yield "TARGET_INFO_SYSTEM_ENV", {**machine, "name": "Hostname", "value": f"{HOST}.lab.example.org"}
    yield "TARGET_INFO_SYSTEM_ENV", {**machine, "name": "DeviceEnvironment", "value": environment}
    yield "META_DATA_CAPTURE", {"name": "PROCESS_0:WORKING_DIR", "value": FOLDER}
    yield "META_DATA_CAPTURE", {"name": "PROCESS_0:ARGUMENT_1", "value": f"--key={TOKEN}"}
    yield "META_DATA_EXPORT", {"name": "EXPORT_USER", "value": USER}
    yield "META_DATA_EXPORT", {"name": "EXPORT_PLATFORM", "value": f"linux of {USER}"}
    yield "StringIds", {"id": 300_000, "value": environment.replace(";", "\0")}


def _planted(base: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """A row in every table with a word of its own in every column, of another process where the table tells one."""
    known = {(table, column.name): column for table, columns in schema(NEWEST).items() for column in columns}
    number = 0
    for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        on_device = table.startswith("CUPTI_ACTIVITY_KIND_") and (table, "globalPid") in known
        row: dict[str, object] = {}
        for _, name, *_, key in base.execute(f'PRAGMA table_info("{table}")').fetchall():
            string = name in ("filenameId", "contentId") or known.get((table, name), Column(name)).string
            number += 1
            word = f"zqprivate{number:03}"
            if name in ("globalPid", "globalTid", "endGlobalTid"):
                row[name] = global_id(PID if on_device else OTHER, 0 if name == "globalPid" else OTHER)
            elif key or (on_device and string):
                row[name] = 100_000 if key else 3
            elif string:
                row[name] = 200_000 + number
                _insert(base, "StringIds", {"id": 200_000 + number, "value": word})
            else:
                row[name] = word
            if row[name] == word or row[name] == 200_000 + number:
                yield f"{table}.{name}", word
        _insert(base, table, row)


def _insert(base: sqlite3.Connection, table: str, row: dict[str, object]) -> None:
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    base.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', list(row.values()))
