"""The reports on public exports of Nsight Systems against SQL on the same files, written from the documented schema."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from paths import PUBLIC_NSYS

import tracekit
from tracekit.analyses.nsys_stats.tables import report, table
from tracekit.trace import Trace

pytestmark = pytest.mark.skipif(not PUBLIC_NSYS, reason="no public exports beside the checkout")

WORK = ("KERNEL", "MEMCPY", "MEMSET")
CALL = "eventClass IN (0, 1)"
"""Rows of class 67 repeat calls, with a backtrace."""
COPIES = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device"}
SMALL = [path for path in PUBLIC_NSYS if not path.name.startswith("fsdp")]


@pytest.fixture(scope="module", params=PUBLIC_NSYS, ids=lambda path: path.stem)
def file(request: pytest.FixtureRequest) -> Iterator[tuple[sqlite3.Connection, list[Trace]]]:
    path: Path = request.param
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    yield connection, tracekit.read_all(path)
    connection.close()


File = tuple[sqlite3.Connection, list[Trace]]


def rows(file: File, sql: str) -> list[tuple[Any, ...]]:
    return file[0].execute(sql).fetchall()


def there(file: File, *tables: str) -> list[str]:
    known = {name for (name,) in rows(file, "SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [name for name in tables if name in known]


@pytest.mark.quick(1)
def test_kernels(file: File) -> None:
    expected = rows(
        file,
        """SELECT value, SUM(end - start), COUNT(*), AVG(end - start), MIN(end - start), MAX(end - start)
           FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON demangledName = StringIds.id GROUP BY value""",
    )
    columns = ("Name", "Total Time (ns)", "Instances", "Avg (ns)", "Min (ns)", "Max (ns)")
    made = report(file[1], "cuda_gpu_kern_sum")
    assert sorted(made.select(columns).rows()) == sorted(expected)
    assert made["Time (%)"].sum() == pytest.approx(100)
    grids = rows(
        file,
        """SELECT value, gridX, gridY, gridZ, blockX, blockY, blockZ, COUNT(*), SUM(end - start)
           FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON demangledName = StringIds.id GROUP BY 1, 2, 3, 4, 5, 6, 7""",
    )
    by_grid = report(file[1], "cuda_gpu_kern_gb_sum")
    found = [
        (
            row["Name"],
            *map(int, row["GridXYZ"].split()),
            *map(int, row["BlockXYZ"].split()),
            row["Instances"],
            row["Total Time (ns)"],
        )
        for row in by_grid.iter_rows(named=True)
    ]
    assert sorted(found) == sorted(grids)


def test_copies_and_fills(file: File) -> None:
    if not there(file, "CUPTI_ACTIVITY_KIND_MEMCPY"):
        pytest.skip("nothing was copied")
    expected = [
        (f"[CUDA memcpy {COPIES[kind]}]", *figures)
        for kind, *figures in rows(
            file,
            "SELECT copyKind, COUNT(*), SUM(end - start), SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY GROUP BY 1",
        )
    ]
    if there(file, "CUPTI_ACTIVITY_KIND_MEMSET"):
        ((count, time, size),) = rows(
            file, "SELECT COUNT(*), SUM(end - start), SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMSET"
        )
        if count:
            expected.append(("[CUDA memset]", count, time, size))
    times = report(file[1], "cuda_gpu_mem_time_sum").select("Operation", "Count", "Total Time (ns)")
    sizes = report(file[1], "cuda_gpu_mem_size_sum").select("Operation", "Total (MB)")
    found = [(*row[:3], round(row[3] * 1e6)) for row in times.join(sizes, on="Operation").rows()]
    assert sorted(found) == sorted(expected)


def test_time_of_the_device_is_kept(file: File) -> None:
    total = sum(
        rows(file, f"SELECT IFNULL(SUM(end - start), 0) FROM CUPTI_ACTIVITY_KIND_{name}")[0][0]
        for name in WORK
        if there(file, f"CUPTI_ACTIVITY_KIND_{name}")
    )
    assert report(file[1], "cuda_gpu_sum")["Total Time (ns)"].sum() == total
    assert report(file[1], "cuda_gpu_trace")["Duration (ns)"].sum() == total


def test_trace_of_the_device(file: File) -> None:
    expected = rows(
        file,
        """SELECT start, end - start, correlationId, gridX, blockX, registersPerThread, staticSharedMemory, dynamicSharedMemory,
           contextId, streamId, value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON demangledName = StringIds.id""",
    )
    columns = (
        "Start (ns)",
        "Duration (ns)",
        "CorrId",
        "GrdX",
        "BlkX",
        "Reg/Trd",
        "StcSMem (MB)",
        "DymSMem (MB)",
        "Ctx",
        "Strm",
        "Name",
    )
    kernels = report(file[1], "cuda_gpu_trace").filter(pl.col("GrdX").is_not_null())
    found = [
        (*row[:6], round(row[6] * 1e6), round(row[7] * 1e6), *row[8:])
        for row in kernels.select(columns).rows()
    ]
    assert sorted(found) == sorted(expected)


def test_api_calls(file: File) -> None:
    """Names of the export have a version suffix, which `nsys stats` does not show."""
    processes = ",".join(str(process) for trace in file[1] for process in trace.meta.process_ids)
    expected = rows(
        file,
        f"""SELECT value, COUNT(*), SUM(end - start), MIN(end - start), MAX(end - start)
            FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = StringIds.id
            WHERE (globalTid >> 24) & 0xFFFFFF IN ({processes}) AND {CALL} GROUP BY 1""",
    )
    plain = [(re.sub(r"_v\d{4,}$", "", name), *figures) for name, *figures in expected]
    columns = ("Name", "Num Calls", "Total Time (ns)", "Min (ns)", "Max (ns)")
    assert sorted(report(file[1], "cuda_api_sum").select(columns).rows()) == sorted(plain)


def test_launch_queue_and_kernel_times(file: File) -> None:
    expected = rows(
        file,
        """SELECT r.start, r.end - r.start, CASE WHEN k.start > r.end THEN k.start - r.end END, k.start, k.end - k.start,
           MAX(k.end, r.end) - r.start, r.globalTid & 0xFFFFFF
           FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
           ON k.correlationId = r.correlationId AND k.globalPid / 0x1000000 = r.globalTid / 0x1000000 WHERE eventClass IN (0, 1)""",
    )
    columns = (
        "API Start (ns)",
        "API Dur (ns)",
        "Queue Dur (ns)",
        "Kernel Start (ns)",
        "Kernel Dur (ns)",
        "Total Dur (ns)",
        "TID",
    )
    made = report(file[1], "cuda_kern_exec_trace")
    assert sorted(made.select(columns).rows(), key=repr) == sorted(expected, key=repr)
    summary = report(file[1], "cuda_kern_exec_sum")
    assert summary["Count"].sum() == len(expected)
    assert summary["QCount"].sum() == sum(row[2] is not None for row in expected)


def test_ranges(file: File) -> None:
    if not there(file, "NVTX_EVENTS"):
        assert table(file[1], "nvtx_sum").not_captured
        return
    processes = ",".join(str(process) for trace in file[1] for process in trace.meta.process_ids)
    ((count, time),) = rows(
        file,
        f"""SELECT COUNT(*), SUM(end - start) FROM NVTX_EVENTS WHERE eventType IN (59, 60) AND end IS NOT NULL
            AND (globalTid >> 24) & 0xFFFFFF IN ({processes})""",
    )
    made = report(file[1], "nvtx_sum")
    assert (made["Instances"].sum(), made["Total Time (ns)"].sum()) == (count, time)


@pytest.mark.slow
def test_projection() -> None:
    """Every range against all work whose call lies in it, on its thread."""
    for path in SMALL:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            if "NVTX_EVENTS" not in known:
                continue
            work = " UNION ALL ".join(
                f"SELECT start, end, correlationId, globalPid FROM CUPTI_ACTIVITY_KIND_{name}"
                for name in WORK
                if f"CUPTI_ACTIVITY_KIND_{name}" in known
            )
            expected = connection.execute(
                f"""WITH work AS ({work})
                    SELECT n.start, n.end - n.start, MIN(w.start), MAX(w.end) - MIN(w.start), COUNT(*)
                    FROM NVTX_EVENTS n
                    JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.globalTid = n.globalTid AND r.start >= n.start AND r.end <= n.end
                    JOIN work w ON w.correlationId = r.correlationId AND w.globalPid / 0x1000000 = r.globalTid / 0x1000000
                    WHERE n.eventType = 59 AND {CALL} GROUP BY n.rowid"""
            ).fetchall()
        columns = (
            "Orig Start (ns)",
            "Orig Duration (ns)",
            "Projected Start (ns)",
            "Projected Duration (ns)",
            "NumGPUOps",
        )
        made = report(tracekit.read_all(path), "nvtx_gpu_proj_trace")
        assert sorted(made.select(columns).rows()) == sorted(expected)
        assert expected


def test_calls_of_the_operating_system(file: File) -> None:
    made = table(file[1], "osrt_sum")
    if not there(file, "OSRT_API"):
        assert made.not_captured is not None
        assert "--trace=osrt" in made.not_captured
        return
    processes = ",".join(str(process) for trace in file[1] for process in trace.meta.process_ids)
    expected = rows(
        file,
        f"""SELECT value, COUNT(*), SUM(end - start) FROM OSRT_API JOIN StringIds ON nameId = StringIds.id
            WHERE (globalTid >> 24) & 0xFFFFFF IN ({processes}) AND end IS NOT NULL GROUP BY 1""",
    )
    assert sorted(made.frame.select("Name", "Num Calls", "Total Time (ns)").rows()) == sorted(expected)


def test_blocking_copies(file: File) -> None:
    if not there(file, "CUPTI_ACTIVITY_KIND_MEMCPY"):
        pytest.skip("nothing was copied")
    expected = rows(
        file,
        """SELECT m.end - m.start, m.start, m.bytes FROM CUPTI_ACTIVITY_KIND_MEMCPY m
           JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON m.correlationId = r.correlationId AND m.globalPid / 0x1000000 = r.globalTid / 0x1000000
           JOIN StringIds ON r.nameId = StringIds.id
           WHERE eventClass IN (0, 1) AND value NOT LIKE '%Async%' AND m.copyKind != 8 AND NOT (m.copyKind = 1 AND m.bytes <= 65536)""",
    )
    made = table(file[1], "cuda_memcpy_sync").frame.select("Duration (ns)", "Start (ns)", "Bytes (MB)")
    assert sorted((*row[:2], round(row[2] * 1e6)) for row in made.rows()) == sorted(expected)
