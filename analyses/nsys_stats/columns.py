"""The columns of the reports and rules, and what a profile may lack for them."""

from __future__ import annotations

from typing import Final

import polars as pl

__all__ = ["COLUMNS", "MISSING", "SOURCES"]

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
    **dict.fromkeys(("Instances", "Num Calls", "Count"), (_N, "how many there are")),
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
    **dict.fromkeys(("GrdX", "GrdY", "GrdZ"), (_N, "thread blocks")),
    **dict.fromkeys(("BlkX", "BlkY", "BlkZ"), (_N, "threads of a block")),
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
    **dict.fromkeys(("API Name", "API Function"), (_T, "the call")),
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
    "Src Kind": (_T, "memory that is copied from"),
    "Dst Kind": (_T, "memory that is copied to"),
    "Memory Kind": (_T, "memory that is filled"),
    "Device ID": (_N, "device"),
    "Context ID": (_N, "context; null where a process has several on the device"),
    "Green Context ID": (_N, "green context; no trace that tracekit reads tells"),
    "Stream ID": (_N, "stream"),
}
"""Every column of the tables: its type and what it means."""

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
"""The column of the rows that a heading shows, where the rows do not have the heading itself."""

MISSING: Final[dict[str, tuple[str, str]]] = {
    "device": ("work of a device", "device"),
    "kernels": ("single kernels", "kernels"),
    "calls": ("calls of the CUDA API", "calls"),
    "links": ("the calls that launched the work", "launches"),
    "ranges": ("ranges", "ranges"),
    "startend": ("start/end ranges", "start_end_ranges"),
    "os_calls": ("calls of the operating system", "os_calls"),
}
"""What a profile may lack, and the key of `tracekit.readers.RECORDABLE` that says how it is recorded."""
