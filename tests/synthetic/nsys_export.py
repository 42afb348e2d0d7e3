"""Writers of Nsight Systems exports: a small program in memory, written as `.sqlite` or as a folder of Parquet files.

program = Program()
program.push_pop("forward", 0, 900, tid=7)
program.call("cudaLaunchKernel_v7000", 100, 120, correlation=1, tid=7)
program.kernel("gemm", 300, 400, correlation=1)
path = write_sqlite(program, tmp_path / "t.sqlite", "3.20.2")
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl

from .nsys_schema import COPY_KIND, ENUMS, MEMORY_KIND, NEWEST, Column, number, schema

PID = 4242
PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
RUNTIME, DRIVER, OS_RUNTIME, BACKTRACE, GRAPH_NODE = 0, 1, 27, 67, 77
_VM = 1 << 48

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def global_id(pid: int, tid: int = 0, *, hardware: int = 0, vm: int = 1) -> int:
    """The serialised id of a thread, or with tid 0 of a process: 8, 8, 24 and 24 bits; signed, as SQLite holds it."""
    value = hardware << 56 | vm << 48 | pid << 24 | tid
    return value - (1 << 64) if value >= 1 << 63 else value


class Program:
    """What was profiled. Every method adds one record; times are ns on the session's clock.

    `tables` holds rows in the newest schema's columns, with texts where the file has numbers of StringIds.
    """

    def __init__(self) -> None:
        self.tables: Tables = defaultdict(list)
        self.registered = True
        """Whether names of push/pop ranges are registered strings (`textId`), where the version has these."""

    def add(self, table: str, **row: Any) -> None:
        self.tables[table].append(row)

    # -- host --------------------------------------------------------------------------------------

    def nvtx(
        self,
        kind: int,
        name: str | None,
        start: int,
        end: int | None,
        *,
        tid: int,
        pid: int = PID,
        domain: int = 0,
        registered: bool | None = None,
        **more: Any,
    ) -> None:
        """`registered` names go into StringIds, the others stand in the row itself."""
        inline = name is None or not (self.registered if registered is None else registered)
        thread = global_id(pid, tid)
        text = {"text": name, "textId": None} if inline else {"text": None, "textId": name}
        values = {"start": start, "end": end, "eventType": kind, "globalTid": thread, "domainId": domain}
        self.add("NVTX_EVENTS", **values, **text, **more)

    def push_pop(self, name: str | None, start: int, end: int | None, **more: Any) -> None:
        self.nvtx(PUSH_POP, name, start, end, **more)

    def start_end(self, name: str, start: int, end: int | None, *, end_tid: int, **more: Any) -> None:
        thread = global_id(more.get("pid", PID), end_tid)
        self.nvtx(
            START_END,
            name,
            start,
            end,
            rangeId=1 + len(self.tables["NVTX_EVENTS"]),
            endGlobalTid=thread,
            **more,
        )

    def mark(self, name: str, at: int, **more: Any) -> None:
        self.nvtx(MARK, name, at, None, **more)

    def domain(self, number_: int, name: str, at: int, **more: Any) -> None:
        self.nvtx(DOMAIN, name, at, None, domain=number_, registered=False, **more)

    def call(
        self, name: str, start: int, end: int, *, correlation: int, tid: int, pid: int = PID, **more: Any
    ) -> None:
        """A call of the CUDA runtime, or of the driver where the name says so."""
        driver = name.startswith("cu") and not name.startswith("cuda")
        row = {"start": start, "end": end, "eventClass": DRIVER if driver else RUNTIME, "nameId": name}
        row |= {"globalTid": global_id(pid, tid), "correlationId": correlation, "returnValue": 0}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **{**row, **more})

    def overhead(self, name: str, start: int, end: int, *, tid: int, pid: int = PID) -> None:
        self.add(
            "PROFILER_OVERHEAD",
            start=start,
            end=end,
            globalTid=global_id(pid, tid),
            nameId=name,
            overheadType=1,
        )

    def os_call(self, name: str, start: int, end: int, *, tid: int, pid: int = PID) -> None:
        self.add(
            "OSRT_API",
            **{"start": start, "end": end, "eventClass": OS_RUNTIME, "globalTid": global_id(pid, tid)},
            **{"nameId": name, "returnValue": 0, "nestingLevel": 0, "callchainId": 0},
        )

    def thread(self, name: str, *, tid: int, pid: int = PID) -> None:
        self.add("ThreadNames", nameId=name, priority=20, globalTid=global_id(pid, tid))

    def process(self, name: str, *, pid: int = PID) -> None:
        self.add("PROCESSES", globalPid=global_id(pid), pid=pid, name=name)

    def sample(self, stack: list[str], at: int, *, tid: int, pid: int = PID) -> None:
        """A call chain, the innermost function first, as the file has it."""
        number_ = 1 + len(self.tables["COMPOSITE_EVENTS"])
        self.add(
            "COMPOSITE_EVENTS",
            **{
                "id": number_,
                "start": at,
                "cpu": 1,
                "threadState": 1,
                "globalTid": global_id(pid, tid),
                "cpuCycles": 1,
            },
        )
        for depth, symbol in enumerate(stack):
            frame = {
                "symbol": symbol,
                "module": "libfoo.so",
                "kernelMode": 0,
                "unresolved": 0,
                "stackDepth": depth,
            }
            self.add("SAMPLING_CALLCHAINS", id=number_, **frame)

    # -- device ------------------------------------------------------------------------------------

    def _activity(
        self, kind: str, start: int, end: int, correlation: int, pid: int, device: int, stream: int, row: Row
    ) -> None:
        values = {"start": start, "end": end, "deviceId": device, "contextId": 1 + device, "streamId": stream}
        more = {"correlationId": correlation, "globalPid": global_id(pid), **row}
        self.add(f"CUPTI_ACTIVITY_KIND_{kind}", **values, **more)

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        correlation: int,
        pid: int = PID,
        device: int = 0,
        stream: int = 7,
        grid: tuple[int, int, int] = (64, 1, 1),
        block: tuple[int, int, int] = (128, 1, 1),
        **more: Any,
    ) -> None:
        row = {
            "demangledName": name,
            "shortName": name.split("<", maxsplit=1)[0][:80],
            "mangledName": f"_Z{len(name)}",
        }
        sizes = zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (*grid, *block), strict=True)
        memory = {"staticSharedMemory": 1024, "dynamicSharedMemory": 512, "registersPerThread": 32}
        row |= {**dict(sizes), **memory, "tensorSizeMinusOneElements": "[]", **more}
        self._activity("KERNEL", start, end, correlation, pid, device, stream, row)

    def memcpy(
        self,
        direction: str,
        source: str,
        target: str,
        start: int,
        end: int,
        *,
        bytes_: int,
        correlation: int,
        pid: int = PID,
        device: int = 0,
        stream: int = 7,
        **more: Any,
    ) -> None:
        """`direction` is HtoD, DtoH, DtoD or PtoP; `source` and `target` are Pageable, Pinned, Device, …"""
        kinds = {"srcKind": MEMORY_KIND[source], "dstKind": MEMORY_KIND[target]}
        row = {"bytes": bytes_, "copyKind": COPY_KIND[direction], **kinds, **more}
        self._activity("MEMCPY", start, end, correlation, pid, device, stream, row)

    def memset(
        self,
        start: int,
        end: int,
        *,
        bytes_: int,
        correlation: int,
        pid: int = PID,
        device: int = 0,
        stream: int = 7,
    ) -> None:
        row = {"value": 0, "bytes": bytes_, "memKind": MEMORY_KIND["Device"]}
        self._activity("MEMSET", start, end, correlation, pid, device, stream, row)

    def graph(
        self,
        number_: int,
        start: int,
        end: int,
        *,
        correlation: int,
        pid: int = PID,
        device: int = 0,
        stream: int = 7,
    ) -> None:
        """A CUDA graph that was traced as a whole."""
        row = {"graphId": number_, "graphExecId": number_ + 1}
        self._activity("GRAPH_TRACE", start, end, correlation, pid, device, stream, row)

    def graph_node(
        self, number_: int, at: int, *, tid: int, pid: int = PID, original: int | None = None
    ) -> None:
        """A node of a CUDA graph was made, or copied from `original`."""
        row: Row = {"start": at, "end": at, "eventClass": GRAPH_NODE, "globalTid": global_id(pid, tid)}
        row |= {"nameId": "Graph Node Creation", "graphNodeId": number_, "originalGraphNodeId": original}
        for table in ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS"):  # its name in new and in old versions
            self.add(table, **row)

    def sync(
        self,
        kind: int,
        start: int,
        end: int,
        *,
        correlation: int,
        pid: int = PID,
        device: int = 0,
        stream: int = 7,
    ) -> None:
        """`kind` is 1 event, 2 stream wait event, 3 stream, 4 context."""
        row = {"syncType": kind, "eventId": 0, "eventSyncId": 0}
        self._activity("SYNCHRONIZATION", start, end, correlation, pid, device, stream, row)

    def device(self, number_: int = 0, name: str = "NVIDIA A100-SXM4-40GB", *, pid: int = PID) -> None:
        shape = {
            "smCount": 108,
            "threadsPerWarp": 32,
            "maxWarpsPerSm": 64,
            "computeMajor": 8,
            "computeMinor": 0,
        }
        rates = {
            "totalMemory": 42_297_524_224,
            "memoryBandwidth": 1_555_200_000_000,
            "clockRate": 1_410_000_000,
        }
        known = {"vmId": _VM, "id": number_, "name": name, "cuDevice": number_}
        self.add("TARGET_INFO_GPU", **known, **shape, **rates)
        self.add("TARGET_INFO_CUDA_DEVICE", gpuId=number_, cudaId=number_, pid=pid)

    def metric(self, name: str, samples: list[tuple[int, int]], *, device: int = 0) -> None:
        """A series of one device's counters: (time, value)."""
        known = [
            row["metricName"] for row in self.tables["TARGET_INFO_GPU_METRICS"] if row["sourceId"] == device
        ]
        if name not in known:
            names = {"typeName": "GA100 [NVIDIA A100]", "metricId": len(known), "metricName": name}
            self.add("TARGET_INFO_GPU_METRICS", typeId=_metric_type(device), sourceId=device, **names)
            known.append(name)
        for at, value in samples:
            self.add(
                "GPU_METRICS",
                timestamp=at,
                typeId=_metric_type(device),
                metricId=known.index(name),
                value=value,
            )

    def session(self, utc_ns: int, start: int, stop: int) -> None:
        self.add(
            "TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_ns, utcTime="2024-01-01T00:00:00", localTime=""
        )
        self.add("ANALYSIS_DETAILS", globalVid=_VM, duration=stop - start, startTime=start, stopTime=stop)
        for number_, (name, value) in enumerate(SECRETS.items()):
            row = {
                "globalVid": _VM,
                "devStateName": "Local (CLI)",
                "name": name,
                "nameEnum": number_,
                "value": value,
            }
            self.add("TARGET_INFO_SYSTEM_ENV", **row)


SECRETS = {
    "Hostname": "secret-host-7",
    "DeviceEnvironment": "TOKEN=secret-token-8",
    "TargetInstallDir": "/home/secret-user-9/nsys",
}
"""What exports hold of the machine, and no report may show."""


def _metric_type(device: int) -> int:
    """The lowest byte is the device, as in real files."""
    return 281_479_271_677_952 + device


# -- writing -----------------------------------------------------------------------------------------


def tables_of(program: Program, version: str = NEWEST) -> dict[str, tuple[list[Column], list[list[Any]]]]:
    """What an export of that version holds: for each table that has rows its columns and the rows' values."""
    numbers: dict[str, int] = {}
    made: dict[str, tuple[list[Column], list[list[Any]]]] = {}
    rows = {**program.tables, **_metadata(version)}
    if number(version) < (2,):
        rows["NVTX_EVENTS"] = [_inline(row) for row in rows.get("NVTX_EVENTS", [])]
    if number(version) >= (3,):
        rows |= {
            name: [{"id": code, "name": label.upper(), "label": label} for code, label in labels.items()]
            for name, labels in ENUMS.items()
        }
    for table, columns in schema(version).items():
        if rows.get(table):
            made[table] = (
                columns,
                [[_value(row, column, numbers) for column in columns] for row in rows[table]],
            )
    strings = [[code, text] for text, code in numbers.items()]
    strings += [[row["id"], row["value"]] for row in rows.get("StringIds", [])]
    if strings:
        made["StringIds"] = schema(version)["StringIds"], strings
    return made


def _inline(row: Row) -> Row:
    return {**row, "text": row["text"] if row["textId"] is None else row["textId"]}


def _value(row: Row, column: Column, numbers: dict[str, int]) -> Any:
    value = row.get(column.name)
    if value is None:
        return column.missing
    if column.string and isinstance(value, str):
        return numbers.setdefault(value, len(numbers) + 3)
    return value


def _metadata(version: str) -> Tables:
    major, minor, micro = version.split(".")
    rows = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": "2024.1.1.59",
        "EXPORT_SCHEMA_VERSION": version,
        "EXPORT_SCHEMA_VERSION_MAJOR": major,
        "EXPORT_SCHEMA_VERSION_MINOR": minor,
        "EXPORT_SCHEMA_VERSION_MICRO": micro,
        "EXPORT_HOST": SECRETS["Hostname"],
        "EXPORT_USER": "secret-user-9",
        "EXPORT_INPUT_PATH": "/home/secret-user-9/run.nsys-rep",
    }
    listed = [{"name": name, "value": value} for name, value in rows.items()]
    captured = [
        {"name": "CAPTURE_EVENT_TYPE", "value": "Cuda"},
        {"name": "COMMAND_LINE", "value": "secret-command"},
    ]
    return {"EXPORT_META_DATA": listed, "META_DATA_EXPORT": listed, "META_DATA_CAPTURE": captured}


def write_sqlite(program: Program, path: Path, version: str = NEWEST, *, encoding: str = "UTF-8") -> Path:
    """An export as `nsys export --type sqlite` writes it. Returns `path`."""
    base = sqlite3.connect(path)
    try:
        base.execute(f"PRAGMA encoding = '{encoding}'")
        for table, (columns, rows) in tables_of(program, version).items():
            base.execute(f'CREATE TABLE "{table}" ({", ".join(column.sql for column in columns)})')
            marks = ", ".join("?" * len(columns))
            base.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
        base.commit()
    finally:
        base.close()
    return path


_DTYPES = {"INTEGER": pl.Int64, "REAL": pl.Float64, "TEXT": pl.String}


def write_parquetdir(program: Program, folder: Path, version: str = NEWEST) -> Path:
    """An export as `nsys export --type parquetdir` writes it: one `TABLE.parquet` for each table. Returns `folder`."""
    folder.mkdir()
    for table, (columns, rows) in tables_of(program, version).items():
        wanted = {column.name: _DTYPES[column.type] for column in columns}
        if "binaryData" in wanted:
            wanted["binaryData"] = pl.Binary
        pl.DataFrame(rows, schema=wanted, orient="row").write_parquet(folder / f"{table}.parquet")
    return folder


def merged(*programs: Program) -> Program:
    """Several programs in one export."""
    whole = Program()
    for program in programs:
        for table, rows in program.tables.items():
            whole.tables[table].extend(rows)
    return whole
