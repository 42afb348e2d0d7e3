"""Real loops on a GPU, whose step is the work of the device unless a fault is planted by overriding one part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cpu_loops import STEPS, WARMUP, Block, Loop
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

from tracekit.capture.sessions import session
from tracekit.manifest import CaptureOptions

__all__ = ["Decoder", "Decoding", "Words", "record"]


class Words(Loop):
    """Training of a transformer on tokens, in bfloat16, with everything that is known to help."""

    batch, tokens, width, depth, vocabulary = 16, 1024, 1024, 6, 32_000
    block: type[Block] = Block
    pinned = True

    def make_model(self) -> nn.Module:
        blocks = [self.block(self.width) for _ in range(self.depth)]
        return Decoder(nn.Embedding(self.vocabulary, self.width), blocks, self.vocabulary).cuda()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), fused=True)

    def loader(self) -> DataLoader[Any]:
        return DataLoader(
            Texts(self), batch_size=self.batch, num_workers=self.workers, pin_memory=self.pinned
        )

    def step(self, batch: Any) -> None:
        words = self.move(batch)
        with self.precision():
            scores = self.forward(words)
            loss = self.loss(scores, words)
        loss.backward()
        self.update()
        self.after(loss.detach())

    def move(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.cuda(non_blocking=True)

    def precision(self) -> Any:
        return torch.autocast("cuda", torch.bfloat16)

    def loss(self, scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class Decoder(nn.Module):
    """Words in, scores of words out."""

    def __init__(self, words: nn.Module, blocks: list[Block], vocabulary: int) -> None:
        super().__init__()
        self.words, self.blocks = words, nn.ModuleList(blocks)
        self.head = nn.Linear(blocks[0].out.in_features, vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)  # type: ignore[no-any-return]


class Decoding(Words):
    """Inference of a small batch, word by word without a cache: the host launches small kernels."""

    training = False
    batch, tokens = 1, 64
    words_a_step = 8

    def step(self, batch: Any) -> None:
        words = self.move(batch)
        with torch.inference_mode(), self.precision():
            for _ in range(self.words_a_step):
                following = self.forward(words)[:, -1:].argmax(-1)
                words = torch.cat([words[:, 1:], following], 1)
        self.after(words)


class Texts(Dataset[torch.Tensor]):
    """Made-up words."""

    def __init__(self, loop: Words) -> None:
        self.loop = loop
        self.words = torch.randint(0, loop.vocabulary, (64, loop.tokens))

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loop.load()
        return self.words[index % 64]


def record(loop: Loop, folder: Path, *, how: str = "plain", **options: Any) -> Path:
    """Records the loop with `tracekit.capture.session` (how="session") or as people do; the path of the trace."""
    if how == "session":
        with session(
            folder,
            model=loop.model,
            device="cuda",
            options=CaptureOptions(steps=STEPS, warmup=WARMUP, **options),
        ) as live:
            for _ in _steps(loop):
                live.step()
        return folder / "trace.json.gz"
    folder.mkdir()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=WARMUP - 1, active=STEPS, repeat=1),
        **options,
    ) as profiler:
        for _ in _steps(loop):
            profiler.step()
    profiler.export_chrome_trace(str(folder / "trace.json.gz"))
    return folder / "trace.json.gz"


def _steps(loop: Loop) -> Iterator[None]:
    """Runs the steps to the end of the recording."""
    for batch in loop.loader():
        loop.step(batch)
        yield
        loop.number += 1
        if loop.number == WARMUP + STEPS:
            torch.cuda.synchronize()
            return
