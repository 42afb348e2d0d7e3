"""Reports of an export over all of its processes, also those that put no work on a device, as nsys sums them."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import ok
from synthetic.nsys_export import Program, write_sqlite

import tracekit
from tracekit.analyses.nsys_stats.tables import report
from tracekit.limits import Limits


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """A process with a kernel, one with two calls and a range, and one with a call of the operating system only."""
    program = Program()
    program.call("cudaLaunchKernel_v7000", 100, 120, correlation=1, tid=7, pid=10)
    program.kernel("gemm", 300, 400, correlation=1, pid=10)
    for start in (150, 250):
        program.call("cudaMalloc_v3020", start, start + 40, correlation=start, tid=8, pid=11)
    program.push_pop("load", 140, 340, tid=8, pid=11)
    program.os_call("poll", 100, 900, tid=9, pid=12)
    program.os_call("poll", 100, 200, tid=7, pid=10)
    return write_sqlite(program, tmp_path / "t.sqlite", "3.20.2")


def test_a_process_with_calls_only_counts(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = tracekit.read_all(export, limits=Limits(all_processes=True))
    assert [trace.meta.process_ids for trace in traces] == [(10,), (11,)]
    calls = report(traces, "cuda_api_sum").select("Name", "Num Calls", "Total Time (ns)")
    assert calls.rows() == [("cudaMalloc", 2, 80), ("cudaLaunchKernel", 1, 20)]
    assert report(traces, "nvtx_sum").select("Range", "Total Time (ns)").rows() == [(":load", 200)]
    assert report(traces, "osrt_sum").select("Name", "Num Calls", "Total Time (ns)").rows() == [
        ("poll", 2, 900)
    ]
    assert report(traces, "cuda_api_trace").select("Start (ns)", "Pid").rows() == [
        (100, 10),
        (150, 11),
        (250, 11),
    ]
    assert "cudaMalloc" in ok(capsys, "nsys-stats", export, "-r", "cuda_api_sum")


def test_the_cache_keeps_both_readings_apart(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever command reads the file first."""
    for _ in range(2):
        assert "cudaMalloc" in ok(capsys, "nsys-stats", export, "-r", "cuda_api_sum")
        assert len(tracekit.read_all(export, cache=True)) == 1
    assert "2 processes: 11, 12" in ok(capsys, "doctor", export)


def test_a_file_without_other_processes_is_read_once(tmp_path: Path) -> None:
    program = Program()
    program.call("cudaLaunchKernel_v7000", 100, 120, correlation=1, tid=7, pid=10)
    program.kernel("gemm", 300, 400, correlation=1, pid=10)
    path = write_sqlite(program, tmp_path / "t.sqlite", "3.20.2")
    (one,) = tracekit.read_all(path, cache=True)
    (other,) = tracekit.read_all(path, cache=True, limits=Limits(all_processes=True))
    assert one.host.equals(other.host)
