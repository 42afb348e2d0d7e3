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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracekit.analyses.nsys_stats._table import Options, Rows
    from tracekit.trace import Trace

__all__ = ["CATALOGUE", "COLUMNS", "DEFAULT_REPORTS", "MISSING", "RULES", "Entry"]

_T, _N, _F = pl.String(), pl.Int64(), pl.Float64()


def _times(prefix: str = "", of: str = "durations") -> dict[str, tuple[pl.DataType, str]]:
    return {
        f"{prefix}Avg (ns)": (_F, f"mean of the {of}"),
        f"{prefix}Med (ns)": (_F, f"median of the {of}"),
        f"{prefix}Min (ns)": (_N, f"shortest of the {of}"),
        f"{prefix}Max (ns)": (_N, f"longest of the {of}"),
        f"{prefix}StdDev (ns)": (_F, f"sample standard deviation of the {of}; 0 of one"),
    }


COLUMNS: Final[dict[str, tuple[pl.DataType, str]]] = {
    "Time (%)": (_F, "of the sum of `Total Time` over the rows of the table"),
    "Total Time (ns)": (_N, "durations, summed"),
    "Instances": (_N, "how many there are"),
    "Num Calls": (_N, "how many there are"),
    "Count": (_N, "how many there are"),
    **_times(),
    "Total (MB)": (_F, "bytes, summed"),
    "Avg (MB)": (_F, "mean of the sizes"),
    "Med (MB)": (_F, "median of the sizes"),
    "Min (MB)": (_F, "smallest size"),
    "Max (MB)": (_F, "largest size"),
    "StdDev (MB)": (_F, "sample standard deviation of the sizes; 0 of one"),
    "Name": (_T, "of the kernel, the operation, the call or the range"),
    "Operation": (_T, "direction of the copy, or fill; in `cuda_gpu_sum` the kernel, too"),
    "Category": (_T, "`CUDA_KERNEL`, `MEMORY_OPER`; `CUDA_GRAPH` where only whole graphs were traced"),
    "GridXYZ": (_T, "thread blocks"),
    "BlockXYZ": (_T, "threads of a block"),
    "Style": (_T, "`PushPop`, or `StartEnd`"),
    "Range": (_T, "`domain:name`; nothing before the colon in the default domain"),
    "Start (ns)": (_N, "when it began"),
    "End (ns)": (_N, "when it ended"),
    "Duration (ns)": (_N, "how long it took"),
    "CorrId": (_N, "correlation with the call"),
    "CorrID": (_N, "correlation with the work on the device"),
    "GrdX": (_N, "thread blocks"),
    "GrdY": (_N, "thread blocks"),
    "GrdZ": (_N, "thread blocks"),
    "BlkX": (_N, "threads of a block"),
    "BlkY": (_N, "threads of a block"),
    "BlkZ": (_N, "threads of a block"),
    "Reg/Trd": (_N, "registers of a thread"),
    "StcSMem (MB)": (_F, "static shared memory of a block; null where only the sum is known"),
    "DymSMem (MB)": (_F, "dynamic shared memory of a block; null where only the sum is known"),
    "Bytes (MB)": (_F, "size of the copy or fill"),
    "Throughput (MB/s)": (_F, "size over duration"),
    "SrcMemKd": (_T, "memory that is copied from, or filled"),
    "DstMemKd": (_T, "memory that is copied to"),
    "Device": (_T, "name and number of the device"),
    "Ctx": (_N, "context"),
    "GreenCtx": (_N, "green context; no trace that tracekit reads tells"),
    "Strm": (_N, "stream"),
    "Result": (_N, "what the call returned; not read"),
    "Pid": (_N, "process of the call"),
    "Tid": (_N, "thread of the call"),
    "T-Pri": (_N, "priority of the thread; not read"),
    "Thread Name": (_T, "of the thread of the call"),
    "PID": (_N, "process"),
    "TID": (_N, "thread"),
    "DevId": (_N, "device that ran the kernel"),
    "QCount": (_N, "kernels with a positive queue time"),
    **_times("T", "total times: from the start of the call to its end or the kernel's, whichever is later"),
    **_times("A", "API times: durations of the call"),
    **_times("Q", "positive queue times: from the end of the call to the start of the kernel"),
    **_times("K", "durations of the kernel"),
    "API Name": (_T, "the call"),
    "API Function": (_T, "the call"),
    "Kernel Name": (_T, "the kernel"),
    "API Start (ns)": (_N, "when the call began"),
    "API Dur (ns)": (_N, "how long the call took"),
    "Queue Start (ns)": (_N, "the end of the call, where the kernel began later"),
    "Queue Dur (ns)": (_N, "from there to the start of the kernel"),
    "Kernel Start (ns)": (_N, "when the kernel began"),
    "Kernel Dur (ns)": (_N, "how long the kernel took"),
    "Total Dur (ns)": (_N, "from the start of the call to its end or the kernel's, whichever is later"),
    "DurChild (ns)": (_N, "duration of the ranges directly inside, summed"),
    "DurNonChild (ns)": (_N, "duration less that of the ranges directly inside"),
    "Lvl": (_N, "how many ranges it lies in"),
    "NumChild": (_N, "ranges directly inside"),
    "RangeId": (_N, "number of the range, the same in every report of a file"),
    "ParentId": (_N, "the range directly around it"),
    "RangeStack": (_T, "numbers of all ranges around it, and its own; null below level 64"),
    "NameTree": (_T, "name after two dashes for each level"),
    "NVTX Range": (_T, "`domain:name`"),
    "NVTX Inst": (_N, "ranges of this name that hold such a kernel"),
    "Kern Inst": (_N, "such kernels; one counts once, even if ranges of the name lie in each other"),
    "Projected Start (ns)": (_N, "first start of the device work that was launched in it"),
    "Projected Duration (ns)": (_N, "from there to the last end of that work"),
    "Orig Start (ns)": (_N, "when the range began"),
    "Orig Duration (ns)": (_N, "how long the range took"),
    "NumGPUOps": (_N, "kernels, copies and fills that were launched in it"),
    "Total Proj Time (ns)": (_N, "projected durations, summed"),
    "Total Range Time (ns)": (_N, "durations of the ranges, summed"),
    "Range Instances": (_N, "ranges with device work"),
    **_times("Proj ", "projected durations"),
    "Total GPU Ops": (_N, "kernels, copies and fills that were launched in them"),
    "Avg GPU Ops": (_F, "the same per range"),
    "Avg Range Lvl": (_F, "mean of the levels"),
    "Avg Num Child": (_F, "mean of the ranges directly inside"),
    "Row#": (_N, "number of the row"),
    "In-Use (%)": (_F, "of the region; what runs at once adds up, so that it can exceed 100"),
    "Src Kind": (_T, "memory that is copied from"),
    "Dst Kind": (_T, "memory that is copied to"),
    "Memory Kind": (_T, "memory that is filled"),
    "Device ID": (_N, "device"),
    "Context ID": (_N, "context; null where a process has several on the device"),
    "Green Context ID": (_N, "green context; no trace that tracekit reads tells"),
    "Stream ID": (_N, "stream"),
}
"""Every column of the tables: its type and what it means."""

MISSING: Final[dict[str, tuple[str, str]]] = {
    "device": (
        "work of a device: nsys profile --trace=cuda",
        "work of a device: torch.profiler with ProfilerActivity.CUDA",
    ),
    "kernels": (
        "single kernels: nsys profile --trace=cuda --cuda-graph-trace=node",
        "kernels: torch.profiler with ProfilerActivity.CUDA",
    ),
    "calls": (
        "calls of the CUDA API: nsys profile --trace=cuda",
        "calls of the CUDA API: ProfilerActivity.CUDA",
    ),
    "links": (
        "the calls that launched the work: nsys profile --trace=cuda",
        "the calls that launched the work: ProfilerActivity.CPU beside CUDA",
    ),
    "ranges": (
        "NVTX ranges: nsys profile --trace=nvtx, and ranges in the program (torch.cuda.nvtx.range)",
        "ranges: ProfilerActivity.CPU, and torch.profiler.record_function in the program",
    ),
    "startend": (
        "NVTX start/end ranges: nsys profile --trace=nvtx, and torch.cuda.nvtx.range_start in the program",
        "NVTX start/end ranges, which torch's profiler has not: nsys profile --trace=nvtx",
    ),
    "os_calls": (
        "calls of the operating system: nsys profile --trace=osrt",
        "calls of the operating system, which torch's profiler has not: nsys profile --trace=osrt",
    ),
}
"""What a table lacks, and how it is recorded: by Nsight Systems, and by other profilers."""


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
