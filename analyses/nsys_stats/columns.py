"""The columns of the reports and rules, and the data that a profile may lack for them."""

from __future__ import annotations

from typing import Final

import polars as pl

__all__ = ["COLUMNS", "MISSING", "SOURCES"]

_T, _N, _F = pl.String(), pl.Int64(), pl.Float64()


def _times(prefix: str = "", of: str = "duration") -> dict[str, tuple[pl.DataType, str]]:
    return {
        f"{prefix}Avg (ns)": (_F, f"mean {of}"),
        f"{prefix}Med (ns)": (_F, f"median {of}"),
        f"{prefix}Min (ns)": (_N, f"shortest {of}"),
        f"{prefix}Max (ns)": (_N, f"longest {of}"),
        f"{prefix}StdDev (ns)": (_F, f"sample standard deviation of the {of}; 0 for a single value"),
    }


COLUMNS: Final[dict[str, tuple[pl.DataType, str]]] = {
    "Time (%)": (_F, "share of the sum of `Total Time` over all rows of the table"),
    "Total Time (ns)": (_N, "sum of the durations"),
    **dict.fromkeys(("Instances", "Num Calls", "Count"), (_N, "number of events")),
    **_times(),
    "Total (MB)": (_F, "sum of the sizes"),
    "Avg (MB)": (_F, "mean size"),
    "Med (MB)": (_F, "median size"),
    "Min (MB)": (_F, "smallest size"),
    "Max (MB)": (_F, "largest size"),
    "StdDev (MB)": (_F, "sample standard deviation of the size; 0 for a single value"),
    "Name": (_T, "name of the kernel, the operation, the call or the range"),
    "Operation": (_T, "direction of the copy, or the fill; in `cuda_gpu_sum` also the kernel"),
    "Category": (_T, "`CUDA_KERNEL`, `MEMORY_OPER`, or `CUDA_GRAPH` if only whole graphs were traced"),
    "GridXYZ": (_T, "number of thread blocks in each dimension"),
    "BlockXYZ": (_T, "number of threads per block in each dimension"),
    "Style": (_T, "`PushPop` or `StartEnd`"),
    "Range": (_T, "`domain:name`; the default domain has no text before the colon"),
    "Start (ns)": (_N, "start time"),
    "End (ns)": (_N, "end time"),
    "Duration (ns)": (_N, "duration"),
    "CorrId": (_N, "correlation id, which the launch call has too"),
    "CorrID": (_N, "correlation id, which the launched work has too"),
    **dict.fromkeys(("GrdX", "GrdY", "GrdZ"), (_N, "number of thread blocks")),
    **dict.fromkeys(("BlkX", "BlkY", "BlkZ"), (_N, "number of threads per block")),
    "Reg/Trd": (_N, "registers per thread"),
    "StcSMem (MB)": (_F, "static shared memory per block; null if only the sum was recorded"),
    "DymSMem (MB)": (_F, "dynamic shared memory per block; null if only the sum was recorded"),
    "Bytes (MB)": (_F, "size of the copy or fill"),
    "Throughput (MB/s)": (_F, "size divided by duration"),
    "SrcMemKd": (_T, "kind of memory that a copy reads or a fill writes"),
    "DstMemKd": (_T, "kind of memory that a copy writes"),
    "Device": (_T, "name and number of the device"),
    "Ctx": (_N, "context"),
    "GreenCtx": (_N, "green context; tracekit does not read it"),
    "Strm": (_N, "stream"),
    "Result": (_N, "return value of the call; tracekit does not read it"),
    "Pid": (_N, "process of the call"),
    "Tid": (_N, "thread of the call"),
    "T-Pri": (_N, "priority of the thread; tracekit does not read it"),
    "Thread Name": (_T, "name of the thread of the call"),
    "PID": (_N, "process"),
    "TID": (_N, "thread"),
    "DevId": (_N, "device that ran the kernel"),
    "QCount": (_N, "number of kernels with a positive queue time"),
    **_times("T", "total time (from the start of the call to the later end of call and kernel)"),
    **_times("A", "API time (duration of the call)"),
    **_times("Q", "positive queue time (from the end of the call to the start of the kernel)"),
    **_times("K", "duration of the kernel"),
    **dict.fromkeys(("API Name", "API Function"), (_T, "name of the call")),
    "Kernel Name": (_T, "name of the kernel"),
    "API Start (ns)": (_N, "start of the call"),
    "API Dur (ns)": (_N, "duration of the call"),
    "Queue Start (ns)": (_N, "end of the call, if the kernel began later"),
    "Queue Dur (ns)": (_N, "time from the end of the call to the start of the kernel"),
    "Kernel Start (ns)": (_N, "start of the kernel"),
    "Kernel Dur (ns)": (_N, "duration of the kernel"),
    "Total Dur (ns)": (_N, "time from the start of the call to the later end of call and kernel"),
    "DurChild (ns)": (_N, "sum of the durations of the ranges directly inside"),
    "DurNonChild (ns)": (_N, "duration minus the sum of the ranges directly inside"),
    "Lvl": (_N, "number of ranges around it"),
    "NumChild": (_N, "number of ranges directly inside"),
    "RangeId": (_N, "number of the range, the same in every report of a file"),
    "ParentId": (_N, "number of the range directly around it"),
    "RangeStack": (_T, "numbers of all ranges around it and its own number; null below level 64"),
    "NameTree": (_T, "name, with two dashes before it for each level"),
    "NVTX Range": (_T, "`domain:name`"),
    "NVTX Inst": (_N, "number of ranges of this name that launched the kernel"),
    "Kern Inst": (_N, "number of these kernels; a kernel counts once, even if ranges of one name are nested"),
    "Projected Start (ns)": (_N, "first start of the device work that the range launched"),
    "Projected Duration (ns)": (_N, "time from the first start to the last end of that work"),
    "Orig Start (ns)": (_N, "start of the range"),
    "Orig Duration (ns)": (_N, "duration of the range"),
    "NumGPUOps": (_N, "number of kernels, copies and fills that the range launched"),
    "Total Proj Time (ns)": (_N, "sum of the projected durations"),
    "Total Range Time (ns)": (_N, "sum of the durations of the ranges"),
    "Range Instances": (_N, "number of ranges with device work"),
    **_times("Proj ", "projected duration"),
    "Total GPU Ops": (_N, "number of kernels, copies and fills that the ranges launched"),
    "Avg GPU Ops": (_F, "number of kernels, copies and fills per range"),
    "Avg Range Lvl": (_F, "mean level of the ranges"),
    "Avg Num Child": (_F, "mean number of ranges directly inside"),
    "Src Kind": (_T, "kind of memory that the copy reads"),
    "Dst Kind": (_T, "kind of memory that the copy writes"),
    "Memory Kind": (_T, "kind of memory that the fill writes"),
    "Device ID": (_N, "device"),
    "Context ID": (_N, "context; null if the process has several contexts on the device"),
    "Green Context ID": (_N, "green context; tracekit does not read it"),
    "Stream ID": (_N, "stream"),
}
"""Every column of the tables: its type and its meaning."""

_HEADINGS: Final = {
    "process_id": "Pid, PID",
    "thread_id": "Tid, TID",
    "device_id": "DevId, Device ID",
    "context_id": "Ctx, Context ID",
    "stream_id": "Strm, Stream ID",
    "correlation": "CorrId, CorrID",
    "registers": "Reg/Trd",
    "name": "Name, Kernel Name",
    "start": "Start (ns), Orig Start (ns), Kernel Start (ns)",
    "duration": "Duration (ns), Orig Duration (ns), Kernel Dur (ns)",
    "api_name": "API Name, API Function",
    "api_start": "API Start (ns)",
    "api": "API Dur (ns)",
    "queue": "Queue Dur (ns)",
    "total": "Total Dur (ns)",
    "Range": "NVTX Range",
    "projected_start": "Projected Start (ns)",
    "projected": "Projected Duration (ns)",
}
SOURCES: Final = {
    heading: column for column, headings in _HEADINGS.items() for heading in headings.split(", ")
}
"""For each heading that the rows do not have themselves, the column of the rows that it shows."""

MISSING: Final[dict[str, tuple[str, str]]] = {
    "device": ("device activity", "device"),
    "kernels": ("single kernels", "kernels"),
    "calls": ("calls of the CUDA API", "calls"),
    "links": ("the calls that launched the work", "launches"),
    "ranges": ("ranges", "ranges"),
    "startend": ("start/end ranges", "start_end_ranges"),
    "os_calls": ("calls of the operating system", "os_calls"),
}
"""Data that a profile may lack, and the key of `tracekit.readers.RECORDABLE` that says how to record them."""
