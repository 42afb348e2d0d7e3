"""Real loops on the processors, healthy ones and a recording of them; faults are planted by overriding one part.

`Loop.spent` is the time of the planted fault in the recorded steps, in ns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

from tracekit.capture.sessions import session
from tracekit.manifest import CaptureOptions
from tracekit.report.model import Report
from tracekit.verdict.model import Advice

__all__ = ["STEPS", "WARMUP", "Block", "Loop", "Network", "Serving", "check_first", "record", "warnings_of"]

WARMUP = 2
STEPS = 6


class Loop:
    """Training of a small CNN with enough work in each operator."""

    batch, size, workers, threads = 8, 56, 0, 1

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.number = self.spent = 0
        self.model = self.make_model()
        self.model.train(mode=self.training)
        self.optimizer = self.make_optimizer()

    training = True

    def make_model(self) -> nn.Module:
        return Network()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.01)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Counts the time of its block, if the step is recorded."""
        start = time.perf_counter_ns()
        yield
        if WARMUP <= self.number < WARMUP + STEPS:
            self.spent += time.perf_counter_ns() - start

    def load(self) -> None:
        """What loading one image takes."""

    def loader(self) -> DataLoader[Any]:
        return DataLoader(Images(self), batch_size=self.batch, num_workers=self.workers)

    def step(self, batch: Any) -> None:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.forward(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.after(loss.detach())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.model(images)
        return output

    def after(self, loss: torch.Tensor) -> None:
        """What the loop does at the end of a step."""

    def end(self) -> None:
        """What to undo after the recording."""


class Serving(Loop):
    """Inference of a transformer."""

    training = False
    tokens, width, layers = 64, 192, 8

    def make_model(self) -> nn.Module:
        return nn.Sequential(*[Block(self.width) for _ in range(self.layers)])

    def step(self, batch: Any) -> None:
        images, _labels = batch
        with torch.inference_mode():
            hidden = images.flatten(1)[:, : self.tokens, None].expand(-1, -1, self.width)
            self.after(self.forward(hidden))


class Block(nn.Module):
    """A block of a transformer, with fused attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        shape = (*hidden.shape[:2], 4, hidden.shape[2] // 4)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.into(hidden).chunk(3, -1))
        mixed = self.attend(query, key, value).transpose(1, 2).reshape(hidden.shape)
        hidden = hidden + self.out(mixed)
        return hidden + self.narrow(self.wide(hidden).relu())  # type: ignore[no-any-return]

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value)


class Network(nn.Module):
    """Four convolutions with residuals."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.first(images).relu()
        for block in self.blocks:
            hidden = hidden + block(hidden).relu()
        return self.head(hidden.mean((2, 3)))  # type: ignore[no-any-return]


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Made-up images."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.image = torch.rand(3, loop.size, loop.size)

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.loop.load()
        return self.image, index % 10


def record(loop: Loop, folder: Path, *, how: str = "plain", **options: Any) -> Path:
    """Records the loop with `tracekit.capture.session` (how="session") or as people do; the path of the trace."""
    threads = torch.get_num_threads()
    torch.set_num_threads(loop.threads)
    try:
        return (_by_session if how == "session" else _plainly)(loop, folder, options)
    finally:
        torch.set_num_threads(threads)


def _plainly(loop: Loop, folder: Path, options: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=WARMUP - 1, active=STEPS, repeat=1),
        **options,
    ) as profiler:
        for batch in loop.loader():
            loop.step(batch)
            profiler.step()
            loop.number += 1
            if loop.number == WARMUP + STEPS:
                break
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return folder / "trace.json"


def _by_session(loop: Loop, folder: Path, options: dict[str, Any]) -> Path:
    with session(
        folder, model=loop.model, options=CaptureOptions(steps=STEPS, warmup=WARMUP, **options)
    ) as live:
        for batch in loop.loader():
            loop.step(batch)
            live.step()
            loop.number += 1
            if live.done:
                break
    return folder / "trace.json.gz"


def check_first(report: Report, first: Advice, says: str, place: str = "") -> None:
    """The headline or the first advice says this, and names the place."""
    said = f"{report.verdict.headline} | {first.title}: {first.advice}"
    assert re.search(says, said), said
    assert re.search(place, said), said


def warnings_of(report: Report) -> list[tuple[str, str]]:
    """The findings that warn, but that something else has the cores: the tests may share the machine."""
    return [
        (one.id, one.title)
        for section in report.sections
        for one in section.findings
        if one.severity != "info" and one.id != "stalled_calls"
    ]
