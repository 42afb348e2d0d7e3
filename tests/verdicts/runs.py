"""A host and a device that run steps of a network, with one fault or none: what is planted is known to the nanosecond."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from planted import MS, US, Planted

__all__ = ["ADD", "GEMM", "MS", "US", "Inference", "Network", "Run", "Serving", "Training", "run_of"]

LATENCY = 4 * US
GEMM = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16_kernel"
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int)"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(pytorch_flash::Flash_fwd_params)"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass
class Run(Planted):
    """`clock` is the time on the host; `free` is when each stream of the device is free. `planted` sums the fault, in ns."""

    clock: int = 0
    free: dict[int, int] = field(default_factory=dict)
    planted: int = 0
    thread: int = 1

    @contextmanager
    def within(self, kind: str, name: str, **columns: Any) -> Iterator[None]:
        """A span around what the host does meanwhile."""
        start = self.clock
        yield
        self.span(kind, name, start, self.clock, self.thread, **columns)

    def host_work(self, ns: int, *spans: tuple[str, str]) -> None:
        """The host is busy in these spans, each in the one before."""
        for kind, name in spans:
            self.span(kind, name, self.clock, self.clock + ns, self.thread)
        self.clock += ns

    def launch(
        self, kernel: str, ns: int, *, stream: int = 7, call: str = "cudaLaunchKernel", **columns: Any
    ) -> None:
        """Starts a kernel, when the launch has arrived and the stream is free."""
        start = max(self.clock + LATENCY, self.free.get(stream, 0))
        self.activity(kernel, start, ns, launch=self.clock, stream=stream, call=call, **columns)
        self.host[-1]["thread_id"] = self.thread
        self.free[stream] = start + ns
        self.clock += 5 * US

    def op(self, name: str, kernel: str, ns: int, **columns: Any) -> None:
        """An operator that starts one kernel; it takes the host 10 µs."""
        with self.within("op", name):
            self.clock += 3 * US
            self.launch(kernel, ns, **columns)
            self.clock += 2 * US

    def wait(self, call: str = "cudaStreamSynchronize") -> None:
        """The host waits until the device has nothing left to do."""
        end = max([self.clock + 2 * US, *self.free.values()])
        self.call(call, self.clock, end - self.clock, self.thread)
        self.clock = end


@dataclass
class Network:
    """What a step consists of. Each part can be replaced by one that has a fault."""

    layers: int = 8
    steps: int = 6
    gemm: str = GEMM
    loader: str = LOADER

    def load(self, run: Run, number: int) -> None:
        run.host_work(60 * US, ("annotation", self.loader))
        self.copy(run, number)

    def copy(self, run: Run, number: int) -> None:
        run.copy(
            "HtoD (Pinned -> Device)",
            max(run.clock + LATENCY, run.free.get(7, 0)),
            80 * US,
            2 << 20,
            launch=run.clock,
        )
        run.free[7] = max(run.clock + LATENCY, run.free.get(7, 0)) + 80 * US
        run.clock += 8 * US

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
            with run.within("op", "MmBackward0"):
                run.op("aten::mm", self.gemm, 800 * US)
            with run.within("op", "MmBackward0"):
                run.op("aten::mm", self.gemm, 800 * US)

    def optimizer(self, run: Run) -> None:
        with run.within("annotation", "Optimizer.step#AdamW.step"):
            run.op(
                "aten::_fused_adamw_",
                "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>(int)",
                200 * US,
            )

    def after(self, run: Run, number: int) -> None:
        """What the loop does at the end of a step."""


@dataclass
class Training(Network):
    """Forward, backward, optimizer."""

    def step(self, run: Run, number: int) -> None:
        self.load(run, number)
        self.forward(run)
        self.backward(run)
        self.optimizer(run)
        self.after(run, number)


@dataclass
class Inference(Network):
    """Forward passes; the host waits for each result."""

    def step(self, run: Run, number: int) -> None:
        self.load(run, number)
        self.forward(run)
        self.after(run, number)


@dataclass
class Serving(Network):
    """Decoding by replays of a graph."""

    def step(self, run: Run, number: int) -> None:
        run.host_work(40 * US, ("python", "vllm/v1/engine/core.py(300): step"))
        correlation, start = len(run.device) + 1, max(run.clock + LATENCY, run.free.get(7, 0))
        run.launch(self.gemm, 300 * US, call="cudaGraphLaunch")
        for index in range(4 * self.layers):
            at = start + (index + 1) * 301 * US
            run.activity(FLASH if index % 4 == 3 else self.gemm, at, 300 * US)
            run.device[-1]["correlation"] = correlation
            run.free[7] = at + 300 * US


def run_of(network: Any) -> Run:
    """The steps of a network, and the wait for the device after them."""
    run = Run()
    for number in range(network.steps):
        with run.within("step", f"ProfilerStep#{number}"):
            network.step(run, number)
            if number == network.steps - 1:
                run.wait("cudaDeviceSynchronize")
    return run
