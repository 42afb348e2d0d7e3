"""Runs with one planted fault each: the first advice names it, and its time is what was planted. Healthy runs get no warning."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from runs import ADD, GEMM, MS, US, Inference, Run, Serving, Training, run_of

from tracekit.report.build import build_report
from tracekit.report.model import Report

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
DROPOUT = "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<c10::BFloat16, float, unsigned int, 1, 4, bool>(int)"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def slow(ns: int, *spans: tuple[str, str]) -> Callable[[Any, Run, int], None]:
    """The host is busy for `ns` in these spans after each step, when the device has nothing left to do."""

    def after(_network: Any, run: Run, _number: int) -> None:
        run.wait()
        run.host_work(ns, *spans)
        run.planted += ns

    return after


def loading(name: str) -> Callable[[Any, Run, int], None]:
    def load(network: Any, run: Run, number: int) -> None:
        run.wait()
        run.host_work(8 * MS, ("annotation", name))
        run.planted += 8 * MS
        network.copy(run, number)

    return load


def copying(direction: str, *, blocks: bool) -> Callable[[Any, Run, int], None]:
    def copy(_network: Any, run: Run, _number: int) -> None:
        start = max(run.clock + 4 * US, run.free.get(7, 0))
        run.copy(
            direction,
            start,
            6 * MS,
            60_000_000,
            launch=run.clock,
            call_ns=start + 6 * MS - run.clock if blocks else 5 * US,
        )
        run.free[7] = start + 6 * MS
        run.clock = run.free[7] if blocks else run.clock + 8 * US
        run.planted += 6 * MS

    return copy


def small_kernels(_network: Any, run: Run) -> None:
    run.wait()
    for _ in range(600):
        run.op("aten::add", ADD, 2 * US)
    run.planted += 600 * 8 * US


def unfused_optimizer(_network: Any, run: Run) -> None:
    with run.within("annotation", "Optimizer.step#Adam.step"):
        for name in ("aten::mul_", "aten::add_", "aten::addcdiv_"):
            for _ in range(100):
                run.op(name, ADD, 12 * US)


def eager_attention(_network: Any, run: Run) -> None:
    run.op("aten::bmm", GEMM, 200 * US)
    run.op(
        "aten::softmax",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)",
        900 * US,
    )
    run.planted += 900 * US
    run.op("aten::bmm", GEMM, 200 * US)


def dropout(network: Any, run: Run) -> None:
    Training.layer(network, run)
    run.op("aten::native_dropout", DROPOUT, 300 * US)
    run.planted += 300 * US


def checkpointed(network: Any, run: Run) -> None:
    """The forward product of each layer runs again in its backward node."""
    for number in range(network.layers):
        with run.within("op", "MmBackward0", sequence=number, forward_thread=1):
            with run.within("op", "aten::linear", sequence=1000 + number, forward_thread=0):
                run.launch(GEMM, 400 * US)
            run.planted += 400 * US
            run.op("aten::mm", GEMM, 800 * US)
        with run.within("op", "MmBackward0"):
            run.clock += US
            run.op("aten::mm", GEMM, 800 * US)


def odd_vocabulary(network: Any, run: Run) -> None:
    """The product with the vocabulary runs at a tenth of the rate of the others."""
    for width, slower in ((16384, 1), (50257, 10)):
        ns = slower * 2 * 8192 * 4096 * width // 700_000
        inputs = {
            "shapes": f"[[8192, 4096], [4096, {width}]]",
            "dtypes": '["c10::BFloat16", "c10::BFloat16"]',
        }
        with run.within("op", "aten::mm", **inputs):
            run.launch(GEMM, ns)
        run.planted += ns * (slower - 1) // 10


def many_tables(network: Any, run: Run) -> None:
    """The device waits for 26 lookups, one after the other."""
    run.wait()
    for _ in range(26):
        with run.within("op", "aten::embedding"):
            run.clock += 200 * US
            run.launch("indexSelectLargeIndex", 10 * US)
    run.planted += 25 * 204 * US
    Training.forward(network, run)


def conversions(_network: Any, run: Run) -> None:
    for name, ns in (
        ("nchwToNhwcKernel", 300),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", 400),
        ("nhwcToNchwKernel", 300),
    ):
        run.op(
            "aten::cudnn_convolution",
            f"void cudnn::ops::{name}<__half, __half, float>(int)"
            if "Nhwc" in name or "Nchw" in name
            else name,
            ns * US,
        )
    run.planted += 600 * US


def item(_network: Any, run: Run) -> None:
    """The loss is read after each layer."""
    run.op("aten::mm", GEMM, 40 * US)
    with run.within("op", "aten::item"), run.within("op", "aten::_local_scalar_dense"):
        run.copy(
            "DtoH (Device -> Pageable)",
            max(run.clock + 4 * US, run.free.get(7, 0)),
            2 * US,
            4,
            launch=run.clock,
        )
        run.free[7] = max(run.clock + 4 * US, run.free.get(7, 0)) + 2 * US
        run.clock += 6 * US
        run.wait()


def allocator(_network: Any, run: Run, _number: int) -> None:
    run.wait()
    for _ in range(4):
        with run.within("op", "aten::empty"):
            run.call("cudaMalloc", run.clock, MS, run.thread)
            run.clock += MS
    run.planted += 4 * MS


def exposed(count: int, ns: int) -> Callable[[Any, Run], None]:
    def optimizer(network: Any, run: Run) -> None:
        for _ in range(count):
            with run.within("annotation", "nccl:all_reduce"):
                run.launch(NCCL, ns, stream=7)
        run.planted += count * ns
        Training.optimizer(network, run)

    return optimizer


def now_and_then(ns: int, *spans: tuple[str, str]) -> Callable[[Any, Run, int], None]:
    def after(_network: Any, run: Run, number: int) -> None:
        if number == 3:
            slow(ns, *spans)(_network, run, number)

    return after


def dependency(_network: Any, run: Run) -> None:
    """Each layer waits for a copy on another stream, which the event in its stream names."""
    start = max(run.clock, run.free.get(7, 0))
    run.activity(
        "Memcpy DtoD (Device -> Device)",
        start,
        900 * US,
        launch=run.clock,
        stream=20,
        kind="memcpy",
        call="cudaMemcpyAsync",
        bytes=1 << 20,
    )
    run.clock += 6 * US
    run.free[7] = start + 900 * US
    run.op("aten::mm", GEMM, 400 * US)
    run.planted += 900 * US


@dataclass(frozen=True)
class Fault:
    """What is changed in a run, and what the first advice, or the headline, must say."""

    changes: dict[str, Any]
    says: str
    base: type = Training
    falls_short: str = ""
    """Why the report is not right yet."""
    timed: bool = True
    """The time at stake of the first advice must be what was planted."""


FAULTS: Final[dict[str, Fault]] = {
    "slow loader in the main process": Fault({"load": loading(SINGLE)}, r"num_workers > 0"),
    "too few workers": Fault(
        {"load": loading("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")},
        r"Raise num_workers",
    ),
    "slow host-to-device copy": Fault(
        {"copy": copying("HtoD (Pinned -> Device)", blocks=False)}, r"(?i)separate stream"
    ),
    "pageable copies": Fault(
        {"copy": copying("HtoD (Pageable -> Device)", blocks=True)}, r"(?i)pinned memory"
    ),
    "a value is read in each layer": Fault(
        {"layer": item, "layers": 300}, r"\.item\(\)", base=Inference, timed=False
    ),
    "logging every step": Fault(
        {
            "after": slow(
                8 * MS, ("python", "train.py(40): log"), ("python", "logging/__init__.py(1400): info")
            )
        },
        r"logging/__init__\.py",
    ),
    "printing every step": Fault(
        {"after": slow(8 * MS, ("python", "train.py(50): report"), ("python", "<built-in function print>"))},
        r"train\.py\(50\)",
    ),
    "small kernels": Fault({"forward": small_kernels}, r"(?i)fewer|launch(es)? less|fuse", timed=False),
    "an optimizer that is not fused": Fault({"optimizer": unfused_optimizer}, r"fused=True", timed=False),
    "eager attention": Fault({"attention": eager_attention}, r"scaled_dot_product_attention"),
    "dropout in each layer": Fault({"layer": dropout}, r"^Dropout takes"),
    "activation checkpointing": Fault({"backward": checkpointed}, r"checkpoint fewer layers"),
    "an odd vocabulary": Fault({"after": lambda n, run, _: odd_vocabulary(n, run)}, r"Pad 50,257 to 50,304"),
    "26 embedding tables": Fault({"forward": many_tables}, r"(?i)one EmbeddingBag"),
    "fp32 products on a device with tensor cores": Fault(
        {"gemm": "ampere_sgemm_128x128_nn"}, r"(?i)tf32|bfloat16", timed=False
    ),
    "layout conversions": Fault({"layer": conversions}, r"channels_last"),
    "recompilation in each step": Fault(
        {
            "load": lambda n, run, k: (
                run.wait(),
                run.host_work(
                    8 * MS, ("annotation", "TorchDynamo Cache Lookup"), ("annotation", "entire_frame_compile")
                ),
                setattr(run, "planted", run.planted + 8 * MS),
                n.copy(run, k),
            )
        },
        r"(?i)compil",
    ),
    "allocator churn": Fault({"after": allocator}, r"(?i)alloc"),
    "a pause for garbage collection": Fault(
        {
            "after": now_and_then(
                20 * MS, ("python", "train.py(60): step"), ("python", "<built-in function collect>")
            )
        },
        r"train\.py\(60\)|collect",
    ),
    "a checkpoint in one step": Fault(
        {
            "after": now_and_then(
                60 * MS,
                ("python", "train.py(70): save_checkpoint"),
                ("python", "torch/serialization.py(900): save"),
            )
        },
        r"serialization\.py|save_checkpoint",
    ),
    "exposed all-reduce": Fault({"optimizer": exposed(1, 8 * MS)}, r"(?i)overlap|while the backward"),
    "many tiny collectives": Fault(
        {"optimizer": exposed(400, 20 * US)},
        r"(?i)larger collectives|in one collective|bucket_cap",
        falls_short="the number and size of collectives are in no finding",
    ),
    "a dependency on another stream": Fault(
        {"layer": dependency},
        r"(?i)waits? for .*stream",
        falls_short="a copy between streams hides the wait: it counts as an exposed copy",
    ),
    "preprocessing before the first kernel": Fault(
        {
            "load": lambda n, run, k: (
                run.wait(),
                run.host_work(12 * MS, ("python", "infer.py(10): run"), ("python", "image.py(33): resize")),
                setattr(run, "planted", run.planted + 12 * MS),
                n.copy(run, k),
            )
        },
        r"image\.py\(33\)",
        base=Inference,
    ),
    "a scheduler that is slow": Fault(
        {
            "step": lambda n, run, k: (
                run.wait(),
                run.host_work(6 * MS, ("python", "vllm/v1/core/sched/scheduler.py(120): schedule")),
                Serving.step(n, run, k),
            )
        },
        r"scheduler\.py",
        base=Serving,
        timed=False,
    ),
}


def report(fault: Fault) -> tuple[Report, Run]:
    """The report of the run with this fault."""
    network = type("Faulty", (fault.base,), {k: v for k, v in fault.changes.items() if callable(v)})
    run = run_of(network(**{k: v for k, v in fault.changes.items() if not callable(v)}))
    return build_report(run.trace()), run


def params() -> list[Any]:
    return [
        pytest.param(
            fault,
            id=name,
            marks=[pytest.mark.xfail(strict=True, reason=fault.falls_short)] if fault.falls_short else [],
        )
        for name, fault in FAULTS.items()
    ]


@pytest.mark.parametrize("fault", params())
def test_the_planted_fault_is_first(fault: Fault) -> None:
    made, run = report(fault)
    verdict = made.verdict
    first = verdict.advice[0]
    said = f"{first.title}: {first.advice} | {verdict.headline}"
    assert re.search(fault.says, said), said
    if fault.timed and run.planted:
        assert first.ns_at_stake == pytest.approx(run.planted, rel=0.05), said


@pytest.mark.parametrize("base", [Training, Inference, Serving])
@pytest.mark.parametrize("layers", [4, 12])
def test_a_healthy_run_gets_no_warning(base: type, layers: int) -> None:
    made = build_report(run_of(base(layers=layers)).trace())
    assert made.verdict.bound == "compute-bound"
    assert [f.id for section in made.sections for f in section.findings if f.severity != "info"] == []
    assert not [advice.title for advice in made.verdict.advice if advice.ns_at_stake]
