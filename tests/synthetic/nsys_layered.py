"""The planted training loops of `layered` and `generate` as Nsight Systems records them under torch's `emit_nvtx`.

The plan and its truth stay theirs: here spans become NVTX ranges and calls, activities become rows of the device.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from .layered import Place, Shape, layered
from .model import Activity, HostSpan, Planted
from .nsys_export import BACKTRACE, PID, Program, merged

MARKS = ("capture", "dict", "range", "record", "fsdp", "compiled")
"""How layers are marked: tracekit's own domain, reprs of dicts, ranges pushed by hand, `record_function`, FSDP's hooks
and torch.compile's regions."""

SESSION_START = 60_111_418_026
"""Sessions count from their own start, and the capture begins later."""

_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
_RECORDED = re.compile(r"FSDP::|Optimizer\.|nccl:|ProfilerStep#|enumerate\(")
_TRACEKIT, _NCCL = 1, 2


@dataclass(frozen=True)
class Style:
    """What varies between exports of one plan."""

    marks: str = "range"
    sizes: bool = True
    nested_calls: float = (
        0.3  # of the launches have a call of the driver inside, with the same correlation id
    )
    backtraces: bool = False  # a second row for each launch
    whole_graphs: bool = False  # CUDA graphs are one row each
    pid: int = PID


@dataclass(frozen=True)
class Expected:
    """The truth about one row of the device, found by `key`: (process, stream, start in the file)."""

    key: tuple[int, int, int]
    name: str
    duration: int
    place: Place
    operator: str | None
    launched: bool


@dataclass(frozen=True)
class Export:
    """A program and the truth about its rows of the device."""

    program: Program
    expected: list[Expected]


def shape_of(marks: str, **changes: Any) -> Shape:
    """The plan whose layers can be marked that way."""
    source = {"dict": "range", "record": "range"}.get(marks, marks)
    return replace(Shape(source=source), **changes)


def training(seed: int, shape: Shape, style: Style) -> Export:
    """The planted model of `layered`. `shape.source` must suit `style.marks` (see `shape_of`)."""
    truth = layered(seed, shape)
    return convert(truth.planted, truth.places, style, seed)


def both(first: Export, second: Export) -> Export:
    """Two processes in one export."""
    return Export(merged(first.program, second.program), first.expected + second.expected)


def convert(planted: Planted, places: list[Place], style: Style, seed: int = 0) -> Export:
    """The export of a planted trace; without `places` nothing is known of layers."""
    made = _Conversion(planted, style, random.Random(seed))
    made.host()
    return Export(made.program, made.device(places or [Place(None, "other")] * len(planted.activities)))


class _Conversion:
    def __init__(self, planted: Planted, style: Style, rng: random.Random) -> None:
        self.planted, self.style, self.rng = planted, style, rng
        self.program = Program()
        self.shift = SESSION_START - planted.config.origin_ns

    def _process(self, process: int) -> int:
        return process - PID + self.style.pid

    def _thread(self, thread: int) -> int:
        return thread - PID + self.style.pid

    # -- host --------------------------------------------------------------------------------------

    def host(self) -> None:
        program, style = self.program, self.style
        main = self._thread(self.planted.main_thread[1])
        program.process("python", pid=style.pid)
        program.thread("python", tid=main, pid=style.pid)
        for number in sorted({activity.device for activity in self.planted.activities}):
            program.device(number, pid=style.pid)
        last = max((a.end_ns for a in self.planted.activities), default=0) + self.shift
        program.session(self.planted.config.base_ns, SESSION_START, max(last, SESSION_START))
        where = {"tid": main, "pid": style.pid}
        program.domain(_TRACEKIT, "tracekit", SESSION_START, **where)
        program.domain(_NCCL, "NCCL", SESSION_START, **where)
        for span in self.planted.spans:
            self._span(span)

    def _span(self, span: HostSpan) -> None:
        start, end = span.start_ns + self.shift, span.end_ns + self.shift
        where = {"tid": self._thread(span.thread), "pid": self._process(span.process)}
        if span.kind == "runtime":
            self._call(span, start, end, where)
        elif span.kind == "overhead":
            self.program.overhead(span.name, start, end, **where)
        elif span.kind in ("op", "step") or self._recorded(span):
            self.program.push_pop(self._emitted(span), start, end, registered=False, **where)
        elif span.kind == "annotation":
            ours = span.name.startswith("tracekit.")
            self.program.push_pop(
                self._marker(span), start, end, domain=_TRACEKIT * ours, registered=ours, **where
            )

    def _recorded(self, span: HostSpan) -> bool:
        """Whether the range is one of `record_function`, which `emit_nvtx` writes as it writes operators."""
        by_hand = self.style.marks == "record" and not span.name.startswith("tracekit.")
        return span.kind == "annotation" and (by_hand or _RECORDED.match(span.name) is not None)

    def _emitted(self, span: HostSpan) -> str:
        text = span.name
        if span.sequence is not None:
            text += f", seq = {span.sequence}"
        text += f", op_id = {span.external_id}"
        if self.style.sizes and span.kind == "op":
            text += f", sizes = {span.args.get('Input Dims', [])}"
            text += f", input_op_ids = [({max((span.external_id or 0) - 1, 0)},0),(-1,0)]"
        return text

    def _marker(self, span: HostSpan) -> str:
        if self.style.marks != "dict" or span.name.startswith("tracekit."):
            return span.name
        parts, above = [span.name], span.parent
        while above is not None:
            outer = self.planted.spans[above]
            if outer.kind == "annotation" and not self._recorded(outer):
                parts.append(outer.name)
            above = outer.parent
        path = ".".join(reversed(parts))
        return f"{{'Module': '{path}', 'TrainableParams': {{'weight': [64, 128]}}, 'Inputs': [[32, 64]]}}"

    def _call(self, span: HostSpan, start: int, end: int, where: dict[str, int]) -> None:
        assert span.correlation is not None
        name = f"{span.name}_v7000" if span.name.startswith("cuda") else span.name
        self.program.call(name, start, end, correlation=span.correlation, **where)
        if self.style.backtraces:
            self.program.call(name, start, end, correlation=span.correlation, eventClass=BACKTRACE, **where)
        if (
            name.startswith("cudaLaunchKernel")
            and end - start > 10
            and self.rng.random() < self.style.nested_calls
        ):
            inner = {"correlation": span.correlation, **where}
            self.program.call("cuLaunchKernelEx", start + 3, end - 3, **inner)

    # -- device ------------------------------------------------------------------------------------

    def device(self, places: list[Place]) -> list[Expected]:
        expected = []
        graphs: dict[int, list[tuple[Activity, Place]]] = defaultdict(list)
        for activity, place in zip(self.planted.activities, places, strict=True):
            if self.style.whole_graphs and activity.graph_node is not None:
                graphs[activity.correlation].append((activity, self._place(place)))
                continue
            self._activity(activity)
            expected.append(self._expected(activity, place, activity.name, activity.end_ns))
        for number, (correlation, parts) in enumerate(graphs.items(), start=11):
            first, place = parts[0]
            start, end = min(a.start_ns for a, _ in parts), max(a.end_ns for a, _ in parts)
            self.program.graph(
                number, start + self.shift, end + self.shift, correlation=correlation, **self._where(first)
            )
            expected.append(
                self._expected(replace(first, start_ns=start), place, f"CUDA graph {number}", end)
            )
        return expected

    def _where(self, activity: Activity) -> dict[str, Any]:
        process = PID if activity.launch_thread is None else activity.launch_thread[0]
        return {"pid": self._process(process), "device": activity.device, "stream": activity.stream}

    def _expected(self, activity: Activity, place: Place, name: str, end: int) -> Expected:
        where, start = self._where(activity), activity.start_ns + self.shift
        operator = None if activity.op is None else self.planted.spans[activity.op].name
        key = where["pid"], activity.stream, start
        duration = end - activity.start_ns
        return Expected(key, name, duration, self._place(place), operator, activity.launch is not None)

    def _place(self, place: Place) -> Place:
        if self.style.marks != "dict" or place.layer is None:
            return place
        return replace(place, layer=place.layer.replace("/", "."))

    def _activity(self, activity: Activity) -> None:
        start, end = activity.start_ns + self.shift, activity.end_ns + self.shift
        where = {**self._where(activity), "correlation": activity.correlation}
        moved = {**where, "bytes_": activity.bytes or 0}
        node = activity.graph_node
        if activity.kind == "memset":
            self.program.memset(start, end, **moved)
        elif activity.kind == "memcpy" and (found := _COPY.match(activity.name)):
            self.program.memcpy(found[1], found[2], found[3], start, end, **moved)
        else:
            graph = {} if node is None else {"graphNodeId": node + 1, "graphId": 5}
            self.program.kernel(activity.name, start, end, **where, **graph)
