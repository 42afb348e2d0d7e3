"""The planted trace as Chrome events, in the order and with the arguments that Kineto writes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from .machine import Machine
from .model import Activity, Config, Event, HostSpan, Planted

CBID = {"cudaLaunchKernel": 211, "cudaMemcpyAsync": 41, "cudaMemsetAsync": 51, "cudaStreamSynchronize": 131}
ACTIVITY_CAT = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}


def build_header(config: Config, machine: Machine) -> dict[str, Any]:
    """Top-level keys other than `traceEvents`."""
    amd = config.vendor == "amd"
    devices = sorted({device for device, _ in machine.streams})
    header: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": device,
                "name": "AMD Instinct MI300X" if amd else "NVIDIA H100 80GB HBM3",
                "totalGlobalMem": 206_141_652_992 if amd else 84_987_740_160,
                "computeMajor": 9,
                "computeMinor": 4 if amd else 0,
                "maxThreadsPerBlock": 1024,
                "maxThreadsPerMultiprocessor": 2048,
                "regsPerBlock": 65536,
                "warpSize": 64 if amd else 32,
                "sharedMemPerBlock": 49152,
                "numSms": 304 if amd else 132,
            }
            for device in devices
        ],
        "record_shapes": 1,
        "trace_id": "6AF14D21A4E84D36BF1640FC99AD118E",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": config.base_ns,
    }
    if config.rank is not None:
        header["distributedInfo"] = {
            "backend": "nccl",
            "rank": config.rank,
            "world_size": config.world_size,
            "pg_count": 1,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(config.world_size))}],
        }
    header.update(
        {"hip_driver_version": 60443483} if amd else {"cuda_driver_version": 12090, "cupti_version": 22}
    )
    return header


def build_events(planted: Planted, sync_rows: list[Event]) -> Planted:
    """Fills in `events`: operators, then calls and device rows by correlation, then the rest."""
    config = planted.config
    events = [_span_event(span, planted) for span in planted.spans if span.kind != "runtime"]
    if config.flows:
        events += _forward_backward_flows(planted)
    by_launch: dict[int | None, list[Activity]] = defaultdict(list)
    for activity in planted.activities:
        by_launch[activity.launch].append(activity)
    for activity in by_launch[None]:
        events.append(_activity_event(activity, config))
        if config.flows:
            events.append(
                _flow("f", activity.correlation, activity.device, activity.stream, activity.start_ns)
            )
    for span in planted.spans:
        if span.kind != "runtime":
            continue
        # Kineto writes an activity before the call that launched it.
        for activity in by_launch[span.index]:
            events.append(_activity_event(activity, config))
            if config.flows:
                events.append(
                    _flow("f", activity.correlation, activity.device, activity.stream, activity.start_ns)
                )
        events.append(_span_event(span, planted))
        if config.flows:
            phase = "s" if by_launch[span.index] else "f"
            events.append(_flow(phase, span.correlation, span.process, span.thread, span.start_ns))
    if planted.activities:
        events += sync_rows
        if config.gpu_annotations:
            events += _gpu_annotations(planted)
    events += _memory_events(planted)
    for name, series, time, value in planted.counters:
        event = {"ph": "C", "cat": "counter", "name": name, "pid": planted.main_thread[0], "ts": time}
        events.append({**event, "args": {series: value}})
    events += _metadata(planted)
    return replace(planted, events=events)


def _span_event(span: HostSpan, planted: Planted) -> Event:
    args: dict[str, Any] = {}
    if span.external_id is not None:
        args["External id"] = span.external_id
    if span.kind == "runtime":
        args["cid" if planted.config.vendor == "amd" else "cbid"] = CBID.get(span.name, 200)
        args["correlation"] = span.correlation
    elif span.cat == "python_function":
        outer = span.parent
        while outer is not None and planted.spans[outer].cat != "python_function":
            outer = planted.spans[outer].parent
        args = {"Python id": span.index + 1, "Python parent id": None if outer is None else outer + 1}
        if span.kind == "module":
            args["Python module id"] = span.index
    else:
        args["Record function id"] = 0
        if span.sequence is not None:
            args["Sequence number"] = span.sequence
            args["Fwd thread id"] = span.forward_thread
        args["Ev Idx"] = span.index
    return {
        "ph": "X",
        "cat": span.cat,
        "name": span.name,
        "pid": span.process,
        "tid": span.thread,
        "ts": span.start_ns,
        "dur": span.dur_ns,
        "args": {**args, **span.args},
    }


def _activity_event(activity: Activity, config: Config) -> Event:
    amd = config.vendor == "amd"
    args: dict[str, Any] = {}
    if activity.external_id is not None:
        args["External id"] = activity.external_id
    if activity.kind == "kernel" and not amd:
        args["queued"] = 0
    args.update({"device": activity.device, "stream": activity.stream, "correlation": activity.correlation})
    if not amd:
        args["context"] = 1
    blocks = 1 + activity.index % 500
    if activity.kind == "kernel":
        if amd:
            args["kind"] = "Dispatch Kernel"
        else:
            args.update({"registers per thread": 32, "shared memory": 1024 * (activity.index % 48)})
            args.update({"blocks per SM": round(blocks / 132, 6), "warps per SM": round(blocks * 4 / 132, 6)})
        args.update({"grid": [blocks, 1, 1], "block": [128, 1, 1]})
        if not amd:
            args["est. achieved occupancy %"] = min(100, 5 + blocks // 8)
            args["graph id"] = 0 if activity.graph_node is None else 71
            args["graph node id"] = 0 if activity.graph_node is None else (71 << 32) | activity.graph_node
    elif activity.bytes is not None:
        args["bytes"] = activity.bytes
        if activity.dur_ns:
            args["memory bandwidth (GB/s)"] = activity.bytes / activity.dur_ns
    return {
        "ph": "X",
        "cat": ACTIVITY_CAT[activity.kind],
        "name": activity.name,
        "pid": activity.device,
        "tid": activity.stream,
        "ts": activity.start_ns,
        "dur": activity.dur_ns,
        "args": {**args, **activity.args},
    }


def _flow(
    phase: str, number: int | None, process: int, thread: int, time: int, *, cat: str = "ac2g"
) -> Event:
    event: Event = {
        "ph": phase,
        "id": number,
        "pid": process,
        "tid": thread,
        "ts": time,
        "cat": cat,
        "name": cat,
    }
    return {**event, "bp": "e"} if phase == "f" else event


def _forward_backward_flows(planted: Planted) -> list[Event]:
    """From the innermost forward operator of each sequence number to its backward node."""
    forward: dict[int, HostSpan] = {}
    for span in planted.spans:
        if span.sequence is not None and span.forward_thread == 0:
            forward[span.sequence] = span
    flows: list[Event] = []
    for span in planted.spans:
        if span.sequence is None or span.forward_thread != 1 or span.name.startswith("autograd::engine"):
            continue
        source, number = forward[span.sequence], len(flows) // 2 + 1
        flows.append(_flow("s", number, source.process, source.thread, source.start_ns, cat="fwdbwd"))
        flows.append(_flow("f", number, span.process, span.thread, span.start_ns, cat="fwdbwd"))
    return flows


def _gpu_annotations(planted: Planted) -> list[Event]:
    """The device's mirror of each annotation and step, one row per stream: not work, although on a stream."""
    reach: dict[tuple[int, int, int], list[int]] = {}
    for activity in planted.activities:
        owner = activity.launch
        while owner is not None:
            span = planted.spans[owner]
            if span.kind in ("annotation", "step"):
                key = (span.index, activity.device, activity.stream)
                low, high = reach.setdefault(key, [activity.start_ns, activity.end_ns])
                reach[key] = [min(low, activity.start_ns), max(high, activity.end_ns)]
            owner = span.parent
    return [
        {
            "ph": "X",
            "cat": "gpu_user_annotation",
            "name": planted.spans[index].name,
            "pid": device,
            "tid": stream,
            "ts": low,
            "dur": high - low,
            "args": {"External id": planted.spans[index].external_id},
        }
        for (index, device, stream), (low, high) in reach.items()
    ]


def _memory_events(planted: Planted) -> list[Event]:
    return [
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": event.thread[0],
            "tid": event.thread[1],
            "ts": event.time_ns,
            "args": {
                "Total Reserved": event.reserved,
                "Total Allocated": event.allocated,
                "Bytes": event.bytes,
                "Addr": event.address,
                "Device Id": event.device,
                "Device Type": 6 if planted.config.vendor == "amd" else 1,
                "Ev Idx": 100_000 + number,
            },
        }
        for number, event in enumerate(planted.memory)
    ]


def _metadata(planted: Planted) -> list[Event]:
    origin = planted.config.origin_ns
    events: list[Event] = []

    def row(name: str, process: int | str, thread: int, key: str, value: int | str) -> None:
        events.append(
            {"name": name, "ph": "M", "ts": origin, "pid": process, "tid": thread, "args": {key: value}}
        )

    processes = sorted({s.process for s in planted.spans})
    # Kineto describes eight devices whatever the machine has.
    for process, label in [*((p, "CPU") for p in processes), *((d, f"GPU {d}") for d in range(8))]:
        row("process_name", process, 0, "name", "python3")
        row("process_labels", process, 0, "labels", label)
        row(
            "process_sort_index",
            process,
            0,
            "sort_index",
            process if label == "CPU" else 16_777_216 + process,
        )
    for process, thread in sorted({(s.process, s.thread) for s in planted.spans}):
        row("thread_name", process, thread, "name", f"thread {thread} (python3)")
        row("thread_sort_index", process, thread, "sort_index", thread)
    for device, stream in sorted({(a.device, a.stream) for a in planted.activities}):
        row("thread_name", device, stream, "name", f"stream {stream} ")
        row("thread_sort_index", device, stream, "sort_index", stream)
    times = [s.end_ns for s in planted.spans] + [a.end_ns for a in planted.activities] + [origin]
    events.append(
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": origin,
            "dur": max(times) - origin,
            "args": {"Op count": 0},
        }
    )
    row("process_sort_index", "Spans", 0, "sort_index", 536_870_912)
    start = {"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g", "pid": "Traces"}
    events.append({**start, "tid": "Trace PyTorch Profiler", "ts": origin})
    stop = max(times) + 10_000  # what ended at that time was open
    events.append({"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": stop})
    return events
