"""A second, naive reader: from the bytes of a (well-formed) file back to spans, activities and steps."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from . import oracle
from .model import COMMUNICATION, COMPUTE, MEMORY, Activity, Event, HostSpan, Step

KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
HOST = {
    "cpu_op": "op",
    "user_annotation": "annotation",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "python_function": "python",
    "overhead": "overhead",
}
OLD = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
COLLECTIVES = re.compile(r"nccl|rccl|cross_device_reduce|multimem|all_?reduce|symm_mem", re.IGNORECASE)


@dataclass(frozen=True)
class Derived:
    """What a file says, as far as naive reading goes: no categories, no causes."""

    events: list[Event]
    header: dict[str, Any]
    spans: list[HostSpan]
    activities: list[Activity]
    steps: list[Step]


def parse(data: bytes) -> tuple[list[Event], dict[str, Any]]:
    """Events with `ts` and `dur` in exact integer ns, and the other top-level keys."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    document = json.loads(data, parse_float=Decimal)
    events, header = (document, {}) if isinstance(document, list) else (document.pop("traceEvents"), document)
    for event in events:
        for key in ("ts", "dur"):
            if key in event:
                exact = Decimal(event[key]) * 1000
                assert exact == exact.to_integral_value(), f"{key} = {event[key]} is finer than a nanosecond"
                event[key] = int(exact)
    return events, header


def derive(source: Path | bytes, *, host: bool = True) -> Derived:
    """Reads a file and links everything by brute force; `host=False` leaves the host out, for large files."""
    events, header = parse(source if isinstance(source, bytes) else source.read_bytes())
    spans: list[HostSpan] = []
    for event in events:
        kind = HOST.get(_category(event))
        if host and event["ph"] == "X" and kind is not None:
            spans.append(_span(event, len(spans), kind))
    for span, parent in zip(spans, oracle.parents(spans), strict=True):
        span.parent = parent
    for span, depth in zip(spans, oracle.depths([s.parent for s in spans]), strict=True):
        span.depth = depth
    steps = [
        Step(int(span.name.partition("#")[2]), span.index, span.start_ns, span.dur_ns)
        for span in spans
        if span.kind == "step"
    ]
    activities: list[Activity] = []
    for event in events:
        kind = KINDS.get(_category(event))
        if event["ph"] == "X" and kind is not None:
            activities.append(_activity(event, len(activities), kind, spans, steps))
    return Derived(events, header, spans, activities, steps)


def _category(event: Event) -> str:
    """Today's name of an event's category."""
    category = str(event.get("cat", ""))
    return OLD.get(category, category)


def _span(event: Event, index: int, kind: str) -> HostSpan:
    args = event.get("args", {})
    name = event["name"]
    if re.fullmatch(r"ProfilerStep#\d+", name):
        kind = "step"
    elif kind == "python" and name.startswith("nn.Module: "):
        kind = "module"
    external = args.get("External id", args.get("external id"))
    return HostSpan(
        index=index,
        process=int(event["pid"]),
        thread=int(event["tid"]),
        kind=kind,
        name=name,
        start_ns=event["ts"],
        dur_ns=event["dur"],
        correlation=args.get("correlation") if kind == "runtime" else None,
        external_id=None if external is None else int(external),
        sequence=args.get("Sequence number"),
        forward_thread=args.get("Fwd thread id"),
        cat=event["cat"],
        args=args,
    )


def _activity(event: Event, index: int, kind: str, spans: list[HostSpan], steps: list[Step]) -> Activity:
    args = event["args"]
    name = event["name"]
    cls = MEMORY if kind != "kernel" else COMMUNICATION if COLLECTIVES.search(name) else COMPUTE
    call = next((s for s in spans if s.kind == "runtime" and s.correlation == args["correlation"]), None)
    external = args.get("External id", args.get("external id"))
    activity = Activity(
        index=index,
        kind=kind,
        cls=cls,
        category="",
        name=name,
        device=int(args["device"]),
        stream=int(args["stream"]),
        start_ns=event["ts"],
        dur_ns=event["dur"],
        correlation=args["correlation"],
        external_id=None if external is None else int(external),
        bytes=args.get("bytes"),
    )
    if call is not None:
        activity.launch = call.index
        activity.launch_start_ns, activity.launch_end_ns = call.start_ns, call.end_ns
        activity.launch_thread = (call.process, call.thread)
        activity.op, activity.outer_op = oracle.operators_of(spans, activity)
        activity.step = oracle.step_of(call.start_ns, steps)
    return activity
