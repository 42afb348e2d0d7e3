"""Real runs on a GPU with one planted fault each: the first screen names it, its place and its time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from cpu_loops import STEPS, WARMUP, Block, check_first, warnings_of
from gpu_loops import Decoding, Words, record
from torch import nn

import tracekit
from tracekit.report.build import build_report
from tracekit.report.model import Report

WAYS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"record_shapes": True},
    "stacks": {"with_stack": True, "record_shapes": True},
    "session": {"how": "session"},
}


EVERY: Final = tuple(WAYS)


class SlowLoader(Words):
    def load(self) -> None:
        time.sleep(0.004)


class OneWorker(Words):
    workers = 1

    def load(self) -> None:
        time.sleep(0.006)


class Logging(Words):
    def after(self, loss: torch.Tensor) -> None:
        log_metrics(loss)


def log_metrics(loss: torch.Tensor) -> None:
    loss.item()
    time.sleep(0.03)


class Waiting(Words):
    """Reads the loss in each step: the device is idle until the host is ahead of it again."""

    depth, width, tokens, batch = 12, 256, 128, 8

    def after(self, loss: torch.Tensor) -> None:
        self.last = loss.item()


class Reading(Words):
    """A value is read in each block."""

    depth, width, tokens = 12, 512, 256

    class block(Block):  # noqa: N801 - the field of the loop
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(hidden)
            return hidden / max(hidden.detach().abs().max().item(), 1.0)


class Masking(Words):
    """A mask selects rows, and the host waits for their number."""

    def loss(self, scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            kept = words != 7
            scores[kept[:, :, None].expand_as(scores)[..., :8].any(-1)].shape  # noqa: B018
        return super().loss(scores, words)


class Synchronising(Words):
    """Waits for the device after each part of the step."""

    depth, width, tokens = 12, 256, 128

    class block(Block):  # noqa: N801 - the field of the loop
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(hidden)
            torch.cuda.synchronize()
            return hidden


class Pageable(Words):
    """Copies much pageable memory in each step."""

    pinned = False

    def __init__(self) -> None:
        super().__init__()
        self.extra = torch.rand(64, 1024, 1024)

    def move(self, batch: torch.Tensor) -> torch.Tensor:
        self.extra.cuda()
        return super().move(batch)


class LateCopy(Pageable):
    """The same from pinned memory, on the stream of the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = torch.rand(192, 1024, 1024).pin_memory()

    def move(self, batch: torch.Tensor) -> torch.Tensor:
        self.extra.cuda(non_blocking=True)
        return super().move(batch)


class SmallCopies(Words):
    depth, width, tokens = 4, 256, 256

    def move(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.tensor(row.tolist()).cuda() for row in batch for _ in range(8)][::8])


class SmallKernels(Words):
    """Thousands of operators on few values."""

    def after(self, loss: torch.Tensor) -> None:
        scale_one_by_one(loss)


def scale_one_by_one(values: torch.Tensor) -> torch.Tensor:
    for _ in range(4_000):
        values = values * 1.5 + 0.5
    return values


class Unfused(Words):
    depth, width, tokens = 60, 128, 128

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), foreach=False)


class Full(Words):
    """In single precision, without TF32."""

    depth = 3

    def precision(self) -> Any:
        return torch.autocast("cuda", enabled=False)


class OddVocabulary(Words):
    depth, vocabulary = 2, 50_257


class EagerAttention(Words):
    class block(Block):  # noqa: N801 - the field of the loop
        def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
            return scores.softmax(-1) @ value


class EmptyCache(Words):
    def after(self, loss: torch.Tensor) -> None:
        torch.cuda.empty_cache()


class OnProcessor(Words):
    """A part of the model runs on the processor."""

    class block(Block):  # noqa: N801 - the field of the loop
        def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            found = super().attend(query, key, value)
            return found * found.detach().float().cpu().abs().mean().clamp(min=1).cuda()


class NowAndThen(Words):
    """Does something else in one step."""

    def after(self, loss: torch.Tensor) -> None:
        if self.number == WARMUP + STEPS // 2:
            self.once()

    def once(self) -> None:
        raise NotImplementedError


class Checkpoint(NowAndThen):
    def once(self) -> None:
        save_checkpoint(self.model, self.optimizer)


def save_checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.save([model.state_dict(), optimizer.state_dict()], "/dev/null")


class Evaluation(NowAndThen):
    def once(self) -> None:
        evaluate(self.model)


@torch.no_grad()
def evaluate(model: nn.Module) -> None:
    for _ in range(10):
        with torch.autocast("cuda", torch.bfloat16):
            model(torch.zeros(16, 1024, dtype=torch.long, device="cuda"))
    torch.cuda.synchronize()


class Convolutions(Words):
    """Images with the channels first, in half precision: cuDNN converts them."""

    batch, size = 64, 112

    def make_model(self) -> nn.Module:
        width = 128
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).cuda()

    def move(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.rand(self.batch, 3, self.size, self.size, device="cuda")

    def loss(self, scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return scores.float().square().mean()


class Graphs(Decoding):
    """The same words from a CUDA graph."""

    def __init__(self) -> None:
        super().__init__()
        self.into = torch.zeros(self.batch, self.tokens, dtype=torch.long, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), self.precision():
            for _ in range(3):
                self.model(self.into)
            torch.cuda.synchronize()
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False), torch.cuda.graph(self.graph):
                self.out = self.model(self.into)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        self.into.copy_(words)
        self.graph.replay()
        return self.out


class Remembering(Decoding):
    """Inference that autograd records."""

    batch, tokens, words_a_step = 16, 512, 1

    def step(self, batch: Any) -> None:
        with self.precision():
            self.after(self.forward(self.move(batch))[:, -1:].argmax(-1))


@dataclass(frozen=True)
class Fault:
    """A loop, and what the first advice or the headline must say of it."""

    loop: type[Words]
    says: str
    place: str = ""
    """What they must say as well if stacks are recorded."""
    ways: tuple[str, ...] = ("plain",)


FAULTS: Final[dict[str, Fault]] = {
    "slow loader in the main process": Fault(SlowLoader, r"num_workers > 0", r"\): load\b", EVERY),
    "too few workers": Fault(OneWorker, r"Raise num_workers"),
    "logging every step": Fault(Logging, r"no host call is recorded|log_metrics", r"log_metrics", EVERY),
    "the loss is read in each step": Fault(Waiting, r"Launch less from Python"),
    "a value is read in each layer": Fault(Reading, r"remove the 12 waits .*\.item\(\)", ways=EVERY),
    "masks": Fault(Masking, r"depends on the data"),
    "the host waits after each part": Fault(Synchronising, r"12 waits .*torch\.cuda\.synchronize"),
    "pageable copies": Fault(Pageable, r"(?i)pinned memory"),
    "slow host-to-device copy": Fault(LateCopy, r"(?i)separate stream"),
    "many small copies": Fault(SmallCopies, r"(?i)128 a step.*pack small inputs"),
    "small kernels": Fault(SmallKernels, r"(?i)fewer|launch(es)? less|fuse"),
    "an optimizer that is not fused": Fault(Unfused, r"fused=True"),
    "fp32 products on a device with tensor cores": Fault(Full, r"(?i)tf32|bfloat16"),
    "an odd vocabulary": Fault(OddVocabulary, r"Pad 50,257 to 50,304"),
    "eager attention": Fault(EagerAttention, r"scaled_dot_product_attention"),
    "the cache is emptied in each step": Fault(EmptyCache, r"empty_cache\(\)"),
    "a part on the processor": Fault(OnProcessor, r"Keep their inputs on the device"),
    "a checkpoint in one step": Fault(
        Checkpoint, r"of 6 steps (is|are) slow|save_checkpoint", r"save_checkpoint", EVERY
    ),
    "an evaluation in one step": Fault(Evaluation, r"of 6 steps is slow|once before you record"),
    "images with the channels first": Fault(Convolutions, r"channels_last"),
    "words one by one": Fault(Decoding, r"(?i)graph"),
    "words from a graph": Fault(Graphs, r"copies and casts"),
    "inference that autograd records": Fault(Remembering, r"no_grad|inference_mode"),
}
"""Of the most frequent causes of an idle or a slow device."""


def report_of(loop: Words, folder: Path, way: str) -> Report:
    try:
        return build_report(tracekit.read(record(loop, folder / "run", **WAYS[way])))
    finally:
        loop.end()
        torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("fault", "way"),
    [pytest.param(fault, way, id=f"{name}-{way}") for name, fault in FAULTS.items() for way in fault.ways],
)
def test_the_planted_fault_is_first(fault: Fault, way: str, tmp_path: Path) -> None:
    report = report_of(fault.loop(), tmp_path, way)
    check_first(report, report.verdict.advice[0], fault.says, fault.place if way == "stacks" else "")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", WAYS)
def test_a_healthy_run_gets_no_warning(way: str, tmp_path: Path) -> None:
    assert warnings_of(report_of(Words(), tmp_path, way)) == []
