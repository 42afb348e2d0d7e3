"""Exports of Nsight Systems (SQLite files and folders of Parquet files, of every version of the schema), and its reports.

The flags are those of NVIDIA's Nsight Systems User Guide (options of `nsys profile`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracekit.facts.capture_names import INDEX_FILE
from tracekit.limits import Limits
from tracekit.readers.format import Format, Progress
from tracekit.readers.nsys.vocabulary import (
    EXPORT_SUFFIX,
    FORMAT_NAME,
    REPORT_SUFFIXES,
    SQLITE_MAGIC,
    TRACED_CALL,
)

if TYPE_CHECKING:
    from tracekit.trace import Trace

__all__ = ["NSYS"]


def _recognises(path: Path) -> bool:
    """True if a path is an SQLite database, a folder of Parquet files (but of a sweep), or has the name of an export or a report.

    If it only has such a name, the reader says what is wrong with it.
    """
    try:
        if path.is_dir():
            return any(each.name != INDEX_FILE for each in path.glob("*.parquet"))
        if path.name.lower().endswith((EXPORT_SUFFIX, *REPORT_SUFFIXES)):
            return path.exists()
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except (OSError, ValueError):
        return False  # the reader of plain files says what is wrong with it


def _read(path: Path, limits: Limits, progress: Progress | None = None) -> list[Trace]:
    from tracekit.readers.nsys.reader import read_nsys  # noqa: PLC0415
    from tracekit.readers.nsys.report import is_report, read_report  # noqa: PLC0415

    return (read_report if is_report(path) else read_nsys)(path, limits, progress)


NSYS: Final = Format(
    name=FORMAT_NAME,
    title="Nsight Systems",
    files=".sqlite, a folder of Parquet files, .nsys-rep",
    recognises=_recognises,
    read=_read,
    has_own_clock=True,
    has_start_end_ranges=True,
    call_names=TRACED_CALL,
    flags={
        "device": "nsys profile --trace=cuda",
        "kernels": "nsys profile --trace=cuda --cuda-graph-trace=node",
        "ops": "--pytorch=autograd-nvtx (or torch.autograd.profiler.emit_nvtx())",
        "launches": "nsys profile --trace=cuda,nvtx",
        "calls": "nsys profile --trace=cuda",
        "everything": "nsys profile --trace=cuda,nvtx",
        "steps": "an NVTX range around each iteration, such as train_step",
        "shapes": "--pytorch=autograd-shapes-nvtx (or torch.autograd.profiler.emit_nvtx(record_shapes=True))",
        "memory": "--cuda-memory-usage=true",
        "stacks": "--python-backtrace=cuda",
        "modules": "the ranges of tracekit capture --nsys",
        "layers": "`tracekit capture --nsys`, or NVTX ranges (torch.cuda.nvtx.range) around the modules",
        "ranges": "nsys profile --trace=nvtx, and NVTX ranges (torch.cuda.nvtx.range) in the program",
        "start_end_ranges": "nsys profile --trace=nvtx, and torch.cuda.nvtx.range_start in the program",
        "os_calls": "nsys profile --trace=osrt",
        "sync": "nsys profile --trace=cuda",
        "collectives": "nsys profile --trace=cuda,nvtx (NCCL's own ranges)",
        "counters": "--gpu-metrics-devices=all",
        "occupancy": "Nsight Compute",
        "names": "--python-sampling=true or NVTX ranges",
        "warm-up": "--capture-range=cudaProfilerApi and a call of cudaProfilerStart() after those steps",
        "less": (
            "--sample=none, --cpuctxsw=none, no backtraces, fewer --trace sources, and a short --capture-range"
        ),
    },
)
