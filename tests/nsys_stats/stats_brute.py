"""The reports once more, row by row in plain Python, from the definitions in NVIDIA's guide alone."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracekit.trace import Trace

Row = dict[str, Any]
RANGES = ("step", "annotation", "module", "op")
OPERATIONS = {
    "HtoD": "Host-to-Device",
    "DtoH": "Device-to-Host",
    "DtoD": "Device-to-Device",
    "PtoP": "Peer-to-Peer",
}


def shift(traces: Sequence[Trace], trace: Trace) -> int:
    if trace.meta.format == "nsys":
        return trace.meta.origin_ns
    origins = [other.meta.origin_utc_ns for other in traces]
    assert None not in origins
    return trace.meta.origin_utc_ns - min(origins)  # type: ignore[operator, type-var]


def spread(values: Sequence[int], prefix: str = "", unit: str = "ns", scale: float = 1) -> Row:
    if not values:
        return {f"{prefix}{name} ({unit})": None for name in ("Avg", "Med", "Min", "Max", "StdDev")}
    return {
        f"{prefix}Avg ({unit})": statistics.fmean(values) / scale,
        f"{prefix}Med ({unit})": float(statistics.median(values)) / scale,
        f"{prefix}Min ({unit})": min(values) if scale == 1 else min(values) / scale,
        f"{prefix}Max ({unit})": max(values) if scale == 1 else max(values) / scale,
        f"{prefix}StdDev ({unit})": (statistics.stdev(values) if len(values) > 1 else 0.0) / scale,
    }


def summed(groups: dict[Any, list[int]], count: str, name: Callable[[Any], Row]) -> list[Row]:
    total = sum(sum(values) for values in groups.values())
    return [
        {
            "Time (%)": 100 * sum(values) / total if total else None,
            "Total Time (ns)": sum(values),
            count: len(values),
            **spread(values),
            **name(key),
        }
        for key, values in groups.items()
    ]


def activities(traces: Sequence[Trace]) -> Iterable[tuple[Trace, Row]]:
    for trace in traces:
        for row in trace.device.iter_rows(named=True):
            yield trace, row


def operation(row: Row) -> str:
    if row["kind"] in ("kernel", "graph"):
        return str(row["name"])
    found = re.search(r"[HDP]to[HDP]", row["name"])
    if found:
        return f"[CUDA memcpy {OPERATIONS[found[0]]}]"
    return "[CUDA memset]" if "emset" in row["name"] else str(row["name"])


def padded(text: str | None) -> str | None:
    return text and "{:>4} {:>4} {:>4}".format(*re.findall(r"\d+", text))


def grouped(pairs: Iterable[tuple[Any, int]]) -> dict[Any, list[int]]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def kernels(traces: Sequence[Trace]) -> Iterable[Row]:
    return (row for _, row in activities(traces) if row["kind"] == "kernel")


def moves(traces: Sequence[Trace]) -> Iterable[Row]:
    return (row for _, row in activities(traces) if row["kind"] in ("memcpy", "memset"))


def cuda_gpu_kern_sum(traces: Sequence[Trace]) -> list[Row]:
    groups = grouped((row["name"], row["duration"]) for row in kernels(traces))
    return summed(groups, "Instances", lambda key: {"Name": key})


def cuda_gpu_kern_gb_sum(traces: Sequence[Trace]) -> list[Row]:
    groups = grouped(((row["name"], row["grid"], row["block"]), row["duration"]) for row in kernels(traces))
    return summed(
        groups,
        "Instances",
        lambda key: {"Name": key[0], "GridXYZ": padded(key[1]), "BlockXYZ": padded(key[2])},
    )


def cuda_gpu_mem_time_sum(traces: Sequence[Trace]) -> list[Row]:
    groups = grouped((operation(row), row["duration"]) for row in moves(traces))
    return summed(groups, "Count", lambda key: {"Operation": key})


def cuda_gpu_mem_size_sum(traces: Sequence[Trace]) -> list[Row]:
    groups = grouped((operation(row), row["bytes"]) for row in moves(traces) if row["bytes"] is not None)
    return [
        {
            "Operation": key,
            "Total (MB)": sum(values) / 1e6,
            "Count": len(values),
            **spread(values, unit="MB", scale=1e6),
        }
        for key, values in groups.items()
    ]


def cuda_gpu_sum(traces: Sequence[Trace]) -> list[Row]:
    category = {"kernel": "CUDA_KERNEL", "graph": "CUDA_GRAPH"}
    groups = grouped(
        ((category.get(row["kind"], "MEMORY_OPER"), operation(row)), row["duration"])
        for _, row in activities(traces)
    )
    return summed(groups, "Instances", lambda key: {"Category": key[0], "Operation": key[1]})


def calls(traces: Sequence[Trace]) -> Iterable[tuple[Trace, Row]]:
    for trace in traces:
        for row in trace.host.iter_rows(named=True):
            if row["kind"] == "runtime":
                yield trace, row


def cuda_api_sum(traces: Sequence[Trace]) -> list[Row]:
    groups = grouped((row["name"], row["duration"]) for _, row in calls(traces))
    return summed(groups, "Num Calls", lambda key: {"Name": key})


def executions(traces: Sequence[Trace]) -> Iterable[tuple[int, Row, Row, Row]]:
    for number, trace in enumerate(traces):
        host = trace.host.to_dicts()
        for row in trace.device.iter_rows(named=True):
            if row["kind"] == "kernel" and row["launch_id"] is not None:
                call = host[row["launch_id"]]
                end = call["start"] + call["duration"]
                queue = row["start"] - end
                times = {
                    "T": max(end, row["start"] + row["duration"]) - call["start"],
                    "A": call["duration"],
                    "Q": queue if queue > 0 else None,
                    "K": row["duration"],
                }
                yield number, row, call, times


def cuda_kern_exec_sum(traces: Sequence[Trace]) -> list[Row]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for number, row, call, times in executions(traces):
        key = (number, call["process_id"], call["thread_id"], row["device_id"], call["name"], row["name"])
        groups[key].append(times)
    return [
        {
            **dict(zip(("PID", "TID", "DevId", "API Name", "Kernel Name"), key[1:], strict=True)),
            "Count": len(times),
            "QCount": sum(one["Q"] is not None for one in times),
            **spread([one["T"] for one in times], "T"),
            **spread([one["A"] for one in times], "A"),
            **spread([one["Q"] for one in times if one["Q"] is not None], "Q"),
            **spread([one["K"] for one in times], "K"),
        }
        for key, times in groups.items()
    ]


def cuda_kern_exec_trace(traces: Sequence[Trace]) -> list[Row]:
    rows = []
    for number, row, call, times in executions(traces):
        moved = shift(traces, traces[number])
        rows.append(
            {
                "API Start (ns)": call["start"] + moved,
                "API Dur (ns)": call["duration"],
                "Queue Start (ns)": None if times["Q"] is None else call["start"] + call["duration"] + moved,
                "Queue Dur (ns)": times["Q"],
                "Kernel Start (ns)": row["start"] + moved,
                "Kernel Dur (ns)": row["duration"],
                "Total Dur (ns)": times["T"],
                "PID": call["process_id"],
                "TID": call["thread_id"],
                "DevId": row["device_id"],
                "API Function": call["name"],
                "GridXYZ": padded(row["grid"]),
                "BlockXYZ": padded(row["block"]),
                "Kernel Name": row["name"],
            }
        )
    return rows


def ranges(traces: Sequence[Trace], *, one_thread: bool = False) -> list[Row]:
    """All ranges, with `trace`, `Style`, `id`, `parent` (a range), `level`, `children`, `end`, `Range`."""
    found: list[Row] = []
    number = 0
    for trace in traces:
        nested = [row for row in trace.host.iter_rows(named=True) if row["kind"] in RANGES]
        for place, row in enumerate(nested):
            number += 1
            row.update(trace=trace, Style="PushPop", id=number, children=0, parent=None, level=0)
            row["end"] = row["start"] + row["duration"]
            for other in reversed(nested[:place]):
                same = (other["process_id"], other["thread_id"]) == (row["process_id"], row["thread_id"])
                if same and other["end"] >= row["end"]:
                    row["parent"], row["level"] = other, other["level"] + 1
                    other["children"] += 1
                    break
        found += nested
        for row in [] if trace.ranges is None else trace.ranges.iter_rows(named=True):
            number += 1
            if row["kind"] == "start_end" and (not one_thread or row["thread_id"] == row["end_thread_id"]):
                row.update(trace=trace, Style="StartEnd", id=number, children=0, parent=None, level=0)
                row["end"] = row["start"] + row["duration"]
                found.append(row)
    for row in found:
        row["Range"] = f"{row['domain'] or ''}:{row['name']}"
    return found


def nvtx_sum(traces: Sequence[Trace]) -> list[Row]:
    groups = grouped(((row["Style"], row["Range"]), row["duration"]) for row in ranges(traces))
    return summed(groups, "Instances", lambda key: {"Style": key[0], "Range": key[1]})


def nvtx_pushpop_sum(traces: Sequence[Trace], style: str = "PushPop") -> list[Row]:
    groups = grouped((row["Range"], row["duration"]) for row in ranges(traces) if row["Style"] == style)
    return summed(groups, "Instances", lambda key: {"Range": key})


def nvtx_startend_sum(traces: Sequence[Trace]) -> list[Row]:
    return nvtx_pushpop_sum(traces, "StartEnd")


def stack(row: Row) -> str:
    return (stack(row["parent"]) if row["parent"] else "") + f":{row['id']}"


def nvtx_pushpop_trace(traces: Sequence[Trace]) -> list[Row]:
    found = [row for row in ranges(traces) if row["Style"] == "PushPop"]
    inside: dict[int, int] = defaultdict(int)
    for row in found:
        if row["parent"]:
            inside[row["parent"]["id"]] += row["duration"]
    return [
        {
            "Start (ns)": row["start"] + shift(traces, row["trace"]),
            "End (ns)": row["end"] + shift(traces, row["trace"]),
            "Duration (ns)": row["duration"],
            "DurChild (ns)": inside[row["id"]],
            "DurNonChild (ns)": row["duration"] - inside[row["id"]],
            "Name": row["Range"],
            "PID": row["process_id"],
            "TID": row["thread_id"],
            "Lvl": row["level"],
            "NumChild": row["children"],
            "RangeId": row["id"],
            "ParentId": row["parent"] and row["parent"]["id"],
            "RangeStack": stack(row),
            "NameTree": "--" * row["level"] + row["Range"],
        }
        for row in found
    ]


def with_work(traces: Sequence[Trace], *kinds: str) -> Iterable[tuple[Row, list[Row]]]:
    """Each range with the activities that calls inside it launched."""
    launched: dict[int, list[tuple[Row, Row]]] = defaultdict(list)
    for trace, row in activities(traces):
        if row["launch_id"] is not None and (not kinds or row["kind"] in kinds):
            launched[id(trace)].append((trace.host.row(row["launch_id"], named=True), row))
    for one in ranges(traces, one_thread=True):
        mine = [
            row
            for call, row in launched[id(one["trace"])]
            if (call["process_id"], call["thread_id"]) == (one["process_id"], one["thread_id"])
            and one["start"] <= call["start"]
            and call["start"] + call["duration"] <= one["end"]
        ]
        if mine:
            yield one, mine


def nvtx_gpu_proj_trace(traces: Sequence[Trace]) -> list[Row]:
    rows = []
    for one, work in with_work(traces):
        first = min(row["start"] for row in work)
        moved = shift(traces, one["trace"])
        rows.append(
            {
                "Name": one["Range"],
                "Projected Start (ns)": first + moved,
                "Projected Duration (ns)": max(row["start"] + row["duration"] for row in work) - first,
                "Orig Start (ns)": one["start"] + moved,
                "Orig Duration (ns)": one["duration"],
                "Style": one["Style"],
                "PID": one["process_id"],
                "TID": one["thread_id"],
                "NumGPUOps": len(work),
                "Lvl": one["level"],
                "NumChild": one["children"],
                "RangeId": one["id"],
                "ParentId": one["parent"] and one["parent"]["id"],
                "RangeStack": stack(one),
            }
        )
    return rows


def nvtx_gpu_proj_sum(traces: Sequence[Trace]) -> list[Row]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in nvtx_gpu_proj_trace(traces):
        groups[row["Name"], row["Style"]].append(row)
    return [
        {
            "Range": name,
            "Style": style,
            "Total Proj Time (ns)": sum(row["Projected Duration (ns)"] for row in rows),
            "Total Range Time (ns)": sum(row["Orig Duration (ns)"] for row in rows),
            "Range Instances": len(rows),
            **spread([row["Projected Duration (ns)"] for row in rows], "Proj "),
            "Total GPU Ops": sum(row["NumGPUOps"] for row in rows),
            "Avg GPU Ops": statistics.fmean(row["NumGPUOps"] for row in rows),
            "Avg Range Lvl": statistics.fmean(row["Lvl"] for row in rows),
            "Avg Num Child": statistics.fmean(row["NumChild"] for row in rows),
        }
        for (name, style), rows in groups.items()
    ]


def nvtx_kern_sum(traces: Sequence[Trace]) -> list[Row]:
    groups: dict[Any, tuple[set[int], dict[int, int]]] = defaultdict(lambda: (set(), {}))
    for one, work in with_work(traces, "kernel"):
        for row in work:
            key = (
                id(one["trace"]),
                one["Range"],
                one["Style"],
                one["process_id"],
                one["thread_id"],
                row["name"],
            )
            groups[key][0].add(one["id"])
            groups[key][1][row["activity_id"]] = row["duration"]
    return [
        {
            **dict(zip(("NVTX Range", "Style", "PID", "TID", "Kernel Name"), key[1:], strict=True)),
            "NVTX Inst": len(inside),
            "Kern Inst": len(found),
            "Total Time (ns)": sum(found.values()),
            **spread(list(found.values())),
        }
        for key, (inside, found) in groups.items()
    ]


REPORTS: dict[str, Callable[[Sequence[Trace]], list[Row]]] = {
    function.__name__: function
    for function in (
        *(
            cuda_gpu_kern_sum,
            cuda_gpu_kern_gb_sum,
            cuda_gpu_mem_time_sum,
            cuda_gpu_mem_size_sum,
            cuda_gpu_sum,
        ),
        *(
            cuda_api_sum,
            cuda_kern_exec_sum,
            cuda_kern_exec_trace,
            nvtx_sum,
            nvtx_pushpop_sum,
            nvtx_startend_sum,
        ),
        *(nvtx_pushpop_trace, nvtx_kern_sum, nvtx_gpu_proj_sum, nvtx_gpu_proj_trace),
    )
}
