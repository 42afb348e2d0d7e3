"""What an Nsight Systems export says, by direct SQL and by comparing everything with everything."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

ACTIVITIES = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
_OPEN = np.iinfo(np.int64).max


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a file that is only read; nothing is created beside it."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as base:
        return base.execute(sql).fetchall()


def columns(path: Path, table: str) -> set[str]:
    return {row[1] for row in query(path, f'PRAGMA table_info("{table}")')}


def totals(path: Path, table: str, processes: Iterable[int] | None = None) -> tuple[int, int]:
    """How many rows a table has (of these processes), and the sum of their durations; zeros without the table."""
    if not columns(path, table):
        return 0, 0
    only = "" if processes is None else f"WHERE {_of(processes)}"
    return query(path, f'SELECT count(*), coalesce(sum("end" - start), 0) FROM "{table}" {only}')[0]


def _of(processes: Iterable[int]) -> str:
    return f"(globalTid / 16777216) % 16777216 IN ({', '.join(map(str, processes))})"


def kernels_by_name(path: Path) -> dict[str, tuple[int, int]]:
    """Count and summed duration of the kernels of each demangled name."""
    sql = """
        SELECT s.value, count(*), sum(k."end" - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k
        JOIN StringIds s ON s.id = k.demangledName GROUP BY s.value
    """
    return {name: (count, total) for name, count, total in query(path, sql)}


def calls_by_name(path: Path, processes: Iterable[int]) -> dict[str, tuple[int, int]]:
    """Count and summed duration of the processes' CUDA calls by name, without the version that ends it and backtraces."""
    classes = f"WHERE {_of(processes)}"
    if "eventClass" in columns(path, "CUPTI_ACTIVITY_KIND_RUNTIME"):
        classes += " AND r.eventClass != 67"
    sql = f"""
        SELECT s.value, count(*), sum(r."end" - r.start) FROM CUPTI_ACTIVITY_KIND_RUNTIME r
        JOIN StringIds s ON s.id = r.nameId {classes} GROUP BY s.value
    """
    found: dict[str, tuple[int, int]] = {}
    for name, count, total in query(path, sql):
        short = re.sub(r"_v\d{4,5}$", "", name)
        before = found.get(short, (0, 0))
        found[short] = before[0] + count, before[1] + total
    return found


def ranges(path: Path) -> list[tuple[int, int, int, str]]:
    """Push/pop ranges: thread (as the file numbers it), start, end (the end of time where it has none), name."""
    known = columns(path, "NVTX_EVENTS")
    if not known:
        return []
    name = "n.text"
    join = ""
    if "textId" in known:
        name, join = "coalesce(n.text, s.value)", "LEFT JOIN StringIds s ON s.id = n.textId"
    sql = f'SELECT n.globalTid, n.start, n."end", {name} FROM NVTX_EVENTS n {join} WHERE n.eventType = 59'
    return [
        (tid, start, _OPEN if end is None else end, text or "") for tid, start, end, text in query(path, sql)
    ]


def ranges_by_name(path: Path) -> Counter[str]:
    """Push/pop ranges by name, without what `emit_nvtx` appends to it."""
    return Counter(plain(name) for _, _, _, name in ranges(path))


def plain(text: str) -> str:
    """The name that `emit_nvtx` was given."""
    return re.sub(r"(, seq = -?\d+)?(, op_id = \d+)(, sizes = \[.*)?$", "", text)


def launches(path: Path) -> dict[tuple[int, int], tuple[int, int, int]]:
    """By (process, correlation) the outermost call: thread, start, end."""
    classes = "WHERE eventClass != 67" if "eventClass" in columns(path, "CUPTI_ACTIVITY_KIND_RUNTIME") else ""
    if not columns(path, "CUPTI_ACTIVITY_KIND_RUNTIME"):
        return {}
    sql = f'SELECT globalTid, correlationId, start, "end" FROM CUPTI_ACTIVITY_KIND_RUNTIME {classes}'
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for tid, correlation, start, end in query(path, sql):
        key = tid >> 24 & 0xFFFFFF, correlation
        if key not in found or start < found[key][1]:
            found[key] = tid, start, end
    return found


def innermost(path: Path) -> list[tuple[int, int, int, str | None, bool]]:
    """For each activity: process, stream, start, the name of the innermost push/pop range that is open on the launching
    thread when the launch starts (None for none), and whether its launch is in the file. O(activities × ranges).
    """
    by_thread: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for tid, start, end, name in ranges(path):
        by_thread[tid].append((start, end, name))
    arrays = {
        tid: (np.array([r[0] for r in rows]), np.array([r[1] for r in rows]), [r[2] for r in rows])
        for tid, rows in by_thread.items()
    }
    calls = launches(path)
    found: list[tuple[int, int, int, str | None, bool]] = []
    for kind in ACTIVITIES:
        table = f"CUPTI_ACTIVITY_KIND_{kind}"
        if not columns(path, table):
            continue
        for pid, stream, start, correlation in query(
            path,
            f"SELECT globalPid, streamId, start, correlationId FROM {table}",
        ):
            process = pid >> 24 & 0xFFFFFF
            call = calls.get((process, correlation))
            name = None if call is None else _at(arrays.get(call[0]), call[1])
            found.append((process, stream, start, name, call is not None))
    return found


def _at(thread: tuple[Any, Any, list[str]] | None, time: int) -> str | None:
    if thread is None:
        return None
    starts, ends, names = thread
    open_ = np.flatnonzero((starts <= time) & (time < ends))
    if not open_.size:
        return None
    latest = open_[starts[open_] == starts[open_].max()]
    return names[
        latest[ends[latest] == ends[latest].min()][-1]
    ]  # of equal ones the file has the inner one last
