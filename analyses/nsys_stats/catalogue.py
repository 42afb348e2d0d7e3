"""The reports and rules by NVIDIA's names: what each asks, what it needs, and its columns.

After the sections "Statistical Reports Shipped With Nsight Systems" and "Expert Systems Rules" of NVIDIA's
Post-Collection Analysis Guide (https://docs.nvidia.com/nsight-systems/AnalysisGuide/). The headings are those that
`nsys stats` and `nsys analyze` print with their default units, ns and MB (10⁶ bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracekit.analyses.nsys_stats.columns import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.analyses.nsys_stats.table import Options, Rows
    from tracekit.trace import Trace

__all__ = ["CATALOGUE", "DEFAULT_REPORTS", "RULES", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A report or a rule: its `name` at NVIDIA, `title`, the `question`, what it `needs` (keys of MISSING), its columns, those
    of them that a narrow page shows, and the function that makes it (`module:function`).
    """

    name: str
    title: str
    question: str
    needs: tuple[str, ...]
    columns: tuple[str, ...]
    target: str
    shown: tuple[str, ...] = ()

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """The types of the columns."""
        return {name: COLUMNS[name][0] for name in self.columns}

    def load(self) -> Callable[[Sequence[Trace], Options], Rows]:
        """Import the function."""
        module, _, attribute = self.target.partition(":")
        loaded: Any = getattr(import_module(f"{__package__}.{module}"), attribute)
        made: Callable[[Sequence[Trace], Options], Rows] = loaded
        return made


_SPREAD = ("Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)")
_SUM = ("Time (%)", "Total Time (ns)")
_SHORT = ("Time (%)", "Total Time (ns)")
_COPY = ("Bytes (MB)", "PID", "Device ID", "Context ID", "Green Context ID", "Stream ID", "API Name")

_REPORTS: Final = (
    Entry(
        "nvtx_sum",
        "NVTX Range Summary",
        "Which ranges take the host's time?",
        ("ranges",),
        (*_SUM, "Instances", *_SPREAD, "Style", "Range"),
        "ranges:nvtx_sum",
        (*_SHORT, "Instances", "Avg (ns)", "Range"),
    ),
    Entry(
        "osrt_sum",
        "OS Runtime Summary",
        "Which calls of the operating system take the host's time?",
        ("os_calls",),
        (*_SUM, "Num Calls", *_SPREAD, "Name"),
        "calls:osrt_sum",
        (*_SHORT, "Num Calls", "Avg (ns)", "Name"),
    ),
    Entry(
        "cuda_api_sum",
        "CUDA API Summary",
        "Which calls of the CUDA API take the host's time?",
        ("calls",),
        (*_SUM, "Num Calls", *_SPREAD, "Name"),
        "calls:cuda_api_sum",
        (*_SHORT, "Num Calls", "Avg (ns)", "Name"),
    ),
    Entry(
        "cuda_gpu_kern_sum",
        "CUDA GPU Kernel Summary",
        "Which kernels take the device's time?",
        ("kernels",),
        (*_SUM, "Instances", *_SPREAD, "Name"),
        "device:cuda_gpu_kern_sum",
        (*_SHORT, "Instances", "Avg (ns)", "Name"),
    ),
    Entry(
        "cuda_gpu_mem_time_sum",
        "CUDA GPU MemOps Summary (by Time)",
        "Which copies and fills take the device's time?",
        ("device",),
        (*_SUM, "Count", *_SPREAD, "Operation"),
        "device:cuda_gpu_mem_time_sum",
        (*_SHORT, "Count", "Avg (ns)", "Operation"),
    ),
    Entry(
        "cuda_gpu_mem_size_sum",
        "CUDA GPU MemOps Summary (by Size)",
        "How much is copied and filled?",
        ("device",),
        ("Total (MB)", "Count", "Avg (MB)", "Med (MB)", "Min (MB)", "Max (MB)", "StdDev (MB)", "Operation"),
        "device:cuda_gpu_mem_size_sum",
        ("Total (MB)", "Count", "Avg (MB)", "Operation"),
    ),
    Entry(
        "cuda_gpu_kern_gb_sum",
        "CUDA GPU Kernel/Grid/Block Summary",
        "Which kernels take the device's time, by the shape of their launch?",
        ("kernels",),
        (*_SUM, "Instances", *_SPREAD, "GridXYZ", "BlockXYZ", "Name"),
        "device:cuda_gpu_kern_gb_sum",
        ("Time (%)", "Total Time (ns)", "Instances", "GridXYZ", "BlockXYZ", "Name"),
    ),
    Entry(
        "cuda_gpu_sum",
        "CUDA GPU Summary (Kernels/MemOps)",
        "Which kernels, copies and fills take the device's time?",
        ("device",),
        (*_SUM, "Instances", *_SPREAD, "Category", "Operation"),
        "device:cuda_gpu_sum",
        (*_SHORT, "Instances", "Avg (ns)", "Category", "Operation"),
    ),
    Entry(
        "cuda_gpu_trace",
        "CUDA GPU Trace",
        "What ran on the device, one after the other?",
        ("device",),
        (
            *("Start (ns)", "Duration (ns)", "CorrId", "GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ"),
            *("Reg/Trd", "StcSMem (MB)", "DymSMem (MB)", "Bytes (MB)", "Throughput (MB/s)", "SrcMemKd"),
            *("DstMemKd", "Device", "Ctx", "GreenCtx", "Strm", "Name"),
        ),
        "device:cuda_gpu_trace",
        ("Start (ns)", "Duration (ns)", "CorrId", "Bytes (MB)", "Strm", "Name"),
    ),
    Entry(
        "cuda_api_trace",
        "CUDA API Trace",
        "Which calls of the CUDA API were made, one after the other?",
        ("calls",),
        ("Start (ns)", "Duration (ns)", "Name", "Result", "CorrID", "Pid", "Tid", "T-Pri", "Thread Name"),
        "calls:cuda_api_trace",
        ("Start (ns)", "Duration (ns)", "CorrID", "Tid", "Name"),
    ),
    Entry(
        "cuda_kern_exec_sum",
        "CUDA Kernel Launch & Exec Time Summary",
        "How long do kernels take to launch, to wait and to run?",
        ("kernels", "links"),
        (
            *("PID", "TID", "DevId", "Count", "QCount"),
            *(f"{phase}{name}" for phase in "TAQK" for name in _SPREAD),
            *("API Name", "Kernel Name"),
        ),
        "launches:cuda_kern_exec_sum",
        ("Count", "QCount", "TAvg (ns)", "AAvg (ns)", "QAvg (ns)", "KAvg (ns)", "Kernel Name"),
    ),
    Entry(
        "cuda_kern_exec_trace",
        "CUDA Kernel Launch & Exec Time Trace",
        "When was each kernel launched, and when did it run?",
        ("kernels", "links"),
        (
            *("API Start (ns)", "API Dur (ns)", "Queue Start (ns)", "Queue Dur (ns)", "Kernel Start (ns)"),
            *("Kernel Dur (ns)", "Total Dur (ns)", "PID", "TID", "DevId", "API Function", "GridXYZ"),
            *("BlockXYZ", "Kernel Name"),
        ),
        "launches:cuda_kern_exec_trace",
        ("API Start (ns)", "API Dur (ns)", "Queue Dur (ns)", "Kernel Dur (ns)", "Kernel Name"),
    ),
    Entry(
        "nvtx_pushpop_sum",
        "NVTX Push/Pop Range Summary",
        "Which ranges that nest take the host's time?",
        ("ranges",),
        (*_SUM, "Instances", *_SPREAD, "Range"),
        "ranges:nvtx_pushpop_sum",
        (*_SHORT, "Instances", "Avg (ns)", "Range"),
    ),
    Entry(
        "nvtx_startend_sum",
        "NVTX Start/End Range Summary",
        "Which ranges that need not nest take the host's time?",
        ("startend",),
        (*_SUM, "Instances", *_SPREAD, "Range"),
        "ranges:nvtx_startend_sum",
        (*_SHORT, "Instances", "Avg (ns)", "Range"),
    ),
    Entry(
        "nvtx_pushpop_trace",
        "NVTX Push/Pop Range Trace",
        "Which ranges lie in which?",
        ("ranges",),
        (
            *("Start (ns)", "End (ns)", "Duration (ns)", "DurChild (ns)", "DurNonChild (ns)", "Name", "PID"),
            *("TID", "Lvl", "NumChild", "RangeId", "ParentId", "RangeStack", "NameTree"),
        ),
        "ranges:nvtx_pushpop_trace",
        ("Start (ns)", "Duration (ns)", "DurNonChild (ns)", "Lvl", "NumChild", "NameTree"),
    ),
    Entry(
        "nvtx_kern_sum",
        "NVTX Range Kernel Summary",
        "Which kernels are launched in which ranges?",
        ("ranges", "kernels", "links"),
        (
            *("NVTX Range", "Style", "PID", "TID", "NVTX Inst", "Kern Inst", "Total Time (ns)", *_SPREAD),
            "Kernel Name",
        ),
        "projection:nvtx_kern_sum",
        ("NVTX Range", "NVTX Inst", "Kern Inst", "Total Time (ns)", "Avg (ns)", "Kernel Name"),
    ),
    Entry(
        "nvtx_gpu_proj_sum",
        "NVTX GPU Projection Summary",
        "How long does the device work on what each range launched?",
        ("ranges", "device", "links"),
        (
            *("Range", "Style", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances"),
            *(f"Proj {name}" for name in _SPREAD),
            *("Total GPU Ops", "Avg GPU Ops", "Avg Range Lvl", "Avg Num Child"),
        ),
        "projection:nvtx_gpu_proj_sum",
        ("Range", "Total Proj Time (ns)", "Total Range Time (ns)", "Range Instances", "Total GPU Ops"),
    ),
    Entry(
        "nvtx_gpu_proj_trace",
        "NVTX GPU Projection Trace",
        "When does the device work on what each range launched?",
        ("ranges", "device", "links"),
        (
            *(
                "Name",
                "Projected Start (ns)",
                "Projected Duration (ns)",
                "Orig Start (ns)",
                "Orig Duration (ns)",
            ),
            *("Style", "PID", "TID", "NumGPUOps", "Lvl", "NumChild", "RangeId", "ParentId", "RangeStack"),
        ),
        "projection:nvtx_gpu_proj_trace",
        ("Name", "Projected Start (ns)", "Projected Duration (ns)", "Orig Start (ns)", "NumGPUOps", "Lvl"),
    ),
)

_RULES: Final = (
    Entry(
        "cuda_memcpy_async",
        "CUDA Async Memcpy with Pageable Memory",
        "Which asynchronous copies block, because their memory is pageable?",
        ("device", "links"),
        ("Duration (ns)", "Start (ns)", "Src Kind", "Dst Kind", *_COPY),
        "rules:cuda_memcpy_async",
        ("Duration (ns)", "Start (ns)", "Src Kind", "Dst Kind", "Bytes (MB)", "API Name"),
    ),
    Entry(
        "cuda_memcpy_sync",
        "CUDA Synchronous Memcpy",
        "Which copies block the host?",
        ("device", "links"),
        ("Duration (ns)", "Start (ns)", "Src Kind", "Dst Kind", *_COPY),
        "rules:cuda_memcpy_sync",
        ("Duration (ns)", "Start (ns)", "Src Kind", "Dst Kind", "Bytes (MB)", "API Name"),
    ),
    Entry(
        "cuda_memset_sync",
        "CUDA Synchronous Memset",
        "Which fills block the host?",
        ("device", "links"),
        ("Duration (ns)", "Start (ns)", "Memory Kind", *_COPY),
        "rules:cuda_memset_sync",
        ("Duration (ns)", "Start (ns)", "Memory Kind", "Bytes (MB)", "API Name"),
    ),
    Entry(
        "cuda_api_sync",
        "CUDA Synchronization APIs",
        "Where does the host wait for the device?",
        ("calls",),
        ("Duration (ns)", "Start (ns)", "PID", "TID", "API Name"),
        "rules:cuda_api_sync",
    ),
    Entry(
        "gpu_gaps",
        "GPU Gaps",
        "When is a device idle for long?",
        ("device",),
        ("Row#", "Duration (ns)", "Start (ns)", "PID", "Device ID", "Context ID"),
        "rules:gpu_gaps",
    ),
    Entry(
        "gpu_time_util",
        "GPU Time Utilization",
        "When is a device used little?",
        ("device",),
        ("Row#", "In-Use (%)", "Duration (ns)", "Start (ns)", "PID", "Device ID", "Context ID"),
        "rules:gpu_time_util",
    ),
)

CATALOGUE: Final[dict[str, Entry]] = {entry.name: entry for entry in (*_REPORTS, *_RULES)}
"""The reports, then the rules, by name."""
RULES: Final = tuple(entry.name for entry in _RULES)
DEFAULT_REPORTS: Final = tuple(entry.name for entry in _REPORTS[:6])
"""What `nsys stats` shows when no report is named, in its order, as far as it is about PyTorch and CUDA."""
