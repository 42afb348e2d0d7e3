"""The training loop that workloads with one input and one target per sample share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tracekit.capture.manifest import Setting
from tracekit.capture.names import PhaseRange

__all__ = ["Pair", "SupervisedTraining", "endless_batches"]

Pair = tuple[torch.Tensor, torch.Tensor]


def endless_batches(dataset: Dataset[Pair], batch: int, device: torch.device) -> Iterator[Pair]:
    """Yield batches of `batch` samples over and over, in page-locked memory when `device` is a GPU."""
    loader: DataLoader[Pair] = DataLoader(
        dataset, batch_size=batch, drop_last=True, pin_memory=device.type == "cuda"
    )
    while True:
        yield from loader


@dataclass(frozen=True, slots=True)
class SupervisedTraining:
    """A `Workload`: zero_grad, h2d, forward, loss, backward, optimizer."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    dataset: Dataset[Pair]
    device: torch.device
    batch: int
    config: Mapping[str, Setting]

    def batches(self) -> Iterator[Pair]:
        """Batches on the host, without end."""
        return endless_batches(self.dataset, self.batch, self.device)

    def step(self, batch: Pair, phase: PhaseRange) -> torch.Tensor:
        """Train on one batch; return the loss, detached, on the device."""
        with phase("zero_grad"):
            self.optimizer.zero_grad()
        with phase("h2d"):
            inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
        with phase("forward"):
            output: torch.Tensor = self.model(inputs)
        with phase("loss"):
            loss = self.loss(output, targets)
        with phase("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with phase("optimizer"):
            self.optimizer.step()
        return loss.detach()
