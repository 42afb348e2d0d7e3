"""A small model that runs for some steps, recorded at the levels ML and MLG and with counters; the truth beside it.

Everything is drawn at random: the tree of layers, operators, kernels on two streams that overlap, allocations,
backward nodes on a thread of their own, an optimizer, work in no layer. Nothing here uses an analysis.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

from manifests import manifest
from planted import Planted

from tracekit.manifest import Manifest, Run, Settings
from tracekit.trace import DeviceInfo, Trace

H100 = DeviceInfo(0, "NVIDIA H100 80GB HBM3", (9, 0), 132, 85_000_000_000, 2048, 32)
ENGINE = 2
TYPES = ("Conv2d", "Linear", "ReLU", "Norm")
KERNELS = ("gemm_kernel", "elementwise_kernel", "copy_kernel", "reduce_kernel")


@dataclass(frozen=True)
class Layer:
    path: str
    type: str
    inner: tuple[Layer, ...]
    operators: int
    repeats: int


@dataclass(frozen=True)
class Call:
    """A call of a layer; `inside` is the time of the calls directly in it."""

    layer: str
    type: str
    step: int
    start: int
    end: int
    inside: int
    leaf: bool


@dataclass
class Kernel:
    name: str
    step: int
    layer: str
    type: str | None
    phase: str
    operator: str
    launched: int
    start: int
    duration: int
    forward: bool  # launched in a call of its layer
    kind: str = "kernel"
    counted: int | None = None  # the counted operator around it, by number
    estimate: float | None = None
    flops: int | None = None
    flops_source: str | None = None
    reads: int | None = None
    writes: int | None = None
    occupancy: float | None = None
    occupancy_source: str | None = None


@dataclass
class Recorded:
    """A trace being planted, with its truth."""

    rng: random.Random
    made: Planted = field(default_factory=Planted)
    calls: list[Call] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    allocations: list[tuple[str, int, int, bool]] = field(default_factory=list)  # layer, step, bytes, forward
    counted: list[int] = field(default_factory=list)  # FLOPs of counted operators
    clock: int = 0
    engine: int = 0
    device: int = 0
    sequence: int = 0
    nodes: list[tuple[int, str, str]] = field(default_factory=list)  # sequence, layer, type

    def wait(self, least: int = 1, most: int = 50) -> int:
        self.clock += self.rng.randint(least, most)
        return self.clock


@dataclass
class Model:
    """One run: the recordings at ML (`layers`), at MLG (`kernels`), and what the counters say."""

    layers: Recorded
    kernels: Recorded
    counters: Trace | None
    counters_of: str
    manifest: Manifest

    def layer_trace(self) -> Trace:
        return self.layers.made.trace(devices=())

    def kernel_trace(self) -> Trace:
        return self.kernels.made.trace(devices=(H100,))


def model(seed: int) -> Model:
    rng = random.Random(seed)
    root = _layer(rng, "", 0)
    steps = rng.randint(1, 7)
    layers, kernels = Recorded(rng), Recorded(rng)
    for number in range(3, 3 + steps):
        _step(layers, root, number, works=False)
        _step(kernels, root, number, works=True)
    _flops(kernels)
    kind = rng.choice(("none", "all", "step"))
    counters = _counters(rng, kernels, kind)
    return Model(layers, kernels, counters, kind, _manifest(rng, steps))


def _layer(rng: random.Random, path: str, depth: int) -> Layer:
    width = rng.randint(1, 3) if depth == 0 else rng.choice((0, 0, 1, 2)) if depth < 3 else 0
    inner = tuple(_layer(rng, f"{path}.{n}" if path else f"m{n}", depth + 1) for n in range(width))
    type_ = "Sequential" if inner else rng.choice(TYPES)
    return Layer(path or "<root>", type_, inner, rng.randint(0, 2), 2 if depth and rng.random() < 0.15 else 1)


def _step(it: Recorded, root: Layer, number: int, *, works: bool) -> None:
    it.clock = max(it.clock, it.engine)
    start = it.wait()
    it.nodes.clear()
    if works and it.rng.random() < 0.5:
        _operator(it, number, "<unattributed>", None, "other", forward=False, sequence=False)
    _called(it, root, number, works=works)
    if works:
        _backward(it, number)
        it.clock = max(it.clock, it.engine)
        begin = it.wait()
        _operator(it, number, "<optimizer>", None, "optimizer", forward=False, sequence=False)
        it.made.span("annotation", "Optimizer.step#SGD.step", begin, it.wait())
    end = it.wait()
    it.made.step(number, start, end)
    it.wait()


def _called(it: Recorded, layer: Layer, step: int, *, works: bool) -> int:
    """Run a layer; what its calls take together."""
    whole = 0
    for _ in range(layer.repeats):
        start = it.wait()
        inside = 0
        for _ in range(layer.operators if works else 0):
            _operator(it, step, layer.path, layer.type, "forward", forward=True, sequence=True)
        for inner in layer.inner:
            inside += _called(it, inner, step, works=works)
        end = it.wait()
        name = f"tracekit.layer/{layer.path}"
        it.made.span("module", name, start, end, layer=layer.path, module_type=layer.type)
        it.calls.append(Call(layer.path, layer.type, step, start, end, inside, not layer.inner))
        whole += end - start
    return whole


def _operator(
    it: Recorded, step: int, layer: str, type_: str | None, phase: str, *, forward: bool, sequence: bool
) -> None:
    """An operator of the main thread: maybe one that is counted, maybe one around it, and its kernels."""
    outer = it.wait()
    more = {}
    if sequence:
        it.sequence += 1
        more = {"sequence": it.sequence}
        it.nodes.append((it.sequence, layer, type_ or ""))
    counted, name, shapes = _inputs(it)
    start = it.wait()
    if it.rng.random() < 0.6:
        size = it.rng.randrange(1, 9) * 512
        it.made.memory.append(
            {"start": it.wait(), "process_id": 1, "thread_id": 1, "device_id": 0, "address": 1, "bytes": size}
        )
        it.allocations.append((layer, step, size, forward))
    for _ in range(it.rng.randint(1, 3)):
        _kernel(it, it.wait(), 1, step, layer, type_, phase, name, forward=forward, counted=counted)
        it.wait(10, 20)
    end = it.wait()
    it.made.span("op", name, start, end, **shapes, **more)
    it.made.span("op", "aten::outer", outer, it.wait(), **more)


def _inputs(it: Recorded) -> tuple[int | None, str, dict[str, str]]:
    """The number of a counted operator, its name and its recorded inputs; None for one that is not counted."""
    if it.rng.random() < 0.5:
        return None, "mylib::relu", {"shapes": "[[4, 4]]", "dtypes": '["float"]', "concrete_inputs": '[""]'}
    m, k, n = (it.rng.randint(1, 9) for _ in range(3))
    it.counted.append(2 * m * k * n)
    shapes = {"shapes": json.dumps([[m, k], [k, n]]), "dtypes": '["c10::BFloat16", "c10::BFloat16"]'}
    return len(it.counted) - 1, "aten::mm", {**shapes, "concrete_inputs": '["", ""]'}


def _kernel(
    it: Recorded,
    at: int,
    thread: int,
    step: int,
    layer: str,
    type_: str | None,
    phase: str,
    operator: str,
    *,
    forward: bool,
    counted: int | None,
) -> None:
    start = at + it.rng.randint(5, 400)
    length = it.rng.randint(1, 300)
    name = it.rng.choice(KERNELS)
    estimate = it.rng.choice((None, it.rng.randint(1, 100) / 100))
    it.made.activity(
        name,
        start,
        length,
        launch=at,
        call_ns=5,
        stream=it.rng.choice((7, 20)),
        occupancy=estimate,
        grid="[1, 1, 1]",
    )
    if thread != 1:
        it.made.host[-1]["thread_id"] = thread
    it.kernels.append(
        Kernel(
            name,
            step,
            layer,
            type_,
            phase,
            operator,
            at,
            start,
            length,
            forward,
            counted=counted,
            estimate=estimate,
        )
    )


def _backward(it: Recorded, step: int) -> None:
    """The nodes run on a thread of their own, last operator first."""
    begin = it.wait()
    it.engine = it.clock
    for sequence, layer, type_ in reversed(it.nodes):
        if it.rng.random() < 0.3:
            continue  # an operator without a gradient
        it.engine += it.rng.randint(1, 50)
        start = it.engine
        counted, name, shapes = _inputs(it)
        it.engine += it.rng.randint(1, 50)
        inner = it.engine
        if it.rng.random() < 0.4:
            it.engine += 3
            size = it.rng.randrange(1, 9) * 512
            event = {"start": it.engine, "process_id": 1, "thread_id": ENGINE, "device_id": 0, "address": 1}
            it.made.memory.append({**event, "bytes": size})
            it.allocations.append((layer, step, size, False))
        it.engine += 2
        _kernel(it, it.engine, ENGINE, step, layer, type_, "backward", name, forward=False, counted=counted)
        it.engine += it.rng.randint(10, 50)
        it.made.span("op", name, inner, it.engine, ENGINE, **shapes)
        it.engine += it.rng.randint(1, 50)
        node = "autograd::engine::evaluate_function: ThingBackward0"
        it.made.span("op", node, start, it.engine, ENGINE, sequence=sequence, forward_thread=1)
    it.clock = max(it.clock, it.engine)
    it.made.span("annotation", "tracekit.phase/backward", begin, it.wait())


def _flops(it: Recorded) -> None:
    """The FLOPs of a counted operator stand at its longest kernel, of equals the first; 0 at the others."""
    for number, flops in enumerate(it.counted):
        own = sorted((k for k in it.kernels if k.counted == number), key=lambda k: k.launched)
        longest = max(own, key=lambda k: k.duration)
        for kernel in own:
            kernel.flops, kernel.flops_source = (flops if kernel is longest else 0), "analytic"
    for kernel in it.kernels:
        kernel.occupancy = kernel.estimate
        kernel.occupancy_source = None if kernel.estimate is None else "estimate"


def _counters(rng: random.Random, it: Recorded, kind: str) -> Trace | None:
    """Counters over all kernels, or over those of the first step, with times that mean nothing."""
    if kind == "none":
        return None
    order = sorted(it.kernels, key=lambda k: (k.launched, k.start))
    first = min(k.step for k in order)
    measured = order if kind == "all" else [k for k in order if k.step == first]
    made = Planted()
    values = []
    for place, kernel in enumerate(measured):
        reads, writes, busy = rng.randrange(0, 4000), rng.randrange(0, 4000), rng.randint(0, 1000) / 10
        adds = [rng.randrange(100) for _ in range(9)]
        values.append(
            (
                kernel.name,
                reads,
                writes,
                busy / 100,
                sum(a * w for a, w in zip(adds, (1, 1, 2) * 3, strict=True)),
            )
        )
        series = {
            "dram__bytes_read.sum": reads,
            "dram__bytes_write.sum": writes,
            "sm__warps_active.avg.pct_of_peak_sustained_active": busy,
            **{
                f"smsp__sass_thread_inst_executed_op_{p}{w}_pred_on.sum": adds[3 * i + j]
                for i, p in enumerate("dfh")
                for j, w in enumerate(("add", "mul", "fma"))
            },
        }
        for name, value in series.items():
            row = {"name": kernel.name, "series": name, "start": 1000 * place, "duration": 1000}
            made.counters.append({**row, "value": float(value)})
    for number, kernel in enumerate(order):
        value = _measured(order, number, values, whole=kind == "all")
        if value is not None:
            _, kernel.reads, kernel.writes, kernel.occupancy, kernel.flops = value
            kernel.flops_source = kernel.occupancy_source = "counter"
    made.span("op", "aten::empty", 0, 5)
    return made.trace()


def _measured(order: list[Kernel], number: int, values: list[tuple], *, whole: bool) -> tuple | None:
    if whole:
        return values[number]
    name = order[number].name
    own = [value for value in values if value[0] == name]
    if len(own) == sum(k.name == name for k in order):
        return own[sum(k.name == name for k in order[:number])]
    counts = {
        s: sum(k.name == name and k.step == s for k in order)
        for s in {k.step for k in order if k.name == name}
    }
    if set(counts.values()) != {len(own)}:
        return None
    return own[sum(k.name == name and k.step == order[number].step for k in order[:number])]


def _manifest(rng: random.Random, steps: int) -> Manifest:
    runs = [
        Run(level=level, step_times_ns=[rng.randint(1_000, 9_000) for _ in range(steps)])
        for level in ("M", "ML", "MLG", "metrics")
    ]
    return manifest(
        settings=Settings(batch=4, precision="fp32"),
        parameters=11,
        samples_per_step=4,
        flops_per_step=123,
        device="cuda",
        device_name=H100.name,
        layer_ranges="structured",
        runs=runs,
    )
