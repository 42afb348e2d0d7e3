"""The reports and rules by NVIDIA's names, each a record with its question, its needs, its rows and its columns.

They follow the sections "Statistical Reports Shipped With Nsight Systems" and "Expert Systems Rules" of NVIDIA's
Post-Collection Analysis Guide (https://docs.nvidia.com/nsight-systems/AnalysisGuide/). The headings are those that
`nsys stats` and `nsys analyze` print with their default units, ns and MB (10⁶ bytes).

A rule shows the rows for which `where` is true: rows of a report, or copies and fills with the calls that launched them.
NVIDIA's guide defines the rules:

* `cuda_memcpy_async`: asynchronous copies from or to pageable memory, which become synchronous.
* `cuda_memcpy_sync`: copies by calls that block the host, but none of 64 KB or less from host to device.
* `cuda_memset_sync`: synchronous fills of pinned host memory or of unified memory.
* `cuda_api_sync`: `cudaDeviceSynchronize` and `cudaStreamSynchronize`.

The guide does not define some details. Here 64 KB is 65,536 bytes, a copy from device to device does not block the host, and
HIP's calls count like CUDA's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracekit.analyses.nsys_stats.columns import COLUMNS
from tracekit.analyses.nsys_stats.ranges import range_name
from tracekit.analyses.nsys_stats.rows import shape_text
from tracekit.analyses.stated import Entry
from tracekit.classes import dataclass

if TYPE_CHECKING:
    from tracekit.analyses.nsys_stats.rows import Rows
    from tracekit.trace import Trace

__all__ = ["CATALOGUE", "DEFAULT_REPORTS", "ELSEWHERE", "RULES", "NsysEntry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NsysEntry(Entry):
    """A report or a rule; `key` is NVIDIA's name of it, `schema` has NVIDIA's headings in order, `needs` holds keys of MISSING.

    * `target`: the function that makes its rows (`module:function`)
    * `by`: for a summary, the headings by which it groups the rows, and the expression for each
    * `count`: the heading of the number of rows in a group
    * `where`: for a rule, the condition of the rows that it shows
    """

    target: str
    by: Mapping[str, pl.Expr] = field(default_factory=dict)
    count: str = ""
    where: pl.Expr | None = None

    def rows(self, traces: Sequence[Trace]) -> Rows:
        """The rows from which its table is made."""
        module, _, attribute = self.target.partition(":")
        loaded: Any = getattr(import_module(f"{__package__}.{module}"), attribute)
        function: Callable[[Sequence[Trace]], Rows] = loaded
        return function(traces)


_TEXTS: Final = """
nvtx_sum: NVTX Range Summary: Which ranges take the host's time?
osrt_sum: OS Runtime Summary: Which operating-system calls take the host's time?
cuda_api_sum: CUDA API Summary: Which CUDA API calls take the host's time?
cuda_gpu_kern_sum: CUDA GPU Kernel Summary: Which kernels take the device's time?
cuda_gpu_mem_time_sum: CUDA GPU MemOps Summary (by Time): Which copies and fills take the device's time?
cuda_gpu_mem_size_sum: CUDA GPU MemOps Summary (by Size): How many bytes do copies and fills write?
cuda_gpu_kern_gb_sum: CUDA GPU Kernel/Grid/Block Summary: Which kernels take the device's time, by name, grid and block?
cuda_gpu_sum: CUDA GPU Summary (Kernels/MemOps): Which kernels, copies and fills take the device's time?
cuda_gpu_trace: CUDA GPU Trace: What ran on the device, and when?
cuda_api_trace: CUDA API Trace: Which CUDA API calls were made, and when?
cuda_kern_exec_sum: CUDA Kernel Launch & Exec Time Summary: How long do kernels take to launch, wait in the queue and run?
cuda_kern_exec_trace: CUDA Kernel Launch & Exec Time Trace: When was each kernel launched, and when did it run?
nvtx_pushpop_sum: NVTX Push/Pop Range Summary: Which push/pop ranges take the host's time?
nvtx_startend_sum: NVTX Start/End Range Summary: Which start/end ranges take the host's time?
nvtx_pushpop_trace: NVTX Push/Pop Range Trace: How are the push/pop ranges nested?
nvtx_kern_sum: NVTX Range Kernel Summary: Which kernels does each range launch?
nvtx_gpu_proj_sum: NVTX GPU Projection Summary: How long does the device take for the work that each range launches?
nvtx_gpu_proj_trace: NVTX GPU Projection Trace: When does the device run the work that each range launches?
cuda_memcpy_async: CUDA Async Memcpy with Pageable Memory: Which asynchronous copies block because their memory is pageable?
cuda_memcpy_sync: CUDA Synchronous Memcpy: Which copies block the host?
cuda_memset_sync: CUDA Synchronous Memset: Which fills block the host?
cuda_api_sync: CUDA Synchronization APIs: Where does the host wait for the device?
"""
"""One line per entry: the key, the title and the question."""

_SUM = ("Time (%)", "Total Time (ns)")
_PLACE = "PID, Device ID, Context ID, Green Context ID, Stream ID, API Name"
_COPY = "Duration (ns), Start (ns), Src Kind, Dst Kind, Bytes (MB)"
_FILL = "Duration (ns), Start (ns), Memory Kind, Bytes (MB)"
_LONGEST_FIRST = "-Duration (ns), Start (ns)"
_NAMES: Final = {"Name": pl.col("name").cast(pl.String)}
_RANGE: Final = {"Range": range_name()}
_SHAPES: Final = {"GridXYZ": shape_text(pl.col("grid")), "BlockXYZ": shape_text(pl.col("block"))}
_WAITS: Final = r"^(cuda|hip)(Device|Stream)Synchronize(_\w+)?$"
_BLOCKING_FILLS: Final = ("Pinned", "Managed", "Managed Static", "Unified")
_SMALL_COPY_BYTES: Final = 64 * 1024
_ASYNC: Final = pl.col("API Name").str.contains("Async")
_SMALL: Final = ((pl.col("direction") == "HtoD") & (pl.col("bytes") <= _SMALL_COPY_BYTES)).fill_null(
    value=False
)
_ON_DEVICE: Final = (pl.col("direction") == "DtoD").fill_null(value=False)


def _list(headings: str) -> tuple[str, ...]:
    return tuple(headings.split(", ")) if headings else ()


def _spread(prefix: str = "") -> str:
    return ", ".join(f"{prefix}{name} (ns)" for name in ("Avg", "Med", "Min", "Max", "StdDev"))


def _entry(
    key: str, needs: str, target: str, columns: str, order: str, shown: str = "", **more: Any
) -> NsysEntry:
    """A record whose needs and headings are texts with commas."""
    title, question = _OF_KEY[key]
    return NsysEntry(
        key=key,
        title=title,
        question=question,
        schema={heading: COLUMNS[heading][0] for heading in _list(columns)},
        shown=_list(shown),
        order=_list(order),
        needs=_list(needs),
        target=target,
        **more,
    )


def _sum(
    key: str, needs: str, target: str, by: Mapping[str, pl.Expr], count: str, columns: str = ""
) -> NsysEntry:
    """A summary: its columns are time, count, spread, and then the headings by which it groups."""
    names = _list(columns) or tuple(by)
    average = () if len(names) > 2 else ("Avg (ns)",)
    shown = (*_SUM, count, *average, *(name for name in names if name != "Style"))
    every = (*_SUM, count, _spread(), *names)
    lists = map(", ".join, (every, ("-Total Time (ns)", *by), shown))
    return _entry(key, needs, target, *lists, by=by, count=count)


_OF_KEY: Final = {key: texts for key, *texts in (line.split(": ", 2) for line in _TEXTS.strip().split("\n"))}

_ENTRIES: Final = (
    _sum("nvtx_sum", "ranges", "ranges:all_ranges", {"Style": pl.col("Style"), **_RANGE}, "Instances"),
    _sum("osrt_sum", "os_calls", "calls:os_calls", _NAMES, "Num Calls"),
    _sum("cuda_api_sum", "calls", "calls:api_calls", _NAMES, "Num Calls"),
    _sum("cuda_gpu_kern_sum", "kernels", "device:kernels", _NAMES, "Instances"),
    _sum("cuda_gpu_mem_time_sum", "device", "device:moves", {"Operation": pl.col("Operation")}, "Count"),
    _entry(
        *("cuda_gpu_mem_size_sum", "device", "device:cuda_gpu_mem_size_sum"),
        "Total (MB), Count, Avg (MB), Med (MB), Min (MB), Max (MB), StdDev (MB), Operation",
        "-Total (MB), Operation",
        "Total (MB), Count, Avg (MB), Operation",
    ),
    _sum(
        *("cuda_gpu_kern_gb_sum", "kernels", "device:kernels"),
        *(_NAMES | _SHAPES, "Instances", "GridXYZ, BlockXYZ, Name"),
    ),
    _sum(
        *("cuda_gpu_sum", "device", "device:activities"),
        *({name: pl.col(name) for name in ("Category", "Operation")}, "Instances"),
    ),
    _entry(
        *("cuda_gpu_trace", "device", "device:cuda_gpu_trace"),
        "Start (ns), Duration (ns), CorrId, GrdX, GrdY, GrdZ, BlkX, BlkY, BlkZ, Reg/Trd, StcSMem (MB), "
        "DymSMem (MB), Bytes (MB), Throughput (MB/s), SrcMemKd, DstMemKd, Device, Ctx, GreenCtx, Strm, Name",
        "Start (ns)",
        "Start (ns), Duration (ns), CorrId, Bytes (MB), Strm, Name",
    ),
    _entry(
        *("cuda_api_trace", "calls", "calls:cuda_api_trace"),
        "Start (ns), Duration (ns), Name, Result, CorrID, Pid, Tid, T-Pri, Thread Name",
        "Start (ns)",
        "Start (ns), Duration (ns), CorrID, Tid, Name",
    ),
    _entry(
        *("cuda_kern_exec_sum", "kernels, links", "calls:cuda_kern_exec_sum"),
        f"PID, TID, DevId, Count, QCount, {', '.join(map(_spread, 'TAQK'))}, API Name, Kernel Name",
        "-total, part, PID, TID, DevId, API Name, Kernel Name",
        "Count, QCount, TAvg (ns), AAvg (ns), QAvg (ns), KAvg (ns), Kernel Name",
    ),
    _entry(
        *("cuda_kern_exec_trace", "kernels, links", "calls:cuda_kern_exec_trace"),
        "API Start (ns), API Dur (ns), Queue Start (ns), Queue Dur (ns), Kernel Start (ns), Kernel Dur (ns), "
        "Total Dur (ns), PID, TID, DevId, API Function, GridXYZ, BlockXYZ, Kernel Name",
        "API Start (ns), Kernel Start (ns)",
        "API Start (ns), API Dur (ns), Queue Dur (ns), Kernel Dur (ns), Kernel Name",
    ),
    _sum("nvtx_pushpop_sum", "ranges", "ranges:pushpop_ranges", _RANGE, "Instances"),
    _sum("nvtx_startend_sum", "startend", "ranges:startend_ranges", _RANGE, "Instances"),
    _entry(
        *("nvtx_pushpop_trace", "ranges", "ranges:nvtx_pushpop_trace"),
        "Start (ns), End (ns), Duration (ns), DurChild (ns), DurNonChild (ns), Name, PID, TID, Lvl, NumChild, "
        "RangeId, ParentId, RangeStack, NameTree",
        "Start (ns), RangeId",
        "Start (ns), Duration (ns), DurNonChild (ns), Lvl, NumChild, NameTree",
    ),
    _entry(
        *("nvtx_kern_sum", "ranges, kernels, links", "projection:nvtx_kern_sum"),
        "NVTX Range, Style, PID, TID, NVTX Inst, Kern Inst, Total Time (ns), " + _spread() + ", Kernel Name",
        "-Total Time (ns), NVTX Range, Style, PID, TID, Kernel Name",
        "NVTX Range, NVTX Inst, Kern Inst, Total Time (ns), Avg (ns), Kernel Name",
    ),
    _entry(
        *("nvtx_gpu_proj_sum", "ranges, device, links", "projection:nvtx_gpu_proj_sum"),
        f"Range, Style, Total Proj Time (ns), Total Range Time (ns), Range Instances, {_spread('Proj ')}, "
        "Total GPU Ops, Avg GPU Ops, Avg Range Lvl, Avg Num Child",
        "-Total Proj Time (ns), Style, Range",
        "Range, Total Proj Time (ns), Total Range Time (ns), Range Instances, Total GPU Ops",
    ),
    _entry(
        *("nvtx_gpu_proj_trace", "ranges, device, links", "projection:nvtx_gpu_proj_trace"),
        "Name, Projected Start (ns), Projected Duration (ns), Orig Start (ns), Orig Duration (ns), Style, "
        "PID, TID, NumGPUOps, Lvl, NumChild, RangeId, ParentId, RangeStack",
        "Projected Start (ns), RangeId",
        "Name, Projected Start (ns), Projected Duration (ns), Orig Start (ns), NumGPUOps, Lvl",
    ),
    _entry(
        *("cuda_memcpy_async", "device, links", "device:copies_with_calls"),
        *(f"{_COPY}, {_PLACE}", _LONGEST_FIRST, f"{_COPY}, API Name"),
        where=_ASYNC & ((pl.col("Src Kind") == "Pageable") | (pl.col("Dst Kind") == "Pageable")),
    ),
    _entry(
        *("cuda_memcpy_sync", "device, links", "device:copies_with_calls"),
        *(f"{_COPY}, {_PLACE}", _LONGEST_FIRST, f"{_COPY}, API Name"),
        where=~_ASYNC & pl.col("API Name").str.contains("Memcpy") & ~_SMALL & ~_ON_DEVICE,
    ),
    _entry(
        *("cuda_memset_sync", "device, links", "device:fills_with_calls"),
        *(f"{_FILL}, {_PLACE}", _LONGEST_FIRST, f"{_FILL}, API Name"),
        where=~_ASYNC
        & pl.col("API Name").str.contains("(?i)memset")
        & pl.col("Memory Kind").is_in(_BLOCKING_FILLS),
    ),
    _entry(
        *("cuda_api_sync", "calls", "calls:cuda_api_trace"),
        *("Duration (ns), Start (ns), PID, TID, API Name", _LONGEST_FIRST),
        where=pl.col("API Name").str.contains(_WAITS),
    ),
)

CATALOGUE: Final[dict[str, NsysEntry]] = {entry.key: entry for entry in _ENTRIES}
"""The reports, then the rules, by name."""
RULES: Final = tuple(entry.key for entry in _ENTRIES if entry.where is not None)
DEFAULT_REPORTS: Final = tuple(CATALOGUE)[:6]
"""The reports that `nsys stats` shows if you name none."""
ELSEWHERE: Final = {
    "gpu_gaps": "tracekit idle lists the gaps of each device with their causes, and the finding long_gaps of tracekit report weighs them",
    "gpu_time_util": "the findings low_utilisation and low_part_of_step of tracekit report answer it",
}
"""NVIDIA's rules whose question another command answers."""
