"""Real runs on the processors with one planted fault each: the first screen names it, its place and its time.

Each loop is recorded plainly with torch.profiler, with stacks and shapes, and with `tracekit.capture.session`.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from cpu_loops import STEPS, WARMUP, Block, Loop, Network, Serving, check_first, record, warnings_of
from paths import ROOT
from torch import nn
from torch.utils.checkpoint import checkpoint

import tracekit
from tracekit.report.build import build_report
from tracekit.report.model import Report

WAYS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "stacks": {"with_stack": True, "record_shapes": True},
    "session": {"how": "session"},
}
SLOW_STEP: Final = WARMUP + STEPS // 2


class SlowLoader(Loop):
    def load(self) -> None:
        with self.planted():
            time.sleep(0.006)


class OneWorker(Loop):
    """Loading takes far longer than the step, also where other tests have the cores."""

    size, workers = 32, 1

    def load(self) -> None:
        time.sleep(0.06)


class TinyOperators(Loop):
    """27,000 operators beside a small model."""

    size = 24

    def step(self, batch: Any) -> None:
        scale_one_by_one(torch.zeros(8))
        super().step(batch)


def scale_one_by_one(values: torch.Tensor) -> torch.Tensor:
    for _ in range(1_500):
        values = (values * 1.5 + 0.5).clone()
    return values


class Logging(Loop):
    def after(self, loss: torch.Tensor) -> None:
        with self.planted():
            log_metrics(loss)


def log_metrics(_loss: torch.Tensor) -> None:
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end:
        str(list(range(1_000)))


class NowAndThen(Loop):
    """Does something else in one step."""

    def after(self, loss: torch.Tensor) -> None:
        if self.number == SLOW_STEP:
            with self.planted():
                self.once()

    def once(self) -> None:
        raise NotImplementedError


class Sleeping(NowAndThen):
    def once(self) -> None:
        write_report()


def write_report() -> None:
    time.sleep(1.5)  # longer than what a crowded machine does to a step


class Checkpoint(NowAndThen):
    def __init__(self) -> None:
        super().__init__()
        self.weights = [torch.rand(4_000_000) for _ in range(10)]

    def once(self) -> None:
        save_checkpoint(self.weights)


def save_checkpoint(weights: list[torch.Tensor]) -> None:
    torch.save(weights, os.devnull)
    time.sleep(1.5)  # a slow disk


class Evaluation(NowAndThen):
    def once(self) -> None:
        evaluate(self.model)


@torch.no_grad()
def evaluate(model: nn.Module) -> None:
    for _ in range(15):
        model(torch.rand(8, 3, 56, 56))


class Collecting(NowAndThen):
    def __init__(self) -> None:
        super().__init__()
        self.garbage = [{"number": [number]} for number in range(400_000)]

    def once(self) -> None:
        gc.collect()


class Contended(Loop):
    """Another thread computes in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.done = False
        threading.Thread(target=self.spin, daemon=True).start()

    def spin(self) -> None:
        while not self.done:
            pass

    def end(self) -> None:
        self.done = True


class Unfused(Loop):
    """Sixty small layers."""

    def make_model(self) -> nn.Module:
        return nn.Sequential(*[nn.Linear(64, 64) for _ in range(60)])

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), foreach=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.flatten(1)[:, :64])


class Recomputing(Loop):
    size = 40

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.model, Network)
        hidden = self.model.first(images).relu()
        # PyTorch recomputes no further than the last tensor that it needs, so one layer alone would not run again.
        for block in self.model.blocks:
            hidden = hidden + checkpoint(self.twice, block, hidden, use_reentrant=False)
        return self.model.head(hidden.mean((2, 3)))  # type: ignore[no-any-return]

    @staticmethod
    def twice(block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return block(block(block(hidden).relu()).relu()).relu()  # type: ignore[no-any-return]


class Eager(Block):
    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        return scores.softmax(-1) @ value


class EagerAttention(Serving):
    tokens, width = 512, 64

    def make_model(self) -> nn.Module:
        return nn.Sequential(Eager(self.width), Eager(self.width))


class Recompiling(Loop):
    """Each step has inputs of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = 100
        self.compiled = torch.compile(self.model, backend="aot_eager", dynamic=False)

    def make_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.compiled(images[:, :, : 56 - self.number])
        return output

    def end(self) -> None:
        torch._dynamo.config.recompile_limit = self.limit
        torch._dynamo.reset()


class Double(Loop):
    size = 32

    def make_model(self) -> nn.Module:
        return super().make_model().double()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.double())


class Reading(Loop):
    """Reads the loss in each step, which costs next to nothing without a device."""

    def after(self, loss: torch.Tensor) -> None:
        self.last = loss.item()


@dataclass(frozen=True)
class Fault:
    """A loop, what the first advice or the headline must say of it, and the place that they must name if stacks are recorded."""

    loop: type[Loop]
    says: str
    place: str = ""
    timed: bool = False
    """The time at stake must be that which was planted."""
    ways: tuple[str, ...] = ("stacks",)
    """How it is recorded."""


FAULTS: Final[dict[str, Fault]] = {
    "slow loader in the main process": Fault(
        SlowLoader, r"num_workers > 0", r"\): load\b", timed=True, ways=tuple(WAYS)
    ),
    "too few workers": Fault(OneWorker, r"Raise num_workers", ways=("plain",)),
    "tiny operators": Fault(
        TinyOperators,
        r"(?s)Tiny operators .*batch or vectorise",
        r"\): scale_one_by_one",
        ways=("plain", "stacks"),
    ),
    "logging every step": Fault(Logging, r"less often", r"\): log_metrics.*Log less often", timed=True),
    "a pause in one step": Fault(
        Sleeping, r"1 of 6 steps is slow", r"\): write_report", timed=True, ways=("plain", "stacks")
    ),
    "a checkpoint in one step": Fault(
        Checkpoint, r"1 of 6 steps is slow.*(?i:checkpoint)", r"\): save_checkpoint.*Save checkpoints less"
    ),
    "an evaluation in one step": Fault(
        Evaluation, r"1 of 6 steps is slow.*If this is an evaluation", r"\): evaluate"
    ),
    "a pause for garbage collection": Fault(
        Collecting, r"1 of 6 steps is slow.*garbage", r"collect>, called from .*\): once.*gc\.freeze"
    ),
    "the interpreter's lock": Fault(Contended, r"\(GIL\).*another process"),
    "an optimizer that is not fused": Fault(
        Unfused, r"fused=True", r"\): step|The optimizer", ways=("plain", "stacks")
    ),
    "recompilation in each step": Fault(Recompiling, r"compilation .*TORCH_LOGS=recompiles", ways=("plain",)),
    "double precision": Fault(Double, r"float64.*Use float32", ways=("stacks", "session")),
    "recomputation": Fault(Recomputing, r"(?i)recomput", ways=("plain",)),
    "eager attention": Fault(EagerAttention, r"scaled_dot_product_attention", ways=("plain",)),
}
BUSY: Final = pytest.mark.skipif(
    os.environ.get("PYTEST_XDIST_WORKER") is not None,
    reason="other tests run beside it, so that no wait takes the 5 ms of a switch between threads; use -n 0",
)


@contextmanager
def others(count: int) -> Iterator[None]:
    """Other programs that take the processors."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def report_of(loop: Loop, folder: Path, way: str, *, beside: int = 0) -> Report:
    """The report on a recording of the loop, with as many other programs `beside` it."""
    try:
        with others(beside):
            path = record(loop, folder / "run", **WAYS[way])
    finally:
        loop.end()
    return build_report(tracekit.read(path))


def params() -> list[Any]:
    cases = []
    for name, fault in FAULTS.items():
        for way in fault.ways:
            marks = [pytest.mark.slow]
            if fault.loop is Contended:
                marks.append(BUSY)
            cases.append(pytest.param(fault, way, id=f"{name}-{way}", marks=marks))
    return cases


def of_others(fault: Fault) -> set[str]:
    """What the machine may add to this fault when something else has the cores: the tests share it."""
    return {"stalled_calls"} | (set() if "steps is slow" in fault.says else {"step_variability"})


@pytest.mark.parametrize(("fault", "way"), params())
@pytest.mark.sampled(4)
def test_the_planted_fault_is_first(fault: Fault, way: str, tmp_path: Path) -> None:
    loop = fault.loop()
    report = report_of(loop, tmp_path, way)
    first = next(each for each in report.verdict.advice if each.finding not in of_others(fault))
    check_first(report, first, fault.says, fault.place if way == "stacks" else "")
    if fault.timed:
        assert first.ns_at_stake == pytest.approx(loop.spent, rel=0.1), first


HEALTHY: Final = {
    "training": Loop,
    "inference": Serving,
    "a value read in each step": Reading,
}


@pytest.mark.parametrize(
    ("loop", "way"),
    [
        pytest.param(
            loop,
            way,
            id=f"{name}-{way}",
            marks=[pytest.mark.slow],
        )
        for name, loop in HEALTHY.items()
        for way in (WAYS if loop is not Reading else ("plain",))
    ],
)
@pytest.mark.sampled(4)
def test_a_healthy_run_gets_no_warning(loop: type[Loop], way: str, tmp_path: Path) -> None:
    healthy(report_of(loop(), tmp_path, way))


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "way"), [(Loop, "plain"), (Loop, "session"), (Serving, "stacks")])
def test_a_busy_machine_is_no_fault_of_the_program(loop: type[Loop], way: str, tmp_path: Path) -> None:
    beside = 2 * (os.cpu_count() or 1)
    report = report_of(loop(), tmp_path / "first", way, beside=beside)
    if warnings_of(report):  # other programs may stop it at one place in two of three steps, but hardly twice
        report = report_of(loop(), tmp_path / "second", way, beside=beside)
    healthy(report)


def healthy(report: Report) -> None:
    """No warning, but that something else has the cores: the tests may share the machine."""
    assert warnings_of(report) == []
    advice = [each.title for each in report.verdict.advice if each.finding != "stalled_calls"]
    assert len(advice) <= 1
    assert all(
        re.match(r"Look at aten::\w+ first|Make (convolution|matrix multiplication) cheaper", each)
        for each in advice
    )


def test_the_recording_is_no_cost_of_the_program() -> None:
    """A step of this sample takes 20.9 ms, of which Python outside operators takes 8.8 ms; without recording it takes 11.7 ms."""
    trace = tracekit.read(ROOT / "sample_traces/bert_cpu/trace.json.gz")
    verdict = build_report(trace).verdict
    optimizer = verdict.advice[0]
    assert (optimizer.finding, optimizer.ns_at_stake) == (
        "optimizer_not_fused",
        pytest.approx(8.31e6, rel=0.01),
    )
    costs = {cost.label: cost.ns for cost in verdict.costs}
    python, recording = costs["Python outside any operator"], costs["recording overhead outside operators"]
    assert python == pytest.approx((python + recording) / 1.85, rel=0.01)
    assert "Python outside any operator takes at most 22.9 %" in verdict.headline
    assert "loading data takes 10.2 %" in verdict.headline
    assert verdict.advice[1].title == "Data loading takes 10.2 % of the time"
    assert any("Recording makes a step 1.85 times as long." in note for note in verdict.notes)


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["bert_cpu", "dlrm_cpu", "encoder_cpu", "resnet50_cpu", "yolov5_cpu"])
def test_a_call_for_more_recording_stands_below_every_answer(sample: str) -> None:
    advice = build_report(tracekit.read(ROOT / f"sample_traces/{sample}/trace.json.gz")).verdict.advice
    assert advice[0].finding
    assert not any("Look at the Python code" in each.title for each in advice[:-1])
