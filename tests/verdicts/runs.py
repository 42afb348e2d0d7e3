"""A host and a device that run steps of a network, with one fault or none: what is planted is known to the nanosecond."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from planted import EVERYTHING, MS, US, Planted

from tracekit.trace import Trace

__all__ = [
    "ADD",
    "FLASH",
    "GEMM",
    "MS",
    "NCCL",
    "US",
    "Accumulating",
    "Compiled",
    "Distributed",
    "Inference",
    "Network",
    "Run",
    "Serving",
    "Training",
    "Varying",
    "Workers",
    "run_of",
    "step_ns",
]

LATENCY = 4 * US
GEMM = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int)"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(pytorch_flash::Flash_fwd_params)"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>(int)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
GRID = "(128, 1, 1)"


@dataclass
class Run(Planted):
    """`clock` is the time on the host; `free` is when each stream of the device is free. `planted` sums the fault, in ns.

    With `noise`, the pace of each step differs by 3 %, and each duration by a few percent more.
    """

    noise: random.Random | None = None
    clock: int = 0
    free: dict[int, int] = field(default_factory=dict)
    planted: int = 0
    thread: int = 1
    pace: float = 1.0

    def begin_step(self) -> None:
        """A new pace."""
        self.pace = 1.0 if self.noise is None else self.noise.gauss(1, 0.03)

    def about(self, ns: int) -> int:
        """A duration, with noise if there is any."""
        return ns if self.noise is None else round(ns * self.pace * self.noise.uniform(0.95, 1.05))

    @contextmanager
    def within(self, kind: str, name: str, **columns: Any) -> Iterator[None]:
        """A span around what the host does meanwhile."""
        start = self.clock
        yield
        self.span(kind, name, start, self.clock, self.thread, **columns)

    def host_work(self, ns: int, *spans: tuple[str, str]) -> int:
        """The host is busy in these spans, each in the one before; returns for how long, in ns."""
        ns = self.about(ns)
        for kind, name in spans:
            self.span(kind, name, self.clock, self.clock + ns, self.thread)
        self.clock += ns
        return ns

    def launch(
        self,
        kernel: str,
        ns: int,
        *,
        stream: int = 7,
        call: str = "cudaLaunchKernel",
        after: int = 0,
        **columns: Any,
    ) -> int:
        """Starts a kernel, when the launch has arrived, the stream is free and `after` has passed; returns its duration."""
        ns = self.about(ns)
        start = max(self.clock + LATENCY, self.free.get(stream, 0), after)
        self.activity(
            kernel, start, ns, launch=self.clock, stream=stream, call=call, **{"grid": GRID, **columns}
        )
        self.host[-1]["thread_id"] = self.thread
        self.free[stream] = start + ns
        self.clock += 5 * US
        return ns

    def op(self, name: str, kernel: str, ns: int, **columns: Any) -> int:
        """An operator that starts one kernel; it takes the host 10 µs. Returns the kernel's duration."""
        with self.within("op", name):
            self.clock += 3 * US
            took = self.launch(kernel, ns, **columns)
            self.clock += 2 * US
        return took

    def transfer(self, direction: str, ns: int, *, stream: int = 7, blocks: bool = False) -> int:
        """A copy at 10 GB/s, after what its stream does; a call that blocks ends with it. Returns its duration."""
        ns = self.about(ns)
        start = max(self.clock + LATENCY, self.free.get(stream, 0))
        call_ns = start + ns - self.clock if blocks else 5 * US
        self.copy(direction, start, ns, 10 * ns, launch=self.clock, call_ns=call_ns, stream=stream)
        self.free[stream] = start + ns
        self.clock = self.free[stream] if blocks else self.clock + 8 * US
        return ns

    def wait(self, call: str = "cudaStreamSynchronize") -> None:
        """The host waits until the device has nothing left to do."""
        end = max([self.clock + 2 * US, *self.free.values()])
        self.call(call, self.clock, end - self.clock, self.thread)
        self.clock = end

    def recorded(self, *, stacks: bool = True) -> Trace:
        """The trace, with or without Python stacks."""
        if stacks:
            return self.trace()
        self.host = [row for row in self.host if row["kind"] != "python"]
        return self.trace(captured=EVERYTHING - {"stacks", "modules"})


@dataclass
class Network:
    """What a step consists of. Each part can be replaced by one that has a fault."""

    layers: int = 8
    steps: int = 6
    gemm: str = GEMM
    loader: str = LOADER

    def before(self, run: Run, number: int) -> None:
        """What the loop does at the beginning of a step."""

    def load(self, run: Run, number: int) -> None:
        run.host_work(60 * US, ("annotation", self.loader))
        self.copy(run, number)

    def copy(self, run: Run, number: int) -> None:
        run.transfer("HtoD (Pinned -> Device)", 80 * US)

    def attention(self, run: Run) -> None:
        with run.within("op", "aten::scaled_dot_product_attention"):
            run.op("aten::_flash_attention_forward", FLASH, 150 * US)

    def layer(self, run: Run) -> None:
        run.op("aten::native_layer_norm", NORM, 30 * US)
        run.op("aten::mm", self.gemm, 400 * US)
        self.attention(run)
        run.op("aten::mm", self.gemm, 400 * US)

    def forward(self, run: Run) -> None:
        for _ in range(self.layers):
            self.layer(run)

    def backward(self, run: Run) -> None:
        for _ in range(self.layers):
            for _ in range(2):
                with run.within("op", "MmBackward0"):
                    run.op("aten::mm", self.gemm, 800 * US)

    def optimizer(self, run: Run) -> None:
        with run.within("annotation", "Optimizer.step#AdamW.step"):
            run.op("aten::_fused_adamw_", ADAM, 200 * US)

    def after(self, run: Run, number: int) -> None:
        """What the loop does at the end of a step."""

    def work(self, run: Run, number: int) -> None:
        """What a step computes."""
        raise NotImplementedError

    def step(self, run: Run, number: int) -> None:
        self.before(run, number)
        self.work(run, number)
        self.after(run, number)


@dataclass
class Training(Network):
    """Forward, backward, optimizer."""

    def work(self, run: Run, number: int) -> None:
        self.load(run, number)
        self.forward(run)
        self.backward(run)
        self.optimizer(run)


@dataclass
class Inference(Network):
    """Forward passes."""

    def work(self, run: Run, number: int) -> None:
        self.load(run, number)
        self.forward(run)


@dataclass
class Serving(Network):
    """Decoding by replays of a graph."""

    def work(self, run: Run, number: int) -> None:
        run.host_work(40 * US, ("python", "vllm/v1/engine/core.py(300): step"))
        self.replay(run, 4 * self.layers)

    def replay(self, run: Run, kernels: int) -> None:
        """One launch of a graph with so many kernels beside the first."""
        correlation = len(run.device) + 1
        run.launch(self.gemm, 300 * US, call="cudaGraphLaunch")
        for index in range(kernels):
            ns = run.about(300 * US)
            run.activity(FLASH if index % 4 == 3 else self.gemm, run.free[7] + US, ns, grid=GRID)
            run.device[-1]["correlation"] = correlation
            run.free[7] += US + ns


# -- healthy runs of further kinds --------------------------------------------------------------------


@dataclass
class Compiled(Inference):
    """A compiled model that replays CUDA graphs (mode="reduce-overhead")."""

    def forward(self, run: Run) -> None:
        run.host_work(20 * US, ("op", "TorchDynamo Cache Lookup"))
        with run.within("op", "Torch-Compiled Region: 0/0"):
            run.clock += 15 * US
            with run.within("op", "## Call CompiledFxGraph fabc ##"):
                Serving.replay(self, run, 4 * self.layers)  # type: ignore[arg-type]


@dataclass
class Distributed(Training):
    """DistributedDataParallel: the gradients of a layer are reduced while the next one is computed."""

    def backward(self, run: Run) -> None:
        for _ in range(self.layers):
            for _ in range(2):
                with run.within("op", "MmBackward0"):
                    run.op("aten::mm", self.gemm, 800 * US)
            with run.within("annotation", "nccl:all_reduce"):
                run.launch(NCCL, 500 * US, stream=20, after=run.free[7])

    def optimizer(self, run: Run) -> None:
        run.free[7] = max(run.free[7], run.free[20])
        Training.optimizer(self, run)

    def forward(self, run: Run) -> None:
        with run.within("annotation", "DistributedDataParallel.forward"):
            super().forward(run)


@dataclass
class Workers(Training):
    """A loader with several workers, and its thread that pins memory."""

    def load(self, run: Run, number: int) -> None:
        for name in ("select", "poll", "recv_bytes"):
            thread = 2
            at = run.clock
            run.span("python", f"<built-in method {name}>", at, at + 15 * US, thread)
        run.span("op", "aten::_pin_memory", run.clock + 20 * US, run.clock + 200 * US, 2)
        for worker in range(4):
            run.span("python", "dataset.py(20): __getitem__", run.clock, run.clock + 5 * MS, 100 + worker)
            run.host[-1]["process_id"] = 100 + worker
        super().load(run, number)


@dataclass
class Accumulating(Training):
    """Gradients of four steps are added; the fourth reduces and applies them."""

    steps: int = 12

    def optimizer(self, run: Run) -> None:
        """Every fourth step."""

    def after(self, run: Run, number: int) -> None:
        if number % 4 != 3:
            return
        with run.within("annotation", "Optimizer.step#AdamW.step"):
            for _ in range(16):
                run.op("aten::_fused_adamw_", ADAM, 250 * US)


@dataclass
class Varying(Inference):
    """Sequences of different lengths: the kernels have other grids, and take longer for longer ones."""

    steps: int = 12
    length: int = 1

    def work(self, run: Run, number: int) -> None:
        self.length = 128 * (6 + (number * 5) % 9)
        super().work(run, number)

    def layer(self, run: Run) -> None:
        for name, kernel, ns in (
            ("aten::native_layer_norm", NORM, 40),
            ("aten::mm", self.gemm, 400),
            ("aten::_flash_attention_forward", FLASH, 160),
            ("aten::mm", self.gemm, 400),
        ):
            run.op(name, kernel, ns * US * self.length // 1280, grid=f"({self.length // 8}, 1, 1)")


def run_of(network: Any, seed: int | None = None) -> Run:
    """The steps of a network, and the wait for the device after them."""
    run = Run(noise=None if seed is None else random.Random(seed))
    for number in range(network.steps):
        run.begin_step()
        with run.within("step", f"ProfilerStep#{number}"):
            network.step(run, number)
            if number == network.steps - 1:
                run.wait("cudaDeviceSynchronize")
    return run


@cache
def step_ns(base: type) -> int:
    """How long a step of a healthy network takes."""
    run = run_of(base())
    return run.clock // base().steps
