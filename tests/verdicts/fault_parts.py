"""What is changed in a network to plant a fault: every function returns methods and fields of it.

`ns` is the time of the fault in a step, `share` the part of the step that this is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runs import ADD, FLASH, GEMM, MS, NCCL, US, Run, Training

__all__ = [
    "Parts",
    "allocator",
    "checkpointed",
    "conversions",
    "copies_of_lists",
    "copying",
    "dependency",
    "dropout",
    "eager_attention",
    "early",
    "empty_cache",
    "evaluation",
    "exposed",
    "first_calls",
    "full_memory",
    "graph_breaks",
    "guards",
    "host_operators",
    "item",
    "late_gradients",
    "loading",
    "many_tables",
    "odd_vocabulary",
    "once",
    "other_thread",
    "paused_call",
    "recompilation",
    "saving",
    "scores_in_memory",
    "slow",
    "small_copies",
    "small_kernels",
    "throttling",
    "tiny_collectives",
    "uneven_ranks",
    "unfused_optimizer",
    "waits",
    "waits_between_small_kernels",
]

DROPOUT = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 4, bool>(int)"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)"

Parts = dict[str, Any]
"""What is changed in a network: methods and fields."""


def slow(ns: int, *spans: tuple[str, str]) -> Parts:
    """The host is busy in these spans after each step, when the device has nothing left to do."""

    def after(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        run.planted += run.host_work(ns, *spans)

    return {"after": after}


def early(ns: int, *spans: tuple[str, str]) -> Parts:
    """The same before each step."""

    def before(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        run.planted += run.host_work(ns, *spans)

    return {"before": before}


def once(ns: int, *spans: tuple[str, str]) -> Parts:
    """The same after one step, for as long as after all of them together."""

    def after(network: Any, run: Run, number: int) -> None:
        if number == 3:
            slow(ns * network.steps, *spans)["after"](network, run, number)

    return {"after": after}


def loading(name: str) -> Callable[[int, float], Parts]:
    def make(ns: int, _share: float) -> Parts:
        def load(network: Any, run: Run, number: int) -> None:
            run.wait()
            run.planted += run.host_work(ns, ("annotation", name))
            network.copy(run, number)

        return {"load": load}

    return make


def copying(direction: str, *, blocks: bool) -> Callable[[int, float], Parts]:
    def make(ns: int, _share: float) -> Parts:
        def copy(_network: Any, run: Run, _number: int) -> None:
            run.planted += run.transfer(direction, ns, blocks=blocks)

        return {"copy": copy}

    return make


def small_copies(ns: int, _share: float) -> Parts:
    """Many small tensors are copied one by one: the device waits for each call, and copies it."""

    def copy(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        for _ in range(ns // (20 * US)):
            start = max(run.clock + 4 * US, run.free.get(7, 0))
            run.copy("HtoD (Pinned -> Device)", start, 16 * US, 4096, launch=run.clock)
            run.free[7] = start + 16 * US
            run.planted += 16 * US
            run.clock += 16 * US

    return {"copy": copy}


def copies_of_lists(ns: int, _share: float) -> Parts:
    """Tensors are made of lists and copied one by one: Python, an operator, a pageable copy, and a wait that finds it done."""

    def copy(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        for _ in range(ns // (80 * US)):
            begin = run.clock
            run.clock += 50 * US
            with run.within("op", "aten::to"):
                run.clock += 10 * US
                run.copy("HtoD (Pageable -> Device)", run.clock + 4 * US, US, 2048, launch=run.clock)
                run.free[7] = run.clock + 5 * US
                run.call("cudaStreamSynchronize", run.clock + 5 * US, 5 * US, run.thread)
                run.clock = begin + 80 * US
            run.planted += 80 * US

    return {"copy": copy}


def small_kernels(ns: int, _share: float) -> Parts:
    def before(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        for _ in range(ns // (10 * US)):
            run.op("aten::add", ADD, 2 * US)

    return {"before": before}


def waits_between_small_kernels(_ns: int, _share: float) -> Parts:
    """The host launches small kernels, and asks in each layer whether the device is done, which it is."""

    def layer(_network: Any, run: Run) -> None:
        for _ in range(40):
            run.op("aten::add", ADD, 2 * US)
        run.clock += 10 * US
        run.wait("cudaDeviceSynchronize")

    return {"layer": layer, "layers": 12, "backward": lambda *_: None}


def unfused_optimizer(ns: int, _share: float) -> Parts:
    def optimizer(_network: Any, run: Run) -> None:
        with run.within("annotation", "Optimizer.step#Adam.step"):
            for name in ("aten::mul_", "aten::add_", "aten::addcdiv_"):
                for _ in range(ns // (36 * US)):
                    run.planted += run.op(name, ADD, 12 * US)

    return {"optimizer": optimizer}


def eager_attention(ns: int, _share: float) -> Parts:
    def attention(network: Any, run: Run) -> None:
        run.op("aten::bmm", GEMM, 100 * US)
        run.planted += run.op("aten::softmax", SOFTMAX, ns // network.layers)
        run.op("aten::bmm", GEMM, 100 * US)

    return {"attention": attention}


def scores_in_memory(ns: int, _share: float) -> Parts:
    """The scores of eager attention are scaled, made single precision for the softmax, and half again; a copy transposes the keys."""

    def attention(network: Any, run: Run) -> None:
        each = ns // network.layers // 5
        scores, keys = "[8, 16, 1024, 1024]", "[8, 16, 64, 1024]"
        half, single = "c10::BFloat16", "float"
        for name, kernel, shapes, types in (
            ("aten::copy_", COPY, f"[{keys}, {keys}, []]", (half, half)),
            ("aten::bmm", GEMM, "[[128, 1024, 64], [128, 64, 1024]]", (half, half)),
            ("aten::div", ADD, f"[{scores}, []]", (half, "double")),
            ("aten::copy_", COPY, f"[{scores}, {scores}, []]", (single, half)),
            ("aten::_softmax", SOFTMAX, f"[{scores}, [], []]", (single, "Scalar")),
            ("aten::copy_", COPY, f"[{scores}, {scores}, []]", (half, single)),
            ("aten::bmm", GEMM, "[[128, 1024, 1024], [128, 1024, 64]]", (half, half)),
        ):
            with run.within("op", name, shapes=shapes, dtypes=f'["{types[0]}", "{types[1]}"]'):
                took = run.launch(kernel, 100 * US if kernel == GEMM else each)
            run.planted += 0 if kernel == GEMM else took

    return {"attention": attention}


def conversions(ns: int, _share: float) -> Parts:
    def layer(network: Any, run: Run) -> None:
        each = ns // network.layers // 2
        for name in ("nchwToNhwcKernel", "", "nhwcToNchwKernel"):
            kernel = f"void cudnn::ops::{name}<__half, __half, float>(int)"
            fprop = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
            took = run.op("aten::cudnn_convolution", kernel if name else fprop, each if name else 980 * US)
            run.planted += took if name else 0

    return {"layer": layer}


def item(_ns: int, share: float) -> Parts:
    """The loss is read after each of many layers."""

    def layer(_network: Any, run: Run) -> None:
        run.op("aten::mm", GEMM, round(25 * US * (1 - share) / share))
        with run.within("op", "aten::item"), run.within("op", "aten::_local_scalar_dense"):
            run.transfer("DtoH (Device -> Pageable)", 2 * US)
            run.wait()

    return {"layer": layer, "layers": 200, "backward": lambda *_: None}


def waits(ns: int, _share: float) -> Parts:
    """The time of each part is taken: the host waits, and then computes for 200 µs."""

    def before(_network: Any, run: Run, _number: int) -> None:
        for _ in range(ns // (200 * US)):
            run.op("aten::mm", GEMM, 50 * US)
            run.wait("cudaDeviceSynchronize")
            run.host_work(200 * US)

    return {"before": before}


def allocator(ns: int, _share: float) -> Parts:
    def after(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        for _ in range(4):
            with run.within("op", "aten::empty"):
                took = run.about(ns // 4)
                run.call("cudaMalloc", run.clock, took, run.thread)
                run.clock += took
                run.planted += took

    return {"after": after}


def full_memory(ns: int, _share: float) -> Parts:
    """The allocator holds nearly all of the memory, gives cached blocks back and asks again."""

    def before(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        for call in ("cudaFree", "cudaFree", "cudaMalloc"):
            with run.within("op", "aten::empty"):
                took = run.about(ns // 3)
                run.call(call, run.clock, took, run.thread)
                run.clock += took
                run.planted += took
        row = {"process_id": 1, "thread_id": 1, "device_id": 0, "address": 64, "bytes": 1 << 20}
        run.memory.append(
            {**row, "start": run.clock, "allocated": 36_500_000_000, "reserved": 39_000_000_000}
        )

    return {"before": before}


def empty_cache(ns: int, _share: float) -> Parts:
    """The first call waits for the device and the others do not; the next step asks for the blocks again, inside operators."""

    def took(run: Run, call: str) -> None:
        ns_ = run.about(ns // 4)
        run.call(call, run.clock, ns_, run.thread)
        run.clock += ns_
        run.planted += ns_

    def before(_network: Any, run: Run, number: int) -> None:
        for _ in range(2 if number else 0):
            with run.within("op", "aten::empty"):
                took(run, "cudaMalloc")

    def after(_network: Any, run: Run, _number: int) -> None:
        with (
            run.within("python", "train.py(44): step"),
            run.within("python", "torch/cuda/memory.py(222): empty_cache"),
        ):
            run.wait("cudaFree")
            for _ in range(2):
                took(run, "cudaFree")

    return {"before": before, "after": after}


def exposed(ns: int, _share: float) -> Parts:
    def optimizer(_network: Any, run: Run) -> None:
        with run.within("annotation", "nccl:all_reduce"):
            run.planted += run.launch(NCCL, ns)
        Training.optimizer(_network, run)

    return {"optimizer": optimizer}


def late_gradients(ns: int, _share: float) -> Parts:
    """The gradients are reduced on a stream of their own, all at the end, and the optimizer waits for them."""

    def optimizer(network: Any, run: Run) -> None:
        begin = run.free[20] = max(run.free[7], run.clock)
        for _ in range(4):
            with run.within("annotation", "nccl:all_reduce"):
                run.launch(NCCL, ns // 4, stream=20)
        run.planted += run.free[20] - begin
        run.free[7] = run.free[20]
        Training.optimizer(network, run)

    return {"optimizer": optimizer}


def tiny_collectives(ns: int, _share: float) -> Parts:
    def optimizer(_network: Any, run: Run) -> None:
        for _ in range(ns // (20 * US)):
            with run.within("annotation", "nccl:all_reduce"):
                run.planted += run.launch(NCCL, 20 * US)
        Training.optimizer(_network, run)

    return {"optimizer": optimizer}


def uneven_ranks(ns: int, _share: float) -> Parts:
    """Another rank comes late by a different time in each step."""
    late = (0.0, 1.4, 0.6, 1.9, 1.0, 1.1)

    def optimizer(network: Any, run: Run) -> None:
        network.done = getattr(network, "done", -1) + 1
        waited = round(ns * late[network.done % len(late)])
        with run.within("annotation", "nccl:all_reduce"):
            took = run.launch(NCCL, 300 * US + waited)
        run.planted += took - 300 * US
        Training.optimizer(network, run)

    return {"optimizer": optimizer}


def dependency(direction: str, *, events: bool) -> Callable[[int, float], Parts]:
    """Each layer waits for a copy on another stream."""

    def make(ns: int, _share: float) -> Parts:
        def layer(network: Any, run: Run) -> None:
            # The copy begins when the layer before is done: an event orders it.
            run.free[20] = max(run.free.get(7, 0), run.clock)
            copied = run.transfer(direction, ns // network.layers, stream=20)
            if events:
                row = {"name": "Stream Wait Event", "device_id": 0, "stream_id": 7, "wait_on_stream": 20}
                run.syncs.append({**row, "start": run.clock, "duration": 0})
            run.clock += 6 * US
            run.free[7] = run.free[20]
            run.planted += copied
            type(network).__mro__[1].layer(network, run)

        return {"layer": layer}

    return make


def recompilation(ns: int, _share: float) -> Parts:
    def before(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        run.host_work(20 * US, ("op", "TorchDynamo Cache Lookup"))
        run.planted += run.host_work(ns, ("op", "dynamo"), ("op", "entire_frame_compile"))

    return {"before": before}


def guards(ns: int, _share: float) -> Parts:
    return early(ns, ("op", "TorchDynamo Cache Lookup"))


def graph_breaks(ns: int, _share: float) -> Parts:
    """A compiled forward leaves its graph three times; the device has nothing to do meanwhile."""

    def region(network: Any, run: Run, number: int, left: int) -> None:
        run.host_work(20 * US, ("op", "TorchDynamo Cache Lookup"))
        with run.within("op", f"Torch-Compiled Region: {number}/0"):
            with run.within("op", f"## Call CompiledFxGraph f{number} ##"):
                for _ in range(network.layers // 4):
                    run.launch("triton_poi_fused_add_mul_0", 150 * US)
                    run.launch(GEMM, 800 * US)
            if left:
                run.wait()
                run.planted += run.host_work(ns // 3, ("python", "model.py(90): forward"))
                region(network, run, number + 1, left - 1)

    return {"forward": lambda network, run: region(network, run, 0, 3)}


def evaluation(*spans: tuple[str, str]) -> Callable[[int, float], Parts]:
    """One step evaluates the model as well, in these spans."""

    def make(ns: int, _share: float) -> Parts:
        def after(network: Any, run: Run, number: int) -> None:
            if number != 3:
                return
            start = run.clock
            until = run.planted + ns * network.steps
            while run.planted < until:
                for name, kernel, took in (("aten::mm", GEMM, 400), ("aten::mm", GEMM, 420)):
                    run.planted += run.op(name, kernel, took * US)
            for kind, name in spans:
                run.span(kind, name, start, run.clock, run.thread)

        return {"after": after}

    return make


def other_thread(ns: int, _share: float) -> Parts:
    """While the host launches the first kernels of a step, another thread takes the interpreter's lock several times."""

    def before(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        with run.within("python", "train.py(20): step"):
            turns = max(1, ns // (5 * MS))
            for _ in range(turns):
                run.op("aten::add", ADD, 2 * US)
                pause, at = run.about(ns // turns), run.clock
                run.span("python", "metrics.py(30): update", at, at + pause, 2)
                for part in range(at, at + pause - 200 * US, 200 * US):
                    run.span("python", "<built-in method append of list object>", part, part + 150 * US, 2)
                run.clock += pause
                run.planted += pause

    return {"before": before}


def throttling(ns: int, _share: float) -> Parts:
    """From the fourth step on the clock is lower, and every kernel takes longer."""

    def work(network: Any, run: Run, number: int) -> None:
        base = type(network).__mro__[1]
        first = len(run.device)
        before = max(run.free.values(), default=0)
        if number < 3:
            base.work(network, run, number)
        else:
            factor = 1 + 2 * ns / network.usual
            about = run.about
            run.about = lambda each: about(round(each * factor))  # type: ignore[method-assign]
            base.work(network, run, number)
            del run.about
            run.planted += round(sum(row["duration"] for row in run.device[first:]) * (1 - 1 / factor))
        for at in range(before, max(run.free.values()), 100 * US):
            clock = 1980 if number < 3 else 1980 / factor
            row = {"name": "GPU 0", "series": "GPC Clock Frequency [MHz]", "start": at, "duration": None}
            run.counters.append({**row, "value": float(clock)})

    return {"work": work}


# -- calls of operators ------------------------------------------------------------------------------


def _attention(network: Any, run: Run, width: int = 1024, train: bool = True, host_ns: int = 0) -> None:
    """A call of cuDNN's attention on inputs of this width, in which the host takes so long before it launches the kernel."""
    inputs = {"shapes": f"[[16, 4, {width}, 256]]", "concrete_inputs": f'["{train}"]'}
    with run.within("op", "aten::_cudnn_attention_forward", **inputs):
        run.planted += run.host_work(host_ns) if host_ns else 0
        run.clock += 3 * US
        run.launch(FLASH, 150 * US)


def first_calls(*, sizes: bool) -> Callable[[int, float], Parts]:
    """The first call on new inputs takes long: in each step, whose inputs have a size of their own, or in an evaluation in one step."""

    def make(ns: int, _share: float) -> Parts:
        def forward(network: Any, run: Run) -> None:
            network.width = getattr(network, "width", 512) + (64 if sizes else 0)
            if sizes:
                run.wait()
                _attention(network, run, network.width, host_ns=ns)
            type(network).__mro__[1].forward(network, run)

        def after(network: Any, run: Run, number: int) -> None:
            if number == 3 and not sizes:
                run.wait()
                for call in range(3):
                    _attention(network, run, 512, train=False, host_ns=0 if call else ns * network.steps)

        attention = {"attention": lambda network, run: _attention(network, run, network.width)}
        return {"forward": forward, "after": after, **attention}

    return make


def paused_call(ns: int, _share: float) -> Parts:
    """In one call of an operator the host stands still, when the operators inside it have ended."""

    def after(network: Any, run: Run, number: int) -> None:
        run.wait()
        with run.within("op", "aten::addmm", shapes="[[1024, 1024]]"):
            run.op("aten::mm", GEMM, 100 * US)
            if number == 3:
                run.wait()
                run.planted += run.host_work(ns * network.steps)

    return {"after": after}


def host_operators(*, copies: bool) -> Callable[[int, float], Parts]:
    """A part of the step runs on the processor, on what is copied from the device or made there."""

    def make(ns: int, _share: float) -> Parts:
        def before(_network: Any, run: Run, _number: int) -> None:
            run.wait()
            if copies:
                with run.within("op", "aten::to"):
                    run.planted += run.transfer("DtoH (Device -> Pageable)", ns // 2, blocks=True)
            run.planted += run.host_work(ns // 2 if copies else ns, ("op", "aten::abs"))
            run.transfer("HtoD (Pinned -> Device)", 10 * US)

        return {"before": before}

    return make


def saving(ns: int, _share: float) -> Parts:
    """One step copies the parameters to the host one by one, and writes each."""

    def after(network: Any, run: Run, number: int) -> None:
        if number != 3:
            return
        run.wait()
        for _ in range(40):
            with run.within("op", "aten::copy_"):
                run.planted += run.transfer(
                    "DtoH (Device -> Pageable)", ns * network.steps // 80, blocks=True
                )
            run.planted += run.host_work(ns * network.steps // 80)

    return {"after": after}


# -- costs of computation ----------------------------------------------------------------------------


def dropout(ns: int, _share: float) -> Parts:
    def forward(network: Any, run: Run) -> None:
        Training.forward(network, run)
        for _ in range(network.layers):
            run.planted += run.op("aten::native_dropout", DROPOUT, ns // network.layers)

    return {"forward": forward}


def checkpointed(ns: int, _share: float) -> Parts:
    """The forward product of each layer runs again in its backward node."""

    def backward(network: Any, run: Run) -> None:
        for number in range(network.layers):
            with run.within("op", "MmBackward0", sequence=number, forward_thread=1):
                with run.within("op", "aten::linear", sequence=1000 + number, forward_thread=0):
                    run.planted += run.launch(GEMM, ns // network.layers)
                run.op("aten::mm", GEMM, 800 * US)
            with run.within("op", "MmBackward0"):
                run.clock += US
                run.op("aten::mm", GEMM, 800 * US)

    return {"backward": backward}


def odd_vocabulary(ns: int, _share: float) -> Parts:
    """The product with the vocabulary runs at a tenth of the rate of the others."""

    def after(_network: Any, run: Run, _number: int) -> None:
        unit = 10 * ns // (9 * 50257)
        for width, time in ((16384, 16384 * unit // 10), (50257, 50257 * unit)):
            inputs = {
                "shapes": f"[[8192, 4096], [4096, {width}]]",
                "dtypes": '["c10::BFloat16", "c10::BFloat16"]',
            }
            with run.within("op", "aten::mm", **inputs):
                took = run.launch(GEMM, time)
            if width == 50257:
                run.planted += took * 9 // 10

    return {"after": after}


def many_tables(ns: int, _share: float) -> Parts:
    """The device waits for 26 lookups, one after the other."""

    def forward(network: Any, run: Run) -> None:
        run.wait()
        for _ in range(26):
            with run.within("op", "aten::embedding"):
                run.clock += run.about(ns // 26)
                run.launch("indexSelectLargeIndex", 10 * US)
        run.planted += ns
        Training.forward(network, run)

    return {"forward": forward}
