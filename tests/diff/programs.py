"""Training loops as lists of work, and the traces that a device or processors make of them, with noise on every activity."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.rules.planted import MS, US, Planted
from tracekit.trace import Trace

BLOCKS = 4
MICRO_BATCHES = 4
_DISPATCH = 12 * US
_CALL = 4 * US
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True)
class Work:
    """One operator, which runs one kernel `calls` times a micro-batch (or a step, outside the layers)."""

    layer: str | None
    type: str
    operator: str
    kernel: str
    ns: int
    shapes: str = "[[64, 512], [512, 512]]"
    dtypes: str = '["float", "float"]'
    phase: str = "forward"
    calls: int = 1
    waits: int = 0
    """How long a `cudaStreamSynchronize` that follows takes after the device is done, if it does not follow at all 0."""
    pause: int = 0
    """How long Python takes in the layer before the operator."""


Program = list[Work]


def training_loop() -> Program:
    """A transformer with a head: forward, backward, optimizer, and the copy of the batch."""
    forward = []
    for i in range(BLOCKS):
        at = f"blocks.{i}"
        forward += [
            Work(f"{at}.norm", "LayerNorm", "aten::native_layer_norm", "layer_norm_kernel", 60 * US),
            Work(f"{at}.attn.qkv", "Linear", "aten::addmm", "gemm_128x128", 300 * US),
            Work(f"{at}.attn", "Attention", "aten::_flash_attention", "flash_fwd", 250 * US),
            Work(f"{at}.attn.out", "Linear", "aten::addmm", "gemm_128x64", 120 * US),
            Work(f"{at}.mlp.up", "Linear", "aten::addmm", "gemm_128x128", 350 * US),
            Work(f"{at}.mlp.act", "GELU", "aten::gelu", "gelu_kernel", 90 * US),
            Work(f"{at}.mlp.down", "Linear", "aten::addmm", "gemm_128x128", 340 * US),
        ]
    forward.append(Work("head", "Linear", "aten::addmm", "gemm_256x128", 500 * US))
    backward = []
    for work in reversed(forward):
        operator = {"aten::addmm": "aten::mm"}.get(work.operator, f"{work.operator}_backward")
        one = replace(work, operator=operator, kernel=f"{work.kernel}_bwd", phase="backward")
        backward += [one, replace(one, kernel=f"{one.kernel}_2")]
    step = [Work(None, "", "aten::_foreach_add_", f"adam_{i}", 400 * US, phase="optimizer") for i in range(3)]
    copy = Work(None, "", "aten::copy_", "Memcpy HtoD (Pinned -> Device)", 300 * US, phase="data")
    return [copy, *forward, *backward, *step]


class _Machine:
    """One host thread and one stream."""

    def __init__(self, seed: int, noise: float, *, on_cpu: bool, loads: int = 0, waits: bool = True) -> None:
        self.rng, self.noise, self.on_cpu = random.Random(seed), noise, on_cpu
        self.loads, self.waits = loads, waits
        self.planted, self.clock, self.free = Planted(), 10 * MS, 0

    def taken(self, ns: int) -> int:
        return max(1, round(ns * self.rng.gauss(1, self.noise)))

    def work(self, work: Work) -> None:
        """The layer's range around the operator around its launches."""
        begin = self.clock
        self.clock += US + work.pause
        for _ in range(work.calls):
            self.operator(work)
            if work.waits:
                self.wait(work.waits)
        self.clock += US
        if work.layer is not None:
            name, columns = f"tracekit.layer/{work.layer}", {"layer": work.layer, "module_type": work.type}
            self.planted.span("annotation", name, begin, self.clock, **columns)

    def operator(self, work: Work) -> None:
        begin, texts = self.clock, {"shapes": work.shapes, "dtypes": work.dtypes}
        if self.on_cpu:
            self.clock += self.taken(work.ns)
            self.planted.span("op", work.operator, begin, self.clock, **texts)
            self.clock += 2 * US
            return
        launch = begin + _DISPATCH
        start = max(self.free + US, launch + 2 * _CALL)
        length = self.taken(work.ns)
        copy = work.kernel.startswith("Memcpy")
        self.planted.activity(
            work.kernel,
            start,
            length,
            launch=launch,
            call="cudaMemcpyAsync" if copy else "cudaLaunchKernel",
            call_ns=_CALL,
            kind="memcpy" if copy else "kernel",
        )
        self.free, self.clock = start + length, launch + _CALL + US
        self.planted.span("op", work.operator, begin, self.clock, **texts)

    def wait(self, after: int) -> None:
        """The host waits for the device, and comes back some time after."""
        begin = self.clock
        self.clock = max(self.clock + _CALL, self.free) + after
        self.planted.span("op", "aten::item", begin, self.clock + US)
        self.planted.call("cudaStreamSynchronize", begin + US, self.clock - begin - US)
        self.clock += 2 * US

    def phase(self, name: str, program: Program, repeats: int) -> None:
        begin = self.clock
        self.clock += US
        for _ in range(repeats):
            for work in program:
                self.work(work)
        self.clock += US
        self.planted.span("annotation", f"tracekit.phase/{name}", begin, self.clock)

    def step(self, number: int, program: Program) -> None:
        begin = self.clock
        self.clock += 5 * US
        if self.loads:
            self.clock += self.taken(self.loads)
            self.planted.span("annotation", LOADER, begin + 5 * US, self.clock)
        parts = {name: [work for work in program if work.phase == name] for name in ("data", "optimizer")}
        self.phase("data", parts["data"], 1)
        for _ in range(MICRO_BATCHES):
            for name in ("forward", "backward"):
                self.phase(name, [work for work in program if work.phase == name], 1)
        self.phase("optimizer", parts["optimizer"], 1)
        if self.waits and not self.on_cpu:
            self.wait(3 * US)
        self.planted.step(number, begin, self.clock)
        self.clock += 2 * US


def trace_of(
    program: Program,
    seed: int,
    *,
    on_cpu: bool,
    steps: int = 20,
    noise: float = 0.03,
    loads: int = 0,
    waits: bool = True,
) -> Trace:
    """What a profiler records of some steps, each of which loads data for some time first, and waits for the device at its end."""
    machine = _Machine(seed, noise, on_cpu=on_cpu, loads=loads, waits=waits)
    for number in range(steps):
        machine.step(number, program)
    return machine.planted.trace(devices=()) if on_cpu else machine.planted.trace()


def times_per_step(work: Work) -> int:
    """How often an operator runs."""
    return work.calls * (MICRO_BATCHES if work.phase in ("forward", "backward") else 1)


def mapped(program: Program, wanted: Callable[[Work], bool], change: Callable[[Work], Work]) -> Program:
    """The program with some of its work changed."""
    return [change(work) if wanted(work) else work for work in program]


def total(program: Program) -> int:
    """ns of work a step."""
    return sum(work.ns * times_per_step(work) for work in program)
