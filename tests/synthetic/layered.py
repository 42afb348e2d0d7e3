"""A training loop over a tree of modules, with the layer and the phase of every activity planted.

Unlike the workload of `generate`, this one nests modules, repeats autograd's sequence numbers on several threads,
peeks at the next number from another layer, recomputes checkpointed modules, adds gradients up, reduces buckets of
them inside the node of the last parameter, and marks its layers in each of the ways that profiles know.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from . import names
from .events import build_events, build_header
from .machine import Thread
from .model import Config, Event, HostSpan, Planted, Step
from .operators import PID, Operators
from .truth import finish

ENGINE = "autograd::engine::evaluate_function: "
WORKS = [work for work in names.LAYERS if work.backward]
SOURCES = ("capture", "module", "range", "fsdp", "compiled")


@dataclass(frozen=True)
class Place:
    """Where an activity belongs."""

    layer: str | None
    phase: str
    recomputed: bool = False


@dataclass(frozen=True)
class Layered:
    """The trace, and the place of each activity by its index."""

    planted: Planted
    places: list[Place]


@dataclass(frozen=True)
class Shape:
    """What varies between traces."""

    source: str = "capture"
    steps: int = 2
    same_thread: bool = False  # backward runs on the forward's thread, as on a CPU
    engine_spans: bool = True  # False: as profiles of 2021, with bare nodes and bare operators between them
    checkpoint: str = ""  # "reentrant" or "unpack": some modules run their forward again in the backward pass
    reduction: bool = False  # buckets of gradients are reduced inside the node of the last parameter
    second_thread: bool = (
        False  # half of the model runs forward on another thread, whose numbers are the same
    )
    flows: bool = True
    numbers: bool = True  # False: no sequence numbers were recorded


@dataclass
class Module:
    """A module of the model; `name` is its part of the path."""

    name: str
    cls: str
    children: list[Module] = field(default_factory=list)
    checkpointed: bool = False


@dataclass
class Entry:
    """One forward operation that has a backward node."""

    number: int  # the profiler's number of the forward thread
    sequence: int | None
    layer: str | None
    work: names.Work
    module: tuple[Module, str] | None = None  # a checkpointed module and its parent's path
    unpack: tuple[Module, str] | None = None


class LayeredRun(Operators):
    """One process, one device."""

    def __init__(self, rng: random.Random, shape: Shape, config: Config) -> None:
        super().__init__(rng, config)
        self.shape = shape
        self.places: dict[int, Place] = {}
        self.helper = Thread(PID, PID + 3, config.origin_ns + 1_000_000)
        self.numbers: dict[tuple[int, int], int] = {}
        self.tape: list[Entry] = []
        self.count = 0
        self.model = self._module("net", 0)
        if shape.source == "capture":
            self.model.name = "<root>"
        self.flow_pairs: list[tuple[HostSpan, HostSpan]] = []
        self.latest: dict[tuple[int, int], HostSpan] = {}

    # -- the model ---------------------------------------------------------------------------------

    def _module(self, name: str, depth: int) -> Module:
        cls = self.rng.choice(("Block", "Linear", "Conv2d"))
        made = Module(
            name, cls, checkpointed=bool(depth and self.shape.checkpoint and self.rng.random() < 0.4)
        )
        self.count += 1
        if self.shape.source == "module":
            made.name = f"{cls}_{self.count}"
        elif self.shape.source == "compiled":
            made.name = f"Torch-Compiled Region: {self.count}/0"
        if depth < 3 and not (depth and self.rng.random() < 0.3):
            used = [f"part{depth}_{i}" if self.shape.source != "capture" else str(i) for i in range(2)]
            made.children = [self._module(each, depth + 1) for each in used]
        return made

    def _path(self, above: str, module: Module) -> str:
        if self.shape.source == "capture":
            return module.name if above in ("", "<root>") else f"{above}.{module.name}"
        return (above + {"module": "."}.get(self.shape.source, "/") if above else "") + module.name

    @contextmanager
    def _called(self, thread: Thread, module: Module, path: str) -> Iterator[None]:
        m, source = self.m, self.shape.source
        with ExitStack() as stack:
            if source == "capture":
                args = {"layer": path, "module": module.cls, "layer_id": 1}
                name = f"tracekit.layer/{path}"
                stack.enter_context(m.span(thread, "annotation", name, cat="user_annotation", args=args))
            elif source == "module":
                name = f"nn.Module: {module.name}"
                stack.enter_context(m.span(thread, "module", name, cat="python_function"))
            elif source == "range":
                stack.enter_context(m.span(thread, "annotation", module.name, cat="user_annotation"))
            elif source == "compiled":
                stack.enter_context(m.span(thread, "op", module.name))
            else:
                with m.span(
                    thread, "annotation", f"FSDP::pre_forward ({module.name})", cat="user_annotation"
                ):
                    thread.advance(m.ns(500, 2_000))
            thread.advance(m.ns(300, 2_000))
            yield
            thread.advance(m.ns(300, 2_000))
            if source == "fsdp":
                with m.span(
                    thread, "annotation", f"FSDP::post_forward ({module.name})", cat="user_annotation"
                ):
                    thread.advance(m.ns(500, 2_000))

    @contextmanager
    def _placing(self, layer: str | None, phase: str, *, recomputed: bool = False) -> Iterator[None]:
        first = len(self.m.activities)
        yield
        for activity in self.m.activities[first:]:
            known = Place(layer, phase, recomputed) if activity.launch is not None else Place(None, "other")
            self.places.setdefault(activity.index, known)

    def _phase(self, name: str) -> Any:
        if self.shape.source != "capture":
            return nullcontext()
        return self.m.span(self.main, "annotation", f"tracekit.phase/{name}", cat="user_annotation")

    # -- forward -----------------------------------------------------------------------------------

    def _number(self, thread: Thread) -> int:
        return {self.main.key: 1, self.autograd.key: 2, self.helper.key: 3}[thread.key]

    def _next(self, thread: Thread) -> int:
        return self.numbers.setdefault(thread.key, 40)

    def _forward(
        self, thread: Thread, module: Module, above: str, *, grad: bool, phase: str, again: bool
    ) -> None:
        path = self._path(above, module)
        if module.checkpointed and grad and not again:
            if self.shape.checkpoint == "reentrant":
                self._checkpointed(thread, module, above, phase)
                return
            first = len(self.tape)
            self._called_forward(thread, module, path, grad=grad, phase=phase, again=again)
            if len(self.tape) > first:
                self.tape[-1].unpack = (module, above)
            return
        self._called_forward(thread, module, path, grad=grad, phase=phase, again=again)

    def _called_forward(
        self, thread: Thread, module: Module, path: str, *, grad: bool, phase: str, again: bool
    ) -> None:
        with self._called(thread, module, path):
            self._operation(thread, path, grad=grad, phase=phase, again=again)
            for child in module.children:
                target = thread
                if (
                    self.shape.second_thread
                    and path == self._path("", self.model)
                    and child is module.children[-1]
                ):
                    target = self.helper
                    target.wait_until(thread.clock)
                    # On a thread of its own the child is a root, unless its name holds the whole path.
                    self._forward(
                        target,
                        child,
                        "" if self.shape.source != "capture" else path,
                        grad=grad,
                        phase=phase,
                        again=again,
                    )
                    thread.wait_until(target.clock)
                else:
                    self._forward(target, child, path, grad=grad, phase=phase, again=again)
            if self.rng.random() < 0.5:
                self._operation(thread, path, grad=grad, phase=phase, again=again)
            if self.rng.random() < 0.6 and grad and self.shape.numbers:
                # It makes no node, and peeks at the number of the next one, which may be of another layer.
                with self._op(thread, "aten::detach", sequence=self._next(thread), forward_thread=0):
                    self._dispatch(thread)

    def _checkpointed(self, thread: Thread, module: Module, above: str, phase: str) -> None:
        sequence = self._take(thread)
        with self._op(thread, "CheckpointFunction", **self._fields(sequence, 0)):
            self._remember(thread, sequence)
            self._dispatch(thread)
            self._called_forward(
                thread, module, self._path(above, module), grad=False, phase=phase, again=False
            )
        self.tape.append(
            Entry(self._number(thread), sequence, above or None, WORKS[0], module=(module, above))
        )

    def _take(self, thread: Thread) -> int:
        number = self._next(thread)
        self.numbers[thread.key] = number + 1
        return number

    def _fields(self, sequence: int | None, thread: int) -> dict[str, Any]:
        if sequence is None or not self.shape.numbers:
            return {}
        return {"sequence": sequence, "forward_thread": thread}

    def _remember(self, thread: Thread, sequence: int) -> None:
        number = self._number(thread)
        found = [
            s
            for s in self.m.spans
            if s.sequence == sequence and s.forward_thread == 0 and (s.process, s.thread) == thread.key
        ]
        if found:
            self.latest[number, sequence] = found[-1]

    def _operation(self, thread: Thread, path: str | None, *, grad: bool, phase: str, again: bool) -> None:
        work = self.rng.choice(WORKS)
        sequence = self._take(thread) if grad else None
        with self._placing(path, phase, recomputed=again):
            shown = sequence if self.shape.numbers else None
            self._forward_op(thread, work, self._stream(0), shown)
        if sequence is not None:
            if self.shape.numbers:
                self._remember(thread, sequence)
            self.tape.append(Entry(self._number(thread), sequence, path, work))

    # -- backward ----------------------------------------------------------------------------------

    def _node(self, thread: Thread, entry: Entry) -> None:
        layer = entry.layer if self.shape.numbers else None
        fields = self._fields(entry.sequence, entry.number)
        node = "CheckpointFunctionBackward" if entry.module else entry.work.backward[0]
        outer = self._op(thread, ENGINE + node, **fields) if self.shape.engine_spans else nullcontext()
        with outer, self._op(thread, node, **fields) as span:
            source = self.latest.get((entry.number, entry.sequence or -1))
            if source is not None:
                self.flow_pairs.append((source, span))
            self._dispatch(thread)
            if entry.module:
                self._recompute_and_go(thread, *entry.module)
            else:
                if entry.unpack:
                    self._again(thread, *entry.unpack)
                with self._placing(layer, "backward"):
                    ops = tuple(entry.work.backward[1:])
                    self._nest(
                        thread,
                        ops,
                        lambda: self._launch(thread, entry.work, self._stream(0), entry.work.backward_kernel),
                        None,
                    )
        if not entry.module:
            self._after_node(thread, layer)

    def _after_node(self, thread: Thread, layer: str | None) -> None:
        if not self.shape.engine_spans and self.rng.random() < 0.4 and not self.shape.same_thread:
            with self._placing(layer, "backward"):
                self._nest(thread, ("aten::sum",), lambda: self._add(thread), None)
        if self.rng.random() < 0.6:
            name = "torch::autograd::AccumulateGrad"
            outer = self._op(thread, ENGINE + name) if self.shape.engine_spans else nullcontext()
            with outer, self._op(thread, name):
                self._dispatch(thread)
                with self._placing(layer, "backward"):
                    self._nest(thread, ("aten::add_",), lambda: self._add(thread), None)
                if self.shape.reduction and self.rng.random() < 0.3:
                    with (
                        self._placing("<gradient reduction>", "communication"),
                        self._op(thread, "c10d::allreduce_"),
                    ):
                        self._reduce(thread)

    def _add(self, thread: Thread) -> None:
        self._launch(thread, names.LAYERS[3], self._stream(0))

    def _reduce(self, thread: Thread) -> None:
        m = self.m
        with m.span(thread, "annotation", "nccl:all_reduce", cat="user_annotation"):
            kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            m.launch(thread, "communication", kernel, m.stream(0, 24), call="cudaLaunchKernelExC")

    def _again(self, thread: Thread, module: Module, above: str) -> None:
        """The forward of a module runs again, in the middle of the backward pass."""
        kept, self.tape = self.tape, []
        # On the backward's thread no caller is around it; a module's own number tells where it ran before.
        start = above if self.shape.source in ("capture", "module") else ""
        self._called_forward(
            thread, module, self._path(start, module), grad=True, phase="backward", again=True
        )
        self.redone, self.tape = self.tape, kept

    def _recompute_and_go(self, thread: Thread, module: Module, above: str) -> None:
        self._again(thread, module, above)
        for entry in reversed(self.redone):
            self._node(thread, entry)

    # -- a step ------------------------------------------------------------------------------------

    def step(self) -> None:
        m, main = self.m, self.main
        with self._phase("h2d"), self._placing("<data>", "data"):
            m.launch_all(
                main,
                [("memcpy", "Memcpy HtoD (Pinned -> Device)", self._stream(0), 0.5)],
                call="cudaMemcpyAsync",
                kind="memcpy",
                bytes=1 << 20,
            )
        with self._phase("forward"):
            self._forward(main, self.model, "", grad=True, phase="forward", again=False)
            phase = "forward" if self.shape.source == "capture" else "other"
            with self._placing("<cuda graph>", phase):
                stream = self._stream(0)
                m.launch_all(main, [("gemm", "graph kernel", stream, 0.3)] * 3, call="cudaGraphLaunch")
        with self._phase("loss"):
            name = "<loss>" if self.shape.source == "capture" else None
            # Without a range and without a number nothing tells that these belong to the forward pass.
            phase = "forward" if name or self.shape.numbers else "other"
            for _ in range(2):
                self._operation(main, name, grad=True, phase=phase, again=False)
        self._backward_pass()
        with (
            self._placing("<optimizer>", "optimizer"),
            m.span(main, "annotation", "Optimizer.step#SGD.step", cat="user_annotation"),
        ):
            self._forward_op(main, names.OPTIMIZER, self._stream(0))
        with (
            self._phase("metrics"),
            self._placing("<metrics>" if self.shape.source == "capture" else None, "other"),
            self._op(main, "aten::item"),
        ):
            m.launch_all(
                main,
                [("memcpy", "Memcpy DtoH (Device -> Pageable)", self._stream(0), 0.05)],
                call="cudaMemcpyAsync",
                kind="memcpy",
                bytes=4,
            )

    def _backward_pass(self) -> None:
        main = self.main
        thread = main if self.shape.same_thread else self.autograd
        with self._phase("backward"):
            main.advance(self.m.ns(2_000, 8_000))
            thread.wait_until(main.clock)
            entries, self.tape = self.tape, []
            for entry in reversed(entries):
                self._node(thread, entry)
            main.wait_until(thread.clock + self.m.ns(1_000, 3_000))


def layered(seed: int, shape: Shape) -> Layered:
    """A trace with its truth; the same seed and shape give the same trace."""
    config = Config(steps=shape.steps, devices=1, flows=False, lost_launches=1, python_stacks=False)
    run = LayeredRun(random.Random(seed), shape, config)
    for number in range(shape.steps):
        run.step_number = number
        with run.m.span(run.main, "step", f"ProfilerStep#{number}", cat="user_annotation") as opened:
            run.step()
        run.steps.append(Step(number, opened.index, opened.start_ns, opened.dur_ns))
        run.main.advance(run.m.ns(500, 4_000))
    truth = finish(run.m, (run.main, run.autograd, run.helper), run.steps)
    planted = build_events(
        Planted(
            config=config,
            events=[],
            header=build_header(config, run.m),
            spans=truth.spans,
            activities=truth.activities,
            steps=truth.steps,
            gaps=[],
            incidents=[],
            collectives=[],
            memory=[],
            counters=[],
            main_thread=run.main.key,
            backward_thread=run.autograd.key,
        ),
        [],
    )
    if shape.flows and shape.numbers:
        planted.events.extend(_flows(run.flow_pairs))
    return Layered(planted, [run.places[a.index] for a in truth.activities])


def _flows(pairs: list[tuple[HostSpan, HostSpan]]) -> list[Event]:
    events: list[Event] = []
    for number, (source, target) in enumerate(pairs, start=1):
        for phase, span in (("s", source), ("f", target)):
            event: Event = {
                "ph": phase,
                "id": number,
                "pid": span.process,
                "tid": span.thread,
                "ts": span.start_ns,
                "cat": "fwdbwd",
                "name": "fwdbwd",
            }
            events.append({**event, "bp": "e"} if phase == "f" else event)
    return events
